"""Handling each key once, as far as a store knows: a middleware, and its keys in a SQLite file or in PostgreSQL.

It fails closed: while the store cannot be asked, messages wait and are tried again; none is handled on a guess.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import logging
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from veil.consumer.handlers.payload import PayloadRefused
from veil.consumer.handlers.running import CallNext, CallNextBatch
from veil.consumer.message import Message
from veil.consumer.outcomes import Backoff, Delete, Outcome, Release, RetryAfter
from veil.core.limits import RETENTION_DEFAULT_S, VISIBILITY_MAX_S

if TYPE_CHECKING:
    import apsw


_log = logging.getLogger(__name__)


# ---- keys

KeySpec = str | Callable[[Message], str]

_PATH: Final = re.compile(r"\$((?:\.[^.\[\]\s]+|\[\d+\])+)\Z")
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_KEY_CHARACTERS_MAX: Final = 200


def key_of(spec: KeySpec) -> Callable[[Message], str]:
    """The function that gives a message's key; raises ValueError for a spec that is none."""
    if callable(spec):
        return spec
    if spec == "message_id":
        return lambda message: message.id
    path = _PATH.match(spec)
    if path is None:
        raise ValueError(
            f"key is {spec!r}, expected a path like '$.order_id' or '$.items[0].id', 'message_id', or a function"
        )
    steps = [name or int(index) for name, index in _STEP.findall(path[1])]
    return lambda message: _field(message, spec, steps)


def _field(message: Message, spec: str, steps: list[str | int]) -> str:
    content = message.content
    source = content.text if content.text is not None else content.json
    try:
        value: Any = msgspec.json.decode(b"" if source is None else source)
        for step in steps:
            value = value[step]
    except (msgspec.DecodeError, UnicodeError, RecursionError, KeyError, IndexError, TypeError):
        raise PayloadRefused(f"payload has no field {spec} for its idempotency key") from None
    if value is None or isinstance(value, dict | list):
        raise PayloadRefused(f"payload has no plain value in {spec} for its idempotency key")
    # As JSON, because 1 and "1" are two keys.
    return msgspec.json.encode(value).decode()


# ---- stores
#
# A key is claimed before its message is handled, and finished or given up afterwards. Times are lengths, counted on the
# store's own clock, because several consumers share it and their clocks differ.


@dataclass(frozen=True, slots=True)
class Holder:
    """Who claims: one delivery of one message. The token rises with every delivery."""

    message_id: str
    token: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The key is the caller's: handle the message, then finish or give up."""


@dataclass(frozen=True, slots=True)
class Done:
    """The key was handled before: the message is a duplicate."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Another holder has claimed the key, for so long at most."""

    for_ms: int


Claim = Claimed | Done | Busy


