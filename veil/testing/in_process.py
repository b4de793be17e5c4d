"""A queue service inside the test: the real rules on the store in memory, no sockets, and time only when the test says so."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from veil.client.api import ApiError, Attribute, Failure, QueueApi, RawMessage
from veil.core.attempt import ReportedOutcome
from veil.core.clock import ManualClock, Timer
from veil.core.errors import (
    MessageGone,
    QueueMissing,
    ReceiptExpired,
    ReceiptInvalid,
    StoreError,
    VeilError,
    VisibilityTooLong,
)
from veil.core.message import MessageAttribute, StoredMessage
from veil.core.message_rules import Draft
from veil.core.queue import Queue, QueueKey, RedrivePolicy
from veil.core.sequence import sequence_text
from veil.service.messages import delete, extend_lease, send
from veil.service.queues import change_settings, create_queue, find_queue
from veil.service.receive import receipt_text, receive
from veil.service.service import Service
from veil.stores.memory import MemoryStore

REGION: Final = "us-east-1"
ACCOUNT: Final = "000000000000"
_BASE_URL: Final = f"http://in-process/{ACCOUNT}"


class ManualTime(ManualClock):
    """A manual clock that can say when something is due next."""

    def monotonic_s(self) -> float:
        """Seconds, as the consumer counts them."""
        return self.now_ms() / 1000

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call so much later."""
        # Rounded up: woken a fraction of a millisecond early, a keeper would find nothing due and ask again for ever.
        return self.call_at(self.now_ms() + math.ceil(delay_s * 1000), call)

    def next_due_ms(self) -> int | None:
        """The instant of the next timer; None when none is set."""
        return self._timers[0][0] if self._timers else None


class InProcessService:
    """The queues, and what happened to the calls made on them. `api()` gives a client."""

    def __init__(self, clock: ManualTime) -> None:
        self.clock = clock
        self.service = Service(MemoryStore(clock), clock)
        self.calls: Counter[str] = Counter()
        self.deleted: list[StoredMessage] = []
        # Of attempts that ended other than by a plain delete.
        self.reported: list[ReportedOutcome | None] = []
        self._failures: dict[str, deque[ApiError]] = {}

    def api(self) -> QueueApi:
        """One more client of the service."""
        return _InProcessApi(self)

    def fail(self, call: str, failure: Failure = Failure.UNREACHABLE, *, times: int = 1) -> None:
        """Let the next calls of that name (`receive`, `delete`, `extend`, `send`, …) fail, without any effect."""
        error = ApiError(failure, f"Injected{failure.value.title()}", "the test wants this call to fail")
        self._failures.setdefault(call, deque()).extend([error] * times)

    async def create(
        self,
        name: str,
        *,
        visibility_s: int = 30,
        dead_letters: str | None = None,
        receives_max: int = 3,
        **settings: Any,
    ) -> Queue:
        """A queue of that name (FIFO if it ends so), with everything else as QueueSettings has it."""
        given = {"visibility_s": visibility_s, **settings}
        if name.endswith(".fifo"):
            given |= {"fifo": True}
        if dead_letters is not None:
            given["redrive"] = RedrivePolicy(_key(dead_letters), receives_max)
        return await create_queue(self.service, _key(name), given, {})

    async def change(self, name: str, **settings: Any) -> None:
        """Edit a queue, as an operator would."""
        await change_settings(self.service, await self.queue(name), settings)

    async def queue(self, url_or_name: str) -> Queue:
        """The queue as it stands."""
        return await find_queue(self.service, _key(url_or_name))

    async def messages(self, name: str) -> list[StoredMessage]:
        """Everything in the queue, in whatever state, by rising age; nothing is received."""
        await self.service.store.settle()
        return await self.service.store.peek(await self.queue(name), limit=10_000)

    def injected(self, call: str) -> None:
        """Count the call, and fail it if the test wants that."""
        self.calls[call] += 1
        failures = self._failures.get(call)
        if failures:
            raise failures.popleft()


