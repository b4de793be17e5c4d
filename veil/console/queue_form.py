"""A queue's settings between a form and the service: texts in fields, and what they mean."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from veil.console.changes import Difference
from veil.console.web import Form, FormRefused, NumberField
from veil.core import limits
from veil.core.errors import PolicyRefused, SettingNotForQueueType, SettingRefused, TagsRefused, VeilError
from veil.core.limits import ALLOWED_SOURCES_MAX, TAG_KEY_MAX, TAG_VALUE_MAX, TAGS_MAX
from veil.core.queue import (
    DeduplicationScope,
    QueueKey,
    QueueSettings,
    RedriveAllow,
    RedrivePermission,
    RedrivePolicy,
    ThroughputLimit,
    check_name,
)
from veil.service.queues import changed_settings, check_redrive_target
from veil.service.service import Service
from veil.words import count, exact_length, plural

# ---- settings as people read them

NUMBERS: Final = {
    field.name: field
    for field in (
        NumberField("visibility_s", "Visibility timeout", "seconds", 0, limits.VISIBILITY_MAX_S),
        NumberField("retention_s", "Retention", "seconds", limits.RETENTION_MIN_S, limits.RETENTION_MAX_S),
        NumberField("delay_s", "Delay", "seconds", 0, limits.DELAY_MAX_S),
        NumberField("wait_s", "Receive wait", "seconds", 0, limits.WAIT_MAX_S),
        NumberField(
            "message_bytes_max", "Largest message", "bytes", limits.MESSAGE_SIZE_MIN, limits.BODY_BYTES_MAX
        ),
        NumberField("kms_reuse_s", "Data key reuse", "seconds", 60, 86_400),
    )
}
RECEIVES_MAX: Final = NumberField("receives_max", "Maximum receives", "receives", 1, limits.RECEIVES_MAX_MAX)
_FIFO_ONLY: Final = ("content_deduplication", "deduplication_scope", "throughput_limit")


def setting_texts(settings: QueueSettings) -> dict[str, str]:
    """Every setting that the queue's type has, by its label, as people read it; an empty text is none."""
    return {
        label: _setting_text(setting, getattr(settings, setting))
        for setting, (label, _) in _SETTINGS.items()
        if settings.fifo or setting not in _FIFO_ONLY
    }


def _setting_text(setting: str, value: Any) -> str:
    if value is None:
        return "any queue (nothing restricts it)" if setting == "redrive_allow" else ""
    if setting in NUMBERS:
        unit = NUMBERS[setting].unit
        return exact_length(value) if unit == "seconds" else f"{count(value)} {unit}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, RedrivePolicy):
        return f"{value.dead_letters.name} after {plural(value.receives_max, 'receive')}"
    if isinstance(value, RedriveAllow):
        words = {"allowAll": "any queue", "denyAll": "no queue"}
        return words.get(value.permission) or ", ".join(source.name for source in value.sources)
    return str(value)


def differences_between(before: QueueSettings | None, after: QueueSettings) -> list[Difference]:
    """Each setting that will be another, by its label; of a new queue, each that has a value."""
    then = setting_texts(after)
    now = setting_texts(before) if before is not None else dict.fromkeys(then, "")
    return [Difference(label, now[label], text) for label, text in then.items() if now[label] != text]


# ---- settings in a form

WITHOUT_DEAD_LETTERS: Final = (
    "Without a dead-letter queue, a message that always fails is received again until its retention ends."
)

# Where a refusal of the service is shown: the field that has to be mended.
_FIELD_OF_SETTING: Final[Mapping[str, str]] = {"redrive": "dead_letters", "redrive_allow": "allow_sources"}
_KEY_CHARS_MAX: Final = 2_048


def form_values(settings: QueueSettings) -> dict[str, str]:
    redrive, allow = settings.redrive, settings.redrive_allow
    return {
        **{name: str(getattr(settings, name)) for name in NUMBERS},
        "content_deduplication": "yes" if settings.content_deduplication else "no",
        "deduplication_scope": settings.deduplication_scope,
        "throughput_limit": settings.throughput_limit,
        "dead_letters": "" if redrive is None else redrive.dead_letters.name,
        "receives_max": "" if redrive is None else str(redrive.receives_max),
        "allow_permission": "" if allow is None else allow.permission,
        "allow_sources": "" if allow is None else "\n".join(source.name for source in allow.sources),
        "managed_sse": "yes" if settings.managed_sse else "no",
        "kms_key": settings.kms_key or "",
        "policy": settings.policy or "",
    }


