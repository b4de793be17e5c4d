"""Requests for SMQ's port that no client should send: well-formed HTTP around spoiled XML, targets and headers."""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Callable
from typing import Any

from tests.faults.malformed_inputs import flip

QUEUE = "fuzz"
_MESSAGES = f"/queues/{QUEUE}/messages"
# Waits of 1 to 30 s would be good requests, and slow ones.
_NUMBERS: tuple[Any, ...] = (
    0, -1, 16, 17, 31, 43_200, 43_201, 604_801, 2**31, 2**63, 10**40, "1.5", "0x10", "", " ", "٣", "+5", "1e3", "NaN",
)  # fmt: skip
_TEXTS = (
    "", " ", "x", "&", "&amp;", "&#0;", "&#xD800;", "&undefined;", "<", "<a/>", "]]>", "<![CDATA[x]]>", "<!-- x -->",
    "é" * 200, "x" * 70_000, "\U0001f600" * 30, "￾", "%00", "../..", "AQ" * 22, "AgAA" * 12, "true", "base64==",
)  # fmt: skip
_NAMES = (
    QUEUE, "none", "", "..", "%2e%2e", "%00", "a" * 300, "%E4%BD%A0", "%ff", "a_b", "fuzz.fifo", "fuzz%2Fmessages", "+",
)  # fmt: skip
_ELEMENTS = (
    "Message", "Messages", "MessageBody", "DelaySeconds", "Priority", "MessageGroupId", "UserProperties", "PropertyValue",
    "SystemProperties", "SystemPropertyValue", "Name", "Value", "Type", "Queue", "VisibilityTimeout", "MaximumMessageSize",
    "MessageRetentionPeriod", "PollingWaitSeconds", "LoggingEnabled", "ReceiptHandles", "ReceiptHandle", "Account",
    "LoggingBucket", "Other",
)  # fmt: skip
_LAUGHS = (
    b'<!DOCTYPE a [<!ENTITY x0 "ha">'
    + b"".join(b'<!ENTITY x%d "%b">' % (n, b"&x%d;" % (n - 1) * 10) for n in range(1, 10))
    + b"]><Message><MessageBody>&x9;</MessageBody></Message>"
)


def smq_framed(rng: random.Random) -> bytes:
    """Well-formed HTTP around something that is not."""
    return rng.choice(_MAKERS)(rng)


def good_request(rng: random.Random) -> bytes:
    """A request that may well be served."""
    method, target, body = rng.choice(
        (
            ("PUT", f"/queues/fuzz{rng.randrange(20)}", "<Queue/>"),
            (
                "PUT",
                f"/queues/{QUEUE}?metaoverride=true",
                "<Queue><VisibilityTimeout>1</VisibilityTimeout></Queue>",
            ),
            ("GET", f"/queues/{QUEUE}", ""),
            ("GET", "/queues", ""),
            ("POST", _MESSAGES, "<Message><MessageBody>x</MessageBody></Message>"),
            ("POST", _MESSAGES, "<Messages><Message><MessageBody>x</MessageBody></Message></Messages>"),
            ("GET", _MESSAGES, ""),
            ("GET", f"{_MESSAGES}?numOfMessages=16", ""),
            ("GET", f"{_MESSAGES}?peekonly=true", ""),
            ("DELETE", f"{_MESSAGES}?ReceiptHandle={'AQ' * 22}", ""),
            ("DELETE", _MESSAGES, "<ReceiptHandles><ReceiptHandle>x</ReceiptHandle></ReceiptHandles>"),
            ("PUT", f"{_MESSAGES}?ReceiptHandle={'AQ' * 22}&VisibilityTimeout=5", ""),
            ("GET", "/?accountmeta=true", ""),
        )
    )
    return http(method, target, body.encode())


def http(method: str, target: str, body: bytes = b"", *headers: str) -> bytes:
    """A request with a right length."""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "x-mns-version: 2015-06-06", *headers]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body


def _tree(rng: random.Random, depth: int = 0) -> str:
    name = rng.choice(_ELEMENTS)
    if depth > 3 or rng.random() < 0.4:
        content = str(rng.choice(_TEXTS + tuple(map(str, _NUMBERS))))
    else:
        content = "".join(_tree(rng, depth + 1) for _ in range(rng.choice((1, 2, 3, 17))))
    attributes = rng.choice(("", "", ' xmlns="urn:x"', ' a="b"', " a=b", ' xmlns:p=""'))
    return f"<{name}{attributes}>{content}</{name}>"


def _spoiled_tree(rng: random.Random) -> bytes:
    method, target = rng.choice((("POST", _MESSAGES), ("PUT", f"/queues/{QUEUE}"), ("DELETE", _MESSAGES)))
    return http(method, target, _tree(rng).encode("utf-8", "replace"))


