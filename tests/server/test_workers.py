"""`veil serve --workers N`: several processes that are one server, also when one of them dies."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.faults.server_process import command_of
from tests.server.test_serve import CLEAN, SICK_DISK, Server, refused, served_in
from tests.server.test_serve import serve as serve  # a fixture
from tests.signing import sign
from tests.waiting import PATIENCE_S, until
from veil.server.attendant import STORE_PROCESS
from veil.server.settings import Settings
from veil.server.worker import Worker
from veil.stores.remote import Link


class Client:
    """One connection, kept: all that it asks goes to one worker."""

    def __init__(self, server: Server, queue: str = "orders") -> None:
        self.queue = queue
        self._http = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
        try:
            assert self.get("/healthz") == (200, "ok\n")
        except BaseException:
            self.close()
            raise
        self.port = self._http.sock.getsockname()[1]

    def get(self, path: str) -> tuple[int, str]:
        self._http.request("GET", path)
        answer = self._http.getresponse()
        return answer.status, answer.read().decode()

    def open(self, path: str) -> http.client.HTTPResponse:
        self._http.request("GET", path)
        return self._http.getresponse()

    def call(self, action: str, **given: Any) -> tuple[int, Any]:
        target = action if "." in action else f"AmazonSQS.{action}"
        headers = {"X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.0"}
        self._http.request("POST", "/", json.dumps(given).encode(), headers)
        answer = self._http.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else {}

    def send(self, body: str) -> bool:
        return self.call("SendMessage", QueueUrl=self.queue, MessageBody=body)[0] == 200

    def receive(self, **given: Any) -> list[Any]:
        given.setdefault("AttributeNames", ["ApproximateReceiveCount"])
        status, answer = self.call("ReceiveMessage", QueueUrl=self.queue, **given)
        assert status == 200, answer
        return answer.get("Messages", [])

    def delete(self, message: Any) -> bool:
        return (
            self.call("DeleteMessage", QueueUrl=self.queue, ReceiptHandle=message["ReceiptHandle"])[0] == 200
        )

    def in_flight(self) -> int:
        names = ["ApproximateNumberOfMessagesNotVisible"]
        _, answer = self.call("GetQueueAttributes", QueueUrl=self.queue, AttributeNames=names)
        return int(answer["Attributes"][names[0]])

    def hang_up(self) -> None:
        """Go away while an answer is awaited."""
        self._http.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._http.close()


class Crew:
    """A server with its workers."""

    def __init__(self, server: Server, closing_all: ExitStack, queue: str = "orders") -> None:
        self.server, self._closing_all, self.queue = server, closing_all, queue
        self.watcher = self.connect()

    def connect(self) -> Client:
        return self._closing_all.enter_context(closing(Client(self.server, self.queue)))

    def connect_to(self, worker: int) -> Client:
        """A client of this worker; those that came to others while it had more are closed, and the server knows of it."""
        before = self.metrics()["veil_connections"]
        with ExitStack() as others:
            while self.worker_of(client := Client(self.server, self.queue)) != worker:
                others.enter_context(closing(client))
        self._closing_all.enter_context(closing(client))
        until(lambda: self.metrics()["veil_connections"] <= before + 1)
        return client

    def workers(self) -> list[int]:
        """The processes that serve, and none that has another task."""
        pid = self.server.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if b"veil.server.worker" in command_of(child)]

    def worker_of(self, client: Client) -> int:
        """Which worker has the client's connection."""
        # Established (01); one of the same ports may still be in TIME_WAIT.
        pattern = re.compile(rf"\s*\d+: \w+:{self.server.port:04X} \w+:{client.port:04X} 01 (.*)")
        numbers: set[str] = set()
        while not numbers:  # while others come and go the kernel may list a line twice, or not at all
            lines = Path("/proc/net/tcp").read_text().splitlines()
            numbers = {match[1].split()[5] for line in lines if (match := pattern.match(line))}
        [number] = numbers
        inode = f"socket:[{number}]"
        [worker] = [pid for pid in self.workers() if inode in _files(pid)]
        return worker

    def replaced(self, worker: int) -> bool:
        """Whether another serves in its place."""
        return worker not in self.workers() and self.metrics()["veil_workers"] == 2

    def metrics(self) -> dict[str, float]:
        """The sums over all labels, asked over a connection that may have died with its worker."""
        try:
            _, page = self.watcher.get("/metrics")
        except (OSError, http.client.HTTPException):
            self.watcher = self.connect()
            _, page = self.watcher.get("/metrics")
        # A page may be a second old: a queue that was made since has no samples in it.
        sums: defaultdict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                sums[sample.name] += sample.value
        return sums

    @contextmanager
    def polls(self, *clients: Client) -> Iterator[list[tuple[Client, list[str]]]]:
        """Long polls by each of the clients, begun one after the other; the bodies in the order of the answers."""
        answers: list[tuple[Client, list[str]]] = []

        def poll(client: Client) -> None:
            messages = client.receive(WaitTimeSeconds=20)
            answers.append((client, [message["Body"] for message in messages]))

        with ThreadPoolExecutor(len(clients)) as threads:
            running = []
            for count, client in enumerate(clients, 1):
                running.append(threads.submit(poll, client))
                until(lambda count=count: self.metrics()["veil_long_polls_waiting"] == count)
            yield answers
            for each in running:
                each.result(PATIENCE_S)

    @contextmanager
    def doomed_poll(self, client: Client) -> Iterator[None]:
        """A long poll that is never answered."""
        with ThreadPoolExecutor(1) as thread:
            poll = thread.submit(client.receive, WaitTimeSeconds=20)
            until(lambda: self.metrics()["veil_long_polls_waiting"] == 1)
            yield
            with pytest.raises((OSError, http.client.HTTPException)):
                poll.result(PATIENCE_S)


