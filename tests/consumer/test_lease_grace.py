"""The consumer's half of leases that outlive the server's own trouble: it holds on for as long as the server has promised."""

from __future__ import annotations

import asyncio
import itertools
from random import Random
from typing import Any

import pytest

from tests.consumer.sqs_kit import Talk, bad_server, client_of, http
from veil.client.api import ApiError, Failure
from veil.consumer.acknowledging import Batcher
from veil.consumer.lease import Lease
from veil.consumer.renewal import Adaptive
from veil.consumer.renewal.ledger import Ledger

SILENCE = ApiError(Failure.UNREACHABLE, "", "no answer within 5 s")
AWAY = ApiError(Failure.UNREACHABLE, "", "the connection was refused", away=True)
REFUSED = ApiError(Failure.REFUSED, "InvalidParameterValue", "no")


class Time:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def held(grace_s: float, visibility_s: float = 10) -> tuple[Ledger, Lease, Time]:
    time = Time()
    lease = Lease(
        queue_url="http://127.0.0.1:9324/000000000000/orders",
        message_id="m",
        receipt="r",
        token=1,
        received_at_s=time.now_s,
        visibility_s=visibility_s,
        monotonic=time,
        grace_s=grace_s,
    )
    ledger = Ledger(Adaptive(), Random(1))
    ledger.hold([lease], time.now_s)
    return ledger, lease, time


def lives(ledger: Ledger, lease: Lease, time: Time, answer: ApiError | None, until_s: float) -> float | None:
    """Answer every renewal like this until then; when the lease was lost, if it was, in seconds after its receive."""
    while time.now_s < 1_000 + until_s:
        time.now_s = min(max(ledger.next_s(), time.now_s), 1_000 + until_s)
        calls = ledger.due(time.now_s)
        if any(event.name == "lost" for event in ledger.events()):
            return round(time.now_s - 1_000, 3)
        for call in calls:
            ledger.answered(call, [answer] * len(call), time.now_s, time.now_s)
    return None


def test_silence_is_borne_until_the_deadline_and_the_grace_that_was_promised() -> None:
    assert lives(*held(grace_s=5), SILENCE, 60) == 15
    ledger, lease, time = held(grace_s=5)
    assert lives(ledger, lease, time, SILENCE, 12) is None
    assert (lease.lost, lease.is_certain) == (False, False)  # the handler may know what its lease rests on


def test_a_server_that_is_seen_to_be_away_is_waited_for_and_then_for_its_grace() -> None:
    ledger, lease, time = held(grace_s=5)
    assert lives(ledger, lease, time, AWAY, 120) is None
    assert not lease.lost
    back = lives(ledger, lease, time, None, 121)
    assert back is None and lease.is_certain  # renewed as soon as it was back


def test_it_is_asked_often_enough_to_be_in_time_for_the_grace() -> None:
    ledger, _lease, time = held(grace_s=2, visibility_s=2)
    asked = []
    while time.now_s < 1_030:
        time.now_s = max(ledger.next_s(), time.now_s)
        calls = ledger.due(time.now_s)
        for call in calls:
            asked.append(time.now_s)
            ledger.answered(call, [AWAY] * len(call), time.now_s, time.now_s)
    assert max(later - before for before, later in itertools.pairwise(asked)) < 0.5


def test_after_twelve_hours_nothing_is_waited_for() -> None:
    lost_s = lives(*held(grace_s=60, visibility_s=30), AWAY, 50_000)
    assert lost_s is not None and lost_s <= 43_200


def test_without_a_promise_nothing_changes() -> None:
    plain = lives(*held(grace_s=0), SILENCE, 60)
    assert plain is not None and plain < 15
    assert lives(*held(grace_s=0), AWAY, 60) == plain


def test_a_server_that_answers_is_not_away() -> None:
    assert lives(*held(grace_s=5), REFUSED, 60) == lives(*held(grace_s=0), REFUSED, 60)


@pytest.mark.parametrize(
    ("promised", "grace_s"), [("15", 15.0), ("2.5", 2.5), ("soon", 0.0), ("-1", 0.0), ("1e9", 0.0)]
)
async def test_the_promise_is_read_from_the_answer_to_a_receive(promised: str, grace_s: float) -> None:
    async def behave(talk: Talk) -> None:
        await talk.request()
        found = {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "x"}]}
        talk.say(http(200, found, f"x-veil-lease-grace: {promised}"))
        await talk.gone()

    async with bad_server(behave) as url, client_of(url) as client:
        [message] = await client.receive(f"{url}/000000000000/q", count=1, wait_s=0)
    assert message.grace_s == grace_s


@pytest.mark.parametrize(
    ("waited", "began_s"), [("12", 112), ("", 100), ("-3", 100), ("1.5", 100), ("999", 120), ("99999", 100)]
)
async def test_the_window_is_counted_from_after_the_wait_that_the_answer_tells_of(
    waited: str, began_s: float
) -> None:
    async def behave(talk: Talk) -> None:
        await talk.request()
        found = {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "x"}]}
        talk.say(http(200, found, f"x-veil-waited: {waited}"))
        await talk.gone()

    async with bad_server(behave) as url, client_of(url, monotonic=lambda: 100.0) as client:
        [message] = await client.receive(f"{url}/000000000000/q", count=1, wait_s=20)
    assert message.began_at_s == began_s


async def test_a_refused_connection_and_an_answer_of_trouble_are_told_from_silence() -> None:
    async def behave(talk: Talk) -> None:
        await talk.request()
        if talk.number == 1:
            talk.say(http(503, {"__type": "ServiceUnavailable", "message": "the store"}))
        await asyncio.sleep(60)

    async def error_of(client: Any, url: str) -> ApiError:
        with pytest.raises(ApiError) as raised:
            await client.extend(f"{url}/000000000000/q", [("r", 30)])
        return raised.value

    async with bad_server(behave) as url, client_of(url, connections=1) as client:
        assert (await error_of(client, url)).away
        client._read_timeout_s = 0.05
        assert not (await error_of(client, url)).away  # no answer
    async with client_of("http://127.0.0.1:1") as client:
        assert (await error_of(client, "http://127.0.0.1:1")).away


@pytest.mark.parametrize(("grace_s", "tries"), [(0.0, 5), (5.0, 200)])
async def test_a_delete_waits_for_a_server_that_promised_a_grace(grace_s: float, tries: int) -> None:
    asked, slept = 0, 0.0

    async def send(entries: Any) -> list[ApiError | None]:
        nonlocal asked
        asked += 1
        return [None if asked == 200 else AWAY] * len(entries)

    async def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds
        await asyncio.sleep(0)

    batcher = Batcher(send, sleep=sleep, random=Random(1))
    batcher.grace_s = grace_s
    error = await batcher.add("receipt")
    assert asked == tries
    assert (error is None) == (grace_s > 0)
    assert slept <= tries  # at least once a second
