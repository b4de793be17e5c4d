"""Sends batches: several calls at a time, each entry tried again on its own while the service is throttling or away.

Every call has a name that is the same whenever the same rows are sent again, over retries of tasks and restarts of queries.
It goes along as the invocation id, by which SDKs name the repetitions of one call: Veil answers a call that it has
stored already, of the last five minutes, with the first answer, and stores nothing twice, on any queue.
"""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Final

from veil.client.api import ApiError, Failure, plain
from veil.client.client import SqsClient
from veil.pipeline.queues.calls import WORTH_RETRYING, LoopThread, Retries, with_retries
from veil.pipeline.queues.client import QueueAddress
from veil.pipeline.sink.rows import RowBatch, SendFailed, SinkRow, on_the_wire

_NO_SUCH_QUEUE: Final = frozenset({"QueueDoesNotExist", "NonExistentQueue"})
_NAMES: Final = uuid.UUID("5b0d3f6e-6f1c-4d36-9f0b-0f2b8a6c1d57")


class Sender:
    """One service, for the tasks of one process."""

    def __init__(self, service: QueueAddress) -> None:
        self._service = service
        self._urls: dict[str, str] = {}
        self._loop = LoopThread("veil-sink")
        try:
            self._client = self._loop.run(self._opened())
        except BaseException:
            self._loop.close()
            raise

    def close(self) -> None:
        """Close every connection and end the thread."""
        self._loop.run(self._client.close())
        self._loop.close()

    @property
    def endpoint(self) -> str:
        return self._client.endpoint

    @property
    def region(self) -> str:
        return self._client.region

    def url(self, queue: str, retry_s: float) -> str | None:
        """The URL of a queue by name, ARN or URL; None where there is no such queue. Raises SendFailed."""
        found = self._urls.get(queue)
        if found is None:
            try:
                found = self._loop.run(with_retries(lambda: self._client.queue_url(queue), retry_s))
            except ApiError as error:
                if plain(error.code) in _NO_SUCH_QUEUE:
                    return None
                raise SendFailed(f"queue {queue} at {self.endpoint}: {error}") from None
            self._urls[queue] = found
        return found

    def send(
        self, sequences: Sequence[list[RowBatch]], name: str, calls_at_once: int, retry_s: float
    ) -> tuple[Counter[str], list[tuple[SinkRow, str]]]:
        """Send every sequence, its batches one after the other: how many each queue took, and the rows it refused.

        Raises SendFailed when something could not be sent that was nobody's fault. `name` is that of the partition's write.
        """
        return self._loop.run(self._send(sequences, name, calls_at_once, retry_s))

    # ---- within

    async def _opened(self) -> SqsClient:
        service = self._service
        return SqsClient(
            endpoint=service.endpoint,
            region=service.region,
            profile=service.profile,
            user_agent_extra="pipeline sink",
        )

    async def _send(
        self, sequences: Sequence[list[RowBatch]], name: str, calls_at_once: int, retry_s: float
    ) -> tuple[Counter[str], list[tuple[SinkRow, str]]]:
        sent: Counter[str] = Counter()
        refused: list[tuple[SinkRow, str]] = []
        waiting = iter(sequences)

        async def work() -> None:
            for sequence in waiting:
                for batch in sequence:
                    await self._settle(batch.queue, batch.rows, name, retry_s, sent, refused)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(calls_at_once, len(sequences))):
                    group.create_task(work())
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return sent, refused

    async def _settle(
        self,
        queue: str,
        rows: list[SinkRow],
        name: str,
        retry_s: float,
        sent: Counter[str],
        refused: list[tuple[SinkRow, str]],
    ) -> None:
        retries = Retries(retry_s)
        while True:
            try:
                answers = await self._call(queue, rows, f"{name}/{rows[0].ordinal}")
            except ApiError as error:
                if error.failure is Failure.FATAL:
                    raise SendFailed(f"queue {queue}: {error}") from None
                if error.failure not in WORTH_RETRYING and len(rows) > 1:
                    # The call as a whole is wrong: which of them is to blame shows when each goes alone.
                    for row in rows:
                        await self._settle(queue, [row], name, retry_s, sent, refused)
                    return
                answers = [error] * len(rows)
            again = [row for row, answer in zip(rows, answers, strict=True) if _is_worth_retrying(answer)]
            sent[queue] += answers.count(None)
            refused += [
                (row, str(answer))
                for row, answer in zip(rows, answers, strict=True)
                if answer is not None and not _is_worth_retrying(answer)
            ]
            if not again:
                return
            if not await retries.pause():
                last = next(answer for answer in answers if _is_worth_retrying(answer))
                raise SendFailed(
                    f"queue {queue}: {len(again)} messages could not be sent within {retry_s:g} s: {last}"
                )
            rows = again

    async def _call(self, queue: str, rows: list[SinkRow], name: str) -> list[ApiError | None]:
        entries = [on_the_wire(row.draft) for row in rows]
        invocation = str(uuid.uuid5(_NAMES, name))
        answers = await self._client.send_batch(self._urls[queue], entries, invocation=invocation)
        return [each if isinstance(each, ApiError) else None for each in answers]


def _is_worth_retrying(answer: ApiError | None) -> bool:
    return answer is not None and answer.failure in WORTH_RETRYING


_lock = threading.Lock()
_open: dict[tuple[int, QueueAddress], Sender] = {}


def sender_for(service: QueueAddress) -> Sender:
    """The sender of this process for a service: tasks come by the hundred, and each would open connections of its own."""
    # By process: workers are forked, and a thread with its connections does not live on in the child.
    key = (os.getpid(), service)
    with _lock:
        sender = _open.get(key)
        if sender is None:
            sender = _open[key] = Sender(service)
        return sender
