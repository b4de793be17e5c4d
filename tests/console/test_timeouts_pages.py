"""Timeouts in a browser: what the pipeline found is drawn, explained, and applied through the same difference as an edit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.console.conftest import TELEPHONE, OpenPage
from tests.pipeline.report_kit import a_finding
from veil.cli.autopilot import ClientQueues, SharedAudit
from veil.client.blocking import BlockingClient, find_target
from veil.console.audit import AuditFile
from veil.console.pages.timeouts import RIGHT, TOO_LONG, FindingsRead, verdict
from veil.core import autopilot
from veil.core.autopilot import AutopilotState, Decision, DecisionKind, PilotedQueue, Prediction
from veil.core.findings import FILE, VERSION, Finding, Findings, encode
from veil.testing import VeilServer

OWN = {"region": "us-east-1", "account": "000000000000"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def server(tables: Path) -> Iterator[VeilServer]:
    with VeilServer("--data", str(tables), "--console-tables", str(tables)) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_findings(tables: Path) -> Iterator[None]:
    yield
    (tables / FILE).unlink(missing_ok=True)
    (tables / autopilot.FILE).unlink(missing_ok=True)


def found(tables: Path, *findings: Finding) -> None:
    written = encode(Findings(VERSION, datetime.now(UTC).isoformat(), 0.001, list(findings)))
    (tables / FILE).write_bytes(written)


def timeout_of(sqs: Any, url: str) -> str:
    names = ["VisibilityTimeout"]
    return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"][names[0]])


def test_a_recommended_timeout_is_applied_through_a_difference(
    server: VeilServer, sqs: Any, tables: Path, open_page: OpenPage
):
    url = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "30"})["QueueUrl"]
    found(tables, a_finding("orders", present_s=30, **OWN))
    page = open_page(f"{server.endpoint_url}/console/timeouts")
    row = page.locator(".timeouts tbody tr")
    assert row.locator("[data-label=Verdict]").inner_text() == "too short"
    assert row.locator("[data-label=Recommended]").inner_text() == "2 min"
    row.get_by_role("link", name="orders").click()

    chart = page.locator(".curve svg").first
    assert chart.locator("text.present").first.text_content() == "present 30 s"
    assert chart.locator("text.recommended").first.text_content() == "recommended 2 min"
    assert "12,000: 11,683 completed, 317 censored" in page.locator(".timeout-section").inner_text()
    page.get_by_role("button", name="Apply 2 min").click()
    assert page.locator("del").inner_text() == "30 s" and page.locator("ins").inner_text() == "2 min"
    assert "VisibilityTimeout=120" in page.locator("pre.command").inner_text()
    assert timeout_of(sqs, url) == "30"
    page.get_by_role("button", name="Change the queue").click()

    assert page.locator(".notice").first.inner_text() == "The visibility timeout of orders is now 2 min."
    assert timeout_of(sqs, url) == "120"
    assert page.get_by_role("button", name="Apply").count() == 0
    assert page.locator("h1 .chip").inner_text() == "right"


def test_a_timeout_that_is_not_the_one_analysed_is_not_changed(
    server: VeilServer, sqs: Any, tables: Path, open_page: OpenPage
):
    url = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "30"})["QueueUrl"]
    found(tables, a_finding("orders", present_s=30, **OWN))
    page = open_page(f"{server.endpoint_url}/console/timeouts/us-east-1/orders", expected=("409",))
    # Changed by somebody else while the page was looked at.
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "45"})
    page.get_by_role("button", name="Apply 2 min").click()
    assert "began with 30 s and its timeout is 45 s" in page.get_by_role("alert").inner_text()
    assert timeout_of(sqs, url) == "45"


def test_too_little_evidence_is_said_and_nothing_is_offered(
    server: VeilServer, sqs: Any, tables: Path, open_page: OpenPage
):
    sqs.create_queue(QueueName="slow")
    found(tables, a_finding("slow", leases=200, median_s=20, **OWN))
    page = open_page(f"{server.endpoint_url}/console/timeouts/us-east-1/slow")
    assert page.locator("h1 .chip").inner_text() == "not enough evidence"
    assert "Not enough evidence: 2,800 more leases" in page.locator(".notice").inner_text()
    assert page.get_by_role("button", name="Apply").count() == 0


def test_types_of_messages_have_curves_of_their_own_and_other_accounts_are_not_shown(
    server: VeilServer, sqs: Any, tables: Path, open_page: OpenPage
):
    sqs.create_queue(QueueName="orders")
    stranger = OWN | {"account": "111111111111"}
    found(
        tables,
        a_finding("orders", **OWN),
        a_finding("orders", message_type="<b>Big</b>", median_s=20, **OWN),
        a_finding("secret", **stranger),
    )
    page = open_page(f"{server.endpoint_url}/console/timeouts", expected=("404",))
    assert page.locator(".timeouts tbody th").all_inner_texts() == ["orders 1 type"]
    page.get_by_role("link", name="orders").click()
    assert page.locator(".curve").count() == 2
    assert page.locator("h3").inner_text().startswith("<b>Big</b>")
    page.goto(f"{server.endpoint_url}/console/timeouts/us-east-1/secret")
    assert "The pipeline has no findings about queue secret" in page.get_by_role("alert").inner_text()


def test_without_findings_the_page_says_how_to_make_them(
    server: VeilServer, sqs: Any, tables: Path, open_page: OpenPage
):
    page = open_page(f"{server.endpoint_url}/console/timeouts")
    text = page.locator("main").inner_text()
    assert f"veil pipeline timeouts --tables {tables}\n" in text
    assert FindingsRead(None, Path("/var/lib/my veil/tables")).options == "--data '/var/lib/my veil'"
    (tables / FILE).write_text('{"version": 99')
    page.reload()
    assert f"{FILE} is not readable" in page.get_by_role("alert").inner_text()


def test_a_server_in_memory_says_why_there_is_nothing_to_learn_from(open_page: OpenPage):
    with VeilServer() as server:
        page = open_page(f"{server.endpoint_url}/console/timeouts")
        assert "keeps everything in memory" in page.locator("main").inner_text()


def test_on_a_telephone_the_curve_fits_the_width(
    server: VeilServer, sqs: Any, tables: Path, open_page: OpenPage
):
    sqs.create_queue(QueueName="orders")
    found(tables, a_finding("orders", **OWN))
    page = open_page(f"{server.endpoint_url}/console/timeouts/us-east-1/orders", viewport=TELEPHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]


def piloted(tables: Path, **given: Any) -> None:
    told = Prediction(
        overrun_before=0.3, overrun_after=0.0008, overrun_after_high=0.001, recovery_before_s=16.0, recovery_after_s=100.0,
        crashed=0.0, work_s=20.0,
    )  # fmt: skip
    change = Decision(
        kind=DecisionKind.CHANGE, code="change 120", reason="30 s to 2 min", at_ms=1_000, before_s=30, after_s=120,
        bound="step=4", prediction=told,
    )  # fmt: skip
    queue = PilotedQueue(mode="apply", seen_s=120, last=change, change=change)
    state = AutopilotState(**OWN, queues={"orders": replace(queue, **given)})
    (tables / autopilot.FILE).write_bytes(autopilot.encode_state(state))


def test_what_the_autopilot_decided_stands_beside_the_evidence(
    server: VeilServer, sqs: Any, tables: Path, open_page: OpenPage
):
    sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "120"})
    found(tables, a_finding("orders", present_s=120, **OWN))
    piloted(tables, advised={"failures": "62 % of the attempts failed"})
    page = open_page(f"{server.endpoint_url}/console/timeouts")
    assert page.locator(".timeouts tbody th .chip").inner_text() == "autopilot: apply, advice"
    page.get_by_role("link", name="orders").click()
    text = page.locator("main").inner_text()
    assert "30 s to 2 min (limited by step=4)" in text
    assert "0.08 % of the attempts outlast the timeout instead of 30 %" in text
    assert "veil queue edit orders --visibility-timeout 30s --endpoint" in text
    assert "62 % of the attempts failed." in text
    assert "What it decided" not in text
    decided = Decision(
        kind=DecisionKind.CHANGE, code="", reason="30 s to 2 min", at_ms=1_000, before_s=30, after_s=120, attempts=500,
        p50_s=20.0, p99_s=90.0,
    )  # fmt: skip
    with closing(BlockingClient(find_target(server.endpoint_url, None))) as client:
        SharedAudit(AuditFile(tables / "audit.jsonl"), ClientQueues(client)).asked(
            "1", "orders", decided, "done"
        )
    page.reload()
    (row,) = page.get_by_role("table").filter(has_text="What it decided").locator("tbody tr").all()
    for text in (
        "change",
        "30 s",
        "2 min",
        "by 500 attempts, of which half took up to 20 s and 99 % up to 1 min 30 s",
    ):
        assert text in row.inner_text()


def test_a_timeout_that_the_autopilot_finds_right_by_its_cost_is_right():
    right = Decision(kind=DecisionKind.NOTHING, code=autopilot.RIGHT, reason="", at_ms=1_000)
    finding = a_finding("orders", present_s=3_600)
    assert verdict(finding, 3_600) == TOO_LONG
    assert verdict(finding, 3_600, PilotedQueue(seen_s=3_600, last=right)) == RIGHT
    assert verdict(finding, 3_600, PilotedQueue(seen_s=30, last=right)) == TOO_LONG


def test_a_silenced_queue_shows_how_to_let_the_autopilot_go_on(
    server: VeilServer, sqs: Any, tables: Path, open_page: OpenPage
):
    sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "120"})
    found(tables, a_finding("orders", present_s=120, **OWN))
    piloted(tables, silenced_ms=2_000)
    page = open_page(f"{server.endpoint_url}/console/timeouts/us-east-1/orders")
    text = page.locator("main").inner_text()
    assert "veil autopilot resume orders" in text
    assert "veil queue edit" not in text
    (tables / autopilot.FILE).write_bytes(b"{")  # not readable: as if there were none
    page.reload()
    assert "Autopilot" not in page.locator("main").inner_text()
