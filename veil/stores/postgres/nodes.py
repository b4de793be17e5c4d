"""The nodes of one database: which are alive, which node has which duty, and the notifications between them.

A node writes its heartbeat every second and listens on a connection of its own. While that connection is down, the node polls
for visible messages four times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

import psycopg

from veil.core.clock import Trouble, TroubleKind
from veil.core.errors import StoreError
from veil.stores.postgres.apply import NO_MESSAGES
from veil.stores.postgres.connection import CHANNEL, Dsn, read_notice, write_notices
from veil.stores.postgres.engine import DRAIN_S, Engine
from veil.stores.postgres.leases import BEAT_GAP_MS, DEAD_AFTER_MS, SILENT
from veil.stores.postgres.pipeline import Q
from veil.stores.postgres.transaction import Transaction

_log = logging.getLogger(__name__)

BEAT_S: Final = 1.0
ALONE_BEAT_S: Final = 0.25  # while no notifications reach this node
DUTY_MS: Final = 4_000
HEARD_KEPT_MS: Final = 2 * 3_600_000  # longer than any node needs it
RECONNECT_S: Final = 0.2
RECONNECT_MAX_S: Final = 2.0
# For this many beats after a start, other nodes may not know yet that they must notify this one.
NEW_BEATS: Final = 3


class Nodes:
    """This node's membership: heartbeat, duties and notifications."""

    def __init__(self, engine: Engine, dsn: Dsn, each_second: Callable[[], Awaitable[None]]) -> None:
        self._engine, self._dsn, self._each_second = engine, dsn, each_second
        self.name = secrets.token_hex(8)
        self._tasks: list[asyncio.Task[None]] = []
        self._new_beats = NEW_BEATS
        self._troubles: list[Trouble] = []  # the latest that this node noticed
        self._noted = asyncio.Event()
        self._goes_on = False  # a trouble here is still going on, and others know only its beginning
        self._announced_ms = 0  # the end of the latest trouble that the owner knows
        self._is_usable = True  # whether the database was usable at the last beat
        engine.lease_time.on_trouble = self._note_trouble

    async def start(self) -> None:
        """Join the other nodes, which then notify this one."""
        await self._join()
        self._tasks = [asyncio.create_task(self._beat())]
        # Behind a transaction pooler LISTEN does not work, because the connection changes: the node polls instead.
        if not self._dsn.pooler:
            self._tasks.append(asyncio.create_task(self._listen()))

    async def stop(self) -> None:
        """Leave, so that other nodes do not wait until this one counts as dead."""
        await self._end_tasks()
        await self._engine.drain()
        with contextlib.suppress(StoreError, TimeoutError):  # then this node counts as dead after a while
            async with asyncio.timeout(DRAIN_S):
                await self._engine.ask(Q.leave, self._known())
                await self._engine.ask(Q.leave_duties, {"node": self.name})

    async def _end_tasks(self) -> None:
        # And forget them: a task that was cancelled while it connected keeps the half-made connection open.
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def has_duty(self, duty: str) -> bool:
        """Whether this node has the duty for the next seconds. It must ask again every second while it works."""
        named = {"duty": duty, "node": self.name, "lease_ms": DUTY_MS}
        return bool(await self._engine.ask(Q.take_duty, named))

    async def share_heard(self, packed: bytes) -> list[bytes | None]:
        """The callers that other nodes heard from, including nodes that left lately; None for a live node that shared nothing."""
        named = {"dead_after_ms": DEAD_AFTER_MS, "kept_ms": HEARD_KEPT_MS}
        rows = await self._engine.ask(Q.share_heard, {**named, "name": self.name, "packed": packed})
        return [told for (told,) in rows]

    async def probe(self) -> None:
        """Do what a send does, without a message: look at a queue, insert, and commit a change.

        It is not a heartbeat: other nodes would consider this node healthy before it has reported its trouble, and let the
        leases of its callers lapse.
        """

        async def work(tx: Transaction) -> None:
            ids = list(self._engine.queues.by_id)[:1]
            asked = {**self._engine.watermarks.as_known(ids, tx.now_ms), "wants_next": [False] * len(ids)}
            await tx.rows_of_each(
                (Q.look_at_queues, asked), (Q.insert_messages, NO_MESSAGES), (Q.touch_node, self._known())
            )

        await self._engine.run(work)

    # ---- heartbeat

    async def _join(self) -> None:
        async def take_number(tx: Transaction) -> int:
            await tx.rows(Q.lock_nodes)
            named = {"name": self.name, "dead_after_ms": DEAD_AFTER_MS}
            [(number,)] = await tx.rows(Q.take_number, named)
            for payload in write_notices(number, None, {}):
                tx.defer(Q.notify, {"payload": payload})
            return int(number)

        self._engine.node = await self._engine.run(take_number)
        await self._count_others()

    async def _count_others(self) -> None:
        named = {"name": self.name, "dead_after_ms": DEAD_AFTER_MS}
        [(others,)] = await self._engine.ask(Q.others_alive, named)
        self._engine.other_nodes = others

    async def _beat(self) -> None:
        while True:
            # A trouble that has ended here is reported at once, because the grace on other nodes counts from when they know. And
            # a node that stops receiving notifications checks at once whether the database is down.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S if self._engine.is_listening else ALONE_BEAT_S):
                    await self._noted.wait()
            self._noted.clear()
            try:
                if self._engine.lease_time.is_serving and self._engine.given_now_ms() is None:
                    with self._engine.renewals_wait():
                        await self._engine.run(self._keep_lease_time)
                if not await self._engine.ask(Q.beat, self._known()):
                    await self._join()  # this node counted as dead, and another one took its number
                await self._count_others()
                if not self._engine.is_listening or self._new_beats:
                    self._new_beats = max(0, self._new_beats - 1)
                    await self._wake_all()
                await self._each_second()
                self._log_availability(None)
            except StoreError as error:
                self._log_availability(error)
            except Exception:
                # Go on whatever it was: a node without a heartbeat counts as dead, and its leases stop lapsing.
                _log.exception("a heartbeat failed")

    def _log_availability(self, error: StoreError | None) -> None:
        """Log one line when the database goes down and one when it is back, however many connections are affected."""
        if error is not None and self._is_usable:
            _log.warning("the database cannot be used, requests are answered 503 until it can: %s", error)
        elif error is None and not self._is_usable:
            _log.warning("the database can be used again")
        self._is_usable = error is None

    def _known(self) -> dict[str, Any]:
        return {"number": self._engine.node, "name": self.name}

    async def _keep_lease_time(self, tx: Transaction) -> None:
        """Record that a node is running, each trouble that has ended, and one that is still going on here."""
        [(now_ms, beat_ms, seen_ms, *kept)] = await tx.rows(Q.hold_lease_time, SILENT)
        latest = None if kept[0] is None else Trouble(*kept)
        told = [trouble for trouble in self._troubles if latest is None or trouble.to_ms > latest.to_ms]
        if now_ms - beat_ms > BEAT_GAP_MS:
            told.append(Trouble(beat_ms, now_ms, TroubleKind.DATABASE))
            # Nodes that were alive when the database went down may reconnect later than this one and take no renewals until then.
            awaited = {
                "name": self.name,
                "since_ms": beat_ms - DEAD_AFTER_MS,
                "seen_ms": now_ms - SILENT["silent_ms"],
            }
            tx.defer(Q.await_nodes, awaited)
        elif seen_ms is not None:
            told.append(Trouble(seen_ms, now_ms, TroubleKind.NODE))
        for trouble in told:
            is_known = latest is not None and latest.kind == trouble.kind and latest.to_ms > trouble.from_ms
            latest = trouble.after(latest)
            if not is_known or (self._goes_on and trouble in self._troubles):
                _log.warning(trouble.told)
                if tx.journal is not None:
                    tx.journal.record_trouble(trouble)
        going_on = self._engine.lease_time.under_way(now_ms)
        self._goes_on = going_on is not None
        if going_on is not None:
            # The heartbeat works but renewals wait: other nodes must not let the leases of our callers lapse.
            latest = going_on.after(latest)
        # The driver sends the kind only as plain text.
        values = (None,) * 5 if latest is None else latest._replace(kind=str(latest.kind))
        named = dict(zip(Trouble._fields, values, strict=True))
        tx.defer(Q.write_lease_time, {"beat_ms": now_ms, **named})
        if latest is not None:
            self._engine.lease_time.learn(latest)
            if latest.to_ms > self._announced_ms:
                self._announced_ms = latest.to_ms
                self._engine.events().troubled(latest)

    def _note_trouble(self, trouble: Trouble) -> None:
        earlier = self._troubles[-9:]
        if earlier and earlier[-1].kind == trouble.kind and earlier[-1].to_ms >= trouble.from_ms:
            # Every caller that waited reports the same trouble: it is one, from the first of them on.
            trouble = trouble._replace(from_ms=min(trouble.from_ms, earlier.pop().from_ms))
        self._troubles = [*earlier, trouble]
        self._noted.set()

    async def _wake_all(self) -> None:
        """Announce all visible messages to waiting receives, because earlier notifications did not reach this node."""
        events = self._engine.events()
        for queue_id, visible in await self._engine.ask(Q.visible_anywhere, {}):
            events.messages_available(queue_id, visible)

    # ---- listening

    async def _listen(self) -> None:
        pause_s = RECONNECT_S
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(self._dsn.text, **self._dsn.options())
                async with connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    await self._caught_up()
                    pause_s = RECONNECT_S
                    async for notification in connection.notifies():
                        await self._on_notification(notification.payload)
            except (psycopg.Error, OSError, StoreError) as error:
                if self._engine.is_listening:
                    self._noted.set()
                    _log.warning("other nodes cannot be heard, looking for ourselves meanwhile: %s", error)
            finally:
                self._engine.is_listening = False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RECONNECT_MAX_S)

    async def _caught_up(self) -> None:
        """Catch up with what was announced before LISTEN took effect."""
        await self._engine.refresh_queues()
        await self._wake_all()
        self._engine.is_listening = True

    async def _on_notification(self, payload: str) -> None:
        notice = read_notice(payload)
        if notice is None or notice.node == self._engine.node:
            return
        self._engine.other_nodes = max(1, self._engine.other_nodes)
        events = self._engine.events()
        for queue_id, count in notice.wakes.items():
            events.messages_available(queue_id, count)
        if notice.epoch is not None and notice.epoch > self._engine.queues.epoch:
            await self._engine.refresh_queues()