def _files(pid: int) -> list[str]:
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed since it was listed
            found.append(str(fd.readlink()))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def closing_all() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served_in(tmp_path_factory.mktemp("workers")) as start:
        yield start("--workers", "2")


@pytest.fixture
def crew(server: Server, closing_all: ExitStack, request: pytest.FixtureRequest) -> Crew:
    """Both workers of the server that these tests share, and a queue of the test's own."""
    crew = Crew(server, closing_all, request.node.name[5:85])
    until(lambda: crew.metrics()["veil_workers"] == 2)
    assert crew.watcher.call("CreateQueue", QueueName=crew.queue)[0] == 200
    until(lambda: crew.metrics()["veil_connections"] == 1)  # those of the test before have gone
    return crew


@pytest.fixture
def own_crew(serve, closing_all: ExitStack) -> Crew:
    """Of a server that does not outlive the test."""
    return Crew(serve("--workers", "2", "--queues", "orders"), closing_all)


@pytest.fixture
def clients(crew: Crew) -> tuple[Client, Client]:
    return client_of_each(crew)


def client_of_each(crew: Crew) -> tuple[Client, Client]:
    """A client of each worker; the second one's also serves the metrics."""
    watching = crew.worker_of(crew.watcher)
    [another] = set(crew.workers()) - {watching}
    return crew.connect_to(another), crew.connect_to(watching)


# ---- one server


def test_connections_are_shared_out_and_the_greeting_tells(crew):
    held = [crew.worker_of(client) for client in (crew.watcher, *(crew.connect() for _ in range(3)))]
    assert sorted(held.count(pid) for pid in crew.workers()) == [2, 2]
    assert "workers  2, beside one process that has the store" in crew.server.said


def test_one_worker_serves_alone_before_the_store_process(serve, closing_all):
    crew = Crew(serve("--workers", "1", "--queues", "orders"), closing_all)
    assert len(crew.workers()) == crew.metrics()["veil_workers"] == 1
    assert crew.worker_of(crew.watcher) == crew.workers()[0]
    assert "workers  1, beside one process that has the store" in crew.server.said


def test_what_one_worker_was_told_the_others_know(crew, clients):
    one, other = clients
    for seconds in range(1, 20):
        settings = {"VisibilityTimeout": str(seconds)}
        assert other.call("GetQueueAttributes", QueueUrl=crew.queue, AttributeNames=["All"])[0] == 200
        assert one.call("SetQueueAttributes", QueueUrl=crew.queue, Attributes=settings)[0] == 200
        _, answer = other.call(
            "GetQueueAttributes", QueueUrl=crew.queue, AttributeNames=["VisibilityTimeout"]
        )
        assert answer["Attributes"] == settings
    assert one.call("DeleteQueue", QueueUrl=crew.queue)[0] == 200
    status, answer = other.call("SendMessage", QueueUrl=crew.queue, MessageBody="late")
    assert (status, answer["__type"]) == (400, "com.amazonaws.sqs#QueueDoesNotExist")


