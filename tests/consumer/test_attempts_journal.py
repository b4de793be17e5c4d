"""A consumer that records its own attempts: the tables tell of them what a server's journal would."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.handler_kit import ManualTime, a_message
from tests.pipeline.journal_kit import no_spark
from tests.pipeline.tables_kit import all_rows
from veil import Consumer, Retry
from veil.consumer import attempts_journal
from veil.consumer.attempts_journal import AttemptsJournal
from veil.consumer.outcomes import Delete
from veil.consumer.settings import SettingsError
from veil.core.queue import QueueKey
from veil.journal.segments import gaps, list_segments
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.run import run_lifecycles
from veil.testing import ConsumerHarness, VeilServer


def consumed(server: VeilServer, place: Path, bodies: list[str], **given: Any) -> None:
    """Send the bodies, and run a consumer with a journal until each was handled once."""
    sqs = server.client()
    url = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "30"})["QueueUrl"]
    for body in bodies:
        attribute = {"type": {"DataType": "String", "StringValue": "order.paid"}}
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attribute)
    app = Consumer("orders", endpoint=server.endpoint_url, region="us-east-1", journal=str(place), **given)
    asyncio.run(until_handled(app, len(bodies)))


async def until_handled(app: Consumer, messages: int) -> None:
    done = asyncio.Event()
    seen: set[str] = set()

    @app.handler
    async def work(body: str) -> None:
        seen.add(body)
        if len(seen) == messages:
            done.set()
        if body == "bad":
            raise Retry("not now", after_s=600)

    async with app:
        await done.wait()


def test_attempts_are_told_as_a_server_would_tell_them(tmp_path: Path):
    with VeilServer() as server:
        consumed(server, tmp_path / "journal", ["good", "bad", "well"])
    journal, tables = Storage.at(tmp_path / "journal"), Storage.at(tmp_path / "tables")
    assert not gaps(list_segments(journal))
    run_lifecycles(no_spark, journal, tables)
    leases = all_rows(tables)["leases"]
    assert sorted(each["outcome"] for each in leases) == ["completed", "completed", "failed"]
    assert {(each["queue"], each["region"], each["account"]) for each in leases} == {
        ("orders", "us-east-1", "000000000000")
    }
    assert {each["message_type"] for each in leases} == {"order.paid"}
    for each in leases:
        assert each["first_deadline"] - each["received_at"] == 30_000
        assert 0 <= each["processing_ms"] < 30_000
        assert each["receive_count"] == 1


def test_what_a_receive_waited_for_its_message_is_no_time_of_work(tmp_path: Path):
    time = ManualTime()
    place, queue = tmp_path / "journal", QueueKey("us-east-1", "000000000000", "orders")
    journal = AttemptsJournal(str(place), queue, wall=lambda: 1_790_000_000 + time())
    journal.start()
    message = a_message("x", time=time, visibility_s=30)
    time.advance(15)  # it came after a wait of fifteen seconds
    journal.received(message)
    time.advance(20)
    journal.ended(message, Delete())
    journal.stop()
    tables = Storage.at(tmp_path / "tables")
    run_lifecycles(no_spark, Storage.at(place), tables)
    (lease,) = all_rows(tables)["leases"]
    assert (lease["outcome"], lease["how"], lease["processing_ms"]) == ("completed", "deleted", 20_000)


async def test_what_a_stop_gives_back_is_told_as_given_back(tmp_path: Path):
    app = Consumer("orders", concurrency=1, prefetch=5)

    @app.handler
    async def work(body: str) -> None:
        await harness.sleep(3_600)

    async with ConsumerHarness(app) as harness:
        await harness.stop()
        app.configure(journal=str(tmp_path / "journal"))  # in which a harness writes nothing by itself
        await harness.start()
        for number in range(3):
            await harness.send(str(number))
        await harness.settle()
        assert (harness.running, harness.runner.dispatch.waiting) == (1, 2)
        await harness.stop(drain_for_s=1)  # which interrupts the handler
        assert len(await harness.visible()) == 3
    tables = Storage.at(tmp_path / "tables")
    run_lifecycles(no_spark, Storage.at(tmp_path / "journal"), tables)
    assert [each["outcome"] for each in all_rows(tables)["leases"]] == ["given_back"] * 3


def test_two_consumers_share_a_place(tmp_path: Path):
    with VeilServer() as server:
        consumed(server, tmp_path / "journal", ["one"])
        consumed(server, tmp_path / "journal", ["two"])
    journal, tables = Storage.at(tmp_path / "journal"), Storage.at(tmp_path / "tables")
    assert len({each.journal_id for each in list_segments(journal)}) == 2
    run_lifecycles(no_spark, journal, tables)
    assert [each["outcome"] for each in all_rows(tables)["leases"]] == ["completed", "completed"]


def test_what_had_to_be_dropped_is_missing_from_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attempts_journal, "EVENTS_MAX", 4)
    journal = AttemptsJournal(str(tmp_path), QueueKey("us-east-1", "000000000000", "orders"))
    journal.start()
    for _ in range(10):
        journal.received(a_message("x"))
    journal.stop()
    (gap,) = gaps(list_segments(Storage.at(tmp_path)))
    assert gap.first == gap.last


def test_a_place_that_is_another_stores_journal_is_refused(tmp_path: Path):
    (tmp_path / "_journal.json").write_text('{"store_id": "another", "version": 2}')
    with VeilServer() as server, pytest.raises(SettingsError, match="journal of another store"):
        consumed(server, tmp_path, ["x"])