class _InProcessApi(QueueApi):
    """The consumer's side of it."""

    def __init__(self, owner: InProcessService) -> None:
        self._owner, self._service = owner, owner.service

    async def queue_url(self, name: str) -> str:
        self._owner.injected("queue_url")
        await self._queue(name)
        return f"{_BASE_URL}/{name.rsplit('/', 1)[-1]}"

    async def attributes(self, url: str) -> dict[str, str]:
        self._owner.injected("attributes")
        settings = (await self._queue(url)).settings
        attributes = {"VisibilityTimeout": str(settings.visibility_s)}
        if settings.redrive is not None:
            policy = {
                "deadLetterTargetArn": settings.redrive.dead_letters.arn,
                "maxReceiveCount": settings.redrive.receives_max,
            }
            attributes["RedrivePolicy"] = json.dumps(policy)
        return attributes

    async def receive(
        self,
        url: str,
        *,
        count: int,
        wait_s: int,
        visibility_s: int | None = None,
        attempt_id: str | None = None,
    ) -> list[RawMessage]:
        self._owner.injected("receive")
        queue = await self._queue(url)
        asked_at_s = self._owner.clock.monotonic_s()
        try:
            messages = await receive(
                self._service,
                queue,
                count=count,
                visibility_s=visibility_s,
                wait_s=wait_s,
                attempt_id=attempt_id,
            )
        except VeilError as error:
            raise _told(error) from error
        return [self._raw(queue, message, asked_at_s) for message in messages]

    async def delete(
        self, url: str, receipts: Sequence[str], *, reported: Sequence[ReportedOutcome | None] = ()
    ) -> list[ApiError | None]:
        self._owner.injected("delete")
        queue = await self._queue(url)
        messages = await self._service.store.peek(queue, limit=10_000)
        held = {receipt_text(self._service, queue, message): message for message in messages}
        answers = await delete(self._service, queue, receipts, reported=reported)
        self._owner.reported += reported
        done = (receipt for receipt, answer in zip(receipts, answers, strict=True) if answer is None)
        self._owner.deleted += [held[receipt] for receipt in done if receipt in held]
        return _answers(answers)

    async def extend(
        self, url: str, changes: Sequence[tuple[str, int]], *, reported: Sequence[ReportedOutcome | None] = ()
    ) -> list[ApiError | None]:
        self._owner.injected("extend")
        self._owner.reported += reported
        return _answers(await extend_lease(self._service, await self._queue(url), changes, reported=reported))

    async def send(
        self,
        url: str,
        body: str,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        group: str | None = None,
        deduplication_id: str | None = None,
        delay_s: int | None = None,
    ) -> str:
        self._owner.injected("send")
        own = {
            name: MessageAttribute(attribute.data_type, attribute.value)
            for name, attribute in (attributes or {}).items()
        }
        draft = Draft(body, own or None, None, delay_s, group, deduplication_id)
        try:
            (answer,) = await send(self._service, await self._queue(url), [draft], sender=ACCOUNT)
        except VeilError as error:
            raise _told(error) from error
        if isinstance(answer, VeilError):
            raise _told(answer)
        return answer.message_id

    async def close(self) -> None:
        """Nothing is open."""

    async def _queue(self, url_or_name: str) -> Queue:
        try:
            return await self._owner.queue(url_or_name)
        except QueueMissing as error:
            raise _told(error) from error

    def _raw(self, queue: Queue, message: StoredMessage, asked_at_s: float) -> RawMessage:
        fifo = queue.settings.fifo
        system = {
            "ApproximateReceiveCount": message.receive_count,
            "SentTimestamp": message.sent_wall_ms,
            "ApproximateFirstReceiveTimestamp": message.first_received_wall_ms,
            "SenderId": message.sender,
            "MessageGroupId": message.group,
            "MessageDeduplicationId": message.deduplication_id,
            "SequenceNumber": sequence_text(message.seq) if fifo else None,
            "DeadLetterQueueSourceArn": message.dead_letter_source,
        }
        return RawMessage(
            message.message_id,
            receipt_text(self._service, queue, message),
            message.body,
            {name: Attribute.of(*attribute) for name, attribute in (message.attributes or {}).items()},
            {name: str(value) for name, value in system.items() if value is not None},
            asked_at_s,
        )


def _key(url_or_name: str) -> QueueKey:
    return QueueKey(REGION, ACCOUNT, url_or_name.rsplit("/", 1)[-1])


def _answers(answers: Iterable[VeilError | None]) -> list[ApiError | None]:
    return [None if answer is None else _told(answer) for answer in answers]


def _told(error: VeilError) -> ApiError:
    if isinstance(error, ReceiptExpired | ReceiptInvalid | MessageGone):
        failure = Failure.LOST
    elif isinstance(error, VisibilityTooLong):
        failure = Failure.CAPPED
    elif isinstance(error, QueueMissing):
        failure = Failure.FATAL
    else:
        failure = Failure.UNREACHABLE if isinstance(error, StoreError) else Failure.REFUSED
    return ApiError(failure, type(error).__name__, str(error))