def test_metrics_are_of_all_workers(crew, clients):
    before = crew.metrics()
    for client in clients:
        client.send("x")
    metrics = crew.metrics()
    assert metrics["veil_requests_total"] == before["veil_requests_total"] + 2
    sent = before.get("veil_messages_sent_total", 0) + 2
    until(lambda: crew.metrics().get("veil_messages_sent_total") == sent)  # the queue is new to the page
    assert metrics["veil_workers"] == 2
    until(lambda: crew.metrics()["veil_connections"] == 3)


def test_long_polls_wait_in_one_line(crew, clients):
    line = (*clients, *(crew.connect_to(worker) for worker in crew.workers()))
    with crew.polls(*line) as answers:
        for number in range(4):
            crew.watcher.send(str(number))
            until(lambda number=number: len(answers) == number + 1)
    assert answers == [(client, [str(number)]) for number, client in enumerate(line)]


def test_a_long_poll_whose_client_has_gone_takes_nothing(crew, clients):
    one, other = clients
    with crew.doomed_poll(one):
        one.hang_up()
        until(lambda: crew.metrics()["veil_long_polls_waiting"] == 0)
        other.send("x")
        assert [message["Body"] for message in other.receive()] == ["x"]


def test_the_console_is_the_same_whichever_worker_is_asked(clients):
    clients[0].send("x")
    [message] = clients[0].receive()
    for client in clients:
        status, page = client.get("/console/consumers")
        assert status == 200
        assert re.search(r"127\.0\.0\.1", page)  # one consumer, which is known to all
    assert clients[1].delete(message)


def test_any_worker_tells_who_holds_a_message_and_what_was_tried(crew, clients):
    clients[0].send("x")
    [message] = clients[0].receive()
    for client in clients:
        _, looked = client.call("Veil.PeekMessages", QueueUrl=crew.queue)
        assert looked["Messages"][0]["Holder"]["Address"] == "127.0.0.1"
        _, life = client.call("Veil.DescribeMessage", MessageId=message["MessageId"])
        assert [attempt["Outcome"] for attempt in life["Stays"][0]["Attempts"]] == ["open"]


def test_any_worker_tells_what_has_happened_in_a_queue(crew, clients):
    one, other = clients
    for client in (one, other, one):
        client.send("x")
    assert other.delete(other.receive()[0])
    for client in clients:
        queues = client.call("Veil.DescribeQueues", QueueNamePrefix=crew.queue)[1]["Queues"]
        [told] = [each for each in queues if each["QueueName"] == crew.queue]
        assert [told[name] for name in ("Sent", "Received", "Deleted")] == [3, 1, 1]


def test_live_pages_are_streamed_by_any_worker(own_crew):
    crew = own_crew
    for client in client_of_each(crew):
        stream = client.open("/console/consumers/live")
        assert stream.getheader("Content-Type", "").startswith("text/event-stream")
        assert stream.readline()
        stream.close()
    assert crew.server.stop() == 0
    assert "error" not in crew.server.said


def test_connections_are_limited_for_the_server_as_a_whole(serve, closing_all):
    environ = {
        "VEIL_HTTP_CONNECTIONS_MAX": "8",
        "VEIL_HTTP_IDLE_SPARED_S": "600",
        "VEIL_HTTP_LINGER_S": "600",
    }
    crew = Crew(serve("--workers", "2", "--store", "memory", environ=environ), closing_all)
    until(lambda: crew.metrics()["veil_connections"] == 1)
    held = [crew.worker_of(client) for client in (crew.watcher, *(crew.connect() for _ in range(7)))]
    assert sorted(held.count(pid) for pid in crew.workers()) == [4, 4]
    with pytest.raises(AssertionError, match="503"):
        crew.connect()


