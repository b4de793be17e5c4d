"""Sends that come again: a client that got no answer may repeat its call, and nothing is stored twice.

Looked up in memory, where there is room for the latest, and written with the transaction that stored them, so that they
are known after a crash too: one row for the whole group, which costs a send next to nothing. The rows are only ever read
at the start; an index by key would cost every send a random page.
"""

from __future__ import annotations

from collections import deque

import msgspec

from veil.core.limits import REPEATED_MESSAGES_MAX, REPEATED_SEND_MS
from veil.core.message import Sent
from veil.core.sequence import first_seq_of, instant_of
from veil.stores.sqlite.tables import Q, Tables

_Send = tuple[int, bytes, list[Sent]]  # queue id, retry key, answer
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Send]).decode
_FORGOTTEN_AT_ONCE = 2_000


class Repeats:
    """The sends that are known, the oldest forgotten first."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._known: dict[tuple[int, bytes], tuple[int, list[Sent]]] = {}
        self._order: deque[tuple[int, tuple[int, bytes], int]] = (
            deque()
        )  # until when, which, how many messages
        self._messages = 0
        self._fresh: list[_Send] = []  # of the open transaction
        tables.when_loaded(self._load)
        tables.when_committing(self._write)

    def find(self, queue_id: int, retry_key: bytes, now_ms: int) -> list[Sent] | None:
        """What the first of the repeated sends was answered with."""
        found = self._known.get((queue_id, retry_key))
        return None if found is None or now_ms >= found[0] else found[1]

    def remember(self, queue_id: int, retry_key: bytes, sent: list[Sent], now_ms: int) -> None:
        """Know the send from now on, if the transaction that stored it is committed."""
        self._fresh.append((queue_id, retry_key, sent))
        self._keep(now_ms + REPEATED_SEND_MS, (queue_id, retry_key), sent)

    def forget_old(self, now_ms: int) -> None:
        """Drop a bounded number of rows that are too old, or whose sends were pushed out by later ones."""
        while self._order and self._order[0][0] <= now_ms:
            self._drop_first()
        known_since_ms = (self._order[0][0] if self._order else now_ms) - REPEATED_SEND_MS
        self._tables.execute(Q.forget_sends, (first_seq_of(known_since_ms), _FORGOTTEN_AT_ONCE))

    def _write(self) -> None:
        if self._fresh:
            tables = self._tables
            tables.execute(
                Q.remember_send, (tables.sequence.next(tables.clock.now_ms()), _encode(self._fresh))
            )
            self._fresh = []

    def _load(self) -> None:
        self._known.clear()
        self._order.clear()
        self._messages, self._fresh = 0, []
        oldest = first_seq_of(max(0, self._tables.clock.now_ms() - REPEATED_SEND_MS))
        latest, messages = list[tuple[int, list[_Send]]](), 0
        for seq, packed in self._tables.execute(Q.latest_sends, (oldest,)):
            sends = _decode(packed)
            latest.append((instant_of(seq) + REPEATED_SEND_MS, sends))
            messages += sum(len(sent) for _, _, sent in sends)
            if messages >= REPEATED_MESSAGES_MAX:
                break
        for until_ms, sends in reversed(latest):
            for queue_id, retry_key, sent in sends:
                self._keep(until_ms, (queue_id, retry_key), sent)

    def _keep(self, until_ms: int, key: tuple[int, bytes], sent: list[Sent]) -> None:
        self._known[key] = (until_ms, sent)
        self._order.append((until_ms, key, len(sent)))
        self._messages += len(sent)
        while self._messages > REPEATED_MESSAGES_MAX:
            self._drop_first()

    def _drop_first(self) -> None:
        until_ms, key, count = self._order.popleft()
        self._messages -= count
        known = self._known.get(key)
        if known is not None and known[0] == until_ms:
            del self._known[key]
