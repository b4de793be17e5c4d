"""A receipt proves one delivery of one message: queue, message and delivery number under a keyed MAC.

A forged, truncated or foreign receipt is refused before anything is looked up. The delivery number rises with every
delivery of the message, so it also serves consumers as a fencing token. A delivery may have several receipts, one after
the other: a rotation gives its lease a new one, and only the latest counts. Delivery 0 is that of a message that nobody has
received yet: its receipt serves the sender, for as long as the message waits out its delay.
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
# The form of a receipt that was rotated: the same, with the number of the rotation behind it.
_ROTATED: Final = 2
_ROTATION_BYTES: Final = 3
_ROTATED_CHARS: Final = 48
ROTATION_MAX: Final = (1 << 8 * _ROTATION_BYTES) - 1
# Whoever holds a lease is one number, so that a delete has one to compare: the delivery, and the rotation above its bits.
DELIVERY_BITS: Final = 32
DELIVERY_MASK: Final = (1 << DELIVERY_BITS) - 1


class Receipt(NamedTuple):
    """Which delivery of which message, in which queue."""

    queue_id: int
    seq: int
    delivery: int
    text: str = ""  # as the client wrote it, for error texts
    rotation: int = 0  # how often the delivery's receipt had been replaced before this one

    @property
    def holder(self) -> int:
        """What a message says of its holder while this receipt holds its lease."""
        return self.delivery | self.rotation << DELIVERY_BITS


def delivery_of(holder: int) -> int:
    """The delivery that holds a lease."""
    return holder & DELIVERY_MASK


def rotation_of(holder: int) -> int:
    """How often the receipt of a lease was replaced."""
    return holder >> DELIVERY_BITS


def looks_like_ours(text: str) -> bool:
    """Whether a service that gives out such receipts is Veil, for a client that would ask it for more than SQS has."""
    return len(text) == _TEXT_CHARS and text.startswith("AQ")


class ReceiptBook:
    """Writes and reads receipts under one key, which lives with the data it speaks about."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def write(self, queue_id: int, seq: int, delivery: int, rotation: int = 0) -> str:
        """The receipt's text: 44 characters of A-Z a-z 0-9 - _, or 48 where it was rotated."""
        if rotation:
            claim = _FORM.pack(_ROTATED, queue_id, seq, delivery) + rotation.to_bytes(_ROTATION_BYTES, "big")
        else:
            claim = _FORM.pack(_VERSION, queue_id, seq, delivery)
        mac = hashlib.blake2s(claim, key=self._key, digest_size=_MAC_BYTES).digest()
        return urlsafe_b64encode(claim + mac).decode("ascii")

    def read(self, text: str, queue_id: int) -> Receipt:
        """The receipt behind the text; raises ReceiptInvalid unless this book wrote it for that queue."""
        rotated = len(text) == _ROTATED_CHARS
        if not rotated and len(text) != _TEXT_CHARS:
            raise ReceiptInvalid(text)
        size = _FORM.size + _ROTATION_BYTES if rotated else _FORM.size
        try:
            raw = urlsafe_b64decode(text)
        except (binascii.Error, ValueError):
            raise ReceiptInvalid(text) from None
        if len(raw) != size + _MAC_BYTES:
            raise ReceiptInvalid(text)
        claim = raw[:size]
        mac = hashlib.blake2s(claim, key=self._key, digest_size=_MAC_BYTES).digest()
        if not hmac.compare_digest(mac, raw[size:]):
            raise ReceiptInvalid(text)
        version, queue, seq, delivery = _FORM.unpack_from(claim)
        # Canonical text only: base64 decoders skip stray characters, and one receipt must have one spelling.
        known = version == (_ROTATED if rotated else _VERSION)
        if not known or queue != queue_id or urlsafe_b64encode(raw).decode("ascii") != text:
            raise ReceiptInvalid(text)
        if rotated:
            return Receipt(queue, seq, delivery, text, int.from_bytes(claim[_FORM.size :], "big"))
        return Receipt(queue, seq, delivery, text)
