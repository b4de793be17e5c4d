"""Every test that asks for `store` is run against every store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.stores.kit import STORES, HeardEvents
from veil.core.clock import ManualClock
from veil.stores.store import Store


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def events() -> HeardEvents:
    return HeardEvents()


class OpenStores:
    """Opens a store on one directory, again and again."""

    def __init__(
        self, name: str, directory: Path, clock: ManualClock, events: HeardEvents, given: dict[str, Any]
    ) -> None:
        self._kind, self._directory, self._clock, self._events = STORES[name], directory, clock, events
        self.given = given
        self._store: Store | None = None

    async def open(self) -> Store:
        self._store = self._kind.make(self._directory, self._clock, **self.given)
        self._store.events = self._events
        await self._store.open()
        return self._store

    async def close(self) -> None:
        if self._store is not None:
            store, self._store = self._store, None
            await store.close()

    async def reopen(self) -> Store:
        await self.close()
        return await self.open()


@pytest.fixture
def given() -> dict[str, Any]:
    """What a store is made with, besides its place and its clock."""
    return {}


@pytest.fixture(params=list(STORES))
async def opener(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    clock: ManualClock,
    events: HeardEvents,
    given: dict[str, Any],
) -> AsyncIterator[OpenStores]:
    opener = OpenStores(request.param, tmp_path, clock, events, given)
    yield opener
    await opener.close()


@pytest.fixture
async def store(opener: OpenStores) -> Store:
    return await opener.open()


@pytest.fixture
def in_flight_max(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], int]:
    """Lets so few be in flight, in every store: a real queue's 120,000 take long to send."""

    def allow(count: int) -> int:
        monkeypatch.setattr("veil.core.limits.IN_FLIGHT_MAX", count)
        return count

    return allow


@pytest.fixture
def reopen(request: pytest.FixtureRequest, opener: OpenStores) -> Callable[[], Awaitable[Store]]:
    """Close the store and open another on the same data; tests that ask for it run on durable stores only."""
    return opener.reopen


# Where two servers differ from one, as docs/postgresql.md tells.
_SAME_MS = "messages of two servers that were sent in the same millisecond have no order among them"
_APART = {
    "test_an_old_letter_stands_before_the_younger_ones_already_there": _SAME_MS,
    "test_a_task_with_a_destination_moves_everything_there": _SAME_MS,
    "test_messages_in_flight_or_delayed_stay": _SAME_MS,
    "test_a_message_of_unknown_source_fails_the_task_and_stays": _SAME_MS,
    "test_an_entry_that_cannot_move_fails_alone": _SAME_MS,
    "test_a_fifo_dead_letter_is_told_with_its_new_place": "a FIFO dead letter gets its place where it arrives",
    "test_the_queue_goes_on_when_the_outbox_is_full_and_counts_what_it_lost": "each server has its share of the bound",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave restarts out where nothing is promised to survive them: not a skip, there is nothing to run."""
    items[:] = [item for item in items if not _restarts_a_forgetful_store(item)]
    for item in items:
        name, _, kind = item.name.partition("[")
        if kind == "sharded]" and name in _APART:
            item.add_marker(pytest.mark.xfail(reason=_APART[name], strict=True))


def _restarts_a_forgetful_store(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    return (
        call is not None
        and "reopen" in getattr(item, "fixturenames", ())
        and not STORES[call.params["opener"]].durable
    )
