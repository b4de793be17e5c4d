"""`veil serve --store postgresql://…`: what it says, what it refuses, and what it does while the database is away."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from tests.faults.server_process import ServerProcess
from tests.forked_veil import start_veil
from tests.journal.kit import events_of
from tests.postgres_kit import PASSWORD, with_password
from tests.postgres_server import PostgresServer, why_no_server
from tests.waiting import until
from veil.journal.segments import list_segments
from veil.journal.storage import Storage

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("VEIL_", "AWS_", "PG"))}
VEIL = [sys.executable, "-m", "veil.cli.main"]


class Node(ServerProcess):
    """A node that tells everything it has to say."""

    def __init__(self, place: Path, dsn: str, *more: str) -> None:
        super().__init__(place / "data", place, arguments=("--store", dsn, "--log-level", "info", *more))

    def get(self, path: str) -> tuple[int, str]:
        return self._ask("GET", path, None, {})

    def call(self, action: str, **given: Any) -> tuple[int, Any]:
        headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
        status, text = self._ask("POST", "/", json.dumps(given).encode(), headers)
        return status, json.loads(text) if text else {}

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            self.headers = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def until(self, path: str, status: int) -> None:
        until(lambda: self.get(path)[0] == status, f"{path} was never answered with {status}")


def refused(dsn: str, cwd: Path, *before: str) -> tuple[int, str]:
    command = [*(before or VEIL), "serve", "--port", "0", "--store", dsn]
    with TemporaryFile("w+") as stderr:
        code = start_veil(command, stdin=subprocess.DEVNULL, stderr=stderr, env=CLEAN, cwd=cwd).wait()
        stderr.seek(0)
        said = stderr.read()
    assert said.count("\n") == 1, said
    assert said.startswith("veil: ")
    return code, said


def test_a_node_says_where_its_data_lives_and_never_the_password(postgres: str, tmp_path: Path):
    with Node(tmp_path, with_password(postgres)) as node:
        assert node.call("CreateQueue", QueueName="orders")[0] == 200
        assert "veil_queues 1.0" in node.get("/metrics")[1]
        assert "veil_commit_seconds" in node.get("/metrics")[1]
        assert re.search(r"^veil_database_connections [1-9]", node.get("/metrics")[1], re.M)
        assert node.get("/readyz") == (200, "ok\n")
        assert node.terminate() == 0
        said = node.log_path.read_text()
    assert "postgresql://veil:***@/" in said
    assert "only once PostgreSQL has committed it" in said
    assert said.count("no journal:") == 1
    assert PASSWORD not in said
    assert "--store has a password in it, which the list of processes shows to everybody" in said
    assert not (tmp_path / "data").exists()


def test_the_settings_are_shown_without_the_password(tmp_path: Path):
    environ = CLEAN | {"VEIL_STORE": f"postgresql://me:{PASSWORD}@db.internal/veil"}
    for more in ((), ("--json",)):
        shown = subprocess.run(
            [*VEIL, "config", "show", *more], capture_output=True, text=True, env=environ, cwd=tmp_path
        )
        assert PASSWORD not in shown.stdout + shown.stderr
        assert "postgresql://me:***@db.internal/veil" in shown.stdout


def test_what_one_node_sends_another_receives(postgres: str, tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with Node(tmp_path / "a", postgres) as one, Node(tmp_path / "b", postgres) as other:
        assert one.call("CreateQueue", QueueName="orders")[0] == 200
        assert one.call("SendMessage", QueueUrl="orders", MessageBody="hello")[0] == 200
        status, answer = other.call("ReceiveMessage", QueueUrl="orders")
        assert (status, [message["Body"] for message in answer["Messages"]]) == (200, ["hello"])
        receipt = answer["Messages"][0]["ReceiptHandle"]
        assert one.call("ReceiveMessage", QueueUrl="orders")[1].get("Messages", []) == []
        assert one.call("DeleteMessage", QueueUrl="orders", ReceiptHandle=receipt)[0] == 200


def test_nodes_share_a_journal_in_which_each_event_stands_once_also_when_its_exporter_is_killed(
    postgres: str, tmp_path: Path
):
    place = Storage.at(tmp_path / "journal")
    journal = ("--journal", place.uri, "--journal-interval-s", "0.1")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with Node(tmp_path / "a", postgres, *journal) as one, Node(tmp_path / "b", postgres, *journal) as other:
        assert "no journal:" not in one.log_path.read_text()
        assert one.call("CreateQueue", QueueName="orders")[0] == 200
        for number in range(20):
            node = other if number % 2 else one
            assert node.call("SendMessage", QueueUrl="orders", MessageBody=str(number))[0] == 200
            if number == 10:
                until(lambda: len(list_segments(place)) > 0)
        one.kill()
        assert other.call("SendMessage", QueueUrl="orders", MessageBody="last")[0] == 200
        until(lambda: sum(event["kind"] == "sent" for event in events_of(place)) >= 21)
        assert other.terminate() == 0
    kinds = [event["kind"] for event in events_of(place)]
    # A node that was killed is a trouble of Veil's own, and told as one.
    assert [kind for kind in kinds if kind != "trouble"] == ["sent"] * 21
    assert len({event["message_id"] for event in events_of(place) if event["kind"] == "sent"}) == 21


# ---- refusals


@pytest.mark.parametrize(
    ("dsn", "told"),
    [
        (f"postgresql://me:{PASSWORD}@127.0.0.1:1/veil", "PostgreSQL cannot be reached"),
        (f"postgresql://me:{PASSWORD}@127.0.0.1:1/veil?veil_connections=0", "expected 1 to 60"),
        (f"postgresql://me:{PASSWORD}%zz@127.0.0.1/veil", "expected postgresql://USER:PASSWORD@HOST"),
        (f"postgresql://me:{PASSWORD}/x@127.0.0.1/veil", "expected postgresql://USER:PASSWORD@HOST"),
        (f"postgresql://me:{PASSWORD}@127.0.0.1/veil?colour=red", "expected postgresql://USER:PASSWORD@HOST"),
    ],
)
def test_a_database_that_cannot_be_used_stops_the_start_in_words(tmp_path: Path, dsn: str, told: str):
    pytest.importorskip("psycopg")
    code, line = refused(dsn, tmp_path)
    assert code == 1
    assert told in line
    assert PASSWORD not in line


def test_a_database_that_does_not_exist_stops_the_start(postgres: str, tmp_path: Path):
    code, line = refused(postgres.replace("/veil_test", "/no_such_test"), tmp_path)
    assert code == 1
    assert "no_such_test" in line and "does not exist" in line


@pytest.mark.skipif(why_no_server() is not None, reason=str(why_no_server()))
def test_a_database_that_does_not_sync_is_refused(tmp_path: Path):
    with PostgresServer(in_memory=True, settings={"fsync": "off"}) as careless:
        code, line = refused(careless.dsn("postgres"), tmp_path)
    assert code == 1
    assert "fsync=off" in line


def test_without_the_driver_the_start_says_what_to_install(tmp_path: Path):
    without = "import sys; sys.modules['psycopg'] = None; from veil.cli.main import main; main()"
    code, line = refused("postgresql://db/veil", tmp_path, sys.executable, "-c", without)
    assert code == 1
    assert "pip install 'veilmq[postgres]'" in line


# ---- the database goes away and comes back


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    if (reason := why_no_server()) is not None:
        pytest.skip(reason)
    with PostgresServer(in_memory=True) as server:
        yield server


FROZEN = """
import asyncio, sys
import veil.server.main
from veil.cli.main import run
from veil.stores.postgres.store import PostgresStore
veil.server.main._LEAVE_S = 0.1
PostgresStore.close = lambda store: asyncio.Event().wait()
sys.exit(run(["serve", "--port", "0", "--console", "off", "--store", sys.argv[1]]))
"""


def test_a_database_that_never_answers_holds_no_node_that_is_told_to_stop(postgres: str, tmp_path: Path):
    command = [sys.executable, "-c", FROZEN, postgres]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=CLEAN, cwd=tmp_path, text=True) as node:
        try:
            assert node.stderr is not None
            assert any("ready on" in line for line in node.stderr)
            node.terminate()
            assert node.wait(timeout=60) == 0
            assert "the database does not answer" in node.stderr.read()
        finally:
            node.kill()


def test_while_the_database_is_away_answers_are_503_and_afterwards_it_serves_again(
    own_postgres: PostgresServer, tmp_path: Path
):
    with Node(tmp_path, own_postgres.dsn("postgres")) as node:
        assert node.call("CreateQueue", QueueName="orders")[0] == 200
        assert node.call("SendMessage", QueueUrl="orders", MessageBody="before")[0] == 200

        own_postgres.stop("immediate")

        status, answer = node.call("SendMessage", QueueUrl="orders", MessageBody="meanwhile")
        assert (status, answer["__type"].rpartition("#")[2]) == (503, "ServiceUnavailableException")
        assert node.headers["x-amzn-query-error"] == "ServiceUnavailable;Receiver"
        assert "retry-after" not in node.headers
        node.until("/readyz", 503)
        assert "the database takes no messages" in node.get("/readyz")[1]
        assert node.get("/healthz")[0] == 200

        own_postgres.start()

        node.until("/readyz", 200)
        assert re.search(r"^veil_database_connection_failures_total [1-9]", node.get("/metrics")[1], re.M)
        status, answer = node.call("ReceiveMessage", QueueUrl="orders", MaxNumberOfMessages=10)
        assert (status, [message["Body"] for message in answer["Messages"]]) == (200, ["before"])
        until(lambda: "the database can be used again" in node.log_path.read_text())
        assert node.terminate() == 0
    told = node.log_path.read_text()
    assert told.count("the database cannot be used") == told.count("the database can be used again") == 1
    assert "psycopg" not in told  # a line for each connection that broke would bury the others


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        (
            # Commits wait for a standby that is not there. What only reads does not notice.
            "ALTER SYSTEM SET synchronous_standby_names = 'nobody'; SELECT pg_reload_conf()",
            "ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf()",
        ),
        ("ALTER TABLE veil.message RENAME TO gone", "ALTER TABLE veil.gone RENAME TO message"),
    ],
)
def test_a_node_that_cannot_take_messages_is_not_ready(
    own_postgres: PostgresServer, tmp_path: Path, broken: str, mended: str
):
    with Node(tmp_path, own_postgres.dsn("postgres")) as node:
        assert node.call("CreateQueue", QueueName="orders")[0] == 200
        node.until("/readyz", 200)

        for statement in broken.split("; "):
            own_postgres.run_sql(statement)

        node.until("/readyz", 503)

        for statement in mended.split("; "):
            own_postgres.run_sql(statement)

        node.until("/readyz", 200)
        assert node.call("SendMessage", QueueUrl="orders", MessageBody="after")[0] == 200