def test_a_worker_takes_little_memory(crew, clients):
    for client in clients:
        for _ in range(200):
            client.send("x" * 1000)
            client.receive(MaxNumberOfMessages=10)
    for pid in crew.workers():
        status = Path(f"/proc/{pid}/status").read_text()
        assert int(status.partition("VmHWM:")[2].split()[0]) < 60 << 10


def test_nodes_of_one_database_have_no_workers(tmp_path: Path):
    code, line = refused("--workers", "2", "--store", "postgresql://localhost/veil", cwd=tmp_path)
    assert code == 2
    assert "workers=2: expected 0, because the messages are in PostgreSQL" in line


# ---- deaths


def test_a_worker_that_dies_gives_back_what_it_had_not_answered(own_crew):
    crew = own_crew
    one, other = client_of_each(crew)
    victim = crew.worker_of(one)
    with crew.doomed_poll(one):
        os.kill(victim, signal.SIGSTOP)  # the poll is answered to a worker that cannot pass the answer on
        assert other.send("x")
        until(lambda: other.in_flight() == 1)
        os.kill(victim, signal.SIGKILL)

    until(lambda: other.in_flight() == 0)
    [message] = other.receive()
    assert (message["Body"], message["Attributes"]["ApproximateReceiveCount"]) == ("x", "1")
    until(lambda: crew.replaced(victim))
    assert crew.metrics()["veil_worker_restarts_total"] == 1
    assert crew.connect().send("y")
    assert crew.server.stop() == 0
    assert f"worker {victim} died (SIGKILL): another is started" in crew.server.said


def test_a_worker_that_died_while_there_were_no_files_is_replaced_once_there_are(own_crew):
    crew, pid = own_crew, own_crew.server.process.pid
    one, other = client_of_each(crew)
    victim = crew.worker_of(one)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))  # whatever it opens now is one too many
    os.kill(victim, signal.SIGKILL)
    told = "a worker cannot be started: Too many open files"
    assert any(told in line for line in crew.server.stderr)  # up to that line
    assert other.send("x")

    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    until(lambda: crew.replaced(victim))


async def test_the_store_process_is_told_of_an_answer_before_the_client_gets_it():
    worker = Worker(cast(Any, SimpleNamespace(settings=Settings(), keys={})))
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    worker._loop = asyncio.get_running_loop()
    _, worker._link = await worker._loop.create_connection(lambda: Link(STORE_PROCESS, (), None), sock=ours)

    await worker.delivering(7)

    told = theirs.recv(1000)  # out of the worker's process: its death changes nothing any more
    assert told.endswith(msgspec.msgpack.encode([[7]]))
    worker._link.close()
    theirs.close()


def test_what_was_answered_is_not_given_back_with_the_death_of_a_worker(crew, clients):
    one, other = clients
    other.send("x")
    assert [message["Body"] for message in one.receive()] == ["x"]
    victim = crew.worker_of(one)
    os.kill(victim, signal.SIGKILL)
    until(lambda: crew.replaced(victim))
    assert other.in_flight() == 1


def test_under_load_nothing_is_lost_and_others_go_on_when_workers_die(crew):
    sent: set[str] = set()
    deleted: set[str] = set()
    deaths, enough = 3, threading.Event()

    def work(number: int) -> int:
        """Send, receive and delete, over a new connection whenever one is lost; how many were."""
        lost = count = 0
        while not enough.is_set():
            try:
                with closing(Client(crew.server, crew.queue)) as client:
                    while not enough.is_set():
                        body = f"{number}-{count}"
                        count += 1
                        if client.send(body):
                            sent.add(body)
                        for message in client.receive():
                            if client.delete(message):
                                deleted.add(message["Body"])
            except (OSError, http.client.HTTPException):
                lost += 1
        return lost

    with ThreadPoolExecutor(8) as threads:
        running = [threads.submit(work, number) for number in range(8)]
        for _ in range(deaths):
            had = len(deleted)
            until(lambda had=had: len(deleted) > had + 50)
            victim = crew.worker_of(crew.watcher)
            os.kill(victim, signal.SIGKILL)
            until(lambda victim=victim: crew.replaced(victim))
        enough.set()
        lost = sum(each.result(PATIENCE_S) for each in running)
    assert 0 < lost <= deaths * 8  # each takes its own connections along, at most all of them
    client = crew.connect()
    # A message is in flight only where its answer, or that of its delete, was lost with the connection.
    assert client.in_flight() <= lost
    left: set[str] = set()
    while messages := client.receive(MaxNumberOfMessages=10):
        left |= {message["Body"] for message in messages}
    assert len(sent - deleted - left) <= lost


