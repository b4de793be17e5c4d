"""The checker finds each class of fault in a history that has just that one, and none in one that has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.checker import FAULTS, check
from tests.faults.history import Event, History, read_history

Q, F = "jobs", "orders.fifo"


class Story:
    """A history told by hand, in milliseconds."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def call(self, began_ms: int, ended_ms: int, kind: str, op: str, queue: str, **facts: Any) -> None:
        number = len(self.events)
        messages = facts.pop("messages", None)
        self.events.append(
            {
                "at": began_ms * 1_000_000,
                "kind": "invoke",
                "call": number,
                "client": "x",
                "op": op,
                "queue": queue,
            }
            | facts
        )
        end: Event = {"at": ended_ms * 1_000_000, "kind": kind, "call": number}
        if messages is not None:
            end["messages"] = [{"tag": tag, "receipt": receipt} for tag, receipt in messages]
        self.events.append(end)

    def send(self, at_ms: int, tag: str, kind: str = "ok", queue: str = Q, **facts: Any) -> None:
        self.call(at_ms, at_ms + 5, kind, "send", queue, tag=tag, **facts)

    def receive(
        self,
        at_ms: int,
        *messages: tuple[str, str],
        queue: str = Q,
        window_s: int = 2,
        wait_s: int = 0,
        kind: str = "ok",
        took_ms: int = 5,
    ) -> None:
        self.call(
            at_ms, at_ms + took_ms, kind, "receive", queue, window_s=window_s, wait_s=wait_s, messages=messages
        )  # fmt: skip

    def delete(self, at_ms: int, tag: str, receipt: str, kind: str = "ok", queue: str = Q) -> None:
        self.call(at_ms, at_ms + 5, kind, "delete", queue, tag=tag, receipt=receipt)

    def extend(self, at_ms: int, tag: str, receipt: str, window_s: int, kind: str = "ok") -> None:
        self.call(at_ms, at_ms + 5, kind, "extend", Q, tag=tag, receipt=receipt, window_s=window_s)

    def faults(self) -> set[str]:
        return {name for name, found in check(self.events).faults.items() if found}


def a_quiet_day() -> Story:
    """Everything that may happen, and nothing that may not."""
    story = Story()
    story.send(0, "a")
    story.send(0, "b", "info")
    story.send(0, "never arrived", "info")
    story.send(0, "refused", "fail")
    story.receive(100, ("a", "a1"), ("b", "b1"))
    story.delete(150, "b", "b1")
    story.extend(1_000, "a", "a1", 3)
    story.receive(4_010, ("a", "a2"))
    story.delete(4_100, "a", "a1")  # stale, and so without effect
    story.extend(4_200, "a", "a2", 0)
    story.receive(4_210, ("a", "a3"))
    story.delete(4_300, "a", "a3")
    story.receive(9_000)
    return story


def test_a_clean_history_is_clean() -> None:
    verdict = check(a_quiet_day().events)

    assert verdict.ok, str(verdict)
    assert (verdict.counts["duplicated"], verdict.counts["recovered"]) == (1, 1)


def test_an_acknowledged_message_that_never_came_is_lost() -> None:
    story = a_quiet_day()
    story.send(10_000, "c")

    assert story.faults() == {"lost"}


def test_a_message_that_was_delivered_and_vanished_without_a_delete_is_lost() -> None:
    story = a_quiet_day()
    story.send(10_000, "c", "info")
    story.receive(10_100, ("c", "c1"))
    story.delete(10_200, "c", "c1", "fail")

    assert story.faults() == {"lost"}


def test_a_stale_delete_is_no_excuse_for_a_message_that_vanished() -> None:
    story = a_quiet_day()
    story.send(10_000, "c")
    story.receive(10_100, ("c", "c1"))
    story.receive(12_200, ("c", "c2"))
    story.delete(12_300, "c", "c1")

    assert story.faults() == {"lost"}


@pytest.mark.parametrize("told", ["never sent", "refused", "sent elsewhere"])
def test_what_was_not_sent_to_the_queue_is_invented(told: str) -> None:
    story = a_quiet_day()
    if told == "sent elsewhere":
        story.send(10_000, told, queue="another")
        story.receive(10_100, (told, "e1"), queue="another")
        story.delete(10_200, told, "e1", queue="another")
    story.receive(10_300, (told, "x1"))

    assert story.faults() == {"invented"}


def test_a_delivery_inside_an_open_window_is_early() -> None:
    story = a_quiet_day()
    story.send(10_000, "c")
    story.receive(10_100, ("c", "c1"))
    story.receive(11_900, ("c", "c2"))
    story.delete(11_950, "c", "c2")

    assert story.faults() == {"early"}


def test_a_delivery_inside_an_extended_window_is_early() -> None:
    story = a_quiet_day()
    story.send(10_000, "c")
    story.receive(10_100, ("c", "c1"))
    story.extend(11_000, "c", "c1", 10)
    story.receive(13_000, ("c", "c2"))
    story.delete(13_100, "c", "c2")

    assert story.faults() == {"early"}


def test_two_receives_at_once_that_both_got_the_message_are_early_in_either_order() -> None:
    story = a_quiet_day()
    story.send(10_000, "c")
    story.receive(10_100, ("c", "c1"), took_ms=20)
    story.receive(10_110, ("c", "c2"), took_ms=20)
    story.delete(10_200, "c", "c2")

    assert story.faults() == {"early"}


