"""A queue's messages in any state, and its open leases, without receiving them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from veil.console.changes import Change, ChangeResult, Difference, change, done_of, queue_command
from veil.console.messages import PAGE_ROWS, Search, chosen_of, read_search, search_messages
from veil.console.queue_views import CurrentMessage, queue_view
from veil.console.visit import Visit
from veil.console.web import FormRefused, NumberField, Role, page, queue_link
from veil.core.errors import VeilError
from veil.core.lease import State
from veil.core.limits import VISIBILITY_MAX_S
from veil.core.message import StoredMessage
from veil.core.queue import Queue
from veil.core.sequence import SEQ_MAX
from veil.core.text import seq_number, whole_number
from veil.service.messages import SearchPage, delete, extend_lease
from veil.service.service import Service, peek_one
from veil.service.time_slices import TimeSlice
from veil.words import exact_length, plural


def _rows(visit: Visit, queue: Queue, result: SearchPage) -> list[CurrentMessage]:
    holder = partial(visit.console.activity.attempts.holder, queue.id)
    return [CurrentMessage(queue, each, holder(each)) for each in result.messages]


# ---- messages


@queue_view("messages", live_parts={"message-rows": "queue_message_rows.html"})
async def messages_page(visit: Visit, queue: Queue) -> Mapping[str, Any]:
    """The messages by their age, the oldest first, a page at a time; with what is wrong with what was asked, after a try."""
    search = read_search(visit.query)
    # A filtered list costs a look at many rows: it moves when it is asked to. What is above it always does.
    is_still = search.is_filtered
    if visit.is_live:
        search = Search(after=search.after)
    result = await search_messages(visit.service, queue, search, visit.time_slice)
    return {"search": search, "result": result, "rows": _rows(visit, queue, result), "is_still": is_still}


page("/queues/{region}/{name}")(messages_page)


@change("/queues/{region}/{name}/messages", needs=Role.OPERATOR, form=messages_page)
async def delete_messages(visit: Visit) -> Change:
    queue = await visit.queue()
    chosen = chosen_of(visit.form.all("message"))
    if not chosen or len(chosen) > PAGE_ROWS:
        raise FormRefused("message", f"Select at least one message, and at most {PAGE_ROWS}.")
    return deletion(visit, queue, chosen, visit.with_query(queue_link(queue.key, "messages")))


def deletion(visit: Visit, queue: Queue, chosen: Sequence[tuple[int, str]], back: str) -> Change:
    """Deletes these messages, by key and id, but for those that somebody holds by then."""

    async def make() -> ChangeResult:
        answers = await visit.service.store.discard(queue, chosen, caller=visit.caller)
        return ChangeResult(done_of(answers, "deleted", "deleted"))

    count = plural(len(chosen), "message")
    return Change(
        action="delete messages",
        target=chosen[0][1] if len(chosen) == 1 else f"{count} of {queue.name}",
        title=f"Delete {count} of {queue.name}",
        button=f"Delete {count}",
        back=back,
        make=make,
        differences=[Difference(f"Message {message_id}", queue.name, "") for _, message_id in chosen],
        notes=[
            "A deleted message does not come back. One that a consumer holds by then is left alone.",
            "There is no aws command for this: SQS deletes a message only by the receipt of its receive.",
        ],
        is_danger=True,
    )


# ---- leases

PAGE_LEASES: Final = 100
# Looked at once a second for as long as somebody watches: less than what a single search may cost.
_LEASE_ROWS_MAX: Final = 2_000
_LEASE_BYTES_MAX: Final = 4 << 20


class LeaseOver(VeilError):
    """The lease that was looked at has ended: deleted, released, lapsed, or received again."""


class LeaseName(NamedTuple):
    """Which lease is meant: one delivery of one message."""

    seq: int
    delivery: int

    @classmethod
    def read(cls, text: str) -> LeaseName | None:
        """The name in a form's field, or None."""
        seq, _, delivery = text.partition(":")
        numbers = seq_number(seq), whole_number(delivery)
        return None if numbers[0] is None or numbers[1] is None else cls(numbers[0], numbers[1])


async def open_leases(service: Service, queue: Queue, after: int, time_slice: TimeSlice) -> SearchPage:
    """The messages in flight behind that seq, the oldest first; no more rows are looked at than needed to find them all."""
    in_flight = (await service.store.counts(queue)).in_flight
    return await search_messages(
        service,
        queue,
        Search(state="in-flight", after=after),
        time_slice,
        page_rows=PAGE_LEASES,
        rows_max=_LEASE_ROWS_MAX,
        bytes_max=_LEASE_BYTES_MAX,
        enough=None if after else in_flight,
    )


async def leased_message(service: Service, queue: Queue, name: LeaseName) -> StoredMessage:
    """The message of an open lease; raises LeaseOver where the lease is not open any more."""
    message = await peek_one(service.store, queue, name.seq)
    if message is None:
        raise LeaseOver("the message is gone")
    is_open = message.state == State.IN_FLIGHT and (message.due_at_ms or 0) > service.clock.now_ms()
    if not is_open or message.delivery != name.delivery:
        raise LeaseOver(f"the lease of message {message.message_id} has ended since it was shown")
    return message


