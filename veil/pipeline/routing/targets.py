"""The target queues: there, or made with the timeouts that they should have, and with the intake's dead letters.

Work that moves from the intake to a target fails there as it would have failed here: what is spent must not go round for
ever in a queue without dead letters, when the queue that it was sent to has some.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from veil.consumer.message import ApiError
from veil.consumer.sqs.errors import plain
from veil.pipeline.queues.client import QueueClient
from veil.pipeline.routing.refusal import RouteRefused
from veil.pipeline.routing.route_table import RouteTable, Target


class Prepared(NamedTuple):
    """A target queue as it was found or made; `timeout_s` is what it has, `dead_letters` the queue it was given for them."""

    target: Target
    timeout_s: int
    created: bool
    dead_letters: str | None = None


class _Redrive(msgspec.Struct, rename="camel"):
    dead_letter_target_arn: str
    max_receive_count: int | str

    @property
    def queue(self) -> str:
        return self.dead_letter_target_arn.rpartition(":")[2]


def prepare_targets(intake: QueueClient, table: RouteTable, *, create: bool) -> list[Prepared]:
    """See that every target is there, or create what is missing; raises RouteRefused."""
    own = intake.url.rpartition("/")[2]
    redrive = _redrive_of(intake) if create else None
    missing, found = list[Target](), list[Prepared]()
    for target in table.targets:
        if target.queue == own:
            raise RouteRefused(f"target {target.queue}: expected another queue than the intake")
        timeout_s = _timeout_of(intake, target.queue)
        if timeout_s is not None:
            found.append(Prepared(target, timeout_s, created=False))
        elif create:
            found.append(_create(intake, target, redrive))
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


def _redrive_of(intake: QueueClient) -> _Redrive | None:
    text = intake.attributes().get("RedrivePolicy")
    return msgspec.json.decode(text, type=_Redrive) if text else None


def _create(intake: QueueClient, target: Target, redrive: _Redrive | None) -> Prepared:
    fifo = target.queue.endswith(".fifo")
    attributes = {} if target.timeout_s is None else {"VisibilityTimeout": str(target.timeout_s)}
    if fifo:
        attributes["FifoQueue"] = "true"
    # A FIFO queue's dead letters are a FIFO queue, and a standard one's are not: where the two differ there are none to share.
    if redrive is not None and (redrive.queue.endswith(".fifo") != fifo or redrive.queue == target.queue):
        redrive = None
    if redrive is not None:
        attributes["RedrivePolicy"] = msgspec.json.encode(redrive).decode()
    try:
        intake.ask("CreateQueue", {"QueueUrl": None, "QueueName": target.queue, "Attributes": attributes})
    except ApiError as error:
        raise RouteRefused(f"queue {target.queue} cannot be created: {error}") from None
    timeout_s = _timeout_of(intake, target.queue) or 0
    return Prepared(target, timeout_s, created=True, dead_letters=redrive.queue if redrive else None)
