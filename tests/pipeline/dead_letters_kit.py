"""Dead letters as a look at a queue gives them, and queues of real ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from veil.journal.storage import Storage
from veil.pipeline.dead_letters.queue import PEEKED, DeadLetterQueue
from veil.pipeline.dead_letters.runs import RedriveRun, place_of, save_run
from veil.pipeline.dead_letters.selection import Selection, choose
from veil.pipeline.queues import QueueAddress, QueueClient
from veil.pipeline.sql import struct_of
from veil.testing import VeilServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
ARN = "arn:aws:sqs:us-east-1:000000000000:"

Row = dict[str, Any]
Queues = tuple[DeadLetterQueue, DeadLetterQueue]


def a_letter(number: int, *, source: str | None = None, **given: Any) -> Row:
    """A peeked message; `source` is a queue from which the server dead-lettered it, further names are attributes."""
    row: Row = {
        "queue": "orders-dead",
        "message_id": f"message-{number}",
        "seq": number,
        "state": "visible",
        "sent_at": NOON + timedelta(minutes=number),
        "receive_count": 3,
        "body_bytes": 10,
        "body": f'{{"n": {number}}}',
        "attributes": {},
        "system_attributes": {"DeadLetterQueueSourceArn": ARN + source} if source else {},
    }
    for name, value in given.items():
        if name in row:
            row[name] = value
        else:
            kind = "Number" if isinstance(value, int) else "String"
            row["attributes"][name.replace("__", ".")] = (kind, str(value), None)
    return row


def frame(spark: SparkSession, *rows: Row) -> DataFrame:
    """The rows in the columns PEEKED."""
    schema = struct_of(PEEKED)
    return spark.createDataFrame([tuple(row[name] for name in schema.names) for row in rows], schema)


@contextmanager
def orders_and_dead_letters(server: VeilServer) -> Iterator[Queues]:
    """The dead letters of `orders`, and `orders`."""
    client = server.client()
    for name in ("orders-dead", "orders"):
        client.create_queue(QueueName=name)
    place = QueueAddress("orders-dead", endpoint=server.endpoint_url)
    with DeadLetterQueue(place) as dead, DeadLetterQueue(replace(place, queue="orders")) as orders:
        yield dead, orders


def fill(client: QueueClient, bodies: Iterable[str], **attributes: str) -> None:
    """Send each body to the client's queue, as a consumer sends its copies: with what it has to say as attributes."""
    told = {
        name.replace("__", "."): {"DataType": "String", "StringValue": text}
        for name, text in attributes.items()
    }
    entries = [{"MessageBody": body, **({"MessageAttributes": told} if told else {})} for body in bodies]
    results = client.send(entries)
    assert not [each for each in results if not isinstance(each, str)]


def bodies_in(client: DeadLetterQueue) -> list[str]:
    """The bodies of all messages in the queue, without receiving any."""
    found: list[str] = []
    token: str | None = None
    while True:
        page = client.peek(1_000, token=token)
        found += [message.body for message in page.messages or ()]
        token = page.next_token
        if token is None:
            return found


def sealed(
    spark: SparkSession,
    queue: DeadLetterQueue,
    tables: Storage,
    choice: Selection | None = None,
    *,
    a_call: int | None = None,
    **given: Any,
) -> RedriveRun:
    """A run over what is in the queue, ready to be redriven."""
    run = choose(spark, queue.address, tables, choice or Selection(), **given)
    if a_call is not None:
        run = msgspec.structs.replace(run, a_call=a_call)
    save_run(place_of(tables, run.id), run)
    return run
