"""Send a message, or several from a file; mistakes are shown at their field or line."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from veil.console.changes import NO_COMMAND, Change, ChangeResult, Difference, change, done_of, send_commands
from veil.console.messages import cut
from veil.console.queue_views import queue_view
from veil.console.templates import file_size
from veil.console.visit import Visit
from veil.console.web import Form, FormRefused, NumberField, Role, queue_link
from veil.core import errors
from veil.core.limits import ATTRIBUTES_MAX, BODY_BYTES_MAX, DELAY_MAX_S
from veil.core.message import PRIORITY_FIRST, PRIORITY_LAST, MessageAttribute, Sent
from veil.core.message_rules import Draft, check_draft, size_bytes
from veil.core.queue import Queue, QueueSettings
from veil.service.messages import send
from veil.service.time_slices import TimeSlice
from veil.words import exact_length, plural

# ---- drafts

LINES_MAX: Final = 1_000
FILE_BYTES_MAX: Final = 2 << 20
_ATTRIBUTES_CHARS_MAX: Final = 2 * BODY_BYTES_MAX  # bytes are written in base64
_REWRITTEN_BYTES_MAX: Final = 128 << 10
_LINE: Final = re.compile(r"\S[^\n]*")  # one that is not blank
_DELAY: Final = NumberField("delay_s", "Delay", "seconds", 0, DELAY_MAX_S)
_PRIORITY: Final = NumberField("priority", "Priority", "steps", PRIORITY_FIRST, PRIORITY_LAST)
_FIELDS: Final = ("body", "attributes", "group", "deduplication_id", "delay_s", "priority")
# Where a refusal is shown: by the parameter that it names, or by what it is.
_FIELD_OF: Final[Mapping[object, str]] = {
    "MessageGroupId": "group",
    "MessageDeduplicationId": "deduplication_id",
    "DelaySeconds": "delay_s",
    "Priority": "priority",
    errors.GroupMissing: "group",
    errors.DeduplicationMissing: "deduplication_id",
    errors.PriorityRefused: "priority",
    errors.AttributeRefused: "attributes",
}


class _TypedValue(msgspec.Struct, forbid_unknown_fields=True):
    value: str | int | float
    type: str = "String"


class _MessageLine(msgspec.Struct, forbid_unknown_fields=True):
    # The body stays a text: it may be a megabyte of numbers, which nobody needs to see as numbers.
    body: msgspec.Raw
    attributes: dict[str, str | int | float | _TypedValue] | None = None
    group: str | None = None
    deduplication_id: str | None = None
    delay_s: int | None = None
    priority: int | None = None


def read_draft(form: Form, settings: QueueSettings) -> Draft:
    """The message of a form; raises FormRefused."""
    draft = Draft(
        form.raw("body"),
        _attributes(form.raw("attributes")) or None,
        delay_s=_DELAY.read_optional(form),
        group=form.text("group") or None,
        deduplication_id=form.text("deduplication_id") or None,
        priority=_PRIORITY.read_optional(form),
    )
    _check(draft, settings)
    return draft


async def read_lines(text: str, settings: QueueSettings, time_slice: TimeSlice) -> list[Draft]:
    """The messages of a file of JSON lines; raises FormRefused, which names the line."""
    if len(text) > FILE_BYTES_MAX:
        raise FormRefused("file", f"{len(text):,} characters: expected at most {FILE_BYTES_MAX:,}")
    drafts: list[Draft] = []
    number, counted = 1, 0
    for found in _LINE.finditer(text):
        await time_slice.yield_if_spent()
        number += text.count("\n", counted, found.start())
        counted = found.start()
        if len(drafts) == LINES_MAX:
            raise FormRefused("file", f"line {number}: expected at most {LINES_MAX:,} messages in one file")
        try:
            drafts.append(_read_line(found[0]))
            _check(drafts[-1], settings)
        except FormRefused as refusal:
            where = f"{refusal.field}: " if refusal.field in (_DELAY.name, _PRIORITY.name) else ""
            raise FormRefused("file", f"line {number}: {where}{refusal.sentence}") from None
    if not drafts:
        raise FormRefused("file", "the file has no messages: expected a JSON object on each line")
    return drafts


def _check(draft: Draft, settings: QueueSettings) -> None:
    try:
        check_draft(draft, settings)
    except errors.MessageRefused as refusal:
        named = getattr(refusal, "parameter", type(refusal))
        raise FormRefused(_FIELD_OF.get(named, "body"), str(refusal)) from None


def _attributes(text: str) -> dict[str, MessageAttribute]:
    """Attributes from lines of NAME=VALUE, NAME:Number=VALUE and NAME:Binary=BASE64."""
    attributes: dict[str, MessageAttribute] = {}
    if len(text) > _ATTRIBUTES_CHARS_MAX:
        expected = f"{len(text):,} characters: expected at most {_ATTRIBUTES_CHARS_MAX:,}"
        raise FormRefused("attributes", expected)
    for found in _LINE.finditer(text):
        line = found[0]
        if len(attributes) == ATTRIBUTES_MAX:
            raise FormRefused("attributes", f"{line[:80]!r}: expected at most {ATTRIBUTES_MAX} attributes")
        left, equals, value = line.partition("=")
        name, _, data_type = left.strip().partition(":")
        if not equals or not name:
            raise FormRefused("attributes", f"{line[:80]!r}: expected NAME=VALUE or NAME:TYPE=VALUE")
        if name in attributes:
            raise FormRefused("attributes", f"attribute {name[:80]!r} is given twice")
        attributes[name] = _attribute(name, data_type or "String", value.strip())
    return attributes


def _attribute(name: str, data_type: str, value: str) -> MessageAttribute:
    if not data_type.startswith("Binary"):
        return MessageAttribute(data_type, value)
    try:
        return MessageAttribute(data_type, base64.b64decode(value, validate=True))
    except ValueError:
        raise FormRefused("attributes", f"attribute {name[:80]!r}: expected its bytes in base64") from None


def _read_line(text: str) -> Draft:
    try:
        line = msgspec.json.decode(text, type=_MessageLine)
        body = _body(bytes(line.body))
    except msgspec.ValidationError as problem:
        raise FormRefused("file", str(problem)) from None
    except (ValueError, RecursionError):
        raise FormRefused("file", f"{text[:80]!r}: expected a JSON object") from None
    attributes = {}
    for name, value in (line.attributes or {}).items():
        if not isinstance(value, _TypedValue):
            value = _TypedValue(value, "String" if isinstance(value, str) else "Number")
        attributes[name] = _attribute(name, value.type, str(value.value))
    return Draft(
        body,
        attributes or None,
        delay_s=None if line.delay_s is None else _DELAY.read(str(line.delay_s)),
        group=line.group or None,
        deduplication_id=line.deduplication_id or None,
        priority=None if line.priority is None else _PRIORITY.read(str(line.priority)),
    )


def _body(raw: bytes) -> str:
    """A text as it is; whatever else in JSON, without the blanks between. Raises ValueError and RecursionError."""
    if raw.startswith(b'"'):
        return msgspec.json.decode(raw, type=str)
    if len(raw) <= _REWRITTEN_BYTES_MAX:
        return msgspec.json.encode(msgspec.json.decode(raw)).decode()
    # A large one is not made into objects and back, which takes too long: its escapes stay as they were written.
    return msgspec.json.format(raw, indent=-1).decode()


# ---- the page

_SHOWN_CHARS: Final = 500
_SHOWN_LINES: Final = 10


@queue_view("send", needs=Role.OPERATOR)
async def send_page(visit: Visit, queue: Queue) -> Mapping[str, Any]:
    return {"values": {name: visit.form.raw(name) for name in _FIELDS}, "lines_max": LINES_MAX}


@change("/queues/{region}/{name}/send", needs=Role.OPERATOR, form=send_page)
async def send_message(visit: Visit) -> Change:
    queue = await visit.queue()
    lines = _file_text(visit)
    if lines is None:
        drafts = [read_draft(visit.form, queue.settings)]
    else:
        drafts = await read_lines(lines, queue.settings, visit.time_slice)
    # Confirming twice, by a second click or after a lost answer, must not send twice.
    once = visit.form.text("once") or secrets.token_hex(16)
    retry_key = sha256(f"{visit.identity.cookie} {once}".encode()).digest()

    async def make() -> ChangeResult:
        sender = visit.identity.account
        answers = await send(
            visit.service, queue, drafts, sender=sender, retry_key=retry_key, caller=visit.caller
        )
        notice = done_of(answers, "sent", "sent")
        if lines is None and isinstance(answers[0], Sent):
            notice = f"Sent message {answers[0].message_id}."
        return ChangeResult(notice)

    carried = [] if visit.form.checked("once") else [("once", once)]
    if lines is not None and not visit.form.checked("messages"):
        carried.append(("messages", lines))
    count = plural(len(drafts), "message")
    commands = send_commands(visit, queue, drafts)
    return Change(
        action="send message" if lines is None else "send messages",
        target=queue.name,
        title=f"Send {'a message' if lines is None else count} to {queue.name}",
        button="Send it" if len(drafts) == 1 else f"Send {count}",
        back=queue_link(queue.key, "send"),
        make=make,
        differences=_one(drafts[0]) if lines is None else _many(drafts, lines),
        commands=commands,
        notes=() if commands else (NO_COMMAND,),
        carried=carried,
    )


def _file_text(visit: Visit) -> str | None:
    """What the file holds, which comes back in a field with the confirmation; None where there is none."""
    if visit.form.checked("messages"):
        return visit.form.raw("messages")
    upload = visit.form.files.get("file")
    if upload is None or not (upload.name or upload.content):
        return None
    if len(upload.content) > FILE_BYTES_MAX:
        expected = f"expected a file of at most {file_size(FILE_BYTES_MAX)}"
        raise FormRefused("file", f"{file_size(len(upload.content))}: {expected}")
    try:
        return upload.content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as problem:
        raise FormRefused("file", f"expected UTF-8, byte {problem.start} is not") from None


def _one(draft: Draft) -> list[Difference]:
    found = {"Body": cut(draft.body, _SHOWN_CHARS)}
    for name, (data_type, value) in (draft.attributes or {}).items():
        shown = value if isinstance(value, str) else base64.b64encode(value).decode()
        found[f"Attribute {name}"] = f"{data_type} {cut(shown, _SHOWN_CHARS)}"
    found["Group"] = draft.group or ""
    found["Deduplication id"] = draft.deduplication_id or ""
    found["Delay"] = "" if draft.delay_s is None else exact_length(draft.delay_s)
    found["Priority"] = "" if draft.priority is None else str(draft.priority)
    return [Difference(name, "", text) for name, text in found.items() if text]


def _many(drafts: Sequence[Draft], lines: str) -> list[Difference]:
    size = file_size(sum(map(size_bytes, drafts)))
    digest = sha256(lines.encode("utf-8", "replace")).hexdigest()[:16]
    return [
        Difference("Messages", "", f"{len(drafts):,} of {size} together (file {digest})"),
        *(
            Difference(f"Message {number}", "", cut(draft.body, 160))
            for number, draft in enumerate(drafts[:_SHOWN_LINES], 1)
        ),
    ]
