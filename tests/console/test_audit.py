"""The audit log: what was asked and what came of it, on disk before it is done, read from its end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.console.test_access import EDIT
from tests.console.web import Visitor
from veil.console.audit import ASKED, DONE, Audit, AuditUnavailable
from veil.core.clock import ManualClock
from veil.testing import VeilServer

WHO: dict[str, Any] = {"who": "KEY", "role": "admin", "address": "::1", "account": "1"}


@pytest.fixture(params=["file", "memory"])
def audit(request: pytest.FixtureRequest, tmp_path: Path) -> Audit:
    return Audit(tmp_path / "audit.jsonl" if request.param == "file" else None, ManualClock())


async def test_the_newest_change_comes_first_with_how_it_ended(audit: Audit):
    first = await audit.asked(**WHO, action="edit queue", target="a", differences=[("x", "1", "2")])
    await audit.asked(**WHO, action="edit queue", target="b")
    await audit.ended(first, DONE, "it is 2 now")

    b, a = (await audit.page("1")).entries

    assert (b.target, b.outcome) == ("b", ASKED)
    assert (a.target, a.outcome, a.detail, a.differences) == ("a", DONE, "it is 2 now", [["x", "1", "2"]])
    assert a.at == "2023-11-14T22:13:20.000Z"


async def test_it_is_read_page_by_page_and_nothing_is_missed(audit: Audit):
    for number in range(25):
        entry_id = await audit.asked(**WHO, action="send", target=str(number))
        await audit.ended(entry_id, DONE)
    seen: list[str] = []
    before = None
    while True:
        page = await audit.page("1", before=before, limit=10)
        assert all(entry.outcome == DONE for entry in page.entries)
        seen += [entry.target for entry in page.entries]
        before = page.older
        if before is None:
            break
    assert seen == [str(number) for number in reversed(range(25))]


async def test_a_text_is_found_and_another_accounts_entries_are_not(audit: Audit):
    await audit.asked(**WHO, action="send", target="Orders")
    await audit.asked(**(WHO | {"account": "2"}), action="send", target="orders of others")
    await audit.asked(**WHO, action="send", target="mails")
    assert [entry.target for entry in (await audit.page("1", search="orders")).entries] == ["Orders"]


async def test_a_line_that_a_crash_cut_short_is_passed_over(tmp_path: Path):
    file = tmp_path / "audit.jsonl"
    file.write_text('{"id":"1","at":"20')
    audit = Audit(file, ManualClock())
    await audit.asked(**WHO, action="send", target="a\nline break")
    assert [entry.target for entry in (await audit.page("1")).entries] == ["a\nline break"]


async def test_a_log_that_cannot_be_written_is_said(tmp_path: Path):
    (tmp_path / "audit.jsonl").mkdir()
    with pytest.raises(AuditUnavailable, match="nothing was changed"):
        await Audit(tmp_path / "audit.jsonl", ManualClock()).asked(**WHO, action="send", target="a")


def test_a_change_that_cannot_be_recorded_is_not_made(tmp_path: Path):
    (tmp_path / "audit.jsonl").mkdir()
    with VeilServer("--data", str(tmp_path), "--journal", "off") as server:
        sqs = server.client()
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        from tests.console.test_access import confirmed, timeout_of

        visitor = Visitor(server)
        fields = confirmed(visitor, {"token": visitor.get(EDIT).token, "visibility_s": "77"})
        assert visitor.post(EDIT, fields).status == 503
        assert timeout_of(sqs, url) == "30"
        sqs.close()


def test_what_was_refused_for_its_role_is_recorded_too(tmp_path: Path):
    with VeilServer(
        "--data", str(tmp_path), "--journal", "off", environ={"VEIL_KEYS": "LOOK:look-secret::viewer"}
    ) as server:
        visitor = Visitor(server)
        visitor.log_in("LOOK", "a guess")
        visitor.log_in("LOOK", "look-secret")
        visitor.post(EDIT, {"token": visitor.get("/console/queues").token, "visibility_s": "77"})
    guess, _, edit = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert (guess["action"], guess["who"], guess["outcome"]) == ("log in", "LOOK", "refused")
    assert (edit["target"], edit["who"], edit["outcome"]) == ("orders", "LOOK", "refused")


def test_log_ins_and_log_outs_are_filed_under_the_account_they_concern(tmp_path: Path):
    keys = "ROOT:root-secret,THEIRS:their-secret:111111111111:viewer"
    with VeilServer("--data", str(tmp_path), "--journal", "off", environ={"VEIL_KEYS": keys}) as server:
        root, theirs = Visitor(server), Visitor(server)
        theirs.log_in("THEIRS", "a guess")
        theirs.log_in("NOBODY", "a guess")
        theirs.log_in("THEIRS", "their-secret")
        theirs.post("/console/logout", {"token": theirs.get("/console/queues").token})
        theirs.post("/console/logout", {"token": theirs.get("/console/login").token})  # has none to end
        theirs.log_in("THEIRS", "their-secret")
        root.log_in("ROOT", "root-secret")
        seen = [
            re.findall("<b>(log (?:in|out))</b>", each.get("/console/audit").text) for each in (theirs, root)
        ]
        shown = theirs.get("/console/audit").text
        assert "NOBODY" not in shown and "ROOT" not in shown
        shown = root.get("/console/audit").text
        assert "NOBODY" in shown and "THEIRS" not in shown
    assert seen == [["log in", "log out", "log in", "log in"], ["log in", "log in"]]
    told = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(each["who"], each["role"], each["outcome"]) for each in told] == [
        ("THEIRS", "", "refused"),
        ("NOBODY", "", "refused"),
        ("THEIRS", "viewer", "done"),
        ("THEIRS", "viewer", "done"),
        ("THEIRS", "viewer", "done"),
        ("ROOT", "admin", "done"),
    ]


def test_a_log_in_that_cannot_be_recorded_still_lets_people_look(tmp_path: Path):
    (tmp_path / "audit.jsonl").mkdir()
    with VeilServer("--data", str(tmp_path), "--journal", "off", environ={"VEIL_KEYS": "ROOT:s"}) as server:
        visitor = Visitor(server)
        assert visitor.log_in("ROOT", "s").status == 303
        assert visitor.get("/console/queues").status == 200
