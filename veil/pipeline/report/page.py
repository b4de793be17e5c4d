"""The report as one HTML file that asks nobody for anything: styles and drawings inside, no script."""

from __future__ import annotations

import base64
import hashlib
from importlib.metadata import PackageNotFoundError, version

from veil.core.findings import Findings
from veil.pipeline import words
from veil.pipeline.report.dead_letters import dead_letters_section
from veil.pipeline.report.facts import Overview
from veil.pipeline.report.headline import headline_section, opening
from veil.pipeline.report.lives import life
from veil.pipeline.report.markup import Child, Markup, el
from veil.pipeline.report.notes import notes
from veil.pipeline.report.queue_section import queue_section
from veil.pipeline.report.style import STYLE
from veil.pipeline.report.totals import totals_section
from veil.pipeline.report.verdict import by_cost

# More queues than this are told in the tables alone: a page of a thousand drawings is read by nobody.
DETAILED_MAX = 60


def render_html(findings: Findings, overview: Overview) -> str:
    """The whole page. Whatever comes from data stands in it as text."""
    queues = by_cost(findings)
    lives = {(each.region, each.account, each.queue): each for each in overview.queues}
    detailed = queues[:DETAILED_MAX]
    sections: list[Child] = [
        queue_section(
            queue,
            lives.get(key),
            (overview.since, overview.until),
            findings.target_duplicates,
            f"queue-{number}",
        )
        for number, queue in enumerate(detailed, 1)
        for key in [(queue.whole.region, queue.whole.account, queue.whole.queue)]
    ]
    if len(queues) > len(detailed):
        left = words.plural(len(queues) - len(detailed), "further queue")
        sections.append(el("p", f"{left}: in the table above only.", class_="muted"))
    body = el(
        "body",
        el("header", *opening(findings, overview, queues), class_="top"),
        el(
            "main",
            headline_section(queues, len(detailed)),
            el("h2", "Queue by queue") if sections else None,
            *sections,
            totals_section(overview),
            dead_letters_section(overview.dead_letters),
            _examples(overview),
            notes(findings, overview),
        ),
        el("footer", _made(findings, overview)),
    )
    return "<!doctype html>\n" + el("html", _head(), body, lang="en") + "\n"


def _head() -> Markup:
    # The policy names the one style sheet by its hash: nothing else is styled, run, loaded or sent, whoever put it here.
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", "Veil: what the timeouts cost, and what they should be"),
        el("link", rel="icon", href="data:,"),  # else a browser asks the server for one
        el("style", Markup(STYLE)),
    )


def _examples(overview: Overview) -> Markup | None:
    if not overview.examples:
        return None
    key = el(
        "p",
        "A bar is a lease, from its receive to its end; the line at its end is its deadline, a blue one the last extension. "
        "Dashed red is work that went on after the deadline; pale is time that was granted and not needed.",
        class_="muted",
    )
    return el(
        "section",
        el("h2", "Single messages"),
        key,
        el("div", *(life(example) for example in overview.examples), class_="lives"),
    )


def _made(findings: Findings, overview: Overview) -> str:
    try:
        by = f"Veil {version('veilmq')}"
    except PackageNotFoundError:  # shipped to a cluster as bare files
        by = "Veil"
    by += f" on Spark {overview.spark_version}" if overview.spark_version else ""
    return (
        f"Made by {by}. Timeouts found {words.instant(findings.made_at)}, "
        f"tables read {words.instant(overview.collected_at)}."
    )
