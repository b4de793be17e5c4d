"""Requests of any size, made from the shapes of the actions: each field grows in each way that its type allows.

A maker is given a number of bytes and gives a request whose body has about as many. Heads, SMQ's documents and the console's
forms are in growing_documents.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints
from urllib.parse import urlencode

from veil.wire.actions import ACTIONS, EXTENSIONS, Action
from veil.wire.aws_query import MAP_NAMES, list_name
from veil.wire.aws_query import _bare as bare
from veil.wire.exchange import Request
from veil.wire.shapes import AttributeValue, Shape

QUEUE = "grown"
BODY_BYTES_MAX = 8 << 20


class Made(NamedTuple):
    """A request, whoever it is for."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""

    def wire(self) -> bytes:
        """As it goes over a socket."""
        lines = [
            f"{self.method} {self.target} HTTP/1.1",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return ("\r\n".join(lines) + f"\r\nContent-Length: {len(self.body)}\r\n\r\n").encode(
            "latin-1"
        ) + self.body

    def request(self) -> Request:
        """As the front ends get it."""
        path, _, query = self.target.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Request(self.method, path, query, headers, self.body, "127.0.0.1")


Maker = Callable[[int], Made]
Text = Callable[[int], bytes]  # so many bytes of a value


def repeat(unit: bytes, size: int, before: bytes = b"", behind: bytes = b"") -> bytes:
    return before + unit * max(1, (size - len(before) - len(behind)) // len(unit)) + behind


def _counted(unit: bytes, size: int, before: bytes, behind: bytes) -> bytes:
    """The unit again and again with a number of its own in the place of `%d`, separated by commas."""
    count = max(1, size // (len(unit) + 5))
    return before + b",".join([unit.replace(b"%d", b"%d" % number) for number in range(count)]) + behind


# ---- JSON

_STRINGS: dict[str, Text] = {
    "letters": lambda size: repeat(b"a", size, b'"', b'"'),
    "escapes": lambda size: repeat(b"\\u0041", size, b'"', b'"'),
    "quotes": lambda size: repeat(b'\\"', size, b'"', b'"'),
    "breaks": lambda size: repeat(b"\\n", size, b'"', b'"'),
    "scripts": lambda size: repeat("aé€😀".encode(), size, b'"', b'"'),
    "digits": lambda size: repeat(b"1", size, b'"', b'x"'),
    "blanks": lambda size: repeat(b" ", size, b'"', b'x"'),
    "not characters": lambda size: repeat("￿".encode(), size, b'"', b'"'),
    "stars": lambda size: repeat(b"*a", size, b'"', b'b"'),
    "base64": lambda size: repeat(b"QUFB", size, b'"', b'"'),
    "nested JSON": lambda size: repeat(b"[", size, b'"', b'"'),
    "JSON members": lambda size: repeat(b'\\"a\\":1,', size, b'"{', b'\\"b\\":1}"'),
    "JSON in JSON": lambda size: repeat(b"{},", size, b'"[', b'{}]"'),
}
_NUMBERS: dict[str, Text] = {
    "digits": lambda size: repeat(b"9", size),
    "fraction": lambda size: repeat(b"0", size, b"1.5"),
    "text": lambda size: repeat(b"9", size, b'"', b'"'),
}


def _ways(kind: Any, depth: int = 0) -> Iterator[tuple[str, Text]]:
    """The ways in which a value of that type can grow."""
    kind = bare(kind)
    origin = get_origin(kind)
    if hasattr(kind, "__metadata__"):
        kind = kind.__origin__
    if kind in (str, bytes):
        yield from _STRINGS.items()
    elif kind is int:
        yield from _NUMBERS.items()
    elif origin is list:
        (item,) = get_args(kind)
        if isinstance(item, type) and issubclass(item, Shape):
            yield "empty items", lambda size: repeat(b"{},", size, b"[", b"{}]")
            yield "items", lambda size: _counted(b'{"Id":"%d","ReceiptHandle":"x"}', size, b"[", b"]")
            yield "members of one item", lambda size: repeat(b'"Id":"a",', size, b"[{", b'"Id":"b"}]')
        else:
            yield "empty items", lambda size: repeat(b'"",', size, b"[", b'""]')
            yield "items", lambda size: _counted(b'"n%d"', size, b"[", b"]")
            yield "alike", lambda size: repeat(b'"All",', size, b"[", b'"All"]')
            yield "prefixes", lambda size: _counted(b'"n%d.*"', size, b"[", b"]")
        for name, inner in _ways(item, depth + 1):
            yield f"one item: {name}", lambda size, inner=inner: b"[" + inner(size) + b"]"  # type: ignore[misc]
    elif origin is dict:
        value = get_args(kind)[1]
        empty = b"{}" if value is AttributeValue else b'""'
        yield "members", lambda size: _counted(b'"k%d":' + empty, size, b"{", b"}")
        yield (
            "a member again",
            lambda size: repeat(b'"k":' + empty + b",", size, b"{", b'"l":' + empty + b"}"),
        )
        yield "one name", lambda size: repeat(b"a", size, b'{"', b'":' + empty + b"}")
        for key in ("Policy", "RedrivePolicy", "VisibilityTimeout", "k"):
            if key == "k" or value is str:
                for name, inner in _ways(value, depth + 1):
                    yield (
                        f"{key}: {name}",
                        lambda size, inner=inner, key=key: b'{"%b":%b}' % (key.encode(), inner(size)),
                    )  # type: ignore[misc]
    elif isinstance(kind, type) and issubclass(kind, Shape):
        good = b'"Id":"a","ReceiptHandle":"x","MessageBody":"b",' if depth == 1 else b""
        for name, part in get_type_hints(kind).items():
            fixed = good
            if kind is AttributeValue and name != "DataType":
                fixed = b'"DataType":"%b",' % (b"Binary" if name.startswith("Binary") else b"Number")
            for way, inner in _ways(part, depth + 1):
                yield (
                    f"{name}: {way}",
                    lambda size, inner=inner, name=name, fixed=fixed: (
                        b'{%b"%b":%b}' % (fixed, name.encode(), inner(size))
                    ),
                )  # type: ignore[misc]


# What an action needs besides the field that grows, so that it comes as far as that field.
_GOOD: dict[str, Any] = {
    "QueueUrl": QUEUE, "MessageBody": "b", "ReceiptHandle": "x", "VisibilityTimeout": 1, "Label": "l", "Actions": ["SendMessage"],
    "AWSAccountIds": ["123456789012"], "Stream": "s", "Owner": "o", "Batch": 1, "Part": 1, "MaxNumberOfMessages": 10,
    "UpToBatch": 0, "SourceArn": f"arn:aws:sqs:us-east-1:000000000000:{QUEUE}", "QueueName": QUEUE,
}  # fmt: skip


def json_makers() -> Iterator[tuple[str, Maker]]:
    """Every field of every action, as AWS JSON."""
    for prefix, actions in (("AmazonSQS.", ACTIONS), ("Veil.", EXTENSIONS)):
        for action in actions.values():
            for way, text in _action_ways(action):
                yield f"json {action.name} {way}", _json_maker(prefix + action.name, text)


def _json_maker(target: str, text: Text) -> Maker:
    headers = {"Host": "localhost", "X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.0"}
    return lambda size: Made("POST", "/", headers, text(size))


def _action_ways(action: Action) -> Iterator[tuple[str, Text]]:
    for field, kind in get_type_hints(action.input).items():
        good = {
            name: value
            for name, value in _GOOD.items()
            if name in action.input.__struct_fields__ and name != field
        }
        before = json.dumps(good).encode()[:-1] + (b"," if good else b"")
        for way, inner in _ways(kind):
            yield (
                f"{field}: {way}",
                lambda size, inner=inner, field=field, before=before: (
                    b'%b"%b":%b}' % (before, field.encode(), inner(size))
                ),
            )  # type: ignore[misc]
    yield "unknown members", lambda size: repeat(b'"a":1,', size, b"{", b'"b":1}')
    yield "unknown lists", lambda size: repeat(b"[],", size, b'{"a":[', b"1]}")
    yield "depth", lambda size: repeat(b'{"a":', size)
    yield "depth of lists", lambda size: repeat(b"[", size, b'{"a":')
    yield "blanks", lambda size: repeat(b" ", size, b"{", b"}")
    yield "a member again", lambda size: repeat(b'"QueueUrl":"a",', size, b"{", b'"b":1}')


# ---- Query

_FORM = {"Host": "localhost", "Content-Type": "application/x-www-form-urlencoded"}


def form_makers() -> Iterator[tuple[str, Maker]]:
    """Every field of every action, as a form."""
    for action in ACTIONS.values():
        good = {"Action": action.name} | {
            name: str(value)
            for name, value in _GOOD.items()
            if name in action.input.__struct_fields__ and not isinstance(value, list)
        }
        for way, text in _form_ways(action):
            yield f"query {action.name} {way}", _form_maker(good, text)
    for way, text in (
        ("letters", lambda size: repeat(b"%41", size, b"Action=")),
        ("names", lambda size: repeat(b"a=b&", size)),
        ("ampersands", lambda size: repeat(b"&", size)),
        ("equal signs", lambda size: repeat(b"=", size)),
        ("pluses", lambda size: repeat(b"+", size, b"Action=")),
        ("broken escapes", lambda size: repeat(b"%", size, b"Action=")),
        ("line ends", lambda size: repeat(b"%\n", size, b"Action=")),
    ):
        yield f"query form of {way}", _form_maker({}, text)


def _form_maker(good: dict[str, str], text: Text) -> Maker:
    def make(size: int) -> Made:
        return Made("POST", "/", _FORM, (urlencode(good).encode() + b"&" if good else b"") + text(size))

    return make


def _form_ways(action: Action) -> Iterator[tuple[str, Text]]:
    for field, hint in get_type_hints(action.input).items():
        kind = bare(hint)
        origin, name = get_origin(kind), field.encode()
        if origin is list:
            item = list_name(field, action.name).encode()
            yield f"{field}: items", lambda size, item=item: _numbered(item + b".%d=All", size)  # type: ignore[misc]
            yield f"{field}: structures", lambda size, item=item: _numbered(item + b".%d.Id=i%d", size)  # type: ignore[misc]
            yield f"{field}: depth", lambda size, item=item: repeat(b".1", size, item) + b"=x"  # type: ignore[misc]
            yield f"{field}: letters", lambda size, item=item: repeat(b"%41", size, item + b".1.Id=")  # type: ignore[misc]
        elif origin is dict:
            entry, key, value = (part.encode() for part in MAP_NAMES[field])
            yield (
                f"{field}: members",
                lambda size, e=entry, k=key, v=value: _numbered(
                    b"%b.%%d.%b=k%%d&%b.%%d.%b=v" % (e, k, e, v), size
                ),
            )  # type: ignore[misc]
            yield (
                f"{field}: letters",
                lambda size, e=entry, k=key, v=value: repeat(
                    b"%41", size, b"%b.1.%b=Policy&%b.1.%b=" % (e, k, e, v)
                ),
            )  # type: ignore[misc]
        else:
            yield f"{field}: letters", lambda size, name=name: repeat(b"%41", size, name + b"=")  # type: ignore[misc]
            yield f"{field}: scripts", lambda size, name=name: repeat(b"a%C3%A9+", size, name + b"=")  # type: ignore[misc]


def _numbered(unit: bytes, size: int) -> bytes:
    # As many as a form may have, and what is left of the size in one more.
    count = max(1, min(4_900 // (unit.count(b"=") or 1), size // (len(unit) + 4)))
    text = b"&".join([unit.replace(b"%d", b"%d" % number) for number in range(1, count + 1)])
    return text + b"&z=" + b"%41" * max(0, (size - len(text)) // 3)
