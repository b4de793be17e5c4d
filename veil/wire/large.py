"""What is too large for the event loop is done in a thread, and what would be long even there is refused or cut in pieces.

A thread alone is not enough: a single call into C keeps the interpreter's lock, and so the loop, until it returns. Nothing
that runs here may therefore be one call for more than a few megabytes of work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from veil.core.message import StoredMessage
from veil.wire.exchange import Request
from veil.wire.request_errors import AnswersTooLarge, RequestUnreadable

T = TypeVar("T")

# To verify, decode and check as much takes a few milliseconds; a thread costs a tenth of one.
LARGE_BYTES: Final = 256 * 1024
# A message of nothing takes 2 µs to write, and weighs so much here that a hundred small ones, what a consumer of Veil asks for at
# a time, are written on the loop: that takes a quarter of a millisecond, and the ways to a thread and back as long again.
MESSAGE_BYTES: Final = 1_024
# Of a form: each of these parameters is some steps of Python.
PARAMETERS_MANY: Final = 500
# Of a JSON document: what is neither text nor blank. A thousand entries with ten attributes each have less, and the decoder
# makes objects of as much in some twenty milliseconds; of 8 MiB it would take half a second.
STRUCTURE_BYTES_MAX: Final = 128 * 1024
_SLICE_BYTES: Final = 1 << 20
_BLANKS: Final = b" \t\r\n"

_encode = msgspec.json.Encoder().encode

# Two, so that one large request waits for one other at most; more would only contend for the interpreter.
_threads = ThreadPoolExecutor(2, thread_name_prefix="veil-large")


def in_thread(function: Callable[..., T], *given: Any) -> Awaitable[T]:
    """What the function gives, worked out beside the loop."""
    return asyncio.get_running_loop().run_in_executor(_threads, function, *given)


def is_large_form(request: Request) -> bool:
    """Whether a request of the Query protocol is work for a thread: by its size, or by its parameters."""
    body = request.body
    return len(body) > LARGE_BYTES or body.count(b"&") + request.query.count("&") > PARAMETERS_MANY


def check_room(request: Request, size_bytes: int) -> None:
    """Raise AnswersTooLarge where the server cannot hold an answer of that size; otherwise it counts from now on."""
    if size_bytes > LARGE_BYTES and not request.has_room(size_bytes):
        raise AnswersTooLarge


def answer_bytes(messages: Sequence[StoredMessage], each_bytes: int = MESSAGE_BYTES) -> int:
    """About how large an answer with these messages is, or would be for the same work."""
    own_bytes = [message.held_bytes if message.attributes else message.body_bytes for message in messages]
    return each_bytes * len(messages) + sum(own_bytes)


def encode_in_pieces(value: Any, depth: int = 4) -> bytes:
    """The value as JSON, each message a call of its own; `depth` is how far inside they are at most."""
    if isinstance(value, Struct):
        members = [(name, getattr(value, name)) for name in value.__struct_fields__]
        value = {name: member for name, member in members if member is not None}
    if isinstance(value, dict) and depth:
        pieces = [
            _encode(name) + b":" + encode_in_pieces(member, depth - 1) for name, member in value.items()
        ]
        return b"{%b}" % b",".join(pieces)
    if isinstance(value, list):
        return b"[%b]" % b",".join([_encode(each) for each in value])
    return _encode(value)


def check_structure(document: bytes) -> None:
    """Raise RequestUnreadable for a JSON document of more values than any request has.

    Texts may be as large as they like: they cost what they weigh. It is the small values beside them that are dear.
    """
    structure_bytes = 0
    inside = False  # a text that the slice before began
    start = 0
    while start < len(document):
        end = start + _SLICE_BYTES
        part = document[start:end]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:  # not between a backslash and what it escapes
            end += 1
            part = document[start:end]
        if b"\\" in part:
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        pieces = part.split(b'"', 2 * STRUCTURE_BYTES_MAX)
        structure = b"".join(pieces[1 if inside else 0 :: 2])
        structure_bytes += len(structure.translate(None, _BLANKS))
        if structure_bytes > STRUCTURE_BYTES_MAX:
            raise RequestUnreadable(
                f"The request body has too many values: at most {STRUCTURE_BYTES_MAX} bytes of it may stand outside of texts."
            )
        inside = inside == (len(pieces) % 2 == 1)
        start = end
