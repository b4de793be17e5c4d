"""The contract of idempotency stores, kept by each; and the files of SQLite."""

import asyncio
import importlib.util
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from veil.consumer.idempotency import (
    Busy,
    Claimed,
    Done,
    Holder,
    IdempotencyStore,
    PostgresIdempotency,
    SqliteIdempotency,
)


class ManualWall:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def wall() -> ManualWall:
    return ManualWall()


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: Any, tmp_path: Path, wall: ManualWall) -> AsyncIterator[IdempotencyStore]:
    made: IdempotencyStore
    made = (
        SqliteIdempotency(tmp_path / "keys.db", now_ms=wall)
        if request.param == "sqlite"
        else PostgresIdempotency(request.getfixturevalue("postgres"))
    )
    yield made
    await made.close()


@pytest.fixture
def key() -> str:
    return f"orders/:{uuid.uuid4()}"


ONE, ONE_AGAIN, OTHER = Holder("m-1", 1), Holder("m-1", 2), Holder("m-2", 1)
HOUR_MS = 3_600_000


async def test_a_key_is_claimed_once(store: IdempotencyStore, key: str) -> None:
    assert await store.claim(key, ONE, hold_ms=HOUR_MS) == Claimed()
    claim = await store.claim(key, OTHER, hold_ms=HOUR_MS)
    assert isinstance(claim, Busy)
    assert 0 < claim.for_ms <= HOUR_MS


async def test_a_claim_may_be_repeated_by_its_holder(store: IdempotencyStore, key: str) -> None:
    for _ in range(2):
        assert await store.claim(key, ONE, hold_ms=HOUR_MS) == Claimed()


async def test_what_is_finished_is_done_for_everybody(store: IdempotencyStore, key: str) -> None:
    await store.claim(key, ONE, hold_ms=HOUR_MS)
    assert await store.finish(key, ONE, keep_ms=HOUR_MS)
    for holder in (ONE, ONE_AGAIN, OTHER):
        assert await store.claim(key, holder, hold_ms=HOUR_MS) == Done()


async def test_what_is_given_up_is_free(store: IdempotencyStore, key: str) -> None:
    await store.claim(key, ONE, hold_ms=HOUR_MS)
    await store.give_up(key, OTHER)
    assert isinstance(await store.claim(key, OTHER, hold_ms=HOUR_MS), Busy)
    await store.give_up(key, ONE)
    assert await store.claim(key, OTHER, hold_ms=HOUR_MS) == Claimed()


async def test_what_is_finished_cannot_be_given_up(store: IdempotencyStore, key: str) -> None:
    await store.claim(key, ONE, hold_ms=HOUR_MS)
    await store.finish(key, ONE, keep_ms=HOUR_MS)
    await store.give_up(key, ONE)
    assert await store.claim(key, OTHER, hold_ms=HOUR_MS) == Done()


async def test_the_next_delivery_of_the_same_message_takes_over_at_once(
    store: IdempotencyStore, key: str
) -> None:
    await store.claim(key, ONE, hold_ms=HOUR_MS)
    assert await store.claim(key, ONE_AGAIN, hold_ms=HOUR_MS) == Claimed()


async def test_the_earlier_delivery_can_neither_finish_nor_give_up_nor_take_back(
    store: IdempotencyStore, key: str
) -> None:
    await store.claim(key, ONE, hold_ms=HOUR_MS)
    await store.claim(key, ONE_AGAIN, hold_ms=HOUR_MS)
    assert not await store.finish(key, ONE, keep_ms=HOUR_MS)
    await store.give_up(key, ONE)
    assert isinstance(await store.claim(key, ONE, hold_ms=HOUR_MS), Busy)
    assert await store.finish(key, ONE_AGAIN, keep_ms=HOUR_MS)


async def test_keys_do_not_touch_one_another(store: IdempotencyStore, key: str) -> None:
    await store.claim(key, ONE, hold_ms=HOUR_MS)
    assert await store.claim(f"{key}2", OTHER, hold_ms=HOUR_MS) == Claimed()


