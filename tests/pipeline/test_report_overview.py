"""What the report collects from real tables, made by the real lifecycles from a journal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.pipeline.journal_kit import (
    HOUR_MS,
    START_MS,
    JournalEvent,
    MessageStory,
    S,
    a_message,
    journal_of,
    write_segment_of,
)
from veil.core.clock import Trouble
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.run import run_lifecycles
from veil.pipeline.lifecycles.tables import ATTEMPT, HOW
from veil.pipeline.report.overview import Overview, collect_overview

BEGIN = datetime.fromtimestamp(START_MS / 1000, UTC)
NOW = datetime(2026, 2, 1, tzinfo=UTC)
DAY_MS = 24 * HOUR_MS


def plain(at: int, counter: int = 0, queue: str = "orders") -> MessageStory:
    return a_message(at, counter=counter, queue=queue).received(at + S).deleted(at + 9 * S)


def telling_lives(at: int = START_MS) -> list[MessageStory]:
    """Done twice, lost with its holder, given up, renewed; and two without anything to tell."""
    twice = (
        a_message(at, counter=1, queue="thumbnails", message_type="photo")
        .received(at + S)
        .received(at + 40 * S)
    )
    twice.deleted(at + 50 * S).delete_refused(at + 60 * S, delivery=1, gone=True)
    crash = a_message(at, counter=2).received(at + 2 * S).received(at + 35 * S).deleted(at + 40 * S)
    crash.holder_silent(at + 95 * S, delivery=1)
    dead = a_message(at, counter=3).received(at + S).received(at + 32 * S).dead_lettered(at + 63 * S, "dead")
    renewed = a_message(at, counter=4).received(at + S)
    for number in range(1, 6):
        renewed.extended(at + S + 20 * S * number)
    renewed.deleted(at + 110 * S)
    return [twice, crash, dead, renewed, plain(at, 5), plain(at, 6)]


def overview_of(
    journal: Storage,
    tables: Storage,
    stories: list[MessageStory],
    *,
    since: datetime | None = None,
) -> Overview:
    write_segment_of(journal, journal_of(*stories))
    run_lifecycles(lambda: pytest.fail("so little needs no Spark"), journal, tables)
    return collect_overview(tables, since=since, now=NOW)


def test_counts_totals_and_examples_of_a_short_time(journal_place: Storage, tables_place: Storage):
    stories = telling_lives()
    # The second was before anything happened here.
    for from_s, to_s, kind in ((20, 32, "restart"), (-90, -80, "disk")):
        trouble = JournalEvent(
            "trouble", START_MS + to_s * S, 0, queue="", deadline=START_MS + from_s * S, outcome=kind
        )
        stories[0].events.append(trouble)
    found = overview_of(journal_place, tables_place, stories)

    assert found.collected_at == NOW
    totals = found.totals
    assert totals["sent"] == 6
    assert totals["duplicates"] == 1
    assert totals["extensions"] == 5
    assert totals["leases"] == sum(totals[name] for name in HOW) == sum(totals[name] for name in ATTEMPT) == 9
    assert totals["deleted"] == 5
    assert (totals["completed"], totals["overran"]) == (5, 1)
    assert totals["messages_deleted"] == 5
    orders = next(life for life in found.queues if life.key.name == "orders")
    assert orders.timeline is not None
    # Two minutes are drawn by what happened when, not as one bar of an hour.
    assert not orders.timeline.by_send
    assert orders.timeline.slot == timedelta(seconds=2)
    assert found.troubles == (Trouble(START_MS + 20 * S, START_MS + 32 * S, "restart"),)
    assert orders.timeline.counts["sent"][0] == 5
    deleted = [place for place, count in enumerate(orders.timeline.counts["deleted"]) if count]
    assert [orders.timeline.begin + orders.timeline.slot * place for place in deleted] == [
        BEGIN + timedelta(seconds=at) for at in (8, 40, 110)
    ]
    assert {example.kind: example.queue for example in found.examples} == {
        "duplicate": "thumbnails",
        "crash": "orders",
        "dead_letter": "orders",
        "renewed": "orders",
    }
    twice = found.examples[0]
    assert twice.message_type == "photo"
    assert twice.sent_at == BEGIN
    first, second = twice.leases
    assert first.overrun
    assert first.processing_ms == 59_000
    assert first.deadline == BEGIN + timedelta(seconds=31)
    assert (first.outcome, second.how, second.outcome) == ("overran", "deleted", "completed")
    renewed = next(example for example in found.examples if example.kind == "renewed")
    assert renewed.leases[0].extensions == 5
    assert renewed.leases[0].last_extended_at == BEGIN + timedelta(seconds=101)


def test_some_days_are_drawn_by_the_hour(journal_place: Storage, tables_place: Storage):
    stories = [plain(START_MS + hour * HOUR_MS) for hour in (5, 5 + 24, 5 + 47)]
    found = overview_of(journal_place, tables_place, [*stories, plain(START_MS + 9 * HOUR_MS, queue="other")])

    assert found.since == BEGIN + timedelta(hours=5)
    assert found.until == BEGIN + timedelta(hours=53)
    orders, other = found.queues
    assert orders.timeline is not None
    assert orders.timeline.by_send
    assert orders.timeline.slot == timedelta(hours=1)
    sent = orders.timeline.counts["sent"]
    assert len(sent) == 48
    assert [hour for hour, count in enumerate(sent) if count] == [0, 24, 47]
    assert other.timeline is not None
    assert other.timeline.counts["deleted"].index(1) == 4


@pytest.mark.soak
def test_a_year_is_drawn_by_several_days(journal_place: Storage, tables_place: Storage):
    found = overview_of(
        journal_place, tables_place, [plain(START_MS + day * DAY_MS) for day in (0, 100, 360)]
    )

    (orders,) = found.queues
    assert orders.timeline is not None
    assert orders.timeline.slot == timedelta(days=4)
    assert [place for place, count in enumerate(orders.timeline.counts["sent"]) if count] == [0, 25, 90]
    assert orders.totals["sent"] == 3
    assert found.until == BEGIN + timedelta(days=361)


def test_only_the_time_that_is_asked_for_is_told(journal_place: Storage, tables_place: Storage):
    stories = [plain(START_MS + day * DAY_MS) for day in (0, 3, 5)]
    found = overview_of(journal_place, tables_place, stories, since=BEGIN + timedelta(days=3))

    assert found.totals["sent"] == 2
    assert found.since == BEGIN + timedelta(days=3)


def test_a_queue_whose_messages_were_all_sent_before_that_time_is_left_out(
    journal_place: Storage, tables_place: Storage
):
    at = START_MS + 2 * HOUR_MS
    earlier = a_message(START_MS - HOUR_MS, queue="other").received(at).deleted(at + 9 * S)
    found = overview_of(journal_place, tables_place, [plain(at), earlier], since=BEGIN)

    assert [life.key.name for life in found.queues] == ["orders"]
    assert found.totals["sent"] == 1


def test_empty_tables_give_an_empty_overview(tables_place: Storage):
    assert collect_overview(tables_place, now=NOW) == Overview(NOW, None, None)