def test_a_worker_that_hangs_costs_no_holder_its_lease_and_is_replaced(crew, clients):
    one, other = clients
    other.send("x")
    victim = crew.worker_of(one)
    [message] = one.receive(VisibilityTimeout=4)
    assert one.in_flight() == 1  # and the store process has heard that the answer was written
    os.kill(victim, signal.SIGSTOP)  # from now on its clients cannot renew

    def replaced() -> bool:
        assert other.in_flight() == 1
        return crew.replaced(victim)

    until(replaced)  # which takes longer than the lease
    renewal = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 60}
    assert crew.connect().call("ChangeMessageVisibility", QueueUrl=crew.queue, **renewal)[0] == 200
    assert other.in_flight() == 1


@contextmanager
def held_up(place: Path, but: set[int]) -> Iterator[None]:
    """Stop the next worker of a server in this folder before it serves."""
    found: list[int] = []

    def is_there() -> bool:
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (
                    b"veil.server.worker" in command_of(process.name)
                    and (process / "cwd").readlink() == place
                ):
                    found.extend({int(process.name)} - but)
        return bool(found)

    until(is_there)
    os.kill(found[0], signal.SIGSTOP)
    yield
    os.kill(found[0], signal.SIGCONT)


def hold_up(place: Path, but: set[int]) -> None:
    """The same for longer than a lease of 4 s and its grace last."""
    with held_up(place, but):
        time.sleep(7)


def test_a_worker_that_starts_while_keys_change_knows_the_new_ones(serve, closing_all, tmp_path: Path):
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("AKIA1:hunter2:111111111111\n")
    crew = Crew(serve("--workers", "1", "--keys-file", "keys"), closing_all)
    server = crew.server

    def outcome(secret: str) -> int:
        body, host = b"{}", f"{server.host}:{server.port}"
        headers = {"x-amz-target": "AmazonSQS.ListQueues"}
        signed = sign(
            method="POST", host=host, path="/", headers=headers, body=body, key_id="AKIA1", secret=secret,
            region="us-east-1", now_ms=time.time_ns() // 1_000_000,
        )  # fmt: skip
        with closing(http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)) as connection:
            connection.request("POST", "/", body, headers | signed)
            return connection.getresponse().status

    assert (outcome("hunter2"), outcome("fresh")) == (200, 403)
    [worker] = crew.workers()
    os.kill(worker, signal.SIGKILL)
    with held_up(tmp_path, {worker}):
        keys.write_text("AKIA1:fresh:111111111111\n")
        server.process.send_signal(signal.SIGHUP)
        while "SIGHUP" not in server.stderr.readline():
            pass
    assert (outcome("hunter2"), outcome("fresh")) == (403, 200)


def test_no_lease_lapses_while_there_is_no_worker_to_take_its_renewal(serve, closing_all, tmp_path: Path):
    """Neither after the death of the only one, nor after a restart before the first one serves."""
    given = ("--workers", "1", "--queues", "orders")
    crew = Crew(serve(*given), closing_all)
    crew.watcher.send("x")
    [message] = crew.watcher.receive()

    def is_held() -> bool:
        """Whether nobody else can have it; if so, it is held for 4 s from now."""
        client = crew.connect()
        renewal = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 4}
        is_free = bool(client.receive())
        return not is_free and client.call("ChangeMessageVisibility", QueueUrl="orders", **renewal)[0] == 200

    [worker] = crew.workers()
    assert is_held()
    os.kill(worker, signal.SIGKILL)
    hold_up(tmp_path, {worker})
    before = set(crew.workers())
    assert is_held()
    crew.server.process.kill()
    with ThreadPoolExecutor(1) as thread:
        late = thread.submit(hold_up, tmp_path, before)
        crew = Crew(serve(*given), closing_all)
        late.result()
    assert is_held()


