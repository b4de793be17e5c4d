"""AWS Signature Version 4: the one text that stands for a request, and the key that signs it.

Signing and verifying share this file, so that they cannot drift apart.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from hashlib import sha256
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes

ALGORITHM = "AWS4-HMAC-SHA256"
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
