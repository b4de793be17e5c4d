"""A receipt proves one delivery of one message: queue, message and delivery number under a keyed MAC.

A forged, truncated or foreign receipt is refused before anything is looked up. The delivery number rises with every
delivery of the message, so it also serves consumers as a fencing token. A delivery may have several receipts, one after
the other: a rotation gives its lease a new one, and only the latest counts. Delivery 0 is that of a message that nobody has
received yet: its receipt serves the sender, for as long as the message waits out its delay.
"""

from __future__ import annotations

import hashlib
import struct
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from hmac import compare_digest
from typing import Final

import msgspec

from veil.core.errors import ReceiptInvalid

_FORM: Final = struct.Struct(">BIQI")
_MAC_BYTES: Final = 16
_WHOLE: Final = struct.Struct(f"{_FORM.format}{_MAC_BYTES}s")
_VERSION: Final = 1
_TEXT_CHARS: Final = 44  # 33 bytes in base64
# The form of a receipt that was rotated: the same, with the number of the rotation behind it.
_ROTATED: Final = 2
_ROTATION_BYTES: Final = 3
_ROTATED_CHARS: Final = 48
_KEPT_MAX: Final = 8_192  # receipts of 250 bytes, twice
ROTATION_MAX: Final = (1 << 8 * _ROTATION_BYTES) - 1
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
# Back again, with nothing for the two characters that we do not write: so that a receipt has one spelling.
_STANDARD: Final = bytes.maketrans(b"-_+/", b"+/!!")
# Whoever holds a lease is one number, so that a delete has one to compare: the delivery, and the rotation above its bits.
DELIVERY_BITS: Final = 32
DELIVERY_MASK: Final = (1 << DELIVERY_BITS) - 1


def delivery_of(holder: int) -> int:
    """The delivery that holds a lease."""
    return holder & DELIVERY_MASK


def rotation_of(holder: int) -> int:
    """How often the receipt of a lease was replaced."""
    return holder >> DELIVERY_BITS


class Receipt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which delivery of which message, in which queue."""

    queue_id: int
    seq: int
    holder: int  # what a message says of its holder while this receipt holds its lease
    text: str = ""  # as the client wrote it, for error texts

    @property
    def delivery(self) -> int:
        """The number of the delivery."""
        return self.holder & DELIVERY_MASK


def looks_like_ours(text: str) -> bool:
    """Whether a service that gives out such receipts is Veil, for a client that would ask it for more than SQS has."""
    return len(text) == _TEXT_CHARS and text.startswith("AQ")


class ReceiptBook:
    """Writes and reads receipts under one key, which lives with the data it speaks about."""

    __slots__ = ("_fresh", "_key", "_keyed", "_older")

    def __init__(self, key: bytes) -> None:
        self._key = key
        # The latest that were written here, by their texts: most come back soon, and to find one takes a sixth of reading it.
        self._fresh: dict[str, Receipt] = {}
        self._older: dict[str, Receipt] = {}
        # Its method copies the state for each MAC: cheaper than making it again.
        self._keyed = hashlib.blake2s(key=key, digest_size=_MAC_BYTES).copy

    def __reduce__(self) -> tuple[type[ReceiptBook], tuple[bytes]]:
        return ReceiptBook, (self._key,)

    def write(self, queue_id: int, seq: int, holder: int) -> str:
        """The receipt's text: 44 characters of A-Z a-z 0-9 - _, or 48 where it was rotated."""
        if holder > DELIVERY_MASK:
            claim = _FORM.pack(_ROTATED, queue_id, seq, holder & DELIVERY_MASK)
            claim += rotation_of(holder).to_bytes(_ROTATION_BYTES, "big")
        else:
            claim = _FORM.pack(_VERSION, queue_id, seq, holder)
        mac = self._keyed()
        mac.update(claim)
        text = b2a_base64(claim + mac.digest(), newline=False).translate(_URL_SAFE).decode("ascii")
        if len(self._fresh) >= _KEPT_MAX:
            self._fresh, self._older = {}, self._fresh
        self._fresh[text] = Receipt(queue_id, seq, holder, text)
        return text

    def read(self, text: str, queue_id: int) -> Receipt:
        """The receipt behind the text; raises ReceiptInvalid unless this book wrote it for that queue."""
        written = self._fresh.get(text) or self._older.get(text)
        if written is not None and written.queue_id == queue_id:
            return written
        try:
            if len(text) == _TEXT_CHARS or len(text) == _ROTATED_CHARS:
                claim = a2b_base64(text.encode("ascii").translate(_STANDARD), strict_mode=True)
                mac = self._keyed()
                mac.update(claim[:-_MAC_BYTES])
                if compare_digest(mac.digest(), claim[-_MAC_BYTES:]):
                    version, queue, seq, holder = _FORM.unpack_from(claim)
                    if version == _ROTATED:
                        holder |= int.from_bytes(claim[_FORM.size : -_MAC_BYTES], "big") << DELIVERY_BITS
                    if queue == queue_id:
                        return Receipt(queue, seq, holder, text)
        except (ValueError, struct.error):  # not base64, not ASCII, or too short
            pass
        raise ReceiptInvalid(text)

    def read_all(self, texts: Sequence[str], queue_id: int) -> list[Receipt]:
        """The receipts behind the texts, as `read` has them; raises ReceiptInvalid for the first that is none."""
        if len(texts) == 1:
            return [self.read(texts[0], queue_id)]
        fresh, older = self._fresh.get, self._older.get
        known = [fresh(text) or older(text) for text in texts]
        written = [receipt for receipt in known if receipt is not None and receipt.queue_id == queue_id]
        if len(written) == len(texts):
            return written
        receipts = self._read_together(texts, queue_id)
        return [self.read(text, queue_id) for text in texts] if receipts is None else receipts

    def _read_together(self, texts: Sequence[str], queue_id: int) -> list[Receipt] | None:
        """`read_all` in three quarters of the time; None unless all are of that queue, ours, and never rotated."""
        joined = "".join(texts)
        if len(joined) != len(texts) * _TEXT_CHARS:
            return None
        try:
            claims = a2b_base64(joined.encode("ascii").translate(_STANDARD), strict_mode=True)
            parts = _WHOLE.iter_unpack(claims)
        except (ValueError, struct.error):
            return None
        receipts: list[Receipt] = []
        keyed, at = self._keyed, 0
        for text, (version, queue, seq, holder, shown) in zip(texts, parts, strict=True):
            mac = keyed()
            mac.update(claims[at : at + _FORM.size])
            at += _WHOLE.size
            if not compare_digest(mac.digest(), shown):
                return None
            if version != _VERSION or queue != queue_id or len(text) != _TEXT_CHARS:
                return None
            receipts.append(Receipt(queue, seq, holder, text))
        return receipts
