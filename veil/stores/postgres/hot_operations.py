"""The operations that share transactions: send, receive, delete and extend.

Each knows how to do its work in a transaction of the engine by itself. Those on plain standard queues also know what they
want read with BEGIN, so that a whole group of them costs two round trips (`plain_group`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from veil.core.message import Caller, NewMessage
from veil.core.queue import Queue
from veil.core.receipt import Receipt
from veil.stores.postgres import leases, receiving, sending
from veil.stores.postgres.transaction import Transaction
from veil.stores.store import Extension


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False, kw_only=True)
class Operation:
    """Something that one caller asked for, and waits for."""

    queue: Queue
    caller: Caller
    answer: asyncio.Future[Any] = field(default_factory=_future)

    @property
    def moves_spent(self) -> bool:
        """Whether it may move messages to the dead letters."""
        return False

    @property
    def gives_groups(self) -> bool:
        """Whether it may bring the first message with a group."""
        return False

    @property
    def numbers(self) -> int:
        """How many order keys it needs."""
        return 0

    async def work(self, tx: Transaction) -> Any:
        """Do it; a refusal is raised before anything was changed, since others share the transaction."""
        raise NotImplementedError


@dataclass(slots=True, eq=False, kw_only=True)
class Send(Operation):
    """Store messages."""

    messages: Sequence[NewMessage]
    retry_key: bytes | None

    @property
    def gives_groups(self) -> bool:
        return any(message.group is not None for message in self.messages)

    @property
    def numbers(self) -> int:
        return len(self.messages)

    async def work(self, tx: Transaction) -> Any:
        return await sending.send(tx, self.queue, self.messages, self.retry_key, self.caller)


@dataclass(slots=True, eq=False, kw_only=True)
class Receive(Operation):
    """Take messages."""

    count: int
    visibility_s: int | None
    attempt_id: str | None

    @property
    def moves_spent(self) -> bool:
        return True

    async def work(self, tx: Transaction) -> Any:
        return await receiving.receive(
            tx, self.queue, self.count, self.visibility_s, self.attempt_id, self.caller
        )


@dataclass(slots=True, eq=False, kw_only=True)
class Delete(Operation):
    """Delete by receipt."""

    receipts: Sequence[Receipt]
    strict: bool

    async def work(self, tx: Transaction) -> Any:
        return await leases.delete(tx, self.queue, self.receipts, self.strict, self.caller)


@dataclass(slots=True, eq=False, kw_only=True)
class Extend(Operation):
    """Change visibility by receipt."""

    extensions: Sequence[Extension]

    async def work(self, tx: Transaction) -> Any:
        return await leases.extend(tx, self.queue, self.extensions, self.caller)
