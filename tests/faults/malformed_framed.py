"""Well-formed HTTP around requests that no client should send: many fit on one connection, and each must be answered."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_from_bytes

from botocore.model import OperationModel

from tests.faults.malformed_inputs import flip, good_input, operations, spoil


def framed(rng: random.Random) -> bytes:
    """Well-formed HTTP around something that is not."""
    return rng.choices(_FRAMED, _FRAMED_WEIGHTS)[0](rng)


def http(body: bytes, *headers: bytes, method: bytes = b"POST", target: bytes = b"/") -> bytes:
    """A request with a right length."""
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: localhost", *headers]
    lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def json_headers(name: str) -> tuple[bytes, bytes]:
    """What makes a request one of AWS JSON."""
    return b"X-Amz-Target: AmazonSQS." + name.encode(), b"Content-Type: application/x-amz-json-1.0"


def _as_json(value: Any) -> bytes:
    # Lone surrogates come out as escapes, which JSON allows and UTF-8 does not.
    return json.dumps(value).encode()


def _json_spoiled(rng: random.Random) -> bytes:
    operation = rng.choice(operations())
    return http(_as_json(spoil(good_input(operation, rng), rng)), *json_headers(operation.name))


def _json_flipped(rng: random.Random) -> bytes:
    operation = rng.choice(operations())
    return http(flip(_as_json(good_input(operation, rng)), rng), *json_headers(operation.name))


def _json_broken(rng: random.Random) -> bytes:
    depth = rng.choice((40, 1_000, 100_000))
    body = rng.choice(
        (
            b"", b"null", b"[]", b'"', b"{", b"NaN", b"{}{}", b'{"QueueUrl":', b"\xff\xfe{}",
            b"\xef\xbb\xbf{}", b"{'a':1}", b'{"a":1,}', b"\x00" * 9,
            b"[" * depth, b'{"a":' * depth, b'{"Entries":' + b"[" * depth + b"]" * depth + b"}",
            b'{"MaxNumberOfMessages":' + b"9" * depth + b"}",
            b'{"MaxNumberOfMessages":1e' + b"9" * 30 + b"}", b'{"MaxNumberOfMessages":-' + b"0" * 50 + b"}",
            b'{"QueueUrl":"\\ud800"}', b'{"QueueUrl":"\xed\xa0\x80"}',
            b'{"QueueUrl":"\\u0000"}', b'{"QueueUrl":"fuzz","QueueUrl":5}', b'{"MessageBody":"\\x41"}',
            b"/*x*/{}", b'{"\\u0051ueueUrl":"fuzz"}', rng.randbytes(50),
        )
    )  # fmt: skip
    return http(body, *json_headers(rng.choice(operations()).name))


def _form_of(value: Any, prefix: str = "") -> list[tuple[str, bytes]]:
    if isinstance(value, dict):
        pairs = []
        for key, inner in value.items():
            pairs += _form_of(inner, f"{prefix}.{key}" if prefix else str(key))
        return pairs
    if isinstance(value, list):
        return [pair for n, inner in enumerate(value, 1) for pair in _form_of(inner, f"{prefix}.{n}")]
    return [(prefix, str(value).encode("utf-8", "surrogatepass"))]


def _form(operation: OperationModel, value: Any) -> bytes:
    pairs = [("Action", operation.name.encode()), ("Version", b"2012-11-05"), *_form_of(value)]
    return b"&".join(
        quote_from_bytes(name.encode("utf-8", "surrogatepass")).encode()
        + b"="
        + quote_from_bytes(text).encode()
        for name, text in pairs
    )


_MANY_ENTRIES = b"&".join(b"SendMessageBatchRequestEntry.%d.Id=x" % n for n in range(300))
_FORM = b"Content-Type: application/x-www-form-urlencoded; charset=utf-8"


def _query_spoiled(rng: random.Random) -> bytes:
    operation = rng.choice(operations())
    body = _form(operation, _flattened(spoil(good_input(operation, rng), rng), operation))
    return http(body, _FORM)


def _query_flipped(rng: random.Random) -> bytes:
    operation = rng.choice(operations())
    body = flip(_form(operation, _flattened(good_input(operation, rng), operation)), rng)
    return http(body, _FORM)


def _flattened(value: Any, operation: OperationModel) -> Any:
    """The names that the Query protocol gives to the first level's lists and maps."""
    if not isinstance(value, dict):
        return {"Value": value}
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        if isinstance(inner, list):
            single = {
                "Entries": f"{operation.name}RequestEntry",
                "AttributeNames": "AttributeName",
                "TagKeys": "TagKey",
            }
            flat[single.get(name, name.removesuffix("s"))] = inner
        elif isinstance(inner, dict):
            label = "Key" if name.lower() == "tags" else "Name"
            flat[name.capitalize().removesuffix("s")] = [{label: k, "Value": v} for k, v in inner.items()]
        else:
            flat[name] = inner
    return flat


