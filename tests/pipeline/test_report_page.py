"""The page: whole, self-contained, safe with any name, and saying what the findings say."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import msgspec
import pytest

from tests.pipeline.report_kit import BEGIN, a_finding, a_lease, some_findings, some_overview
from veil.core.findings import Findings
from veil.pipeline.report.overview import SERIES, Overview, QueueTimeline
from veil.pipeline.report.page import DETAILED_MAX, render_html

HOSTILE = """</td></svg><script>alert(1)</script><img src=x onerror=alert(2)>"' & <!-- ]]> {{7*7}}"""


def page_of(findings: Findings, overview: Overview | None = None) -> str:
    return render_html(findings, overview or some_overview(findings))


def tree_of(page: str) -> ElementTree.Element:
    """The page as XML, which it is as well: whatever is not closed or not escaped fails here."""
    return ElementTree.fromstring(page.removeprefix("<!doctype html>\n"))


def text_of(element: ElementTree.Element) -> str:
    return " ".join(" ".join(element.itertext()).replace("\u00a0", " ").split())


def sections(page: str) -> list[ElementTree.Element]:
    return [each for each in tree_of(page).iter("article") if "queue" in each.get("class", "").split()]


def test_every_element_is_closed_and_everything_is_escaped():
    assert tree_of(page_of(some_findings(12))).tag == "html"


def test_names_from_data_are_text_wherever_they_stand():
    finding = a_finding(HOSTILE, reason=HOSTILE, region=HOSTILE, account=HOSTILE)
    typed = msgspec.structs.replace(finding, message_type=HOSTILE, policy=HOSTILE, certainty=HOSTILE)
    doubtful = a_finding(HOSTILE + "2", missing=HOSTILE, recommended_timeout_s=None, replay=None)
    findings = Findings(1, HOSTILE, 0.001, [finding, typed, doubtful])
    overview = some_overview(findings)
    (first, *_) = overview.examples
    leases = (
        a_lease(
            1,
            queue=HOSTILE,
            user_agent=HOSTILE,
            how=HOSTILE,
            outcome=HOSTILE,
            error_type=HOSTILE,
            overrun=True,
        ),
    )
    kinds = ("duplicate", "crash", "dead_letter", "renewed", HOSTILE)
    examples = tuple(
        replace(first, kind=kind, queue=HOSTILE, message_id=HOSTILE, message_type=HOSTILE, leases=leases)
        for kind in kinds
    )
    page = page_of(findings, replace(overview, examples=examples))

    tree = tree_of(page)
    assert {each.tag for each in tree.iter()}.isdisjoint(
        {"script", "img", "iframe", "object", "foreignObject"}
    )
    attributes = {name for each in tree.iter() for name in each.attrib}
    assert not {name for name in attributes if name.startswith("on")}
    shown = text_of(tree)
    assert shown.count("<script>alert(1)</script>") >= 10
    assert "<script" not in page


def test_what_a_page_would_not_show_or_would_obey_is_made_visible():
    page = page_of(Findings(1, "", 0.001, [a_finding("or\u202eders\x00\x1b[2J\ud800")]))

    assert "or\\u202eders\\x00\\x1b[2J\\ud800" in text_of(tree_of(page))
    page.encode()


def test_the_page_asks_nobody_for_anything():
    tree = tree_of(page_of(some_findings()))

    for each in tree.iter():
        assert each.tag not in {
            "script",
            "img",
            "iframe",
            "object",
            "embed",
            "audio",
            "video",
            "image",
            "use",
        }
        assert "src" not in each.attrib
        assert each.get("href", "#").startswith(("#", "data:,"))
        assert "style" not in each.attrib  # the policy would refuse it
    (style,) = tree.iter("style")
    assert "url(" not in (style.text or "")
    assert "@import" not in (style.text or "")


