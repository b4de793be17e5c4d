"""One queue, for code that blocks and moves thousands of messages at a time; Amazon SQS or Veil.

The calls are SQS's, ten messages each, several in flight; against Veil its own actions are there too (`is_veil`). Every
call is safe to repeat by the rules of the queue, and is repeated here while the service is throttling or away.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from veil.client.api import BATCH_MAX, ApiError, Attribute, Failure, RawMessage, RetryBackoff
from veil.client.blocking import LoopClient
from veil.client.client import SqsClient, with_retries

A = TypeVar("A")
T = TypeVar("T")
R = TypeVar("R")

# ---- calls from code that blocks: on an event loop's own thread, by tens, tried again while the service is away

RETRY_S: Final = 30.0
_BACKOFF: Final = RetryBackoff(first_s=0.05, max_s=3.0)


async def retried(call: Callable[[], Awaitable[T]], retry_s: float = RETRY_S) -> T:
    """What the call comes to, tried again for so long while it is throttled or gets no answer."""
    until_s = time.monotonic() + retry_s
    return await with_retries(
        call, _BACKOFF, passes=lambda error: error.may_pass and time.monotonic() < until_s
    )


CALLS_AT_ONCE: Final = 8


async def settled(
    items: Sequence[T], call: Callable[[Sequence[T]], Awaitable[list[R | ApiError]]], retry_s: float
) -> list[R | ApiError]:
    """What became of each item, in their order. `call` says it of all at once; what was throttled or unanswered is called again,
    without the others, until `retry_s` is over."""
    results: dict[int, Any] = {}
    left = list(range(len(items)))

    async def once() -> None:
        nonlocal left
        try:
            answers = await call([items[index] for index in left])
        except ApiError as error:
            answers = [error] * len(left)
        results.update(zip(left, answers, strict=True))
        left = [index for index in left if may_pass(results[index])]
        if left:
            raise results[left[0]]

    with suppress(ApiError):  # each that failed is said in its place
        await retried(once, retry_s)
    return [results[index] for index in range(len(items))]


async def by_tens(
    items: Sequence[T], call: Callable[[Sequence[T]], Awaitable[list[R | ApiError]]], retry_s: float
) -> list[R | ApiError]:
    """The same for any number of items, ten to a call and several calls at a time."""
    results: list[Any] = [None] * len(items)
    starts = iter(range(0, len(items), BATCH_MAX))

    async def work() -> None:
        for start in starts:
            ten = slice(start, start + BATCH_MAX)
            results[ten] = await settled(items[ten], call, retry_s)

    await asyncio.gather(*(work() for _ in range(min(CALLS_AT_ONCE, -(-len(items) // BATCH_MAX)))))
    return results


def may_pass(answer: object) -> bool:
    """Whether it is a failure that the next try may not meet."""
    return isinstance(answer, ApiError) and answer.may_pass


# ---- the client

# A hold of a thousand messages of the greatest size; a smaller answer is the rule.
_HOLD_BYTES_MAX: Final = 256 << 20
_HOLD_TIMEOUT_S: Final = 60.0


class ServiceClient(LoopClient):
    """The client of a service, as its address names it."""

    def __init__(self, service: QueueAddress, *, user_agent: str) -> None:
        client = SqsClient(
            endpoint=service.endpoint,
            region=service.region,
            profile=service.profile,
            user_agent_extra=user_agent,
        )
        super().__init__(client, f"veil-{user_agent.replace(' ', '-')}")


_lock = threading.Lock()
_shared: dict[tuple[int, Any, Any], Any] = {}


def shared(opened: Callable[[A], T], address: A) -> T:
    """What `opened` makes of an address, the same for whoever asks in this process; never to be closed.

    For tasks, which come by the hundred: each would open connections of its own.
    """
    # By process: workers are forked, and a thread with its connections does not live on in the child.
    key = (os.getpid(), opened, address)
    with _lock:
        found: T | None = _shared.get(key)
        if found is None:
            found = _shared[key] = opened(address)
        return found


class QueueClient(ServiceClient):
    """A queue that is open; usable from any thread. Raises ApiError in the service's words."""

    def __init__(self, address: QueueAddress, *, user_agent: str = "pipeline executor") -> None:
        super().__init__(address, user_agent=user_agent)
        self.address = address
        try:
            self.url: str = self._loop.run(self._client.queue_url(address.queue))
        except BaseException:
            self.close()
            raise
        self._is_veil: bool | None = None

    # ---- the queue

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def resolved(self) -> QueueAddress:
        """Its address with nothing left to be found by variables, which executors may have otherwise."""
        return QueueAddress(self.url, self.endpoint, self.region, self.address.profile)

    def attributes(self) -> dict[str, str]:
        """All attributes of the queue, counts included."""
        return self._loop.run(retried(lambda: self._client.attributes(self.url)))

    @property
    def owner(self) -> tuple[str, str]:
        """The region and the account of the queue."""
        return self.region, self.url.split("/")[-2]

    def is_veil(self) -> bool:
        """Whether the service has Veil's own actions; asked once."""
        if self._is_veil is None:
            try:
                # A stream that cannot exist: a Veil has nothing to extend for it, and any other service does not know the action.
                self.extend_holds("veil-is-there", "nobody", 1)
                self._is_veil = True
            except ApiError as error:
                if error.may_pass:
                    raise
                self._is_veil = error.code.startswith("Veil.")
        return self._is_veil

    # ---- messages, by tens

    def receive(
        self, count: int, *, bytes_max: int, seconds: float, visibility_s: int | None = None, wait_s: int = 0
    ) -> list[RawMessage]:
        """Up to `count` messages, until the queue gives none, they are so many bytes, or the time for it is over."""
        return self._loop.run(self._receive(count, bytes_max, seconds, visibility_s, wait_s))

    def delete(self, receipts: Sequence[str], *, retry_s: float = RETRY_S) -> list[ApiError | None]:
        """Delete by receipt; what failed is said in its place."""
        return self._loop.run(by_tens(receipts, lambda each: self._client.delete(self.url, each), retry_s))

    def extend(
        self, receipts: Sequence[str], visibility_s: int, *, retry_s: float = RETRY_S
    ) -> list[ApiError | None]:
        """Give each that much more time from now; what failed is said in its place."""
        changes = [(receipt, visibility_s) for receipt in receipts]
        return self._loop.run(by_tens(changes, lambda each: self._client.extend(self.url, each), retry_s))

    # ---- Veil's own

    def receive_hold(
        self, stream: str, batch: int, part: int, count: int, visibility_s: int | None = None
    ) -> Future[HoldAnswer]:
        """The messages under that name, the same whenever it is asked; asked for now, there when waited for."""
        given = {
            "Stream": stream,
            "Batch": batch,
            "Part": part,
            "MaxNumberOfMessages": count,
            "InColumns": True,
        }
        if visibility_s is not None:
            given["VisibilityTimeout"] = visibility_s
        return self._loop.begin(self._own("ReceiveHold", given, HoldAnswer))

    def open_stream(self, stream: str, owner: str) -> None:
        """Be the owner of the stream: whoever was before is refused from now on."""
        self.own("OpenStream", {"Stream": stream, "Owner": owner}, dict[str, Any])

    def extend_holds(self, stream: str, owner: str, visibility_s: int) -> HoldCounts:
        """Give every message of the stream's holds that much more time from now."""
        given = {"Stream": stream, "Owner": owner, "VisibilityTimeout": visibility_s}
        return self.own("ExtendHolds", given, HoldCounts)

    def delete_holds(self, stream: str, owner: str, up_to_batch: int) -> HoldCounts:
        """Delete every message of the stream's holds up to that batch, and close these for ever.

        Says so where an answer was lost: the last one does not count what the call before it had done.
        """
        given = {"Stream": stream, "Owner": owner, "UpToBatch": up_to_batch}
        tally, is_repeated = self.own_counted("DeleteHolds", given, HoldCounts, timeout_s=_HOLD_TIMEOUT_S)
        tally.repeated = is_repeated
        return tally

    def peek(
        self,
        count: int,
        *,
        token: str | None = None,
        after: int | None = None,
        up_to: int | None = None,
        sent_after_ms: int | None = None,
        sent_before_ms: int | None = None,
    ) -> BrowsedPage:
        """A page of messages in any state, by rising `seq`, without receiving them: from the token on, or within limits.

        By `seq`, `up_to` is included and `after` is not, so that ranges lie side by side; both instants are included.
        """
        limits = {
            "NextToken": token,
            "After": None if after is None or token is not None else str(after),
            "UpTo": None if up_to is None else str(up_to),
            "SentAfter": sent_after_ms,
            "SentBefore": sent_before_ms,
        }
        given = {name: value for name, value in limits.items() if value is not None}
        return self.own("PeekMessages", {"MaxResults": count, **given}, BrowsedPage)

    def own(self, action: str, given: dict[str, Any], answer_type: type[T]) -> T:
        """Any of Veil's own actions on this queue; all of them may be repeated."""
        return self._loop.run(self._own(action, given, answer_type))

    def own_counted(
        self,
        action: str,
        given: dict[str, Any],
        answer_type: type[T],
        *,
        timeout_s: float,
        retry_s: float = RETRY_S,
    ) -> tuple[T, bool]:
        """The same, and whether an earlier try may have been carried out without our hearing of it."""
        in_doubt = False

        async def once() -> T:
            nonlocal in_doubt
            asked = {"QueueUrl": self.url, **given}
            try:
                # Not repeatable below this: a repetition that nobody sees would not be told.
                return await self._client.ask(
                    f"Veil.{action}", asked, answer_type, repeatable=False, timeout_s=timeout_s
                )
            except ApiError as error:
                in_doubt = in_doubt or error.failure is Failure.UNREACHABLE
                raise

        return self._loop.run(retried(once, retry_s)), in_doubt

    async def _own(self, action: str, given: dict[str, Any], answer_type: type[T]) -> T:
        asked = {"QueueUrl": self.url, **given}
        return await retried(
            lambda: self._client.ask(
                f"Veil.{action}", asked, answer_type, repeatable=True,
                timeout_s=_HOLD_TIMEOUT_S, answer_bytes_max=_HOLD_BYTES_MAX,
            )
        )  # fmt: skip

    def ask(self, action: str, given: dict[str, Any], *, repeatable: bool = True) -> dict[str, Any]:
        """Any action of SQS, by its name; `QueueUrl` is filled in where it is not given as None."""
        asked = {"QueueUrl": self.url, **given}
        asked = {name: value for name, value in asked.items() if value is not None}
        return self._loop.run(
            retried(lambda: self._client.ask(action, asked, dict[str, Any], repeatable=repeatable))
        )

    def send(self, entries: Sequence[dict[str, Any]], *, retry_s: float = RETRY_S) -> list[str | ApiError]:
        """Send entries of SendMessageBatch (without Id): message id or failure of each.

        On a FIFO queue with deduplication ids a repeated send stores nothing twice; elsewhere an entry whose answer was
        lost may be stored twice, as with any client of a queue.
        """
        return self._loop.run(by_tens(entries, lambda each: self._client.send_batch(self.url, each), retry_s))

    # ---- within

    async def _receive(
        self, count: int, bytes_max: int, seconds: float, visibility_s: int | None, wait_s: int
    ) -> list[RawMessage]:
        until_s = time.monotonic() + seconds
        # The first call may wait for a message; while nothing comes, more calls would only wait beside it.
        found = await self._receive_once(min(BATCH_MAX, count), visibility_s, wait_s)
        wanted, empty, bytes_left = count - len(found), not found, bytes_max - _bytes_of(found)

        async def work() -> None:
            nonlocal wanted, empty, bytes_left
            while wanted > 0 and bytes_left > 0 and not empty and time.monotonic() < until_s:
                asked = min(BATCH_MAX, wanted)
                wanted -= asked
                got = await self._receive_once(asked, visibility_s, 0)
                found.extend(got)
                wanted += asked - len(got)
                bytes_left -= _bytes_of(got)
                empty = empty or not got

        await asyncio.gather(*(work() for _ in range(min(CALLS_AT_ONCE, -(-wanted // BATCH_MAX)))))
        return found

    async def _receive_once(self, count: int, visibility_s: int | None, wait_s: int) -> list[RawMessage]:
        return await retried(
            lambda: self._client.receive(self.url, count=count, wait_s=wait_s, visibility_s=visibility_s)
        )


def _bytes_of(messages: Sequence[RawMessage]) -> int:
    """About what it takes to hold them: their bodies and their attributes."""
    attributes = [value for message in messages for value in message.attributes.values()]
    return sum(len(message.body) for message in messages) + sum(
        len(value.string_value or value.binary_value or "") for value in attributes
    )


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """A queue by name, ARN or URL; endpoint, region and profile are found by AWS's variables where they are None."""

    queue: str
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None


class BrowsedMessage(msgspec.Struct, rename="pascal"):
    """A message that was looked at; `visible_at` says, in ms, when one in flight or delayed will be visible."""

    message_id: str
    body: str = ""
    system: dict[str, str] = msgspec.field(name="Attributes", default_factory=dict)
    attributes: dict[str, Attribute] = msgspec.field(name="MessageAttributes", default_factory=dict)
    state: str = ""
    visible_at: int | None = None
    sequence_number: str = ""


class SourceMessages(msgspec.Struct, rename="pascal"):
    """Messages by column, as the source makes rows of them. `system` has a column for each attribute that the service itself
    set on any of them; `attributes` is None where no message has any of its own."""

    message_id: list[str]
    body: list[str]
    system: dict[str, list[str | None]] = msgspec.field(name="Attributes")
    attributes: list[dict[str, Attribute] | None] | None = msgspec.field(
        name="MessageAttributes", default=None
    )

    @classmethod
    def of(cls, messages: Sequence[RawMessage | BrowsedMessage]) -> SourceMessages:
        """Messages that came one by one."""
        names = dict.fromkeys(name for message in messages for name in message.system)
        return cls(
            [message.message_id for message in messages],
            [message.body for message in messages],
            {name: [message.system.get(name) for message in messages] for name in names},
            [message.attributes for message in messages],
        )


class HoldAnswer(msgspec.Struct, rename="pascal"):
    """What is under the name of a hold, without receipts: holds are extended and deleted by name. `lost` counts what could
    not be kept."""

    messages: SourceMessages
    lost: int = 0


class HoldCounts(msgspec.Struct, rename="pascal"):
    """How many messages an extension or a deletion of holds reached, and how many it no longer could.

    `repeated` is the client's own: an answer before this one was lost, and what that call had deleted is not counted here.
    """

    messages: int = 0
    lost: int = 0
    repeated: bool = False


class BrowsedPage(msgspec.Struct, rename="pascal"):
    """A page of messages by rising sequence number; the token leads to the next one."""

    messages: list[BrowsedMessage] | None = None
    next_token: str | None = None
