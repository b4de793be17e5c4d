"""A life is told from events: how each lease ended, also where its holder came late or the journal begins in between."""

from __future__ import annotations

from typing import Any

from veil.console.life_drawing import LifeScale, draw, lease_words
from veil.console.templates import templates
from veil.core.queue import QueueKey
from veil.journal.attempts import Life, tell
from veil.journal.lives import LifeEvent

ORDERS = QueueKey("us-east-1", "000000000000", "orders")
NOW_MS = 1_790_000_000_000


def an_event(kind: str, at_s: float, **fields: Any) -> LifeEvent:
    at_ms = NOW_MS + round(at_s * 1000)
    if "deadline_s" in fields:
        fields["deadline_ms"] = NOW_MS + round(fields.pop("deadline_s") * 1000)
    return LifeEvent(at_ms, at_ms, kind, ORDERS, 7, "id", **fields)


def told(*events: LifeEvent, now_s: float = 1_000) -> Life:
    life = tell(events, NOW_MS + round(now_s * 1000))
    assert life is not None
    return life


def ends(life: Life) -> list[tuple[str, int | None]]:
    return [(lease.how, lease.held_ms) for lease in life.leases]


def test_a_lease_nobody_ended_lapses_at_its_deadline_and_not_when_it_is_noticed():
    life = told(
        an_event("sent", 0),
        an_event("received", 1, delivery=1, deadline_s=31),
        an_event("received", 500, delivery=2, deadline_s=530),
        now_s=510,
    )
    assert ends(life) == [("lapsed", 30_000), ("open", None)]


def test_renewals_move_the_deadline_and_a_delete_ends_the_lease():
    life = told(
        an_event("received", 0, delivery=1, deadline_s=30),
        an_event("extended", 20, delivery=1, deadline_s=50),
        an_event("extended", 40, delivery=1, deadline_s=70),
        an_event("deleted", 60, delivery=1),
    )
    assert ends(life) == [("deleted", 60_000)]
    assert lease_words(life.leases[0]) == "held 1 min · renewed 2 times · deleted in time"
    assert life.is_over and life.stays[0].went == "deleted"


def test_a_delay_that_is_set_anew_ends_when_it_says():
    life = told(
        an_event("sent", 0, deadline_s=172_800),
        an_event("delayed", 20, deadline_s=25),
        an_event("received", 30, delivery=1, deadline_s=60),
        now_s=40,
    )
    assert life.stays[0].delayed_until_ms == NOW_MS + 25_000
    assert ends(life) == [("open", None)]


def test_a_lapsed_receipt_that_still_deletes_is_told_as_late():
    life = told(an_event("received", 0, delivery=1, deadline_s=30), an_event("deleted", 45, delivery=1))
    assert ends(life) == [("lapsed", 30_000)]
    assert (
        lease_words(life.leases[0])
        == "held 30 s · lapsed · completed · deleted by its lapsed receipt 15 s later"
    )
    # The lease was over before the attempt was.
    assert life.leases[0].attempt_ended_at_ms == NOW_MS + 45_000


def test_a_failed_attempt_is_told_with_its_error_and_when_the_next_one_may_come():
    life = told(
        an_event("received", 0, delivery=1, deadline_s=600),
        an_event("given_back", 0.5, delivery=1, deadline_s=5, outcome="failed", error_type="NoStock"),
        an_event("received", 5, delivery=2, deadline_s=605),
        an_event("given_back", 6, delivery=2, deadline_s=16),
        now_s=7,
    )
    assert ends(life) == [("given_back", 500), ("given_back", 1_000)]
    assert [lease.outcome for lease in life.leases] == ["failed", "given_back"]
    first, second = map(lease_words, life.leases)
    assert first == "held 500 ms · failed: NoStock · visible again after 4.5 s"
    assert second == "held 1 s · given back · visible again after 10 s"