def read_settings(form: Form, key: QueueKey, present: QueueSettings) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings that differ from the present ones, and what is wrong by field; a field that is not there stays as it is."""
    given: dict[str, Any] = {}
    problems: dict[str, str] = {}
    values = form_values(present)
    for setting, (_, read) in _SETTINGS.items():
        name = {"redrive": "dead_letters", "redrive_allow": "allow_permission"}.get(setting, setting)
        if not form.checked(name) or (setting in _FIFO_ONLY and not present.fifo):
            continue
        # What other clients set beyond SQS's limits stays as long as nobody touches it.
        if setting in NUMBERS and form.text(name) == values[name]:
            continue
        try:
            value = read(form, key)
        except FormRefused as refusal:
            problems[refusal.field] = refusal.sentence
        else:
            if value != getattr(present, setting):
                given[setting] = value
    return given, problems


def _number(field: NumberField) -> Callable[[Form, QueueKey], int]:
    return lambda form, key: field.read(form.text(field.name))


def _choice(name: str, *choices: str) -> Callable[[Form, QueueKey], str]:
    def read(form: Form, key: QueueKey) -> str:
        text = form.text(name)
        if text not in choices:
            raise FormRefused(name, f"{text[:40]!r}: expected one of {', '.join(choices)}")
        return text

    return read


def _yes(name: str) -> Callable[[Form, QueueKey], bool]:
    read = _choice(name, "yes", "no")
    return lambda form, key: read(form, key) == "yes"


def _kms_key(form: Form, key: QueueKey) -> str | None:
    text = form.text("kms_key")
    if len(text) > _KEY_CHARS_MAX:
        raise FormRefused("kms_key", f"{len(text):,} characters: expected at most {_KEY_CHARS_MAX:,}")
    return text or None


def _redrive(form: Form, key: QueueKey) -> RedrivePolicy | None:
    name = form.text("dead_letters")
    if not name:
        return None
    return RedrivePolicy(_named("dead_letters", name, key), RECEIVES_MAX.read(form.text("receives_max")))


def _redrive_allow(form: Form, key: QueueKey) -> RedriveAllow | None:
    permission: Any = form.text("allow_permission")
    if not permission:
        return None
    _choice("allow_permission", *get_args(RedrivePermission))(form, key)
    if permission != "byQueue":
        return RedriveAllow(permission)
    names = form.text("allow_sources").split(None, ALLOWED_SOURCES_MAX)
    if not 1 <= len(names) <= ALLOWED_SOURCES_MAX:
        expected = f"expected the names of 1 to {ALLOWED_SOURCES_MAX} queues, one on a line"
        raise FormRefused("allow_sources", expected)
    return RedriveAllow("byQueue", tuple(_named("allow_sources", name, key) for name in names))


def _named(field: str, name: str, key: QueueKey) -> QueueKey:
    try:
        check_name(name, fifo=name.endswith(".fifo"))
    except VeilError as refusal:
        raise FormRefused(field, str(refusal)) from None
    return key._replace(name=name)


# Of each setting its label, and what reads it from the form.
_SETTINGS: Final[Mapping[str, tuple[str, Callable[[Form, QueueKey], Any]]]] = {
    **{name: (field.label, _number(field)) for name, field in NUMBERS.items() if name != "kms_reuse_s"},
    "content_deduplication": ("Deduplication by content", _yes("content_deduplication")),
    "deduplication_scope": (
        "Deduplication scope",
        _choice("deduplication_scope", *get_args(DeduplicationScope)),
    ),
    "throughput_limit": ("Throughput limit", _choice("throughput_limit", *get_args(ThroughputLimit))),
    "redrive": ("Dead letters", _redrive),
    "redrive_allow": ("Accepts dead letters from", _redrive_allow),
    "managed_sse": ("Managed encryption", _yes("managed_sse")),
    "kms_key": ("KMS key", _kms_key),
    "kms_reuse_s": (NUMBERS["kms_reuse_s"].label, _number(NUMBERS["kms_reuse_s"])),
    "policy": ("Policy", lambda form, key: form.raw("policy").strip() or None),
}


async def settings_after(
    service: Service, key: QueueKey, present: QueueSettings, given: Mapping[str, Any]
) -> tuple[QueueSettings, dict[str, str]]:
    """What the settings would be, and by field what the service would refuse, before anything is changed."""
    try:
        wanted = changed_settings(present, given)
        if given.get("redrive") is not None:
            # SQS takes it, and so does the API: nothing ever moves then. Who chooses it here has made a mistake.
            if given["redrive"].dead_letters == key:
                raise SettingRefused("redrive", key.arn, "A queue cannot be its own dead-letter queue.")
            target = await service.store.find_queue(given["redrive"].dead_letters)
            check_redrive_target(key, wanted.fifo, given["redrive"], target)
    except VeilError as refusal:
        return present, problem_at(refusal)
    return wanted, {}


def problem_at(refusal: VeilError) -> dict[str, str]:
    """The refusal beside the field that it is about, in the service's own words."""
    if isinstance(refusal, SettingRefused):
        field = _FIELD_OF_SETTING.get(refusal.setting, refusal.setting)
        # Of dead letters the sentence says it all; the value would be an ARN, where people gave a name.
        is_arn = str(refusal.value).startswith("arn:")
        return {field: refusal.expected if is_arn else f"{str(refusal.value)[:200]}: {refusal.expected}"}
    if isinstance(refusal, SettingNotForQueueType):
        return {refusal.setting: str(refusal)}
    fields = {PolicyRefused: "policy", TagsRefused: "tags"}
    return {next((name for kind, name in fields.items() if isinstance(refusal, kind)), ""): str(refusal)}


