"""Save what can be read of damaged data into a new data directory, and say what was given up.

The damaged files are only read. The log is mended as far as it goes (`wal_scan.copy_mended`); messages are found through every
index and through the table from both ends, then read one by one, so that a spoiled page costs the messages on it and no
others. A message whose body is not what was sent is not put back into its queue, where a consumer would act on it, but
written to `set-aside.jsonl` for a person to judge. Counts, and the rows of groups, are not copied: they are counted
again. The journal starts over, under another id, since the log may have lost numbers that were given out; what waited in the
outbox and can be read goes on in it, except for the rows of an export that was under way: those may be safe already, and rather
than told twice they are given up.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import apsw
import msgspec

from veil.core.errors import StoreDamaged, StoreError
from veil.core.event import unpack
from veil.core.lease import State
from veil.core.message import PRIORITY_DEFAULT, PRIORITY_FIRST, PRIORITY_LAST
from veil.core.queue import QueueSettings
from veil.core.sequence import COUNTER_BITS
from veil.stores.copying.copy import MESSAGE, QUEUE
from veil.stores.sql import UNREADABLE, decode_members, decode_settings, decode_tags, encode_settings
from veil.stores.sqlite.data_directory import DATABASE, DataLock
from veil.stores.sqlite.database import Q
from veil.stores.sqlite.lease_log import folded
from veil.stores.sqlite.opening import connect, fold_lease_log, open_database
from veil.stores.sqlite.recovery.backup import begin_journal, leave_gap
from veil.stores.sqlite.recovery.verify import CHECKS, wrong_content, wrong_state
from veil.stores.sqlite.recovery.wal_scan import Mending, copy_mended

SET_ASIDE = "set-aside.jsonl"
_ACCOUNT, _REGION = "000000000000", "us-east-1"  # for a queue of which nothing but messages is left
# Tables that are copied as far as they can be read; the others are rebuilt or read with care.
_PLAIN_TABLES = ("queue_rest", "deduplication", "move_task")
_TEXTS = (
    "message_id", "group_name", "deduplication_id", "dead_letter_source", "trace_header", "sender", "message_type",
    "body_md5", "body",
)  # fmt: skip

# A row of the table by column, as it can be read: texts are bytes, since a flipped bit can make them anything.
SavedMessage = dict[str, Any]


@dataclass(slots=True)
class Salvaged:
    """What was saved, and what was not."""

    log: Mending
    queues: int = 0
    queues_rebuilt: int = 0  # only messages were left of these: name and settings are made up
    messages: int = 0
    set_aside: int = 0  # read, but not what was sent
    given_up: int = 0  # known to have existed, unreadable
    events: int = 0  # of the outbox, which waited to be exported


def salvage(data_dir: Path, out_dir: Path) -> Salvaged:
    """Make a sound data directory at `out_dir` (new or empty) from what can be read; raises StoreError."""
    if not (data_dir / DATABASE).exists():
        raise StoreError(f"{data_dir} holds no store: there is no {DATABASE} in it")
    out_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(out_dir.iterdir()):
        raise StoreError(f"{out_dir} is not empty: salvage into a new directory")
    lock = DataLock(data_dir)
    lock.acquire()
    try:
        with tempfile.TemporaryDirectory(prefix=".salvage-", dir=out_dir) as work:
            return _saved(data_dir, Path(work), out_dir)
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise StoreDamaged(f"{data_dir}: nothing could be read: {error}") from error
    finally:
        lock.release()


def _private(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _saved(data_dir: Path, work: Path, out_dir: Path) -> Salvaged:
    shutil.copyfile(data_dir / DATABASE, work / DATABASE)
    report = Salvaged(copy_mended(data_dir / f"{DATABASE}-wal", work / f"{DATABASE}-wal"))
    damaged = connect(work / DATABASE)
    damaged.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
    fresh = open_database(out_dir)
    try:
        with fresh, os.fdopen(_private(out_dir / SET_ASIDE), "wb") as set_aside:
            _copy_meta(damaged, fresh)
            _copy_queues(damaged, fresh, report)
            _copy_messages(damaged, fresh, report, set_aside)
            for table in _PLAIN_TABLES:
                _copy_plainly(damaged, fresh, table)
            _copy_plainly(damaged, fresh, "lease_log", _is_readable_log)
            fold_lease_log(fresh)
            _copy_holds(damaged, fresh)
            _count_again(fresh)
            _copy_outbox(damaged, fresh, report)
            leave_gap(fresh)  # what the log lost may have been received since
    finally:
        fresh.close()
        damaged.close()
    if not report.set_aside:
        (out_dir / SET_ASIDE).unlink()
    return report


# ---- reading what may not be readable


def _readable(connection: apsw.Connection, query: str, arguments: Sequence[Any] = ()) -> Iterator[Any]:
    """The rows as far as they go."""
    try:
        yield from connection.execute(query, arguments)
    except (apsw.Error, UnicodeDecodeError):
        return


def _known_seqs(damaged: apsw.Connection) -> list[int]:
    """The key of every message that any tree knows of."""
    found: set[int] = set()
    by_age, by_wake = "queue_id {0}, seq {0}", "queue_id {0}, wake_at_ms {0}"
    for source, order in (
        ("message NOT INDEXED", "seq {0}"),
        ("message INDEXED BY visible_alone WHERE state = 0 AND group_name IS NULL AND priority = 8", by_age),
        (
            "message INDEXED BY visible_grouped WHERE state = 0 AND group_name IS NOT NULL AND priority = 8",
            by_age,
        ),
        ("message INDEXED BY ranked_by_age WHERE state = 0 AND priority <> 8", by_age),
        # As they were before version 3: whatever the data does not have gives nothing.
        ("message INDEXED BY visible_alone WHERE state = 0 AND group_name IS NULL", by_age),
        ("message INDEXED BY visible_grouped WHERE state = 0 AND group_name IS NOT NULL", by_age),
        ("message INDEXED BY hidden WHERE state <> 0", by_wake),
    ):
        for direction in ("ASC", "DESC"):
            rows = _readable(damaged, f"SELECT seq FROM {source} ORDER BY {order.format(direction)}")  # noqa: S608
            found.update(seq for (seq,) in rows)
    return sorted(found)


# ---- copying


def _copy_meta(damaged: apsw.Connection, fresh: apsw.Connection) -> None:
    for name, value in _readable(damaged, "SELECT name, value FROM meta"):
        fresh.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, value))
    for row in _readable(damaged, "SELECT * FROM clock_mark"):
        fresh.execute("INSERT OR REPLACE INTO clock_mark VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    for (seq,) in _readable(damaged, "SELECT seq FROM sqlite_sequence WHERE name = 'queue'"):
        fresh.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('queue', ?)", (seq,))


def _copy_queues(damaged: apsw.Connection, fresh: apsw.Connection, report: Salvaged) -> None:
    seen: set[int] = set()
    columns, marks = ", ".join(QUEUE.columns), ", ".join("?" * len(QUEUE.columns))
    insert = f"INSERT INTO queue ({columns}) VALUES ({marks})"  # noqa: S608
    for order in ("", "DESC"):
        query = f"SELECT {columns} FROM queue WHERE deleted_at_ms IS NULL ORDER BY id {order}"  # noqa: S608
        for row in _readable(damaged, query):
            queue_id, _, _, _, settings, tags, *_ = row
            if queue_id in seen:
                continue
            try:
                decode_settings(settings)
                decode_tags(tags)
                fresh.execute(insert, row)
            except (*UNREADABLE, apsw.ConstraintError):
                continue  # its messages are kept under a made-up name
            seen.add(queue_id)
            report.queues += 1


def _copy_messages(
    damaged: apsw.Connection, fresh: apsw.Connection, report: Salvaged, set_aside: BinaryIO
) -> None:
    living = {queue_id for (queue_id,) in fresh.execute("SELECT id FROM queue")}
    gone = _readable(damaged, "SELECT id FROM queue WHERE deleted_at_ms IS NOT NULL")
    deleted = {queue_id for (queue_id,) in gone}
    names = MESSAGE.columns
    insert = f"INSERT INTO message ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608
    kept = {name: f"CAST({name} AS BLOB)" for name in _TEXTS}
    if not _has_priorities(damaged):
        kept["priority"] = str(PRIORITY_DEFAULT)
    select = f"SELECT {', '.join(kept.get(name, name) for name in names)} FROM message WHERE seq = ?"  # noqa: S608
    for seq in _known_seqs(damaged):
        row = next(_readable(damaged, select, (seq,)), None)
        if row is None:
            report.given_up += 1
            continue
        message = dict(zip(names, row, strict=True))
        queue_id = message["queue_id"]
        if queue_id in deleted:
            continue
        texts = b"".join(message[name] or b"" for name in _TEXTS[:-2])
        if wrong := wrong_content(message["attributes"], message["body_md5"], message["body"], texts):
            report.set_aside += 1
            set_aside.write(_described(message, wrong) + b"\n")
            continue
        if queue_id not in living:
            _make_up_queue(fresh, message)
            living.add(queue_id)
            report.queues += 1
            report.queues_rebuilt += 1
        fresh.execute(insert, _sane(message))
        report.messages += 1


def _sane(message: SavedMessage) -> list[Any]:
    """The row with texts as texts, and visible if its lease or delay makes no sense."""
    lease = ("state", "wake_at_ms", "due_at_ms", "delivery", "holder")
    visible: SavedMessage = {"state": int(State.VISIBLE), "wake_at_ms": None, "due_at_ms": None}
    if wrong_state(*(message[name] for name in lease)):
        message |= {**visible, "holder": 0}
    elif message["state"] == State.VISIBLE:
        message |= visible
    if not PRIORITY_FIRST <= message["priority"] <= PRIORITY_LAST:
        message["priority"] = PRIORITY_DEFAULT
    message["body_bytes"] = len(message["body"])
    return [
        value.decode() if name in _TEXTS and value is not None else value for name, value in message.items()
    ]


def _has_priorities(damaged: apsw.Connection) -> bool:
    """Whether the data is of version 3 or later."""
    try:
        damaged.execute("SELECT priority FROM message LIMIT 0").fetchall()
    except apsw.Error:
        return False
    return True


def _make_up_queue(fresh: apsw.Connection, message: SavedMessage) -> None:
    # Without a deduplication id it cannot have been FIFO.
    fifo = message["group_name"] is not None and message["deduplication_id"] is not None
    queue_id, sent_ms = message["queue_id"], message["sent_wall_ms"]
    name = f"salvaged-{queue_id}" + (".fifo" if fifo else "")
    fresh.execute(
        "INSERT INTO queue (id, region, account, name, settings, tags, scope, created_wall_ms, modified_wall_ms)"
        " VALUES (?, coalesce((SELECT region FROM queue LIMIT 1), ?), coalesce((SELECT account FROM queue LIMIT 1), ?),"
        " ?, ?, '{}', 'queue', ?, ?)",
        (queue_id, _REGION, _ACCOUNT, name, encode_settings(QueueSettings(fifo=fifo)), sent_ms, sent_ms),
    )


def _described(message: SavedMessage, wrong: str) -> bytes:
    told = {"queue": message["queue_id"], "group": message["group_name"], "wrong": wrong}
    for name in ("seq", "message_id", "receive_count", "sent_wall_ms", "body_md5", "body"):
        told[name] = message[name]
    for name, value in told.items():
        if isinstance(value, bytes):
            told[name] = value.decode("utf-8", "backslashreplace")
    return msgspec.json.encode(told)


def _copy_plainly(
    damaged: apsw.Connection,
    fresh: apsw.Connection,
    table: str,
    keep: Callable[[dict[str, Any]], bool] = lambda row: True,
) -> None:
    # By name: data of an older version has fewer columns.
    columns = [name for _, name, *_ in _readable(damaged, f"PRAGMA table_info({table})")]
    named, marks = ", ".join(columns), ", ".join("?" * len(columns))
    for row in _readable(damaged, f"SELECT {named} FROM {table}"):  # noqa: S608
        if keep(dict(zip(columns, row, strict=True))):
            fresh.execute(f"INSERT OR IGNORE INTO {table} ({named}) VALUES ({marks})", row)  # noqa: S608


def _is_readable_log(row: dict[str, Any]) -> bool:
    """A row that is not costs its messages their leases: they are visible."""
    try:
        folded([row["packed"]])
    except UNREADABLE:
        return False
    return True


def _copy_holds(damaged: apsw.Connection, fresh: apsw.Connection) -> None:
    """A hold that cannot be read deletes nothing when it is acknowledged: its messages come again, none is lost."""
    living = {queue_id for (queue_id,) in fresh.execute("SELECT id FROM queue")}

    def is_whole(hold: dict[str, Any]) -> bool:
        try:
            decode_members(hold["members"])
        except UNREADABLE:
            return False
        return hold["queue_id"] in living

    _copy_plainly(damaged, fresh, "hold", is_whole)
    _copy_plainly(damaged, fresh, "stream", lambda stream: stream["queue_id"] in living)
    fresh.execute("UPDATE hold SET lost = 0 WHERE lost < 0")
    fresh.execute("UPDATE stream SET closed = -1 WHERE closed < -1")
    # Of a stream that is lost the holds are left, which can be acknowledged by whoever opens it again.
    fresh.execute(
        "INSERT OR IGNORE INTO stream (queue_id, name, closed, used_at_ms)"
        " SELECT queue_id, stream, -1, coalesce((SELECT engine_ms FROM clock_mark), 0) FROM hold"
    )


def _copy_outbox(damaged: apsw.Connection, fresh: apsw.Connection, report: Salvaged) -> None:
    begin_journal(fresh)
    number = size = 0
    for done, last in _readable(damaged, "SELECT done, last FROM export"):
        after = done if last is None else last
        query = "SELECT at_ms, packed FROM outbox WHERE number > ? ORDER BY number"
        for at_ms, packed in _readable(damaged, query, (after,)):
            try:
                events = len(unpack(packed).events)
            except UNREADABLE:
                continue
            number, size = number + 1, size + len(packed)
            fresh.execute(Q.add_to_outbox, (number, at_ms, packed))
            report.events += events
    fresh.execute("UPDATE clock_mark SET outbox_last = ?, outbox_bytes = ?", (number, size))


def _count_again(fresh: apsw.Connection) -> None:
    for query in (CHECKS.count_messages, CHECKS.count_groups, CHECKS.mark_ranked):
        fresh.execute(query)
    # Where the mark is lost, the newest message says how far time had come.
    fresh.execute(
        "INSERT OR IGNORE INTO clock_mark (id, engine_ms, wall_ms, boot_ms, boot_id, last_seq, outbox_last, outbox_bytes)"
        " SELECT 1, seq >> ?, sent_wall_ms, 0, '', seq, 0, 0 FROM message ORDER BY seq DESC LIMIT 1",
        (COUNTER_BITS,),
    )
    fresh.execute(
        "UPDATE clock_mark SET last_seq = max(last_seq, coalesce((SELECT max(seq) FROM message), 0),"
        " coalesce((SELECT max(turn) FROM lane), 0))"
    )
