"""What the exporter needs of a store: where recorded events wait until they are safe in a segment.

The shapes are those of the store's contract (`stores.store`), which this part may not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Plan(Protocol):
    """Which rows the next segment holds."""

    @property
    def journal_id(self) -> str: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def day(self) -> str: ...


class PackedRow(Protocol):
    """The packed events of one transaction."""

    @property
    def number(self) -> int: ...
    @property
    def packed(self) -> bytes: ...


class Waiting(Protocol):
    """How much waits."""

    @property
    def rows(self) -> int: ...
    @property
    def packed_bytes(self) -> int: ...
    @property
    def oldest_ms(self) -> int | None: ...
    @property
    def lost_events(self) -> int: ...


class Outbox(Protocol):
    """A plan is durable before it is returned; its rows never change; finishing it drops rows and plan together."""

    async def plan_export(self, *, rows_max: int, bytes_max: int) -> Plan | None: ...
    # The plan is the one that `plan_export` gave; a store knows its own kind only.
    async def outbox_rows(self, plan: Any, *, after: int = 0, limit: int = 1000) -> Sequence[PackedRow]: ...
    async def finish_export(self, plan: Any) -> None: ...
    async def outbox_size(self) -> Waiting: ...
    async def has_duty(self, duty: str) -> bool: ...
