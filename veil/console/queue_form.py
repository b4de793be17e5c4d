"""A queue's settings between a form and the service: texts in fields, and what they mean."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, get_args

from veil.console.changes import Difference
from veil.console.templates import count, length
from veil.console.web import Form
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
from veil.core.text import length_s, whole_number
from veil.service.queues import changed_settings, check_redrive_target
from veil.service.service import Service

# ---- fields

_WORDS: Final = {
    0: "0",
    60: "1 minute",
    900: "15 minutes",
    43_200: "12 hours",
    86_400: "a day",
    1_209_600: "14 days",
}


class NumberField(NamedTuple):
    """A setting that is a number: a length of time or of a message."""

    setting: str
    label: str
    unit: str
    low: int
    high: int
    help: str

    @property
    def expected(self) -> str:
        """What the field takes, as a refusal says it."""
        words = f" ({_WORDS[self.high]})" if self.unit == "seconds" and self.high in _WORDS else ""
        return f"a whole number of {self.unit} from {self.low:,} to {self.high:,}{words}"

    def read(self, text: str) -> int:
        """The number; raises ValueError with a sentence for the field."""
        number = length_s(text) if self.unit == "seconds" else whole_number(text)
        if number is not None and self.low <= number <= self.high:
            return number
        raise ValueError(f"{text[:40]!r}: expected {self.expected}")

    def shown(self, number: int) -> str:
        return length(number) if self.unit == "seconds" else f"{count(number)} {self.unit}"


VISIBILITY: Final = NumberField(
    "visibility_s",
    "Visibility timeout",
    "seconds",
    0,
    limits.VISIBILITY_MAX_S,
    "How long a message stays invisible to everybody else after a receive. Delete it before that ends, or it comes back: "
    "too short, and work is done twice; too long, and what a crashed consumer held waits that long. "
    "From 0 to 43,200 seconds (12 hours). "
    "A consumer can extend it for a message that takes longer, up to 12 hours after the receive.",
)
NUMBERS: Final = (
    VISIBILITY,
    NumberField(
        "retention_s",
        "Retention",
        "seconds",
        limits.RETENTION_MIN_S,
        limits.RETENTION_MAX_S,
        "How long a message is kept from its send on, received or not. From 60 seconds to 1,209,600 (14 days). "
        "A shorter one applies at once: older messages are removed.",
    ),
    NumberField(
        "delay_s",
        "Delay",
        "seconds",
        0,
        limits.DELAY_MAX_S,
        "How long a message waits after its send before anybody can receive it, unless it brings its own delay. "
        "From 0 to 900 seconds.",
    ),
    NumberField(
        "wait_s",
        "Receive wait",
        "seconds",
        0,
        limits.WAIT_MAX_S,
        "How long a receive waits for a message when there is none. From 0 to 20 seconds; 20 costs the fewest empty answers.",
    ),
    NumberField(
        "message_bytes_max",
        "Largest message",
        "bytes",
        limits.MESSAGE_SIZE_MIN,
        limits.BODY_BYTES_MAX,
        "Body and attributes together. From 1,024 to 1,048,576 bytes (1 MiB).",
    ),
)
RECEIVES_MAX: Final = NumberField(
    "receives_max",
    "Receives before that",
    "receives",
    1,
    limits.RECEIVES_MAX_MAX,
    "A message that was received this often without being deleted goes to the dead letters at the next receive. From 1 to 1,000.",
)
KMS_REUSE: Final = NumberField(
    "kms_reuse_s",
    "Data key reuse",
    "seconds",
    60,
    86_400,
    "Kept for clients that set it. From 60 to 86,400 seconds.",
)

# What the form of a queue's settings shows.
FIELDS: Final[Mapping[str, Any]] = {"numbers": NUMBERS, "receives_max": RECEIVES_MAX, "kms_reuse": KMS_REUSE}

_LABELS: Final[Mapping[str, str]] = {
    **{field.setting: field.label for field in NUMBERS},
    "content_deduplication": "Deduplication by content",
    "deduplication_scope": "Deduplication scope",
    "throughput_limit": "Throughput limit",
    "redrive": "Dead letters",
    "redrive_allow": "May be the dead letters of",
    "managed_sse": "Managed encryption",
    "kms_key": "KMS key",
    "kms_reuse_s": "Data key reuse",
    "policy": "Policy",
}
_FIFO_ONLY: Final = ("content_deduplication", "deduplication_scope", "throughput_limit")
_NUMBERS_BY_SETTING: Final = {field.setting: field for field in (*NUMBERS, KMS_REUSE)}


def setting_texts(settings: QueueSettings) -> dict[str, str]:
    """Every setting that the queue's type has, by its label, as people read it; an empty text is none."""
    return {
        label: setting_text(setting, getattr(settings, setting))
        for setting, label in _LABELS.items()
        if settings.fifo or setting not in _FIFO_ONLY
    }


