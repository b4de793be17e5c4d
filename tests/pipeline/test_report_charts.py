"""The curves: what is marked stands where the scale says."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from markupsafe import Markup

from tests.pipeline.report_kit import a_finding
from veil.charts import (
    LogScale,
    band,
    chance_scale,
    dilemma_chart,
    line,
    survival_chart,
    survival_sparkline,
    time_scale,
    time_ticks,
)
from veil.core.clock import Trouble
from veil.core.findings import Finding
from veil.pipeline.report.overview import QueueTimeline
from veil.pipeline.report.page import bars, policies_of, shades
from veil.pipeline.report.summary import shown_candidates


def dilemma(finding: Finding) -> Markup | None:
    return dilemma_chart(finding, 0.001, policies_of(finding), "plot curve")


def test_a_scale_places_decades_evenly_and_keeps_what_is_outside_at_its_edges():
    scale = LogScale(1, 1000)

    assert [scale.at(each) for each in (0, 1, 10, 100, 1000, 1e9)] == pytest.approx(
        [0, 0, 1 / 3, 2 / 3, 1, 1]
    )


@pytest.mark.parametrize("lengths", [[], [0], [5], [0.001, 43_200], [0.02, 0.03], [29, 30, 31], [1e-9, 1e9]])
def test_every_axis_of_time_names_two_to_six_lengths_that_have_room(lengths: list[float]):
    scale = time_scale(lengths)
    ticks = time_ticks(scale)

    assert scale.low < scale.high
    assert 2 <= len(ticks) <= 6
    places = [scale.at(tick) for tick in ticks]
    assert all(second - first > 0.15 for first, second in pairwise(places))


def test_an_axis_of_chances_reaches_a_decade_below_the_target():
    scale = chance_scale([1.0], 0.001)

    assert (scale.low, scale.high) == pytest.approx((0.0001, 1.0))


def test_paths_run_in_steps_and_bands_close():
    assert line([(0, 1), (0.5, 0.5), (1, 0)], step=True) == "M0 0H500V500H1000V1000"
    assert band([(0, 1, 1), (0.5, 0.4, 0.6)]) == "M0 0H500V400V600H500V0H0V0Z"


def test_the_two_timeouts_stand_on_the_survival_curve_where_they_belong():
    finding = a_finding(median_s=12, spread=0.7, present_s=30, leases=41_230)
    drawn = str(survival_chart(finding, 0.001))

    curve = [point for point in finding.curve if point.survival < 0.999]
    scale = time_scale([curve[0].after_s, finding.curve[-1].after_s, 30, 120])
    for name, timeout_s in (("present", 30), ("recommended", 120)):
        (place,) = re.findall(rf'<line x1="([\d.]+)%" x2="[\d.]+%" [^>]*class="mark {name}"', drawn)
        assert float(place) == pytest.approx(scale.at(timeout_s) * 100, abs=0.01)


def test_a_present_timeout_between_two_candidates_stands_on_the_line_between_them():
    drawn = str(dilemma(a_finding(present_s=52)))

    places = {
        name: (float(x), float(y))
        for x, y, name in re.findall(
            r'<circle cx="([\d.]+)%" cy="([\d.]+)%" r="5.5" class="point (\w+)"', drawn
        )
    }
    dots = {
        timeout: (float(x), float(y))
        for x, y, timeout in re.findall(
            r'cx="([\d.]+)%" cy="([\d.]+)%" r="2.5" class="dot candidate"><title>([^:]+):', drawn
        )
    }
    for axis in (0, 1):
        assert dots["45 s"][axis] < places["present"][axis] < dots["1 min"][axis]
    assert places["recommended"] == dots["2 min"]  # which is a candidate


def test_without_observations_there_is_no_curve():
    finding = a_finding(curve=[], candidates=[])

    assert survival_chart(finding, 0.001) is None
    assert dilemma(finding) is None
    assert survival_sparkline(finding, 0.001) is None


def test_a_few_candidates_are_shown_with_those_that_matter_among_them():
    finding = a_finding(present_s=5, median_s=40, spread=0.9, leases=90_000)
    shown = [each.timeout_s for each in shown_candidates(finding)]

    assert len(shown) == 7
    assert shown == sorted(shown)
    assert {5, finding.recommended_timeout_s} <= set(shown)


def test_what_happened_once_is_seen_beside_a_thousand():
    heights = [1000 - int(top) for top in re.findall(r"M[\d.]+ 1000V(\d+)", bars((1000, 0, 1)))]

    assert heights == [1000, 60]


def test_the_servers_own_trouble_is_shaded_however_short_it_was():
    begin = datetime(2026, 11, 9, tzinfo=UTC)
    at_ms, hour_ms = round(begin.timestamp() * 1000), 3_600_000
    troubles = [
        Trouble(at_ms - hour_ms, at_ms + hour_ms, "restart"),
        Trouble(at_ms + 2 * hour_ms, at_ms + 2 * hour_ms + 600, "disk"),
    ]
    timeline = QueueTimeline(begin, timedelta(hours=1), {"sent": (1, 0, 1, 0)})

    assert shades(timeline, troubles) == "M0.0 0H250.0V1000H0.0ZM500.0 0H503.0V1000H500.0Z"
    assert not shades(timeline, [])


def test_candidates_far_from_the_timeouts_in_question_are_left_out():
    from msgspec.structs import replace

    finding = a_finding(present_s=10, median_s=2, spread=0.4)
    sparse = [each for each in finding.candidates if each.timeout_s in (1, 2, 5, 900)]

    assert max(each.timeout_s for each in shown_candidates(finding)) <= 40
    assert [each.timeout_s for each in shown_candidates(replace(finding, candidates=sparse))] == [1, 2, 5]
