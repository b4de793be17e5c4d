"""From the tables to the findings, on real Parquet."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from random import Random

import pytest

from bench.queue_days import row, write_tables
from tests.pipeline.queue_histories import EXPONENTIAL, HEAVY_TAIL, Known, history_of
from veil.cli.pipeline.timeouts import SCHEDULES
from veil.core.findings import CLEAR, FILE, NOT_ENOUGH, Finding, Replay, decode
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.store import files_of_table, load_manifest
from veil.pipeline.lifecycles.tables import bucket_of
from veil.pipeline.timeouts.history import History, Work, files_since, read_histories
from veil.pipeline.timeouts.run import find_all, run_timeouts

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


def day_row(day: datetime, queue: str, history: History, message_type: str = "") -> dict[str, object]:
    """The row that this history of one day makes."""
    return row(
        day,
        queue,
        message_type,
        leases=history.leases,
        duplicates=history.duplicates,
        overrun=history.overrun,
        unknown=history.unknown,
        window_ms=history.present_ms,
        window_at=day + timedelta(hours=3),
        processing=history.processing,
        processing_lapsed=history.lapses,
        processing_censored=history.censored,
        recovery=history.recovery,
        recovery_unknown=history.recovery_unknown,
    )


def a_day(seed: int, known: Known = EXPONENTIAL, leases: int = 3_000, timeout_s: int = 10) -> History:
    return history_of(known, Random(seed), leases=leases, timeout_s=timeout_s, crash_every_s=600)


def whole(findings: list[Finding], queue: str) -> Finding:
    (finding,) = [each for each in findings if each.queue == queue and each.message_type is None]
    return finding


def test_days_add_up_to_the_history_of_each_queue_and_type(tables_place: Storage):
    days = [MONDAY + timedelta(days=number) for number in range(3)]
    write_tables(
        tables_place,
        {
            day: [
                day_row(day, "orders", a_day(number), "ship"),
                day_row(day, "orders", a_day(10 + number), "bill"),
                day_row(day, "mails", a_day(20 + number)),
            ]
            for number, day in enumerate(days)
        },
    )

    histories = read_histories(tables_place, files_of_table(tables_place, "queue_days"))

    assert set(histories) == {
        Work("us-east-1", "000000000000", queue, message_type)
        for queue, message_type in (("orders", "ship"), ("orders", "bill"), ("mails", ""))
    }
    expected = a_day(0)
    expected.add(a_day(1))
    expected.add(a_day(2))
    found = histories[Work("us-east-1", "000000000000", "orders", "ship")]
    assert found.processing == expected.processing
    assert found.lapses == expected.lapses
    assert found.censored == expected.censored
    assert found.recovery == expected.recovery
    assert found.recovery_unknown == expected.recovery_unknown != Counter()
    assert (found.leases, found.duplicates) == (9_000, expected.duplicates)
    assert (found.failed, found.failed_ms) == (expected.failed, expected.failed_ms)
    assert found.unknown == expected.unknown > 0
    assert found.windows == Counter({10_000: 9_000})
    assert (found.since, found.until) == (days[0], days[2])


def test_a_past_that_begins_within_a_month_is_read_as_days_and_then_as_months(tables_place: Storage):
    days = [datetime(2026, 1, 30, tzinfo=UTC) + timedelta(days=number) for number in range(40)]
    write_tables(tables_place, {day: [row(day, "orders")] for day in days})
    manifest = load_manifest(tables_place)

    def files(since: date | None) -> list[str]:
        return [file.split("/")[1] + " " + file.split("=")[2][4:8] for file in files_since(manifest, since)]

    months = [f"table=queue_months {month}01" for month in ("01", "02", "03")]
    assert files(None) == months
    assert files(date(2026, 2, 1)) == months[1:]
    assert files(date(2026, 1, 31)) == ["table=queue_days 0131", *months[1:]]
    assert files(date(2026, 2, 27)) == [*(f"table=queue_days 02{day}" for day in (27, 28)), months[2]]
    assert files(date(2027, 1, 1)) == []


def test_the_same_is_found_in_days_as_in_months(tables_place: Storage):
    january, february = datetime(2026, 1, 30, tzinfo=UTC), datetime(2026, 2, 2, tzinfo=UTC)
    write_tables(
        tables_place,
        {
            january: [day_row(january, "orders", a_day(1)), day_row(january, "mails", a_day(4), "x")],
            january + timedelta(days=1): [day_row(january + timedelta(days=1), "orders", a_day(2))],
            february: [day_row(february, "orders", a_day(3))],
        },
    )

    by_month = run_timeouts(tables_place, save=False, now=MONDAY)
    by_day = run_timeouts(tables_place, since=january.date(), save=False, now=MONDAY)

    assert by_month == by_day
    finding = whole(by_month.findings, "orders")
    assert finding.leases == 9_000
    assert (finding.since, finding.until) == (january.isoformat(), february.isoformat())


def test_the_present_timeout_is_the_latest_one_that_a_lease_began_with(tables_place: Storage):
    tuesday = MONDAY + timedelta(days=1)
    write_tables(
        tables_place,
        {
            MONDAY: [day_row(MONDAY, "orders", a_day(1, timeout_s=10))],
            tuesday: [day_row(tuesday, "orders", a_day(2, timeout_s=45))],
        },
    )

    (finding,) = run_timeouts(tables_place).findings

    assert finding.present_timeout_s == 45.0
    (earlier,) = run_timeouts(tables_place, since=date(2026, 3, 3), save=False).findings
    assert earlier.leases == 3_000
    assert earlier.since == earlier.until == "2026-03-03T00:00:00+00:00"


def test_findings_are_left_beside_the_tables_and_read_without_spark(tables_place: Storage):
    write_tables(
        tables_place,
        {
            MONDAY: [
                day_row(MONDAY, "orders", a_day(1, leases=8_000)),
                day_row(MONDAY, "few", a_day(2, leases=20)),
                day_row(MONDAY, "tail", a_day(3, HEAVY_TAIL, 12_000)),
            ]
        },
    )

    findings = run_timeouts(tables_place, policies=SCHEDULES, now=MONDAY)

    assert decode(tables_place.read(FILE)) == findings
    assert findings.made_at == "2026-03-02T00:00:00+00:00"
    orders, few = whole(findings.findings, "orders"), whole(findings.findings, "few")
    assert orders.certainty == CLEAR  # late holders show themselves here, so the silent ones are dead
    assert orders.recommended_timeout_s is not None
    assert 20 <= orders.recommended_timeout_s <= 35
    assert orders.duplicates > 0
    assert (orders.crashes, orders.unknown > 0) == (0, True)
    assert few.certainty == NOT_ENOUGH
    assert few.replay is None
    tail = whole(findings.findings, "tail").candidates
    assert {each.policy for each in tail[0].policies} == {"none", "buffered", "heartbeat", "adaptive"}
    assert tail[0].policies[0].policy == "none"
    assert {10, 1, 43_200} <= {each.timeout_s for each in tail}


def test_only_the_queues_that_are_named_are_looked_at(tables_place: Storage):
    write_tables(
        tables_place, {MONDAY: [day_row(MONDAY, queue, a_day(1, leases=50)) for queue in ("a", "b", "c")]}
    )

    findings = run_timeouts(tables_place, queues=["a", "c"])

    assert [each.queue for each in findings.findings] == ["a", "c"]


def test_where_nothing_is_found_nothing_is_written_and_what_was_found_before_stays(tables_place: Storage):
    assert run_timeouts(tables_place).findings == []
    assert tables_place.entries() == []
    write_tables(tables_place, {MONDAY: [day_row(MONDAY, "orders", a_day(1, leases=50))]})
    found = run_timeouts(tables_place)
    assert run_timeouts(tables_place, since=date(2026, 4, 1)).findings == []
    assert decode(tables_place.read(FILE)) == found


def test_each_queue_as_a_whole_comes_first_then_its_types_where_it_has_several():
    histories = {
        Work("r", "a", "mixed", "slow"): a_day(1, HEAVY_TAIL),
        Work("r", "a", "mixed", "quick"): a_day(2),
        Work("r", "a", "single", "only"): a_day(3),
    }

    found = find_all(histories)

    assert [(each.queue, each.message_type) for each in found] == [
        ("mixed", None), ("mixed", "quick"), ("mixed", "slow"), ("single", None),
    ]  # fmt: skip
    assert found[0].leases == found[1].leases + found[2].leases


def test_the_replay_says_what_the_recommended_timeout_would_have_changed():
    too_short = find_all(
        {Work("r", "a", "q", ""): history_of(EXPONENTIAL, Random(1), leases=9_000, timeout_s=5)}
    )[0]
    far_too_long = find_all(
        {
            Work("r", "a", "q", ""): history_of(
                EXPONENTIAL, Random(2), leases=9_000, timeout_s=3_600, crash_every_s=300
            )
        }
    )[0]

    assert too_short.replay is not None
    assert too_short.replay.duplicates_then > 1_500
    assert too_short.replay.duplicates_with_recommended < 9
    assert far_too_long.replay is not None
    # An hour each.
    assert far_too_long.replay.hidden_hours_then == pytest.approx(far_too_long.unknown, rel=0.05)
    assert far_too_long.replay.hidden_hours_with_recommended < far_too_long.replay.hidden_hours_then / 50


def test_the_time_hidden_after_crashes_is_told_without_that_after_unexplained_lapses():
    def replay_of(crashed_share: float) -> Replay:
        history = history_of(EXPONENTIAL, Random(2), leases=9_000, timeout_s=3_600, crash_every_s=300)
        for bucket, count in history.recovery_unknown.items():
            history.recovery[bucket] = round(count * crashed_share)
        history.recovery_unknown.subtract(history.recovery)
        replay = find_all({Work("r", "a", "q", ""): history})[0].replay
        assert replay is not None
        return replay

    none, some, every = (replay_of(share) for share in (0.0, 0.25, 1.0))
    hours = none.hidden_hours_then
    assert [each.hidden_hours_then for each in (some, every)] == pytest.approx([hours, hours])
    assert none.hidden_hours_crashed == 0
    assert some.hidden_hours_crashed == pytest.approx(hours / 4, rel=0.05)
    assert every.hidden_hours_crashed == pytest.approx(hours)


def test_a_renewal_policy_allows_a_shorter_timeout_for_a_few_calls():
    history = {Work("r", "a", "q", ""): history_of(HEAVY_TAIL, Random(1), leases=20_000, timeout_s=43_200)}
    (without,) = find_all(history, policies=SCHEDULES)
    (renewed,) = find_all(history, policies=SCHEDULES, policy="adaptive")

    assert without.recommended_timeout_s is not None
    assert renewed.recommended_timeout_s is not None
    assert renewed.recommended_timeout_s < without.recommended_timeout_s
    (chosen,) = [each for each in renewed.candidates if each.timeout_s == renewed.recommended_timeout_s]
    (means,) = [each for each in chosen.policies if each.policy == "adaptive"]
    assert means.calls_per_message <= 1.0
    assert means.duplicate_chance_high <= 0.001


def test_work_longer_than_any_timeout_is_told_to_be_split():
    history = History(leases=5_000, present_ms=43_200_000)
    history.processing.update({bucket_of(60_000): 4_900, bucket_of(60_000_000): 100})

    (finding,) = find_all({Work("r", "a", "q", ""): history})

    assert finding.recommended_timeout_s == 43_200
    assert "split the work" in finding.reason


@pytest.mark.parametrize("target", [0, 1, -0.1, float("nan")])
def test_a_target_that_is_no_share_is_refused(target: float):
    with pytest.raises(ValueError, match="expected a share between 0 and 1"):
        find_all({}, target=target)
