"""`veil autopilot` from the command line, on a real server and a journal that ends now."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.cli.conftest import Ran, Veil
from tests.http_stub import StubAnswer, StubRequest, http_stub
from tests.pipeline.autopilot_kit import HOUR_MS, REGION, World, slow
from tests.tls_kit import Authority
from tests.waiting import until
from veil import Consumer
from veil.cli.autopilot import _turn, journal_health
from veil.cli.failures import CommandFailed
from veil.client.blocking import BlockingClient, find_target
from veil.consumer.attempts_journal import AttemptsJournal
from veil.consumer.message import Message
from veil.core.autopilot import decode_state
from veil.journal.storage import Storage
from veil.pipeline.autopilot.loop import LOCK, JournalHealth
from veil.pipeline.lifecycles.lock import TablesBusy, only_run
from veil.pipeline.lifecycles.store import TablesRefused
from veil.testing import VeilServer

PLACES = ("--journal", "journal", "--tables", "tables", "--audit", "audit.jsonl", "--region", REGION)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    # With a journal of its own, which tells nothing here; the told one takes its place.
    with VeilServer("--data", str(tmp_path / "data")) as server:
        world = World(tmp_path, server.endpoint_url, int(time.time() * 1000) - 2 * HOUR_MS)
        yield world
        world.client.close()


Autopilot = Callable[..., Ran]


@pytest.fixture
def autopilot(command: Veil, tmp_path: Path) -> Autopilot:
    """`veil autopilot` with these arguments, where the journal is; at the server of the world."""

    def run(world: World, *arguments: str) -> Ran:
        where = () if "status" in arguments else ("--endpoint", world.client.target.endpoint)
        return command("autopilot", *arguments, *where)

    return run


def test_where_no_queue_allows_it_both_commands_say_how_to(world: World, autopilot: Autopilot):
    for arguments in (("--once", *PLACES), ("status", "--tables", "tables")):
        ran = autopilot(world, *arguments)
        assert (ran.code, ran.out) == (0, "")
        assert "no queue allows the autopilot; allow it with: veil queue edit QUEUE --tag" in ran.err


def test_from_the_tag_to_the_change_and_back(world: World, autopilot: Autopilot, command: Veil):
    world.create(30)
    world.pass_time(2, slow)
    ran = autopilot(world, "--once", *PLACES)
    assert ran.code == 0, ran.err
    assert "orders: change: 30 s to 2 min" in ran.out
    assert world.timeout_s == 120
    undo = shlex.split(ran.out.strip().rpartition("undo: veil ")[2])
    assert command(*undo).code == 0
    assert world.timeout_s == 30
    world.queues.set_timeout("orders", 120)

    shown = autopilot(world, "status", "--tables", "tables")
    assert "orders" in shown.out
    assert "apply" in shown.out

    with BlockingClient(find_target(world.client.target.endpoint, "us-west-2")) as client:
        client.call("CreateQueue", {"QueueName": "orders"})
    elsewhere = autopilot(world, "undo", "orders", "--tables", "tables", "--region", "us-west-2")
    assert elsewhere.code == 1
    assert f"account 000000000000 in {REGION}: expected account 000000000000 in us-west-2" in elsewhere.err
    assert world.timeout_s == 120
    undone = autopilot(world, "undo", "orders", "--tables", "tables", "--region", REGION)
    assert undone.code == 0, undone.err
    assert world.timeout_s == 30
    again = autopilot(world, "--once", *PLACES)
    assert "a person changed the timeout from 2 min to 30 s" in again.out
    assert world.timeout_s == 30

    assert autopilot(world, "resume", "orders", "--region", REGION).code == 0
    assert "change: 30 s to 2 min" in autopilot(world, "--once", *PLACES).out


def test_against_another_sqs_the_consumers_own_journal_takes_the_place_of_the_servers(
    tmp_path: Path, autopilot: Autopilot, moto_endpoint: str, monkeypatch: pytest.MonkeyPatch
):
    for name, value in (("ACCESS_KEY_ID", "any"), ("SECRET_ACCESS_KEY", "any"), ("REGION", REGION)):
        monkeypatch.setenv(f"AWS_{name}", value)
    world = World(tmp_path, moto_endpoint)
    world.create(600, "apply every=0")
    asyncio.run(overrun(world, 40, monkeypatch))
    ran = autopilot(world, "--once", *PLACES)
    assert "orders: change: 10 min to" in ran.out, ran.err
    assert world.timeout_s is not None
    assert world.timeout_s >= 900
    (change,) = world.actions("change")
    assert (change["outcome"], change["account"]) == ("done", "123456789012")

    assert autopilot(world, "undo", "orders", "--tables", "tables", "--region", REGION).code == 0
    assert world.timeout_s == 600
    world.queues.set_timeout("orders", 700)  # a person's own change
    assert "a person changed the timeout" in autopilot(world, "--once", *PLACES).out
    assert world.timeout_s == 700
    world.client.on_queue("DeleteQueue", "orders")
    world.client.close()


async def overrun(world: World, messages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer with a journal of its own, by whose clock each attempt outlasts the timeout of ten minutes."""
    for number in range(messages):
        world.client.on_queue("SendMessage", "orders", {"MessageBody": str(number)})
    now_s = time.time() - messages * 900
    monkeypatch.setattr(AttemptsJournal, "_now_ms", lambda self: round(now_s * 1000))
    # How long a handler worked is measured by a clock that is not the test's: the journal's has to do.
    monkeypatch.setattr(Message, "reported", lambda self, otherwise=None: self.failure or otherwise)
    journal = str(world.audit_file.parent / "journal")
    app = Consumer("orders", concurrency=1, endpoint=world.client.target.endpoint, journal=journal)
    seen, all_seen = set(), asyncio.Event()

    @app.handler
    async def work(body: str) -> None:
        nonlocal now_s
        # One may come twice: its clock must not run ahead of the autopilot's.
        now_s += 0 if body in seen else 900
        seen.add(body)
        if len(seen) == messages:
            all_seen.set()

    async with app:
        await all_seen.wait()


