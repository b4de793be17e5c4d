"""What a PostgreSQL does as one of several under the same queues (`stores/sharded.py`): it has a number, the first of them knows
where each queue lives, and messages come over from the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import psycopg

from veil.core.errors import StoreError
from veil.core.message import StoredMessage
from veil.core.queue import Queue
from veil.core.sequence import wake_at_ms
from veil.stores.postgres import queues
from veil.stores.postgres.messages import messages_by_seq
from veil.stores.postgres.pipeline import Q
from veil.stores.postgres.transaction import Transaction
from veil.stores.sql import encode_attributes

# Order keys are unique over all servers: the lowest bits of their counters are the server's number.
SERVERS_MAX: Final = 64
# Queues too: each server has its own span of their ids, which are 31 bits wide.
QUEUES_MAX: Final = 2**31 // SERVERS_MAX
# A node that slept longer between its look at messages and their arrival must look again: what it saw may have arrived since.
CARRY_WITHIN_MS: Final = 10 * 60_000
_KEPT_MS: Final = 60 * 60_000

# What of a message goes along; nobody holds one that comes over.
_CARRIED: Final = frozenset(StoredMessage.__struct_fields__) - {"received_at_ms", "holder"}


def server_of(queue_id: int) -> int:
    """The number of the server on which a queue lives."""
    return queue_id // QUEUES_MAX


async def number(connection: psycopg.AsyncConnection, store_id: str) -> int:
    """The number of a server, on the first one: it is given the next where it has none."""
    async with connection.transaction():
        await connection.execute("LOCK TABLE veil.server")
        await connection.execute(Q.add_server, {"store_id": store_id})
        row = await (await connection.execute(Q.number_of_server, {"store_id": store_id})).fetchone()
    assert row is not None
    return int(row[0])


async def take_number(connection: psycopg.AsyncConnection, home: str, number: int) -> None:
    """Let a server keep to its number from now on; raises StoreError where it cannot be one of these servers."""
    async with connection.transaction():
        await connection.execute("LOCK TABLE veil.meta")
        row = await (await connection.execute(Q.read_meta, {"name": "home"})).fetchone()
        if row is not None:
            if bytes(row[0]).decode() != home:
                raise StoreError("the database belongs to another set of servers, whose first is another one")
            return
        row = await (await connection.execute(Q.has_queues)).fetchone()
        if number and row is not None and row[0]:
            raise StoreError(
                "the database has queues of its own: only the first server may have some when servers are joined; "
                "use an empty database, or 'veil store copy'"
            )
        counter = await (await connection.execute("SELECT last_value FROM veil.counter")).fetchone()
        assert counter is not None
        first = (counter[0] // SERVERS_MAX + 1) * SERVERS_MAX + number
        # Numbers of ours: neither can be bound as an argument.
        await connection.execute(
            f"ALTER SEQUENCE veil.counter INCREMENT BY {SERVERS_MAX} RESTART WITH {first}".encode()
        )
        if number:
            start = number * QUEUES_MAX + 1
            await connection.execute(f"ALTER TABLE veil.queue ALTER COLUMN id RESTART WITH {start}".encode())
        await connection.execute(Q.write_meta, {"name": "home", "value": home.encode()})


# ---- messages that come over


async def adopt(tx: Transaction, queue: Queue, messages: Sequence[StoredMessage], *, seen_ms: int) -> None:
    """Store messages that were seen on another server at that time of this one's clock, those that have not arrived already."""
    state = tx.state_of(queue)
    if tx.now_ms - seen_ms > CARRY_WITHIN_MS:
        raise StoreError("the messages were looked at too long ago")
    seqs = [message.seq for message in messages]
    noted = await tx.rows(Q.note_carried, {"queue": state.id, "now_ms": tx.now_ms, "seqs": seqs})
    new = {seq for (seq,) in noted}
    settings = queue.settings
    numbers = iter(await tx.numbers(len(new)) if settings.fifo else ())
    for message in messages:
        if message.seq not in new:
            continue
        if message.group is not None and not state.has_groups:
            await queues.give_groups(tx, state)
        seq = tx.seq(state, next(numbers)) if settings.fifo else message.seq
        wake_ms = wake_at_ms(seq, message.due_at_ms, settings.retention_s)
        named = {name: getattr(message, name) for name in _CARRIED}
        named |= {"queue": state.id, "seq": seq, "wake_at_ms": wake_ms}
        tx.defer(Q.adopt_message, {**named, "attributes": encode_attributes(message.attributes)})
        tx.shift(state, None, message.state, seq, wake_ms, message.group)


async def dismiss(tx: Transaction, queue: Queue, messages: Sequence[StoredMessage]) -> None:
    """Remove messages that have arrived on another server. Nothing is told of it: to everybody else they are where they were."""
    state = tx.state_of(queue)
    left = await messages_by_seq(tx, state, sorted(message.seq for message in messages))
    if left:
        tx.defer(Q.delete_messages, {"queue": state.id, "seqs": list(left)})
    for message in left.values():
        tx.shift(state, message.state, None, message.seq, None, message.group)


async def forget_carried(tx: Transaction, queue: Queue, server: int) -> None:
    """Let go of the notes about messages of a server that has none left for the queue."""
    before_ms = tx.now_ms - _KEPT_MS
    tx.defer(Q.forget_carried, {"queue": queue.id, "before_ms": before_ms, "server": server})
