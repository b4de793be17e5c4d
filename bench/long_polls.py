"""Thousands of long polls on one queue: what they cost while nothing happens, and how soon a message reaches one of them.

python -m bench.long_polls [--polls 5000] [--sends 500] [--idle-s 8]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import cast

import uvloop

from bench import wire_requests as wire
from bench.contenders import running, scratch, veil_command
from bench.load import run_load
from bench.processes import HOST, free_port, process_cpu_ns, raise_file_limit, rss_mb

QUEUE = "polled"
WAIT_S = 20
IDLE_SHARE_MAX = 0.05
WAKE_MS_MAX = 20.0
_PAUSE_S = 0.005
_CONNECT_AT_ONCE = 100


class _Exchange(asyncio.Protocol):
    """A connection that asks and hears; each whole answer goes to `heard` with the time of its arrival."""

    def __init__(self) -> None:
        self._buffer = b""
        self.answer: asyncio.Future[tuple[float, bytes]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes) -> asyncio.Future[tuple[float, bytes]]:
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answer

    def data_received(self, data: bytes) -> None:
        data = self._buffer = self._buffer + data
        head, gap, body = data.partition(b"\r\n\r\n")
        if not gap:
            return
        length = int(head.lower().partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
        if len(body) >= length and not self.answer.done():
            self._buffer = b""
            self.answer.set_result((time.perf_counter(), body))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(ConnectionError("the server closed a connection"))
            self.answer.exception()  # seen: at the end of the run every connection goes this way


class _Polls:
    """Receivers that poll for ever, and what reached them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._request = wire.receive(QUEUE, 1, wait_s=WAIT_S)
        self._exchanges: list[_Exchange] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.heard_at_s: dict[str, float] = {}
        self.times_heard: Counter[str] = Counter()
        self.answers_without = 0
        self.arrived = asyncio.Event()

    async def start(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        for first in range(0, count, _CONNECT_AT_ONCE):
            connecting = (
                loop.create_connection(_Exchange, HOST, self._port)
                for _ in range(min(_CONNECT_AT_ONCE, count - first))
            )
            for _, exchange in await asyncio.gather(*connecting):
                self._exchanges.append(exchange)
                self._tasks.append(asyncio.create_task(self._poll(exchange)))

    async def _poll(self, exchange: _Exchange) -> None:
        while True:
            at_s, body = await exchange.ask(self._request)
            messages = json.loads(body).get("Messages", [])
            self.answers_without += not messages
            for message in messages:
                self.times_heard[message["Body"]] += 1
                self.heard_at_s[message["Body"]] = at_s
                self.arrived.set()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        broken = await asyncio.gather(*self._tasks, return_exceptions=True)
        for exchange in self._exchanges:
            exchange.transport.abort()
        lost = [error for error in broken if not isinstance(error, asyncio.CancelledError)]
        if lost:
            raise RuntimeError(f"{len(lost)} of {len(broken)} polls broke off: {lost[0]}")


async def _waiting(control: _Exchange) -> int:
    """How many polls the server says are waiting."""
    _, page = await control.ask(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for line in page.decode().splitlines():
        if line.startswith("veil_long_polls_waiting{"):
            return int(float(line.rpartition(" ")[2]))
    return 0


async def _until_all_wait(control: _Exchange, count: int) -> None:
    for _ in range(60):
        if await _waiting(control) >= count:
            return
        await asyncio.sleep(0.5)
    raise TimeoutError(f"polls={count}: only {await _waiting(control)} came to wait within 30 s")


async def _send_all(polls: _Polls, sender: _Exchange, sends: int) -> tuple[list[float], list[float]]:
    """Latencies in milliseconds from the send's start and from its acknowledgement to the poll's answer."""
    from_start, from_ack = [], []
    for number in range(sends):
        body = f"message {number}"
        polls.arrived.clear()
        request = wire.send(QUEUE, 1, body)
        begun_s = time.perf_counter()
        acked_s, _ = await sender.ask(request)
        while body not in polls.heard_at_s:
            await asyncio.wait_for(polls.arrived.wait(), 10)
            polls.arrived.clear()
        from_start.append((polls.heard_at_s[body] - begun_s) * 1000)
        from_ack.append((polls.heard_at_s[body] - acked_s) * 1000)
        await asyncio.sleep(_PAUSE_S)
    return sorted(from_start), sorted(from_ack)


async def _run(port: int, pid: int, count: int, sends: int, idle_s: float) -> bool:
    loop = asyncio.get_running_loop()
    _, control = await loop.create_connection(_Exchange, HOST, port)
    _, sender = await loop.create_connection(_Exchange, HOST, port)
    before_mb = rss_mb(pid)
    polls = _Polls(port)
    await polls.start(count)
    await _until_all_wait(control, count)
    more_mb = rss_mb(pid) - before_mb
    print(f"{count:,} long polls wait; memory {more_mb:+.0f} MB, {more_mb * 1024 / count:.1f} KB each")

    cpu_ns, begun_s, without = process_cpu_ns(pid), time.monotonic(), polls.answers_without
    await asyncio.sleep(idle_s)
    share = (process_cpu_ns(pid) - cpu_ns) / 1e9 / (time.monotonic() - begun_s)
    print(
        f"idle for {idle_s:g} s: {share:.1%} of a core (at most {IDLE_SHARE_MAX:.0%}), "
        f"{polls.answers_without - without} polls ran out meanwhile: {_verdict(share <= IDLE_SHARE_MAX)}"
    )

    from_start, from_ack = await _send_all(polls, sender, sends)
    good = _at(from_start, 0.99) <= WAKE_MS_MAX
    print(
        f"{sends} sends, to the poll's answer from the send's start: p50 {_at(from_start, 0.5):.2f} ms, "
        f"p99 {_at(from_start, 0.99):.2f} ms (at most {WAKE_MS_MAX:g}): {_verdict(good)}; "
        f"from its acknowledgement: p50 {_at(from_ack, 0.5):.2f} ms, p99 {_at(from_ack, 0.99):.2f} ms"
    )
    await asyncio.sleep(0.5)  # a second copy would have come by now
    once = all(times == 1 for times in polls.times_heard.values()) and len(polls.times_heard) == sends
    print(
        f"messages that exactly one poll answered with: {sum(t == 1 for t in polls.times_heard.values())} of {sends}"
    )
    await polls.stop()
    control.transport.abort()
    sender.transport.abort()
    await asyncio.sleep(0)  # the loop must outlive its connections
    return share <= IDLE_SHARE_MAX and good and once


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _verdict(good: bool) -> str:
    return "good" if good else "TOO MUCH"


def main(arguments: list[str] | None = None) -> int:
    """Measure; 1 if a bound was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--polls", type=int, default=5_000)
    parser.add_argument("--sends", type=int, default=500)
    parser.add_argument("--idle-s", type=float, default=8.0)
    given = parser.parse_args(arguments)
    allowed = raise_file_limit()  # children inherit it
    if allowed < given.polls + 100:
        parser.error(
            f"--polls {given.polls}: expected no more than {allowed - 100}, the system's limit of open files"
        )
    with scratch(Path("build")) as data:
        port = free_port()
        with running(veil_command(data, port), port) as pid:
            create = wire.create_queue(QUEUE)
            run_load(HOST, port, 1, lambda _: create, requests=1)
            return 0 if uvloop.run(_run(port, pid, given.polls, given.sends, given.idle_s)) else 1


if __name__ == "__main__":
    sys.exit(main())