def setting_text(setting: str, value: Any) -> str:
    if value is None:
        return "any queue (nothing restricts it)" if setting == "redrive_allow" else ""
    if setting in _NUMBERS_BY_SETTING:
        return _NUMBERS_BY_SETTING[setting].shown(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, RedrivePolicy):
        receives = "1 receive" if value.receives_max == 1 else f"{value.receives_max:,} receives"
        return f"{value.dead_letters.name} after {receives}"
    if isinstance(value, RedriveAllow):
        words = {"allowAll": "any queue", "denyAll": "no queue"}
        return words.get(value.permission) or ", ".join(source.name for source in value.sources)
    return str(value)


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
            raise TagsRefused(f"tag {key[:80]!r} is there twice")
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


# Where a refusal of the service is shown: the field that has to be mended.
_FIELD_OF_SETTING: Final[Mapping[str, str]] = {"redrive": "dead_letters", "redrive_allow": "allow_sources"}
_KEY_CHARS_MAX: Final = 2_048


def form_values(settings: QueueSettings) -> dict[str, str]:
    """The texts that stand in the fields for these settings."""
    redrive, allow = settings.redrive, settings.redrive_allow
    return {
        **{field.setting: str(getattr(settings, field.setting)) for field in (*NUMBERS, KMS_REUSE)},
        "content_deduplication": _yes(settings.content_deduplication),
        "deduplication_scope": settings.deduplication_scope,
        "throughput_limit": settings.throughput_limit,
        "dead_letters": "" if redrive is None else redrive.dead_letters.name,
        "receives_max": "" if redrive is None else str(redrive.receives_max),
        "allow_permission": "" if allow is None else allow.permission,
        "allow_sources": "" if allow is None else "\n".join(source.name for source in allow.sources),
        "managed_sse": _yes(settings.managed_sse),
        "kms_key": settings.kms_key or "",
        "policy": settings.policy or "",
    }


