"""How the sink talks to a service that throttles, loses answers or refuses: each entry is tried again on its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.sqs_kit import Talk, bad_server, forget_aws, http
from veil.core.message_rules import Draft
from veil.pipeline.queues import QueueAddress
from veil.pipeline.sink.sender import RowBatch, RowBatcher, Sender, SinkFailed, SinkRow

URL = "http://127.0.0.1/000000000000/orders"
Answer = Callable[[int, list[dict[str, Any]]], tuple[int, dict[str, Any]]]


@pytest.fixture(autouse=True)
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_aws(monkeypatch, tmp_path)


class Heard:
    """The calls that came: bodies and name of each."""

    def __init__(self) -> None:
        self.bodies: list[list[str]] = []
        self.names: list[str] = []


@contextmanager
def service(answer: Answer, *offers: str) -> Iterator[tuple[Sender, Heard]]:
    """A service whose answer to the how-manieth SendMessageBatch is made by a function, and a sender to it."""
    heard, ready, done = Heard(), threading.Event(), threading.Event()
    endpoint: list[str] = []

    async def behave(talk: Talk) -> None:
        while True:
            given = await talk.request()
            if "Entries" not in given:
                talk.say(http(200, {"QueueUrl": URL}, *offers))
                continue
            heard.bodies.append([entry["MessageBody"] for entry in given["Entries"]])
            heard.names.append(talk.header("amz-sdk-invocation-id"))
            status, body = answer(len(heard.bodies), given["Entries"])
            talk.say(http(status, body))

    async def run() -> None:
        async with bad_server(behave) as url:
            endpoint.append(url)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    ready.wait()
    sender = Sender(QueueAddress("", endpoint[0], "us-east-1"))
    try:
        assert sender.url("orders", 1.0) == URL
        yield sender, heard
    finally:
        sender.close()
        done.set()
        thread.join()


def rows(*bodies: str) -> list[SinkRow]:
    return [SinkRow(at, "orders", Draft(body)) for at, body in enumerate(bodies)]


def all_well(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Successful": [{"Id": e["Id"], "MessageId": "m", "MD5OfMessageBody": ""} for e in entries]}


def failed(entry: dict[str, Any], code: str, *, sender: bool = False) -> dict[str, Any]:
    return {"Id": entry["Id"], "Code": code, "Message": "so it is", "SenderFault": sender}


def test_only_the_entries_that_failed_are_sent_again():
    def answer(number: int, entries: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        if number == 1:
            return 200, {**all_well(entries[:1]), "Failed": [failed(entries[1], "InternalError")]}
        return 200, all_well(entries)

    with service(answer) as (sender, heard):
        sent, refused = sender.begin([[RowBatch("orders", rows("a", "b", "c"))]], "w/0", 8, 5.0).result()

    assert heard.bodies == [["a", "b", "c"], ["b", "c"]]  # of c the answer said nothing
    assert (dict(sent), refused) == ({"orders": 3}, [])


def test_a_service_that_offers_it_gets_a_hundred_a_call_and_a_node_that_refuses_them_ten():
    def answer(number: int, entries: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        if number == 2:
            return 400, {"__type": "com.amazonaws.sqs#TooManyEntriesInBatchRequest", "message": "ten"}
        return 200, all_well(entries)

    with service(answer, "x-veil-bulk: 100") as (sender, heard):
        cutter = RowBatcher(8, sender.entries_max)
        for row in rows(*(str(n) for n in range(120))):
            cutter.add(row)
        sent, refused = sender.begin(cutter.rest(), "w/0", 1, 5.0).result()

    assert [len(bodies) for bodies in heard.bodies] == [100, 20, 10, 10]
    assert (sent["orders"], refused) == (120, [])


def test_rows_are_cut_by_ten_where_nothing_more_is_offered_or_a_queue_is_given_by_its_url():
    with service(lambda number, entries: (200, all_well(entries)), "x-veil-bulk: 100") as (sender, _):
        assert sender.url(URL, 1.0) == URL
        assert (sender.entries_max("orders"), sender.entries_max(URL)) == (100, 10)
    with service(lambda number, entries: (200, all_well(entries))) as (sender, _):
        assert sender.entries_max("orders") == 10


def test_a_throttled_call_is_repeated_under_its_name():
    def answer(number: int, entries: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        if number < 3:
            return 400, {"__type": "com.amazonaws.sqs#RequestThrottled", "message": "slower"}
        return 200, all_well(entries)

    with service(answer) as (sender, heard):
        sent, _ = sender.begin([[RowBatch("orders", rows("a", "b"))]], "w/0", 8, 5.0).result()
        sender.begin([[RowBatch("orders", rows("a", "b"))]], "w/1", 8, 5.0).result()

    assert sent["orders"] == 2
    assert len(set(heard.names[:3])) == 1
    assert heard.names[3] != heard.names[0]


def test_an_entry_that_is_refused_does_not_hold_up_the_others():
    def answer(number: int, entries: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        bad = [entry for entry in entries if entry["MessageBody"] == "bad"]
        good = [entry for entry in entries if entry["MessageBody"] != "bad"]
        return 200, {
            **all_well(good),
            "Failed": [failed(e, "InvalidMessageContents", sender=True) for e in bad],
        }

    with service(answer) as (sender, heard):
        sent, refused = sender.begin([[RowBatch("orders", rows("a", "bad", "c"))]], "w/0", 8, 5.0).result()

    assert sent["orders"] == 2
    assert [(row.ordinal, reason) for row, reason in refused] == [(1, "InvalidMessageContents: so it is")]
    assert len(heard.bodies) == 1


def test_a_call_that_is_refused_as_a_whole_is_taken_apart_to_find_who_is_to_blame():
    def answer(number: int, entries: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        if any(entry["MessageBody"] == "bad" for entry in entries):
            return 400, {"__type": "com.amazonaws.sqs#InvalidParameterValue", "message": "no"}
        return 200, all_well(entries)

    with service(answer) as (sender, heard):
        sent, refused = sender.begin([[RowBatch("orders", rows("a", "bad", "c"))]], "w/0", 8, 5.0).result()

    assert heard.bodies == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]
    assert (sent["orders"], [row.ordinal for row, _ in refused]) == (2, [1])


def test_a_service_that_stays_away_ends_the_write_when_the_time_for_retries_is_over():
    with (
        service(lambda number, entries: (503, {})) as (sender, heard),
        pytest.raises(SinkFailed, match=r"queue orders: 2 messages could not be sent within 0\.3 s"),
    ):
        sender.begin([[RowBatch("orders", rows("a", "b"))]], "w/0", 8, 0.3).result()

    assert len(heard.bodies) > 1


def test_a_queue_that_is_gone_ends_the_write_at_once():
    gone = {"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "gone"}
    with service(lambda number, entries: (400, gone)) as (sender, heard):
        with pytest.raises(SinkFailed, match="gone"):
            sender.begin([[RowBatch("orders", rows("a", "b"))]], "w/0", 8, 30.0).result()
        assert len(heard.bodies) == 1


def test_so_many_calls_are_in_flight_and_no_more():
    together, most = 0, 0

    def answer(number: int, entries: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        return 200, all_well(entries)

    with service(answer) as (sender, _):
        original = sender._call

        async def counted(*args: Any) -> Any:
            nonlocal together, most
            together += 1
            most = max(most, together)
            try:
                return await original(*args)
            finally:
                together -= 1

        sender._call = counted  # type: ignore[method-assign]
        sender.begin([[RowBatch("orders", rows("a"))] for _ in range(20)], "w/0", 3, 5.0).result()

    assert most == 3
