"""The judge of lease troubles finds what it is to find: on attempts as they were recorded, and on a server in virtual time whose
leases have no grace. So a run of the rigs that finds nothing says something."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.consumer.simulated_queue import run_virtual
from tests.faults.client import Refused, Unknown
from tests.faults.lease_holders import Held, Holders, judge
from tests.faults.rig import Outcome
from tests.stores.kit import a_message, make_queue, receipt_of
from veil.core.clock import ManualClock, Timer
from veil.core.queue import Queue
from veil.stores.memory import MemoryStore
from veil.stores.store import Extension

# A holder of a lease of 10 s that was renewed at 100, in a trouble that was over at 130: its grace lasts until 135.
OVER_S = 130.0
ALIVE: dict[str, Any] = {"renewed_s": 100.0, "answered_s": 100.1}


@pytest.mark.parametrize(
    ("known", "now_s", "verdict"),
    [
        ({}, 105.0, "doubled"),  # it need not have asked yet
        ({"asking_s": 104.0}, 130.2, "doubled"),  # it asked in time and waits for an answer
        ({"asking_s": 110.5}, 130.2, "late themselves"),
        ({}, 110.5, "late themselves"),
        ({"answered_s": 130.05}, 130.2, "doubled"),  # the answer came late, and it had no time to ask since
        ({"asking_s": 104.0, "is_doubtful": True}, 130.2, "not judged, alive"),
        ({"is_dead": True, "is_doubtful": True}, 200.0, "not judged, dead"),
        ({"is_dead": True}, 135.9, "came back"),
        ({"is_dead": True}, 136.1, "late"),
        (
            {"is_dead": True, "asking_s": 104.0},
            145.9,
            "came back",
        ),  # what it asked for was done after the trouble
        ({"is_dead": True, "asking_s": 104.0}, 146.1, "late"),
        ({"is_done": True}, 200.0, "after delete"),
        ({"is_done": True, "is_doubtful": True}, 200.0, "after delete"),  # whatever the machine did
    ],
)
def test_what_a_receive_says_of_the_server(known: dict[str, Any], now_s: float, verdict: str) -> None:
    found, _ = judge(Held("w10-1", 10, **{**ALIVE, **known}), now_s, OVER_S, 0.0)
    assert found == verdict


def test_a_message_is_late_by_the_server_only_beyond_what_this_process_was_late() -> None:
    dead = Held("w10-1", 10, **ALIVE, is_dead=True)
    assert judge(dead, 136.5, OVER_S, 0.6)[0] == "came back"
    verdict, late_s = judge(dead, 136.5, OVER_S, 0.0)
    assert (verdict, round(late_s, 3)) == ("late", 0.5)


class _StoppableClock(ManualClock):
    """The loop's time; while the server is stopped its timers do not run, and afterwards at once."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = asyncio.Event()
        self.runs.set()
        self._late: list[asyncio.Task[None]] = []

    def now_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    def call_at(self, due_ms: int, call: Callable[[], None]) -> Timer:
        async def run() -> None:
            await self.runs.wait()
            call()

        loop = asyncio.get_running_loop()
        return loop.call_at(due_ms / 1000, lambda: self._late.append(loop.create_task(run())))


class _StoppableServer:
    """A store, and connections of a sort: while it is stopped whatever is asked waits, and is done in that order afterwards."""

    def __init__(self, *, grace: bool) -> None:
        self.clock = _StoppableClock()
        self._store = MemoryStore(self.clock, lease_grace=grace)
        self._store.lease_time.start()
        self._queues: dict[str, Queue] = {}

    def connect(self, answer_s: float, node: int | None = None) -> _Connection:
        return _Connection(self, answer_s)

    async def do(self, action: str, given: dict[str, Any]) -> dict[str, Any]:
        await self.clock.runs.wait()
        store = self._store
        if action == "CreateQueue":
            name, visibility_s = given["QueueName"], int(given["Attributes"]["VisibilityTimeout"])
            self._queues[name] = await make_queue(store, name, visibility_s=visibility_s)
            return {}
        queue = self._queues[given["QueueUrl"]]
        if action == "SendMessage":
            await store.send(queue, [a_message(given["MessageBody"])])
        elif action == "DeleteMessage":
            await store.delete(queue, [given["ReceiptHandle"]])
        elif action == "ChangeMessageVisibility":
            asked = Extension(given["ReceiptHandle"], given["VisibilityTimeout"])
            [refusal] = await store.extend(queue, [asked])
            if refusal is not None:
                raise Refused(str(refusal))
        elif action == "ReceiveMessage":
            for _ in range(20):  # a long poll of a second
                if found := await store.receive(queue, given["MaxNumberOfMessages"]):
                    break
                await asyncio.sleep(0.05)
                await self.clock.runs.wait()
            return {
                "Messages": [{"Body": each.body, "ReceiptHandle": receipt_of(queue, each)} for each in found]
            }
        return {}


class _Connection:
    def __init__(self, server: _StoppableServer, answer_s: float) -> None:
        self._server, self._answer_s = server, answer_s

    async def call(self, action: str, **given: Any) -> dict[str, Any]:
        try:
            return await asyncio.wait_for(self._server.do(action, given), self._answer_s)
        except TimeoutError:
            raise Unknown from None

    def close(self) -> None:
        pass


@pytest.mark.parametrize("grace", [True, False])
def test_the_rig_finds_leases_that_are_lost_without_the_grace_and_none_with_it(grace: bool) -> None:
    outcome = Outcome("virtual", 1)

    async def run() -> Counter[str]:
        server = _StoppableServer(grace=grace)
        holders = Holders(server.connect, outcome, random.Random(1), holders=20, windows_s=(2, 4))
        async with holders.at_work():
            for _ in range(4):
                await holders.pause()
                server.clock.runs.clear()
                await holders.suffer(10.0)
                server.clock.runs.set()
                await holders.over()
            await holders.pause()
        return holders.counts

    counts = run_virtual(run())

    assert counts["completed"] and counts["held through a trouble"] > 40, counts
    assert counts["came back"] + counts["not judged, dead"] > 4, counts
    assert outcome.violations.keys() == (set() if grace else {"doubled"}), str(outcome)
    assert grace or len(outcome.violations["doubled"]) > 10, str(outcome)
