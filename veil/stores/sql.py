"""What the stores on SQL share: queries in files, by name, and how settings, tags, attributes and callers are written in columns.

`-- name: x` begins query x, which runs to the next name. `{NAME}` in a query stands for one of the constants below, so that
what the rules of `core` say stands in `core` alone, or for a part that several queries share, which `-- part: NAME` begins. They
are put into the text, not bound: a partial index is only used for a condition that the planner can see.
"""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from veil.core.errors import VeilError
from veil.core.event import NOBODY
from veil.core.lease import HoldTally, Member, State
from veil.core.message import PRIORITY_DEFAULT, Caller, HeldMessage, MessageAttribute, StoredMessage
from veil.core.queue import MoveTask, QueueKey, QueueSettings, RedriveAllow, RedrivePolicy, Scan, parse_arn
from veil.core.receipt import DELIVERY_MASK
from veil.core.sequence import COUNTER_BITS, NOISY_COUNT_MIN

_COLUMN_OF: Final = {"group": "group_name"}  # a word of SQL's own


def _columns(names: tuple[str, ...]) -> str:
    return ", ".join(_COLUMN_OF.get(name, name) for name in names)


CONSTANTS: Final = {
    "VISIBLE": int(State.VISIBLE),
    "DELAYED": int(State.DELAYED),
    "IN_FLIGHT": int(State.IN_FLIGHT),
    "COUNTER_BITS": COUNTER_BITS,
    "DELIVERY_MASK": DELIVERY_MASK,
    "NOISY_COUNT_MIN": NOISY_COUNT_MIN,
    "PRIORITY_DEFAULT": PRIORITY_DEFAULT,
    "MESSAGE": _columns(StoredMessage.__struct_fields__),
    "HELD_MESSAGE": _columns(HeldMessage._fields),
}
_CONSTANT: Final = re.compile(r"\{([A-Z_]+)\}")


class NamedQueries:
    """The queries of one file as attributes."""

    def __init__(self, package: str, file: str) -> None:
        constants = {name: str(value) for name, value in CONSTANTS.items()}
        text = files(package).joinpath(file).read_text(encoding="utf-8")
        _, *queries = re.split(r"^-- (name|part): (\w+)\n", text, flags=re.MULTILINE)
        for kind, name, body in zip(*(iter(queries),) * 3, strict=True):
            lines = [line.strip() for line in body.splitlines() if not line.lstrip().startswith("--")]
            query = " ".join(filter(None, lines)).rstrip(";")
            into = self.__dict__ if kind == "name" else constants
            into[name] = _CONSTANT.sub(lambda constant: constants[constant[1]], query)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> str: ...


# ---- columns

# What their decoding raises where a bit has flipped; ValueError: UnicodeDecodeError is one.
UNREADABLE: Final = (VeilError, msgspec.MsgspecError, TypeError, ValueError, KeyError, IndexError)

_attributes_encoder = msgspec.msgpack.Encoder()
_attributes_decoder = msgspec.msgpack.Decoder(dict[str, tuple[str, Any]])
_caller_decoder = msgspec.msgpack.Decoder(Caller)
_tags_decoder = msgspec.json.Decoder(dict[str, str])
_settings_decoder = msgspec.json.Decoder(dict[str, Any])
_scan_decoder = msgspec.json.Decoder(Scan)
_DEFAULTS = QueueSettings()
_FIELDS = tuple(QueueSettings.__dataclass_fields__)


def encode_attributes(attributes: dict[str, MessageAttribute] | None) -> bytes | None:
    """Message attributes as msgpack, which keeps text and bytes apart; None when there are none."""
    return _attributes_encoder.encode(attributes) if attributes else None


def decode_attributes(blob: bytes | None) -> dict[str, MessageAttribute] | None:
    """The inverse of `encode_attributes`."""
    if blob is None:
        return None
    return {name: MessageAttribute(*pair) for name, pair in _attributes_decoder.decode(blob).items()}


def to_message(row: tuple[Any, ...]) -> StoredMessage:
    """A row of any of the message queries, whose columns are those of StoredMessage."""
    message = StoredMessage(*row)
    if message.attributes is not None:
        message.attributes = decode_attributes(message.attributes)  # type: ignore[arg-type]
    return message


def encode_settings(settings: QueueSettings) -> str:
    """Settings as JSON, defaults left out, so that a later field needs no migration."""
    values = {f: getattr(settings, f) for f in _FIELDS}
    return msgspec.json.encode({f: v for f, v in values.items() if v != getattr(_DEFAULTS, f)}).decode()


def decode_settings(text: str) -> QueueSettings:
    """The inverse of `encode_settings`."""
    values = _settings_decoder.decode(text)
    if redrive := values.get("redrive"):
        values["redrive"] = RedrivePolicy(QueueKey(*redrive[0]), redrive[1])
    if allow := values.get("redrive_allow"):
        values["redrive_allow"] = RedriveAllow(allow[0], tuple(QueueKey(*source) for source in allow[1]))
    return QueueSettings(**values)


def encode_tags(tags: dict[str, str]) -> str:
    return msgspec.json.encode(tags).decode()


def decode_tags(text: str) -> dict[str, str]:
    return _tags_decoder.decode(text)


def encode_caller(caller: Caller) -> bytes:
    """Who asked, as msgpack."""
    return _attributes_encoder.encode(caller)


def decode_caller(blob: bytes | None) -> Caller:
    """The inverse of `encode_caller`; nobody where there is nothing."""
    return NOBODY if blob is None else _caller_decoder.decode(blob)


def encode_scan(scan: Scan | None) -> str | None:
    """How far a move task has looked, as JSON; None for one that moves everything."""
    return None if scan is None else msgspec.json.encode(scan).decode()


def to_task(row: Any) -> MoveTask:
    """A row of one of the queries for move tasks."""
    task_id, source, destination, *progress, scan = row
    target = parse_arn(destination) if destination else None
    task = MoveTask(task_id, parse_arn(source), target, *progress)
    return task if scan is None else replace(task, scan=_scan_decoder.decode(scan))


# ---- holds: how far a call that goes through many of them has come

HOLDS_AT_ONCE: Final = 100
HoldCursor = tuple[int, int]  # batch and part of the hold that a step came to
START: Final[HoldCursor] = (-1, -1)
encode_members: Final = msgspec.msgpack.Encoder().encode
decode_members: Final = msgspec.msgpack.Decoder(list[Member]).decode


class HoldStep(NamedTuple):
    """What a step did, and how far it came; None: to the end."""

    tally: HoldTally
    cursor: HoldCursor | None