class IdempotencyStore(Protocol):
    """Whatever it raises means "unknown": the message is then not handled but tried again later.

    Every method is atomic, and safe to call again after an error.
    """

    async def claim(self, key: str, holder: Holder, *, hold_ms: int) -> Claim:
        """Claim the key for `hold_ms`.

        A later delivery of the same message takes over at once: that it was delivered means that the earlier one lost its
        lease, or died. Another message with the same key waits until the claim runs out.
        """

    async def finish(self, key: str, holder: Holder, *, keep_ms: int) -> bool:
        """Remember for `keep_ms` that it is done; False, and no change, when the claim is not this holder's any more."""

    async def give_up(self, key: str, holder: Holder) -> None:
        """Forget the claim, if it is this holder's and not finished."""

    async def close(self) -> None:
        """Let go of files and connections."""


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
        if not callable(getattr(store, "claim", None)) or isinstance(store, type):
            raise TypeError(
                f"Idempotent: store is {store!r}, expected a store such as SqliteIdempotency(path)"
            )
        for name, value in (("ttl_s", ttl_s), ("in_progress_ttl_s", in_progress_ttl_s)):
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
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
            _log.error("%s", error, extra=message.extra())
            return "", _LATER
        return key, await self._claim(key, message)

    def _full_key(self, message: Message) -> str:
        # Two types about one order both carry its id: without the type, the second would be taken for done.
        apart = f"{message.queue}/{message.type or ''}" if self._namespace is None else self._namespace
        key = f"{apart}:{self._key(message)}"
        if len(key) <= _KEY_CHARACTERS_MAX:
            return key
        # Too long to be an index entry everywhere.
        return f"sha256:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"

    async def _claim(self, key: str, message: Message) -> Outcome | None:
        """None when the key is this message's to handle, else what becomes of the message."""
        # A lease may be renewed for longer than the setting says, but never end later than its window now tells.
        hold_ms = max(self._in_progress_ms, math.ceil(message.lease.remaining_s * 1_000))
        try:
            claim = await self._store.claim(key, _holder(message), hold_ms=hold_ms)
        except Exception:
            _log.exception("the idempotency store cannot be asked, the message waits", extra=message.extra())
            return _LATER
        if isinstance(claim, Claimed):
            return None
        if isinstance(claim, Done):
            # Deleted, not ignored: a duplicate that is left in the queue comes back until it is a dead letter.
            _log.info("handled before, not again", extra=message.extra())
            return Delete()
        # Looked at again now and then, for its holder may end long before its claim does; never at once.
        return RetryAfter(min(max(1, math.ceil(claim.for_ms / 1_000)), _BUSY_WAIT_MAX_S))

    async def _ended(self, key: str, message: Message, outcome: Outcome) -> None:
        if not isinstance(outcome, Delete):
            await self._give_up(key, message)
            return
        for _ in range(2):  # once more, because a connection that broke in between is opened again
            try:
                finished = await self._store.finish(key, _holder(message), keep_ms=self._keep_ms)
            except Exception:
                _log.exception("handled, but the idempotency store could not note it", extra=message.extra())
            else:
                if not finished:
                    _log.warning("handled, but a later delivery holds the key", extra=message.extra())
                return
        # The work is done. To say otherwise now would have it done again for certain.

    async def _give_up(self, key: str, message: Message) -> None:
        try:
            await self._store.give_up(key, _holder(message))
        except Exception:
            _log.warning("the idempotency claim could not be given up", exc_info=True, extra=message.extra())


def _holder(message: Message) -> Holder:
    return Holder(message.id, message.lease.token)


# ---- the keys in a database: SQL that both kinds share, but for their clocks

# One statement, so that two who claim at once are put in order. An older delivery that wakes up late must not take its
# successor's claim, even one that has run out.
_CLAIM: Final = """
INSERT INTO {table} AS old (key, is_done, message_id, token, {until})
VALUES ({key}, false, {message_id}, {token}, {later})
ON CONFLICT (key) DO UPDATE
    SET is_done = false, message_id = excluded.message_id, token = excluded.token, {until} = excluded.{until}
    WHERE CASE WHEN NOT old.is_done AND old.message_id = excluded.message_id THEN old.token <= excluded.token
               ELSE old.{until} <= {now} END
RETURNING true
"""
_LOOK: Final = "SELECT is_done, {left_ms} FROM {table} WHERE key = {key}"
_FINISH: Final = """
UPDATE {table} SET is_done = true, {until} = {later}
WHERE key = {key} AND message_id = {message_id} AND token = {token}
RETURNING true
"""
_GIVE_UP: Final = """
DELETE FROM {table} WHERE key = {key} AND message_id = {message_id} AND token = {token} AND NOT is_done
"""


class _SqlIdempotency:
    """Keeps the contract by four statements; `_words` has what they are filled in with."""

    _words: Mapping[str, str]
    _clear: tuple[str, ...] = ()  # with each claim

    async def claim(self, key: str, holder: Holder, *, hold_ms: int) -> Claim:
        if await self._run(key, holder, hold_ms, _CLAIM, *self._clear):
            return Claimed()
        row = await self._run(key, holder, 0, _LOOK)
        # Given up between the two statements: the next claim will get it.
        if row is None:
            return Busy(1)
        return Done() if row[0] else Busy(max(1, int(row[1])))

    async def finish(self, key: str, holder: Holder, *, keep_ms: int) -> bool:
        return bool(await self._run(key, holder, keep_ms, _FINISH))

    async def give_up(self, key: str, holder: Holder) -> None:
        await self._run(key, holder, 0, _GIVE_UP)

    async def _run(self, key: str, holder: Holder, ms: int, *statements: str) -> Any:
        """The row that the first statement gives, if any; all of them in one transaction."""
        raise NotImplementedError


# ---- in a SQLite file, for consumers on one machine

