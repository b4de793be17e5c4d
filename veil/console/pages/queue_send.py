"""Send a message, or several from a file: read into drafts, and what is wrong said where it stands."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from veil.console.changes import NO_COMMAND, Change, Difference, Done, send_commands
from veil.console.queue_form import NumberField
from veil.console.queue_views import queue_head, queue_page
from veil.console.templates import file_size, length, plural
from veil.console.visit import Visit
from veil.console.web import Answer, Form, Role, change, page, queue_link
from veil.core.errors import (
    AttributeRefused,
    DeduplicationMissing,
    GroupMissing,
    IdentifierRefused,
    MessageRefused,
    NotForQueueType,
    PriorityRefused,
    VeilError,
)
from veil.core.limits import ATTRIBUTES_MAX, BODY_BYTES_MAX, DELAY_MAX_S
from veil.core.message import PRIORITY_FIRST, PRIORITY_LAST, MessageAttribute, Sent
from veil.core.message_rules import Draft, check_draft, size_bytes
from veil.core.queue import Queue, QueueSettings
from veil.service.messages import send
from veil.service.turns import Turn

LINES_MAX: Final = 1_000
FILE_BYTES_MAX: Final = 2 << 20
_ATTRIBUTES_CHARS_MAX: Final = 2 * BODY_BYTES_MAX  # bytes are written in base64
_REWRITTEN_BYTES_MAX: Final = 128 << 10
_LINE: Final = re.compile(r"\S[^\n]*")  # one that is not blank
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_DELAY: Final = NumberField("delay_s", "Delay", "seconds", 0, DELAY_MAX_S, "")
_PRIORITY: Final = NumberField("priority", "Priority", "steps", PRIORITY_FIRST, PRIORITY_LAST, "")
_FIELD_OF_PARAMETER: Final = {
    "MessageGroupId": "group",
    "MessageDeduplicationId": "deduplication_id",
    "DelaySeconds": "delay_s",
    "Priority": "priority",
}
_FIELDS: Final = ("body", "attributes", "group", "deduplication_id", "delay_s", "priority")


class DraftRefused(Exception):
    """What was written is no message that this queue takes; the field and a sentence."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field, self.sentence = field, sentence


def read_draft(form: Form, settings: QueueSettings) -> Draft:
    """The message of a form; raises DraftRefused."""
    draft = Draft(
        form.raw("body"),
        _attributes(form.raw("attributes")) or None,
        delay_s=_number(_DELAY, form),
        group=form.text("group") or None,
        deduplication_id=form.text("deduplication_id") or None,
        priority=_number(_PRIORITY, form),
    )
    _check(draft, settings)
    return draft


async def read_lines(text: str, settings: QueueSettings, turn: Turn) -> list[Draft]:
    """The messages of a file of JSON lines; raises DraftRefused, which names the line."""
    if len(text) > FILE_BYTES_MAX:
        raise DraftRefused("file", f"{len(text):,} characters: expected at most {FILE_BYTES_MAX:,}")
    drafts: list[Draft] = []
    number, counted = 1, 0
    for found in _LINE.finditer(text):
        await turn.pause()
        line = found[0]
        number += text.count("\n", counted, found.start())
        counted = found.start()
        if len(drafts) == LINES_MAX:
            raise DraftRefused("file", f"line {number}: expected at most {LINES_MAX:,} messages in one file")
        try:
            draft = _line(line)
            _check(draft, settings)
        except DraftRefused as refusal:
            raise DraftRefused("file", f"line {number}: {refusal.sentence}") from None
        drafts.append(draft)
    if not drafts:
        raise DraftRefused("file", "the file has no messages: expected a JSON object on each line")
    return drafts


def _check(draft: Draft, settings: QueueSettings) -> None:
    try:
        check_draft(draft, settings)
    except (GroupMissing, DeduplicationMissing) as refusal:
        field = "group" if isinstance(refusal, GroupMissing) else "deduplication_id"
        raise DraftRefused(field, str(refusal)) from None
    except (NotForQueueType, IdentifierRefused) as refusal:
        raise DraftRefused(_FIELD_OF_PARAMETER.get(refusal.parameter, "body"), str(refusal)) from None
    except PriorityRefused as refusal:
        raise DraftRefused("priority", str(refusal)) from None
    except AttributeRefused as refusal:
        raise DraftRefused("attributes", str(refusal)) from None
    except MessageRefused as refusal:
        raise DraftRefused("body", str(refusal)) from None


def _number(field: NumberField, form: Form) -> int | None:
    text = form.text(field.setting)
    if not text:
        return None
    try:
        return field.read(text)
    except ValueError as problem:
        raise DraftRefused(field.setting, str(problem)) from None


