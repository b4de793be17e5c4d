"""Sends that come again: a client that got no answer may repeat its call, and nothing is stored twice.

Looked up in memory, where there is room for the latest; written to an append-only table with the send itself, so that
they are known after a crash too. An index by key would cost every send a random page; the keys are only ever
read at the start.
"""

from __future__ import annotations

from collections import deque

import msgspec

from veil.core.limits import REPEATED_SEND_MS, REPEATED_SENDS_MAX
from veil.core.message import Sent
from veil.core.sequence import first_seq_of, instant_of
from veil.stores.sqlite.tables import Q, Tables

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Sent]).decode


class Repeats:
    """The sends that are known, the oldest forgotten first."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._known: dict[tuple[int, bytes], tuple[int, bytes]] = {}
        self._order: deque[tuple[int, tuple[int, bytes]]] = deque()
        tables.when_loaded(self._load)

    def find(self, queue_id: int, retry_key: bytes, now_ms: int) -> list[Sent] | None:
        """What the first of the repeated sends was answered with."""
        found = self._known.get((queue_id, retry_key))
        if found is None or now_ms >= instant_of(found[0]) + REPEATED_SEND_MS:
            return None
        return _decode(found[1])

    def remember(self, queue_id: int, retry_key: bytes, sent: list[Sent], now_ms: int) -> None:
        """Know the send from now on, in the transaction that stored it."""
        seq, answer = self._tables.sequence.next(now_ms), _encode(sent)
        self._tables.execute(Q.remember_send, (seq, queue_id, retry_key, answer))
        self._keep(seq, (queue_id, retry_key), answer)

    def forget_old(self, now_ms: int) -> None:
        """Drop what is too old, or was pushed out by later ones, from the table."""
        oldest = first_seq_of(max(0, now_ms - REPEATED_SEND_MS))
        while self._order and self._order[0][0] < oldest:
            self._drop_first()
        if self._order:
            oldest = self._order[0][0]
        self._tables.execute(Q.forget_sends, (oldest,))

    def _load(self) -> None:
        self._known.clear()
        self._order.clear()
        oldest = first_seq_of(max(0, self._tables.clock.now_ms() - REPEATED_SEND_MS))
        for seq, queue_id, retry_key, answer in self._tables.execute(
            Q.latest_sends, (oldest, REPEATED_SENDS_MAX)
        ).fetchall():
            self._keep(seq, (queue_id, retry_key), answer)

    def _keep(self, seq: int, key: tuple[int, bytes], answer: bytes) -> None:
        self._known[key] = (seq, answer)
        self._order.append((seq, key))
        if len(self._order) > REPEATED_SENDS_MAX:
            self._drop_first()

    def _drop_first(self) -> None:
        seq, key = self._order.popleft()
        if self._known.get(key, (0, b""))[0] == seq:
            del self._known[key]
