"""Where a message is handled, and where what its handler said is carried out."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

from veil.client.api import ApiError, Attribute
from veil.client.client import SqsClient
from veil.consumer.acknowledging import Deletes, Releases
from veil.consumer.error_reports import class_name, told, traceback_text, words_of
from veil.consumer.handlers.table import Handler, HandlerTable
from veil.consumer.lease import Lease, LeaseStatus
from veil.consumer.message import Message
from veil.consumer.outcomes import (
    DEFAULT_BACKOFF,
    DeadLetter,
    Delete,
    Discard,
    Fatal,
    LetExpire,
    Outcome,
    Release,
    RetryAfter,
    held_s,
    settled,
)
from veil.consumer.receiver import QueueFacts
from veil.consumer.renewal.keeper import Keeper
from veil.core.limits import ATTRIBUTES_MAX, BODY_BYTES_MAX
from veil.core.message import (
    ERROR_TYPE,
    FIRST_RECEIVED_AT,
    HANDLER,
    LAST_RECEIVED_AT,
    MESSAGE_ID,
    PREFIX,
    REASON,
    RECEIVE_COUNT,
    SOURCE_QUEUE,
    TRACEBACK,
)
from veil.core.receipt import looks_like_ours

_log = logging.getLogger(__name__)


_GONE: Final = -1  # out of the queue
_LEFT: Final = -2  # nothing was done: it comes back by itself, or another consumer has it already


@dataclass(frozen=True, slots=True)
class Interrupted(Outcome):
    """Its handler was ended in the middle because the consumer stops: make it visible at once, for another one."""


class MessageProcessor:
    """Knows handlers, keeper and queue. Renewal ends before anything is done to a message that a renewal could undo."""

    def __init__(
        self,
        *,
        api: SqsClient,
        facts: QueueFacts,
        table: HandlerTable,
        keeper: Keeper,
        deletes: Deletes,
        releases: Releases,
        wall: Callable[[], float],
        random: Random,
        on_fatal: Callable[[str], Awaitable[object]],
        on_given_back: Callable[[Message], None],
    ) -> None:
        self._api, self._facts, self._table, self._keeper = api, facts, table, keeper
        self._deletes, self._releases = deletes, releases
        self._wall, self._random = wall, random
        self._on_fatal = on_fatal  # stops the consumer; done once it receives nothing any more
        self._on_given_back = (
            on_given_back  # gets each message that is given back without a handler's outcome
        )

    def batch_max(self, message: Message) -> int:
        """How many messages its handler takes at a time."""
        handler = self._table.pick(message)
        return 1 if handler is None else handler.batch or 1

    def fits(self, first: Message, other: Message) -> bool:
        """Whether both may be handled in one call."""
        return self._table.pick(other) is self._table.pick(first)

    async def work(self, messages: Sequence[Message]) -> list[Outcome | None]:
        """What is to become of each; None: nothing, its lease is lost. Raises nothing but cancellation."""
        handler = self._table.pick(messages[0])  # of all of them
        fresh = [message for message in messages if not self._deletes.was_handled(message.id)]
        if handler is None:
            outcomes = [self._table.unhandled(message) for message in fresh]
        elif isinstance(handler, Handler):
            outcomes = [await handler.call(message) for message in fresh]
        else:
            outcomes = await handler.call(fresh) if fresh else []
        if len(fresh) == len(messages):
            return outcomes
        found = dict(zip(map(id, fresh), outcomes, strict=True))
        return [found.get(id(message), Delete()) for message in messages]

    def settle_at_once(
        self, message: Message, outcome: Outcome | None, done: Callable[[ApiError | None], None]
    ) -> bool:
        """Nearly always: begin the delete of a message that was handled, without waiting; `done` is called with the result.
        False: it needs `settle`, as what stands in an order does."""
        if type(outcome) is not Delete or message.settling is not None or self._facts.fifo:
            return False
        if not self._keeper.knows_at_once:
            return False
        self._deletes.put(message, done)
        return True

    async def settle(
        self,
        messages: Sequence[Message],
        outcomes: Sequence[Outcome | None],
        halt: Callable[[], list[Message]],
    ) -> bool:
        """Carry the outcomes out; whether all are out of the queue. What `halt` gives is given back behind what failed."""
        if len(messages) == 1:
            ends = [await self._end(messages[0], outcomes[0])]
        else:
            ends = await asyncio.gather(*map(self._end, messages, outcomes))
        if all(end == _GONE for end in ends):
            return True
        back = [(message, end) for message, end in zip(messages, ends, strict=True) if end >= 0]
        for outcome in outcomes:
            if isinstance(outcome, Fatal):  # first, or a receive of our own that waits would take it again
                await self._on_fatal(outcome.reason or "a handler asked for it")
        await self.give_back(halt(), behind=back)
        return False

    async def give_back(
        self,
        messages: Sequence[Message],
        *,
        behind: Sequence[tuple[Message, int]] = (),
        ended: Callable[[Lease], bool] = Lease.end,
    ) -> None:
        """Make messages visible at once, from the first on, although no handler has said so: those whose leases can be ended
        like this. They follow those that are given back for a reason of their own."""
        await self._keeper.let_go(*(message.lease for message in messages))
        taken_over = [message for message in messages if ended(message.lease)]
        for message in taken_over:
            self._on_given_back(message)
        await self._releases.give_back([*behind, *((message, 0) for message in taken_over)])

    def let_expire(self, messages: Sequence[Message]) -> None:
        """Do nothing more for them: they come back when their windows end."""
        self._keeper.let_go(*(message.lease for message in messages))
        for message in messages:
            message.lease.end()

    async def abandon(self, messages: Sequence[Message]) -> None:
        """Give back what handlers hold that do not end; what they still do has no effect on their messages."""
        await self.give_back(
            messages, ended=lambda lease: lease.lose("the consumer stopped, and its handler did not")
        )

    async def _end(self, message: Message, outcome: Outcome | None) -> int:
        """Carry out whatever ends at the message itself: _GONE, _LEFT, or the seconds after which it is to be visible."""
        lease = message.lease
        if isinstance(outcome, DeadLetter) and lease.state is LeaseStatus.HELD:
            # Before the keeper lets go: until the copy is safe, no other consumer may receive the original.
            outcome = await self._dead_lettered(message, outcome)
        is_done = isinstance(outcome, Delete | Discard)
        if not is_done or not self._keeper.knows_at_once:
            # A renewal that overtook a release would hide the message again; and what a helper process knows comes with this.
            await self._keeper.let_go(lease)
        if is_done:
            with nullcontext() if message.settling is None else message.settling():
                return _LEFT if await self._deletes.add(message) else _GONE
        if isinstance(outcome, Interrupted):
            if not lease.lose("the consumer is stopping"):
                return _LEFT
            self._on_given_back(message)
            return 0
        if outcome is None or not message.end_lease():
            return _LEFT
        if isinstance(outcome, LetExpire):
            # To say why takes a call, and that sets a deadline: the one it has, to the second. Only Veil listens.
            left_s = math.ceil(lease.remaining_s)
            if message.failure is None or left_s <= 0 or not looks_like_ours(message.raw.receipt):
                return _LEFT
            return left_s
        return int(outcome.seconds) if isinstance(outcome, RetryAfter) else 0

    async def _dead_lettered(self, message: Message, outcome: DeadLetter) -> Outcome:
        """Send the copy; the outcome for the original."""
        await self._facts.refresh()
        url = self._facts.dead_letters_url
        if url is None:
            _log.warning(
                "%s has no dead letters, so the message stays until its window ends: %s",
                message.queue,
                outcome.reason,
                extra=message.extra(),
            )
            return LetExpire()
        now, texts = datetime.fromtimestamp(self._wall(), UTC), self._table.settings.error_texts
        body, attributes = dead_letter_copy(message, outcome, now=now, error_texts=texts)
        fifo = self._facts.fifo
        try:
            await self._api.send(
                url,
                body,
                attributes=attributes,
                group=message.group,
                deduplication_id=message.id if fifo else None,
            )
        except ApiError as error:
            _log.error(
                "the copy for the dead letters could not be sent, trying again later: %s",
                error,
                extra=message.extra(),
            )
            later = settled(DEFAULT_BACKOFF, message.lease, message.receive_count, self._random.random)
            return later if isinstance(later, RetryAfter) else Release()
        return Delete()


# ---- the copy that goes to the dead letters, with what happened written on it as attributes
#
# A message has at most ten attributes and a limited size. The sender's own stay; ours follow, the most useful first, as many as
# there is room for, the long ones cut to fit.

REASON_BYTES_MAX: Final = 1_024
TRACEBACK_BYTES_MAX: Final = 8_192
_TEXT_BYTES_MAX: Final = 256
# A text that is cut to less says nothing.
_TEXT_BYTES_MIN: Final = 16

# What SQS refuses in a text: what XML 1.0 has no place for.
_REFUSED: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def dead_letter_copy(
    message: Message,
    outcome: DeadLetter,
    *,
    now: datetime,
    error_texts: bool = True,
    bytes_max: int = BODY_BYTES_MAX,
) -> tuple[str, dict[str, Attribute]]:
    """Body and attributes of the copy, which the dead letters take if they take up to `bytes_max`."""
    # What an earlier stay among the dead letters wrote is ours to write again, not the sender's.
    attributes = {
        name: attribute for name, attribute in message.attributes.items() if not name.startswith(PREFIX)
    }
    left = bytes_max - _bytes(message.body) - sum(each.size_bytes(name) for name, each in attributes.items())
    for name, data_type, text, most in _ours(message, outcome, now, error_texts):
        if len(attributes) >= ATTRIBUTES_MAX:
            break
        room = min(most, left - _bytes(name) - _bytes(data_type))
        value = _fitted(_REFUSED.sub("\ufffd", text), room, keep_end=name == TRACEBACK)
        if not value or (value != text and data_type == "Number"):
            continue
        attributes[name] = Attribute.of(data_type, value)
        left -= attributes[name].size_bytes(name)
    return message.body, attributes


def _ours(
    message: Message, outcome: DeadLetter, now: datetime, error_texts: bool
) -> Iterator[tuple[str, str, str, int]]:
    error, reason = outcome.error, outcome.reason
    if error is not None and not error_texts and reason in (told(error), words_of(error)):
        reason = class_name(error)  # a reason that the handler gave stays
    if error is not None:
        yield ERROR_TYPE, "String", class_name(error), _TEXT_BYTES_MAX
    yield REASON, "String", reason, REASON_BYTES_MAX
    yield SOURCE_QUEUE, "String", message.queue, _TEXT_BYTES_MAX
    # After a redrive the message has a new id: the first one is what the sender's records know.
    known = message.attributes.get(MESSAGE_ID)
    first_id = known.value if known is not None and isinstance(known.value, str) else ""
    yield MESSAGE_ID, "String", first_id or message.id, _TEXT_BYTES_MAX
    yield RECEIVE_COUNT, "Number", str(message.receive_count), _TEXT_BYTES_MAX
    yield HANDLER, "String", outcome.handler, _TEXT_BYTES_MAX
    if error is not None and error_texts and (trace := traceback_text(error)):
        yield TRACEBACK, "String", trace, TRACEBACK_BYTES_MAX
    first_at, last_at = message.first_received_at, now - timedelta(seconds=held_s(message.lease))
    if first_at is not None:
        yield FIRST_RECEIVED_AT, "String", _iso(first_at), _TEXT_BYTES_MAX
        # The first is by the service's clock, the last by this machine's, from before the request was sent.
        last_at = first_at if message.receive_count == 1 else max(first_at, last_at)
    yield LAST_RECEIVED_AT, "String", _iso(last_at), _TEXT_BYTES_MAX


def _iso(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fitted(text: str, room: int, *, keep_end: bool) -> str:
    """The text, or as much of it as fits; of a traceback the end, where the error is."""
    utf8 = text.encode()
    if len(utf8) <= room:
        return text
    if room < _TEXT_BYTES_MIN:
        return ""
    kept = room - len("…".encode())
    if keep_end:
        return "…" + utf8[-kept:].decode(errors="ignore")
    return utf8[:kept].decode(errors="ignore") + "…"


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
