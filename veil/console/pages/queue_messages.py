"""A queue's messages in any state, and its open leases, without receiving them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from veil.console.changes import Change, ChangeResult, Difference, change, done_of, queue_command
from veil.console.messages import PAGE_ROWS, Search, chosen_of, read_search, search_messages
from veil.console.queue_views import (
    PAGE_LEASES,
    CurrentMessage,
    Head,
    LeaseName,
    leased_message,
    live_facts,
    open_leases,
    queue_head,
    queue_page,
)
from veil.console.visit import Visit
from veil.console.web import FormRefused, NumberField, Role, live, page, queue_link
from veil.core.errors import VeilError
from veil.core.limits import VISIBILITY_MAX_S
from veil.core.message import StoredMessage
from veil.core.queue import Queue
from veil.core.sequence import SEQ_MAX
from veil.service.messages import SearchPage, delete, extend_lease
from veil.wire.exchange import Response
from veil.words import exact_length, plural


def _rows(visit: Visit, head: Head, result: SearchPage) -> list[CurrentMessage]:
    holder = partial(visit.console.activity.attempts.holder, head.queue.id)
    return [CurrentMessage(head.queue, each, holder(each)) for each in result.messages]


def _drawn(visit: Visit, row: CurrentMessage, piece: str, *state: object) -> str:
    """A row or a cell of the stream, drawn again when its state is another."""
    return visit.fragments.get(
        (piece, row.message.seq, *state), lambda: visit.row(f"queue_{piece}.html", row=row)
    )


# ---- messages


@page("/queues/{region}/{name}")
@page("/queues/{region}/{name}/messages")
async def messages_page(visit: Visit) -> Response:
    """The messages by their age, the oldest first, a page at a time; with what is wrong with what was asked, after a try."""
    head = await queue_head(visit, "messages")
    search = read_search(visit.query)
    result = await search_messages(visit.service, head.queue, search, visit.time_slice)
    # A filtered list costs a look at many rows: it moves when it is asked to. What is above it always does.
    live_path = f"{head.address}/{'live' if search.is_filtered else f'messages/live?{visit.query_with()}'}"
    return await queue_page(
        visit,
        head,
        search=search,
        result=result,
        rows=_rows(visit, head, result),
        live_path=live_path,
    )


@live("/queues/{region}/{name}/messages/live")
async def messages_live(visit: Visit) -> Mapping[str, str]:
    head = await queue_head(visit, "messages")
    search = Search(after=read_search(visit.query).after)
    result = await search_messages(visit.service, head.queue, search, visit.time_slice)
    fragments, drawn = dict(live_facts(visit, head)), ""
    for row in _rows(visit, head, result):
        await visit.time_slice.yield_if_spent()
        draw, message = partial(_drawn, visit, row), row.message
        drawn += draw("message_row")
        fragments[f"state-{message.seq}"] = draw("message_state", message.state, message.due_at_ms)
        fragments[f"receives-{message.seq}"] = draw("message_receives", message.receive_count)
    visit.fragments.end_round()
    # The rows before their cells: a cell is put into a row that is there.
    none = await visit.fragment("queue_message_none.html", search=search, result=result)
    return {"message-rows": drawn or none, **fragments}


@live("/queues/{region}/{name}/live")
async def facts_live(visit: Visit) -> Mapping[str, str]:
    """The counts alone, for the pages that have nothing else that moves."""
    return live_facts(visit, await queue_head(visit, ""))


@change("/queues/{region}/{name}/messages", needs=Role.OPERATOR, form=messages_page)
async def delete_messages(visit: Visit) -> Change:
    """Show which messages would be deleted, then delete them."""
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


@page("/queues/{region}/{name}/in-flight")
async def in_flight_page(visit: Visit) -> Response:
    """The open leases; with what is wrong with what was asked, after a try."""
    head = await queue_head(visit, "in-flight")
    result, after = await _open_leases(visit, head)
    by_deadline = _is_by_deadline(visit)
    return await queue_page(
        visit,
        head,
        extend_s=visit.form.text("extend_s")[:40] or head.queue.settings.visibility_s or 30,
        result=result,
        rows=_rows(visit, head, result),
        after=after,
        by_deadline=by_deadline,
        live_path=f"{head.address}/in-flight/live?after={after}&order={'deadline' if by_deadline else ''}",
    )


@live("/queues/{region}/{name}/in-flight/live")
async def in_flight_live(visit: Visit) -> Mapping[str, str]:
    head = await queue_head(visit, "in-flight")
    result, _ = await _open_leases(visit, head)
    fragments, drawn = dict(live_facts(visit, head)), ""
    for row in _rows(visit, head, result):
        await visit.time_slice.yield_if_spent()
        draw = partial(_drawn, visit, row)
        drawn += draw("lease_row", row.lease, row.lease_version)
        renewals = None if row.holder is None else row.holder.renewals
        clock = (row.lease, row.lease_version, row.message.due_at_ms, row.window_ms, renewals)
        fragments[f"deadline-{row.message.seq}"] = draw("lease_deadline", *clock)
        fragments[f"renewals-{row.message.seq}"] = draw("lease_renewals", *clock)
    visit.fragments.end_round()
    # The rows before their cells: a cell is put into a row that is there.
    return {"lease-rows": drawn or await visit.fragment("queue_lease_none.html"), **fragments}


async def _open_leases(visit: Visit, head: Head) -> tuple[SearchPage, int]:
    """The leases of the page, in the order that its address says, and behind which message it begins."""
    after = visit.query.number("after", 0, 0, SEQ_MAX)
    result = await open_leases(visit.service, head.queue, after, visit.time_slice)
    if _is_by_deadline(visit):
        result.messages.sort(key=lambda message: message.due_at_ms or 0)
    return result, after


def _is_by_deadline(visit: Visit) -> bool:
    return visit.query.text("order") == "deadline"


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
    """Show what would become of the leases that were chosen, then do it."""
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