async def test_of_many_who_claim_at_once_one_has_it(store: IdempotencyStore, key: str) -> None:
    claims = await asyncio.gather(
        *(store.claim(key, Holder(f"m-{number}", 1), hold_ms=HOUR_MS) for number in range(20))
    )
    assert sum(isinstance(claim, Claimed) for claim in claims) == 1


# ---- time, and the file


async def test_a_claim_and_a_memory_run_out(tmp_path: Path, wall: ManualWall) -> None:
    store = SqliteIdempotency(tmp_path / "keys.db", now_ms=wall)
    await store.claim("k", ONE, hold_ms=1_000)
    wall.ms += 999
    assert await store.claim("k", OTHER, hold_ms=1_000) == Busy(1)
    wall.ms += 1
    assert await store.claim("k", OTHER, hold_ms=1_000) == Claimed()
    assert not await store.finish("k", ONE, keep_ms=1_000)
    assert await store.finish("k", OTHER, keep_ms=5_000)
    wall.ms += 4_999
    assert await store.claim("k", ONE, hold_ms=1_000) == Done()
    wall.ms += 1
    assert await store.claim("k", ONE, hold_ms=1_000) == Claimed()
    await store.close()


async def test_an_old_delivery_does_not_take_the_claim_of_its_successor_even_when_it_has_run_out(
    tmp_path: Path, wall: ManualWall
) -> None:
    store = SqliteIdempotency(tmp_path / "keys.db", now_ms=wall)
    await store.claim("k", ONE_AGAIN, hold_ms=1_000)
    wall.ms += 5_000
    assert await store.claim("k", ONE, hold_ms=1_000) == Busy(1)
    await store.close()


async def test_two_consumers_share_a_file_and_it_outlives_them(tmp_path: Path, wall: ManualWall) -> None:
    first, second = (SqliteIdempotency(tmp_path / "keys.db", now_ms=wall) for _ in range(2))
    assert await first.claim("k", ONE, hold_ms=HOUR_MS) == Claimed()
    assert isinstance(await second.claim("k", OTHER, hold_ms=HOUR_MS), Busy)
    await first.finish("k", ONE, keep_ms=HOUR_MS)
    assert await second.claim("k", OTHER, hold_ms=HOUR_MS) == Done()
    await first.close()
    await second.close()
    third = SqliteIdempotency(tmp_path / "keys.db", now_ms=wall)
    assert await third.claim("k", OTHER, hold_ms=HOUR_MS) == Done()
    await third.close()


async def test_what_has_run_out_is_cleared_away_by_the_way(tmp_path: Path, wall: ManualWall) -> None:
    import apsw

    store = SqliteIdempotency(tmp_path / "keys.db", now_ms=wall)
    for number in range(40):
        await store.claim(f"old-{number}", ONE, hold_ms=1_000)
    wall.ms += 2_000
    for number in range(5):
        await store.claim(f"new-{number}", ONE, hold_ms=1_000)
    await store.close()
    left = apsw.Connection(str(tmp_path / "keys.db")).execute("SELECT count(*) FROM idempotency_keys").get
    assert left == 5


async def test_a_file_that_cannot_be_opened_says_so_and_may_be_tried_again(tmp_path: Path) -> None:
    import apsw

    store = SqliteIdempotency(tmp_path / "missing" / "keys.db")
    with pytest.raises(apsw.CantOpenError):
        await store.claim("k", ONE, hold_ms=HOUR_MS)
    (tmp_path / "missing").mkdir()
    assert await store.claim("k", ONE, hold_ms=HOUR_MS) == Claimed()
    await store.close()


async def test_a_closed_store_refuses(tmp_path: Path) -> None:
    store = SqliteIdempotency(tmp_path / "keys.db")
    await store.close()
    with pytest.raises(RuntimeError):
        await store.claim("k", ONE, hold_ms=HOUR_MS)


@pytest.mark.skipif(importlib.util.find_spec("psycopg") is not None, reason="psycopg is installed")
def test_postgres_without_its_driver_says_what_to_install() -> None:
    with pytest.raises(ImportError, match="needs psycopg 3: pip install"):
        PostgresIdempotency("dbname=x")
