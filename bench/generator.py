"""The timed parts, as they run in the generator's own process: one lap of send, receive, extend, delete and whole lives.

What a part needs (a backlog to receive, receipts to delete by) is prepared in bulk before its clock starts.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle
from multiprocessing import get_context
from typing import Final

from bench import wire_requests as wire
from bench.load import LoadResult, process_cpu_s, run_load
from bench.processes import HOST, await_rest, server_cpu_s

SEND, RECEIVE, EXTEND, DELETE, LIFE = "send", "receive", "extend", "delete", "life"
PARTS: Final = (SEND, RECEIVE, EXTEND, DELETE, LIFE)
# SQS lets 120,000 messages of a queue be in flight, so no part may receive more than this.
_IN_FLIGHT_MAX: Final = 110_000
_BULK: Final = 10
# A server can be busy for long with what a measurement left behind; after this it is given up.
_ASK_S: Final = 20.0
_BULK_CONNECTIONS: Final = 16
_PLACEHOLDER: Final = b"A" * 44  # as long as a receipt of Veil


@dataclass(frozen=True, slots=True)
class Lap:
    """What to measure on one server: which parts, how, and for how long."""

    port: int
    pid: int
    parts: tuple[str, ...]
    batch: int
    connections: int
    seconds: float
    canned: bool = False  # the server answers everything alike and keeps nothing
    watch: bool = False  # tell the server when the clock starts and stops, by SIGUSR1 and SIGUSR2


@dataclass(frozen=True, slots=True)
class Figure:
    """One timed part."""

    part: str
    requests: int
    messages: int
    seconds: float
    errors: (
        int  # answers that were no success, entries refused, connections lost, receives that found nothing
    )
    p50_ms: float
    p99_ms: float
    server_cpu_s: float
    store_cpu_s: float  # of that, what the process with the store used: all of it where there are no workers
    generator_cpu_s: float


def generator() -> ProcessPoolExecutor:
    """A process of its own for the load, started afresh so that it shares nothing with ours."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


_laps = 0


def run_lap(lap: Lap) -> list[Figure]:
    """Measure the parts one after the other on queues of their own, and leave the server empty and at rest."""
    global _laps
    _laps += 1
    queue = f"lap-{_laps}-{time.time_ns() // 1000}"
    gc.collect()
    gc.disable()  # a pause of the generator would look like one of the server
    try:
        _ask(lap, wire.create_queue(queue))
        runner = _Runner(lap, queue)
        figures = [getattr(runner, part)() for part in PARTS if part in lap.parts]
        _ask(lap, wire.delete_queue(queue))
    finally:
        gc.enable()
    await_rest(lap.pid)
    return figures


def warm_up(lap: Lap) -> None:
    """Let the server see every kind of request for a while; what is compiled on the way counts for nobody."""
    run_lap(lap)


def _ask(lap: Lap, request: bytes) -> None:
    answers: list[tuple[int, bytes]] = []

    def note(_: int, status: int, body: bytes) -> None:
        answers.append((status, body))

    run_load(HOST, lap.port, 1, lambda _: request, note, seconds=_ASK_S, requests=1)
    if not answers:
        raise TimeoutError(f"port={lap.port}: no answer within {_ASK_S:g} s")
    status, body = answers[0]
    if status != 200:
        raise RuntimeError(
            f"port={lap.port}: expected an answer with status 200, got {status}: {body[:200]!r}"
        )


