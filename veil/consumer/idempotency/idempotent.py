"""A middleware that handles each key once, as far as a store can know.

It fails closed: while the store cannot be asked, messages wait and are tried again; none is handled on a guess.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from veil.consumer.handlers.errors import PayloadRefused
from veil.consumer.idempotency.key import KeySpec, bounded, key_of
from veil.consumer.idempotency.store import Busy, Claimed, Done, Holder, IdempotencyStore
from veil.consumer.message import Message
from veil.consumer.middleware import CallNext, CallNextBatch
from veil.consumer.outcome import Backoff, Delete, Outcome, Release, RetryAfter
from veil.core.limits import RETENTION_DEFAULT_S, VISIBILITY_MAX_S

_log = logging.getLogger("veil.consumer")

_LATER = Backoff(base_s=5.0)
_BUSY_WAIT_MAX_S = 30


class Idempotent:
    """Skips messages whose key was handled, and holds back those whose key is being handled.

    `ttl_s` is how long a handled key is remembered: at least as long as a duplicate may come, which is the queue's
    retention. `in_progress_ttl_s` is how long a claim protects a key from another message with the same key, should
    its holder vanish together with its message; a redelivery of the same message takes over at once, whatever it says.
    Keys of different queues and message types are apart, unless a `namespace` joins them.
    """

    def __init__(
        self,
        store: IdempotencyStore,
        *,
        key: KeySpec = "message_id",
        ttl_s: float = RETENTION_DEFAULT_S,
        in_progress_ttl_s: float = VISIBILITY_MAX_S,
        namespace: str | None = None,
    ) -> None:
        for name, value in (("ttl_s", ttl_s), ("in_progress_ttl_s", in_progress_ttl_s)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"Idempotent: {name} is {value!r}, expected more than 0 seconds")
        self._store = store
        self._key = key_of(key)
        self._keep_ms = math.ceil(ttl_s * 1_000)
        self._in_progress_ms = math.ceil(in_progress_ttl_s * 1_000)
        self._namespace = namespace

    async def __call__(self, message: Message, call_next: CallNext) -> Outcome:
        """Around one message."""
        key = self._full_key(message)
        held_back = await self._claim(key, message)
        if held_back is not None:
            return held_back
        try:
            outcome = await call_next(message)
        except Exception:
            # Not for a cancellation from outside: a function in a thread would still be running. The next delivery of
            # the message takes the claim over.
            await self._give_up(key, message)
            raise
        await self._ended(key, message, outcome)
        return outcome

    async def call_batch(self, messages: Sequence[Message], call_next: CallNextBatch) -> list[Outcome]:
        """Around a batch: those held back are left out of it, and so is the second of two with one key."""
        keys: list[str] = []
        outcomes: list[Outcome | None] = []
        halted: set[str | None] = set()
        for message in messages:
            key, outcome = await self._claim_in_batch(message, halted)
            keys.append(key)
            outcomes.append(outcome)
            if outcome is not None and not isinstance(outcome, Delete):
                halted.add(message.group)
        places = [place for place, outcome in enumerate(outcomes) if outcome is None]
        if places:
            try:
                found = await call_next([messages[place] for place in places])
            except Exception:
                for place in places:
                    await self._give_up(keys[place], messages[place])
                raise
            for place, outcome in zip(places, found, strict=True):
                await self._ended(keys[place], messages[place], outcome)
                outcomes[place] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    async def _claim_in_batch(self, message: Message, halted: set[str | None]) -> tuple[str, Outcome | None]:
        if message.is_fifo and message.group in halted:
            return "", Release()  # one before it in its group waits: to handle it now would be out of order
        try:
            key = self._full_key(message)
        except PayloadRefused as error:
            # It fails alone, and ends where the redrive policy sends what is received too often.
            _log.error("%s", error, extra={"facts": message.facts})
            return "", _LATER
        return key, await self._claim(key, message)

    def _full_key(self, message: Message) -> str:
        # Two types about one order both carry its id: without the type, the second would be taken for done.
        apart = f"{message.queue}/{message.type or ''}" if self._namespace is None else self._namespace
        return bounded(f"{apart}:{self._key(message)}")

    async def _claim(self, key: str, message: Message) -> Outcome | None:
        """None when the key is this message's to handle, else what becomes of the message."""
        # A lease may be renewed for longer than the setting says, but never end later than its window now tells.
        hold_ms = max(self._in_progress_ms, math.ceil(message.lease.remaining_s * 1_000))
        try:
            claim = await self._store.claim(key, _holder(message), hold_ms=hold_ms)
        except Exception:
            _log.exception(
                "the idempotency store cannot be asked, the message waits", extra={"facts": message.facts}
            )
            return _LATER
        if isinstance(claim, Claimed):
            return None
        if isinstance(claim, Done):
            # Deleted, not ignored: a duplicate that is left in the queue comes back until it is a dead letter.
            _log.info("handled before, not again", extra={"facts": message.facts})
            return Delete()
        return _wait(claim)

    async def _ended(self, key: str, message: Message, outcome: Outcome) -> None:
        if not isinstance(outcome, Delete):
            await self._give_up(key, message)
            return
        for _ in range(2):  # once more, because a connection that broke in between is opened anew
            try:
                finished = await self._store.finish(key, _holder(message), keep_ms=self._keep_ms)
            except Exception:
                _log.exception(
                    "handled, but the idempotency store could not note it", extra={"facts": message.facts}
                )
            else:
                if not finished:
                    _log.warning(
                        "handled, but a later delivery holds the key", extra={"facts": message.facts}
                    )
                return
        # The work is done. To say otherwise now would have it done again for certain.

    async def _give_up(self, key: str, message: Message) -> None:
        try:
            await self._store.give_up(key, _holder(message))
        except Exception:
            _log.warning(
                "the idempotency claim could not be given up", exc_info=True, extra={"facts": message.facts}
            )


def _holder(message: Message) -> Holder:
    return Holder(message.id, message.lease.token)


def _wait(busy: Busy) -> Outcome:
    # Looked at again now and then, for its holder may end long before its claim does; never at once.
    return RetryAfter(min(max(1, math.ceil(busy.for_ms / 1_000)), _BUSY_WAIT_MAX_S))
