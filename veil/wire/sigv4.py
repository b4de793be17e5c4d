"""Who signed this request? AWS Signature Version 4, verified, in the header or in a presigned query."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from hashlib import sha256

from veil.signing.sigv4 import (
    ALGORITHM,
    EXPIRES_S_MAX,
    SERVICE,
    TERMINATOR,
    canonical_query,
    query_pairs,
    signature,
    signing_key,
    sigv4_timestamp,
    string_to_sign,
)
from veil.wire.exchange import Request
from veil.wire.request_errors import KeyUnknown, SignatureMalformed, SignatureMismatch

SKEW_MS = 15 * 60 * 1000
_SIGNING_KEYS_MAX = 1024


@dataclass(frozen=True, slots=True)
class AccessKey:
    """A key that may sign requests, and the account it acts for."""

    key_id: str
    secret: str = field(repr=False)
    account: str
    role: str = "admin"  # in the console: viewer, operator or admin


@dataclass(slots=True)
class _SignatureClaim:
    """What a request says about its own signature; nothing of it is believed yet."""

    credential: str
    signed_headers: str
    signature: str
    timestamp: str
    query: list[tuple[bytes, bytes]]  # what of it is signed
    date_header: str | None  # the header that dates the request; None when the query does
    expires_s: int | None  # only presigned


class Verifier:
    """Tells who signed a request, or refuses it with a `SignatureRefused`; never raises anything else."""

    def __init__(self, keys: Mapping[str, AccessKey]) -> None:
        self._keys = keys
        # By secret, not by key id: a rotated secret must not meet the old one's signing key. Bounded, because
        # date and region are the sender's to choose.
        self._signing_key = lru_cache(maxsize=_SIGNING_KEYS_MAX)(signing_key)

    def verify(self, request: Request, now_ms: int) -> tuple[AccessKey, str] | None:
        """The key and the region of a signature that is whole, current and covers all that matters; None without one."""
        try:
            return self._verified(request, now_ms)
        except UnicodeEncodeError:  # a lone surrogate: no client can have signed that
            raise SignatureMismatch from None

    def _verified(self, request: Request, now_ms: int) -> tuple[AccessKey, str] | None:
        headers = request.headers
        authorization = headers.get("authorization")
        claim = _claim_in_header(authorization, request) if authorization else _claim_in_query(request)
        if claim is None:
            return None

        parts = claim.credential.split("/")
        if len(parts) != 5 or not parts[0]:
            raise SignatureMalformed(
                "Credential must have exactly 5 slash-delimited elements, "
                f"e.g. keyid/date/region/service/term, got '{claim.credential}'"
            )
        key_id, date, region, service, terminator = parts
        _check_time(claim, now_ms)
        _check_scope(claim.timestamp, date, region, service, terminator)
        # Before the work that grows with the request: strangers get none of it. That the key is unknown is said in any case,
        # as AWS says it, so the quicker answer gives nothing away.
        key = self._keys.get(key_id)
        if key is None:
            raise KeyUnknown
        _check_coverage(claim, headers)

        payload_hash = sha256(request.body).hexdigest()
        # A stated hash is only a second spelling of the body's; "UNSIGNED-PAYLOAD" would leave the body open
        # to anybody, over a connection that need not be encrypted.
        if headers.get("x-amz-content-sha256", payload_hash) != payload_hash:
            raise SignatureMismatch

        text = string_to_sign(
            request.method,
            request.path,
            canonical_query(claim.query),
            headers,
            claim.signed_headers,
            payload_hash,
            claim.timestamp,
            f"{date}/{region}/{service}/{terminator}",
        )
        expected = signature(self._signing_key(key.secret, date, region, service), text)
        if not hmac.compare_digest(expected.encode(), claim.signature.encode()):
            raise SignatureMismatch
        return key, region


def _check_time(claim: _SignatureClaim, now_ms: int) -> None:
    signed_ms = _instant_ms(claim.timestamp)
    if signed_ms is None:
        raise SignatureMalformed(f"Date must be in ISO-8601 'basic format'. Got '{claim.timestamp}'.")
    # A presigned link says itself how long it lives, to the second: the skew does not lengthen it.
    lifetime_ms = SKEW_MS if claim.expires_s is None else claim.expires_s * 1000
    if now_ms - signed_ms > lifetime_ms:
        raise SignatureMismatch(
            f"Signature expired: {claim.timestamp} is now earlier than"
            f" {sigv4_timestamp(now_ms - lifetime_ms)}"
            f" ({sigv4_timestamp(now_ms)} - {_length(lifetime_ms)})"
        )
    if signed_ms - now_ms > SKEW_MS:
        raise SignatureMismatch(
            f"Signature not yet current: {claim.timestamp} is still later than"
            f" {sigv4_timestamp(now_ms + SKEW_MS)} ({sigv4_timestamp(now_ms)} + {_length(SKEW_MS)})"
        )


def _check_scope(timestamp: str, date: str, region: str, service: str, terminator: str) -> None:
    if date != timestamp[:8]:
        raise SignatureMismatch(
            "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
            f"'{date}' != '{timestamp[:8]}', from '{timestamp}'."
        )
    if not is_region(region):
        raise SignatureMismatch(f"Credential should be scoped to a valid region, not '{region}'.")
    if service != SERVICE:
        raise SignatureMismatch(f"Credential should be scoped to correct service: '{SERVICE}'.")
    if terminator != TERMINATOR:
        raise SignatureMismatch(
            f"Credential should be scoped with a valid terminator: '{TERMINATOR}', not '{terminator}'."
        )


def _claim_in_header(authorization: str, request: Request) -> _SignatureClaim:
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != ALGORITHM:
        raise SignatureMalformed(
            f"Unsupported AWS 'algorithm': '{algorithm}' (only {ALGORITHM} is supported)."
        )
    fields: dict[str, str] = {}
    for piece in rest.split(","):
        name, _, value = piece.strip().partition("=")
        if name in fields:
            raise SignatureMalformed(f"Authorization header has '{name}' twice.")
        fields[name] = value
    missing = [name for name in ("Credential", "Signature", "SignedHeaders") if not fields.get(name)]
    date_header = "x-amz-date" if "x-amz-date" in request.headers else "date"
    timestamp = request.headers.get(date_header, "")
    if missing or not timestamp:
        reasons = [f"Authorization header requires '{name}' parameter." for name in missing]
        if not timestamp:
            reasons.append(
                "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header."
            )
        raise SignatureMalformed(" ".join(reasons))
    if date_header == "date":
        timestamp = _timestamp_of_http_date(timestamp)
    return _SignatureClaim(
        fields["Credential"],
        fields["SignedHeaders"],
        fields["Signature"],
        timestamp,
        query_pairs(request.query),
        date_header,
        None,
    )


_CLAIMED = ("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders")


def _claim_in_query(request: Request) -> _SignatureClaim | None:
    if "X-Amz-" not in request.query:
        return None
    fields: dict[str, str] = {}
    signed: list[tuple[bytes, bytes]] = []
    for pair in query_pairs(request.query):
        name = pair[0].decode("utf-8", "replace")
        if name in _CLAIMED or name == "X-Amz-Signature":
            # The order of equal names is not signed, so a stranger could choose which one counts.
            if name in fields:
                raise SignatureMalformed(f"Query string has '{name}' twice.")
            fields[name] = pair[1].decode("utf-8", "replace")
        if name != "X-Amz-Signature":
            signed.append(pair)
    missing = [name for name in (*_CLAIMED, "X-Amz-Signature") if not fields.get(name)]
    if missing:
        if len(missing) == len(_CLAIMED) + 1:  # some other X-Amz- parameter: nobody tried to sign
            return None
        raise SignatureMalformed(
            " ".join(f"AWS query-string parameters must include '{n}'." for n in missing)
        )
    if fields["X-Amz-Algorithm"] != ALGORITHM:
        raise SignatureMalformed(
            f"Unsupported AWS 'algorithm': '{fields['X-Amz-Algorithm']}' (only {ALGORITHM} is supported)."
        )
    expires = fields["X-Amz-Expires"]
    if not (
        expires.isascii() and expires.isdigit() and len(expires) <= 6 and 1 <= int(expires) <= EXPIRES_S_MAX
    ):
        raise SignatureMalformed(f"X-Amz-Expires must be 1 to {EXPIRES_S_MAX} seconds, got '{expires}'.")
    return _SignatureClaim(
        fields["X-Amz-Credential"],
        fields["X-Amz-SignedHeaders"],
        fields["X-Amz-Signature"],
        fields["X-Amz-Date"],
        signed,
        None,
        int(expires),
    )


def _check_coverage(claim: _SignatureClaim, headers: Mapping[str, str]) -> None:
    names = claim.signed_headers.split(";")
    signed = frozenset(names)
    # Each name makes a line of its header's length: repeated, a small request would stand for a text of gigabytes.
    if len(signed) != len(names):
        raise SignatureMalformed("SignedHeaders has a name twice.")
    if "host" not in signed:
        raise SignatureMismatch("'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization.")
    if claim.date_header is not None and claim.date_header not in signed:
        raise SignatureMismatch(f"'{claim.date_header}' must be a 'SignedHeader' in the AWS Authorization.")
    for name in names:
        if name not in headers:
            raise SignatureMismatch(f"'{name}' is a 'SignedHeader' but is not in the request.")
    # X-Amz-Target decides which operation the body means. Headers that begin with x-amzn- are left free: no
    # SDK signs X-Amzn-Trace-Id, which proxies add and change.
    for name in headers:
        if name.startswith("x-amz-") and name not in signed:
            raise SignatureMismatch(f"'{name}' must be a 'SignedHeader' in the AWS Authorization.")


@lru_cache(maxsize=64)
def _instant_ms(timestamp: str) -> int | None:
    # Many requests share a second, hence the cache. By hand: strptime costs more than the signature itself.
    digits = timestamp[:8] + timestamp[9:15]
    if len(timestamp) != 16 or timestamp[8] != "T" or timestamp[15] != "Z":
        return None
    if not (digits.isascii() and digits.isdigit()):
        return None
    year, month, day = int(digits[:4]), int(digits[4:6]), int(digits[6:8])
    try:
        at = datetime(year, month, day, int(digits[8:10]), int(digits[10:12]), int(digits[12:]), tzinfo=UTC)
    except ValueError:
        return None
    return int(at.timestamp()) * 1000


def _timestamp_of_http_date(text: str) -> str:
    if _instant_ms(text) is not None:
        return text
    try:
        return read_http_date(text).strftime("%Y%m%dT%H%M%SZ")
    except ValueError:
        return text  # refused, and quoted, by the check of the instant


def read_http_date(text: str) -> datetime:
    """The instant in a Date header, in UTC also where that names no zone; raises ValueError."""
    try:
        at = parsedate_to_datetime(text)
        return at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC)
    except (OverflowError, TypeError, IndexError) as problem:
        raise ValueError(text) from problem


def is_region(text: str) -> bool:
    # The region becomes part of ARNs and of the store's keys: nothing else may come in by it.
    return len(text) <= 64 and text.isascii() and text.replace("-", "").isalnum()


def _length(length_ms: int) -> str:
    return f"{length_ms // 60_000} min." if length_ms % 60_000 == 0 else f"{length_ms // 1000} s."
