"""The settings of a queue as people fill them in: what each is called, means and may be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from veil.console.formatting import count, length
from veil.core import limits
from veil.core.queue import QueueSettings, RedriveAllow, RedrivePolicy

_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_LENGTH: Final = re.compile(r"([0-9]{1,9}) ?(s|m|min|h|d)?\Z", re.ASCII)
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
        match = _LENGTH.match(text)
        if match is not None and (self.unit == "seconds" or not match[2]):
            number = int(match[1]) * _UNITS_S[match[2] or ""]
            if self.low <= number <= self.high:
                return number
        raise ValueError(f"{text[:40]!r}: expected {self.expected}")

    def shown(self, number: int) -> str:
        """The number for people."""
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
        "A shorter one counts at once: what is older is gone.",
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
    "A message that was received so often and still not deleted goes to the dead letters with the next receive. From 1 to 1,000.",
)
KMS_REUSE: Final = NumberField(
    "kms_reuse_s",
    "Data key reuse",
    "seconds",
    60,
    86_400,
    "Kept for clients that set it. From 60 to 86,400 seconds.",
)

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
    """One setting's value as people read it."""
    if value is None:
        return "any queue, since nothing is said" if setting == "redrive_allow" else ""
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
