"""Group commit: operations are applied as they arrive, and one fsync answers all that arrived while the last one ran.

There is one connection and one open transaction. An operation is applied to it at once, on the event loop: a few
microseconds of SQLite each, and no lock to fight over (a writer thread would have to win the interpreter's lock back from
a busy event loop after every statement). When no sync is under way the transaction is committed once a turn of the loop has
brought no further operation, so that requests which wait in their sockets share it; then the WAL is synced, and only after
that are the operations answered. On a disk that has been quick lately this happens where it stands: to wake a thread, and to
take the interpreter back from it, would cost as much as the disk does (a tenth of a single request's CPU at 32 connections). A
slower disk works in a thread, and meanwhile the next group is already being applied.

A checkpoint moves the WAL into the database and syncs that, which may take long on a bad disk. It runs on a connection and in a
thread of its own, while the WAL goes on taking operations. The WAL can only start over once everything in it was moved, so
under steady load the last few pages are moved with the operations held up, right after a checkpoint that was quick. That takes
two syncs of the disk whatever it moves, some ten milliseconds, so it waits until the WAL is several checkpoints long.

`synchronous=NORMAL` together with our own fdatasync of the WAL before any answer gives what `FULL` gives: SQLite itself
still syncs the WAL before it checkpoints and the database before it starts the WAL over. A failed sync is never
retried, because the kernel may have dropped the pages it could not write: the store fails and the server stops.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import apsw

from veil.core.clock import DOUBT_MIN_MS, LeaseTime, TroubleKind
from veil.core.errors import StoreBusy, StoreFailed, StoreFull, VeilError
from veil.stores.commit_stats import CommitStats
from veil.stores.sqlite.database import AVAILABLE, Announcements, Database

T = TypeVar("T")
Work = Callable[..., Any]
# The work, its arguments, who waits, its result.
_Entry = tuple[Work, tuple[Any, ...], "asyncio.Future[Any]", Any]

_log = logging.getLogger(__name__)

# Pages that are not moved yet; keeps short what a checkpoint costs, and what a damaged WAL could cost.
CHECKPOINT_WAL_PAGES = 2_000
# From here on the WAL starts over. When it did so after every checkpoint, a quick stream of holds was held up for a tenth of
# its time.
RESTART_WAL_PAGES = 8_000
# A commit costs as much as some ten operations, so it waits for as long as each turn of the loop brings more of them; a group
# of so many need not.
GROUP_ENOUGH = 64
# A disk whose syncs of late took less than this on average is quick: the loop may wait for it.
QUICK_SYNC_S = 0.000_4
# The weight of the latest sync in that average, and for how much a single one counts at most.
_LATEST = 0.1
_SYNC_COUNTED_MAX_S = 4 * QUICK_SYNC_S
# While checkpoints are slow the WAL grows up to here; then operations have to wait for one after all.
WAL_PAGES_MAX = 32_000
_QUICK_S = 0.1
_FOLD_WITHIN_MS = 5_000
_SLOW_AGAIN_S = 1.0  # after which a checkpoint is tried again
# After these the disk cannot be believed any more. SQLite syncs too, when it starts its WAL over, and a COMMIT that failed
# there would succeed the second time, without being on disk.
_FATAL = (apsw.IOError, apsw.CorruptError, apsw.NotADBError, apsw.CantOpenError, apsw.ReadOnlyError)


class GroupCommit:
    """Runs operations in shared transactions on one connection; an operation's future resolves when it is durable."""

    def __init__(
        self,
        db: Database,
        wal: Path,
        checkpointer: apsw.Connection,
        *,
        after_rollback: Callable[[], None],
        on_full: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        stats: CommitStats,
        lease_time: LeaseTime,
    ) -> None:
        self._db = db
        connection = self._connection = db.connection
        self._execute = db.execute
        self._after_rollback = after_rollback
        self._on_full = on_full
        self._on_failure = on_failure
        self._stats = stats
        self._lease_time = lease_time
        lease_time.wait_under_way = self._wait_under_way
        self._wal_pages = 0
        self._moved_pages = 0  # of them, by the latest checkpoint beside the operations
        # Takes the place of SQLite's own checkpoints, which would block the loop.
        connection.set_wal_hook(self._note_wal_pages)
        self._wal_fd = os.open(wal, os.O_RDONLY)
        os.fdatasync(self._wal_fd)  # what the opening wrote: one commit is synced before the next is made
        # A thread of our own and a bare queue: an executor's futures cost a small group more than its sync does.
        self._syncs: SimpleQueue[Callable[[], bool] | None] = SimpleQueue()
        self._sync_thread = Thread(target=self._run_syncs, name="veil-sync", daemon=True)
        self._sync_thread.start()
        self._checkpointer = checkpointer
        # Now, since its thread may be using it when the store fails.
        checkpointer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._checkpoint_thread = ThreadPoolExecutor(1, thread_name_prefix="veil-checkpoint")
        self._checkpointing = False
        self._not_before_s = 0.0  # that the next checkpoint is tried
        self._can_finish = False  # one was quick, and what came meanwhile is little
        self._loop = asyncio.get_running_loop()
        self._group: list[_Entry] = []  # applied in the open transaction
        self._in_sync: list[_Entry] = []  # committed, being synced
        self._happened: Announcements = []  # to be announced when they are
        self._committed_s = 0.0  # when they were committed
        self._mean_sync_s = QUICK_SYNC_S  # of late
        self._to_redo: list[_Entry] = []  # rolled back, to be redone when the sync is over
        # Arrived while the connection was lent out.
        self._waiting: list[tuple[Work, tuple[Any, ...], asyncio.Future[Any], bool]] = []
        self._open = False
        self._syncing = False
        # The end of a checkpoint has the connection, or it waits for the sync before it can go on.
        self._lent = False
        self._scheduled = False
        self._gathered = 0  # operations that the group had a turn of the loop ago
        self._latest_size = 0  # of the group before
        self._failure: BaseException | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, work: Callable[..., T], *given: Any, looks: bool = False) -> asyncio.Future[T]:
        """Do the work, with what it is given, in the open transaction; the future has its result once that is on disk.

        The work runs to its end without yielding. What it raises as a VeilError must be raised before it changed more than
        where leases are kept: the transaction it shares goes on. Work that only `looks` promises nothing by its result, so
        where it changed nothing it is answered at once. Other work waits even then for what it has seen: the second send of
        a FIFO duplicate must not be acknowledged before the first is on disk.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        if self._failure is not None:
            future.set_exception(StoreFailed(str(self._failure)))
        elif self._lent:
            self._waiting.append((work, given, future, looks))
        else:
            self._apply(work, given, future, looks)
        return future

    async def drain(self) -> None:
        """Return once nothing is under way."""
        while not self._idle.is_set():
            await self._idle.wait()

    async def close(self) -> None:
        """Finish everything, fold the WAL into the database and stop the thread."""
        await self.drain()
        # What comes now would use the connection beside the thread that closes it.
        failure, self._failure = self._failure, self._failure or StoreFailed("the store is closed")
        self._syncs.put(None)
        await asyncio.to_thread(self._end, failure is None)

    def _end(self, fold_wal: bool) -> None:
        self._sync_thread.join()
        self._checkpoint_thread.shutdown(wait=True)
        self._checkpointer.close()
        if fold_wal:
            # On a full disk the WAL keeps what it has, which is synced; the next start reads it.
            with suppress(apsw.FullError):
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        os.close(self._wal_fd)

    # ---- applying

    def _apply(self, work: Work, given: tuple[Any, ...], future: asyncio.Future[Any], looks: bool) -> None:
        try:
            if not self._open:
                self._execute("BEGIN IMMEDIATE")
                self._open = True
                self._idle.clear()
            before = self._changes()
            result = work(*given)
            if self._db.regrouped:
                self._db.end_operation()
        except VeilError as refusal:
            future.set_exception(refusal)
            if self._changes() != before:  # leases were written into their rows, and are known to be there
                self._group.append((work, given, future, None))
            self._schedule()
            return
        except Exception as error:
            self._redo_one_by_one([*self._group, (work, given, future, None)], error)
            return
        if self._changes() != before or (self._group and not looks):
            self._group.append((work, given, future, result))
        elif self._syncing and not looks:
            self._in_sync.append((work, given, future, result))
        else:
            # Nothing was changed, and all that it could see is on disk.
            future.set_result(result)
        self._schedule()

    def _changes(self) -> int:
        """Rises with every change of a row, and of a lease that is not in its row."""
        return self._connection.total_changes() + self._db.lease_log.noted

    def _schedule(self) -> None:
        if not self._scheduled and not self._syncing:
            self._scheduled = True
            self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        self._scheduled = False
        if not self._open or self._syncing or self._lent or self._failure is not None:
            return
        if self._gathered < len(self._group) < GROUP_ENOUGH and self._latest_size + len(self._group) > 2:
            # The loop's last turn brought some, so its next one may bring more; but not to a client that is alone.
            self._gathered = len(self._group)
            self._schedule()
            return
        self._gathered, self._latest_size = 0, len(self._group)
        group, self._group = self._group, []
        happened: Announcements = []
        try:
            if group:
                happened = self._db.before_commit()
                self._execute("COMMIT")
            else:
                self._execute("ROLLBACK")
        except Exception as error:
            self._redo_one_by_one(group, error)
            return
        self._open = False
        if group:
            self._start_sync(group, happened)
        else:
            self._rest()

    # ---- making durable

    def _start_sync(self, group: list[_Entry], happened: Announcements) -> None:
        self._syncing = True
        self._in_sync, self._happened = group, happened
        self._committed_s = time.perf_counter()
        # Between two transactions is the only moment at which the connection can be lent out.
        self._lent = not self._checkpointing and (self._can_finish or self._wal_pages >= WAL_PAGES_MAX)
        self._can_finish &= not self._lent
        if self._lent or self._mean_sync_s >= QUICK_SYNC_S:
            self._syncs.put(self._sync_and_checkpoint if self._lent else self._sync)
        else:
            self._synced(_outcome_of(self._sync))

    def _run_syncs(self) -> None:
        """What the thread does."""
        while (job := self._syncs.get()) is not None:
            outcome = _outcome_of(job)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._synced, outcome)

    def _wait_under_way(self) -> tuple[TroubleKind, int] | None:
        """Since when renewals wait for the disk."""
        return (TroubleKind.DISK, self._db.marked_ms) if self._syncing else None

    def _synced(self, outcome: bool | BaseException) -> None:
        group, happened = self._in_sync, self._happened
        self._syncing = self._lent = False
        now_ms, since_ms = self._db.clock.now_ms(), self._db.marked_ms
        if now_ms - since_ms > DOUBT_MIN_MS:
            self._lease_time.waited(TroubleKind.DISK, since_ms, now_ms)
        self._in_sync = []  # results may be megabytes, and the next sync may be long in coming
        error = outcome if isinstance(outcome, BaseException) else self._failure
        if error is not None:
            self._fail(error, group)
            return
        self._stats.record(len(group), time.perf_counter() - self._committed_s)
        for _, _, future, result in group:
            if not future.done():  # the caller may have gone away meanwhile
                future.set_result(result)
        self._announce(happened)
        if outcome:
            self._on_full()
        self._look_at_wal()
        if self._to_redo or self._waiting:
            self._catch_up()
        if self._open:
            self._schedule()
        else:
            self._rest()

    def _announce(self, happened: Announcements) -> None:
        """Tell the owner what is durable now."""
        for event, queue_id, count in happened:
            if event == AVAILABLE:
                self._db.owner.events.messages_available(queue_id, count)
            else:
                self._db.owner.events.counted(event, queue_id, count)

    def _catch_up(self) -> None:
        """The connection is ours again: do what could not be done meanwhile."""
        to_redo, self._to_redo = self._to_redo, []
        self._redo_each(to_redo)
        waiting, self._waiting = self._waiting, []
        for work, given, future, looks in waiting:
            if future.done():
                continue
            if self._failure is not None:
                future.set_exception(StoreFailed(str(self._failure)))
            elif self._lent:
                self._waiting.append((work, given, future, looks))
            else:
                self._apply(work, given, future, looks)

    def _rest(self) -> None:
        if not self._waiting:
            self._idle.set()

    def _sync(self) -> bool:
        began_s = time.perf_counter()
        os.fdatasync(self._wal_fd)
        took_s = min(time.perf_counter() - began_s, _SYNC_COUNTED_MAX_S)
        self._mean_sync_s += _LATEST * (took_s - self._mean_sync_s)
        return False

    def _sync_and_checkpoint(self) -> bool:
        """Sync, and then move the rest of the WAL into the database; True when the disk had no room for that."""
        os.fdatasync(self._wal_fd)
        try:
            # PASSIVE: a reader (a backup, a look from outside) only postpones the rest to the next time.
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.FullError:
            return True  # the WAL has it all, and that is synced: nothing is lost by waiting for room
        return False

    def _look_at_wal(self) -> None:
        """Begin a checkpoint beside the operations, where the WAL has grown long."""
        if self._wal_pages < CHECKPOINT_WAL_PAGES or self._checkpointing or self._can_finish:
            return
        if self._db.reserve.is_released:
            # The disk is full: a WAL that goes on growing would eat up the room that receives and deletes are left with.
            self._can_finish = True
        elif self._wal_pages - self._moved_pages < CHECKPOINT_WAL_PAGES:
            return
        elif (started := time.monotonic()) >= self._not_before_s:
            self._checkpointing = True
            checkpoint = self._loop.run_in_executor(self._checkpoint_thread, self._checkpoint)
            checkpoint.add_done_callback(lambda done: self._checkpointed(started, done))

    def _checkpoint(self) -> tuple[int, int]:
        return self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _checkpointed(self, started: float, done: asyncio.Future[tuple[int, int]]) -> None:
        self._checkpointing = False
        now_s, error = time.monotonic(), done.exception()
        if isinstance(error, apsw.FullError):
            self._on_full()  # the WAL has it all, and that is synced: nothing is lost by waiting for room
        elif isinstance(error, _FATAL):
            self._fail(error, [])
        if error is None:
            _, moved = done.result()
            # More than there is: the WAL has started over since.
            self._moved_pages = moved if moved <= self._wal_pages else 0
        if error is not None or now_s - started > _QUICK_S:
            self._not_before_s = now_s + _SLOW_AGAIN_S
        else:
            # Where nothing came meanwhile the next transaction starts the WAL over by itself.
            self._can_finish = self._moved_pages < self._wal_pages and self._wal_pages >= RESTART_WAL_PAGES

    def _note_wal_pages(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        if pages <= self._wal_pages:  # it has started over
            self._moved_pages = 0
        self._wal_pages = pages
        return apsw.SQLITE_OK

    # ---- when something goes wrong

    def _redo_one_by_one(self, entries: list[_Entry], cause: Exception) -> None:
        """The shared transaction cannot go on: undo it, and give each operation a transaction of its own, so that only
        those fail that cannot work."""
        self._group = []
        if isinstance(cause, _FATAL):
            self._fail(cause, entries)
            return
        try:
            self._roll_back()
        except Exception as error:
            self._fail(error, entries)
            return
        if isinstance(cause, apsw.FullError):
            self._on_full()
        else:
            _log.warning("a group of %d operations is redone one by one: %s", len(entries), cause)
        if self._syncing:
            # Not while the last commit is being synced: of two that are not on disk, a torn tail can spoil both.
            self._to_redo, self._lent = entries, True
        else:
            self._redo_each(entries)
            self._rest()

    def _fold_wal(self) -> None:
        """Make room on a full disk: what the WAL has goes into the database, and the WAL starts over instead of growing. Waits
        for a checkpoint that is under way, and moves into the room that the reserve has given up."""
        self._connection.set_busy_timeout(_FOLD_WITHIN_MS)
        try:
            with suppress(apsw.FullError, apsw.BusyError):
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            self._connection.set_busy_timeout(0)

    def _redo_each(self, entries: list[_Entry]) -> None:
        try:
            for work, given, future, _ in entries:
                if not future.done():
                    self._do_alone(work, given, future)
        except Exception as error:
            self._fail(error, entries)

    def _do_alone(
        self, work: Work, given: tuple[Any, ...], future: asyncio.Future[Any], *, has_room: bool = False
    ) -> None:
        try:
            self._execute("BEGIN IMMEDIATE")
            before = self._changes()
            result = work(*given)
            self._db.end_operation()
            happened = self._db.before_commit()
            self._execute("COMMIT")
        except VeilError as refusal:
            # To read the state again takes up to a tenth of a second, and on a full disk hundreds of sends may be refused.
            if self._changes() == before:
                self._execute("ROLLBACK")
            else:
                self._roll_back()
            future.set_exception(refusal)
        except apsw.FullError as full:
            self._roll_back()
            self._on_full()
            if not has_room:
                self._fold_wal()
                self._do_alone(work, given, future, has_room=True)
            else:
                future.set_exception(StoreFull(f"no room left on the device: {full}"))
        except apsw.BusyError as busy:
            self._roll_back()
            future.set_exception(StoreBusy(f"somebody else writes to the database: {busy}"))
        except _FATAL:
            raise
        except Exception as error:
            self._roll_back()
            _log.exception("an operation failed and was undone")
            future.set_exception(error)
        else:
            # On the loop, which is right here: one commit is synced before the next is made (wal_scan.py relies on it).
            os.fdatasync(self._wal_fd)
            future.set_result(result)
            self._announce(happened)

    def _roll_back(self) -> None:
        self._open = False
        if self._connection.in_transaction:
            self._execute("ROLLBACK")
        self._after_rollback()

    def _fail(self, error: BaseException, entries: list[_Entry]) -> None:
        """Stop for good: what is on disk is unknown until it is read again, so nothing more is answered with success."""
        first, self._failure = self._failure is None, self._failure or error
        self._lent = False
        unanswered = [future for _, _, future, _ in (*entries, *self._group, *self._to_redo, *self._waiting)]
        self._group, self._to_redo, self._waiting = [], [], []
        for future in unanswered:
            if not future.done():
                future.set_exception(StoreFailed(f"the store cannot write: {error}"))
        # Closing must not touch the files: the next start judges them as they are.
        self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._idle.set()
        if first:
            self._on_failure(error)


def _outcome_of(job: Callable[[], bool]) -> bool | BaseException:
    try:
        return job()
    except BaseException as error:
        return error