def test_the_policy_allows_the_one_style_sheet_and_nothing_else():
    page = page_of(some_findings())
    style = re.search(r"<style>(.*?)</style>", page, re.S)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()

    (policy,) = (
        each.get("content", "")
        for each in tree_of(page).iter("meta")
        if each.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.split("; ") == [
        "default-src 'none'",
        f"style-src 'sha256-{digest}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_the_dearest_queue_comes_first_and_types_stand_under_their_queue():
    cheap = a_finding("cheap", present_s=120, crash_rate=0.0)
    dear = a_finding("dear", present_s=43_200, crash_rate=0.05)
    typed = a_finding("dear", present_s=43_200, leases=4_000, message_type="invoice")
    page = page_of(Findings(1, "", 0.001, [cheap, typed, dear]))

    rows = [text_of(each) for each in tree_of(page).iter("tr")][1:4]
    assert [row.split()[0] for row in rows] == ["dear", "invoice", "cheap"]
    assert [text_of(next(each.iter("h3"))) for each in sections(page)] == ["dear", "cheap"]


def test_queues_of_one_name_are_told_apart_by_their_account_and_region():
    queues = [a_finding("orders"), a_finding("orders", account="111111111111"), a_finding("mails")]
    page = page_of(Findings(1, "", 0.001, queues))
    told = {text_of(next(each.iter("h3"))) for each in sections(page)}
    assert told == {"mails", *(f"orders ({each.account} in {each.region})" for each in queues[:2])}
    for name in told:
        assert page.count(f">{name}<") >= 2  # in the table, and above its section


def test_links_lead_to_the_sections():
    tree = tree_of(page_of(some_findings(5)))

    ids = [each.get("id") for each in tree.iter() if each.get("id")]
    assert len(ids) == len(set(ids))
    targets = [each.get("href", "")[1:] for each in tree.iter("a")]
    assert targets
    assert set(targets) <= set(ids)


def test_a_queue_that_is_known_has_both_curves_its_candidates_and_the_replay_in_words():
    finding = a_finding("thumbnails", median_s=12, spread=0.7, present_s=30, leases=41_230)
    (section,) = sections(page_of(Findings(1, "", 0.001, [finding])))

    plots = [each for each in section.iter("div") if "plot" in each.get("class", "").split()]
    assert len(plots) == 2
    for plot in plots:
        names = [text_of(each) for each in plot.iter("text")]
        assert "present 30 s" in names
        assert "recommended 2 min" in names
        assert "target 0.1 %" in names
    told = text_of(section)
    assert "Over these 6 days a timeout of 2 min would have avoided 3,907 of 3,928 duplicates" in told
    assert "calls per message" in told
    assert "2 min recommended" in told
    assert "41,230 leases, of which" in told


def test_the_servers_own_troubles_are_shaded_in_every_strip_and_told_below():
    [section] = sections(page_of(Findings(1, "now", 0.001, [a_finding()])))

    strips = [each for each in section.iter("div") if each.get("class") == "bed"]
    shaded = [each for each in section.iter("path") if each.get("class") == "trouble"]
    assert len(shaded) == len(strips) > 0
    told = text_of(section)
    assert "The server itself was in trouble 2 times:" in told
    assert "the database was unreachable, 1 h" in told and "the disk stalled, 1.5 s" in told


def test_what_never_happened_is_said_instead_of_drawn():
    findings = Findings(1, "now", 0.001, [a_finding()])
    overview = some_overview(findings)
    [life] = overview.queues
    counts = {**dict.fromkeys(SERIES, (0, 0, 0)), "sent": (1000, 0, 1)}
    quiet = QueueTimeline(BEGIN, timedelta(hours=1), counts)
    [section] = sections(page_of(findings, replace(overview, queues=(replace(life, timeline=quiet),))))

    assert [text_of(each) for each in section.iter("div") if each.get("class") == "what"] == ["sent 1,001"]
    assert "No deleted, lapses, duplicates or dead letters." in text_of(section)


def test_a_queue_that_is_not_known_says_what_is_missing():
    finding = a_finding("webhooks", leases=412, missing="2,588 more leases are needed")
    (section,) = sections(page_of(Findings(1, "", 0.001, [finding])))

    assert "Not enough evidence. 2,588 more leases are needed." in text_of(section)
    assert "recommended" not in text_of(section)


def test_a_queue_without_a_lease_is_told_without_a_curve():
    empty = a_finding(
        "idle", leases=0, completed=0, censored=0, duplicates=0, crashes=0, curve=[], candidates=[],
        present_timeout_s=None, p50_s=None, p90_s=None, p99_s=None, p999_s=None, mean_s=None,
    )  # fmt: skip
    (section,) = sections(page_of(Findings(1, "", 0.001, [empty])))

    assert not [each for each in section.iter("div") if "plot" in each.get("class", "").split()]


def test_without_any_event_the_page_says_so():
    now = datetime(2026, 11, 15, tzinfo=UTC)
    page = render_html(Findings(1, now.isoformat(), 0.001, []), Overview(now, None, None))

    assert "nothing to judge" in text_of(tree_of(page))


def test_a_thousand_queues_stay_a_page_that_opens():
    findings = Findings(1, "", 0.001, [a_finding(f"queue-{number}") for number in range(1000)])
    page = render_html(findings, Overview(datetime(2026, 11, 15, tzinfo=UTC), None, None))

    assert len(sections(page)) == DETAILED_MAX
    assert "940 further queues" in page
    assert "queue-999" in page
    assert len(page) < 4_000_000


def test_nothing_is_drawn_nowhere():
    page = page_of(some_findings(12))

    assert not re.search(r'="[^"]*\b(nan|inf)\b', page)
    places = [float(each) for each in re.findall(r'\b(?:x|y|x1|x2|y1|y2|cx|cy)="(-?[\d.]+)%"', page)]
    assert len(places) > 1000
    assert all(0 <= place <= 100 for place in places)


def test_totals_and_single_lives_are_told():
    told = text_of(tree_of(page_of(some_findings())))

    assert "What came of attempts" in told
    # A lease that its holder gave back after an error is a failed attempt, not a release.
    assert re.search(
        r"failed [\d,]+ .* given back [\d,]+ .* overran .* crashed .* lapsed, reason unknown", told
    )
    assert re.search(r"hidden after crashes \([\d,.]+ h\) and unexplained lapses \(", told)
    assert "lapsed, received again · crashed" in told
    assert "held 3 s · failed: shop.NoStock" in told
    assert "What became of messages" in told
    assert "The work took 48 s, the lease lasted 30 s: somebody else received the message" in told
    assert "its holder was done 18 s later" in told
    assert "20 extensions kept the message hidden" in told
    assert "Received 4 times without being deleted, then moved to the dead letters." in told
    assert "received again 31 s after the last sign of life" in told


def test_what_no_queue_has_evidence_for_is_not_told_as_nothing():
    known, unknown = a_finding("known"), a_finding("unknown", replay=None, unknown=5)
    none_known = text_of(tree_of(page_of(Findings(1, "", 0.001, [unknown]))))
    assert "– hidden after" in none_known
    assert "avoidable" not in none_known
    some_known = text_of(tree_of(page_of(Findings(1, "", 0.001, [known, unknown]))))
    assert "hidden after crashes in 1 of 2 queues" in some_known


@pytest.mark.parametrize("timeout_s", [0, 1, 43_200])
def test_timeouts_at_the_ends_are_drawn(timeout_s: int):
    tree_of(page_of(Findings(1, "", 0.001, [a_finding(present_s=max(timeout_s, 0.001))])))
