"""What goes to PostgreSQL comes back as it was, and a statement that fails leaves a connection that works."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veil.core.lease import State
from veil.stores.postgres.pipeline import PipelinedConnection, array

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)


@pytest.fixture
async def pipeline(postgres):
    async with await PipelinedConnection.connect(postgres, autocommit=True) as connection:
        yield connection


def test_lists_are_written_as_arrays():
    assert array([1, None, -3]) == "{1,NULL,-3}"
    assert array(["a", None, 'say "x"', "back\\slash", "", "NULL", "{,}"]) == (
        '{"a",NULL,"say \\"x\\"","back\\\\slash","","NULL","{,}"}'
    )
    assert array([b"\x00\xff", None]) == '{"\\\\x00ff",NULL}'
    assert array([State.IN_FLIGHT, State.VISIBLE]) == "{2,0}"
    assert array([True, False]) == "{True,False}"
    assert array([None, None]) == "{NULL,NULL}"
    assert array([]) == "{}"
    with pytest.raises(TypeError, match="expected a number, a text or bytes"):
        array([1.5])


async def test_every_kind_of_argument_comes_back_as_it_was(pipeline):
    given = {
        "number": 2**62,
        "text": "ünï \\ \"x\" 'y' %",
        "blob": bytes(range(256)),
        "yes": True,
        "none": None,
        "numbers": [1, None, 2**40],
        "texts": ["a", None, 'b"\\{},NULL', ""],
        "blobs": [b"", b"\x00\\\xff", None],
    }

    [[row]] = await pipeline.exchange(
        [
            (
                "SELECT %(number)s::bigint, %(text)s::text, %(blob)s::bytea, %(yes)s::bool, %(none)s::text,"
                " %(numbers)s::bigint[], %(texts)s::text[], %(blobs)s::bytea[], '%%'",
                given,
            )
        ]
    )

    assert row == (*given.values(), "%")


async def test_texts_survive_in_arrays_whatever_is_in_them(pipeline):
    found: list[list[str]] = []

    @given(st.lists(texts | st.none(), min_size=1, max_size=8))
    @settings(max_examples=60, database=None)
    def collect(values):
        found.append(values)

    collect()
    for values in found:
        [[(back,)]] = await pipeline.exchange([("SELECT %(texts)s::text[]", {"texts": values})])
        assert back == values


async def test_statements_of_one_round_trip_see_one_another(pipeline):
    answers = await pipeline.exchange([("BEGIN", {}), ("CREATE TABLE t (n int)", {}), ("COMMIT", {})])
    assert answers == [[], [], []]

    *_, rows = await pipeline.exchange(
        [
            ("BEGIN", {}),
            ("INSERT INTO t SELECT n FROM unnest(%(some)s::int[]) n", {"some": [3, 1, 2]}),
            ("INSERT INTO t VALUES (%(n)s)", {"n": 4}),
            ("SELECT n FROM t ORDER BY n", {}),
        ]
    )

    assert rows == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize("times", [1, 3])
async def test_a_statement_that_fails_undoes_its_round_trip_and_the_connection_goes_on(pipeline, times):
    await pipeline.exchange([("CREATE TABLE t (n int PRIMARY KEY)", {})])
    for _ in range(times):
        with pytest.raises(psycopg.errors.UniqueViolation):
            await pipeline.exchange(
                [
                    ("BEGIN", {}),
                    ("INSERT INTO t VALUES (%(n)s)", {"n": 1}),
                    ("INSERT INTO t VALUES (%(n)s)", {"n": 1}),
                    ("SELECT 1", {}),
                    ("COMMIT", {}),
                ]
            )
        await pipeline.rollback()

    assert await pipeline.exchange([("SELECT count(*) FROM t", {})]) == [[(0,)]]


async def test_an_argument_that_cannot_be_sent_leaves_the_connection_as_it_was(pipeline):
    with pytest.raises(psycopg.DataError, match="NUL"):
        await pipeline.exchange([("SELECT 1", {}), ("SELECT %(x)s::text", {"x": "a\x00b"})])
    with pytest.raises(TypeError, match=r"x=1\.5: expected a number"):
        await pipeline.exchange([("SELECT %(x)s::float", {"x": 1.5})])

    assert await pipeline.exchange([("SELECT 1", {})]) == [[(1,)]]


async def test_a_round_trip_larger_than_any_buffer_gets_through_both_ways(pipeline):
    large = "x" * (8 << 20)

    answers = await pipeline.exchange([("SELECT %(x)s::text", {"x": large})] * 3)

    assert [len(rows[0][0]) for rows in answers] == [8 << 20] * 3


async def test_a_connection_that_is_cut_under_way_is_an_error_of_the_connection(pipeline, postgres):
    [[(pid,)]] = await pipeline.exchange([("SELECT pg_backend_pid()", {})])
    async with await psycopg.AsyncConnection.connect(postgres, autocommit=True) as other:
        await other.execute("SELECT pg_terminate_backend(%s)", (pid,))

    with pytest.raises(psycopg.OperationalError):
        for _ in range(3):
            await pipeline.exchange([("SELECT 1", {})] * 5)


async def test_who_is_cancelled_again_while_the_server_is_asked_to_stop_has_not_gone_on(
    pipeline, monkeypatch
):
    asked = asyncio.Event()

    async def never(*, timeout: float) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(pipeline, "_try_cancel", never)  # as of a server that is frozen
    waiting = asyncio.ensure_future(pipeline.exchange([("SELECT pg_sleep(600)", {})]))
    await asyncio.sleep(0)
    waiting.cancel()
    await asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert pipeline.closed


async def test_a_connection_keeps_its_prepared_statements(postgres):
    async with await PipelinedConnection.connect(postgres, autocommit=True) as connection:
        for n in range(4):
            await connection.exchange([("SELECT %(n)s::bigint", {"n": n})] * 2)
        [[(prepared,)]] = await connection.exchange(
            [("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'SELECT $1%%'", {})]
        )
        assert prepared == 1
