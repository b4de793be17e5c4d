"""Settings, tags, attributes and callers as they are written into columns, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from veil.core.event import NOBODY
from veil.core.message import Caller, MessageAttribute, StoredMessage
from veil.core.move_task import MoveTask, Scan
from veil.core.queue import QueueKey, QueueSettings, RedriveAllow, RedrivePolicy, parse_arn

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
