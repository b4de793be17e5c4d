"""SigV4, as whoever signs and whoever verifies needs it: canonical requests, signing keys, signed posts."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes

# ---- canonical requests and signing keys
#
# Signing and verifying share this file, so that they cannot drift apart.

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "sqs"
TERMINATOR = "aws4_request"


def path_segments(path: str) -> list[str]:
    """The segments of a path as they are signed: without dot segments and doubled slashes, still percent-encoded.

    Whoever routes a signed request by its path must read it by this, or would serve another path than was signed.
    """
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            if kept:
                kept.pop()
        elif segment not in ("", "."):
            kept.append(segment)
    return kept


def canonical_path(path: str) -> str:
    """The path with dot segments and doubled slashes gone, percent-encoded once more than it was sent.

    The second encoding is the rule for every service but S3: `%20` on the wire is signed as `%2520`.
    """
    if path in ("/", ""):
        return "/"
    kept = path_segments(path)
    first = "/" if path[0] == "/" else ""
    last = "/" if path[-1] == "/" and kept else ""
    return quote(first + "/".join(kept) + last, safe="/~")


def query_pairs(query: str) -> list[tuple[bytes, bytes]]:
    """The decoded names and values of a query, in order; as bytes, so that odd encodings survive."""
    # A plus is a blank in a form-encoded query; the canonical text writes every blank as %20.
    pieces = (piece.partition("=") for piece in query.replace("+", " ").split("&")) if query else ()
    return [(unquote_to_bytes(name), unquote_to_bytes(value)) for name, _, value in pieces]


def canonical_query(pairs: Iterable[tuple[bytes, bytes]]) -> str:
    """Names and values encoded in the one strict way, then sorted by name and by value."""
    encoded = [(quote_from_bytes(name, safe="~"), quote_from_bytes(value, safe="~")) for name, value in pairs]
    # Sorted as pairs and after the encoding: sorting the joined text would put `a-b=` before `a=`.
    encoded.sort()
    return "&".join([f"{name}={value}" for name, value in encoded])


def string_to_sign(
    method: str,
    path: str,
    canonical_query: str,
    headers: Mapping[str, str],
    signed_headers: str,
    payload_hash: str,
    timestamp: str,
    scope: str,
) -> bytes:
    """What the signature covers; `headers` must hold every name of `signed_headers`, in lower case."""
    lines = [method, canonical_path(path), canonical_query]
    # Runs of white space count as one blank, so that a proxy may fold a header without breaking it.
    lines += [f"{name}:{' '.join(headers[name].split())}" for name in signed_headers.split(";")]
    lines += ["", signed_headers, payload_hash]
    digest = sha256("\n".join(lines).encode()).hexdigest()
    return f"{ALGORITHM}\n{timestamp}\n{scope}\n{digest}".encode()


def signing_key(secret: str, date: str, region: str, service: str) -> bytes:
    """The key for one day, region and service; it cannot be turned back into the secret."""
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, TERMINATOR):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def signature(key: bytes, text: bytes) -> str:
    """The signature as it travels: 64 hexadecimal digits in lower case."""
    return hmac.digest(key, text, "sha256").hex()


EXPIRES_S_MAX = 604_800


def sigv4_timestamp(now_ms: int) -> str:
    """The instant as SigV4 writes it: 20250131T235959Z."""
    return datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y%m%dT%H%M%SZ")


# ---- signing posts, one after the other


class PostSigner:
    """Signs the client's posts to one endpoint, each at a fraction of the cost of signing from scratch: what does not change is
    computed once."""

    def __init__(self, *, host: str, path: str, region: str) -> None:
        self._start = f"POST\n{canonical_path(path)}\n\ncontent-type:application/x-amz-json-1.0\nhost:{host}\nx-amz-date:"
        self._region = region
        self._second = -1
        self._timestamp = ""
        self._signed_for: tuple[str, str, str | None, str] | None = None
        self._key = b""
        self._scope = self._token_line = self._names = self._claim = ""

    def sign(
        self, *, target: str, body: bytes, key_id: str, secret: str, session_token: str | None, now_ms: int
    ) -> tuple[str, str]:
        """The values of X-Amz-Date and Authorization."""
        second = now_ms // 1000
        if second != self._second:
            self._second, self._timestamp = second, sigv4_timestamp(now_ms)
        timestamp = self._timestamp
        signed_for = (key_id, secret, session_token, timestamp[:8])
        if signed_for != self._signed_for:
            self._prepare(*signed_for)
        request = (
            f"{self._start}{timestamp}\n{self._token_line}x-amz-target:{target}\nx-amzn-query-mode:true\n\n"
            f"{self._names}\n{sha256(body).hexdigest()}"
        )
        digest = sha256(request.encode()).hexdigest()
        proof = signature(self._key, f"{ALGORITHM}\n{timestamp}\n{self._scope}\n{digest}".encode())
        return timestamp, self._claim + proof

    def _prepare(self, key_id: str, secret: str, token: str | None, date: str) -> None:
        self._key = signing_key(secret, date, self._region, SERVICE)
        self._scope = f"{date}/{self._region}/{SERVICE}/{TERMINATOR}"
        self._token_line = "" if token is None else f"x-amz-security-token:{' '.join(token.split())}\n"
        token_name = "" if token is None else "x-amz-security-token;"
        self._names = f"content-type;host;x-amz-date;{token_name}x-amz-target;x-amzn-query-mode"
        self._claim = (
            f"{ALGORITHM} Credential={key_id}/{self._scope}, SignedHeaders={self._names}, Signature="
        )
        self._signed_for = (key_id, secret, token, date)
