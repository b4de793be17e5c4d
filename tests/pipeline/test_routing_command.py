"""`veil pipeline route` from queue to queue, on a real server and a real Spark."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from bench.queue_days import row, write_tables
from tests.pipeline.queue_histories import Known, history_of
from tests.pipeline.queues_kit import Queues
from veil.cli.main import run
from veil.cli.pipeline.route import show_prepared
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.lock import only_run
from veil.pipeline.queues import QueueAddress, QueueClient
from veil.pipeline.routing.router import RouterState, prepare_targets
from veil.pipeline.routing.rules import read_rule_file
from veil.pipeline.timeouts.history import History
from veil.testing import VeilServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR = datetime(2026, 3, 2, 9, tzinfo=UTC)


@pytest.fixture
def queues(
    veil_server: VeilServer, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Queues:
    """The server that the command finds by the AWS variables, in a directory without veil.toml."""
    for name, value in veil_server.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return Queues(veil_server)


def a_type(name: str) -> dict[str, Any]:
    return {"MessageType": {"DataType": "String", "StringValue": name}}


def hour_row(queue: str, history: History, message_type: str) -> dict[str, Any]:
    return row(
        HOUR,
        queue,
        message_type,
        leases=history.leases,
        duplicates=history.duplicates,
        overrun=history.overrun,
        window_ms=history.present_ms,
        window_at=HOUR,
        processing=history.processing,
        processing_censored=history.censored,
    )


def past(tables: Storage, **mean_s: float) -> None:
    """An hour of the queue `intake` in which each type took so long."""
    rows = []
    for number, (name, mean) in enumerate(mean_s.items()):
        known = Known(name, lambda r, mean=mean: mean * r.lognormvariate(0, 0.3), lambda t: 0.0)
        rows.append(
            hour_row("intake", history_of(known, Random(number), leases=2_000, timeout_s=3_600), name)
        )
    write_tables(tables, {HOUR.replace(hour=0): rows})


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_learned_rules_send_each_class_to_the_timeout_that_it_needs(
    queues: Queues, tables_place: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    past(tables_place, mail=1.0, invoice=50.0, export=900.0)
    queues.create("intake")
    kinds = ["mail", "invoice", "export", "never-seen"]
    bodies = [f"{kinds[number % 4]} {number}" for number in range(120)]
    ids = queues.send("intake", bodies, MessageAttributes=lambda body: a_type(body.split()[0]))
    command = ["pipeline", "route", "--from", "intake", "--learn", "--tables", tables_place.uri, "--once"]
    command += ["--state", str(tmp_path / "state"), "--json"]

    assert run(command) == 1
    assert "there is no queue intake-short, intake-medium, intake-long: create it" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
    assert run([*command, "--create-queues"]) == 0

    told = capsys.readouterr()
    timeouts = {
        name: queues.attributes(f"intake-{name}")["VisibilityTimeout"] for name in ("short", "medium", "long")
    }
    assert timeouts == {"short": "30", "medium": "300", "long": "3600"}
    found = {name: queues.take_all(f"intake-{name}") for name in timeouts}
    assert {name: {each.body.split()[0] for each in got} for name, got in found.items()} == {
        "short": {"mail"}, "medium": {"invoice"}, "long": {"export", "never-seen"},
    }  # fmt: skip
    by_origin = {each.text("Veil.RoutedFrom"): each.body for got in found.values() for each in got}
    assert by_origin == dict(zip(ids, bodies, strict=True))
    assert queues.count("intake") == 0
    lines = objects(told.out)
    assert {line["class"]: line["band"] for line in lines if "class" in line} == {
        "mail": "short", "invoice": "medium", "export": "long",
    }  # fmt: skip
    assert [line["queue"] for line in lines if "rule" in line] == [
        "intake-short",
        "intake-medium",
        "intake-long",
    ]
    assert lines[-1]["total"] == {"intake-short": 30, "intake-medium": 30, "intake-long": 60}
    assert "created intake-short with a timeout of 30 s" in told.err


def test_rules_are_learned_from_the_queues_of_the_intakes_own_account_and_region(
    queues: Queues, tables_place: Storage, capsys: pytest.CaptureFixture[str]
):
    """Queues of other owners may have the same names, and the journal of one server tells of all of its accounts."""
    queues.create("intake")
    known = Known("mail", lambda r: 900.0 * r.lognormvariate(0, 0.3), lambda t: 0.0)
    others = history_of(known, Random(1), leases=2_000, timeout_s=3_600)
    elsewhere = [{"account": "111111111111"}, {"region": "eu-west-1"}]
    rows = [hour_row("intake", others, "mail") | each for each in elsewhere]
    write_tables(tables_place, {HOUR.replace(hour=0): rows})

    assert (
        run(["pipeline", "route", "--from", "intake", "--learn", "--tables", tables_place.uri, "--dry-run"])
        == 0
    )

    assert "class mail" not in capsys.readouterr().err


def test_a_class_is_remembered_when_the_past_is_gone(
    queues: Queues, tables_place: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    past(tables_place, mail=1.0)
    queues.create("intake")
    command = [
        "pipeline",
        "route",
        "--from",
        "intake",
        "--learn",
        "--state",
        str(tmp_path / "state"),
        "--dry-run",
    ]
    assert run([*command, "--tables", tables_place.uri]) == 0
    assert "class mail: short, moved from long; 99 % of the work takes up to 2" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()  # a dry run writes nothing, so the next says the same
    assert run([*command, "--tables", tables_place.uri]) == 0
    assert "class mail: short, moved from long" in capsys.readouterr().err

    state = RouterState(Storage.at(tmp_path / "state"))
    state.keep()
    state.keep_classes({"mail": "short"})
    assert run([*command, "--tables", str(tmp_path / "no-tables")]) == 0

    told = capsys.readouterr().err
    assert "class mail: short; 0 leases tell of it" in told
    assert "rule: type 'mail' -> intake-short (30 s)" in told
    assert "rule: everything else -> intake-long (1 h)" in told


def test_rules_from_a_file_are_told_and_counted_and_a_message_that_no_queue_takes_is_named(
    queues: Queues, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rules = tmp_path / "rules.toml"
    rules.write_text(
        'default = "slow"\n[queues]\nquick = "30s"\nslow = "1h"\n'
        '[[rules]]\njson = { "$.kind" = "ping" }\nqueue = "quick"\n'
    )
    queues.create("intake")
    queues.create("quick", VisibilityTimeout="45", MaximumMessageSize="1024")
    queues.create("slow", VisibilityTimeout="3600")
    queues.send("intake", [json.dumps({"kind": "ping" if n % 3 else "work", "n": n}) for n in range(30)])
    (too_long,) = queues.send("intake", [json.dumps({"kind": "ping", "text": "x" * 3_000})])
    command = ["pipeline", "route", "--from", "intake", "--rules", str(rules), "--once"]
    command += ["--state", str(tmp_path / "state")]

    assert run(command) == 1
    told = capsys.readouterr()
    assert f"message_id='{too_long}') cannot be sent to queue quick" in told.err
    assert "Traceback" not in told.err
    assert told.out == ""  # no batch was finished, so there is nothing to count

    assert run([*command, "--error-path", str(tmp_path / "errors")]) == 0
    told = capsys.readouterr()
    assert told.out.split() == ["QUEUE", "MESSAGES", "quick", "20", "slow", "10"]
    assert "rule: $.kind 'ping' -> quick (30 s)" in told.err
    assert "quick has a timeout of 45 s, not 30 s; change it with: veil queue edit quick" in told.err
    assert "20 to quick, 10 to slow; 1 refused by quick" in told.err
    assert (queues.count("quick"), queues.count("slow"), queues.count("intake")) == (20, 10, 0)


def test_a_fifo_intake_keeps_the_order_of_its_groups(queues: Queues, tmp_path: Path):
    rules = tmp_path / "rules.toml"
    rules.write_text('default = "out.fifo"\n[queues]\n"out.fifo" = "30s"\n')
    queues.create("intake.fifo", ContentBasedDeduplication="true")
    queues.send("intake.fifo", [str(n) for n in range(80)], MessageGroupId=lambda body: f"g{int(body) % 7}")

    command = [
        "pipeline",
        "route",
        "--from",
        "intake.fifo",
        "--rules",
        str(rules),
        "--once",
        "--create-queues",
    ]
    code = run([*command, "--state", str(tmp_path / "state"), "--max-messages", "50"])

    assert code == 0
    got = queues.take_all("out.fifo")
    assert Counter(each.body for each in got) == Counter(str(n) for n in range(80))
    for group in range(7):
        numbers = [int(each.body) for each in got if each.system["MessageGroupId"] == f"g{group}"]
        assert numbers == sorted(numbers)


def test_queues_that_are_made_share_the_dead_letters_of_the_intake(
    queues: Queues, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rules = tmp_path / "rules.toml"
    rules.write_text('default = "made"\n[queues]\nmade = "30s"\n"made.fifo" = "30s"\nthere = "30s"\n')
    for name in ("spent", "intake", "there"):
        queues.create(name)
    policy = {"deadLetterTargetArn": queues.attributes("spent")["QueueArn"], "maxReceiveCount": 2}
    queues.sqs.set_queue_attributes(
        QueueUrl=queues.url("intake"), Attributes={"RedrivePolicy": json.dumps(policy)}
    )
    with QueueClient(QueueAddress("intake", queues.server.endpoint_url, "us-east-1")) as intake:
        made = prepare_targets(intake, read_rule_file(rules), create=True)
    show_prepared(made)

    assert json.loads(queues.attributes("made")["RedrivePolicy"]) == policy
    # Standard dead letters cannot take what comes from a FIFO queue, and what was there is left as it was.
    assert "RedrivePolicy" not in queues.attributes("made.fifo")
    assert "RedrivePolicy" not in queues.attributes("there")
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "created made with a timeout of 30 s, dead letters in spent",
        "created made.fifo with a timeout of 30 s",
    ]
    # What is received there twice and not deleted ends where it would have ended in the intake.
    queues.send("made", ["poison"])
    for _ in range(3):
        queues.sqs.receive_message(QueueUrl=queues.url("made"), VisibilityTimeout=0)
    assert (queues.count("made"), queues.count("spent")) == (0, 1)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 2, "expected either --rules FILE or --learn"),
        (["--learn", "--bands", "x"], 2, "band x ''"),
        (
            ["--learn", "--class-by", "colour"],
            2,
            "class 'colour': expected type, group, size or json:$.FIELD",
        ),
        (["--learn", "--default", "huge"], 2, "band 'huge': expected one of short, medium, long"),
        (["--learn", "--target-name", "all"], 2, "target name 'all': expected {band} in it"),
        (["--learn", "--quantile", "3"], 2, "'3': expected a share from 50% to 99.99%"),
        (["--learn", "--conf", "x=1"], 2, "conf 'x': expected a name that begins with spark."),
        (["--learn", "--error-path", "ftp://x/y"], 2, "--error-path 'ftp://x/y': expected a path"),
        (["--rules", "none.toml"], 2, "rules none.toml: No such file"),
        (["--learn"], 1, "veil: there is no queue 'intake' at http://127.0.0.1"),
        (
            ["--learn", "--endpoint", "http://127.0.0.1:1"],
            1,
            "veil: no server answers at http://127.0.0.1:1 (connection refused)",
        ),
    ],
)
def test_what_cannot_be_meant_is_told_in_one_line(
    queues: Queues, words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
):
    assert run(["pipeline", "route", "--from", "intake", *words]) == code

    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err


def test_the_intake_is_no_target_and_a_state_belongs_to_one_intake(
    queues: Queues, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rules = tmp_path / "rules.toml"
    rules.write_text('default = "intake"\n[queues]\nintake = "30s"\n')
    for name in ("intake", "other"):
        queues.create(name)
    words = ["--rules", str(rules), "--once", "--state", str(tmp_path / "state")]

    assert run(["pipeline", "route", "--from", "intake", *words]) == 1
    assert "target intake: expected a queue other than the intake" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()

    state = RouterState(Storage.at(tmp_path / "state"))
    state.belongs_to(queues.url("intake"))
    state.keep()
    assert run(["pipeline", "route", "--from", "other", *words]) == 1
    assert "it belongs to the intake" in capsys.readouterr().err


def test_no_queue_is_made_for_a_router_that_cannot_begin(
    queues: Queues, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rules = tmp_path / "rules.toml"
    rules.write_text('default = "made"\n[queues]\nmade = "30s"\n')
    queues.create("intake")
    state = tmp_path / "state"
    command = ["pipeline", "route", "--from", "intake", "--rules", str(rules), "--once", "--create-queues"]
    with only_run(Storage.at(state)):
        assert run([*command, "--state", str(state)]) == 1
    assert "another run is writing" in capsys.readouterr().err
    state.with_name("file").touch()
    assert run([*command, "--state", str(tmp_path / "file")]) == 1

    assert [url.rpartition("/")[2] for url in queues.sqs.list_queues()["QueueUrls"]] == ["intake"]


def test_queues_that_are_made_do_not_send_their_dead_letters_to_the_intake(queues: Queues, tmp_path: Path):
    """An intake may be its own dead-letter queue; what a target gave up would be routed to that target again."""
    rules = tmp_path / "rules.toml"
    rules.write_text('default = "made"\n[queues]\nmade = "30s"\n')
    queues.create("intake")
    policy = {"deadLetterTargetArn": queues.attributes("intake")["QueueArn"], "maxReceiveCount": 2}
    queues.sqs.set_queue_attributes(
        QueueUrl=queues.url("intake"), Attributes={"RedrivePolicy": json.dumps(policy)}
    )
    with QueueClient(QueueAddress("intake", queues.server.endpoint_url, "us-east-1")) as intake:
        prepare_targets(intake, read_rule_file(rules), create=True)

    assert "RedrivePolicy" not in queues.attributes("made")
