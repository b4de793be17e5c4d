"""Release, extend or delete what somebody else holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from veil.console.aws_command import aws_command, queue_url
from veil.console.changes import Change, Difference, Done, offer
from veil.console.exchange import Answer
from veil.console.formatting import length, plural
from veil.console.leases import PAGE_LEASES, LeaseName, leased_message
from veil.console.refusals import Refused
from veil.console.roles import Role
from veil.console.routes import change, link
from veil.console.setting_fields import NumberField
from veil.console.visit import Visit
from veil.core.errors import VeilError
from veil.core.limits import VISIBILITY_MAX_S
from veil.core.message import StoredMessage
from veil.core.queue import Queue
from veil.service.messages import delete, extend_lease

_EXTENSION: Final = NumberField("extend_s", "Extend by", "seconds", 1, VISIBILITY_MAX_S, "")
_COMMANDS_MAX: Final = 10


class _Way(NamedTuple):
    action: str  # for the audit log
    title: str
    button: str
    after: str  # what the message will be
    done: str  # what the messages are
    note: str


_WAYS: Final = {
    "release": _Way(
        "release message",
        "Release",
        "Release now",
        "visible at once",
        "visible again",
        "Whoever holds it is not told: it may still be working on it, and somebody else will receive it now.",
    ),
    "extend": _Way(
        "extend lease",
        "Extend",
        "Extend",
        "in flight for {length} from then on",
        "in flight for {length} from now on",
        "The holder keeps its receipt. A lease ends 12 hours after its receive at the latest.",
    ),
    "delete": _Way(
        "delete message",
        "Delete",
        "Delete",
        "",
        "deleted",
        "A deleted message does not come back. Whoever holds it is not told.",
    ),
}


@change("/queues/{region}/{name}/in-flight", needs=Role.OPERATOR)
async def change_leases(visit: Visit) -> Answer:
    """Show what would become of the leases that were chosen, then do it."""
    queue = await visit.queue()
    form = visit.form
    # One lease's own button says both what and which; those below the list are for the ticked ones.
    what, _, one = form.text("one").partition(" ")
    way = _WAYS.get(what or form.text("do"))
    names = [LeaseName.read(text) for text in ([one] if one else form.all("lease"))]
    if way is None:
        raise Refused("Say what is to be done: release, extend or delete.")
    if not names or None in names or len(names) > PAGE_LEASES:
        raise Refused(f"Tick at least one message, and at most {PAGE_LEASES}.")
    visibility_s = 0
    if way is _WAYS["extend"]:
        try:
            visibility_s = _EXTENSION.read(form.text("extend_s"))
        except ValueError as problem:
            raise Refused(f"Extend by {problem}.") from None
    # A lease that has ended meanwhile is an error for one, and is left out of many.
    leases: list[tuple[LeaseName, StoredMessage]] = []
    gone = 0
    for name in names:
        assert name is not None
        try:
            leases.append((name, await leased_message(visit.service, queue, name)))
        except VeilError as refusal:
            if len(names) == 1:
                raise Refused(f"Nothing was done: {refusal}.") from None
            gone += 1
    if not leases:
        raise Refused("Nothing was done: all these leases have ended since they were shown.")
    return await offer(visit, _change(visit, queue, way, leases, visibility_s, gone))


def _change(
    visit: Visit,
    queue: Queue,
    way: _Way,
    leases: Sequence[tuple[LeaseName, StoredMessage]],
    visibility_s: int,
    gone: int,
) -> Change:
    back = link("queues", queue.key.region, queue.name, "in-flight")
    receipts = [
        visit.service.store.receipts.write(queue.id, name.seq, name.delivery, message.rotation)
        for name, message in leases
    ]
    done = way.done.format(length=length(visibility_s))

    async def make() -> Done:
        answers: list[VeilError | None]
        if way is _WAYS["delete"]:
            # Strict: what has lapsed since is not ours to delete, somebody may be about to receive it.
            answers = await delete(visit.service, queue, receipts, strict=True, caller=visit.caller)
        else:
            changes = [(receipt, visibility_s) for receipt in receipts]
            answers = await extend_lease(visit.service, queue, changes, caller=visit.caller)
        refusals = [answer for answer in answers if answer is not None]
        if len(refusals) == len(answers):
            raise refusals[0]
        count = len(answers) - len(refusals)
        notice = f"{plural(count, 'message')} {'is' if count == 1 else 'are'} {done}."
        if refusals:
            notice += f" {plural(len(refusals), 'message')} could not be: {refusals[0]}."
        return Done(notice, back)

    one = leases[0][1].message_id
    title = (
        f"{way.title} message {one}" if len(leases) == 1 else f"{way.title} {plural(len(leases), 'message')}"
    )
    notes = [way.note]
    if gone:
        notes.append(
            f"{plural(gone, 'lease')} of those chosen ended since they were shown, and are left out."
        )
    if len(receipts) > _COMMANDS_MAX:
        notes.append(f"The commands of the first {_COMMANDS_MAX} are shown; the others are like them.")
    return Change(
        action=way.action,
        target=one if len(leases) == 1 else f"{len(leases)} messages of {queue.name}",
        title=title,
        button=way.button,
        back=back,
        make=make,
        differences=[
            Difference(
                f"Message {message.message_id}",
                f"in flight, receive {message.receive_count:,}",
                way.after.format(length=length(visibility_s)),
            )
            for _, message in leases
        ],
        commands=[_command(visit, queue, way, receipt, visibility_s) for receipt in receipts[:_COMMANDS_MAX]],
        notes=notes,
        is_danger=way is _WAYS["delete"],
    )


def _command(visit: Visit, queue: Queue, way: _Way, receipt: str, visibility_s: int) -> str:
    parameters: dict[str, Any] = {
        "QueueUrl": queue_url(visit.endpoint_url, queue),
        "ReceiptHandle": receipt,
    }
    if way is _WAYS["delete"]:
        return aws_command("delete-message", visit.endpoint_url, queue.key.region, parameters)
    parameters["VisibilityTimeout"] = visibility_s
    return aws_command("change-message-visibility", visit.endpoint_url, queue.key.region, parameters)