class _Runner:
    def __init__(self, lap: Lap, queue: str) -> None:
        self._lap = lap
        self._queue = queue
        self._backlog = 0
        self._receipts: list[bytes] = []
        self._messages_per_s = 0.0

    # ---- the timed parts

    def send(self) -> Figure:
        lap = self._lap
        request = wire.send(self._queue, lap.batch)
        refused = 0

        def check(_: int, status: int, body: bytes) -> None:
            nonlocal refused
            if b'"SenderFault"' in body:
                refused += wire.refused_entries_in(body)

        figure = self._timed(SEND, lambda _: wire.afresh(request), check)
        messages = figure.requests * lap.batch - refused
        self._backlog += messages
        self._messages_per_s = messages / figure.seconds if figure.seconds else 0.0
        return replace(figure, messages=messages, errors=figure.errors + refused)

    def receive(self) -> Figure:
        lap = self._lap
        self._prepare_backlog()
        left = self._backlog // lap.batch if not lap.canned else 1 << 60
        request = wire.receive(self._queue, lap.batch)
        bodies: list[bytes] = []

        def next_request(_: int) -> bytes | None:
            nonlocal left
            left -= 1
            return request if left >= 0 else None

        figure = self._timed(RECEIVE, next_request, lambda _, status, body: bodies.append(body))
        if lap.canned:
            return replace(figure, messages=figure.requests * lap.batch)
        empty = 0
        before = len(self._receipts)
        for body in bodies:
            found = wire.receipts_in(body)
            empty += not found
            self._receipts += found
        messages = len(self._receipts) - before
        self._backlog -= messages
        return replace(figure, messages=messages, errors=figure.errors + empty)

    def extend(self) -> Figure:
        lap = self._lap
        if lap.canned:
            same = wire.extend(self._queue, [_PLACEHOLDER] * lap.batch)
            figure = self._timed(EXTEND, lambda _: same, None)
            return replace(figure, messages=figure.requests * lap.batch)
        self._prepare_receipts()
        receipts, batch = self._receipts, lap.batch
        requests = [
            wire.extend(self._queue, receipts[at : at + batch])
            for at in range(0, len(receipts) - batch + 1, batch)
        ]
        turns = cycle(requests)
        refused = 0

        def check(_: int, status: int, body: bytes) -> None:
            nonlocal refused
            if b'"SenderFault"' in body:
                refused += wire.refused_entries_in(body)

        figure = self._timed(EXTEND, lambda _: next(turns), check)
        return replace(figure, messages=figure.requests * batch - refused, errors=figure.errors + refused)

    def delete(self) -> Figure:
        lap = self._lap
        if lap.canned:
            same = wire.delete(self._queue, [_PLACEHOLDER] * lap.batch)
            figure = self._timed(DELETE, lambda _: same, None)
            return replace(figure, messages=figure.requests * lap.batch)
        self._prepare_receipts()
        receipts, batch = self._receipts, lap.batch
        requests = [
            wire.delete(self._queue, receipts[at : at + batch])
            for at in range(0, len(receipts) - batch + 1, batch)
        ]
        refused = 0

        def check(_: int, status: int, body: bytes) -> None:
            nonlocal refused
            if b'"SenderFault"' in body:
                refused += wire.refused_entries_in(body)

        figure = self._timed(DELETE, lambda _: requests.pop() if requests else None, check)
        self._receipts = []
        return replace(figure, messages=figure.requests * batch - refused, errors=figure.errors + refused)

    def life(self) -> Figure:
        lap = self._lap
        queue = f"{self._queue}-life"
        _ask(lap, wire.create_queue(queue))
        lives = Lives(queue, lap)
        figure = self._timed(LIFE, lives.next_request, lives.on_response)
        _ask(lap, wire.delete_queue(queue))
        ordered = sorted(lives.seconds) or [0.0]
        return replace(
            figure,
            messages=lives.messages,
            errors=figure.errors + lives.empty,
            p50_ms=ordered[len(ordered) // 2] * 1000,
            p99_ms=ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000,
        )

    def _timed(
        self,
        part: str,
        next_request: Callable[[int], bytes | None],
        on_response: Callable[[int, int, bytes], None] | None,
    ) -> Figure:
        lap = self._lap
        if lap.watch:
            os.kill(lap.pid, signal.SIGUSR1)
        cpu_s, store_s = server_cpu_s(lap.pid), process_cpu_s(lap.pid)
        result = run_load(HOST, lap.port, lap.connections, next_request, on_response, seconds=lap.seconds)
        store_s = process_cpu_s(lap.pid) - store_s
        if lap.watch:
            os.kill(lap.pid, signal.SIGUSR2)
        return Figure(
            part=part,
            requests=result.requests,
            messages=0,
            seconds=result.seconds,
            errors=result.errors,
            p50_ms=result.p50_ms,
            p99_ms=result.p99_ms,
            server_cpu_s=server_cpu_s(lap.pid) - cpu_s,
            store_cpu_s=store_s,
            generator_cpu_s=result.cpu_s,
        )

    # ---- what they need, in bulk and untimed

    def _wanted(self) -> int:
        """Messages that will last a part of the usual length, and no longer preparation than that."""
        if not self._messages_per_s:
            probe = self._bulk(
                wire.send(self._queue, self._lap.batch), seconds=0.3, connections=self._lap.connections
            )
            self._backlog += probe.requests * self._lap.batch
            self._messages_per_s = probe.per_second * self._lap.batch
        return int(min(_IN_FLIGHT_MAX, max(100, self._messages_per_s * self._lap.seconds * 1.5)))

    def _prepare_backlog(self) -> None:
        if self._lap.canned:
            return
        missing = self._wanted() - self._backlog
        if missing > 0:
            sent = self._bulk(
                wire.send(self._queue, _BULK), seconds=self._lap.seconds, requests=missing // _BULK + 1
            )
            self._backlog += sent.requests * _BULK

    def _prepare_receipts(self) -> None:
        wanted = self._wanted()
        if len(self._receipts) >= wanted:
            return
        if not self._receipts:
            self._prepare_backlog()
        requests = min(wanted - len(self._receipts), self._backlog) // _BULK
        if requests > 0:
            self._bulk(
                wire.receive(self._queue, _BULK),
                seconds=self._lap.seconds * 2,
                requests=requests,
                collect=True,
            )

    def _bulk(
        self,
        request: bytes,
        *,
        seconds: float,
        requests: int | None = None,
        connections: int = _BULK_CONNECTIONS,
        collect: bool = False,
    ) -> LoadResult:
        bodies: list[bytes] = []
        on_response = (lambda _, status, body: bodies.append(body)) if collect else None
        result = run_load(
            HOST,
            self._lap.port,
            connections,
            lambda _: wire.afresh(request),
            on_response,
            seconds=seconds,
            requests=requests,
        )
        for body in bodies:
            self._receipts += wire.receipts_in(body)
        return result


class Lives:
    """Each connection sends, receives and deletes in turn; what it receives may be what another one sent."""

    def __init__(self, queue: str, lap: Lap) -> None:
        self._queue = queue
        self._canned = [_PLACEHOLDER] * lap.batch if lap.canned else None
        self._send = wire.send(queue, lap.batch)
        self._receive = wire.receive(queue, lap.batch)
        self._step = [0] * lap.connections
        self._held: list[list[bytes]] = [[]] * lap.connections
        self._begun_s = [0.0] * lap.connections
        self.seconds: list[float] = []
        self.messages = 0
        self.empty = 0

    def next_request(self, connection: int) -> bytes:
        step = self._step[connection]
        if step == 0:
            self._begun_s[connection] = time.perf_counter()
            return wire.afresh(self._send)
        if step == 1:
            return self._receive
        return wire.delete(self._queue, self._held[connection])

    def on_response(self, connection: int, status: int, body: bytes) -> None:
        step = self._step[connection]
        if step == 0:
            self._step[connection] = 1
        elif step == 1:
            held = self._canned or wire.receipts_in(body)
            if held:
                self._held[connection] = held
                self._step[connection] = 2
            else:  # it asks again
                self.empty += 1
        else:
            self._step[connection] = 0
            self.seconds.append(time.perf_counter() - self._begun_s[connection])
            self.messages += len(self._held[connection])
