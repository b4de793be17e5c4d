"""Which band a class belongs to, by what the past tells: it moves when the evidence is clear, and not before."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.pipeline.queue_histories import Known, history_of
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.store import TablesRefused
from veil.pipeline.lifecycles.tables import bucket_of
from veil.pipeline.routing.router import BandVerdict, LearnedRules, RouterState, by_class, decide, learn
from veil.pipeline.routing.rules import Band, RouteRefused, band_named, read_bands
from veil.pipeline.timeouts.history import History, Work

SHORT, MEDIUM, LONG = BANDS = read_bands("short=30s,medium=5min,long=1h")


def work_of(mean_s: float) -> Known:
    return Known("log-normal", lambda r: mean_s * r.lognormvariate(0, 0.3), lambda t: 0.0)


def past(mean_s: float, leases: int = 2_000, *, timeout_s: int = 3600, gives_up: bool = False) -> History:
    return history_of(work_of(mean_s), Random(1), leases=leases, timeout_s=timeout_s, gives_up=gives_up)


def where(history: History, here: Band, quantile: float = 0.99) -> BandVerdict:
    return decide("a", history, BANDS, here, quantile)


@pytest.mark.parametrize(("mean_s", "band"), [(2, SHORT), (60, MEDIUM), (600, LONG)])
def test_a_class_goes_to_the_shortest_band_that_its_work_fits_into(mean_s: float, band: Band):
    assert where(past(mean_s), LONG).band == band


def test_a_class_with_few_observations_stays_where_it_is():
    for here in BANDS:
        verdict = where(past(600 if here == SHORT else 2, leases=99), here)
        assert (verdict.band, verdict.moved_from) == (here, None)
        assert "99 leases tell of it, 100 are needed" in verdict.reason


def test_work_that_outlasts_its_band_moves_to_the_one_that_it_fits_into():
    verdict = where(past(600, timeout_s=3600), SHORT)

    assert (verdict.band, verdict.moved_from) == (LONG, SHORT)
    assert "outlasts 30 s" in verdict.reason


def test_work_that_is_always_cut_off_moves_a_step_though_nobody_has_seen_its_end():
    verdict = where(past(600, timeout_s=30, gives_up=True), SHORT)

    assert (verdict.band, verdict.moved_from) == (MEDIUM, SHORT)
    assert verdict.quantile_s is None


def test_a_class_at_the_border_stays_on_whichever_side_it_is():
    border = 30 / 1.25 / 2.0  # its 99th percentile is a little below the band's timeout
    history = past(border * 1.15, leases=3_000)

    assert where(history, SHORT).band == SHORT
    assert where(history, MEDIUM).band == MEDIUM


@pytest.mark.parametrize("mean_s", [0.5, 8, 11, 12, 13, 14, 15, 16, 20, 100, 140, 150, 160, 900])
def test_no_history_sends_a_class_to_and_fro(mean_s: float):
    history = past(mean_s, leases=1_000)

    for here in BANDS:
        settled = where(history, here).band
        assert where(history, settled).band == settled


def test_crashes_do_not_make_the_work_look_long():
    history = history_of(work_of(2), Random(3), leases=5_000, timeout_s=3600, crash_every_s=100)

    assert history.unknown > 50
    assert where(history, LONG, quantile=0.95).band == SHORT


def test_the_longest_band_is_the_end():
    assert where(past(20_000, timeout_s=43_200), LONG).band == LONG


def test_classes_are_learned_over_all_queues_and_new_ones_begin_at_the_default():
    histories = {
        Work("r", "0", "orders", "mail"): past(2, 80),
        Work("r", "0", "orders-long", "mail"): past(2, 80),
        Work("r", "0", "orders", "rare"): past(2, 5),
    }

    verdicts = learn(
        by_class(histories), BANDS, {"gone": "short", "odd": "no-such-band"}, LONG, quantile=0.95
    )

    assert {each.message_class: each.band.name for each in verdicts} == {
        "mail": "short", "rare": "long", "gone": "short", "odd": "long",
    }  # fmt: skip
    assert {each.message_class: each.observed for each in verdicts}["mail"] == 160


def test_a_history_of_one_lone_bucket_is_enough():
    history = History(leases=200, present_ms=3_600_000)
    history.processing[bucket_of(1_000)] = 200

    assert where(history, LONG, quantile=0.95).band == SHORT


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("short", "band short ''"),
        ("a b=3s", "band 'a b=3s': expected NAME=TIMEOUT"),
        ("short=0s", "band short '0s': expected a timeout from 1s to 12h"),
        ("short=13h", "band short '13h'"),
        ("a=30s,a=60s", "two have the name a"),
        ("a=60s,b=1min", "two have the timeout 1 min"),
    ],
)
def test_bands_that_make_no_sense_are_told(text: str, told: str):
    with pytest.raises(RouteRefused) as refused:
        read_bands(text)

    assert told in str(refused.value)


def test_bands_are_in_the_order_of_their_timeouts():
    assert read_bands("c=1h, a=5,b=2min") == [Band("a", 5), Band("b", 120), Band("c", 3600)]
    with pytest.raises(RouteRefused, match="band 'd': expected one of short, medium, long"):
        band_named(BANDS, "d")


def test_a_running_router_keeps_its_rules_while_the_tables_cannot_be_read(tables_place: Storage):
    state = RouterState(tables_place.sub("state"))
    state.keep()
    state.keep_classes({"mail": "short"})
    told: list[str] = []
    rules = LearnedRules(
        tables=tables_place, state=state, bands=BANDS, default=BANDS[-1], queue_of=lambda band: band.name,
        queues=["intake"], owner=("us-east-1", "000000000000"), look_every_s=0.0,
        on_problem=lambda problem: told.append(str(problem)),
    )  # fmt: skip
    before = rules.table()
    tables_place.write("manifest.json", b"{")

    assert rules.table() == before
    assert len(told) == 1
    assert "manifest.json cannot be read" in told[0]
    with pytest.raises(TablesRefused):  # who has no rules yet cannot begin
        replace(rules, _looked_at_s=float("-inf")).table()
