"""The target queues: there, or made with the timeouts that they should have."""

from __future__ import annotations

from typing import NamedTuple

from veil.consumer.queue_api import ApiError
from veil.consumer.sqs.errors import plain
from veil.pipeline.queues.client import QueueClient
from veil.pipeline.routing.refusal import RouteRefused
from veil.pipeline.routing.route_table import RouteTable, Target


class Prepared(NamedTuple):
    """A target queue as it was found or made; `timeout_s` is what it has."""

    target: Target
    timeout_s: int
    created: bool


def prepare_targets(intake: QueueClient, table: RouteTable, *, create: bool) -> list[Prepared]:
    """See that every target is there, or create what is missing; raises RouteRefused."""
    own = intake.url.rpartition("/")[2]
    missing, found = list[Target](), list[Prepared]()
    for target in table.targets:
        if target.queue == own:
            raise RouteRefused(f"target {target.queue}: expected another queue than the intake")
        timeout_s = _timeout_of(intake, target.queue)
        if timeout_s is not None:
            found.append(Prepared(target, timeout_s, created=False))
        elif create:
            found.append(Prepared(target, _create(intake, target), created=True))
        else:
            missing.append(target)
    if missing:
        names = ", ".join(target.queue for target in missing)
        raise RouteRefused(f"there is no queue {names}: create it, or ask for it with --create-queues")
    return found


def _timeout_of(intake: QueueClient, queue: str) -> int | None:
    try:
        url = intake.ask("GetQueueUrl", {"QueueUrl": None, "QueueName": queue})["QueueUrl"]
    except ApiError as error:
        if plain(error.code) in ("QueueDoesNotExist", "NonExistentQueue"):
            return None
        raise
    asked = {"QueueUrl": url, "AttributeNames": ["VisibilityTimeout"]}
    return int(intake.ask("GetQueueAttributes", asked)["Attributes"]["VisibilityTimeout"])


def _create(intake: QueueClient, target: Target) -> int:
    attributes = {} if target.timeout_s is None else {"VisibilityTimeout": str(target.timeout_s)}
    if target.queue.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    try:
        intake.ask("CreateQueue", {"QueueUrl": None, "QueueName": target.queue, "Attributes": attributes})
    except ApiError as error:
        raise RouteRefused(f"queue {target.queue} cannot be created: {error}") from None
    return _timeout_of(intake, target.queue) or 0