class FormReader:
    """Reads the fields of one form; what is wrong is kept for the fields it stands in."""

    def __init__(self, form: Form, key: QueueKey, present: QueueSettings) -> None:
        self._form, self._key, self._present = form, key, present
        self.problems: dict[str, str] = {}

    def read(self) -> dict[str, Any]:
        """The settings that differ from the present ones; a field that is not there stays as it is."""
        given: dict[str, Any] = {}
        for field in (*NUMBERS, KMS_REUSE):
            self._put(given, field.setting, self._number(field, str(getattr(self._present, field.setting))))
        self._put(
            given, "managed_sse", self._choice("managed_sse", ("yes", "no"), lambda text: text == "yes")
        )
        self._put(given, "kms_key", self._kms_key())
        if self._present.fifo:
            self._put(
                given,
                "content_deduplication",
                self._choice("content_deduplication", ("yes", "no"), lambda text: text == "yes"),
            )
            self._put(
                given,
                "deduplication_scope",
                self._choice("deduplication_scope", get_args(DeduplicationScope)),
            )
            self._put(given, "throughput_limit", self._choice("throughput_limit", get_args(ThroughputLimit)))
        if self._form.checked("dead_letters"):
            self._put(given, "redrive", self._redrive())
        if self._form.checked("allow_permission"):
            self._put(given, "redrive_allow", self._redrive_allow())
        if self._form.checked("policy"):
            self._put(given, "policy", self._form.raw("policy").strip() or None)
        return given

    def _put(self, given: dict[str, Any], setting: str, value: Any) -> None:
        if value is not _UNREAD and value != getattr(self._present, setting):
            given[setting] = value

    def _number(self, field: NumberField, present: str) -> Any:
        text = self._form.text(field.setting, present)
        # What other clients set beyond SQS's limits stays as long as nobody touches it.
        return _UNREAD if text == present else self._read(field, text)

    def _read(self, field: NumberField, text: str) -> Any:
        try:
            return field.read(text)
        except ValueError as problem:
            self.problems[field.setting] = str(problem)
            return _UNREAD

    def _choice(self, name: str, choices: tuple[str, ...], meaning: Any = str) -> Any:
        if not self._form.checked(name):
            return _UNREAD
        text = self._form.text(name)
        if text in choices:
            return meaning(text)
        self.problems[name] = f"{text[:40]!r}: expected one of {', '.join(choices)}"
        return _UNREAD

    def _kms_key(self) -> Any:
        text = self._form.text("kms_key", self._present.kms_key or "")
        if len(text) > _KEY_CHARS_MAX:
            self.problems["kms_key"] = f"{len(text):,} characters: expected at most {_KEY_CHARS_MAX:,}"
            return _UNREAD
        return text or None

    def _redrive(self) -> Any:
        name = self._form.text("dead_letters")
        if not name:
            return None
        key = self._named("dead_letters", name)
        receives_max = self._read(RECEIVES_MAX, self._form.text("receives_max"))
        return _UNREAD if key is None or receives_max is _UNREAD else RedrivePolicy(key, receives_max)

    def _redrive_allow(self) -> Any:
        permission: Any = self._form.text("allow_permission")
        names = self._form.text("allow_sources").split(None, ALLOWED_SOURCES_MAX)
        if not permission:
            return None
        if permission not in get_args(RedrivePermission):
            self.problems["allow_permission"] = f"{permission[:40]!r}: expected allowAll, denyAll or byQueue"
            return _UNREAD
        if permission != "byQueue":
            return RedriveAllow(permission)
        if not names:
            self.problems["allow_sources"] = "expected the names of the queues, one on a line"
            return _UNREAD
        if len(names) > ALLOWED_SOURCES_MAX:
            self.problems["allow_sources"] = f"expected at most {ALLOWED_SOURCES_MAX} names"
            return _UNREAD
        keys = [self._named("allow_sources", name) for name in names]
        return _UNREAD if None in keys else RedriveAllow("byQueue", tuple(key for key in keys if key))

    def _named(self, field: str, name: str) -> QueueKey | None:
        try:
            check_name(name, fifo=name.endswith(".fifo"))
        except VeilError as refusal:
            self.problems[field] = str(refusal)
            return None
        return QueueKey(self._key.region, self._key.account, name)


_UNREAD: Final = object()


async def settings_after(
    service: Service, key: QueueKey, present: QueueSettings, given: Mapping[str, Any]
) -> QueueSettings:
    """What the settings would be; raises what the service would refuse, before anything is changed."""
    wanted = changed_settings(present, given)
    if given.get("redrive") is not None:
        # SQS takes it, and so does the API: nothing ever moves then. Who chooses it here has made a mistake.
        if given["redrive"].dead_letters == key:
            raise SettingRefused("redrive", key.arn, "A queue cannot be its own dead-letter queue.")
        target = await service.store.find_queue(given["redrive"].dead_letters)
        check_redrive_target(key, wanted.fifo, given["redrive"], target)
    return wanted


def problem_at(refusal: VeilError) -> dict[str, str]:
    """The refusal beside the field that it is about, in the service's own words."""
    if isinstance(refusal, SettingRefused):
        field = _FIELD_OF_SETTING.get(refusal.setting, refusal.setting)
        return {field: f"{str(refusal.value)[:200]}: {refusal.expected}"}
    if isinstance(refusal, SettingNotForQueueType):
        return {refusal.setting: str(refusal)}
    if isinstance(refusal, PolicyRefused):
        return {"policy": str(refusal)}
    if isinstance(refusal, TagsRefused):
        return {"tags": str(refusal)}
    return {"": str(refusal)}


def differences_between(before: QueueSettings | None, after: QueueSettings) -> list[Difference]:
    """Each setting that will be another, by its label; of a new queue, each that has a value."""
    then = setting_texts(after)
    now = setting_texts(before) if before is not None else dict.fromkeys(then, "")
    return [Difference(label, now[label], text) for label, text in then.items() if now[label] != text]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
