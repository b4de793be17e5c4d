"""The dead letters in the report."""

from __future__ import annotations

from msgspec.structs import replace

from tests.pipeline.dead_letters_kit import NOON
from tests.pipeline.report_kit import some_findings
from veil.pipeline.dead_letters.analysis import DeadLetterExample, DeadLetterGroup, LeaseHistory
from veil.pipeline.report.overview import Overview
from veil.pipeline.report.page import render_html

GROUP = DeadLetterGroup(
    NOON, "orders-dead", "orders", "payment", "shop.Declined", "card <n> declined", "0123456789ab", 1_234, 0, 7,
    NOON, NOON, 3, 4, 5, 99, (LeaseHistory(1_200, "3 × superseded"),),
    (DeadLetterExample("m-1", NOON, "card 1 declined", "<secret>"),),
)  # fmt: skip


def page(*groups: DeadLetterGroup) -> str:
    return render_html(some_findings(1), Overview(NOON, None, None, dead_letters=groups))


def test_groups_stand_in_it_with_their_counts_and_how_their_leases_ended():
    told = page(GROUP)

    assert "<h2>Dead letters</h2>" in told
    for text in (
        "shop.Declined",
        "card &lt;n&gt; declined",
        "1,234",
        "3–5",
        "3 × superseded",
        "0123456789ab",
        "m-1",
    ):
        assert text in told, text


def test_bodies_do_not():
    assert "secret" not in page(GROUP)


def test_what_failed_stands_there_as_text():
    assert "<script" not in page(replace(GROUP, fingerprint="<script>alert(1)</script>", source="<script>"))


def test_without_an_analysis_there_is_no_such_section():
    assert "Dead letters" not in page()