_BUSY_MS: Final = 5_000
_SQLITE_TABLE: Final = """
CREATE TABLE IF NOT EXISTS idempotency_keys (
    key TEXT PRIMARY KEY, is_done INTEGER NOT NULL, message_id TEXT NOT NULL, token INTEGER NOT NULL,
    until_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idempotency_keys_by_end ON idempotency_keys (until_ms);
"""
# Each claim clears away a little of what has run out, so that the file never needs a sweep.
_CLEAR: Final = """
DELETE FROM idempotency_keys WHERE key IN (
    SELECT key FROM idempotency_keys WHERE until_ms <= :now_ms AND key <> :key ORDER BY until_ms LIMIT 8)
"""


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class SqliteIdempotency(_SqlIdempotency):
    """Keeps the contract on one file; processes of one machine may share it. What is finished is on disk."""

    _clear = (_CLEAR,)
    _words: Mapping[str, str] = {
        "table": "idempotency_keys",
        "until": "until_ms",
        "now": ":now_ms",
        "later": ":now_ms + :ms",
        "left_ms": "until_ms - :now_ms",
        **{name: f":{name}" for name in ("key", "message_id", "token")},
    }

    def __init__(self, path: str | Path, *, now_ms: Callable[[], int] = _wall_ms) -> None:
        self._path = str(path)
        self._now_ms = now_ms
        self._connection: apsw.Connection | None = None
        # One thread: SQLite writes one after another anyway, and the event loop must not wait for the disk.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="veil-idempotency")

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def _run(self, key: str, holder: Holder, ms: int, *statements: str) -> Any:
        values = {
            "key": key,
            "message_id": holder.message_id,
            "token": holder.token,
            "ms": ms,
            "now_ms": self._now_ms(),
        }
        # Shielded: a transaction that has begun is finished even if the caller is cancelled.
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._thread, self._transaction, statements, values))

    def _transaction(self, statements: Sequence[str], values: dict[str, Any]) -> Any:
        db = self._connection or self._open()
        db.execute("BEGIN IMMEDIATE")
        try:
            rows = [db.execute(sql.format_map(self._words), values).fetchone() for sql in statements]
            db.execute("COMMIT")
        except BaseException:
            if not db.getautocommit():
                db.execute("ROLLBACK")
            raise
        return rows[0]

    def _open(self) -> apsw.Connection:
        import apsw

        db = apsw.Connection(self._path)
        db.set_busy_timeout(_BUSY_MS)
        db.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
        db.execute(_SQLITE_TABLE)
        self._connection = db
        return db

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


# ---- in PostgreSQL, for consumers on many machines; needs `psycopg` 3

_POSTGRES_TABLE: Final = """
CREATE TABLE IF NOT EXISTS veil_idempotency_keys (
    key text PRIMARY KEY, is_done boolean NOT NULL, message_id text NOT NULL, token bigint NOT NULL,
    until timestamptz NOT NULL)
"""


class PostgresIdempotency(_SqlIdempotency):
    """Keeps the contract on a table of its own, by the database's clock. Rows that ran out are yours to clear away:
    `DELETE FROM veil_idempotency_keys WHERE until < now()`."""

    _words: Mapping[str, str] = {
        "table": "veil_idempotency_keys",
        "until": "until",
        "now": "clock_timestamp()",
        "later": "clock_timestamp() + %(ms)s * interval '1 ms'",
        "left_ms": "(extract(epoch FROM until - clock_timestamp()) * 1000)::bigint",
        **{name: f"%({name})s" for name in ("key", "message_id", "token")},
    }

    def __init__(self, conninfo: str) -> None:
        try:
            self._psycopg: Any = importlib.import_module("psycopg")
        except ImportError:
            raise ImportError("PostgresIdempotency needs psycopg 3: pip install 'psycopg[binary]'") from None
        self._conninfo = conninfo
        self._connection: Any = None
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _run(self, key: str, holder: Holder, ms: int, *statements: str) -> Any:
        async with self._lock:
            try:
                if self._connection is None:
                    self._connection = await self._psycopg.AsyncConnection.connect(
                        self._conninfo, autocommit=True
                    )
                    await self._connection.execute(_POSTGRES_TABLE)
                values = {"key": key, "message_id": holder.message_id, "token": holder.token, "ms": ms}
                cursor = await self._connection.execute(statements[0].format_map(self._words), values)
                return await cursor.fetchone() if cursor.description else None
            except BaseException:
                # Broken or in an unknown state, also when cancelled on the way: the next call opens another.
                broken, self._connection = self._connection, None
                if broken is not None:
                    await broken.close()
                raise