def test_a_receive_without_a_window_is_given_back_and_has_not_lapsed():
    life = told(
        an_event("received", 0, delivery=1, deadline_s=0),
        an_event("received", 5, delivery=2, deadline_s=35),
        now_s=7,
    )
    assert ends(life) == [("released", 0), ("open", None)]
    assert lease_words(life.leases[0]) == "held 0 s · given back"


def test_a_lapse_is_judged_by_what_is_known_of_its_holder():
    for kind, outcome in (
        ("holder_seen", "failed"),
        ("holder_silent", "crashed"),
        ("delete_refused", "overran"),
    ):
        received = an_event("received", 0, delivery=1, deadline_s=30)
        life = told(received, an_event(kind, 95, delivery=1))
        assert life.leases[0].outcome == outcome
        assert f"lapsed · {outcome}" in lease_words(life.leases[0])
    assert told(an_event("received", 0, delivery=1, deadline_s=30)).leases[0].outcome == "unknown"


def test_a_refused_delete_belongs_to_the_lease_that_was_lost():
    life = told(
        an_event("received", 0, delivery=1, deadline_s=30),
        an_event("received", 40, delivery=2, deadline_s=70),
        an_event("deleted", 50, delivery=2),
        an_event("delete_refused", 55, delivery=1),
    )
    assert [len(lease.late) for lease in life.leases] == [1, 0]
    assert ends(life) == [("lapsed", 30_000), ("deleted", 10_000)]


def test_an_answer_that_never_left_and_a_release_end_their_leases():
    life = told(
        an_event("received", 0, delivery=1, deadline_s=30),
        an_event("undone", 1, delivery=1),
        an_event("received", 2, delivery=2, deadline_s=32),
        an_event("released", 5, delivery=2),
        now_s=10,
    )
    assert ends(life) == [("undone", 1_000), ("released", 3_000)]
    assert not life.is_over


def test_a_life_whose_beginning_is_not_in_the_journal_is_told_from_what_there_is():
    life = told(an_event("extended", 20, delivery=3, deadline_s=50), an_event("deleted", 30, delivery=3))
    assert life.stays[0].came == "unknown"
    assert ends(life) == [("deleted", 10_000)]


def test_a_long_wait_is_cut_short_and_the_rest_stays_true_to_scale():
    scale = LifeScale(0, 1_000_000, [(0, 10_000), (990_000, 1_000_000)])
    (cut,) = scale.cuts
    assert cut.length_ms == 980_000
    first, second = scale.at(10_000) - scale.at(0), scale.at(1_000_000) - scale.at(990_000)
    assert abs(first - second) < 1e-9 and first > 0.4
    assert scale.at(-5) == 0.0 and scale.at(2_000_000) == 1.0


def test_a_message_that_only_waits_is_drawn_without_cuts():
    life = told(an_event("sent", 0), now_s=100_000)
    drawing = draw(life, NOW_MS + 100_000_000)
    assert not drawing.cuts and [row.kind for row in drawing.rows] == ["stay"]


def test_what_was_granted_and_is_not_used_yet_does_not_press_the_past_together():
    life = told(
        an_event("received", 0, delivery=1, deadline_s=43_200),
        an_event("extended", 5, delivery=1, deadline_s=43_200),
        now_s=10,
    )
    drawing = draw(life, NOW_MS + 10_000)
    assert drawing.cuts == ["12 h"]  # less ten seconds
    (bar,) = [mark for mark in drawing.rows[1].marks if mark.kind == "held open"]
    assert (bar.shape, bar.begin, round(bar.end, 2)) == ("bar", 0.0, 0.89)


def test_names_are_text_in_the_drawing():
    queue = ORDERS._replace(name="<script>")
    life = tell([LifeEvent(1, NOW_MS, "sent", queue, 7)], NOW_MS + 1)
    assert life is not None
    drawn = [
        templates().render("life_marks.html", marks=row.marks, height=20)
        for row in draw(life, NOW_MS + 1).rows
    ]
    assert drawn and all("<script>" not in each for each in drawn)
