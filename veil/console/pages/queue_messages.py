"""A queue's messages, in whatever state: looked at, never received."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from veil.console.changes import Change, Difference, Done, queue_command
from veil.console.letters import PAGE_ROWS, chosen_of
from veil.console.messages import (
    Body,
    Search,
    attributes_of,
    read_search,
    search_messages,
    show_body,
    show_preview,
)
from veil.console.queue_form import NumberField
from veil.console.queue_views import (
    PAGE_LEASES,
    Head,
    LeaseName,
    leased_message,
    live_facts,
    open_leases,
    queue_head,
    queue_page,
    state_words,
)
from veil.console.templates import length, plural
from veil.console.visit import Visit
from veil.console.web import Answer, Refused, Role, change, live, page, queue_link
from veil.core.errors import VeilError
from veil.core.limits import VISIBILITY_MAX_S
from veil.core.message import StoredMessage
from veil.core.queue import Queue
from veil.service.attempts import Holder
from veil.service.messages import Looked, delete, discard, extend_lease

_BODY_CHARS_MAX = 4_000  # the rest is on the message's own page
_ATTRIBUTE_CHARS_MAX = 100


class MessageRow(NamedTuple):
    """One message of the list."""

    message: StoredMessage
    state: str
    body: Body
    attributes: list[tuple[str, str, str]]
    address: str  # of the message's own page


@page("/queues/{region}/{name}")
@page("/queues/{region}/{name}/messages")
async def messages_page(visit: Visit) -> Answer:
    """The messages by their age, the oldest first, a page at a time."""
    return await _messages_shown(visit)


async def _messages_shown(visit: Visit, problem: str = "", status: int = 200) -> Answer:
    """The page; with what is wrong with what was asked, after a try."""
    head = await queue_head(visit, await visit.queue(), "messages")
    search = read_search(visit.query)
    looked = await search_messages(visit.service, head.queue, search, visit.turn)
    # A filtered list costs a look at many rows: it moves when it is asked to. What is above it always does.
    live_path = f"{head.address}/{'live' if search.is_filtered else f'messages/live?{search.query()}'}"
    return await queue_page(
        visit,
        head,
        "queue_messages.html",
        problem=problem,
        status=status,
        search=search,
        looked=looked,
        rows=await _rows(visit, head, looked),
        live_path=live_path,
    )


@live("/queues/{region}/{name}/messages/live")
async def messages_live(visit: Visit) -> Mapping[str, str]:
    head = await queue_head(visit, await visit.queue(), "messages")
    search = Search(after=read_search(visit.query).after)
    looked = await search_messages(visit.service, head.queue, search, visit.turn)
    kept = visit.fragments
    fragments = dict(live_facts(visit, head))
    drawn: list[str] = []
    for message in looked.messages:
        await visit.turn.pause()
        seq = message.seq
        drawn.append(kept.get(("row", seq), partial(_draw, visit, head, "row", message)))
        state = ("state", seq, message.state, message.due_at_ms)
        fragments[f"state-{seq}"] = kept.get(state, partial(_draw, visit, head, "state", message))
        receives = ("receives", seq, message.receive_count)
        fragments[f"receives-{seq}"] = kept.get(receives, partial(_draw, visit, head, "receives", message))
    kept.end_round()
    # The rows before their cells: a cell is put into a row that is there.
    none = await visit.fragment("queue_message_none.html", search=search, looked=looked)
    return {"message-rows": "".join(drawn) or none, **fragments}


def _draw(visit: Visit, head: Head, piece: str, message: StoredMessage) -> str:
    row = _row(visit, head, message)
    return visit.row(f"queue_message_{piece}.html", head=head, row=row, is_live=True)


@live("/queues/{region}/{name}/live")
async def facts_live(visit: Visit) -> Mapping[str, str]:
    """The counts alone, for the pages that have nothing else that moves."""
    return live_facts(visit, await queue_head(visit, await visit.queue(), ""))


async def _rows(visit: Visit, head: Head, looked: Looked) -> list[MessageRow]:
    rows: list[MessageRow] = []
    for message in looked.messages:
        rows.append(_row(visit, head, message))
        await visit.turn.pause()
    return rows


def _row(visit: Visit, head: Head, message: StoredMessage) -> MessageRow:
    holder = visit.console.activity.attempts.holder(head.queue.id, message)
    return MessageRow(
        message,
        state_words(message, holder),
        show_body(message.body, _BODY_CHARS_MAX),
        attributes_of(message, _ATTRIBUTE_CHARS_MAX),
        f"{head.address}/messages/{message.seq}",
    )


@change("/queues/{region}/{name}/messages", needs=Role.OPERATOR)
async def delete_messages(visit: Visit) -> Answer:
    """Show which messages would be deleted, then delete them."""
    queue = await visit.queue()
    chosen = chosen_of(visit.form.all("message"))
    if not chosen or len(chosen) > PAGE_ROWS:
        return await _messages_shown(visit, f"Tick at least one message, and at most {PAGE_ROWS}.", 422)
    return await offer_deletion(visit, queue, chosen, queue_link(queue.key, "messages"))


async def offer_deletion(visit: Visit, queue: Queue, chosen: Sequence[tuple[int, str]], back: str) -> Answer:
    """Show which messages would be deleted, by key and id, then delete those that nobody holds."""

    async def make() -> Done:
        answers = await discard(visit.service, queue, chosen, caller=visit.caller)
        refusals = [str(answer) for answer in answers if answer is not None]
        if len(refusals) == len(answers):
            raise NothingDeleted("; ".join(refusals[:3]))
        rest = f" Not deleted: {'; '.join(refusals[:3])}." if refusals else ""
        return Done(f"{plural(len(answers) - len(refusals), 'message')} deleted.{rest}", back)

    count = plural(len(chosen), "message")
    return await Change(
        visit,
        action="delete messages",
        target=chosen[0][1] if len(chosen) == 1 else f"{count} of {queue.name}",
        title=f"Delete {count} of {queue.name}",
        button=f"Delete {count}",
        back=back,
        make=make,
        differences=[Difference(f"Message {message_id}", queue.name, "") for _, message_id in chosen],
        notes=[
            "A deleted message does not come back. One that somebody holds by then is left alone.",
            "There is no aws command for this: SQS deletes what was received, by its receipt.",
        ],
        is_danger=True,
    ).offer()


class NothingDeleted(VeilError):
    """None of the messages could be deleted."""


class LeaseRow(NamedTuple):
    """One open lease."""

    message: StoredMessage
    holder: Holder | None  # None: not known
    preview: str  # the beginning of the body
    received_wall_ms: int
    window_ms: int  # from the receive or the last renewal to the deadline
    address: str

    @property
    def name(self) -> str:
        """What a form calls the lease."""
        return f"{self.message.seq}:{self.message.delivery}"

    @property
    def renewals(self) -> int | None:
        """How often the lease was renewed; None: not known."""
        return None if self.holder is None else self.holder.renewals

    @property
    def version(self) -> str:
        """Changes with all that the row tells: a row that is drawn anew must get its cells anew, too."""
        outcome = None if self.holder is None else self.holder.outcome
        return (
            f"{self.message.received_at_ms}-{self.message.receive_count}-{self.holder is not None}-{outcome}"
        )


@page("/queues/{region}/{name}/in-flight")
async def in_flight_page(visit: Visit) -> Answer:
    return await _in_flight_shown(visit)


async def _in_flight_shown(visit: Visit, problem: str = "", status: int = 200) -> Answer:
    """The page; with what is wrong with what was asked, after a try."""
    head = await queue_head(visit, await visit.queue(), "in-flight")
    after = visit.query.number("after", 0, 0, (1 << 63) - 1)
    looked = await open_leases(visit.service, head.queue, after, visit.turn)
    by_deadline = _is_by_deadline(visit)
    return await queue_page(
        visit,
        head,
        "queue_in_flight.html",
        problem=problem,
        status=status,
        extend_s=visit.form.text("extend_s")[:40] or head.queue.settings.visibility_s or 30,
        looked=looked,
        rows=_lease_rows(visit, head, looked),
        after=after,
        by_deadline=by_deadline,
        live_path=f"{head.address}/in-flight/live?after={after}&order={'deadline' if by_deadline else ''}",
    )


@live("/queues/{region}/{name}/in-flight/live")
async def in_flight_live(visit: Visit) -> Mapping[str, str]:
    head = await queue_head(visit, await visit.queue(), "in-flight")
    after = visit.query.number("after", 0, 0, (1 << 63) - 1)
    looked = await open_leases(visit.service, head.queue, after, visit.turn)
    kept = visit.fragments
    fragments = dict(live_facts(visit, head))
    drawn: list[str] = []
    for row in _lease_rows(visit, head, looked):
        await visit.turn.pause()
        drawn.append(kept.get(("row", row.name, row.version), partial(_draw_leases, visit, "row", row)))
        clock = (row.name, row.version, row.message.due_at_ms, row.window_ms, row.renewals)
        for cell in ("deadline", "renewals"):
            fragments[f"{cell}-{row.message.seq}"] = kept.get(
                (cell, *clock), partial(_draw_leases, visit, cell, row)
            )
    kept.end_round()
    # The rows before their cells: a cell is put into a row that is there.
    return {"lease-rows": "".join(drawn) or await visit.fragment("queue_lease_none.html"), **fragments}


def _draw_leases(visit: Visit, piece: str, row: LeaseRow) -> str:
    return visit.row(f"queue_lease_{piece}.html", row=row, is_live=True)


def _lease_rows(visit: Visit, head: Head, looked: Looked) -> list[LeaseRow]:
    messages = looked.messages
    if _is_by_deadline(visit):
        messages = sorted(messages, key=lambda message: message.due_at_ms or 0)
    return [_lease_row(visit, head, message) for message in messages]


def _is_by_deadline(visit: Visit) -> bool:
    """Whether the leases of the page are to be shown by their deadlines instead of by age."""
    return visit.query.text("order") == "deadline"


def _lease_row(visit: Visit, head: Head, message: StoredMessage) -> LeaseRow:
    holder = visit.console.activity.attempts.holder(head.queue.id, message)
    received_ms = message.received_at_ms or 0
    began_ms = received_ms if holder is None else holder.last_renewed_ms or received_ms
    return LeaseRow(
        message,
        holder,
        show_preview(message.body),
        received_ms + visit.wall_offset_ms,
        max(1, (message.due_at_ms or 0) - began_ms),
        f"{head.address}/messages/{message.seq}",
    )


_EXTENSION: Final = NumberField("extend_s", "Extend to", "seconds", 1, VISIBILITY_MAX_S, "")
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
        "The holder is not told: it may still be working on the message while somebody else receives it.",
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
        "A deleted message does not come back. Its holder is not told.",
    ),
}


class NotChosen(Refused):
    """What was asked of the leases cannot be done as it is; said on their page."""

    status = 422


@change("/queues/{region}/{name}/in-flight", needs=Role.OPERATOR)
async def change_leases(visit: Visit) -> Answer:
    """Show what would become of the leases that were chosen, then do it."""
    try:
        return await _change_leases(visit, await visit.queue())
    except NotChosen as refusal:
        return await _in_flight_shown(visit, refusal.sentence, refusal.status)


async def _change_leases(visit: Visit, queue: Queue) -> Answer:
    form = visit.form
    # One lease's own button says both what and which; those below the list are for the ticked ones.
    what, _, one = form.text("one").partition(" ")
    way = _WAYS.get(what or form.text("do"))
    names = [LeaseName.read(text) for text in ([one] if one else form.all("lease"))]
    if way is None:
        raise NotChosen("Choose what to do: release, extend or delete.")
    if not names or None in names or len(names) > PAGE_LEASES:
        raise NotChosen(f"Tick at least one message, and at most {PAGE_LEASES}.")
    visibility_s = 0
    if way is _WAYS["extend"]:
        try:
            visibility_s = _EXTENSION.read(form.text("extend_s"))
        except ValueError as problem:
            raise NotChosen(f"Extend to {problem}.") from None
    # A lease that has ended meanwhile is an error for one, and is left out of many.
    leases: list[tuple[LeaseName, StoredMessage]] = []
    gone = 0
    for name in names:
        assert name is not None
        try:
            leases.append((name, await leased_message(visit.service, queue, name)))
        except VeilError as refusal:
            if len(names) == 1:
                raise NotChosen(f"Nothing was done: {refusal}.") from None
            gone += 1
    if not leases:
        raise NotChosen("Nothing was done: all these leases have ended since they were shown.")
    return await _change(visit, queue, way, leases, visibility_s, gone).offer()


def _change(
    visit: Visit,
    queue: Queue,
    way: _Way,
    leases: Sequence[tuple[LeaseName, StoredMessage]],
    visibility_s: int,
    gone: int,
) -> Change:
    back = queue_link(queue.key, "in-flight")
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
        visit,
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
        commands=[
            queue_command(visit, "delete-message", queue, ReceiptHandle=receipt)
            if way is _WAYS["delete"]
            else queue_command(
                visit,
                "change-message-visibility",
                queue,
                ReceiptHandle=receipt,
                VisibilityTimeout=visibility_s,
            )
            for receipt in receipts[:_COMMANDS_MAX]
        ],
        notes=notes,
        is_danger=way is _WAYS["delete"],
    )