def _spoiled_values(rng: random.Random) -> bytes:
    names = rng.sample(_ELEMENTS, rng.randint(1, 5))
    inner = "".join(f"<{name}>{rng.choice(_NUMBERS + _TEXTS)}</{name}>" for name in names)
    root = rng.choice(("Message", "Queue"))
    target = _MESSAGES if root == "Message" else f"/queues/{QUEUE}" + rng.choice(("", "?metaoverride=true"))
    body = f"<{root}><MessageBody>x</MessageBody>{inner}</{root}>"
    return http("POST" if root == "Message" else "PUT", target, body.encode("utf-8", "replace"))


def _spoiled_query(rng: random.Random) -> bytes:
    names = (
        "waitseconds",
        "numOfMessages",
        "peekonly",
        "ReceiptHandle",
        "VisibilityTimeout",
        "metaoverride",
        "",
        "a%zz",
    )
    values = [str(value) for value in _NUMBERS if value not in (16, 17)] + [
        "%",
        "%zz",
        "%ff%fe",
        "a=b=c",
        "+",
        "%2B",
    ]
    pairs = "&".join(
        f"{rng.choice(names)}={rng.choice(values)}".replace(" ", "%20")
        for _ in range(rng.choice((1, 2, 4, 40)))
    )
    method = rng.choice(("GET", "DELETE", "PUT", "POST"))
    return http(method, f"/queues/{rng.choice(_NAMES)}/messages?{pairs}".encode("ascii", "replace").decode())


def _spoiled_path(rng: random.Random) -> bytes:
    parts = [rng.choice(("queues", "topics", "messages", *_NAMES)) for _ in range(rng.randint(0, 5))]
    method = rng.choice(("GET", "DELETE", "PUT", "POST", "HEAD", "PATCH", "OPTIONS"))
    return http(method, "/" + "/".join(parts) + rng.choice(("", "/", "//", "?", "?accountmeta=true")))


def _spoiled_headers(rng: random.Random) -> bytes:
    body = b"<Queue/>"
    right = base64.b64encode(hashlib.md5(body).digest()).decode()
    headers = rng.sample(
        (
            "Authorization: MNS ak", "Authorization: MNS ak:sig", "Authorization: x", "Authorization:", "Date: x",
            "Date: Thu, 01 Jan 2026 00:00:00 GMT", "Date: Thu, 99 Foo 99999 99:99:99 GMT", "Content-MD5: x",
            f"Content-MD5: {right}", "Content-MD5: " + "A" * 3000, "x-mns-ret-number: x", "x-mns-ret-number: 0",
            "x-mns-marker: ***", "x-mns-marker: AAAA", "x-mns-prefix: \xff", "x-mns-with-meta: maybe", "Content-Type: a/b",
            "security-token: x", "x-mns-date: 0",
        ),
        rng.randint(1, 4),
    )  # fmt: skip
    method, target = rng.choice(
        (("PUT", f"/queues/{QUEUE}"), ("GET", "/queues"), ("GET", f"/queues/{QUEUE}"))
    )
    return http(method, target, body if method == "PUT" else b"", *headers)


def _broken_xml(rng: random.Random) -> bytes:
    depth = rng.choice((9, 100, 100_000))
    body = rng.choice(
        (
            b"", b"<", b"</", b"<a", b"<a/>b", b"<a b='c>", b"\xef\xbb\xbf<Message/>", b"\xff\xfe<\x00a\x00/\x00>\x00",
            "<Message/>".encode("utf-16"), _LAUGHS, _LAUGHS.decode().encode("utf-16"), b"<a>" * depth,
            b"<a>" * depth + b"</a>" * depth, b"<Messages>" + b"<Message/>" * depth + b"</Messages>",
            b"<Message " + b"a='b' " * min(depth, 5_000) + b"/>", b"<?xml version='1.0' encoding='ebcdic'?><Message/>",
            b"<?xml version='9.9'?><Message/>", b"<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>", b"<a>\xed\xa0\x80</a>",
            b"<a>\x00</a>", b"<p:Message/>", b"<Message xmlns=''/>", rng.randbytes(60), b"{}", b"x=1&y=2",
            b"<Message><MessageBody>" + b"x" * 200_000 + b"</MessageBody></Message>",
        )
    )  # fmt: skip
    return http(*rng.choice((("POST", _MESSAGES), ("PUT", f"/queues/{QUEUE}"), ("DELETE", _MESSAGES))), body)


def _flipped(rng: random.Random) -> bytes:
    head, gap, body = good_request(rng).partition(b"\r\n\r\n")
    if not body:
        return head + gap
    body = flip(body, rng)
    line, _, _ = head.partition(b"\r\n")
    method, target, _ = line.decode().split(" ")
    return http(method, target, body)


_MAKERS: tuple[Callable[[random.Random], bytes], ...] = (
    _spoiled_tree,
    _spoiled_values,
    _spoiled_query,
    _spoiled_path,
    _spoiled_headers,
    _broken_xml,
    _flipped,
)
