"""How long the console's first pages take with many queues and many messages, by the server's own account.

    python -m bench.console_pages [--queues N] [--messages N] [--filled N] [--times N] [--data DIR] [--out FILE]

Fills a store with the queues and the messages (in one of the queues), starts a server on it, and asks for each page; the
figure is `Server-Timing`: from the request's arrival at the console to its answer. The first visit is apart: it loads
the templates.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import http.client
import json
import re
import sys
import time
from pathlib import Path
from statistics import median
from typing import Final
from uuid import uuid4

from bench.contenders import running, scratch, veil_command
from bench.processes import HOST, free_port
from veil.core.message import MessageAttribute, NewMessage
from veil.core.queue import QueueKey, QueueSettings
from veil.server.process import SystemClock
from veil.stores.sqlite import SqliteStore
from veil.stores.store import QueueContent

AIM_MS: Final = 200.0
FULL: Final = "queue-00000"
_HERE: Final = f"/console/queues/us-east-1/{FULL}"
PAGES: Final = (
    "/console/overview",
    "/console/overview?over=week",
    "/console/queues",
    "/console/queues?sort=visible",
    "/console/queues?empty=hide",
    "/console/queues?search=99",
    "/console/queues?page=200",
    _HERE,
    f"{_HERE}/messages",
    f"{_HERE}/messages?text=no-such-text",
    f"{_HERE}/in-flight",
    f"{_HERE}/settings",
    f"{_HERE}/activity",
    "/console/dead-letters",
    f"/console/dead-letters/us-east-1/{FULL}",
    "/console/consumers",
    "/console/timeouts",
    "/console/audit",
)
_AT_ONCE: Final = 1_000
_BODY: Final = "x" * 300


def main(arguments: list[str] | None = None) -> int:
    """Measure; 1 if a page takes longer than it may."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.console_pages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--filled", type=int, default=2_000, help="queues with a message each (2,000)")
    parser.add_argument("--times", type=int, default=5, help="of each page (5)")
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--out", type=Path, default=Path("build/console-pages.json"), metavar="FILE")
    given = parser.parse_args(arguments)
    given.build.mkdir(parents=True, exist_ok=True)
    with scratch(given.build) as data:
        begun_s = time.perf_counter()
        asyncio.run(_fill(data, given.queues, given.messages, given.filled))
        print(f"filled in {time.perf_counter() - begun_s:.0f} s", file=sys.stderr)
        port = free_port()
        command = veil_command(data, port, "--journal", "off")
        with running(command, port, given.build / "console-pages.log"):
            figures = _visit(port, given.times)
    print(
        f"{given.queues:,} queues, {given.messages:,} messages in one of them, {given.filled:,} with one; ms of server time\n"
    )
    print(f"{'page':52}{'status':>7}{'first':>8}{'median':>8}{'longest':>9}{'KiB':>7}")
    for page, (status, took_ms, size) in figures.items():
        print(
            f"{page:52}{status:>7}{took_ms[0]:>8.1f}{median(took_ms):>8.1f}{max(took_ms):>9.1f}{size / 1024:>7.0f}"
        )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({page: took_ms for page, (_, took_ms, _) in figures.items()}, indent=1))
    return 0 if all(median(took_ms) < AIM_MS for _, took_ms, _ in figures.values()) else 1


async def _fill(data: Path, queues: int, messages: int, filled: int) -> None:
    store = SqliteStore(data, SystemClock(), journal=False)
    await store.open()
    dead = QueueKey("us-east-1", "000000000000", "dead")
    content = QueueContent(QueueSettings(), {})
    await store.create_queue(dead, content, rest_ms=0)
    for first in range(0, queues, _AT_ONCE):
        await asyncio.gather(
            *(
                store.create_queue(QueueKey("us-east-1", "000000000000", f"queue-{n:05}"), content, rest_ms=0)
                for n in range(first, min(first + _AT_ONCE, queues))
            )
        )
    full = await store.find_queue(QueueKey("us-east-1", "000000000000", FULL))
    assert full is not None
    md5 = hashlib.md5(_BODY.encode(), usedforsecurity=False).hexdigest()
    attributes = {"Type": MessageAttribute("String", "order")}
    for _ in range(0, messages, _AT_ONCE):
        await store.send(full, [NewMessage(str(uuid4()), _BODY, md5, attributes) for _ in range(_AT_ONCE)])
    await store.receive(full, 1_000, visibility_s=3_600)
    for queue in (await store.all_queues())[:filled]:
        await store.send(queue, [NewMessage(str(uuid4()), _BODY, md5, attributes)])
    await store.close()


def _visit(port: int, times: int) -> dict[str, tuple[int, list[float], int]]:
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=60)) as connection:
        return _visited(connection, times)


def _visited(connection: http.client.HTTPConnection, times: int) -> dict[str, tuple[int, list[float], int]]:
    figures: dict[str, tuple[int, list[float], int]] = {}
    connection.request("GET", "/console/queues")  # loads the pages
    print(f"first visit: {_took_ms(connection.getresponse())[1]:.0f} ms", file=sys.stderr)
    for page in PAGES:
        took_ms: list[float] = []
        status = size = 0
        for _ in range(times):
            connection.request("GET", page)
            status, took, size = _took_ms(connection.getresponse())
            took_ms.append(took)
        figures[page] = (status, took_ms, size)
    return figures


def _took_ms(answer: http.client.HTTPResponse) -> tuple[int, float, int]:
    body = answer.read()
    found = re.search(r"dur=([0-9.]+)", answer.getheader("server-timing") or "")
    assert found is not None, f"{answer.status}: no Server-Timing"
    return answer.status, float(found[1]), len(body)


if __name__ == "__main__":
    sys.exit(main())
