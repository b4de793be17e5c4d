"""Sending to a queue, from threads and from coroutines alike.

All sends of a process to one queue share a thread with an event loop: what is sent at the same time travels together, ten to a
request, and what fails for a reason that passes is tried again under the name of the first try, by which Veil knows it. So
nothing is stored twice on Veil; on Amazon SQS only a FIFO queue can promise that.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from datetime import timedelta
from typing import Any, Final

import msgspec

from veil.client.api import BATCH_MAX, RANDOM, ApiError, Attribute, Failure, RetryBackoff
from veil.client.blocking import LoopThread
from veil.client.client import SqsClient
from veil.client.connection import current_span
from veil.client.endpoint import region_in
from veil.core.limits import ATTRIBUTES_MAX, BATCH_BYTES_MAX, DELAY_MAX_S

_CALLS_AT_ONCE: Final = 8
_BACKOFF: Final = RetryBackoff(first_s=0.1, max_s=5.0, throttled=4.0)
_encode: Final = msgspec.json.Encoder().encode


@dataclasses.dataclass(frozen=True, slots=True)
class Outgoing:
    """A message for `send_many` that has more than a payload."""

    payload: Any
    type: str | None = None
    attributes: Mapping[str, str | int | float | bytes] | None = None
    delay: float | timedelta | None = None
    group: str | None = None
    deduplication_id: str | None = None


class SendFailed(Exception):
    """Some of many messages were not sent, or it is unknown: `errors` has each by its place, `ids` what was sent."""

    def __init__(self, errors: Mapping[int, Exception], ids: list[str | None]) -> None:
        place, first = next(iter(errors.items()))
        super().__init__(f"{len(errors)} of {len(ids)} messages were not sent; number {place}: {first}")
        self.errors, self.ids = errors, ids


class Queue:
    """A queue to send to, given by name, URL or ARN. Every method may be called from any thread.

    Endpoint, region and profile are found as every AWS tool finds them where they are not given. `send` returns once the
    message is on disk; it tries for `timeout` seconds, then raises ApiError, and whether the message is there is unknown.
    """

    def __init__(
        self,
        name: str,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        timeout: float = 30.0,
        type_attribute: str = "type",
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"name={name!r}: expected the name, the URL or the ARN of a queue")
        if not isinstance(timeout, int | float) or not timeout > 0:
            raise ValueError(f"timeout={timeout!r}: expected more than 0 seconds")
        self.name = name
        self._short_name = name.rsplit("/", 1)[-1].rsplit(":", 1)[-1]
        self._timeout_s = timeout
        self._type_attribute = type_attribute
        self._client_for: Callable[[], SqsClient] = lambda: SqsClient(
            endpoint=endpoint, region=region or region_in(name), profile=profile
        )
        self._lock = threading.Lock()
        self._sender: _Sender | None = None

    # ---- one message

    def send(
        self,
        payload: Any,
        *,
        type: str | None = None,
        attributes: Mapping[str, str | int | float | bytes] | None = None,
        delay: float | timedelta | None = None,
        group: str | None = None,
        deduplication_id: str | None = None,
    ) -> str:
        """Send one message and return its id. Text is sent as it is, everything else as JSON."""
        _refuse_to_block()
        message = Outgoing(payload, type, attributes, delay, group, deduplication_id)
        return self._submit(self._entry(message)).result()

    async def asend(
        self,
        payload: Any,
        *,
        type: str | None = None,
        attributes: Mapping[str, str | int | float | bytes] | None = None,
        delay: float | timedelta | None = None,
        group: str | None = None,
        deduplication_id: str | None = None,
    ) -> str:
        """`send` for coroutines. Cancelling it does not take the message back."""
        message = Outgoing(payload, type, attributes, delay, group, deduplication_id)
        return await asyncio.wrap_future(self._submit(self._entry(message)))

    # ---- many

    def send_many(self, payloads: Iterable[Any]) -> list[str]:
        """Send payloads, or `Outgoing` messages, and return their ids in order; raises SendFailed if any failed, and sends none
        where one cannot be sent at all (TypeError, ValueError)."""
        _refuse_to_block()
        entries: list[_Waiting] = []
        for place, each in enumerate(payloads):
            try:
                entries.append(self._entry(each if isinstance(each, Outgoing) else Outgoing(each)))
            except (TypeError, ValueError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"message number {place}, so that none was sent: {error}") from error
        futures = [self._submit(entry) for entry in entries]
        errors: dict[int, Exception] = {}
        ids: list[str | None] = []
        for place, future in enumerate(futures):
            try:
                ids.append(future.result())
            except Exception as error:
                ids.append(None)
                errors[place] = error
        if errors:
            raise SendFailed(errors, ids)
        return [each for each in ids if each is not None]

    async def asend_many(self, payloads: Iterable[Any]) -> list[str]:
        """`send_many` for coroutines."""
        return await asyncio.to_thread(self.send_many, payloads)

    def close(self) -> None:
        """Wait for what is under way and close the connections; a later send opens new ones."""
        with self._lock:
            sender, self._sender = self._sender, None
        if sender is not None and sender.pid == os.getpid():
            sender.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    # ---- within

    def _submit(self, entry: _Waiting) -> Future[str]:
        with self._lock:
            if self._sender is None or self._sender.pid != os.getpid():
                # A child of fork has the object, but neither its thread nor its connections.
                self._sender = _Sender(self.name, self._client_for)
            return self._sender.submit(entry)

    def _entry(self, message: Outgoing) -> _Waiting:
        """The message as it travels; raises TypeError or ValueError, to its sender, for one that cannot be sent."""
        entry: dict[str, Any] = {"MessageBody": _body(message.payload)}
        attributes = {name: attribute_of(name, value) for name, value in (message.attributes or {}).items()}
        if message.type is not None:
            attributes[self._type_attribute] = attribute_of(self._type_attribute, message.type)
        if "traceparent" not in attributes and len(attributes) < ATTRIBUTES_MAX:
            parent = current_span()
            if parent is not None:
                attributes["traceparent"] = attribute_of("traceparent", parent)
        if len(attributes) > ATTRIBUTES_MAX:
            raise ValueError(
                f"{len(attributes)} attributes: expected at most {ATTRIBUTES_MAX}, type included"
            )
        if attributes:
            entry["MessageAttributes"] = attributes
        if message.delay is not None:
            entry["DelaySeconds"] = _delay_s(message.delay)
        if self._short_name.endswith(".fifo") and message.group is None:
            raise ValueError(f"group=None: {self._short_name} is a FIFO queue, expected a message group")
        if message.group is not None:
            entry["MessageGroupId"] = message.group
        if message.deduplication_id is not None:
            entry["MessageDeduplicationId"] = message.deduplication_id
        size = len(entry["MessageBody"].encode()) + sum(
            each.size_bytes(name) for name, each in attributes.items()
        )
        if size > BATCH_BYTES_MAX:
            raise ValueError(f"a message of {size:,} bytes: expected at most {BATCH_BYTES_MAX:,}")
        return _Waiting(entry, len(_encode(entry)), time.monotonic() + self._timeout_s)


class _Waiting:
    """An entry of a batch, the future that its sender waits for, and until when."""

    __slots__ = ("bytes", "context", "deadline_s", "entry", "future")

    def __init__(self, entry: dict[str, Any], size: int, deadline_s: float) -> None:
        self.entry, self.bytes, self.deadline_s = entry, size, deadline_s
        self.context = copy_context()  # so that the request is in the sender's trace
        self.future: Future[str] = Future()
        # From here on it cannot be cancelled: a sender that stops waiting must not spoil it for the others of its batch.
        self.future.set_running_or_notify_cancel()


class _Sender:
    """The thread that sends for all threads and coroutines."""

    def __init__(self, queue: str, client_for: Callable[[], SqsClient]) -> None:
        self.pid = os.getpid()
        self._queue = queue
        self._client = client_for()
        self._last: ApiError | None = None  # why the latest try failed; None: it did not
        # The messages of a group must not overtake each other: one request after the other.
        self._calls_max = 1 if queue.endswith(".fifo") else _CALLS_AT_ONCE
        self._url: str | None = None
        self._waiting: deque[_Waiting] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._thread = LoopThread(f"veil sends to {queue}")
        self._loop = self._thread.loop

    def submit(self, waiting: _Waiting) -> Future[str]:
        self._loop.call_soon_threadsafe(self._take, waiting)
        return waiting.future

    def close(self) -> None:
        self._thread.run(self._drain())
        self._thread.close()

    def _take(self, waiting: _Waiting) -> None:
        if not self._waiting and len(self._calls) < self._calls_max:
            self._loop.call_soon(self._start)  # after everything else that arrived in this turn
        self._waiting.append(waiting)

    def _start(self) -> None:
        while self._waiting and len(self._calls) < self._calls_max:
            batch = [self._waiting.popleft()]
            size = batch[0].bytes
            while self._waiting and len(batch) < BATCH_MAX:
                size += self._waiting[0].bytes
                if size > BATCH_BYTES_MAX:
                    break
                batch.append(self._waiting.popleft())
            task = self._loop.create_task(self._send(batch), context=batch[0].context)
            self._calls.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        self._start()

    async def _drain(self) -> None:
        while self._waiting or self._calls:
            self._start()
            await asyncio.wait(self._calls)
        await self._client.close()

    async def _send(self, batch: list[_Waiting]) -> None:
        if self._last is not None:
            # Counted from the send, not from here: behind many others of a server that is away, none waits longer than the first.
            batch = _give_up(batch, self._last, time.monotonic())
        failures = 0
        invocation = str(uuid.uuid4())
        while batch:
            try:
                url = self._url = self._url or await self._client.queue_url(self._queue)
                entries = [each.entry for each in batch]
                answers = await self._client.send_batch(url, entries, invocation=invocation)
            except ApiError as error:
                if error.failure is Failure.REFUSED and len(batch) > 1:
                    # SQS refuses a whole call for some mistakes in one message: alone, only that one fails.
                    for each in batch:
                        await self._send([each])
                    return
                rest, last = batch, self._named(error)
            except Exception as error:  # the senders wait for it, whatever it is
                _give_up(batch, error)
                return
            else:
                rest, last = _settle(batch, answers)
                if rest and len(rest) < len(batch):
                    invocation = str(uuid.uuid4())  # another request than before
            self._last = last if rest else None
            if not rest:
                return
            pause_s = _BACKOFF.pause_s(failures, last.failure, RANDOM)
            if not _give_up(rest, last, time.monotonic() + pause_s if last.may_pass else math.inf):
                return
            # With those that were given up: Veil recognises only the same request, and it is unknown whether theirs were stored.
            batch, failures = rest, failures + 1
            await asyncio.sleep(pause_s)

    def _named(self, error: ApiError) -> ApiError:
        """A refusal that says which queue is missing."""
        if not error.is_missing_queue:
            return error
        return ApiError(error.failure, error.code, f"queue {self._queue}: {error.message}")


def _give_up(batch: list[_Waiting], error: Exception, by_s: float = math.inf) -> list[_Waiting]:
    """Fail the entries whose senders wait until that instant at most; returns the others."""
    waiting = [each for each in batch if not each.future.done()]
    for each in waiting:
        if each.deadline_s < by_s:
            each.future.set_exception(error)
    return [each for each in waiting if each.deadline_s >= by_s]


def _settle(batch: list[_Waiting], answers: list[str | ApiError]) -> tuple[list[_Waiting], ApiError]:
    """Answer the senders whose message was sent or refused; returns the entries that may be tried again, and why."""
    rest: list[_Waiting] = []
    last = ApiError(Failure.UNREACHABLE, "", "")
    for each, answer in zip(batch, answers, strict=True):
        if each.future.done():
            continue
        if isinstance(answer, str):
            each.future.set_result(answer)
        elif answer.may_pass:
            rest.append(each)
            last = answer
        else:
            each.future.set_exception(answer)
    return rest, last


def _body(payload: Any) -> str:
    if isinstance(payload, str):
        return payload
    if isinstance(payload, bytes | bytearray | memoryview):
        raise TypeError(
            "bytes: a message's body is text; send them as a Binary attribute, or encode them (base64)"
        )
    as_json = getattr(payload, "model_dump_json", None)  # a pydantic model
    if callable(as_json):
        return str(as_json())
    try:
        return _encode(payload).decode()
    except TypeError as error:
        raise TypeError(f"{type(payload).__qualname__}: cannot be sent as JSON: {error}") from None


def attribute_of(name: str, value: object) -> Attribute:
    """The attribute that a value is sent as; raises TypeError where it cannot be one."""
    if isinstance(value, str):
        return Attribute.of("String", value)
    if isinstance(value, bytes):
        return Attribute.of("Binary", value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Attribute.of("Number", repr(value))
    if isinstance(value, Attribute):
        return value
    raise TypeError(f"attribute {name}={value!r}: expected text, a number or bytes")


def _delay_s(delay: float | timedelta) -> int:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not isinstance(seconds, int | float) or not 0 <= seconds <= DELAY_MAX_S or seconds != int(seconds):
        raise ValueError(f"delay={delay!r}: expected whole seconds from 0 to {DELAY_MAX_S}, or a timedelta")
    return int(seconds)


def _refuse_to_block() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "send() would stop the event loop until the message is stored; use `await queue.asend(…)`"
    )
