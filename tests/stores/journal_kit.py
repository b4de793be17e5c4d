"""Read what a store has recorded, in words."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from veil.core.attempt import ReportedOutcome
from veil.core.event import Event, EventBatch, Kind, unpack
from veil.core.message import Caller
from veil.stores.store import ExportPlan, OutboxRow, Store

_REPORTED = Event._fields.index("outcome")
A_CALLER = Caller("000000000000", "AKIATEST", "test/1.0", "192.0.2.7")


class Told(NamedTuple):
    """An event with the names of its queue and caller in it."""

    kind: str
    at_ms: int
    queue: str
    seq: int
    message_id: str | None
    delivery: int
    deadline_ms: int | None
    receive_count: int | None
    body_bytes: int | None
    message_type: str | None
    caller: Caller
    other_queue: str | None
    other_seq: int | None
    reported: ReportedOutcome | None = None


def tell(packed: bytes) -> list[Told]:
    """The events of a packed row."""
    batch = unpack(packed)
    return [_in_words(batch, event) for event in batch.events]


def _in_words(batch: EventBatch, event: Event) -> Told:
    kind, at_ms, queue, *facts, caller, other_queue, other_seq = event[:_REPORTED]
    there = None if other_queue is None else batch.queues[other_queue].name
    return Told(
        Kind(kind).label,
        at_ms,
        batch.queues[queue].name,
        *facts,
        caller=batch.callers[caller],
        other_queue=there,
        other_seq=other_seq,
        reported=None if event.outcome is None else ReportedOutcome(*event[_REPORTED:]),
    )


async def exported(store: Store) -> list[Told]:
    """Everything that was recorded and not yet read, taken out as an exporter would."""
    told: list[Told] = []
    while plan := await plan_of(store):
        told += [event for row in await rows_of(store, plan) for event in tell(row.packed)]
        await store.finish_export(plan)
    return told


async def plan_of(store: Store, rows_max: int = 1_000, bytes_max: int = 1 << 20) -> ExportPlan | None:
    await _others_are_over(store)
    return await store.plan_export(rows_max=rows_max, bytes_max=bytes_max)


async def _others_are_over(store: Store) -> None:
    """Wait for what is under way in other tests' databases: a plan waits for every older transaction of the server."""
    engine = getattr(store, "_engine", None)
    if hasattr(engine, "ask"):
        [(ours,)] = await engine.ask("SELECT pg_current_xact_id()::text", {})
        over = "SELECT pg_snapshot_xmin(pg_current_snapshot()) > %(xid)s::xid8"
        while not (await engine.ask(over, {"xid": ours}))[0][0]:
            await asyncio.sleep(0.005)


async def rows_of(store: Store, plan: ExportPlan, page: int = 7) -> list[OutboxRow]:
    """All rows of a plan, in small pages."""
    found: list[OutboxRow] = []
    while rows := await store.outbox_rows(plan, after=found[-1].number if found else 0, limit=page):
        found += rows
    return found


async def swept(store: Store) -> None:
    """Wait until the messages of deleted queues are gone, where a store removes them afterwards."""
    servers = getattr(store, "_by_number", {0: store})
    sweepers = [getattr(server, "_sweeper", None) for server in servers.values()]
    await asyncio.gather(*filter(None, sweepers), return_exceptions=True)


def kinds(told: list[Told]) -> list[str]:
    return [event.kind for event in told]