def test_a_worker_that_is_asked_to_stop_finishes_and_is_replaced(crew, clients):
    one, other = clients
    leaving = crew.worker_of(one)
    restarts = crew.metrics()["veil_worker_restarts_total"]
    with crew.polls(one) as answers:
        os.kill(leaving, signal.SIGTERM)
        assert other.send("x")
    assert answers == [(one, ["x"])]
    until(lambda: crew.replaced(leaving))
    assert crew.metrics()["veil_worker_restarts_total"] == restarts


class BegunSend:
    """A send of which a worker has read the beginning."""

    def __init__(self, crew: Crew) -> None:
        self._http, body = crew.connect()._http, b'{"QueueUrl": "orders", "MessageBody": "x"}'
        self._http.putrequest("POST", "/")
        self._http.putheader("X-Amz-Target", "AmazonSQS.SendMessage")
        self._http.putheader("Content-Length", str(len(body)))
        self._http.endheaders(body[:5])
        self._rest = body[5:]

    def ended(self) -> int:
        self._http.send(self._rest)
        return self._http.getresponse().status


PATIENT = {"VEIL_HTTP_BODY_DEADLINE_S": "600", "VEIL_STOP_GRACE_S": "600"}


def test_another_serves_before_a_worker_that_is_asked_to_stop_takes_no_more(serve, closing_all):
    crew = Crew(serve("--workers", "1", "--queues", "orders", environ=PATIENT), closing_all)
    [leaving] = crew.workers()
    begun = BegunSend(crew)
    os.kill(leaving, signal.SIGTERM)
    until(lambda: crew.metrics()["veil_workers"] == 2)  # while the one that leaves is there
    assert begun.ended() == 200
    until(lambda: not is_running(leaving))
    until(lambda: crew.metrics()["veil_workers"] == 1)


def test_a_long_poll_ends_within_the_grace_of_a_worker_that_is_asked_to_stop(serve, closing_all):
    crew = Crew(serve("--workers", "1", "--queues", "orders", "--stop-grace-s", "4"), closing_all)
    client = crew.connect()
    with crew.polls(client) as answers:
        os.kill(crew.workers()[0], signal.SIGTERM)
    assert answers == [(client, [])]  # its 20 s are longer than the grace


def test_workers_that_are_asked_to_stop_with_the_server_answer_what_they_have_begun(serve, closing_all):
    """As systemd asks them: every process of the service gets the signal."""
    crew = Crew(serve("--workers", "2", "--queues", "orders", environ=PATIENT), closing_all)
    begun = [BegunSend(crew), BegunSend(crew)]
    for worker in crew.workers():
        os.kill(worker, signal.SIGTERM)
    assert any("was asked to stop" in line for line in crew.server.stderr)  # up to that line
    crew.server.process.send_signal(signal.SIGTERM)

    def is_closed() -> bool:
        try:
            crew.connect()
        except (OSError, http.client.HTTPException):
            return True
        return False

    until(is_closed)
    time.sleep(0.5)  # in which a worker that is asked twice would have gone
    assert [each.ended() for each in begun] == [200, 200]
    assert crew.server.gone() == 0


def test_workers_end_with_the_store_process(own_crew):
    workers = own_crew.workers()
    own_crew.server.process.kill()
    until(lambda: not any(map(is_running, workers)))


def test_asked_to_stop_all_workers_finish(own_crew):
    crew = own_crew
    workers = crew.workers()
    with crew.polls(*client_of_each(crew)) as answers:
        assert crew.server.stop() == 0
    assert [bodies for _, bodies in answers] == [[], []]
    assert not any(map(is_running, workers))


def test_when_the_disk_fails_the_server_leaves_with_70(tmp_path: Path, closing_all):
    command = SICK_DISK.replace('"--port", "0"', '"--port", "0", "--workers", "2"')
    process = subprocess.Popen(
        [sys.executable, "-c", command],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=CLEAN, cwd=tmp_path,
    )  # fmt: skip
    try:
        crew = Crew(Server(process), closing_all)
        workers = crew.workers()
        assert crew.watcher.send("kept")
        (tmp_path / "sick").touch()
        status, _ = crew.watcher.call("SendMessage", QueueUrl="orders", MessageBody="unknown")
        assert status >= 500
        assert crew.server.gone() == 70
        assert not any(map(is_running, workers))
    finally:
        process.kill()
        process.communicate()
