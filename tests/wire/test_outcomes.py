"""A request may say what came of the attempts that it ends; what cannot be read is ignored and counted, never refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.journal.kit import NO_TROUBLES, events_of
from veil.core.attempt import HEADER, HEADER_BYTES_MAX, ReportedOutcome, write_header
from veil.journal.storage import Storage
from veil.testing import VeilServer

FAILED = ReportedOutcome("failed", "shop.NoStock", "none left", "  File …", 120)


def ask(
    server: VeilServer,
    action: str,
    given: Mapping[str, Any],
    outcome: str | None = None,
    prefix: str = "AmazonSQS",
) -> dict[str, Any]:
    headers = {"X-Amz-Target": f"{prefix}.{action}", "Content-Type": "application/x-amz-json-1.0"}
    if outcome is not None:
        headers[HEADER] = outcome
    request = Request(server.endpoint_url, json.dumps(given).encode(), headers)
    with urlopen(request, timeout=120) as answer:
        text = answer.read()
        return dict(json.loads(text)) if text else {}


def a_lease(server: VeilServer) -> tuple[str, str]:
    url = ask(server, "CreateQueue", {"QueueName": "orders"})["QueueUrl"]
    ask(server, "SendMessage", {"QueueUrl": url, "MessageBody": "hello"})
    return url, ask(server, "ReceiveMessage", {"QueueUrl": url})["Messages"][0]["ReceiptHandle"]


def ended(server: VeilServer, outcome: str) -> None:
    """End three attempts, by each of the calls that can: in a batch, alone, and with a delete."""
    url, receipt = a_lease(server)
    entry = {"Id": "a", "ReceiptHandle": receipt, "VisibilityTimeout": 0}
    answer = ask(server, "ChangeMessageVisibilityBatch", {"QueueUrl": url, "Entries": [entry]}, outcome)
    assert answer["Successful"] == [{"Id": "a"}]
    _, receipt = a_lease(server)
    given = {"QueueUrl": url, "ReceiptHandle": receipt}
    ask(server, "ChangeMessageVisibility", {**given, "VisibilityTimeout": 500}, outcome)
    ask(server, "DeleteMessage", given, outcome)


def test_what_is_said_stands_in_the_journal(tmp_path: Path):
    with VeilServer("--data", str(tmp_path), NO_TROUBLES) as server:
        ended(server, write_header({"*": FAILED}))
    ends = [event for event in events_of(Storage.at(tmp_path / "journal")) if event["outcome"] is not None]
    assert [event["kind"] for event in ends] == ["released", "given_back", "deleted"]
    told = {
        ReportedOutcome(*(event[name] for name in ("outcome", *ReportedOutcome.__struct_fields__[1:])))
        for event in ends
    }
    assert told == {FAILED}


def test_a_server_may_keep_no_texts_of_errors(tmp_path: Path):
    with VeilServer("--data", str(tmp_path), "--no-error-texts", NO_TROUBLES) as server:
        ended(server, write_header({"*": FAILED}))
    ends = [event for event in events_of(Storage.at(tmp_path / "journal")) if event["outcome"] is not None]
    told = {
        ReportedOutcome(*(event[name] for name in ("outcome", *ReportedOutcome.__struct_fields__[1:])))
        for event in ends
    }
    assert told == {ReportedOutcome("failed", "shop.NoStock", worked_ms=120)}
    assert b"none left" not in b"".join(file.read_bytes() for file in tmp_path.glob("veil.db*"))


@pytest.mark.parametrize(
    "outcome", ["", "failed", '{"failed":{"*":7}}', '{"failed":"*"}', "x" * (HEADER_BYTES_MAX + 1), '{"a":"\xff"'],
    ids=range(6),
)  # fmt: skip
def test_what_cannot_be_read_is_ignored_and_counted(tmp_path: Path, outcome: str):
    with VeilServer("--data", str(tmp_path), NO_TROUBLES) as server:
        ended(server, outcome)
        with urlopen(f"{server.endpoint_url}/metrics", timeout=120) as answer:
            page = answer.read().decode()
    assert 'veil_outcomes_ignored_total{account="000000000000",queue="orders",region="us-east-1"} 3.0' in page
    events = events_of(Storage.at(tmp_path / "journal"))
    assert {event["outcome"] for event in events} == {None}
