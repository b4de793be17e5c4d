"""A redrive is not faster than it was told to be."""

from __future__ import annotations

import pytest
from typer import BadParameter

from veil.cli.pipeline.dead_letters import read_rate
from veil.pipeline.dead_letters.runs import RateLimit, messages_a_call


class Time:
    """A clock that moves when somebody rests."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def rest(self, length_s: float) -> None:
        self.now_s += length_s


def test_messages_go_at_the_rate_over_the_whole_run():
    time = Time()
    pace = RateLimit(50, monotonic=time.monotonic, rest=time.rest)

    for _ in range(11):
        pace.keep(100)

    assert time.now_s == pytest.approx(100 + 20)  # a thousand before the last hundred


def test_time_that_was_not_used_is_not_saved_up():
    time = Time()
    pace = RateLimit(10, monotonic=time.monotonic, rest=time.rest)
    pace.keep(10)
    time.now_s += 1_000

    pace.keep(10)
    pace.keep(10)

    assert time.now_s == pytest.approx(1_101)


def test_without_a_rate_nothing_waits():
    time = Time()
    pace = RateLimit(None, monotonic=time.monotonic, rest=time.rest)
    pace.keep(1_000_000)
    pace.keep(1_000_000)

    assert time.now_s == 100


@pytest.mark.parametrize(("text", "rate_s"), [("500", 500), ("500/s", 500), ("30/min", 0.5), ("7 / s", 7)])
def test_a_rate_is_so_many_a_second_or_a_minute(text: str, rate_s: float):
    assert read_rate(text) == rate_s


@pytest.mark.parametrize("text", ["", "0", "-1", "fast", "1.5", "10/h", "1e9"])
def test_what_is_no_rate_is_refused(text: str):
    with pytest.raises(BadParameter, match="a rate such as 500, 500/s or 30/min"):
        read_rate(text)


@pytest.mark.parametrize(("rate_s", "messages"), [(None, 1_000), (0.5, 1), (100, 25), (100_000, 1_000)])
def test_a_slow_redrive_makes_small_calls(rate_s: float | None, messages: int):
    assert messages_a_call(rate_s) == messages
