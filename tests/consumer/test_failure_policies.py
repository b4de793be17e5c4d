"""What becomes of a message whose handler failed."""

import asyncio
from typing import Any

import pytest

from tests.consumer.handler_kit import ManualTime, a_message
from veil.consumer.handlers.running import HandlingSettings
from veil.consumer.handlers.table import HandlerTable
from veil.consumer.message import Message
from veil.consumer.outcomes import (
    _LABELS,
    DEFAULT_BACKOFF,
    Backoff,
    DeadLetter,
    Delete,
    Discard,
    Drop,
    FailurePolicy,
    FailurePolicyRefused,
    Fatal,
    LetExpire,
    Outcome,
    Reject,
    Release,
    Retry,
    RetryAfter,
    RetryNow,
    Stop,
    backoff_s,
    label,
    settled,
)


def no_luck() -> float:
    return 0.0


def decided(spec: Any, error: BaseException) -> Outcome:
    return FailurePolicy(spec).decide(error, a_message())


class NoStock(ValueError):
    pass


def test_the_most_specific_class_wins_whatever_the_order_of_writing() -> None:
    spec = {Exception: LetExpire(), ValueError: DeadLetter(), NoStock: Discard(), TimeoutError: Release()}
    assert decided(spec, NoStock()) == Discard()
    assert decided(spec, ValueError("v")) == DeadLetter("ValueError: v")
    assert decided(spec, TimeoutError()) == Release()
    assert decided(spec, KeyError()) == LetExpire()
    assert decided(dict(reversed(spec.items())), NoStock()) == Discard()


def test_what_no_class_covers_backs_off() -> None:
    assert decided({ValueError: Discard()}, KeyError()) == DEFAULT_BACKOFF
    assert decided(None, KeyError()) == DEFAULT_BACKOFF
    assert isinstance(DEFAULT_BACKOFF, Backoff)


def test_one_outcome_is_for_all() -> None:
    assert decided(Release(), KeyError()) == Release()


def test_a_function_is_asked_with_the_error_and_the_message() -> None:
    def decide(error: BaseException, message: Message) -> Outcome:
        return Discard() if message.receive_count > 3 else RetryAfter(60)

    policy = FailurePolicy(decide)
    assert policy.decide(KeyError(), a_message(receive_count=1)) == RetryAfter(60)
    assert policy.decide(KeyError(), a_message(receive_count=4)) == Discard()


def test_a_function_that_fails_or_answers_nonsense_falls_to_the_default(caplog: Any) -> None:
    def broken(error: BaseException, message: Message) -> Outcome:
        raise RuntimeError("oops")

    assert decided(broken, KeyError()) == DEFAULT_BACKOFF
    assert decided(lambda error, message: "retry", KeyError()) == DEFAULT_BACKOFF
    assert "the failure policy itself failed" in caplog.text
    assert "returned 'retry', expected an Outcome" in caplog.text


def test_the_dead_letter_carries_the_error() -> None:
    error = ValueError("no such customer")
    outcome = decided(DeadLetter(), error)
    assert isinstance(outcome, DeadLetter)
    assert (outcome.reason, outcome.error) == ("ValueError: no such customer", error)
    assert decided(DeadLetter("on purpose"), error) == DeadLetter("on purpose")


def test_a_fatal_outcome_says_why() -> None:
    outcome = decided({MemoryError: Fatal()}, MemoryError("no more"))
    assert isinstance(outcome, Fatal)
    assert outcome.reason == "MemoryError: no more"


def test_an_error_that_cannot_speak_is_told_by_its_name() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert decided(DeadLetter(), Mute()) == DeadLetter("Mute")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (DeadLetter, "on_failure is the class DeadLetter, expected an outcome: DeadLetter()"),
        (Retry, "on_failure is the class Retry, expected an outcome, such as Backoff()"),
        ("retry", "on_failure is 'retry', expected an Outcome, a mapping"),
        ({"ValueError": Discard()}, "on_failure has the key 'ValueError', expected a class of exceptions"),
        ({ValueError: Discard}, "on_failure[ValueError] is <class"),
        ({ValueError: "drop"}, "on_failure[ValueError] is 'drop', expected an Outcome"),
        (asyncio.sleep, "expected a plain one"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_at_once(spec: Any, words: str) -> None:
    with pytest.raises(FailurePolicyRefused) as refused:
        FailurePolicy(spec)
    assert words in str(refused.value)


# ---- what a handler raises on purpose


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (Retry(after_s=90), RetryAfter(90)),
        (Retry("busy"), DEFAULT_BACKOFF),
        (RetryNow(), Release()),
        (Reject("no such customer"), DeadLetter("no such customer")),
        (Drop(), Discard()),
        (Stop("no credentials"), Fatal()),
    ],
)
def test_what_a_handler_says_wins_over_the_policy(verdict: Exception, outcome: Outcome) -> None:
    assert decided({Exception: LetExpire()}, verdict) == outcome


def test_a_single_failure_in_a_task_group_is_what_was_meant() -> None:
    group = ExceptionGroup("g", [ExceptionGroup("h", [Retry(after_s=9)])])
    assert decided(None, group) == RetryAfter(9)
    assert decided({ValueError: Discard()}, ExceptionGroup("g", [ValueError()])) == Discard()
    assert decided({ExceptionGroup: Release()}, ExceptionGroup("g", [ValueError()])) == Release()
    both = ExceptionGroup("g", [ValueError(), KeyError()])
    assert decided({ValueError: Discard(), Exception: LetExpire()}, both) == LetExpire()


