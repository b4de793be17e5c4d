"""`veil pipeline redrive` against a real server: the chosen ones go back, the others stay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.http_stub import StubAnswer, StubRequest, http_stub
from tests.pipeline.dead_letters_kit import Queues, bodies_in, fill, orders_and_dead_letters
from veil.cli.main import run
from veil.pipeline.dead_letters.queue import stamped
from veil.testing import VeilServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def queues(veil_server: VeilServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Queues]:
    """Two timeouts and a declined card."""
    for name, value in veil_server.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    with orders_and_dead_letters(veil_server) as found:
        dead, _ = found
        fill(
            dead, ['{"n": 1}', '{"n": 2}'], veil__source_queue="orders", veil__error_type="Timeout", kind="a"
        )
        fill(dead, ['{"n": 3}'], veil__source_queue="orders", veil__error_type="Declined")
        yield found


def veil(tmp_path: Path, *arguments: str) -> int:
    return run(["pipeline", "redrive", *arguments, "--tables", str(tmp_path / "tables")])


def test_a_dry_run_shows_the_count_and_a_sample_and_does_nothing(
    spark: SparkSession, queues: Queues, tmp_path: Path, capsys: Captured
):
    dead, orders = queues

    assert veil(tmp_path, "orders-dead", "--where", "error_type = 'Timeout'", "--dry-run") == 0

    out, talk = capsys.readouterr()
    assert "2 dead letters are selected" in talk
    assert len(out.splitlines()) == 3
    assert '{"n": 2}' in out
    assert (len(bodies_in(dead)), len(bodies_in(orders))) == (3, 0)
    assert list((tmp_path / "tables").glob("redrives/*")) == []


def test_a_condition_that_fails_on_a_message_is_told_in_one_line(
    spark: SparkSession, queues: Queues, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    assert veil(tmp_path, "orders-dead", "--where", "int(body) > 1", "--dry-run") == 1

    told = capfd.readouterr().err.splitlines()
    assert len(told) == 1, told
    assert told[0].startswith("veil: Spark failed: [CAST_INVALID_INPUT] ")


def test_without_somebody_to_ask_nothing_is_done(
    spark: SparkSession, queues: Queues, tmp_path: Path, capsys: Captured
):
    assert veil(tmp_path, "orders-dead") == 2

    assert (
        "Redrive 3 dead letters to where they came from? stdin is not a terminal" in capsys.readouterr().err
    )
    assert len(bodies_in(queues[0])) == 3
    assert list((tmp_path / "tables").glob("redrives/*")) == []


def test_bodies_that_a_killed_command_left_behind_are_removed_a_day_later(
    spark: SparkSession, queues: Queues, tmp_path: Path, capsys: Captured
):
    tables, long_ago = tmp_path / "tables", datetime.now(UTC) - timedelta(hours=25)
    left = [
        f"_dead-letters-{long_ago:%Y%m%d-%H%M%S}-a1b2",
        f"redrives/{long_ago:%Y%m%d-%H%M%S}-a1b2/selection",
    ]
    now = [f"_dead-letters-{stamped()}", f"redrives/{stamped()}/selection"]
    sealed = f"redrives/{long_ago:%Y%m%d-%H%M%S}-c3d4"
    for folder in (*left, *now, sealed):
        (tables / folder).mkdir(parents=True)
        (tables / folder / "part-0.parquet").write_bytes(b"bodies")
    (tables / sealed / "run.json").write_text("{}")

    assert veil(tmp_path, "orders-dead", "--dry-run") == 0

    assert [(tables / each).exists() for each in left] == [False, False]
    assert all((tables / each).exists() for each in (*now, sealed))


def test_the_selected_go_to_their_source_changed_and_marked(
    spark: SparkSession, queues: Queues, tmp_path: Path, capsys: Captured
):
    dead, orders = queues
    before = {message.body: message.message_id for message in dead.peek(10).messages or ()}
    changes = [
        "--set-body",
        "concat(body, '!')",
        "--set-attribute",
        "kind=null",
        "--set-attribute",
        "tries=receive_count + 1",
    ]

    assert (
        veil(tmp_path, "orders-dead", "--where", "error_type = 'Timeout'", *changes, "--yes", "--json") == 0
    )

    shown = capsys.readouterr()
    told = json.loads(shown.out.splitlines()[-1])
    assert (told["selected"], told["moved"], told["gone"], told["left"]) == (2, 2, 0, {})
    assert (
        f"continue with: veil pipeline redrive --resume {told['run']} --tables {tmp_path}/tables" in shown.err
    )
    assert bodies_in(dead) == ['{"n": 3}']
    arrived = orders.peek(10).messages or []
    assert [message.body for message in arrived] == ['{"n": 1}!', '{"n": 2}!']
    for message in arrived:
        attributes = message.attributes
        assert attributes["veil.error_type"].string_value == "Timeout"
        assert (attributes["tries"].data_type, attributes["tries"].string_value) == ("Number", "1")
        assert "kind" not in attributes
        assert attributes["Veil.RedrivenFrom"].string_value == before[message.body.removesuffix("!")]
    (left,) = (tmp_path / "tables" / "redrives").iterdir()
    assert sorted(path.name for path in left.iterdir() if path.name != "_lock") == [
        "progress.json",
        "run.json",
    ]


def test_all_can_go_to_one_queue(
    spark: SparkSession, queues: Queues, veil_server: VeilServer, tmp_path: Path
):
    dead, orders = queues
    veil_server.client().create_queue(QueueName="again")

    assert veil(tmp_path, "orders-dead", "--to", "again", "--yes") == 0

    counts = veil_server.client().get_queue_attributes(QueueUrl="again", AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessages"] == "3"
    assert bodies_in(dead) == bodies_in(orders) == []


def test_what_somebody_holds_stays_and_is_told(
    spark: SparkSession, queues: Queues, veil_server: VeilServer, tmp_path: Path, capsys: Captured
):
    dead, orders = queues
    held = veil_server.client().receive_message(QueueUrl=dead.url, VisibilityTimeout=60)["Messages"]
    assert len(held) == 1

    assert veil(tmp_path, "orders-dead", "--yes") == 1

    told = capsys.readouterr().err
    assert "2 of 3 redriven" in told
    assert "1 dead letter was not moved" in told
    assert held[0]["MessageId"] in told
    assert len(bodies_in(orders)) == 2


def test_one_that_was_gone_meanwhile_is_counted_as_gone(
    spark: SparkSession, queues: Queues, veil_server: VeilServer, tmp_path: Path
):
    from tests.pipeline.dead_letters_kit import sealed
    from veil.journal.storage import Storage
    from veil.pipeline.dead_letters.runs import redrive

    dead, orders = queues
    tables = Storage.at(tmp_path / "tables")
    run = sealed(spark, dead, tables)
    (held,) = veil_server.client().receive_message(QueueUrl=dead.url)["Messages"]
    veil_server.client().delete_message(QueueUrl=dead.url, ReceiptHandle=held["ReceiptHandle"])

    progress = redrive(run, tables, dead)

    assert (progress.moved, progress.gone) == (2, 1)
    assert len(bodies_in(orders)) == 2


def test_what_comes_again_is_known_to_have_been_redriven(
    spark: SparkSession, queues: Queues, tmp_path: Path, capsys: Captured
):
    assert (
        veil(tmp_path, "orders-dead", "--where", "error_type = 'Declined'", "--to", "orders-dead", "--yes")
        == 0
    )
    capsys.readouterr()

    assert veil(tmp_path, "orders-dead", "--where", "redriven_before", "--dry-run", "--json") == 0

    told = json.loads(capsys.readouterr().out)
    assert told["selected"] == 1
    assert told["sample"][0]["error_type"] == "Declined"


def test_messages_that_do_not_tell_their_source_need_a_destination(
    spark: SparkSession, queues: Queues, tmp_path: Path, capsys: Captured
):
    fill(queues[0], ["who am I"])

    assert veil(tmp_path, "orders-dead", "--yes") == 1

    told = capsys.readouterr().err
    assert "1 of the selected messages came from an unknown queue: name one with --to QUEUE" in told
    assert len(bodies_in(queues[0])) == 4
    assert list((tmp_path / "tables").glob("redrives/*")) == []


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "QUEUE: expected the name of a dead-letter queue, or --resume ID"),
        (
            ["--resume", "x", "--where", "true"],
            2,
            "--resume x: the run already has its selection, so --where cannot be given",
        ),
        (
            ["--resume", "x", "--region", "eu-west-1"],
            2,
            "--resume x: the run already has its selection, so --region cannot be given",
        ),
        (["--resume", "x"], 1, "--resume 'x': expected a run in "),
        (["--resume", "../x"], 1, "--resume '../x': expected a run in "),
        (["orders-dead", "--set-attribute", "x"], 2, "--set-attribute 'x': expected NAME=SQL"),
        (
            ["orders-dead", "--set-attribute", "a b=1"],
            2,
            "--set-attribute 'a b=1': expected a name of letters",
        ),
        (["orders-dead", "--to", "nowhere"], 1, "there is no queue 'nowhere' at "),
        (["nowhere"], 1, "there is no queue 'nowhere' at "),
    ],
)
def test_mistakes_are_told_before_spark_is_started(
    queues: Queues, tmp_path: Path, capsys: Captured, arguments: list[str], code: int, told: str
):
    assert veil(tmp_path, *arguments) == code
    assert told in capsys.readouterr().err


def test_a_condition_that_spark_cannot_read_is_told(
    spark: SparkSession, queues: Queues, tmp_path: Path, capsys: Captured
):
    assert veil(tmp_path, "orders-dead", "--where", "eror = 1") == 1
    told = capsys.readouterr().err
    assert "--where 'eror = 1': " in told
    assert len(told.splitlines()) == 1


def test_a_server_that_is_not_veil_is_refused(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
):
    def other_service(asked: StubRequest) -> StubAnswer:
        """Knows the URL of every queue, and no action of Veil's."""
        if asked.headers["x-amz-target"].startswith("AmazonSQS."):
            return StubAnswer(b'{"QueueUrl": "http://127.0.0.1/0/dead"}')
        return StubAnswer(b'{"__type": "UnknownOperationException"}', 400)

    monkeypatch.chdir(tmp_path)
    with http_stub(other_service) as endpoint:
        assert veil(tmp_path, "dead", "--endpoint", endpoint) == 1

    assert f"{endpoint} is not a Veil server" in capsys.readouterr().err
