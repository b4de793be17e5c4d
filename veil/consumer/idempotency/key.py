"""Where the idempotency key of a message comes from: a field of its payload, its id, or a function."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from veil.consumer.handlers.errors import PayloadRefused
from veil.consumer.message import Message

KeySpec = str | Callable[[Message], str]

_PATH: Final = re.compile(r"\$((?:\.[^.\[\]\s]+|\[\d+\])+)\Z")
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_KEY_CHARACTERS_MAX: Final = 200


def key_of(spec: KeySpec) -> Callable[[Message], str]:
    """The function that gives a message's key; raises ValueError for a spec that is none."""
    if callable(spec):
        return spec
    if spec == "message_id":
        return lambda message: message.id
    path = _PATH.match(spec)
    if path is None:
        raise ValueError(
            f"key is {spec!r}, expected a path like '$.order_id' or '$.items[0].id', 'message_id', or a function"
        )
    steps = [name or int(index) for name, index in _STEP.findall(path[1])]
    return lambda message: _field(message, spec, steps)


def bounded(key: str) -> str:
    """The key, or its digest when it is too long to be an index entry everywhere."""
    if len(key) <= _KEY_CHARACTERS_MAX:
        return key
    return f"sha256:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _field(message: Message, spec: str, steps: list[str | int]) -> str:
    content = message.content
    source = content.text if content.text is not None else content.json
    try:
        value: Any = msgspec.json.decode(b"" if source is None else source)
        for step in steps:
            value = value[step]
    except (msgspec.DecodeError, UnicodeError, RecursionError, KeyError, IndexError, TypeError):
        raise PayloadRefused(f"payload has no field {spec} for its idempotency key") from None
    if value is None or isinstance(value, dict | list):
        raise PayloadRefused(f"payload has no plain value in {spec} for its idempotency key")
    # As JSON, because 1 and "1" are two keys.
    return msgspec.json.encode(value).decode()
