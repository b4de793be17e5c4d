"""Send a message, or several from a file."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

from veil.console.changes import NO_COMMAND, Change, Difference, Done, offer, send_commands
from veil.console.drafts import FILE_BYTES_MAX, LINES_MAX, DraftRefused, read_draft, read_lines
from veil.console.formatting import file_size, length, plural
from veil.console.queue_views import queue_head, queue_page
from veil.console.visit import Visit
from veil.console.web import Answer, Role, change, link, page
from veil.core.errors import VeilError
from veil.core.message import Sent
from veil.core.message_rules import Draft, size_bytes
from veil.core.queue import Queue
from veil.service.messages import send

_FIELDS: Final = ("body", "attributes", "group", "deduplication_id", "delay_s", "priority")
_SHOWN_CHARS: Final = 500
_SHOWN_LINES: Final = 10


@page("/queues/{region}/{name}/send", needs=Role.OPERATOR)
async def send_page(visit: Visit) -> Answer:
    """The form, empty."""
    return await _form(visit, await visit.queue(), dict.fromkeys(_FIELDS, ""), {})


@change("/queues/{region}/{name}/send", needs=Role.OPERATOR)
async def send_message(visit: Visit) -> Answer:
    """Show what would be sent, then send it."""
    queue = await visit.queue()
    form = visit.form
    try:
        lines = _file_text(visit)
        drafts = (
            [read_draft(form, queue.settings)]
            if lines is None
            else await read_lines(lines, queue.settings, visit.turn)
        )
    except DraftRefused as refusal:
        filled = {name: form.raw(name) for name in _FIELDS}
        return await _form(visit, queue, filled, {refusal.field: refusal.sentence}, 422)
    return await offer(visit, _change(visit, queue, drafts, lines))


def _file_text(visit: Visit) -> str | None:
    """What the file holds, which comes back in a field with the confirmation; None where there is none."""
    if visit.form.checked("messages"):
        return visit.form.raw("messages")
    upload = visit.form.files.get("file")
    if upload is None or not (upload.name or upload.content):
        return None
    if len(upload.content) > FILE_BYTES_MAX:
        raise DraftRefused(
            "file",
            f"{file_size(len(upload.content))}: expected a file of at most {file_size(FILE_BYTES_MAX)}",
        )
    try:
        return upload.content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as problem:
        raise DraftRefused("file", f"expected UTF-8, byte {problem.start} is not") from None


def _change(visit: Visit, queue: Queue, drafts: Sequence[Draft], lines: str | None) -> Change:
    back = link("queues", queue.key.region, queue.name, "send")
    # Confirming twice, by a second click or after a lost answer, must not send twice.
    once = visit.form.text("once") or secrets.token_hex(16)
    retry_key = sha256(f"{visit.identity.cookie} {once}".encode()).digest()

    async def make() -> Done:
        answers = await send(
            visit.service,
            queue,
            drafts,
            sender=visit.identity.account,
            retry_key=retry_key,
            caller=visit.caller,
        )
        refusals = [answer for answer in answers if isinstance(answer, VeilError)]
        if len(refusals) == len(answers):
            raise refusals[0]
        sent = [answer for answer in answers if isinstance(answer, Sent)]
        notice = (
            f"Sent message {sent[0].message_id}."
            if lines is None
            else f"Sent {plural(len(sent), 'message')}."
        )
        if refusals:
            notice += f" {plural(len(refusals), 'message')} refused: {refusals[0]}."
        return Done(notice, back)

    carried = [] if visit.form.checked("once") else [("once", once)]
    if lines is not None and not visit.form.checked("messages"):
        carried.append(("messages", lines))
    count = plural(len(drafts), "message")
    commands = send_commands(visit.endpoint_url, queue, drafts)
    return Change(
        action="send message" if lines is None else "send messages",
        target=queue.name,
        title=f"Send {'a message' if lines is None else count} to {queue.name}",
        button="Send it" if len(drafts) == 1 else f"Send {count}",
        back=back,
        make=make,
        differences=_one(drafts[0]) if lines is None else _many(drafts, lines),
        commands=commands,
        notes=() if commands else (NO_COMMAND,),
        carried=carried,
    )


def _one(draft: Draft) -> list[Difference]:
    found = {
        "Body": _cut(draft.body),
        **{
            f"Attribute {name}": f"{value.data_type} {_cut(_shown(value.value))}"
            for name, value in (draft.attributes or {}).items()
        },
        "Group": draft.group or "",
        "Deduplication id": draft.deduplication_id or "",
        "Delay": "" if draft.delay_s is None else length(draft.delay_s),
        "Priority": "" if draft.priority is None else str(draft.priority),
    }
    return [Difference(name, "", text) for name, text in found.items() if text]


def _many(drafts: Sequence[Draft], lines: str) -> list[Difference]:
    size = sum(size_bytes(draft) for draft in drafts)
    digest = sha256(lines.encode("utf-8", "replace")).hexdigest()[:16]
    differences = [
        Difference("Messages", "", f"{len(drafts):,} of {file_size(size)} together (file {digest})")
    ]
    for number, draft in enumerate(drafts[:_SHOWN_LINES], 1):
        differences.append(Difference(f"Message {number}", "", _cut(draft.body, 160)))
    return differences


def _cut(text: str, chars: int = _SHOWN_CHARS) -> str:
    return text if len(text) <= chars else f"{text[:chars]}… ({len(text):,} characters)"


def _shown(value: str | bytes) -> str:
    return value if isinstance(value, str) else base64.b64encode(value).decode()


async def _form(
    visit: Visit, queue: Queue, values: Mapping[str, str], problems: Mapping[str, str], status: int = 200
) -> Answer:
    head = await queue_head(visit, queue, "send")
    return await queue_page(
        visit, head, "queue_send.html", status=status, values=values, problems=problems, lines_max=LINES_MAX
    )
