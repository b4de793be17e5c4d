"""A plain boto3 loop, as most consumers are written: `python consumer_boto3.py ENDPOINT URL THREADS`, until SIGTERM.

Receives ten, calls a function for each, deletes the ten in one call; one loop and one client in each thread. Says on stdout
how many messages the function was called for.
"""

from __future__ import annotations

import signal
import sys
import threading

import boto3

_stop = threading.Event()


def nothing(body: str) -> None:
    """The handler."""


def consume(endpoint: str, url: str, counts: list[int]) -> None:
    """One loop."""
    client = boto3.session.Session().client("sqs", endpoint_url=endpoint, region_name="us-east-1")
    handled = 0
    while not _stop.is_set():
        answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        messages = answer.get("Messages", [])
        for message in messages:
            nothing(message["Body"])
        handled += len(messages)
        if messages:
            entries = [
                {"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(messages)
            ]
            client.delete_message_batch(QueueUrl=url, Entries=entries)
    counts.append(handled)


def main() -> None:
    """So many loops side by side."""
    endpoint, url, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    signal.signal(signal.SIGTERM, lambda *_: _stop.set())
    counts: list[int] = []
    loops = [threading.Thread(target=consume, args=(endpoint, url, counts)) for _ in range(threads)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    print("handled", sum(counts))


if __name__ == "__main__":
    main()
