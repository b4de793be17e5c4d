"""A receipt proves one delivery of one message: queue, message and delivery number under a keyed MAC.

A forged, truncated or foreign receipt is refused before anything is looked up. The delivery number rises with every
delivery of the message, so it also serves consumers as a fencing token.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

from veil.core.errors import ReceiptInvalid

_FORM: Final = struct.Struct(">BIQI")
_MAC_BYTES: Final = 16
_VERSION: Final = 1
_TEXT_CHARS: Final = 44  # 33 bytes in base64


class Receipt(NamedTuple):
    """Which delivery of which message, in which queue."""

    queue_id: int
    seq: int
    delivery: int
    text: str = ""  # as the client wrote it, for error texts


class ReceiptBook:
    """Writes and reads receipts under one key, which lives with the data it speaks about."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def write(self, queue_id: int, seq: int, delivery: int) -> str:
        """The receipt's text: 44 characters of A-Z a-z 0-9 - _."""
        claim = _FORM.pack(_VERSION, queue_id, seq, delivery)
        mac = hashlib.blake2s(claim, key=self._key, digest_size=_MAC_BYTES).digest()
        return urlsafe_b64encode(claim + mac).decode("ascii")

    def read(self, text: str, queue_id: int) -> Receipt:
        """The receipt behind the text; raises ReceiptInvalid unless this book wrote it for that queue."""
        if len(text) != _TEXT_CHARS:
            raise ReceiptInvalid(text)
        try:
            raw = urlsafe_b64decode(text)
        except (binascii.Error, ValueError):
            raise ReceiptInvalid(text) from None
        if len(raw) != _FORM.size + _MAC_BYTES:
            raise ReceiptInvalid(text)
        claim = raw[: _FORM.size]
        mac = hashlib.blake2s(claim, key=self._key, digest_size=_MAC_BYTES).digest()
        if not hmac.compare_digest(mac, raw[_FORM.size :]):
            raise ReceiptInvalid(text)
        version, queue, seq, delivery = _FORM.unpack(claim)
        # Canonical text only: base64 decoders skip stray characters, and one receipt must have one spelling.
        if version != _VERSION or queue != queue_id or urlsafe_b64encode(raw).decode("ascii") != text:
            raise ReceiptInvalid(text)
        return Receipt(queue, seq, delivery, text)
