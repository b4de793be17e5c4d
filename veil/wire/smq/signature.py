"""Who signed this request? SMQ's signature: HMAC-SHA1 over method, digest, type, date, its own headers and the target."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from hashlib import md5
from typing import Final

from veil.wire.exchange import Request
from veil.wire.sigv4 import SKEW_MS, AccessKey
from veil.wire.smq.refusals import (
    AuthorizationMissing,
    AuthorizationUnreadable,
    BodyDigestWrong,
    DateMissing,
    DateUnreadable,
    SmqKeyUnknown,
    SmqSignatureWrong,
    SmqTimeExpired,
)

_SCHEME: Final = "MNS "
# Stands in for keys that do not exist, so that a wrong key id costs the same work as a wrong signature.
_DECOY: Final = "of no key"


class SmqVerifier:
    """Tells who signed a request, or refuses it with an `SmqSignatureRefused`."""

    def __init__(self, keys: Mapping[str, AccessKey], *, skew_ms: int = SKEW_MS) -> None:
        self._keys = keys
        self._skew_ms = skew_ms

    def verify(self, request: Request, now_ms: int) -> AccessKey:
        """The key that signed a current request. The signature covers the body by its Content-MD5, where that is sent."""
        key_id, given = _claim(request)
        self._check_time(request, now_ms)
        key = self._keys.get(key_id)
        secret = (_DECOY if key is None else key.secret).encode()
        genuine = any(
            # `|` would look at both, but there is only one for nearly every request.
            hmac.compare_digest(signature(secret, request, date), given)
            for date in _dates(request)
        )
        if key is None:
            raise SmqKeyUnknown
        if not genuine:
            raise SmqSignatureWrong
        return key

    def _check_time(self, request: Request, now_ms: int) -> None:
        text = request.headers.get("date") or request.headers.get("x-mns-date")
        if not text:
            raise DateMissing
        try:
            signed_ms = parsedate_to_datetime(text).timestamp() * 1000
        except (ValueError, TypeError, OverflowError, IndexError):
            raise DateUnreadable from None
        if abs(signed_ms - now_ms) > self._skew_ms:
            raise SmqTimeExpired


def signature(secret: bytes, request: Request, date: str) -> bytes:
    """The signature of a request, in base64."""
    headers = request.headers
    own = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()) if name.startswith("x-mns-"))
    target = f"{request.path}?{request.query}" if request.query else request.path
    text = (
        f"{request.method}\n{headers.get('content-md5', '')}\n{headers.get('content-type', '')}\n"
        f"{date}\n{own}{target}"
    )
    return b64encode(hmac.digest(secret, text.encode("utf-8", "surrogatepass"), "sha1"))


def claimed_key_id(request: Request) -> str:
    """The key id that a request names, verified by nobody; empty where it names none."""
    authorization = request.headers.get("authorization", "")
    return authorization[len(_SCHEME) :].partition(":")[0] if authorization.startswith(_SCHEME) else ""


def check_digest(request: Request) -> None:
    """Raise BodyDigestWrong unless the body is the one that Content-MD5 tells of, if it is there.

    The digest is raw in base64, as the header is defined, or (by some SDKs) its hexadecimal text in base64.
    """
    stated = request.headers.get("content-md5")
    if not stated:
        return
    digest = md5(request.body, usedforsecurity=False)
    hexadecimal = digest.hexdigest()
    # One after the other: nearly every client writes the first.
    if (
        stated != b64encode(hexadecimal.encode()).decode()
        and stated != b64encode(digest.digest()).decode()
        and stated != b64encode(hexadecimal.upper().encode()).decode()
    ):
        raise BodyDigestWrong("The Content-MD5 you specified did not match what we received.")


def _claim(request: Request) -> tuple[str, bytes]:
    authorization = request.headers.get("authorization")
    if not authorization:
        raise AuthorizationMissing
    key_id, colon, given = authorization.removeprefix(_SCHEME).strip().rpartition(":")
    if not authorization.startswith(_SCHEME) or not colon or not key_id or not given:
        raise AuthorizationUnreadable
    return key_id, given.encode("utf-8", "surrogatepass")


def _dates(request: Request) -> tuple[str, ...]:
    """What may stand on the date's line; without Date some leave the line empty and some repeat x-mns-date on it."""
    date = request.headers.get("date")
    return (date,) if date else ("", request.headers.get("x-mns-date", ""))
