"""Sign a request with AWS Signature Version 4, in its headers or in its query."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256

from veil.signing.sigv4_canonical import (
    ALGORITHM,
    TERMINATOR,
    canonical_query,
    query_pairs,
    signature,
    signing_key,
    string_to_sign,
)

EXPIRES_S_MAX = 604_800

# Headers that a proxy or the HTTP library may add, drop or rewrite after the signing.
UNSIGNED_HEADERS = frozenset(
    {
        "authorization",
        "connection",
        "expect",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "x-amzn-trace-id",
    }
)


def sigv4_timestamp(now_ms: int) -> str:
    """The instant as SigV4 writes it: 20250131T235959Z."""
    return datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y%m%dT%H%M%SZ")


def sign(
    *,
    method: str,
    host: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    key_id: str,
    secret: str,
    region: str,
    now_ms: int,
    query: str = "",
    service: str = "sqs",
    session_token: str | None = None,
) -> dict[str, str]:
    """The headers to add so that the request is signed; `host` is the Host header as it will be sent."""
    timestamp = sigv4_timestamp(now_ms)
    added = {"X-Amz-Date": timestamp}
    if session_token is not None:
        added["X-Amz-Security-Token"] = session_token
    to_sign = {name.lower(): value for name, value in (*headers.items(), *added.items())}
    to_sign = {name: value for name, value in to_sign.items() if name not in UNSIGNED_HEADERS}
    to_sign["host"] = host
    signed_headers = ";".join(sorted(to_sign))
    scope = f"{timestamp[:8]}/{region}/{service}/{TERMINATOR}"
    text = string_to_sign(
        method,
        path,
        canonical_query(query_pairs(query)),
        to_sign,
        signed_headers,
        sha256(body).hexdigest(),
        timestamp,
        scope,
    )
    proof = signature(signing_key(secret, timestamp[:8], region, service), text)
    added["Authorization"] = (
        f"{ALGORITHM} Credential={key_id}/{scope}, SignedHeaders={signed_headers}, Signature={proof}"
    )
    return added


def presign(
    *,
    method: str,
    host: str,
    path: str,
    parameters: Mapping[str, str],
    key_id: str,
    secret: str,
    region: str,
    now_ms: int,
    expires_s: int,
    service: str = "sqs",
    session_token: str | None = None,
) -> str:
    """The query, without its question mark, of a link that works for anybody until it expires."""
    if not 1 <= expires_s <= EXPIRES_S_MAX:
        raise ValueError(f"expires_s={expires_s}: expected 1 to {EXPIRES_S_MAX}")
    timestamp = sigv4_timestamp(now_ms)
    scope = f"{timestamp[:8]}/{region}/{service}/{TERMINATOR}"
    signed = {
        **parameters,
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{key_id}/{scope}",
        "X-Amz-Date": timestamp,
        "X-Amz-Expires": str(expires_s),
        "X-Amz-SignedHeaders": "host",
    }
    if session_token is not None:
        signed["X-Amz-Security-Token"] = session_token
    query = canonical_query((name.encode(), value.encode()) for name, value in signed.items())
    payload_hash = sha256(b"").hexdigest()
    text = string_to_sign(method, path, query, {"host": host}, "host", payload_hash, timestamp, scope)
    return f"{query}&X-Amz-Signature={signature(signing_key(secret, timestamp[:8], region, service), text)}"