def _query_broken(rng: random.Random) -> bytes:
    name = rng.choice(operations()).name.encode()
    body = rng.choice(
        (
            b"Action=", b"Action", b"Action=%", b"Action=%ZZ", b"Action=" + name + b"&Action=" + name,
            b"&" * 5000, b"=" * 5000, b"a=1&" * 5000,
            b"Action=" + name + b"&Attribute.99999999999999999999.Name=x",
            b"Action=" + name + b"&Attribute.-1.Name=x",
            b"Action=" + name + b"&Attribute.1.Name.1.Name=x&Attribute.1=y",
            b"Action=SendMessageBatch&QueueUrl=fuzz&" + _MANY_ENTRIES,
            b"Action=" + name + b"&QueueUrl=%FF%FE", b"Action=" + name + b"&QueueUrl=%00",
            b"Action=" + name + b"&Attribute" + b".1" * 2000 + b"=x",
            b"Action=" + name + b"&MaxNumberOfMessages=" + b"9" * 5000,
            b"Action=" + name + b"&MaxNumberOfMessages=%D9%A3", b"\xff" * 100, rng.randbytes(80),
        )
    )  # fmt: skip
    if rng.random() < 0.3:
        return http(
            b"",
            method=b"GET",
            target=b"/000000000000/fuzz?" + quote_from_bytes(body, safe="&=%.").encode()[:8000],
        )
    return http(body, _FORM)


_TARGETS = (
    b"", b".", b"AmazonSQS", b"AmazonSQS.", b"AmazonSQS.Nonsense", b"AmazonSQS.__class__", b"x" * 9000,
    b"AmazonSQS.SendMessage\xff",
)  # fmt: skip
_SIGNATURES = (
    b"AWS4-HMAC-SHA256", b"AWS4-HMAC-SHA256 Credential=a/b/c/d/e, SignedHeaders=host, Signature=",
    b"AWS4-HMAC-SHA256 Credential=////", b"Basic x", b"AWS4-HMAC-SHA256 Credential=" + b"/" * 3000,
)  # fmt: skip
_TYPES = (b"text/xml", b"", b"application/x-amz-json-1.1; charset=utf-7", b"\xff")
_METHODS = (b"POST", b"GET", b"PUT", b"DELETE", b"OPTIONS", b"PATCH")
_PATHS = (
    b"/", b"/x", b"/000000000000/fuzz", b"/%00", b"/%ff/%fe", b"//", b"/../..", b"/?" + b"a" * 5000,
    b"/000000000000/fuzz?Action=PurgeQueue&Action=x", b"/metrics", b"/healthz",
)  # fmt: skip


def _odd_headers(rng: random.Random) -> bytes:
    header = rng.choice(
        (
            b"X-Amz-Target: " + rng.choice(_TARGETS), b"Content-Type: " + rng.choice(_TYPES),
            b"Authorization: " + rng.choice(_SIGNATURES), b"Accept: application/json", b"Origin: null",
            b"Sec-Fetch-Site: cross-site", b"X-Amz-Date: 99999999T999999Z",
            b"X-Amzn-Trace-Id: " + b"\xff" * 40, b"Cookie: " + b"a=b;" * 2000,
            b"amz-sdk-invocation-id: " + b"z" * 4000,
        )
    )  # fmt: skip
    body = rng.choice((b"", b"{}", b"Action=ListQueues"))
    return http(body, header, method=rng.choice(_METHODS), target=rng.choice(_PATHS))


def any_good_request(rng: random.Random) -> bytes:
    """Any action, in either protocol, with nothing wrong."""
    operation = rng.choice(operations())
    if rng.random() < 0.5:
        return http(_as_json(good_input(operation, rng)), *json_headers(operation.name))
    return http(_form(operation, _flattened(good_input(operation, rng), operation)), _FORM)


_FRAMED: tuple[Callable[[random.Random], bytes], ...] = (
    _json_spoiled, _json_flipped, _json_broken, _query_spoiled, _query_flipped, _query_broken, _odd_headers,
)  # fmt: skip
_FRAMED_WEIGHTS = (6, 4, 1, 5, 3, 2, 2)
