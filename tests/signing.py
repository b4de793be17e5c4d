"""Signing any request by SigV4, step by step: what the quick signer of the client is held to, and the verifier is tried with."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from veil.signing.sigv4 import (
    ALGORITHM,
    SERVICE,
    TERMINATOR,
    canonical_query,
    query_pairs,
    signature,
    signing_key,
    sigv4_timestamp,
    string_to_sign,
)

# Headers that a proxy or the HTTP library may add, drop or rewrite after the signing.
UNSIGNED_HEADERS = frozenset((
    "authorization", "connection", "expect", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "user-agent",
    "x-amzn-trace-id",
))  # fmt: skip


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
    scope = f"{timestamp[:8]}/{region}/{SERVICE}/{TERMINATOR}"
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
    proof = signature(signing_key(secret, timestamp[:8], region, SERVICE), text)
    added["Authorization"] = (
        f"{ALGORITHM} Credential={key_id}/{scope}, SignedHeaders={signed_headers}, Signature={proof}"
    )
    return added
