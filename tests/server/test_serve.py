"""`veil serve` as its users meet it: a real process on a real socket, started, stopped, misused."""

from __future__ import annotations

import http.client
import io
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.load import process_cpu_s
from tests.forked_veil import ForkedVeil
from veil.server.process import TextLines

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("VEIL_", "AWS_"))}
VEIL = [sys.executable, "-m", "veil.cli.main"]


class Server:
    """A server that was started by its command, and what it said until it was ready."""

    def __init__(self, process: subprocess.Popen[bytes] | ForkedVeil) -> None:
        self.process = process
        self.said = ""
        assert process.stderr is not None
        self.stderr = io.TextIOWrapper(process.stderr)
        for line in self.stderr:
            self.said += line
            if found := re.search(r"ready on (\S+) port (\d+)", line):
                self.host, self.port = found[1], int(found[2])
                return
        process.kill()
        raise AssertionError(f"never ready: {self.said}")

    def request(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            self.last_headers = dict(answer.getheaders())
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def call(self, action: str, headers: dict[str, str] | None = None, **given: Any) -> tuple[int, Any]:
        own = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
        status, text = self.request("POST", "/", own | (headers or {}), json.dumps(given).encode())
        return status, json.loads(text) if text else {}

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.gone()

    def gone(self) -> int:
        self.said += self.stderr.read()
        return self.process.wait(timeout=120)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    """Start servers in an empty directory; none outlives the test."""
    with served_in(tmp_path) as start:
        yield start


@contextmanager
def served_in(directory: Path) -> Iterator[Any]:
    """Start servers in that directory, forked unless `run` says otherwise; none outlives the block."""
    started: list[tuple[Any, Server]] = []

    def start(*arguments: str, environ: dict[str, str] | None = None, run: Any = ForkedVeil) -> Server:
        process = run(
            [*VEIL, "serve", "--port", "0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=CLEAN | (environ or {}),
            cwd=directory,
        )
        started.append((process, server := Server(process)))
        return server

    yield start
    for process, server in started:
        process.kill()
        process.wait()
        server.stderr.close()


def refused(
    *arguments: str, cwd: Path, environ: dict[str, str] | None = None, run: Any = ForkedVeil
) -> tuple[int, str]:
    """Exit code and the one line on stderr of a server that did not start."""
    with TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        process = run(
            [*VEIL, "serve", *arguments],
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=CLEAN | (environ or {}), cwd=cwd,
        )  # fmt: skip
        code = process.wait(timeout=120)
        stdout.seek(0)
        stderr.seek(0)
        said = stderr.read()
        assert stdout.read() == ""
    assert said.count("\n") == 1, said
    assert said.startswith("veil: ")
    return code, said


# ---- the start


def test_a_server_says_where_it_is_where_the_data_lives_and_what_to_paste(serve, tmp_path: Path):
    server = serve(run=subprocess.Popen)
    endpoint = f"http://127.0.0.1:{server.port}"
    assert f"is ready at {endpoint}" in server.said
    assert "workers  none: one process does everything" in server.said
    assert "veil-data (sqlite;" in server.said
    assert "no keys: this machine only" in server.said
    assert f'boto3.client("sqs", endpoint_url="{endpoint}"' in server.said
    assert f"aws sqs list-queues --endpoint-url {endpoint} --region us-east-1" in server.said
    assert (tmp_path / "veil-data").stat().st_mode & 0o077 == 0
    assert server.stop() == 0


def test_a_server_is_ready_after_less_than_a_second_of_work(serve):
    # By CPU time, and the least of three: other tests share the machine.
    taken = []
    for _ in range(3):
        server = serve(run=subprocess.Popen)
        taken.append(process_cpu_s(server.process.pid))
        server.stop(signal.SIGKILL)
    assert min(taken) < 1.0


def test_the_data_is_there_after_a_restart(serve):
    first = serve()
    url = first.call("CreateQueue", QueueName="orders")[1]["QueueUrl"]
    assert first.call("SendMessage", QueueUrl=url, MessageBody="kept")[0] == 200
    assert first.stop() == 0
    _, answer = serve().call("ReceiveMessage", QueueUrl="orders")
    assert [message["Body"] for message in answer["Messages"]] == ["kept"]


def test_the_ready_file_tells_scripts_the_port_and_goes_with_the_server(serve, tmp_path: Path):
    server = serve("--store", "memory", "--ready-file", "ready.json")
    facts = json.loads((tmp_path / "ready.json").read_text())
    assert facts["port"] == server.port
    assert facts["pid"] == server.process.pid
    assert facts["endpoint_url"] == f"http://127.0.0.1:{server.port}"
    server.stop()
    assert not (tmp_path / "ready.json").exists()


def test_what_an_error_says_is_no_line_of_the_log_and_no_word_to_the_terminal():
    try:
        raise ValueError("\x1b[2J\u202e\n2026-11-18T00:00:00.000Z info veil.server.main: all is well")
    except ValueError as error:
        record = logging.LogRecord("veil", logging.ERROR, "", 0, "failed: %s", (error,), sys.exc_info())
    head, *trace = TextLines().format(record).split("\n")
    assert head.endswith(
        "failed: \\x1b[2J\\u202e\\n2026-11-18T00:00:00.000Z info veil.server.main: all is well"
    )
    assert trace[-2:] == [
        "  ValueError: \\x1b[2J\\u202e",
        "  2026-11-18T00:00:00.000Z info veil.server.main: all is well",
    ]
    assert all(line.startswith("  ") for line in trace)


def test_log_lines_can_be_json(serve):
    server = serve("--store", "memory", "--log-format", "json")
    server.stop()
    lines = [json.loads(line) for line in server.said.splitlines()]
    assert lines[0]["port"] == server.port
    assert [line["text"] for line in lines][-2:] == ["SIGTERM: stopping", "stopped"]


def test_declared_queues_exist_and_a_difference_is_a_warning_not_a_change(serve, tmp_path: Path):
    config = tmp_path / "veil.toml"
    config.write_text('[queues.orders]\nvisibility_timeout = "1m"\ndead_letter = "dead"\nmax_receives = 3\n')
    server = serve()
    _, answer = server.call("GetQueueAttributes", QueueUrl="orders", AttributeNames=["All"])
    attributes = answer["Attributes"]
    assert attributes["VisibilityTimeout"] == "60"
    assert json.loads(attributes["RedrivePolicy"])["deadLetterTargetArn"].endswith(":dead")
    server.stop()

    config.write_text("[queues.orders]\nvisibility_timeout = 90\n")
    server = serve()
    assert (
        "queue orders exists with visibility_s=60 and is declared with 90; it was not changed" in server.said
    )
    _, answer = server.call("GetQueueAttributes", QueueUrl="orders", AttributeNames=["VisibilityTimeout"])
    assert answer["Attributes"]["VisibilityTimeout"] == "60"


def test_the_rules_of_sixty_seconds_can_be_turned_off(serve):
    def purged_twice(server: Server) -> int:
        server.call("CreateQueue", QueueName="orders")
        server.call("PurgeQueue", QueueUrl="orders")
        return server.call("PurgeQueue", QueueUrl="orders")[0]

    assert purged_twice(serve("--store", "memory")) == 403
    assert purged_twice(serve("--store", "memory", "--no-rest-rules")) == 200
    assert purged_twice(serve("--store", "memory", environ={"VEIL_REST_RULES": "off"})) == 200


# ---- starts that are refused, in one line


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--port", "abc"], "port='abc' (--port): expected a whole number from 0 to 65535"),
        (["--port", "-1"], "port='-1' (--port)"),
        (["--store", "postgresql://"], "store='postgresql://' (--store): expected sqlite"),
        (["--store", "paper"], "store='paper' (--store): expected sqlite"),
        (["--host", "0.0.0.0"], "because there are no keys"),
        (["--host", "::"], "because there are no keys"),
        (["--host", "example.invalid"], "because there are no keys"),
        (["--log-format", "xml"], "log_format='xml' (--log-format): expected text or json"),
        (["--config", "none.toml"], "config=none.toml: expected a file that exists"),
        (["--keys-file", "none"], "keys_file=none: expected a file that can be read"),
        (["--account", "1"], "account='1' (--account): expected an account of 12 digits"),
        (["--queues", "a/b"], "queue name 'a/b'"),
        (["--prot", "1"], "No such option: --prot"),
        (["--port"], "--port"),
        (["extra"], "extra"),
    ],
)
def test_a_wrong_flag_is_told_in_one_line_and_exits_with_2(tmp_path: Path, arguments, told):
    code, line = refused(*arguments, cwd=tmp_path)
    assert code == 2
    assert told in line


