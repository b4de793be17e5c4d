"""The rules for a request's head: which requests are refused, with what status, and how its body is framed.

The parser (llhttp, strict) already refuses what smuggling is made of: bare CR or LF, folded lines, control
characters, space before the colon, Content-Length twice or beside Transfer-Encoding, malformed chunks. This
file closes what it leaves open: other transfer codings before `chunked`, chunks in HTTP/1.0, HTTP/0.9 and
2.0, repeated Host, fragments.
"""

from __future__ import annotations

from collections.abc import Mapping

import httptools

CHUNKED = -1  # as a body length: known only at its end

# Methods that could mean something to a front end, which decides itself (405). The parser also knows CONNECT,
# the WebDAV family and Icecast's SOURCE.
METHODS: Mapping[bytes, str] = {
    name.encode(): name for name in ("POST", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH")
}

# Clients send a handful of names in two spellings: looking them up is cheaper than lowering each.
# fmt: off
_COMMON_NAMES = (
    "accept", "accept-encoding", "accept-language", "amz-sdk-invocation-id", "amz-sdk-request",
    "authorization", "cache-control", "connection", "content-encoding", "content-length", "content-md5",
    "content-type", "cookie", "date", "expect", "host", "if-modified-since", "if-none-match",
    "keep-alive", "origin", "referer", "sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "te",
    "traceparent", "transfer-encoding", "upgrade", "user-agent", "x-amz-content-sha256", "x-amz-date",
    "x-amz-security-token", "x-amz-target", "x-amzn-query-mode", "x-amzn-trace-id", "x-forwarded-for",
    "x-forwarded-host", "x-forwarded-proto",
)
# fmt: on


# How a TLS handshake begins: a record of that type, of any version of TLS.
TLS_OPENING = b"\x16\x03"
SPEAKS_PLAIN = "this port does not speak TLS: use http://"


class _HeaderNames(dict[bytes, str]):
    def __missing__(self, name: bytes) -> str:
        return name.decode("ascii").lower()  # not kept: clients could fill memory with names


_header_names = _HeaderNames(
    {
        **{spelling.encode(): name for name in _COMMON_NAMES for spelling in (name, name.title())},
        b"TE": "te",
        b"Content-MD5": "content-md5",
    }
)


class Refusal(Exception):
    """A request answered with this status, and then the connection closed: what follows may be misread."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def joined_headers(pairs: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers by lower-case name, repeated ones joined; the parser leaves the space behind values."""
    names = _header_names
    headers = {names[name]: value.rstrip(b" \t").decode("latin-1") for name, value in pairs}
    if len(headers) == len(pairs):
        return headers
    headers.clear()
    for name, value in pairs:
        key, text = names[name], value.rstrip(b" \t").decode("latin-1")
        if key in headers:
            if key == "host":
                raise Refusal(400, "more than one Host header")
            text = f"{headers[key]}, {text}"
        headers[key] = text
    return headers


def body_length(version: str, headers: Mapping[str, str], body_bytes_max: int) -> int:
    """How many bytes of body follow this head, or CHUNKED; raises Refusal if it must not be served."""
    if version == "1.1":
        if "host" not in headers:
            raise Refusal(400, "HTTP/1.1 needs a Host header")
    elif version != "1.0":
        raise Refusal(505, f"HTTP/{version} is not supported, use HTTP/1.1")
    if "content-encoding" in headers and headers["content-encoding"].lower() not in ("identity", ""):
        raise Refusal(415, "a compressed request body is not supported")
    if "expect" in headers and headers["expect"].lower() != "100-continue":
        raise Refusal(417, "the only supported expectation is 100-continue")
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked":
            raise Refusal(501, "the only supported transfer coding is chunked")
        if version == "1.0":
            # An HTTP/1.0 intermediary would not have seen the chunks as framing: two readings of one stream.
            raise Refusal(400, "HTTP/1.0 has no transfer codings")
        return CHUNKED
    length = int(headers.get("content-length", "0"))
    if length > body_bytes_max:
        raise Refusal(413, f"the body may have at most {body_bytes_max} bytes")
    return length


def split_target(target: bytes) -> tuple[str, str, str]:
    """Path, query and, for an absolute target, the authority that overrides the Host header."""
    if target == b"/":
        return "/", "", ""
    if b"#" in target:
        raise Refusal(400, "a request target has no fragment")
    text = target.decode("ascii")  # the parser lets only ASCII pass
    authority = ""
    if not text.startswith("/") and text != "*":
        scheme, separator, rest = text.partition("://")
        if not separator or scheme.lower() not in ("http", "https"):
            raise Refusal(400, "the request target is neither a path nor an http URL")
        end = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
        authority, text = rest[:end], rest[end:]
        if not authority or "@" in authority:
            raise Refusal(400, "the request target's authority must be a host and at most a port")
        if not text.startswith("/"):
            text = "/" + text
    path, _, query = text.partition("?")
    return path, query, authority


def refusal_of(error: Exception) -> Refusal:
    """The refusal behind what the parser raised."""
    if isinstance(error, httptools.HttpParserCallbackError) and isinstance(error.__context__, Refusal):
        return error.__context__
    reason = str(error)
    if reason == "Content-Length overflow":
        return Refusal(413, reason)
    if reason in ("Invalid HTTP version", "Pause on PRI/Upgrade"):  # the latter is HTTP/2's preface
        return Refusal(505, "use HTTP/1.1")
    if reason == "Request has invalid `Transfer-Encoding`":
        return Refusal(501, "the only supported transfer coding is chunked")
    return Refusal(400, f"malformed request: {reason}")