# ---- tags

# Each character of a tag may be written in an escape of up to twelve: what is longer cannot be tags of one queue.
_CHARS_MAX: Final = TAGS_MAX * (TAG_KEY_MAX + TAG_VALUE_MAX + 10) * 12
_PLAIN: Final = re.compile(r"[^\s\"=](?:[^=\r\n]*[^\s=])?\Z")
_LINE: Final = re.compile(r"\S[^\n]*")  # one that is not blank
_STRING: Final = json.JSONDecoder()


def read_tags(text: str) -> dict[str, str]:
    """Tags from lines of KEY=VALUE; raises TagsRefused for a line that is none."""
    if len(text) > _CHARS_MAX:
        raise TagsRefused(f"{len(text):,} characters: expected at most {TAGS_MAX} lines of KEY=VALUE")
    tags: dict[str, str] = {}
    for found in _LINE.finditer(text):
        line = found[0].rstrip()
        if len(tags) == TAGS_MAX:
            raise TagsRefused(f"more than {TAGS_MAX} tags: expected at most {TAGS_MAX}")
        try:
            key, value = _read(line)
        except ValueError:
            key = value = ""
        if not key:
            raise TagsRefused(f"{line[:80]!r}: expected KEY=VALUE")
        if key in tags:
            raise TagsRefused(f"tag {key[:80]!r} is given twice")
        tags[key] = value
    return tags


def write_tags(tags: Mapping[str, str]) -> str:
    """The lines of these tags, which read as the same."""
    return "\n".join(f"{_written(key)}={_written(value)}" for key, value in tags.items())


def _read(line: str) -> tuple[str, str]:
    """Key and value of a line without blanks around it; raises ValueError where it has none."""
    if line.startswith('"'):
        key, end = _STRING.raw_decode(line)
        blank, equals, value = line[end:].partition("=")
    else:
        blank = ""
        key, equals, value = line.partition("=")
        key = key.rstrip()
    if blank.strip() or not equals:
        raise ValueError(line)
    value = value.lstrip()
    if value.startswith('"'):
        value = json.loads(value)
    # Half of a surrogate pair can be written in an escape, but not stored.
    (key + value).encode()
    return key, value


def _written(part: str) -> str:
    return part if not part or _PLAIN.match(part) else json.dumps(part, ensure_ascii=False)
