from __future__ import annotations

import shutil
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.conftest import Ran, Veil
from tests.http_stub import StubAnswer, http_stub
from veil.cli.doctor import CheckResult, check_clock, check_data, check_disk_speed, check_ready
from veil.cli.options import ServerPage
from veil.testing import VeilServer


def verdicts(ran: Ran) -> dict[str, str]:
    return {finding["check"]: finding["verdict"] for finding in ran.objects}


def test_all_is_well_beside_a_running_server(veil: Veil, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEIL_PORT", "0")
    ran = veil("doctor", "--json")
    assert ran.code == 0
    found = verdicts(ran)
    checks = [
        "python",
        "sqlite",
        "settings",
        "disk-space",
        "journal",
        "port",
        "endpoint",
        "clock",
        "disk-speed",
        "credentials",
    ]
    assert {check.replace(" ", "-") for check in found} == {*checks, "data-directory"}
    assert set(found.values()) <= {"ok", "skip", "warn"}
    assert found["endpoint"] == found["clock"] == found["credentials"] == "ok"


def test_lines_for_people_begin_with_the_verdict(veil: Veil) -> None:
    lines = veil("doctor").out.splitlines()
    assert all(line.split()[0] in ("ok", "skip", "warn", "fail") for line in lines)


def test_a_server_that_was_named_and_does_not_answer_is_a_failure(command: Veil) -> None:
    ran = command("doctor", "--endpoint", "http://127.0.0.1:1", "--json")
    assert ran.code == 1
    assert verdicts(ran)["endpoint"] == "fail"


def test_a_wrong_setting_is_a_failure_that_names_it(command: Veil, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEIL_PORT", "many")
    ran = command("doctor", "--json")
    (finding,) = [each for each in ran.objects if each["check"] == "settings"]
    assert ran.code == 1
    assert (finding["verdict"], "port='many'" in finding["text"]) == ("fail", True)


def test_a_refused_key_is_a_failure(command: Veil) -> None:
    with VeilServer("--store", "memory", environ={"VEIL_KEYS": "AKID:secret"}) as guarded:
        ran = command("doctor", "--endpoint", guarded.endpoint_url, "--json")
        (finding,) = [each for each in ran.objects if each["check"] == "endpoint"]
    assert verdicts(ran)["endpoint"] == "fail" and "AWS_ACCESS_KEY_ID" in finding["text"]
    assert verdicts(ran)["credentials"] == "skip"  # nobody has accepted them


@pytest.mark.parametrize(("off_s", "verdict"), [(0, "ok"), (30, "ok"), (90, "warn"), (-1000, "fail")])
def test_clocks_apart(off_s: int, verdict: str) -> None:
    assert check_clock(formatdate(1_700_000_000, usegmt=True), 1_700_000_000 + off_s).verdict == verdict


def test_a_clock_that_could_not_be_compared_is_not_ok() -> None:
    assert check_clock(None, 0).verdict == check_clock("yesterday", 0).verdict == "skip"


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.parametrize(("free", "verdict"), [(2**32, "ok"), (2**29, "warn"), (2**20, "fail")])
def test_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, verdict: str) -> None:
    def usage(_: Any) -> _Usage:
        return _Usage(2**40, 2**40 - free, free)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert check_data(tmp_path / "not" / "yet")[-1].verdict == verdict


def test_a_file_where_the_data_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    (finding,) = check_data(tmp_path / "data")
    assert finding.verdict == "fail"
    assert "--data" in finding.advice


def asked(check: Callable[[str], CheckResult], status: int, text: str) -> CheckResult:
    """What a check comes to at an endpoint that gives this answer."""

    with http_stub(lambda asked: StubAnswer(text.encode(), status)) as endpoint:
        return check(endpoint)


@pytest.mark.parametrize(("status", "verdict"), [(200, "ok"), (503, "fail"), (404, "ok")])
def test_a_server_that_takes_no_messages_is_a_failure(status: int, verdict: str) -> None:
    finding = check_ready("http://127.0.0.1:9324", ServerPage(status, "the database takes no messages\n"))
    assert finding.verdict == verdict
    assert status != 503 or finding.text.endswith("is not ready: the database takes no messages")


@pytest.mark.parametrize(("worst_s", "verdict"), [(0.4, "ok"), (1.5, "warn"), (None, "skip")])
def test_a_slow_disk_is_told(worst_s: float | None, verdict: str) -> None:
    text = "" if worst_s is None else f"veil_commit_p99_seconds 0.004\nveil_commit_worst_seconds {worst_s}\n"
    finding = asked(check_disk_speed, 200, f"# HELP about\n{text}")
    assert finding.verdict == verdict
    assert worst_s is None or f"99 of 100 within 4 ms, the slowest {worst_s * 1000:.0f} ms" in finding.text


def test_a_wrong_region_is_one_finding_among_the_others(
    command: Veil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu west")
    ran = command("doctor", "--json")
    assert ran.code == 1
    (finding,) = [each for each in ran.objects if each["check"] == "endpoint"]
    assert (finding["verdict"], "eu west" in finding["text"]) == ("fail", True)
    assert verdicts(ran)["sqlite"] == "ok"
    assert "credentials" not in verdicts(ran)  # there is no server to ask
