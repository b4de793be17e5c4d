"""The consumer says what came of each attempt that it ends other than by a delete: which outcome, and which error."""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.journal.kit import events_of
from tests.waiting import until_async
from veil import (
    Consumer,
    ConsumerFailed,
    DeadLetter,
    Discard,
    Drop,
    Fatal,
    LetExpire,
    Message,
    Outcome,
    Reject,
    Release,
    Retry,
    RetryAfter,
    RetryNow,
)
from veil.consumer.error_reports import TEXT_CHARS_MAX, TRACEBACK_CHARS_MAX, masked, reported_failure
from veil.consumer.runner import worker_agent
from veil.core.attempt import (
    GIVEN_BACK,
    AttemptFacts,
    ReportedOutcome,
    outcome_of,
    read_header,
    write_header,
)
from veil.journal.storage import Storage
from veil.testing import ConsumerHarness, VeilServer


async def said_by(app: Consumer, sent: int = 1, **queue: object) -> list[ReportedOutcome]:
    """What the consumer said of its first attempts."""
    harness = ConsumerHarness(app, **queue)  # type: ignore[arg-type]
    with suppress(ConsumerFailed):  # as `Fatal` wants it
        async with harness:
            for _ in range(sent):
                await harness.send()
            await harness.settle()
    return [each for each in harness.service.reported if each is not None]


@pytest.mark.parametrize(
    "policy",
    [None, RetryAfter(5), RetryAfter(3_600), Release(), LetExpire(), Discard(), DeadLetter(), Fatal()],
    ids=lambda policy: type(policy).__name__,
)
async def test_whatever_the_policy_a_failure_is_said_with_its_error(policy: Outcome | None):
    app = Consumer("orders", on_failure=policy)

    @app.handler
    async def ship(message: Message) -> None:
        raise LookupError("no stock")

    first = (await said_by(app))[0]
    assert (first.outcome, first.error_type, first.error_text) == ("failed", "LookupError", "no stock")
    lines = (first.traceback or "").splitlines()
    assert __file__ in lines[1]  # no frame of Veil's own before the handler
    assert lines[-1] == '    raise LookupError("no stock")'  # type and text stand beside it


@pytest.mark.parametrize("is_sync", [True, False])
async def test_a_generator_exit_of_the_handlers_own_lets_go_of_the_message(is_sync: bool):
    """It also ends coroutines that are thrown away; taken for that, the lease would be renewed for hours and never end."""
    app, calls = Consumer("orders"), []

    def sync(body: str) -> None:
        calls.append(body)
        raise GeneratorExit

    async def not_sync(body: str) -> None:
        sync(body)

    app.handler(sync if is_sync else not_sync)
    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        await harness.advance(31)
        await harness.settle()
        assert len(calls) == 2


async def test_a_consumer_may_keep_the_texts_of_its_errors_to_itself():
    app = Consumer("orders", error_texts=False)

    @app.handler
    async def ship(message: Message) -> None:
        raise LookupError("no stock for jane")

    assert (await said_by(app))[0] == ReportedOutcome("failed", "LookupError", "")


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [(Retry("later"), "failed"), (Reject("never"), "failed"), (RetryNow(), "given_back"), (Drop(), None)],
)
async def test_a_handler_that_decides_itself_is_taken_at_its_word(verdict: Exception, outcome: str | None):
    app = Consumer("orders")
    left = [verdict]

    @app.handler
    async def ship(message: Message) -> None:
        if left:
            raise left.pop()

    reported = await said_by(app)
    assert [each.outcome for each in reported] == ([] if outcome is None else [outcome])


@pytest.mark.parametrize(
    ("raised", "said"), [(LookupError("no stock"), ["failed", "LookupError"]), (Drop("not for us"), [])]
)
async def test_an_error_alone_in_a_task_group_is_said_as_itself(raised: Exception, said: list[str]):
    app = Consumer("orders", on_failure=Discard())

    async def reserve() -> None:
        raise raised

    @app.handler
    async def ship(body: str) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(reserve())

    outcomes = await said_by(app)
    assert [word for each in outcomes for word in (each.outcome, each.error_type)] == said


