"""The same loop on aiobotocore and uvloop: `python consumer_aiobotocore.py ENDPOINT URL TASKS`, until SIGTERM.

Run by the peers' own interpreter, so it imports nothing of this project.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import uvloop
from aiobotocore.session import get_session  # type: ignore[import-not-found,unused-ignore]


async def nothing(body: str) -> None:
    """The handler."""


async def consume(client: Any, url: str, stop: asyncio.Event) -> int:
    """One loop; how many messages it handled."""
    handled = 0
    while not stop.is_set():
        answer = await client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        messages = answer.get("Messages", [])
        for message in messages:
            await nothing(message["Body"])
        handled += len(messages)
        if messages:
            entries = [
                {"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(messages)
            ]
            await client.delete_message_batch(QueueUrl=url, Entries=entries)
    return handled


async def main() -> None:
    """So many loops side by side on one client."""
    endpoint, url, tasks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with get_session().create_client("sqs", endpoint_url=endpoint, region_name="us-east-1") as client:
        counts = await asyncio.gather(*(consume(client, url, stop) for _ in range(tasks)))
        print("handled", sum(counts))


if __name__ == "__main__":
    uvloop.run(main())
