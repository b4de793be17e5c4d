"""Real processes against a real server: stopped, killed, frozen, and what becomes of their messages."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.worker_kit import Worker, counts
from tests.waiting import until
from veil.testing import VeilServer

MakeWorker = Callable[..., Worker]
# Long windows, renewed five times a second: the machine may stand still for a minute.
OFTEN = "renewal=Heartbeat(timeout=60, threshold=59.5, interval=0.2)"


@pytest.fixture
def make_worker(tmp_path: Path, veil_server: VeilServer) -> Iterator[MakeWorker]:
    made: list[Worker] = []

    def make(**given: Any) -> Worker:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Worker(folder, veil_server, **given))
        return made[-1]

    yield make
    for worker in made:
        worker.kill()


@pytest.fixture
def orders(veil_server: VeilServer) -> tuple[Any, str]:
    client = veil_server.client()
    url = client.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
    return client, url


def with_short_grace(client: Any, url: str) -> None:
    """What a holder leaves comes back soon, also where the machine stands still: the grace after that goes by the queue."""
    client.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "4"})


def send(client: Any, url: str, bodies: list[str]) -> None:
    for at in range(0, len(bodies), 10):
        entries = [
            {"Id": str(number), "MessageBody": body} for number, body in enumerate(bodies[at : at + 10])
        ]
        client.send_message_batch(QueueUrl=url, Entries=entries)


def received(client: Any, url: str) -> Any:
    """The message, once its window has ended."""

    def receive() -> Any:
        asked = {"WaitTimeSeconds": 5, "VisibilityTimeout": 600, "AttributeNames": ["All"]}
        return client.receive_message(QueueUrl=url, **asked).get("Messages")

    (message,) = until(receive)
    return message


def test_a_handler_that_computes_does_not_starve_its_own_renewal(
    make_worker: MakeWorker, orders: tuple[Any, str]
):
    client, url = orders
    busy = "    while lease.extensions < 3: sum(range(1_000))"
    worker = make_worker(settings=OFTEN + ", concurrency=1", work=busy)
    worker.start()
    send(client, url, ["m"])
    until(lambda: worker.diary("done"))
    assert worker.diary("begun") == ["m 1"]
    assert worker.stop() == 0
    assert counts(client, url) == (0, 0)


@pytest.mark.slow
def test_sigterm_under_load_loses_nothing_hides_nothing_and_doubles_nothing(
    make_worker: MakeWorker, orders: tuple[Any, str]
):
    client, url = orders
    bodies = [f"m{number}" for number in range(600)]
    send(client, url, bodies)
    worker = make_worker(settings="concurrency=20, prefetch=20", work="    await asyncio.sleep(0.02)")
    for cycle in range(4):
        done = len(worker.diary("done"))
        worker.start()
        until(lambda done=done: len(worker.diary("done")) > done + 30 or counts(client, url) == (0, 0))
        assert worker.stop() == 0
        assert counts(client, url)[1] == 0, f"hidden after stop {cycle}"
    worker.start()
    until(lambda: counts(client, url) == (0, 0))
    assert worker.stop() == 0
    handled = Counter(line.split()[0] for line in worker.diary("done"))
    assert handled == Counter(bodies)
    assert Counter(line.split()[0] for line in worker.diary("begun")) == Counter(bodies)


def test_a_consumer_that_is_stopped_gives_back_what_its_handlers_cannot_finish(
    make_worker: MakeWorker, orders: tuple[Any, str]
):
    client, url = orders
    worker = make_worker(
        settings="concurrency=2, prefetch=5, drain_timeout=0.5", work="    await asyncio.sleep(600)"
    )
    worker.start()
    send(client, url, [f"m{number}" for number in range(6)])
    until(lambda: len(worker.diary("begun")) == 2 and counts(client, url)[1] == 6)
    assert worker.stop() == 0
    assert counts(client, url) == (6, 0)


def test_a_second_signal_does_not_wait_for_handlers(make_worker: MakeWorker, orders: tuple[Any, str]):
    client, url = orders
    worker = make_worker(settings="drain_timeout=600", work="    await asyncio.sleep(600)")
    process = worker.start()
    send(client, url, ["m"])
    until(lambda: worker.diary("begun"))
    process.send_signal(signal.SIGINT)
    with pytest.raises(Exception, match="timed out"):
        process.wait(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert counts(client, url) == (1, 0)


def test_a_consumer_that_is_killed_leaves_its_message_to_the_deadline(
    make_worker: MakeWorker, orders: tuple[Any, str]
):
    client, url = orders
    with_short_grace(client, url)
    worker = make_worker(settings="renewal=NoRenewal(visibility=2)", work="    await asyncio.sleep(600)")
    process = worker.start()
    send(client, url, ["m"])
    until(lambda: worker.diary("begun"))
    process.kill()
    process.wait()
    # More than one where the machine stood still for longer than its lease.
    receives = len(worker.diary("begun"))
    again = received(client, url)
    assert again["Attributes"]["ApproximateReceiveCount"] == str(receives + 1)


def test_a_consumer_that_is_frozen_loses_its_message_once_and_is_told(
    make_worker: MakeWorker, orders: tuple[Any, str]
):
    client, url = orders
    # One slot, and it is taken: a frozen consumer that still waits for messages would be given this one again itself.
    frozen = make_worker(
        settings=OFTEN + ", concurrency=1",
        work="    note('receipt', lease.receipt)\n"
        "    try:\n        await asyncio.sleep(600)\n"
        "    finally:\n        note('lost', message.body, lease.lost)",
    )
    process = frozen.start()
    send(client, url, ["m"])
    until(lambda: frozen.diary("receipt"))
    process.send_signal(signal.SIGSTOP)
    # As if its window had ended, at no cost of time.
    (receipt,) = frozen.diary("receipt")
    client.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
    other = make_worker(settings=OFTEN, work="    while lease.extensions < 2: await asyncio.sleep(0.01)")
    other.start()
    until(lambda: other.diary("begun"))
    process.send_signal(signal.SIGCONT)
    until(lambda: frozen.diary("lost"))
    assert frozen.diary("lost") == ["m True"]
    assert frozen.diary("done") == []
    until(lambda: other.diary("done"))
    until(lambda: counts(client, url) == (0, 0))
    assert other.diary("begun") == ["m 2"]
    assert frozen.diary("begun") == ["m 1"]
    assert frozen.stop() == other.stop() == 0


def test_the_late_delete_of_a_frozen_consumer_has_no_effect(
    make_worker: MakeWorker, orders: tuple[Any, str], tmp_path: Path
):
    client, url = orders
    go_on = tmp_path / "go-on"
    # By its own clock it has ten minutes left, so it deletes when it returns.
    frozen = make_worker(
        settings="renewal=NoRenewal(visibility=600), concurrency=1",
        work="    note('receipt', lease.receipt)\n"
        f"    while not os.path.exists({str(go_on)!r}): time.sleep(0.01)",
    )
    process = frozen.start()
    send(client, url, ["m"])
    until(lambda: frozen.diary("receipt"))
    process.send_signal(signal.SIGSTOP)
    (receipt,) = frozen.diary("receipt")
    client.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
    message = received(client, url)
    go_on.touch()
    process.send_signal(signal.SIGCONT)
    until(lambda: frozen.diary("done"))
    assert frozen.stop() == 0
    assert counts(client, url) == (0, 1)  # held by the second receiver still
    client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert counts(client, url) == (0, 0)


def test_a_frozen_consumer_whose_window_has_ended_says_that_it_does_not_keep_the_result(
    make_worker: MakeWorker, orders: tuple[Any, str]
):
    client, url = orders
    with_short_grace(client, url)
    frozen = make_worker(
        settings="renewal=NoRenewal(visibility=2), concurrency=1",
        work="    while not lease.lost: time.sleep(0.01)",
    )
    process = frozen.start()
    send(client, url, ["m"])
    until(lambda: frozen.diary("begun"))
    process.send_signal(signal.SIGSTOP)
    received(client, url)
    process.send_signal(signal.SIGCONT)
    until(lambda: frozen.diary("done"))
    assert frozen.stop() == 0
    assert counts(client, url) == (0, 1)  # held by the second receiver still
    assert "lost its lease" in frozen.talk()


def test_a_sync_handler_that_does_not_end_holds_up_neither_its_message_nor_the_process(
    make_worker: MakeWorker, orders: tuple[Any, str]
):
    client, url = orders
    worker = make_worker(settings="drain_timeout=0.2", work="    time.sleep(600)", kind="def")
    worker.start()
    send(client, url, ["m"])
    until(lambda: worker.diary("begun"))
    assert worker.stop() == 0
    assert counts(client, url) == (1, 0)


def test_a_task_that_exits_stops_the_consumer_and_hides_nothing(
    make_worker: MakeWorker, orders: tuple[Any, str]
):
    client, url = orders
    work = (
        "    async def give_up(): raise SystemExit(3)\n"
        "    if message.body == 'exit': asyncio.create_task(give_up())\n"
        "    await asyncio.sleep(600)"
    )
    worker = make_worker(settings="drain_timeout=0.2", work=work)
    send(client, url, ["m", "exit"])
    worker.start()
    assert worker.process is not None
    assert worker.process.wait(60) == 1
    assert counts(client, url) == (2, 0)