@queue_view("in-flight", live_parts={"lease-rows": "queue_lease_rows.html"})
async def in_flight_page(visit: Visit, queue: Queue) -> Mapping[str, Any]:
    after = visit.query.number("after", 0, 0, SEQ_MAX)
    by_deadline = visit.query.text("order") == "deadline"
    result = await open_leases(visit.service, queue, after, visit.time_slice)
    if by_deadline:
        result.messages.sort(key=lambda message: message.due_at_ms or 0)
    return {
        "extend_s": visit.form.text("extend_s")[:40] or queue.settings.visibility_s or 30,
        "result": result,
        "rows": _rows(visit, queue, result),
        "after": after,
        "by_deadline": by_deadline,
    }


_EXTENSION: Final = NumberField("extend_s", "Extend to", "seconds", 1, VISIBILITY_MAX_S)
_COMMANDS_MAX: Final = 10


# What can be done to a lease: its name in the audit log, its button, what the message will be, and what to know before.
_WAYS: Final = {
    "release": ("release message", "Release now", "visible at once",
                "The holder is not notified: it may still be working on the message when another consumer receives it."),
    "extend": ("extend lease", "Extend", "in flight for {} from then on",
               "The holder keeps its receipt. A lease ends 12 hours after its receive at the latest."),
    "delete": ("delete message", "Delete", "",
               "A deleted message does not come back. Its holder is not notified."),
}  # fmt: skip


@change("/queues/{region}/{name}/in-flight", needs=Role.OPERATOR, form=in_flight_page)
async def change_leases(visit: Visit) -> Change:
    queue, form = await visit.queue(), visit.form
    # One lease's own button says both what and which; those below the list are for the ticked ones.
    what, _, one = form.text("one").partition(" ")
    what = what or form.text("do")
    names = [LeaseName.read(text) for text in ([one] if one else form.all("lease"))]
    if what not in _WAYS:
        raise FormRefused("do", "Choose what to do: release, extend or delete.")
    if not names or None in names or len(names) > PAGE_LEASES:
        raise FormRefused("lease", f"Select at least one message, and at most {PAGE_LEASES}.")
    visibility_s = 0
    if what == "extend":
        try:
            visibility_s = _EXTENSION.read(form.text("extend_s"))
        except FormRefused as refusal:
            raise FormRefused(refusal.field, f"Extend to {refusal.sentence}.") from None
    leases: list[tuple[str, StoredMessage]] = []  # with their receipts
    ended: list[VeilError] = []
    for name in filter(None, names):
        try:
            message = await leased_message(visit.service, queue, name)
        except VeilError as refusal:
            ended.append(refusal)
        else:
            write = visit.service.store.receipts.write
            leases.append((write(queue.id, name.seq, message.holder), message))
    if not leases:
        why = ended[0] if len(ended) == 1 else "all these leases have ended since they were shown"
        raise FormRefused("lease", f"Nothing was done: {why}.")
    receipts = [receipt for receipt, _ in leases]
    action, button, after, note = _WAYS[what]
    length = exact_length(visibility_s)

    async def make() -> ChangeResult:
        answers: list[VeilError | None]
        if what == "delete":
            # Strict: what has lapsed since is not ours to delete, somebody may be about to receive it.
            answers = await delete(visit.service, queue, receipts, strict=True, caller=visit.caller)
        else:
            changes = [(receipt, visibility_s) for receipt in receipts]
            answers = await extend_lease(visit.service, queue, changes, caller=visit.caller)
        done = f"{what.removesuffix('e')}ed"
        return ChangeResult(done_of(answers, done, f"{done} to {length}" if what == "extend" else done))

    operation, given = "change-message-visibility", {"VisibilityTimeout": visibility_s}
    if what == "delete":
        operation, given = "delete-message", {}
    notes = [note]
    if ended:
        count = plural(len(ended), "lease")
        notes.append(f"{count} of those chosen ended since they were shown, and are left out.")
    if len(receipts) > _COMMANDS_MAX:
        notes.append(f"The commands of the first {_COMMANDS_MAX} are shown; the others are like them.")
    only, count = leases[0][1].message_id, plural(len(leases), "message")
    return Change(
        action=action,
        target=only if len(leases) == 1 else f"{count} of {queue.name}",
        title=f"{what.capitalize()} {f'message {only}' if len(leases) == 1 else count}",
        button=button,
        back=visit.with_query(queue_link(queue.key, "in-flight")),
        make=make,
        differences=[
            Difference(
                f"Message {each.message_id}",
                f"in flight, receive {each.receive_count:,}",
                after.format(length),
            )
            for _, each in leases
        ],
        commands=[
            queue_command(visit, operation, queue, **given, ReceiptHandle=receipt)
            for receipt in receipts[:_COMMANDS_MAX]
        ],
        notes=notes,
        is_danger=what == "delete",
    )
