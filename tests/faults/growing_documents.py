"""What grows besides the inputs of SQS's actions: heads of requests, SMQ's documents, the console's forms."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.growing_requests import QUEUE, Made, Maker, Text, repeat

HEAD_BYTES_MAX = 31_000

_HOST = {"Host": "localhost"}
_SCOPE = "20261116/us-east-1/sqs/aws4_request"


def _get(target: str, **headers: str) -> Made:
    return Made("GET", target, _HOST | headers)


def _signed(signed_headers: str, *, key: str = "nobody", query: str = "", **headers: str) -> Made:
    given = _HOST | {"X-Amz-Date": "20261116T000000Z", "X-Amz-Target": "AmazonSQS.ListQueues"} | headers
    claim = f"Credential={key}/{_SCOPE}, SignedHeaders={signed_headers}, Signature={'0' * 64}"
    return Made("POST", f"/?{query}", given | {"Authorization": f"AWS4-HMAC-SHA256 {claim}"}, b"{}")


_NAMES = "host;x-amz-date;x-amz-target"
_PRESIGNED = (
    f"/?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a/{_SCOPE}&X-Amz-Date=20261116T000000Z&X-Amz-Expires=9"
    "&X-Amz-Signature=0&X-Amz-SignedHeaders=host"
)
_SENT = b'{"QueueUrl":"%b","MessageBody":"b"}' % QUEUE.encode()
_SEND = {"X-Amz-Target": "AmazonSQS.SendMessage"}
_HEADS: dict[str, Maker] = {
    "SignedHeaders again": lambda n: _signed(_NAMES + ";a" * (n // 4), a="x " * (n // 4)),
    "SignedHeaders of many": lambda n: _signed(_NAMES + "".join(f";h{i}" for i in range(n // 5))),
    "blanks": lambda n: _signed(_NAMES + ";a", a="x" + " " * (n - 2) + "y"),
    "fields": lambda n: _signed(_NAMES + "," * n),
    "slashes": lambda n: _signed(_NAMES, key="/" * n),
    "signed query": lambda n: _signed(_NAMES, query="&".join(f"a{i}=%41" for i in range(n // 9))[:n]),
    "known key": lambda n: _signed(_NAMES + ";a", key="known", a="x " * (n // 2)),
    "presigned query": lambda n: _get(_PRESIGNED + "&a=%41" * (n // 6)),
    "presigned SignedHeaders": lambda n: _get(_PRESIGNED + "%3Bhost" * (n // 7)),
    "dot segments": lambda n: _get("/a" + "/.." * (n // 3) + "?Action=ListQueues"),
    "path parts": lambda n: _get("/a" * (n // 2) + "?Action=ListQueues"),
    "query names": lambda n: _get("/?" + "&".join(f"a.{i}=1" for i in range(n // 8))[:n]),
    "query escapes": lambda n: _get("/?Action=" + "%41" * (n // 3)),
    "user agent": lambda n: Made("POST", "/", _HOST | _SEND | {"User-Agent": "a" * n}, _SENT),
    "trace": lambda n: Made("POST", "/", _HOST | _SEND | {"X-Amzn-Trace-Id": "a" * n}, _SENT),
    "invocation": lambda n: Made("POST", "/", _HOST | _SEND | {"amz-sdk-invocation-id": "a" * n}, _SENT),
    "Date": lambda n: _signed("host;date", Date="," * n),
}


def head_makers() -> Iterator[tuple[str, Maker]]:
    """What grows in the request line and the headers, signatures among it."""
    for way, make in _HEADS.items():
        yield f"head {way}", make


def page_makers() -> Iterator[tuple[str, Maker]]:
    """Addresses of the console's pages, and the cookies that come with them."""
    yield "page cookies", lambda n: _get("/console/queues", Cookie="a=b; " * (n // 5))
    yield "page cookie blanks", lambda n: _get("/console/queues", Cookie=" " * n + "a")
    yield "page path", lambda n: _get("/console" + "/a" * (n // 2))
    yield "page query", lambda n: _get("/console/queues?" + "a=%41&" * min(n // 6, 1_900))
    place = f"/console/queues/us-east-1/{QUEUE}"
    for field in ("text", "attribute", "state", "older", "newer", "after", "receives", "find", "sort"):
        for way, text in (("digits", "9"), ("escapes", "%41"), ("blanks", "+")):
            yield f"page {field} of {way}", _page_maker(f"{place}?{field}=", text)


def _page_maker(start: str, text: str) -> Maker:
    return lambda n: _get(start + text * (n // len(text)))


# ---- SMQ

_SMQ = {"Host": "localhost", "x-mns-version": "2015-06-06"}


def _within(unit: bytes, *path: str) -> Text:
    """The unit again and again within elements of these names."""
    before = "".join(f"<{name}>" for name in path).encode()
    behind = "".join(f"</{name}>" for name in reversed(path)).encode()
    return lambda n: repeat(unit, n, before, behind)


def _numbered(unit: bytes) -> Text:
    return lambda n: b"<Message %b/>" % b" ".join([unit % i for i in range(n // (len(unit) + 4))])


def _entities(n: int) -> bytes:
    declared = [b'<!ENTITY e%d "%b">' % (i, b"&e%d;" % (i - 1) * 9) for i in range(n // 80)]
    return b"<!DOCTYPE a [%b]><a>&e9;</a>" % b"".join(declared)


_BODY = ("Message", "MessageBody")
_PROPERTY = b"<PropertyValue><Name>a</Name><Value>1</Value><Type>NUMBER</Type></PropertyValue>"
_NUMBER = b"<Message><MessageBody>b</MessageBody><UserProperties><PropertyValue><Name>a</Name><Type>NUMBER</Type><Value>"
_NUMBER_END = b"x</Value></PropertyValue></UserProperties></Message>"
_DOCUMENTS: dict[str, Text] = {
    "depth": lambda n: repeat(b"<a>", n),
    "depth closed": lambda n: b"<a>" * (n // 7) + b"</a>" * (n // 7),
    "elements": _within(b"<a/>", "Message"),
    "attributes": _numbered(b"a%d='b'"),
    "namespaces": _numbered(b"xmlns:a%d='b'"),
    "one attribute": lambda n: repeat(b"a", n, b"<Message a='", b"'/>"),
    "attribute references": lambda n: repeat(b"&amp;", n, b"<Message a='", b"'/>"),
    "comments": _within(b"<!---->", "Message"),
    "one comment": lambda n: repeat(b"- ", n, b"<Message><!--", b"--></Message>"),
    "CDATA": _within(b"<![CDATA[]]>", *_BODY),
    "full CDATA": _within(b"<![CDATA[a]]>", *_BODY),
    "references": _within(b"&amp;", *_BODY),
    "numbers": _within(b"&#65;", *_BODY),
    "letters": _within(b"a", *_BODY),
    "line ends": _within(b"\r\n", *_BODY),
    "scripts": _within("aé€😀".encode(), *_BODY),
    "instructions": _within(b"<?a b?>", "Message"),
    "entities": _entities,
    "one name": lambda n: repeat(b"a", n, b"<", b"/>"),
    "unclosed": lambda n: repeat(b"a='", n, b"<Message "),
    "properties": _within(_PROPERTY, "Message", "UserProperties"),
    "a number": lambda n: repeat(b"1", n, _NUMBER, _NUMBER_END),
    "a delay": _within(b"1", "Message", "DelaySeconds"),
    "messages": _within(b"<Message><MessageBody>b</MessageBody></Message>", "Messages"),
    "receipts": _within(b"<ReceiptHandle>x</ReceiptHandle>", "ReceiptHandles"),
    "zeros": lambda n: b"\0" * n,
}


def smq_makers() -> Iterator[tuple[str, Maker]]:
    """Documents for SMQ's port."""
    for way, text in _DOCUMENTS.items():
        for method, target in (("POST", "/messages"), ("DELETE", "/messages"), ("PUT", "")):
            yield f"smq {method} {way}", _maker(method, f"/queues/{QUEUE}{target}", _SMQ, text)


def smq_head_makers() -> Iterator[tuple[str, Maker]]:
    """Heads for SMQ's port."""

    def get(target: str, **headers: str) -> Made:
        return Made("GET", target, _SMQ | {name.replace("_", "-"): value for name, value in headers.items()})

    messages = f"/queues/{QUEUE}/messages"
    date = "Thu, 01 Jan 2026 00:00:00 GMT"
    yield "smq head path", lambda n: get("/a" * (n // 2))
    yield "smq head query", lambda n: get(f"{messages}?" + "a=%41&" * (n // 6))
    yield "smq head escapes", lambda n: get(f"{messages}?ReceiptHandle=" + "%41" * (n // 3))
    yield "smq head Date", lambda n: get("/queues", Date="," * n, Authorization="MNS a:b")
    yield "smq head digest", lambda n: get("/queues", Content_MD5="A" * n)
    yield "smq head colons", lambda n: get("/queues", Date=date, Authorization="MNS " + ":" * n)
    yield "smq head marker", lambda n: get("/queues", x_mns_marker="A" * n)
    yield "smq head prefix", lambda n: get("/queues", x_mns_prefix="a" * n)


# ---- the console's forms


def _maker(method: str, target: str, headers: dict[str, str], text: Text) -> Maker:
    return lambda n: Made(method, target, headers, text(n))


def console_makers(token: str, cookie: str, port: int) -> Iterator[tuple[str, Maker]]:
    """Forms that a page of the console takes."""
    base = {"Host": f"127.0.0.1:{port}", "Origin": f"http://127.0.0.1:{port}", "Cookie": cookie}
    place, start = f"/console/queues/us-east-1/{QUEUE}", f"token={token}&".encode()

    def field(name: bytes, unit: bytes, behind: bytes = b"") -> Text:
        return lambda n: repeat(unit, n, start + name, behind)

    forms: dict[str, Text] = {
        "letters": field(b"body=x&tags=", b"%41"),
        "fields": lambda n: start + b"a=%41&" * min(1_900, n // 6),
        "tag blanks": field(b"tags=k%3Dv%0A", b"+", b"a"),
        "tag lines": lambda n: start + b"tags=" + b"".join([b"k%d%%3Dv%%0A" % i for i in range(n // 14)]),
        "tag quotes": field(b"tags=", b"%22%5C"),
        "tag equals": field(b"tags=", b"%3D"),
        "policy": field(b"policy=", b"%5B"),
        "body": field(b"body=", b"%41"),
        "number": field(b"body=x&attribute_name=a&attribute_type=Number&attribute_value=", b"1", b"x"),
        "names": field(b"", b"%41"),
    }
    plain = base | {"Content-Type": "application/x-www-form-urlencoded"}
    for way, text in forms.items():
        for target in ("/tags", "/send", "/edit", "/policy"):
            yield f"console {target} {way}", _maker("POST", place + target, plain, text)
        yield f"console new {way}", _maker("POST", "/console/queues/new", plain, text)

    part = b"\r\n--b\r\nContent-Disposition: form-data"
    first = part[2:] + b'; name="token"\r\n\r\n' + token.encode()
    end = b"\r\n--b--\r\n"
    files: dict[str, Text] = {
        "letters": lambda n: repeat(b"a", n, first + part + b'; name="body"\r\n\r\n', end),
        "parts": lambda n: first + (part + b'; name="a"\r\n\r\n') * min(1_900, n // 60) + end,
        "edges": lambda n: repeat(b"\r\n--b", n, first, end),
        "head": lambda n: repeat(b" ", n, first + part + b";", b'name="a\r\n\r\n' + end),
        "names": lambda n: repeat(b";name=", n, first + part, b"\r\n\r\n" + end),
        "file": lambda n: repeat(b"\xff", n, first + part + b'; name="file"; filename="a"\r\n\r\n', end),
    }
    parts = base | {"Content-Type": "multipart/form-data; boundary=b"}
    for way, text in files.items():
        yield f"console files {way}", _maker("POST", f"{place}/send", parts, text)
