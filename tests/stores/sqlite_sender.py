"""A process to be killed: sends without a pause and says what was acknowledged, a line each, once it was."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.stores.kit import a_message, make_queue
from veil.core.errors import StoreFailed
from veil.server.process import SystemClock
from veil.stores.sqlite import SqliteStore


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def main(directory: Path, label: str, rounds: int) -> None:
    store = SqliteStore(directory, SystemClock())
    store.on_failure = lambda error: say("failed")
    await store.open()
    queue = await make_queue(store)
    say("open")

    async def send(body: str) -> None:
        say(f"try {body}")
        try:
            await store.send(queue, [a_message(body)])
            say(f"sent {body}")
        except StoreFailed:
            say(f"refused {body}")

    for number in range(rounds):
        await asyncio.gather(*(send(f"{label}-{number}-{n}") for n in range(8)))
    await store.close()
    say("closed")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
