"""A queue's policy: who besides its own account may use it."""

from __future__ import annotations

import json

from veil.console.aws_command import aws_command, queue_url
from veil.console.changes import Change, Difference, Done, offer
from veil.console.exchange import Answer
from veil.console.queue_head import queue_head, queue_page
from veil.console.roles import Role
from veil.console.routes import change, link, page
from veil.console.visit import Visit
from veil.core.errors import PolicyRefused
from veil.core.policy import POLICY_BYTES_MAX, parse_policy
from veil.core.queue import Queue
from veil.service.queues import change_settings


@page("/queues/{region}/{name}/policy")
async def policy_page(visit: Visit) -> Answer:
    """The policy laid out, and for who may change it the form to do so."""
    queue = await visit.queue()
    return await _page(visit, queue, _laid_out(queue.settings.policy), "")


@change("/queues/{region}/{name}/policy", needs=Role.ADMIN)
async def change_policy(visit: Visit) -> Answer:
    """Show the policy before and after; then store it."""
    queue = await visit.queue()
    written = visit.form.raw("policy")
    before = queue.settings.policy
    try:
        after = parse_policy(written).text if written.strip() else None
    except PolicyRefused as refusal:
        return await _page(visit, queue, written, str(refusal), 422)
    if after == before:
        return await _page(visit, queue, written, "This is the policy that the queue has already.", 422)
    back = link("queues", queue.key.region, queue.name, "policy")

    async def make() -> Done:
        await change_settings(visit.service, queue, {"policy": after})
        return Done(f"The policy of {queue.name} is {'changed' if after else 'removed'}.", back)

    parameters = {
        "QueueUrl": queue_url(visit.endpoint_url, queue),
        "Attributes": {"Policy": after or ""},
    }
    return await offer(
        visit,
        Change(
            action="change policy",
            target=queue.name,
            title=f"Change the policy of {queue.name}",
            button="Change the policy" if after else "Remove the policy",
            back=back,
            make=make,
            differences=[Difference("Policy", _laid_out(before), _laid_out(after))],
            commands=[aws_command("set-queue-attributes", visit.endpoint_url, queue.key.region, parameters)],
            notes=[
                "It counts for the next request. The account's own keys may always do everything that no statement denies."
            ],
        ),
    )


def _laid_out(policy: str | None) -> str:
    return "" if policy is None else json.dumps(json.loads(policy), indent=2, ensure_ascii=False)


async def _page(visit: Visit, queue: Queue, written: str, problem: str, status: int = 200) -> Answer:
    head = await queue_head(visit, queue, "policy")
    example = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "LetThemSend",
                "Effect": "Allow",
                "Principal": {"AWS": "111122223333"},
                "Action": "sqs:SendMessage",
                "Resource": queue.key.arn,
            }
        ],
    }
    return await queue_page(
        visit,
        head,
        "queue_policy.html",
        status=status,
        laid_out=_laid_out(queue.settings.policy),
        written=written,
        problem=problem,
        example=json.dumps(example, indent=2),
        bytes_max=POLICY_BYTES_MAX,
    )