async def test_poison_and_the_failed_of_a_batch_are_said_too():
    app = Consumer("orders", on_poison=Release())

    @app.handler(batch=10)
    def ship(orders: list[Mapping[str, int]], messages: list[Message]) -> list[str]:
        return [message.id for message in messages]

    async with ConsumerHarness(app) as harness:
        await harness.send({"id": 1})
        await harness.send("no object")
        await harness.settle()
        kinds = {each.error_type for each in harness.service.reported if each is not None}
    assert len(kinds) == 2
    assert all(kind is not None and kind.endswith(("ItemFailed", "PayloadRefused")) for kind in kinds)


async def test_what_is_not_begun_when_a_consumer_stops_is_given_back():
    app = Consumer("orders", concurrency=1, prefetch=5, drain_timeout=25)

    @app.handler
    async def ship(message: Message) -> None:
        await harness.sleep(1_000)

    async with ConsumerHarness(app) as harness:
        for _ in range(3):
            await harness.send()
        await harness.settle()
        stopping = asyncio.ensure_future(app.stop())
        await harness.settle()
        assert harness.service.reported == [GIVEN_BACK] * 2
        await harness.advance(25)
        await stopping
        assert harness.service.reported == [GIVEN_BACK] * 3


async def test_of_a_message_that_waited_for_a_free_slot_it_is_said_how_long_it_was_worked_on():
    app = Consumer("orders", concurrency=1, prefetch=5, on_failure=RetryAfter(600))

    @app.handler
    async def ship(message: Message) -> None:
        await harness.sleep(2)
        if message.body == "2":
            raise LookupError

    async with ConsumerHarness(app) as harness:
        for number in range(3):
            await harness.send(str(number))
        await harness.advance(10)
        reported = [each and (each.outcome, each.worked_ms) for each in harness.service.reported]
    assert reported == [(None, 2_000), ("failed", 2_000)]  # the first did not wait


async def test_a_completed_attempt_says_nothing():
    app = Consumer("orders")

    @app.handler
    async def ship(message: Message) -> None: ...

    assert await said_by(app) == []


# ---- what is told of an error


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_an_error_is_told_bounded():
    reported = reported_failure(raised(ValueError("x" * 100_000)))
    assert len(reported.error_text or "") == TEXT_CHARS_MAX
    assert len(reported.traceback or "") <= TRACEBACK_CHARS_MAX
    assert (reported.outcome, reported.worked_ms) == ("failed", None)


def test_a_text_is_known_to_be_harmless_by_its_letters_and_not_by_its_length():
    """Texts that differ in their digits alone are looked at once; a longer run of digits is another text."""
    for text, shown in (
        ("account 12345678901", "account 12345678901"),
        ("account 98765432109", "account 98765432109"),
        ("account 123456789012", "account ***"),
        ("no stock of 17", "no stock of 17"),
        ("no stock of 18", "no stock of 18"),
        ("password=hunter2", "password=***"),
        ("password=hunter3", "password=***"),
    ):
        assert reported_failure(raised(ValueError(text))).error_text == shown


def test_the_errors_that_led_to_one_are_told_before_it_and_masked():
    try:
        try:
            raise KeyError("password=hunter2")
        except KeyError as error:
            raise ValueError("no stock") from error
    except ValueError as error:
        reported = reported_failure(error)
        known = "".join(traceback.format_exception(error))

    whole = f"{reported.traceback}ValueError: {reported.error_text}\n"
    assert whole == known.replace("hunter2", "***")


def test_functions_that_live_briefly_are_told_each_by_its_own_name():
    told = []
    # More than are remembered; without care, one would be found in the place of another.
    for number in range(1_000):
        space: dict[str, Any] = {}
        exec(f"def handler_{number}(): raise ValueError", space)
        try:
            space[f"handler_{number}"]()
        except ValueError as error:
            told.append(reported_failure(error).traceback or "")
    assert all(f", in handler_{number}\n" in each for number, each in enumerate(told))


def test_two_lines_of_one_function_are_two_places():
    def fail(early: bool) -> None:
        if early:
            raise ValueError("early")
        raise ValueError("late")

    told = set()
    for early in (True, False, True):
        try:
            fail(early)
        except ValueError as error:
            told.add(reported_failure(error).traceback)
    assert len(told) == 2


def test_a_recursion_without_end_is_told_by_its_last_frames():
    def again() -> None:
        again()

    try:
        again()
    except RecursionError as error:
        reported = reported_failure(error)

    assert reported.traceback is not None and reported.traceback.count("in again") == 40