def test_an_extension_whose_end_is_unknown_may_have_shortened_the_window() -> None:
    story = a_quiet_day()
    story.send(10_000, "c")
    story.receive(10_100, ("c", "c1"), window_s=30)
    story.extend(11_000, "c", "c1", 0, "info")
    story.receive(12_000, ("c", "c2"))
    story.delete(12_100, "c", "c2")

    assert story.faults() == set()


def test_a_delivery_after_an_acknowledged_delete_is_resurrected() -> None:
    story = a_quiet_day()
    story.send(10_000, "c")
    story.receive(10_100, ("c", "c1"))
    story.delete(10_200, "c", "c1")
    story.receive(15_000, ("c", "c2"))
    story.delete(15_100, "c", "c2")

    assert story.faults() == {"resurrected"}


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_late_delete_on_a_fifo_queue_proves_nothing_where_the_next_holder_had_deleted_by_then(
    is_gone: bool,
) -> None:
    """It waited, came after the lease of the next was opened and closed, and was answered as for any message that is gone."""
    story = a_quiet_day()
    a_group(story, "c")
    story.receive(10_100, ("c", "c1"), queue=F, window_s=1)
    story.call(11_200, 11_900, "ok", "delete", F, tag="c", receipt="c1")
    story.receive(11_300, ("c", "c2"), queue=F)
    story.delete(11_400 if is_gone else 11_950, "c", "c2", queue=F)

    assert story.faults() == (set() if is_gone else {"resurrected"})


def test_an_empty_receive_a_second_after_the_deadline_shows_a_stuck_message() -> None:
    story = a_quiet_day()
    story.send(10_000, "c")
    story.receive(10_100, ("c", "c1"))
    story.receive(13_200)  # its window ended at 12,105 at the latest
    story.receive(14_000, ("c", "c2"))
    story.delete(14_100, "c", "c2")

    assert story.faults() == {"stuck"}


def test_a_long_poll_that_was_not_woken_shows_a_stuck_message() -> None:
    story = a_quiet_day()
    story.send(10_000, "c")
    story.receive(10_100, ("c", "c1"))
    story.receive(11_000, wait_s=3, took_ms=3_001)
    story.receive(14_500, ("c", "c2"))
    story.delete(14_600, "c", "c2")

    assert story.faults() == {"stuck"}


def test_a_receive_that_ended_unknown_may_hold_what_others_do_not_find() -> None:
    story = a_quiet_day()
    story.send(10_000, "c")
    story.receive(10_100, kind="info", window_s=5)
    story.receive(13_000)
    story.receive(15_500, ("c", "c1"))
    story.delete(15_600, "c", "c1")

    assert story.faults() == set()


def test_a_delete_by_a_receipt_from_an_answer_that_does_not_count_explains_why_a_message_is_gone() -> None:
    story = a_quiet_day()
    story.send(10_000, "c")
    story.receive(10_100, ("c", "c1"), kind="info")
    story.delete(10_900, "c", "c1")

    assert story.faults() == set()


def a_group(story: Story, *tags: str) -> None:
    for place, tag in enumerate(tags):
        story.send(10_000 + 10 * place, tag, queue=F, group="g", place=place)


def test_a_group_delivered_in_order_is_clean() -> None:
    story = a_quiet_day()
    a_group(story, "c", "d", "e")
    story.receive(10_100, ("c", "c1"), ("d", "d1"), queue=F)
    story.delete(10_200, "c", "c1", queue=F)
    story.receive(12_300, ("d", "d2"), ("e", "e1"), queue=F)
    story.delete(12_400, "d", "d2", queue=F)
    story.delete(12_500, "e", "e1", queue=F)

    assert story.faults() == set()


@pytest.mark.parametrize("first", [(("d", "d1"),), (("d", "d1"), ("c", "c1"))])
def test_a_message_ahead_of_its_group_is_misordered(first: tuple[tuple[str, str], ...]) -> None:
    story = a_quiet_day()
    a_group(story, "c", "d")
    story.receive(10_100, *first, queue=F)
    story.delete(10_200, "d", "d1", queue=F)
    story.receive(12_300, ("c", "c2"), queue=F)
    story.delete(12_400, "c", "c2", queue=F)

    assert story.faults() == {"misordered"}


@pytest.mark.parametrize("was_seen", [False, True])
def test_a_send_that_ended_unknown_may_come_behind_the_next_unless_it_was_seen_before(was_seen: bool) -> None:
    story = a_quiet_day()
    story.send(10_000, "c", "info", queue=F, group="g", place=0)
    if was_seen:
        story.receive(10_010, ("c", "c1"), queue=F)
    story.send(10_020, "d", queue=F, group="g", place=1)
    story.receive(12_300, ("d", "d1"), ("c", "c2"), queue=F)
    story.delete(12_400, "d", "d1", queue=F)
    story.delete(12_400, "c", "c2", queue=F)

    assert story.faults() == ({"misordered"} if was_seen else set())


def test_every_class_has_a_planted_fault() -> None:
    assert set(FAULTS) == {"lost", "invented", "early", "resurrected", "stuck", "misordered"}


def test_a_written_history_is_read_back_as_it_was(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    call = history.invoke("w0", "send", Q, tag="w0-1")
    history.end(call, "ok")
    history.close()

    assert list(read_history(tmp_path / "history.jsonl")) == history.events
    assert check(history.events).faults["lost"]