def test_a_wrong_variable_and_a_wrong_file_exit_with_2(tmp_path: Path):
    assert refused(cwd=tmp_path, environ={"VEIL_PORT": "x"}, run=subprocess.Popen)[0] == 2
    (tmp_path / "veil.toml").write_text("prot = 1")
    code, line = refused(cwd=tmp_path)
    assert code == 2
    assert "unknown setting prot in veil.toml; did you mean port?" in line


def test_a_second_server_on_the_same_data_is_refused(serve, tmp_path: Path):
    first = serve()
    code, line = refused("--port", "0", cwd=tmp_path)
    assert code == 1
    assert str(first.process.pid) in line
    assert first.call("ListQueues")[0] == 200


def test_a_port_in_use_is_told_and_the_data_is_let_go(serve, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = refused("--port", str(port), cwd=tmp_path)
    assert code == 1
    assert f"port={port}: already in use on 127.0.0.1" in line
    assert serve().stop() == 0


def test_a_data_directory_that_cannot_be_is_told(tmp_path: Path):
    (tmp_path / "file").touch()
    for place in ("file", "file/below", "/proc/none"):
        code, line = refused("--data", place, cwd=tmp_path)
        assert code == 1
        assert f"data={place}: expected a directory that can be written" in line


def test_data_that_is_not_ours_is_refused(tmp_path: Path):
    (tmp_path / "veil-data").mkdir()
    (tmp_path / "veil-data" / "veil.db").write_bytes(b"not a database at all" * 1000)
    code, _ = refused("--port", "0", cwd=tmp_path)
    assert code == 1


def test_an_address_of_another_machine_is_told(tmp_path: Path):
    code, line = refused("--host", "203.0.113.1", cwd=tmp_path, environ={"VEIL_KEYS": "a:b"})
    assert code == 1
    assert "host=203.0.113.1: expected an address of this machine" in line


# ---- the end


@contextmanager
def waiting_long_poll(server: Server) -> Iterator[list[Any]]:
    """A receive that waits at the server; its answer is in the list afterwards."""
    answers: list[Any] = []
    poll = threading.Thread(
        target=lambda: answers.append(server.call("ReceiveMessage", QueueUrl="orders", WaitTimeSeconds=20))
    )
    poll.start()
    while (
        'veil_long_polls_waiting{account="000000000000",queue="orders",region="us-east-1"} 1.0'
        not in (server.request("GET", "/metrics")[1])
    ):
        assert poll.is_alive(), answers
    yield answers
    poll.join(60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_answers_long_polls_with_nothing_and_leaves_with_0(serve, number):
    server = serve("--store", "memory", "--queues", "orders")
    with waiting_long_poll(server) as answers:
        # In its grace of ten seconds, of which the poll's twenty know nothing.
        assert server.stop(number) == 0
    assert answers == [(200, {})]
    assert "stopped" in server.said


def test_asked_twice_it_leaves_at_once(serve):
    server = serve("--store", "memory")
    with socket.create_connection((server.host, server.port)) as slow:
        # A request that never ends keeps a polite stop waiting for its grace.
        slow.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nx")
        server.request("GET", "/healthz")
        server.process.send_signal(signal.SIGTERM)
        for line in server.stderr:
            if "stopping" in line:
                break
        assert server.stop(signal.SIGTERM) == 128 + signal.SIGTERM
    assert "leaving at once" in server.said


def test_a_request_that_does_not_end_is_cut_after_the_grace(serve):
    server = serve("--store", "memory", "--stop-grace-s", "0.2")
    with socket.create_connection((server.host, server.port)) as slow:
        slow.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nx")
        server.request("GET", "/healthz")
        assert server.stop() == 0


def test_it_leaves_though_a_file_that_the_console_reads_never_answers(serve, tmp_path: Path):
    (tmp_path / "tables").mkdir()
    os.mkfifo(pipe := tmp_path / "tables" / "timeouts.json")
    server = serve("--store", "memory", "--console-tables", "tables", "--stop-grace-s", "0.2")
    with socket.create_connection((server.host, server.port)) as visitor:
        visitor.sendall(b"GET /console/timeouts HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while True:  # until the server has opened it: it then reads for as long as we keep it open
            with suppress(OSError):
                writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
                break
        try:
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(timeout=60) == 0
        finally:
            os.close(writer)


SICK_DISK = """
import errno, os, sys
from veil.cli.main import run
healthy = os.fdatasync
def fdatasync(fd):
    if os.path.exists("sick"):
        raise OSError(errno.EIO, "Input/output error")
    healthy(fd)
os.fdatasync = fdatasync
sys.exit(run(["serve", "--port", "0", "--queues", "orders"]))
"""


def test_when_the_disk_fails_nothing_is_answered_with_success_and_it_leaves_with_70(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", SICK_DISK],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=CLEAN, cwd=tmp_path,
    )  # fmt: skip
    try:
        server = Server(process)
        assert server.call("SendMessage", QueueUrl="orders", MessageBody="kept")[0] == 200
        (tmp_path / "sick").touch()
        status, _ = server.call("SendMessage", QueueUrl="orders", MessageBody="unknown")
        assert status >= 500
        assert server.gone() == 70
        assert "the store failed, the server stops: [Errno 5] Input/output error" in server.said
    finally:
        process.kill()
        process.communicate()


def test_a_ready_file_that_cannot_be_written_stops_the_start(tmp_path: Path):
    code, line = refused("--store", "memory", "--port", "0", "--ready-file", "none/ready", cwd=tmp_path)
    assert code == 1
    assert "ready_file=none/ready: expected a file that can be written" in line


# ---- health, metrics, access


def test_health_and_readiness_are_for_everybody(serve):
    server = serve("--store", "memory")
    for path in ("/healthz", "/readyz"):
        assert server.request("GET", path, {"Host": "10.0.0.7"}) == (200, "ok\n")
        assert server.request("POST", path)[0] == 405


def test_metrics_are_what_prometheus_reads(serve):
    server = serve("--queues", "orders")
    server.call("SendMessage", QueueUrl="orders", MessageBody="x")
    server.call("Invented" * 100)
    status, text = server.request("GET", "/metrics")
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert [sample.value for sample in families["veil_messages_sent"].samples] == [1]
    assert families["veil_commit_seconds"].type == "histogram"
    actions = {sample.labels["action"] for sample in families["veil_requests"].samples}
    assert actions == {"SendMessage", "other"}


def test_metrics_can_be_turned_off(serve):
    assert serve("--store", "memory", "--metrics", "off").request("GET", "/metrics")[0] == 404
    assert serve("--store", "memory", "--metrics", "loopback").request("GET", "/metrics")[0] == 200


def test_a_browser_is_told_what_this_is(serve):
    server = serve("--store", "memory")
    status, text = server.request("GET", "/", {"Accept": "text/html"})
    assert status == 200
    assert "speaks the protocols of Amazon SQS" in text
    assert server.request("HEAD", "/") == (200, "")


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_a_web_page_can_do_nothing_to_a_server_on_its_readers_machine(serve, headers):
    server = serve("--store", "memory", "--queues", "orders")
    server.call("SendMessage", QueueUrl="orders", MessageBody="x")
    form = {"Content-Type": "application/x-www-form-urlencoded"} | headers
    status, _ = server.request("POST", "/000000000000/orders", form, b"Action=PurgeQueue")
    assert status == 403
    assert not [name for name in server.last_headers if name.lower().startswith("access-control")]
    assert server.request("GET", "/metrics", headers)[0] == 403
    assert server.request("OPTIONS", "/", headers)[0] == 403
    assert server.call("ReceiveMessage", QueueUrl="orders")[1]["Messages"][0]["Body"] == "x"


def test_with_keys_it_may_listen_elsewhere_and_every_request_must_be_signed(serve, tmp_path: Path):
    import boto3
    from botocore.exceptions import ClientError

    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("AKIA1:hunter2:111111111111\n")
    server = serve("--store", "memory", "--host", "0.0.0.0", "--keys-file", "keys")
    assert "1 access key; every request must be signed" in server.said
    assert "hunter2" not in server.said
    server.host = "127.0.0.1"
    assert server.call("ListQueues")[0] == 403
    assert server.request("GET", "/readyz")[0] == 200

    def client(secret: str) -> Any:
        return boto3.client(
            "sqs", endpoint_url=f"http://127.0.0.1:{server.port}", region_name="us-east-1",
            aws_access_key_id="AKIA1", aws_secret_access_key=secret,
        )  # fmt: skip

    assert "/111111111111/" in client("hunter2").create_queue(QueueName="orders")["QueueUrl"]
    with pytest.raises(ClientError, match="signature"):
        client("wrong").list_queues()

    keys.write_text("AKIA1:fresh:111111111111\n")
    server.process.send_signal(signal.SIGHUP)
    for line in server.stderr:
        if "SIGHUP" in line:
            break
    assert client("fresh").list_queues()["QueueUrls"]
    with pytest.raises(ClientError, match="signature"):
        client("hunter2").list_queues()


# ---- what clients write reaches neither the file system nor the network


def test_the_name_of_a_queue_never_becomes_the_name_of_a_file(serve, tmp_path: Path):
    server = serve()
    assert server.call("CreateQueue", QueueName="harvest")[0] == 200
    url = f"http://127.0.0.1:{server.port}/000000000000/harvest"
    assert server.call("SendMessage", QueueUrl=url, MessageBody="x")[0] == 200
    assert server.stop() == 0  # exports the journal

    names = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")]
    assert any(name.endswith(".parquet") for name in names)
    assert not [name for name in names if "harvest" in name]


def test_the_server_never_opens_a_url_that_a_client_gave_it(serve):
    server = serve()
    server.call("CreateQueue", QueueName="orders")
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.setblocking(False)
        url = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/000000000000/orders"
        for action, given in (
            ("SendMessage", {"MessageBody": url}),
            ("ReceiveMessage", {}),
            ("GetQueueAttributes", {"AttributeNames": ["All"]}),
            ("SetQueueAttributes", {"Attributes": {"KmsMasterKeyId": url}}),
        ):
            # Account and name are all that counts of it.
            assert server.call(action, QueueUrl=url, **given)[0] == 200, action
        assert server.stop() == 0
        with pytest.raises(BlockingIOError):  # nobody has connected
            elsewhere.accept()


# ---- veil config


def config_show(*arguments: str, cwd: Path, environ: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [*VEIL, "config", "show", *arguments],
        capture_output=True, text=True, check=True, env=CLEAN | (environ or {}), cwd=cwd,
    )  # fmt: skip
    return done.stdout


def test_config_show_tells_value_and_origin_and_no_secret(tmp_path: Path):
    (tmp_path / "veil.toml").write_text('region = "eu-west-1"\n[[keys]]\nid = "a"\nsecret = "hunter2"\n')
    (tmp_path / "veil.toml").chmod(0o600)
    environ = {"VEIL_HOST": "0.0.0.0"}
    text = config_show("--port", "1", cwd=tmp_path, environ=environ)
    assert re.search(r"^port +1 +--port$", text, re.MULTILINE)
    assert re.search(r"^host +0\.0\.0\.0 +VEIL_HOST$", text, re.MULTILINE)
    assert re.search(r"^region +eu-west-1 +veil\.toml$", text, re.MULTILINE)
    assert re.search(r"^account +0{12} +default$", text, re.MULTILINE)
    assert "hunter2" not in text

    lines = config_show("--json", cwd=tmp_path, environ=environ).splitlines()
    rows = {row["name"]: row for row in map(json.loads, lines)}
    assert rows["host"] == {"name": "host", "value": "0.0.0.0", "origin": "VEIL_HOST"}
    assert rows["keys"] == {"name": "keys", "value": "1 (hidden)", "origin": "veil.toml"}


def test_config_show_tells_a_mistake_like_serve_does(tmp_path: Path):
    done = subprocess.run(
        [*VEIL, "config", "show", "--port", "x"], capture_output=True, text=True, env=CLEAN, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr == "veil: port='x' (--port): expected a whole number from 0 to 65535\n"
