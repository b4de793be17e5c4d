"""The benchmarks run from end to end, briefly: their figures mean nothing here, that they count right does."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import growth, long_polls, store_cost, tail, wire_requests
from bench.contenders import contender
from bench.generator import LIFE, PARTS, RECEIVE, SEND, Lap, run_lap
from bench.load import run_load
from bench.table import table
from bench.throughput import GeneratorCheck, Report, Row

NOTHING = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.chdir(tmp_path)


def test_a_short_run_prints_a_line_for_each_part_and_writes_the_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ["--quick", "--seconds", "0.1", "--connections", "4", "--batches", "10", "--contenders", "veil"]
    assert bench.main([*run, "--out", "figures.json"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines() if " veil " in line] == list(PARTS)
    rows = json.loads(Path("figures.json").read_text())["rows"]
    assert [row["part"] for row in rows] == list(PARTS)
    assert all(row["requests_per_s"] > 0 and row["errors"] == 0 for row in rows)


@pytest.mark.soak
def test_two_cores_are_told_as_a_multiple_of_one_and_the_share_of_the_store_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ["--quick", "--seconds", "0.2", "--connections", "4", "--batches", "1", "--only", "send"]
    servers = ["--contenders", "veil-core", "veil-worker", "--build", "elsewhere", "--out", "figures.json"]
    assert bench.main([*run, *servers]) == 0
    heads = capsys.readouterr().out.splitlines()[2]
    assert "of one core" in heads and "store µs" in heads
    assert "of ElasticMQ" not in heads  # which was not asked
    one, two = json.loads(Path("figures.json").read_text())["rows"]
    assert one["of_one_core"] is None and one["store_us_per_request"] is None
    assert two["of_one_core"] == two["requests_per_s"] / one["requests_per_s"]
    assert 0 <= two["store_us_per_request"] <= two["server_us_per_request"]
    assert Path("elsewhere/veil-core.log").exists()


def test_a_compiled_server_that_is_not_built_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.contenders.COMPILED", tmp_path)
    with contender("veil-compiled", tmp_path) as missing:
        assert missing.missing == "it has not been built: run `make compiled`"


def test_a_lap_receives_and_deletes_what_it_sent_and_no_more(tmp_path: Path) -> None:
    with contender("veil", tmp_path) as veil:
        figures = {f.part: f for f in run_lap(Lap(veil.port, veil.pid, PARTS, 1, 4, 0.2))}
    assert list(figures) == list(PARTS)
    assert all(figure.errors == 0 for figure in figures.values())
    assert figures[RECEIVE].messages == figures[RECEIVE].requests
    # A life is three requests; at the end some are under way.
    assert 0 <= figures[LIFE].requests - 3 * figures[LIFE].messages <= 3 * 4


@pytest.mark.soak
def test_the_costs_of_growth_are_measured_at_any_size(capsys: pytest.CaptureFixture[str]) -> None:
    growth.measure(1_500, 100, 1, Path("build"))
    shown = capsys.readouterr().out
    for subject in (
        "memory",
        "backlog of 1,500",
        "100 in flight",
        "ready after a stop",
        "ready after a kill",
    ):
        assert subject in shown


def test_waiting_polls_each_answer_with_a_message_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    long_polls.main(["--polls", "20", "--sends", "10", "--idle-s", "0.1"])
    assert "exactly one poll answered with: 10 of 10" in capsys.readouterr().out


def test_a_server_that_closes_each_connection_is_asked_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(3):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(NOTHING)

        server = threading.Thread(target=serve)
        server.start()
        result = run_load("127.0.0.1", listener.getsockname()[1], 1, lambda _: b"anything", requests=3)
        server.join()
    assert (result.requests, result.errors) == (3, 0)


def test_an_answer_in_chunks_is_put_together() -> None:
    bodies: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                connection.sendall(b"5\r\nhalf \r\n")
                connection.sendall(b"a\r\nand a half\r\n0\r\n\r\n")

        server = threading.Thread(target=serve)
        server.start()
        port = listener.getsockname()[1]
        run_load(
            "127.0.0.1", port, 1, lambda _: b"anything", lambda *heard: bodies.append(heard[2]), requests=1
        )
        server.join()
    assert bodies == [b"half and a half"]


@pytest.mark.soak
def test_the_tail_is_measured_alone_and_beside_everything_else(capsys: pytest.CaptureFixture[str]) -> None:
    tail.main(["--connections", "4", "--seconds", "0.3", "--backlog", "100"])
    shown = capsys.readouterr().out.splitlines()
    assert "the purge took" in shown[0]
    assert "/console" not in shown[0]  # no page was refused
    assert [(line.split()[0], line.split()[-1]) for line in shown[3:]] == [("alone", "0"), ("beside", "0")]


def test_a_load_ends_when_there_is_nothing_more_to_ask(tmp_path: Path) -> None:
    with contender("noop", tmp_path) as noop:
        requests = [wire_requests.send("any", 1)] * 5
        result = run_load(
            "127.0.0.1", noop.port, 1, lambda _: requests.pop() if requests else None, seconds=60
        )
    assert (result.requests, result.errors) == (5, 0)
    assert result.seconds < 60


def test_a_refused_entry_of_a_batch_is_counted() -> None:
    answer = (
        b'{"Failed":[{"Id":"0","SenderFault":true,"Code":"X"},{"Id":"1","SenderFault": false,"Code":"Y"}]}'
    )
    assert wire_requests.refused_entries_in(answer) == 2
    assert wire_requests.refused_entries_in(b'{"Successful":[{"Id":"0"}]}') == 0


def test_what_is_not_available_says_why_in_its_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with contender("elasticmq", tmp_path) as elasticmq:
        assert elasticmq.missing == "no java on the path"
    row = Row("elasticmq", SEND, 1, 1, missing="not available: no java on the path")
    text = table(Report({"elasticmq": "not available"}, [row], GeneratorCheck(100.0, 150.0)))
    assert "not available: no java on the path" in text
    assert "ONE GENERATOR IS NOT ENOUGH" in text


def test_the_cost_of_the_store_is_told_for_each_operation(capsys: pytest.CaptureFixture[str]) -> None:
    store_cost.main(["--batch", "2", "--rounds", "2", "--place", "data"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [(part, batch) for part, batch, *_ in lines] == [(part, "2") for part in store_cost.PARTS]
    store_cost.main(["--leases", "20", "--place", "data"])
    assert capsys.readouterr().out.startswith("20 leases: ")
    assert all(0 < float(least) <= float(middle) for *_, least, middle in lines)