def _attributes(text: str) -> dict[str, MessageAttribute]:
    """Attributes from lines of NAME=VALUE, NAME:Number=VALUE and NAME:Binary=BASE64."""
    attributes: dict[str, MessageAttribute] = {}
    if len(text) > _ATTRIBUTES_CHARS_MAX:
        raise DraftRefused(
            "attributes", f"{len(text):,} characters: expected at most {_ATTRIBUTES_CHARS_MAX:,}"
        )
    for found in _LINE.finditer(text):
        line = found[0]
        if len(attributes) == ATTRIBUTES_MAX:
            raise DraftRefused("attributes", f"{line[:80]!r}: expected at most {ATTRIBUTES_MAX} attributes")
        left, equals, value = line.partition("=")
        name, _, data_type = left.strip().partition(":")
        if not equals or not name:
            raise DraftRefused("attributes", f"{line[:80]!r}: expected NAME=VALUE or NAME:TYPE=VALUE")
        if name in attributes:
            raise DraftRefused("attributes", f"attribute {name[:80]!r} is there twice")
        attributes[name] = _attribute(name, data_type or "String", value.strip())
    return attributes


def _attribute(name: str, data_type: str, value: str) -> MessageAttribute:
    if not data_type.startswith("Binary"):
        return MessageAttribute(data_type, value)
    try:
        return MessageAttribute(data_type, base64.b64decode(value, validate=True))
    except (binascii.Error, ValueError):
        raise DraftRefused("attributes", f"attribute {name[:80]!r}: expected its bytes in base64") from None


def _line(line: str) -> Draft:
    try:
        fields = _OBJECT.decode(line)
        # The body stays a text: it may be a megabyte of numbers, which nobody needs to see as numbers.
        raw = fields.pop("body", None)
        document = {name: msgspec.json.decode(value) for name, value in fields.items()}
    except msgspec.ValidationError:
        raise DraftRefused("file", f'{line[:80]!r}: expected an object with a "body"') from None
    except (ValueError, RecursionError):
        raise DraftRefused("file", f"{line[:80]!r}: expected a JSON object") from None
    if raw is None:
        raise DraftRefused("file", f'{line[:80]!r}: expected an object with a "body"')
    for name in document:
        if name not in _FIELDS:
            raise DraftRefused("file", f"{name[:80]!r}: expected only {', '.join(_FIELDS)}")
    return Draft(
        _body(bytes(raw)),
        _line_attributes(document.get("attributes")) or None,
        delay_s=_line_number(document, _DELAY),
        group=_line_text(document, "group"),
        deduplication_id=_line_text(document, "deduplication_id"),
        priority=_line_number(document, _PRIORITY),
    )


def _body(raw: bytes) -> str:
    """A text as it is; whatever else in JSON, without the blanks between."""
    try:
        if raw.startswith(b'"'):
            return msgspec.json.decode(raw, type=str)
        if len(raw) <= _REWRITTEN_BYTES_MAX:
            return msgspec.json.encode(msgspec.json.decode(raw)).decode()
        # A large one is not made into objects and back, which takes too long: its escapes stay as they were written.
        return msgspec.json.format(raw, indent=-1).decode()
    except (ValueError, RecursionError):
        raise DraftRefused("file", "the body is not readable: expected JSON") from None


def _line_attributes(given: Any) -> dict[str, MessageAttribute]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise DraftRefused("file", "attributes: expected an object")
    attributes: dict[str, MessageAttribute] = {}
    for name, value in given.items():
        if isinstance(value, dict):
            data_type, value = value.get("type", "String"), value.get("value")
        else:
            data_type = (
                "Number" if isinstance(value, int | float) and not isinstance(value, bool) else "String"
            )
        if (
            isinstance(value, bool)
            or not isinstance(value, str | int | float)
            or not isinstance(data_type, str)
        ):
            expected = 'a text, a number, or an object with "type" and "value"'
            raise DraftRefused("file", f"attribute {name[:80]!r}: expected {expected}")
        attributes[name] = _attribute(name, data_type, str(value))
    return attributes


def _line_text(document: dict[str, Any], name: str) -> str | None:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise DraftRefused("file", f"{name}: {str(value)[:40]!r}: expected a text")
    return value or None


def _line_number(document: dict[str, Any], field: NumberField) -> int | None:
    value = document.get(field.setting)
    if value is None:
        return None
    try:
        return field.read(str(value) if isinstance(value, int) else repr(value))
    except ValueError as problem:
        raise DraftRefused("file", f"{field.setting}: {problem}") from None


_SHOWN_CHARS: Final = 500
_SHOWN_LINES: Final = 10


@page("/queues/{region}/{name}/send", needs=Role.OPERATOR)
async def send_page(visit: Visit) -> Answer:
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
    return await _change(visit, queue, drafts, lines).offer()


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
    back = queue_link(queue.key, "send")
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
        visit,
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
