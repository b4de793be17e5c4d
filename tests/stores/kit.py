"""The stores that are tested, how each is opened, and builders for what the sentences leave out."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests import postgres_kit
from veil.core.clock import Clock, Trouble
from veil.core.message import NewMessage, StoredMessage
from veil.core.queue import Queue, QueueKey, QueueSettings, RedrivePolicy
from veil.core.receipt import Receipt
from veil.stores.store import QueueContent, Store

REGION, ACCOUNT = "eu-central-1", "000000000000"


class StoreKind(NamedTuple):
    """A store under test: how to make one on a directory, and whether that directory outlives it."""

    make: Callable[..., Store]  # (directory, clock, and what the constructor of every store takes)
    durable: bool


def _memory(directory: Path, clock: Clock, **given: Any) -> Store:
    from veil.stores.memory import MemoryStore

    return MemoryStore(clock, **given)


def _sqlite(directory: Path, clock: Clock, **given: Any) -> Store:
    from veil.stores.sqlite import SqliteStore

    return SqliteStore(directory, clock, **given)


def _postgres(directory: Path, clock: Clock, **given: Any) -> Store:
    import pytest

    reason = postgres_kit.why_no_postgres()
    if reason is not None:
        pytest.skip(reason)
    from veil.stores.postgres import PostgresStore, engine

    engine.COMPACT_AFTER = 20  # type: ignore[misc]  # so that it happens in tests at all
    return PostgresStore(postgres_kit.database_of(directory), clock, **given)


def _sharded(directory: Path, clock: Clock, **given: Any) -> Store:
    import pytest

    reason = postgres_kit.why_no_postgres()
    if reason is not None:
        pytest.skip(reason)
    from tests.stores.sharded_kit import CarriedAtOnce

    dsns = [postgres_kit.database_of(directory / name) for name in ("one", "two")]
    return CarriedAtOnce(dsns, clock, **given)


def _remote(directory: Path, clock: Clock, **given: Any) -> Store:
    from veil.core.receipt import ReceiptBook
    from veil.stores.memory import MemoryStore
    from veil.stores.remote import STORE_METHODS, Link, RemoteStore, ServedStore

    class Remote(RemoteStore):
        """A remote store with its other end in the same process, and with what that end keeps to itself: time and events."""

        async def open(self) -> None:
            inner = self.inner = MemoryStore(clock, **given)
            inner.events = self.events
            await inner.open()
            self.receipts, self.store_id = inner.receipts, inner.store_id
            ours, theirs = socket.socketpair()
            connect = asyncio.get_running_loop().create_connection
            served = Served(inner, self)
            await connect(lambda: Link((), STORE_METHODS, served, find_queue=inner.find_queue), sock=theirs)
            _, self.link = await connect(lambda: Link(STORE_METHODS, (), None), sock=ours)

        def next_due_ms(self) -> int | None:
            return self.inner.next_due_ms()

        async def close(self) -> None:
            await super().close()
            await self.inner.close()

    class Served(ServedStore):
        """Has its one remote forget what changes."""

        def __init__(self, store: Store, remote: RemoteStore) -> None:
            super().__init__(store)
            self._remote = remote

        async def swap_content(self, queue: Queue, *given: Any) -> Queue:
            edited = await super().swap_content(queue, *given)
            self._remote.forget_queue(queue.key)
            return edited

        async def delete_queue(self, queue: Queue, **given: Any) -> None:
            await self._store.delete_queue(queue, **given)
            self._remote.forget_queue(queue.key)

    return Remote(ReceiptBook(b""), "")


# One line makes another store answer to every test here and to the model.
STORES = {
    "memory": StoreKind(_memory, durable=False),
    "remote": StoreKind(_remote, durable=False),
    "sqlite": StoreKind(_sqlite, durable=True),
    "postgres": StoreKind(_postgres, durable=True),
}
if os.environ.get(
    "VEIL_TEST_SHARDED"
):  # the whole suite on two servers takes its time: `make faults` does it
    STORES["sharded"] = StoreKind(_sharded, durable=True)


class HeardEvents:
    """Remembers what a store told its owner."""

    def __init__(self) -> None:
        self.available: Counter[int] = Counter()
        self.totals: Counter[tuple[str, int]] = Counter()
        self.sooner = 0
        self.troubles: list[Trouble] = []

    def messages_available(self, queue_id: int, count: int) -> None:
        self.available[queue_id] += count

    def counted(self, event: str, queue_id: int, count: int) -> None:
        self.totals[event, queue_id] += count

    def due_sooner(self) -> None:
        self.sooner += 1

    def troubled(self, trouble: Trouble) -> None:
        self.troubles.append(trouble)


_numbers = itertools.count(1)


def a_key(name: str) -> QueueKey:
    return QueueKey(REGION, ACCOUNT, name)


def a_message(body: str = "hello", **given: Any) -> NewMessage:
    """A message with an id of its own; on FIFO queues give at least a group and a deduplication id."""
    number = next(_numbers)
    given.setdefault("message_id", f"00000000-0000-4000-8000-{number:012d}")
    return NewMessage(body=body, body_md5=hashlib.md5(body.encode()).hexdigest(), **given)


def a_grouped_message(body: str, group: str = "g", **given: Any) -> NewMessage:
    """A message for a FIFO queue that is no duplicate of any other."""
    given.setdefault("deduplication_id", f"d{next(_numbers)}")
    return a_message(body, group=group, **given)


def some_messages(*bodies: str) -> list[NewMessage]:
    return [a_message(body) for body in bodies]


def receipt_of(queue: Queue, message: StoredMessage) -> Receipt:
    return Receipt(queue.id, message.seq, message.delivery)


def receipts_of(queue: Queue, messages: list[StoredMessage]) -> list[Receipt]:
    return [receipt_of(queue, message) for message in messages]


def bodies(messages: list[StoredMessage]) -> list[str]:
    return [message.body for message in messages]


def redrive_to(name: str, receives_max: int) -> RedrivePolicy:
    return RedrivePolicy(a_key(name), receives_max)


async def make_queue(store: Store, name: str = "orders", **settings: Any) -> Queue:
    """A queue of that name; one that ends in .fifo is FIFO."""
    settings.setdefault("fifo", name.endswith(".fifo"))
    return await store.create_queue(a_key(name), QueueContent(QueueSettings(**settings), {}), rest_ms=60_000)
