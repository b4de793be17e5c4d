"""The demos run on the real clock, a real disk and real Spark: less than a minute, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import veil.demo.command as demo_command
import veil.demo.processes as processes
from tests.cli.conftest import Ran, Veil
from tests.waiting import until
from veil.cli.failures import CommandFailed
from veil.client.blocking import BlockingClient, ServiceTarget
from veil.demo.command import demo_folder
from veil.demo.processes import Child, Children, ended_by_signals
from veil.demo.roles import bodies
from veil.demo.shop import FULL_S, QUEUES, check_claims, the_queues
from veil.demo.stage import Lateness, Stage

ACTS = ["Real work", pytest.param("What really happened", marks=pytest.mark.soak)]  # the second takes a Spark
needs_proc = pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="processes are found under /proc")


# ---- the life of one message


def told_to_the_end(command: Veil, *arguments: str) -> Ran:
    """A life of leases of seconds, told on a machine that was punctual enough for it: where it was not, the story ends early."""
    for _ in range(10):
        ran = command("demo", "life", *arguments)
        if "The machine was late" not in ran.out:
            break
    return ran


def test_every_claim_about_the_life_of_a_message_holds(command: Veil) -> None:
    ran = told_to_the_end(command, "--json")
    assert ran.object["broken"] == []
    assert ran.code == 0
    assert len(ran.object["held"]) >= 25


def test_the_life_of_a_message_fails_when_the_server_forgets(command: Veil) -> None:
    ran = told_to_the_end(command, "--store", "memory")
    assert ran.code == 1
    assert "NOT SO" in ran.out
    assert "did not hold" in ran.err


# ---- the whole demo, shortened


@needs_proc
@pytest.mark.slow
def test_the_demo_finds_what_each_timeout_should_be_and_is_kept_until_ctrl_c(tmp_path: Path) -> None:
    out = tmp_path / "shop"
    with the_demo("--out", str(out), "--keep", "--seconds", "10") as (process, lines):
        said = said_until(lines, "Ctrl-C ends them", within_s=500)
        endpoint = next(line.split()[1] for line in said if line.startswith("api "))
        with BlockingClient(ServiceTarget(endpoint, "us-east-1")) as client:
            assert {queue.name for queue in QUEUES} <= set(client.queue_names())
        assert len(processes_in(out)) >= 1 + 3 * len(QUEUES)  # the server; two workers and a producer each
        summary = json.loads((out / "summary.json").read_text())
        assert summary["demo"]["broken"] == []
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        assert processes_in(out) == []

    assert len(summary["demo"]["held"]) + len(summary["demo"]["not_shown"]) == 1 + len(QUEUES)
    assert str(out / "report.html") in "\n".join(said)
    if summary["demo"]["not_shown"]:
        return  # the machine was late, and the demo has said so
    found = {each["name"]: each for each in summary["queues"]}
    assert found["thumbnails"]["visibility_timeout_s"] == 1 < found["thumbnails"]["recommended_timeout_s"]
    assert found["thumbnails"]["duplicates"] > 0
    assert found["invoices"]["recommended_timeout_s"] < found["invoices"]["visibility_timeout_s"]
    assert found["videos"]["duplicates"] == 0
    assert all(each["leases"] > 0 and each["p50_s"] > 0 for each in found.values())
    # A tail that few were seen to reach is not guessed at: where leases lapse before the work ends there may be none.
    assert all(each["p99_s"] is None or each["p50_s"] < each["p99_s"] for each in found.values())
    assert found["invoices"]["p99_s"] is not None
    report = (out / "report.html").read_text()
    assert all(queue.name in report for queue in QUEUES)


@needs_proc
@pytest.mark.parametrize("act", ACTS)
def test_ctrl_c_leaves_no_process_behind(act: str, tmp_path: Path) -> None:
    out = tmp_path / "shop"
    with the_demo("--out", str(out), "--seconds", "3") as (process, lines):
        said_until(lines, act, within_s=500)
        assert processes_in(out)
        process.send_signal(signal.SIGINT)
        said_until(lines, "stopped; what there was is in", within_s=500)
        assert process.wait(120) == 130
        assert processes_in(out) == []


@needs_proc
@pytest.mark.parametrize("act", ACTS)
def test_a_demo_that_is_killed_takes_its_processes_with_it(act: str, tmp_path: Path) -> None:
    out = tmp_path / "shop"
    with the_demo("--out", str(out), "--seconds", "3") as (process, lines):
        said_until(lines, act, within_s=500)
        process.kill()
        until(
            lambda: processes_in(out) == [], within_s=60
        )  # left to themselves, the server and the workers stay


def test_ctrl_c_while_a_process_starts_comes_once_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Child):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(processes, "Child", Interrupted)
    children = Children(tmp_path)
    with children, pytest.raises(KeyboardInterrupt), ended_by_signals():
        children.start("some.log", "http.server", "0")
    assert processes_in(tmp_path) == []


# ---- what it needs, and where it writes


def test_without_spark_it_says_what_to_install_and_what_there_is_without(
    command: Veil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_command, "find_spec", lambda name: None)
    ran = command("demo")
    assert ran.code == 1
    assert "veilmq[spark]" in ran.err
    assert "veil demo life" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_directory_with_other_things_in_it_is_refused_untouched(
    command: Veil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_command, "_need_spark", lambda: None)
    (tmp_path / "data").mkdir()
    ran = command("demo", "--out", str(tmp_path))
    assert ran.code == 1
    assert "expected a new or empty directory" in ran.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]


def test_a_directory_of_an_earlier_demo_is_used_again_but_for_what_others_put_there(tmp_path: Path) -> None:
    folder = demo_folder(tmp_path / "shop")
    (folder / "data" / "journal").mkdir(parents=True)
    (folder / "report.html").touch()
    (folder / "notes.txt").touch()
    assert demo_folder(tmp_path / "shop") == folder
    assert sorted(entry.name for entry in folder.iterdir()) == [".veil-demo", "notes.txt"]


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shop").touch()
    with pytest.raises(CommandFailed, match="expected a directory"):
        demo_folder(tmp_path / "shop")


# ---- its work and its claims


def test_the_work_is_the_same_in_every_run_and_another_at_each_receive() -> None:
    thumbnails, *_ = QUEUES
    assert thumbnails.work_s(7, 1) == thumbnails.work_s(7, 1) != thumbnails.work_s(7, 2)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("thumbnails", 0.10, 0.15), ("invoices", 0, 0), ("orders", 0, 0.0005), ("videos", 0.7, 0.9)],
)
def test_each_queue_is_what_is_said_of_it(name: str, least: float, most: float) -> None:
    queue = next(each for each in QUEUES if each.name == name)
    longer = sum(queue.work_s(number, 1) > queue.timeout_s for number in range(4_400))
    assert least <= longer / 4_400 <= most


def test_a_shortened_demo_waits_for_no_message_longer_than_it_sends() -> None:
    assert the_queues(FULL_S) == QUEUES
    assert max(queue.timeout_s for queue in the_queues(8.0)) <= 8


def test_one_message_in_so_many_is_poison() -> None:
    some = bodies(3)
    assert [next(some) for _ in range(6)] == [
        '{"number": 1}', '{"number": 2}', "unreadable 3", '{"number": 4}', '{"number": 5}', "unreadable 6",
    ]  # fmt: skip
    assert "unreadable" not in "".join(next(clean) for clean in [bodies(0)] for _ in range(9))


GOOD: dict[str, dict[str, Any]] = {
    "thumbnails": {"duplicates": 500, "recommended_timeout_s": 3, "crashes": 9},
    "invoices": {"duplicates": 0, "recommended_timeout_s": 1, "crashes": 30},
    "orders": {"duplicates": 0, "recommended_timeout_s": 2, "crashes": 9},
    "videos": {"duplicates": 0, "recommended_timeout_s": None, "crashes": 9},
}


def a_stage(woken_s: float = 0.0) -> Stage:
    stage = Stage(lateness=Lateness.__new__(Lateness))  # what it saw is the test's to say
    stage.lateness.woken_s, stage.lateness.disk_s = woken_s, 0.0
    return stage


def test_a_note_is_wrapped_like_all_else_that_the_demo_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    a_stage().note("those that dead workers held came back by themselves " * 3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2 and max(map(len, lines)) <= 60
    assert lines[0].startswith("    · those") and lines[1].startswith("      ")


def broken_by(
    changes: dict[str, dict[str, Any]], outcomes: dict[str, int] | None = None, stage: Stage | None = None
) -> list[str]:
    stage = stage or a_stage()
    found = [
        {
            "name": name,
            "leases": 5000,
            "p90_s": 6.0,
            "hidden_hours": 0.5,
            "unknown": 0,
            **facts,
            **changes.get(name, {}),
        }
        for name, facts in GOOD.items()
    ]
    sent = {queue.name: 100 for queue in QUEUES} | {"orders": 600}  # two of them poison
    ended = {queue.name: {"deleted": 100} for queue in QUEUES}
    ended["orders"] = outcomes or {"deleted": 598, "dead_lettered": 2}
    check_claims(stage, QUEUES, sent, ended, {"queues": found})
    return [text.partition(":")[0] for text in stage.broken]


def test_claims_that_are_true_hold() -> None:
    assert broken_by({}) == []


def test_what_cannot_be_shown_on_a_late_machine_is_told_and_no_error(capsys) -> None:
    late = a_stage(woken_s=1.4)
    assert broken_by({"videos": {"duplicates": 3}}, stage=late) == []
    [told] = late.not_shown
    assert "3 messages were done twice" in told and "processes were woken up to 1.4 s late" in told
    assert "could not be shown" in capsys.readouterr().err
    assert broken_by({"videos": {"duplicates": 3}}, stage=a_stage(woken_s=0.1)) == ["videos"]


def test_no_machine_is_so_late_that_messages_may_be_lost() -> None:
    assert broken_by({}, {"deleted": 597, "dead_lettered": 2}, a_stage(woken_s=60.0)) == ["nothing is lost"]


@pytest.mark.parametrize(
    ("queue", "change"),
    [
        ("thumbnails", {"duplicates": 0}),
        ("thumbnails", {"recommended_timeout_s": 1}),
        ("thumbnails", {"recommended_timeout_s": None}),
        ("invoices", {"recommended_timeout_s": 20}),
        ("invoices", {"recommended_timeout_s": None}),
        ("orders", {"recommended_timeout_s": 4}),
        ("orders", {"recommended_timeout_s": None}),
        ("videos", {"duplicates": 1}),
    ],
)
def test_a_finding_that_contradicts_the_demo_breaks_its_claim(queue: str, change: dict[str, Any]) -> None:
    assert broken_by({queue: change}) == [queue]


@pytest.mark.parametrize(
    "outcomes",
    [
        {"deleted": 597, "dead_lettered": 2},  # one is unknown
        {"deleted": 597, "dead_lettered": 2, "open": 1},
        {"deleted": 597, "dead_lettered": 3},  # one that could be handled was given up
        {"deleted": 599, "dead_lettered": 2},  # one too many
    ],
)
def test_a_message_that_is_missing_or_too_many_breaks_the_promise(outcomes: dict[str, int]) -> None:
    assert broken_by({}, outcomes) == ["nothing is lost"]


# ---- helpers


class the_demo:  # noqa: N801 - reads as a sentence
    """The demo as a process of its own, and the lines that it says on either stream."""

    def __init__(self, *arguments: str) -> None:
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("VEIL_", "AWS_"))
        }
        environ["JAVA_TOOL_OPTIONS"] = (
            "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # its Spark lives for seconds
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "veil.cli.main", "demo", *arguments],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> tuple[subprocess.Popen[str], Iterator[str]]:
        assert self.process.stdout is not None
        return self.process, iter(self.process.stdout)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def said_until(lines: Iterator[str], text: str, within_s: float) -> list[str]:
    """What is said up to the line with the text; the demo ends without it only by failing."""
    begun_s, said = time.monotonic(), []
    for line in lines:
        said.append(line.rstrip("\n"))
        if text in line:
            return said
        assert time.monotonic() - begun_s < within_s, "\n".join(said)
    raise AssertionError("\n".join(said))


def processes_in(folder: Path) -> list[str]:
    """The processes that stand in the directory, by their command lines: all that a demo starts do."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cwd").resolve(strict=True) == folder.resolve():
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return found
