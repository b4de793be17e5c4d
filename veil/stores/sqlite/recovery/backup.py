"""Copy the data to one file while the server runs, and make a data directory from such a file.

A backup is the state of one instant, a whole SQLite database without a log beside it. While it is written the server
goes on; only its log cannot start over until the copy is done, and grows meanwhile.

What a restore means for time: the backup carries the engine clock's mark, and the server goes on from it as after any
stop, by the time since boot on the same boot of the same machine, else by the wall clock (and never backwards). So a
window that was open at the backup lapses when it would have lapsed, a delay and a retention end when they would have
ended. Everything since the backup is undone: what was deleted since is back, what was sent since is gone. Receipts go on
working under the same key; `leave_gap` says why none is written twice.

The journal starts over under another id, with an empty outbox: what waited there at the backup was exported since by the
store that the backup was taken of, or will be, and must not be told twice.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import apsw

from veil.core.errors import StoreDamaged, StoreError
from veil.stores.sqlite.data_directory import DATABASE, locked, sync_path
from veil.stores.sqlite.database import Q
from veil.stores.sqlite.opening import fold_lease_log, new_journal_id
from veil.stores.sqlite.recovery.verify import connect_to_read, looking_at, verify_file

# How far numbers jump ahead where data went back in time.
NUMBER_GAP = 1_000
# What makes a directory one that holds data, whether or not all of it is there.
_DATA_FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-journal")


def backup(data_dir: Path, out: Path) -> None:
    """Write a consistent copy of the data to `out`, which must not exist; raises StoreError and leaves nothing then."""
    with looking_at(data_dir) as view:
        if view.wal is not None and view.wal.verdict == "damaged":
            raise StoreDamaged(
                f"{data_dir}: {view.wal.explain()} A copy would lack that data; run 'veil verify'"
            )
        _write_whole(out, lambda unfinished: _copy(view.connection, unfinished))


def restore(source: Path, data_dir: Path) -> None:
    """Make a data directory from a backup; raises StoreError if there is data already or the backup is not sound."""
    if not source.is_file():
        raise StoreError(f"{source}: expected a file that veil backup wrote, and there is no such file")
    findings = verify_file(source)
    if not findings.is_sound:
        raise StoreDamaged(f"{source} is not a sound backup: {'; '.join(findings.lines())}")
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(data_dir):
        present = [name for name in _DATA_FILES if (data_dir / name).exists()]
        if present:
            raise StoreError(
                f"{data_dir} holds data already ({', '.join(present)}): restore into an empty directory"
            )
        _write_whole(data_dir / DATABASE, lambda unfinished: _copy_as_new(source, unfinished))


def _copy(connection: apsw.Connection, target: Path) -> None:
    # One statement, so one instant. It reads every row and builds every index again: no page is carried over unread.
    connection.execute("VACUUM INTO ?", (str(target),))


def _copy_as_new(source: Path, target: Path) -> None:
    reader = connect_to_read(source)
    try:
        _copy(reader, target)
    finally:
        reader.close()
    writer = apsw.Connection(str(target))
    try:
        writer.pragma("journal_mode", "off")  # a copy that was interrupted is thrown away
        with writer:
            fold_lease_log(writer)
            leave_gap(writer)
            begin_journal(writer)
    finally:
        writer.close()


def _write_whole(target: Path, write: Callable[[Path], None]) -> None:
    """Have a file written under another name and give it its own once it is on disk; never over another file."""
    if target.exists():
        raise StoreError(f"{target} exists already, and nothing is written over it")
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    try:
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    try:
        write(unfinished)
        sync_path(unfinished)
        _give_name(unfinished, target)
    except FileExistsError as error:
        raise StoreError(f"{target} exists already, and nothing is written over it") from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise StoreDamaged(f"the data cannot be read: {error}; run 'veil verify'") from error
    except apsw.Error as error:
        raise StoreError(f"{target} could not be written: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    sync_path(target.parent)


def _give_name(unfinished: Path, target: Path) -> None:
    try:
        os.link(unfinished, target)  # unlike a rename, it refuses a name that somebody took meanwhile
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS) or target.exists():
            raise
        unfinished.rename(target)  # a file system without links


def leave_gap(connection: apsw.Connection) -> None:
    """Let delivery numbers and queue ids jump ahead of any that may have been given out since the data was this old.

    After a restore the data knows nothing of the deliveries made since the backup. Counting on from where the backup stood
    would write receipts that are out in the world already, and a consumer of before could touch the lease of one of after.
    Leases that were open go on, since their holder is noted apart; and a receipt from the lost time lies below the jump, so
    where nobody else holds the message it still deletes what its consumer has handled.
    """
    connection.execute("UPDATE message SET delivery = delivery + ?", (NUMBER_GAP,))
    connection.execute("UPDATE sqlite_sequence SET seq = seq + ? WHERE name = 'queue'", (NUMBER_GAP,))
    # A repeated receive would answer with numbers from before the jump. Holds need nothing: they go by the holder while a
    # lease is open, and what has lapsed may have been received in the lost time, so that it counts as lost.
    connection.execute("DELETE FROM attempt")


def begin_journal(connection: apsw.Connection) -> None:
    """An empty outbox under a new journal id, numbered from 1: data that went back in time would give out numbers a second
    time for other events, and under another id nobody mixes the two up."""
    connection.execute("DELETE FROM outbox")
    connection.execute("UPDATE export SET done = 0, last = NULL, day = NULL")
    connection.execute("UPDATE clock_mark SET outbox_last = 0, outbox_bytes = 0")
    connection.execute(Q.write_meta, ("journal_id", new_journal_id()))