def test_groups_and_notes_are_told_as_python_tells_them():
    group = ExceptionGroup("two", [ValueError("one"), KeyError("other")])
    group.add_note("while packing")
    reported = reported_failure(raised(group))
    assert reported.traceback is not None
    assert "ValueError: one" in reported.traceback and "while packing" in reported.traceback


def test_without_texts_only_the_class_is_told():
    assert reported_failure(raised(ValueError("of jane")), texts=False) == ReportedOutcome(
        "failed", "ValueError"
    )


def test_an_error_that_cannot_speak_is_told_by_its_class():
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    reported = reported_failure(raised(Mute()))
    assert (reported.error_type or "").endswith("Mute") and reported.error_text == ""


def test_the_name_of_a_file_that_is_not_utf_8_does_not_keep_the_report_from_being_sent():
    """os.fsdecode makes lone surrogates of such bytes, which neither JSON nor the journal can hold."""
    name = os.fsdecode(b"caf\xe9.txt")
    reported = reported_failure(raised(ValueError(f"{name} is empty")))
    assert read_header(write_header({"0": reported}), ["0"]) == [reported]
    assert reported.error_text == "caf?.txt is empty"


def test_an_error_whose_own_attributes_fail_is_told_by_its_class():
    class Odd(Exception):
        @property
        def __cause__(self) -> None:  # type: ignore[override]
            raise RuntimeError

        def __str__(self) -> str:
            raise KeyboardInterrupt

    reported = reported_failure(raised(Odd()))
    assert (reported.error_type or "").endswith("Odd")
    assert (reported.error_text, reported.traceback) == ("", None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://shop:hunter2@db/orders is down", "postgres://shop:***@db/orders is down"),
        ("password=hunter2, retry", "password=***, retry"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("AKIAIOSFODNN7EXAMPLE is disabled", "*** is disabled"),
        ("no account of jane.doe@example.com", "no account of ***"),
        ("card 4111 1111 1111 1111 refused", "card *** refused"),
        ("hash " + "ab" * 16, "hash ***"),
        ("order 1234567 has 3 items", "order 1234567 has 3 items"),
        ("message 538c1cd3-3288-4432-9909-19e8dc074592", "message 538c1cd3-3288-4432-9909-19e8dc074592"),
        ("token=538c1cd3-3288-4432-9909-19e8dc074592", "token=***"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, shown: str):
    assert masked(text) == shown


def test_workers_are_told_apart_by_host_process_and_name():
    assert worker_agent("nightly run").split()[2] == "worker/nightly-run"
    assert [part.partition("/")[0] for part in worker_agent(None).split()] == ["host", "pid"]


# ---- through a real server


def test_five_messages_whose_handler_only_raises_have_failed_and_nobody_crashed(tmp_path: Path, caplog):
    """Timeout 600 s, the default policy: the first attempts of all five end within a second, as failures."""
    with VeilServer("--data", str(tmp_path)) as server:
        sqs = server.client()
        url = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
        for number in range(5):
            sqs.send_message(QueueUrl=url, MessageBody=str(number))
        app = Consumer("orders", endpoint=server.endpoint_url, region="us-east-1", worker="first")
        failed: set[str] = set()

        @app.handler
        async def ship(message: Message) -> None:
            failed.add(message.id)
            raise ValueError(f"no stock for {message.body}")

        async def run() -> None:
            async with app:
                await until_async(lambda: len(failed) >= 5)

        with caplog.at_level(logging.WARNING, "veil.consumer"):
            asyncio.run(run())
    assert all(any(each in record.getMessage() for record in caplog.records) for each in failed)
    events = events_of(Storage.at(tmp_path / "journal"))
    ends = [event for event in events if event["kind"] == "given_back"]
    assert {event["message_id"] for event in ends} >= failed
    for event in ends:
        assert (event["outcome"], event["error_type"]) == ("failed", "ValueError")
        assert "no stock for" in event["error_text"] and "in ship" in event["traceback"]
        assert "worker/first" in event["user_agent"] and event["rule"] == 2
        facts = AttemptFacts(1, said=event["outcome"], is_returned=True)
        assert outcome_of(facts, 2) == "failed"
