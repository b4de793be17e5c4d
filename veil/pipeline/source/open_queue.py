"""Opens what the options name, and chooses the way: Veil's own where it is there, else SQS's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veil.consumer.message import ApiError, Failure
from veil.pipeline.option_error import OptionError
from veil.pipeline.queues.client import QueueClient
from veil.pipeline.source.held_stream import HeldStream
from veil.pipeline.source.options import AUTO, SQS, VEIL, SourceOptions
from veil.pipeline.source.sealed_stream import SealedStream
from veil.pipeline.source.stream import Offset, Stream
from veil.pipeline.source.tally import Tally

if TYPE_CHECKING:
    import pyarrow as pa


def open_queue(options: SourceOptions) -> QueueClient:
    """The queue; raises OptionError where there is none."""
    try:
        return QueueClient(options.place, user_agent="pipeline source")
    except ApiError as error:
        if error.failure is Failure.UNREACHABLE:
            # In their words, with the address in it; the option may well be right.
            raise OptionError(
                "endpoint", options.place.endpoint, f"a service that answers: {error}"
            ) from None
        raise OptionError("queue", options.place.queue, f"a queue that can be used: {error}") from None


def way_to(client: QueueClient, options: SourceOptions) -> str:
    """`veil` or `sqs`."""
    if options.protocol == SQS:
        return SQS
    if client.is_veil():
        return VEIL
    if options.protocol == AUTO:
        return SQS
    raise OptionError("protocol", VEIL, f"sqs or auto: {client.endpoint} has none of Veil's own actions")


def open_stream(
    client: QueueClient, options: SourceOptions, at: Offset, tally: Tally, schema: pa.Schema
) -> Stream:
    """The stream whose log stands at that offset; it goes on by the way on which it began."""
    if at["by"] == VEIL:
        return HeldStream(client, options, at, tally)
    return SealedStream(client, options, at, tally, schema)