def test_decisions_are_posted_and_nobody_waits_for_whoever_listens(world: World, autopilot: Autopilot):
    world.create(30, "advise target=0.05")
    world.pass_time(2, slow)
    posted: list[dict[str, object]] = []

    def listener(asked: StubRequest) -> StubAnswer:
        posted.append(json.loads(asked.body))
        return StubAnswer(status=204)

    with http_stub(listener) as url:
        ran = autopilot(world, "--once", "--json", "--webhook", f"{url}/hook", *PLACES)
    assert ran.code == 0, ran.err
    (advice,) = posted
    assert (advice["queue"], advice["kind"], advice["after_s"]) == ("orders", "advise", 120)
    assert json.loads(ran.out) == advice


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--once", "--default", "yes", *PLACES), 2, "--default 'yes': expected off, advise or apply"),
        (("--once", "--webhook", "file:///etc/passwd", *PLACES), 2, "expected an http or https URL"),
        (("status", "--tables", "nowhere"), 1, "no autopilot has run"),
        (("status", "--tables", "ftp://x"), 2, "tables 'ftp://x': expected a path"),
    ],
)
def test_mistakes_are_told_in_one_line(
    world: World, autopilot: Autopilot, arguments: tuple[str, ...], code: int, said: str
):
    ran = autopilot(world, *arguments)
    assert ran.code == code
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1


def test_it_ends_when_the_spark_that_it_keeps_is_gone():
    turns = iter([ConnectionRefusedError(111, "Connection refused"), AssertionError("it went on")])

    class OfADeadSpark:
        def look_at_all(self) -> None:
            raise next(turns)

    # As the library between Python and Java says it. Whoever stays can only say it again, for ever.
    with pytest.raises(ConnectionRefusedError):
        _turn(cast("Any", OfADeadSpark()), 0.001, once=False)


def test_it_goes_on_when_other_runs_have_replaced_the_files_that_it_was_reading():
    turns = iter([TablesRefused("a file is gone"), KeyboardInterrupt()])

    class OfChangingTables:
        def look_at_all(self) -> None:
            raise next(turns)

    with pytest.raises(KeyboardInterrupt):
        _turn(cast("Any", OfChangingTables()), 0.001, once=False)


def test_a_second_one_on_the_same_tables_is_refused(world: World, autopilot: Autopilot):
    with only_run(world.tables, LOCK):
        ran = autopilot(world, "--once", *PLACES)
    assert ran.code == 1
    assert "another autopilot is already running on these tables: process" in ran.err


def test_a_run_that_has_the_tables_is_not_taken_for_another_autopilot(tmp_path: Path):
    class OfBusyTables:
        def look_at_all(self) -> None:
            raise TablesBusy(Storage.at(tmp_path), "process 7")

    with pytest.raises(CommandFailed, match=r"another run is writing .*: process 7"):
        _turn(cast("Any", OfBusyTables()), 0.001, once=True)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_server_keeps_an_autopilot_beside_it_and_takes_it_along(
    request: pytest.FixtureRequest, tmp_path: Path, store: str
):
    given = ["--data", str(tmp_path / "data")]
    if store == "postgres":
        given += ["--store", request.getfixturevalue("postgres"), "--journal", str(tmp_path / "journal")]
    with VeilServer(*given, "--journal-interval-s", "0.1") as server:
        sqs = server.client()
        url = sqs.create_queue(QueueName="orders", tags={"veil:autopilot": "advise"})["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="x")
        (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    tables = Storage.at(tmp_path / "data" / "tables")
    with VeilServer(*given, "--autopilot", "--autopilot-default", "off") as server:
        until(lambda: tables.exists("autopilot.json") and decode_state(tables.read("autopilot.json")).queues)
        state = decode_state(tables.read("autopilot.json"))
        assert state.problem is None
        assert state.queues["orders"].last is not None
        assert state.queues["orders"].last.code == "not enough evidence"
        assert "autopilot: nothing" in (tmp_path / "data" / "audit.jsonl").read_text()
        assert not is_free(tables)
        server._process.kill()
    until(lambda: is_free(tables))


def is_free(tables: Storage) -> bool:
    try:
        with only_run(tables, LOCK):
            return True
    except TablesBusy:
        return False


def test_the_journal_of_a_server_with_a_certificate_of_its_own_is_known_to_be_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    authority = Authority(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.ca))
    with VeilServer("--data", str(tmp_path / "data"), *authority.issue("127.0.0.1").flags) as server:
        endpoint = f"https://127.0.0.1:{server.port}"
        with BlockingClient(find_target(endpoint, REGION)) as client:
            health = journal_health(client, Storage.at(tmp_path / "data" / "journal"))
    assert isinstance(health, JournalHealth), health


def test_a_server_without_a_journal_has_nothing_to_learn_from():
    command = [
        sys.executable,
        "-m",
        "veil.cli.main",
        "serve",
        "--autopilot",
        "--store",
        "memory",
        "--port",
        "0",
    ]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 2
    assert "autopilot=on: expected a journal" in ran.stderr
