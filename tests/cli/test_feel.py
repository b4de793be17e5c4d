from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.conftest import Veil
from veil.cli import COMMANDS
from veil.cli.output import echo, echo_err, json_line, live_table, one_line, show_table
from veil.cli.pipeline import JOBS
from veil.testing import VeilServer
from veil.words import visible

SUBCOMMANDS = [
    *(("queue", verb) for verb in ("ls", "create", "show", "edit", "purge", "rm", "pause", "resume")),
    *(("msg", verb) for verb in ("send", "receive", "peek", "show", "tail", "delete", "extend", "release")),
    *(("dlq", verb) for verb in ("ls", "show", "redrive", "cancel")),
    *((verb,) for verb in ("top", "leases", "doctor", "demo", "backup", "restore", "verify")),
]


@pytest.mark.parametrize("words", SUBCOMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command: Veil, words: tuple[str, ...]) -> None:
    ran = command(*words, "--help")
    assert ran.code == 0
    assert f"veil {' '.join(words)}" in " ".join(ran.out.split()).partition("Example")[2]


def test_every_command_is_in_the_help_of_the_root(command: Veil) -> None:
    listed = command("--help").out
    assert all(f"\n  {name} " in listed for name in COMMANDS)


def test_help_is_quick_and_loads_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom veil.cli.main import run\nrun(['--help'])\n"
        "heavy = {'boto3', 'apsw', 'rich', 'asyncio', 'uvloop', 'prometheus_client', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_values_of_every_common_kind_are_read_without_pydantic(tmp_path: Path) -> None:
    lines = [
        "queue create orders --visibility-timeout 5m --tag a=b --tag c=d --endpoint http://127.0.0.1:1",
        "queue ls --endpoint http://127.0.0.1:1",
        "backup out --data nowhere",
        "pipeline lifecycles --journal nowhere --tables tables --every 5s",
    ]
    script = (
        "import sys\nfrom veil.cli.main import run\n"
        f"print([run(line.split()) for line in {lines}], 'pydantic' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1:] == ["[1, 1, 1, 1] False"], ran.stderr


def test_without_an_extra_help_works_and_a_command_says_what_to_install(tmp_path: Path) -> None:
    segments = tmp_path / "veil-data" / "journal" / "day=2026-01-01"
    segments.mkdir(parents=True)
    (segments / "a.parquet").touch()
    database = "--store postgresql://nobody@127.0.0.1:1/none"
    lines = [
        *(f"pipeline {job} --help" for job in JOBS),
        "pipeline --help", "pipeline lifecycles", "pipeline timeouts", "pipeline report", f"migrate {database}",
    ]  # fmt: skip
    script = (
        "import sys\nfrom veil.cli.main import run\n"
        "for package in ('numpy', 'pandas', 'psycopg', 'psycopg_pool', 'pyspark'):\n"
        "    sys.modules[package] = None\n"  # as if it were not installed
        f"print([run(line.split()) for line in {lines}], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    *told, codes = ran.stderr.splitlines()
    assert codes == str([0] * (len(JOBS) + 1) + [1] * 4), ran.stderr
    assert [line.partition(", which is not installed: ")[2] for line in told] == [
        *['pip install "veilmq[spark]"'] * 3, 'pip install "veilmq[postgres]"',
    ]  # fmt: skip


def test_queue_names_are_completed_by_asking_the_server(veil: Veil) -> None:
    for name in ("orders", "orders-dead", "parcels"):
        veil("queue", "create", name)
    assert completions("veil msg send ord") == ["orders", "orders-dead"]
    assert completions("veil queue create x --dead-letter par") == ["parcels"]


def test_completion_is_silent_when_nobody_answers(nowhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert completions("veil msg send ord") == []


def completions(line: str) -> list[str]:
    environ = {
        **os.environ,
        "_VEIL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    command = [sys.executable, "-c", "from veil.cli.main import main; main()"]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert ran.stderr == ""
    return ran.stdout.split()


def test_ctrl_c_ends_a_tail_quietly(veil: Veil, veil_server: VeilServer) -> None:
    import signal

    veil("queue", "create", "orders")
    veil("msg", "send", "orders", "x")
    command = [sys.executable, "-m", "veil.cli.main", "msg", "tail", "orders", "--from-start", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        assert '"body": "x"' in tail.stdout.readline()  # it follows now
        tail.send_signal(signal.SIGINT)
        _, err = tail.communicate(timeout=60)  # it would follow for ever
    assert tail.returncode == 130
    assert "Traceback" not in err


def test_ctrl_c_while_the_command_is_still_being_loaded_ends_it_quietly(
    command: Veil, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(module: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("veil.cli.main.import_module", interrupted)
    assert command("queue", "ls") == (130, "", "")


def test_text_is_printed_with_what_a_terminal_would_obey_or_not_show_made_visible() -> None:
    text = "\x1b[2J\x00\x7f\x85\u2066 ok\n\tü✓"
    assert visible(text, keep="\n\t") == "\\x1b[2J\\x00\\x7f\\x85\\u2066 ok\n\tü✓"
    assert visible("a\nb\tc") == "a\\nb\\tc"
    assert visible("\ud800") == "\\ud800"
    assert visible("a\u200bb\ufeff \u2060") == "a\\u200bb\\ufeff \\u2060"
    emoji = "\U0001f469\u200d\U0001f467"  # one, of two and a joiner
    assert visible(emoji) == emoji
    assert json_line({"a": "\x9b\u202e\n✓"}) == '{"a": "\\u009b\\u202e\\n✓"}'


def test_whatever_a_command_prints_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    echo("\x1b[2J\u202ea\nb\t")
    echo_err("\x9b2J")
    assert capsys.readouterr() == ("\\x1b[2J\\u202ea\\nb\\t\n", "\\x9b2J\n")


def test_one_line_is_cut_to_the_width() -> None:
    assert one_line("x" * 100, 10) == "x" * 9 + "…"
    assert one_line("\n" * 100, 10) == "\\n\\n\\n\\n\\…"
    assert one_line("short", 10) == "short"


def test_a_terminal_that_is_not_utf8_still_gets_its_output(veil: Veil) -> None:
    veil("queue", "create", "orders")
    veil("msg", "send", "orders", "✓")
    command = [sys.executable, "-m", "veil.cli.main", "msg", "receive", "orders"]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert ran.returncode == 0
    assert "\\u2713" in ran.stdout


ALL_HELP = [
    (),
    *((name,) for name in COMMANDS),
    *SUBCOMMANDS,
    *(("pipeline", name) for name in JOBS),
    *(("timeouts", verb) for verb in ("show", "apply")),
    *(("store", verb) for verb in ("copy", "restored")),
    ("config", "show"),
]


def test_bytes_that_are_no_text_are_refused_in_one_line(veil: Veil) -> None:
    veil("queue", "create", "orders")
    command = [sys.executable, "-m", "veil.cli.main", "msg", "send", "orders", b"caf\xe9"]
    ran = subprocess.run(command, capture_output=True)
    assert ran.returncode == 2
    assert ran.stderr.decode().count("\n") == 1 and "expected UTF-8" in ran.stderr.decode()


def test_a_reader_that_has_read_enough_is_no_failure(veil: Veil) -> None:
    for words in ("queue create orders", "config reference", "config reference --help"):
        command = [sys.executable, "-m", "veil.cli.main", *words.split()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ran:
            assert ran.stdout is not None and ran.stderr is not None
            ran.stdout.close()
            assert ran.stderr.read() == b""
        assert ran.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_told_in_one_line(veil: Veil) -> None:
    for words in ("queue create orders", "config reference"):
        command = f"{sys.executable} -m veil.cli.main {words} > /dev/full"
        ran = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True)
        assert (ran.returncode, ran.stderr) == (1, "veil: stdout: No space left on device\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_that_is_started_without_its_streams_works(veil: Veil, closed: str) -> None:
    command = f"{sys.executable} -m veil.cli.main queue create orders --json {closed}"
    assert subprocess.run(["/bin/sh", "-c", command], capture_output=True).returncode == 0
    assert veil("queue", "show", "orders").code == 0


@pytest.mark.parametrize("words", dict.fromkeys(ALL_HELP), ids=" ".join)
def test_help_is_not_cut_and_shows_no_types_of_python(command: Veil, words: tuple[str, ...]) -> None:
    shown = command(*words, "--help").out
    options = shown.partition("Options:")[2]
    # Names whole, lengths as people write them.
    assert not re.search(r"\w-\n|default: \d+\.\d+\]", options), options
    text = " ".join(shown.split())
    assert not re.search(r"[a-z,;]\.\.\.", text), text  # NAME... is an argument that may be repeated
    assert not re.search(r"<\w+[^|>]*>|list\[|\('|\[\[|\{[A-Z]|x>=|env var", text), text


@pytest.mark.parametrize("columns", [80, 120])
def test_help_is_as_wide_as_the_terminal(
    command: Veil, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    widest = max(map(len, command("serve", "--help").out.splitlines()))
    assert columns - 20 < widest <= columns


def test_the_commands_that_people_use_most_come_first(command: Veil) -> None:
    listed = re.findall(r"^  (\w+)", command("--help").out.partition("Commands:")[2], re.MULTILINE)
    assert listed[:5] == ["serve", "run", "queue", "msg", "dlq"]
    assert [name for name in listed if name in COMMANDS] == list(COMMANDS)


@pytest.mark.parametrize(
    ("text", "seconds_"),
    [("90", 90), ("90s", 90), ("5m", 300), ("5min", 300), ("2h", 7200), ("1h 30min", 5400), ("1h30m", 5400)],
)
def test_lengths_are_read_as_people_write_them(veil: Veil, text: str, seconds_: int) -> None:
    assert veil("queue", "create", "orders", "--visibility-timeout", text).code == 0
    assert veil("queue", "show", "orders", "--json").object["visibility_timeout_s"] == seconds_


@pytest.mark.parametrize("text", ["5 parsecs", "m5", "-5", "13h", "1.5h", "", "²", "1h90"])
def test_a_length_that_is_none_is_refused_with_what_is_expected(veil: Veil, text: str) -> None:
    ran = veil("queue", "create", "orders", "--visibility-timeout", text)
    assert ran.code == 2
    assert (
        "--visibility-timeout" in ran.err
        and "expected a length from 0 to 12h, such as 90, 90s or 5m" in ran.err
    )


def test_the_lengths_that_a_refusal_suggests_are_accepted(veil: Veil) -> None:
    ran = veil("msg", "receive", "orders", "--wait", "21")
    assert "expected a length from 0 to 20s, such as 5 or 5s" in ran.err


_ROWS = [["orders", "1,234", "9f6b8a52-8f3e-4d0e-9a51-6a3f1c2b4d5e", "a body of some words " * 4]]


@pytest.mark.parametrize("width", [24, 50, 60, 80, 200])
def test_a_table_breaks_neither_numbers_nor_ids_however_narrow_the_terminal_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setattr("veil.cli.output.is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", str(width))
    columns = ["queue", "in progress", "message", "body"]
    show_table(columns, _ROWS, right=columns[1:2])
    lines = capsys.readouterr().out.splitlines()
    assert any(_ROWS[0][1] in line for line in lines) and any(_ROWS[0][2] in line for line in lines)
    assert any("progress" in line.lower() for line in lines)
    if width >= 80:
        assert max(map(len, lines)) <= width
        assert len(lines) > 6 or width == 200  # the body is folded


def test_a_terminal_too_narrow_for_the_table_gets_a_line_for_each_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("veil.cli.output.is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "50")
    columns = ["queue", "in progress", "message", "body"]
    show_table(columns, _ROWS * 2, right=["in progress"])
    first, between, second = capsys.readouterr().out.partition("\n\n")
    assert between and first == second.rstrip("\n")
    assert first.splitlines() == [
        "queue        orders",
        "in progress  1,234",
        f"message      {_ROWS[0][2]}",
        f"body         {_ROWS[0][3]}",
    ]


def test_a_long_name_leaves_room_for_the_numbers_of_a_live_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("veil.cli.output.is_terminal", lambda stream: True)
    terminal = Console(force_terminal=True, no_color=True, width=60, height=20)
    monkeypatch.setattr("veil.cli.output._terminal", lambda: terminal)
    columns = ["queue", "visible", "in progress", "sent/s"]
    with live_table(columns, right=columns[1:]) as show:
        show([["q" * 80, "123", "45", "6.7"], ["orders", "8", "9", "10.0"]])
    (long,) = (line for line in capsys.readouterr().out.splitlines() if "qqqq" in line)
    assert "qqq…" in long and long.split()[-3:] == ["123", "45", "6.7"]


def test_a_missing_queue_is_named_with_where_it_was_looked_for(veil: Veil) -> None:
    ran = veil("msg", "send", "nope", "x")
    assert (
        ran.code == 1 and "there is no queue 'nope' at http://" in ran.err and "see: veil queue ls" in ran.err
    )
    dead = veil("queue", "create", "orders", "--dead-letter", "nope", "--max-receives", "3")
    assert dead.code == 1 and "--dead-letter: there is no queue 'nope'" in dead.err


def test_a_message_for_a_fifo_queue_needs_a_group_in_the_commands_own_words(veil: Veil) -> None:
    veil("queue", "create", "steps.fifo", "--fifo")
    assert "--group" in veil("msg", "send", "steps.fifo", "x").err
    assert (
        "veil queue edit steps.fifo --delay"
        in veil("msg", "send", "steps.fifo", "x", "--group", "g", "--delay", "5m").err
    )
    without = veil("msg", "send", "steps.fifo", "x", "--group", "g").err
    assert "--dedup-id" in without and "MessageDeduplicationId" not in without


def test_no_queue_of_a_prefix_is_not_no_queue_at_all(veil: Veil) -> None:
    assert "create one" in veil("queue", "ls").err
    veil("queue", "create", "orders")
    assert veil("queue", "ls", "zzz").err == "no queue's name begins with 'zzz' in us-east-1\n"


def test_peek_chooses_by_state_and_text_and_cuts_no_body(veil: Veil) -> None:
    veil("queue", "create", "orders")
    long = "a pear, " * 20 + "the end"
    for body in ("apple", long):
        veil("msg", "send", "orders", body)
    receipt = veil("msg", "receive", "orders", "--json").object["receipt"]
    assert [
        each["body"] for each in veil("msg", "peek", "orders", "--state", "in_flight", "--json").objects
    ] == ["apple"]
    assert [
        each["body"] for each in veil("msg", "peek", "orders", "--contains", "PEAR", "--json").objects
    ] == [long]
    assert "the end" in veil("msg", "peek", "orders").out
    assert veil("msg", "release", "orders", receipt).code == 0
    assert veil("msg", "peek", "orders", "--state", "in_flight").err == "orders: no messages match\n"