@pytest.mark.parametrize("after_s", [-1, 43_201, float("nan"), float("inf")])
def test_a_retry_beyond_what_a_queue_can_do_is_refused(after_s: float) -> None:
    with pytest.raises(ValueError, match="RetryAfter: seconds is"):
        Retry(after_s=after_s)


def test_a_number_as_the_reason_of_a_retry_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a delay is Retry\(after_s=5\)"):
        Retry(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [{"base_s": -1}, {"factor": 0.5}, {"cap_s": 50_000}, {"jitter": 1.5}, {"base_s": float("nan")}],
)
def test_a_backoff_that_cannot_work_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"Backoff: {next(iter(settings))} is"):
        Backoff(**settings)


def test_a_number_in_words_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a number"):
        RetryAfter("5")  # type: ignore[arg-type]


# ---- how long


def test_the_backoff_doubles_up_to_its_cap() -> None:
    backoff = Backoff(base_s=5, factor=2, cap_s=60, jitter=0)
    assert [backoff_s(backoff, count, no_luck) for count in (1, 2, 3, 4, 5, 9)] == [5, 10, 20, 40, 60, 60]
    assert backoff_s(backoff, 0, no_luck) == 5


def test_a_message_received_ten_thousand_times_waits_the_cap() -> None:
    assert backoff_s(Backoff(base_s=5, cap_s=900, jitter=0), 10_000, no_luck) == 900


def test_a_share_of_the_backoff_is_random() -> None:
    half, full = Backoff(base_s=100, jitter=0.5), Backoff(base_s=100, jitter=1)
    assert backoff_s(half, 1, lambda: 0.0) == 100
    assert backoff_s(half, 1, lambda: 0.999_999) == pytest.approx(50, abs=0.01)
    assert backoff_s(full, 1, lambda: 0.999_999) == pytest.approx(0, abs=0.01)


def test_a_delay_is_in_whole_seconds_and_a_short_one_is_not_none() -> None:
    message = a_message()
    assert settled(RetryAfter(0.2), message.lease, 1, no_luck) == RetryAfter(1)
    assert settled(RetryAfter(0), message.lease, 1, no_luck) == RetryAfter(0)
    assert settled(Backoff(base_s=2.5, jitter=0), message.lease, 1, no_luck) == RetryAfter(3)


def test_a_delay_ends_with_the_twelve_hours_of_the_lease() -> None:
    time = ManualTime()
    lease = a_message(time=time).lease
    time.advance(43_200 - 100)
    assert settled(RetryAfter(300), lease, 1, no_luck) == RetryAfter(99)
    assert settled(Backoff(base_s=300, jitter=0), lease, 1, no_luck) == RetryAfter(99)
    assert settled(RetryAfter(50), lease, 1, no_luck) == RetryAfter(50)
    time.advance(100)
    assert settled(RetryAfter(300), lease, 1, no_luck) == LetExpire()


def test_a_renewed_lease_has_lasted_no_less_long() -> None:
    time = ManualTime()
    lease = a_message(time=time).lease
    time.advance(43_100)
    lease.renewed(time() + 30)
    assert settled(RetryAfter(300), lease, 1, no_luck) == RetryAfter(99)


def test_other_outcomes_stay_what_they_are() -> None:
    lease = a_message().lease
    for outcome in (Delete(), Release(), LetExpire(), Discard(), DeadLetter("x"), Fatal()):
        assert settled(outcome, lease, 1, no_luck) is outcome


async def test_a_failing_handler_backs_off_by_receive_count_by_default() -> None:
    table = HandlerTable(HandlingSettings(random=no_luck))

    @table.handler
    async def ship(body: str) -> None:
        raise ConnectionError

    for receive_count, expected_s in ((1, 5), (2, 10), (3, 20), (12, 900)):
        message = a_message(receive_count=receive_count)
        handler = table.pick(message)
        assert handler is not None
        assert await handler.call(message) == RetryAfter(expected_s)  # type: ignore[arg-type]


async def test_a_handlers_own_policy_replaces_the_consumers() -> None:
    table = HandlerTable(on_failure=Release())

    @table.handler(type="a", on_failure={ValueError: Discard()})
    async def one(body: str) -> None:
        raise ValueError

    @table.handler
    async def rest(body: str) -> None:
        raise ValueError

    first, second = table.handlers
    assert await first.call(a_message()) == Discard()  # type: ignore[arg-type]
    assert await second.call(a_message()) == Release()  # type: ignore[arg-type]


def test_every_outcome_has_a_word_for_the_metrics() -> None:
    outcomes = [
        Delete(),
        LetExpire(),
        Release(),
        RetryAfter(1),
        Backoff(),
        DeadLetter(),
        Discard(),
        Fatal(),
        None,
    ]
    assert {type(each).__name__ for each in outcomes if each} == {
        kind.__name__ for kind in Outcome.__subclasses__() if kind.__module__ == Outcome.__module__
    }
    assert {label(outcome) for outcome in outcomes} == set(_LABELS.values())
