"""How long the console's first pages take with many queues and many messages.

    python -m bench.console_pages [--queues N] [--messages N] [--filled N] [--times N] [--data DIR] [--out FILE]

Fills a store with the queues and the messages (in one of the queues), starts a server on it, and asks for each page there is;
the figure is what a client waits for the whole page. Beside it stand the server's CPU time, which does not depend on what else
the machine does, and the same for a request that does nothing. The first visit is apart: it loads the templates. With
`--data` the store is kept there, and used again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final
from uuid import uuid4

from bench.contenders import running, scratch, veil_command
from bench.processes import HOST, await_rest, free_port, process_cpu_ns
from veil.core.message import MessageAttribute, NewMessage
from veil.core.queue import QueueKey, QueueSettings, RedrivePolicy
from veil.server.process import SystemClock
from veil.stores.sqlite import SqliteStore
from veil.stores.store import QueueContent

AIM_MS: Final = 100.0
NO_OP: Final = "/healthz"
FULL: Final = "queue-00000"
_HERE: Final = f"/console/queues/us-east-1/{FULL}"
_LETTERS: Final = f"/console/dead-letters/us-east-1/{FULL}"
# {seq} is a message of the full queue, {mark} a consumer.
PAGES: Final = (
    "/console/overview",
    "/console/overview?over=week",
    "/console/queues",
    "/console/queues?sort=visible",
    "/console/queues?empty=hide",
    "/console/queues?search=99",
    "/console/queues?page=200",
    "/console/queues/new",
    "/console/queues/export",
    f"{_HERE}/messages",
    f"{_HERE}/messages?text=no-such-text",
    f"{_HERE}/messages/{{seq}}",
    f"{_HERE}/in-flight",
    f"{_HERE}/activity",
    *(f"{_HERE}/{tab}" for tab in ("settings", "edit", "tags", "policy", "export", "send", "pause", "purge", "delete")),
    "/console/messages",
    "/console/messages?text=no-such-text",
    "/console/dead-letters",
    _LETTERS,
    f"{_LETTERS}/{{seq}}/edit",
    "/console/consumers",
    "/console/consumers/{mark}",
    "/console/timeouts",
    "/console/audit",
)  # fmt: skip
_AT_ONCE: Final = 1_000
_BODY: Final = "x" * 300
_FORM: Final = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class PageFigure:
    """One page, asked for several times."""

    status: int
    took_ms: list[float]
    cpu_ms: float  # of the server, for one time
    size_bytes: int


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
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="keep the store here; if there is one, use it"
    )
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--out", type=Path, default=Path("build/console-pages.json"), metavar="FILE")
    given = parser.parse_args(arguments)
    given.build.mkdir(parents=True, exist_ok=True)
    with scratch(given.build) if given.data is None else contextlib.nullcontext(given.data) as data:
        if not data.exists() or not any(data.iterdir()):
            begun_s = time.perf_counter()
            asyncio.run(_fill(data, given.queues, given.messages, given.filled))
            print(f"filled in {time.perf_counter() - begun_s:.0f} s", file=sys.stderr)
        port = free_port()
        command = veil_command(data, port, "--journal", "off")
        with running(command, port, given.build / "console-pages.log") as pid:
            await_rest(pid)
            figures = _visit(port, pid, given.times)
    print(
        f"{given.queues:,} queues, {given.messages:,} messages in one of them, {given.filled:,} with one;"
        f" ms, and ms of server CPU; load average {os.getloadavg()[0]:.1f}\n"
    )
    print(f"{'page':66}{'status':>7}{'first':>8}{'median':>8}{'longest':>9}{'CPU':>7}{'KiB':>7}")
    for page, figure in figures.items():
        print(
            f"{page:66}{figure.status:>7}{figure.took_ms[0]:>8.1f}{median(figure.took_ms):>8.1f}{max(figure.took_ms):>9.1f}"
            f"{figure.cpu_ms:>7.1f}{figure.size_bytes / 1024:>7.0f}"
        )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({page: asdict(figure) for page, figure in figures.items()}, indent=1))
    return 0 if all(median(figure.took_ms) < AIM_MS for figure in figures.values()) else 1


async def _fill(data: Path, queues: int, messages: int, filled: int) -> None:
    store = SqliteStore(data, SystemClock(), journal=False)
    await store.open()
    key = QueueKey("us-east-1", "000000000000", FULL)
    content = QueueContent(QueueSettings(), {})
    failing = QueueContent(QueueSettings(redrive=RedrivePolicy(key, 3)), {})
    for first in range(0, queues, _AT_ONCE):
        await asyncio.gather(
            *(
                store.create_queue(
                    QueueKey("us-east-1", "000000000000", f"queue-{n:05}"),
                    failing if 0 < n < filled else content,
                    rest_ms=0,
                )
                for n in range(first, min(first + _AT_ONCE, queues))
            )
        )
    full = await store.find_queue(key)
    assert full is not None
    md5 = hashlib.md5(_BODY.encode(), usedforsecurity=False).hexdigest()
    attributes = {"Type": MessageAttribute("String", "order")}
    for _ in range(0, messages, _AT_ONCE):
        await store.send(full, [NewMessage(str(uuid4()), _BODY, md5, attributes) for _ in range(_AT_ONCE)])
    await store.receive(full, 1_000, visibility_s=3_600)
    for queue in (await store.all_queues())[:filled]:
        await store.send(queue, [NewMessage(str(uuid4()), _BODY, md5, attributes)])
    await store.close()


def _visit(port: int, pid: int, times: int) -> dict[str, PageFigure]:
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=60)) as connection:

        def ask(address: str) -> tuple[int, float, bytes]:
            began_s = time.perf_counter()
            connection.request("GET", address)
            answer = connection.getresponse()
            body = answer.read()
            return answer.status, (time.perf_counter() - began_s) * 1e3, body

        print(f"first visit: {ask('/console/queues')[1]:.0f} ms", file=sys.stderr)  # loads the pages
        connection.request("POST", f"/000000000000/{FULL}", "Action=ReceiveMessage", {"content-type": _FORM})
        connection.getresponse().read()  # somebody whom the page of consumers can show
        open_parts = {
            "seq": _found(rf"{_HERE}/messages/(\d+)", ask(f"{_HERE}/messages?state=visible")[2]),
            "mark": _found(r"/console/consumers/([^\"/?]+)\"", ask("/console/consumers")[2]),
        }
        figures: dict[str, PageFigure] = {}
        for page in (*PAGES, NO_OP):
            took_ms: list[float] = []
            status, body, began_ns = 0, b"", process_cpu_ns(pid)
            for _ in range(times):
                status, took, body = ask(page.format(**open_parts))
                took_ms.append(took)
            cpu_ms = (process_cpu_ns(pid) - began_ns) / times / 1e6
            figures[page] = PageFigure(status, took_ms, cpu_ms, len(body))
        return figures


def _found(pattern: str, page: bytes) -> str:
    found = re.search(pattern, page.decode())
    assert found is not None, f"no link like {pattern}"
    return found[1]


if __name__ == "__main__":
    sys.exit(main())
