"""Save what can be read of damaged data into a new data directory, and say what was given up.

The damaged files are only read. The log is mended as far as it goes (mended_wal.py); messages are found through every
index and through the table from both ends, then read one by one, so that a spoiled page costs the messages on it and no
others. A message whose body is not what was sent is not put back into its queue, where a consumer would act on it, but
written to `set-aside.jsonl` for a person to judge. Counts and lanes are not copied: they are counted anew. The journal
begins anew, under another id, since the log may have lost numbers that were given out; what waited in the outbox and can
be read goes on in it, except for the rows of an export that was under way: those may be safe already, and rather than told
twice they are given up.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import apsw
import msgspec

from veil.core.errors import StoreDamaged, StoreError
from veil.core.event import unpack
from veil.core.lease import State
from veil.core.priority import PRIORITY_DEFAULT, PRIORITY_FIRST, PRIORITY_LAST
from veil.core.queue import QueueSettings
from veil.stores.codec import decode_settings, decode_tags, encode_settings
from veil.stores.sqlite.data_lock import DataLock
from veil.stores.sqlite.holds import decode_members
from veil.stores.sqlite.mended_wal import Mending, copy_mended
from veil.stores.sqlite.new_journal import begin_journal
from veil.stores.sqlite.number_gap import leave_gap
from veil.stores.sqlite.opening import DATABASE, connect, open_database
from veil.stores.sqlite.tables import Q
from veil.stores.sqlite.verify import CHECKS, UNREADABLE, wrong_content, wrong_state

SET_ASIDE = "set-aside.jsonl"
_ACCOUNT, _REGION = "000000000000", "us-east-1"  # for a queue of which nothing but messages is left
# Tables that are copied as far as they can be read; the others are rebuilt or read with care.
_PLAIN_TABLES = ("queue_rest", "deduplication", "move_task")
_COLUMNS = (
    "seq, queue_id, state, wake_at_ms, due_at_ms, received_at_ms, delivery, holder, receive_count,"
    " first_received_wall_ms, sent_wall_ms, CAST(message_id AS BLOB), CAST(group_name AS BLOB),"
    " CAST(deduplication_id AS BLOB), CAST(dead_letter_source AS BLOB), CAST(trace_header AS BLOB),"
    " CAST(sender AS BLOB), CAST(message_type AS BLOB), body_bytes, attributes, CAST(body_md5 AS BLOB),"
    " CAST(body AS BLOB)"
)
_TEXTS = slice(11, 18)
_BODY_BYTES, _ATTRIBUTES, _BODY_MD5, _BODY, _PRIORITY = 18, 19, 20, 21, 22
_QUEUE_COLUMNS = 12  # of version 1; what came later is found anew


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

    def __str__(self) -> str:
        return (
            f"{self.messages:,} messages in {self.queues:,} queues saved ({self.queues_rebuilt:,} queues under made-up "
            f"names), {self.set_aside:,} damaged messages set aside in {SET_ASIDE}, {self.given_up:,} given up; "
            f"{self.events:,} events for a new journal; "
            f"log: {self.log.frames:,} frames read, {self.log.mended:,} mended, {self.log.doubtful:,} doubtful"
        )


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


def _saved(data_dir: Path, work: Path, out_dir: Path) -> Salvaged:
    shutil.copyfile(data_dir / DATABASE, work / DATABASE)
    report = Salvaged(copy_mended(data_dir / f"{DATABASE}-wal", work / f"{DATABASE}-wal"))
    damaged = connect(work / DATABASE)
    damaged.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
    fresh = open_database(out_dir)
    try:
        with fresh, (out_dir / SET_ASIDE).open("wb") as set_aside:
            _copy_meta(damaged, fresh)
            _copy_queues(damaged, fresh, report)
            _copy_messages(damaged, fresh, report, set_aside)
            for table in _PLAIN_TABLES:
                _copy_plainly(damaged, fresh, table)
            _copy_holds(damaged, fresh)
            _count_anew(fresh)
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
    for source in (
        "message NOT INDEXED",
        "message INDEXED BY visible_alone WHERE state = 0 AND group_name IS NULL AND priority = 8",
        "message INDEXED BY visible_grouped WHERE state = 0 AND group_name IS NOT NULL AND priority = 8",
        "message INDEXED BY ranked_by_age WHERE state = 0 AND priority <> 8",
        # As they were before version 3: whatever the data does not have gives nothing.
        "message INDEXED BY visible_alone WHERE state = 0 AND group_name IS NULL",
        "message INDEXED BY visible_grouped WHERE state = 0 AND group_name IS NOT NULL",
        "message INDEXED BY hidden WHERE state <> 0",
    ):
        first = "queue_id, seq" if "INDEXED BY" in source else "seq"
        last = "queue_id DESC, seq DESC" if "INDEXED BY" in source else "seq DESC"
        if "hidden" in source:
            first, last = "queue_id, wake_at_ms", "queue_id DESC, wake_at_ms DESC"
        for order in (first, last):
            rows = _readable(damaged, f"SELECT seq FROM {source} ORDER BY {order}")  # noqa: S608
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
    for order in ("", "DESC"):
        query = f"SELECT * FROM queue WHERE deleted_at_ms IS NULL ORDER BY id {order}"  # noqa: S608
        for row in _readable(damaged, query):
            if row[0] in seen:
                continue
            try:
                decode_settings(row[4])
                decode_tags(row[5])
                marks = ", ".join("?" * _QUEUE_COLUMNS)
                fresh.execute(f"INSERT INTO queue VALUES ({marks}, 0)", row[:_QUEUE_COLUMNS])  # noqa: S608
            except (*UNREADABLE, apsw.ConstraintError):
                continue  # its messages are kept under a made-up name
            seen.add(row[0])
            report.queues += 1


def _copy_messages(
    damaged: apsw.Connection, fresh: apsw.Connection, report: Salvaged, set_aside: BinaryIO
) -> None:
    living = {row[0] for row in fresh.execute("SELECT id FROM queue")}
    deleted = {row[0] for row in _readable(damaged, "SELECT id FROM queue WHERE deleted_at_ms IS NOT NULL")}
    insert = f"INSERT INTO message VALUES ({', '.join('?' * 23)})"  # noqa: S608
    columns = f"{_COLUMNS}, {'priority' if _has_priorities(damaged) else PRIORITY_DEFAULT}"
    for seq in _known_seqs(damaged):
        row = next(_readable(damaged, f"SELECT {columns} FROM message WHERE seq = ?", (seq,)), None)  # noqa: S608
        if row is None:
            report.given_up += 1
            continue
        if row[1] in deleted:
            continue
        texts = b"".join(text or b"" for text in row[_TEXTS])
        if wrong := wrong_content(row[_ATTRIBUTES], row[_BODY_MD5], row[_BODY], row[11], texts):
            report.set_aside += 1
            set_aside.write(_described(row, wrong) + b"\n")
            continue
        if row[1] not in living:
            _make_up_queue(fresh, row)
            living.add(row[1])
            report.queues += 1
            report.queues_rebuilt += 1
        fresh.execute(insert, _sane(row))
        report.messages += 1


def _sane(row: Any) -> list[Any]:
    """The row with texts as texts, and visible if its lease or delay makes no sense."""
    values = [
        value.decode() if isinstance(value, bytes) and at != _ATTRIBUTES else value
        for at, value in enumerate(row)
    ]
    values[_BODY_BYTES] = len(row[_BODY])
    if not PRIORITY_FIRST <= row[_PRIORITY] <= PRIORITY_LAST:
        values[_PRIORITY] = PRIORITY_DEFAULT
    if wrong_state(row[2], row[3], row[4], row[6], row[7]):
        values[2], values[3], values[4], values[7] = int(State.VISIBLE), None, None, 0
    elif row[2] == State.VISIBLE:
        values[3] = values[4] = None
    return values


def _has_priorities(damaged: apsw.Connection) -> bool:
    """Whether the data is of version 3 or later."""
    try:
        damaged.execute("SELECT priority FROM message LIMIT 0").fetchall()
    except apsw.Error:
        return False
    return True


def _make_up_queue(fresh: apsw.Connection, row: Any) -> None:
    # Without a deduplication id it cannot have been FIFO.
    fifo = row[12] is not None and row[13] is not None
    name = f"salvaged-{row[1]}" + (".fifo" if fifo else "")
    settings = encode_settings(QueueSettings(fifo=fifo))
    fresh.execute(
        "INSERT INTO queue (id, region, account, name, settings, tags, scope, created_wall_ms, modified_wall_ms)"
        " VALUES (?, coalesce((SELECT region FROM queue LIMIT 1), ?), coalesce((SELECT account FROM queue LIMIT 1), ?),"
        " ?, ?, '{}', 'queue', ?, ?)",
        (row[1], _REGION, _ACCOUNT, name, settings, row[10], row[10]),
    )


def _described(row: Any, wrong: str) -> bytes:
    def text(value: bytes | None) -> str | None:
        return None if value is None else value.decode("utf-8", "backslashreplace")

    return msgspec.json.encode(
        {
            "queue": row[1],
            "seq": row[0],
            "message_id": text(row[11]),
            "group": text(row[12]),
            "receive_count": row[8],
            "sent_wall_ms": row[10],
            "wrong": wrong,
            "body_md5": text(row[_BODY_MD5]),
            "body": text(row[_BODY]),
        }
    )


def _copy_plainly(damaged: apsw.Connection, fresh: apsw.Connection, table: str) -> None:
    for row in _readable(damaged, f"SELECT * FROM {table}"):  # noqa: S608
        marks = ", ".join("?" * len(row))
        fresh.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)  # noqa: S608


def _copy_holds(damaged: apsw.Connection, fresh: apsw.Connection) -> None:
    """A hold that cannot be read deletes nothing when it is acknowledged: its messages come again, none is lost."""
    living = {row[0] for row in fresh.execute("SELECT id FROM queue")}
    for queue_id, stream, batch, part, lost, members in _readable(
        damaged, "SELECT queue_id, stream, batch, part, lost, members FROM hold"
    ):
        try:
            decode_members(members)
        except UNREADABLE:
            continue
        if queue_id in living:
            fresh.execute(Q.write_hold, (queue_id, stream, batch, part, max(0, lost), members))
    for row in _readable(damaged, "SELECT queue_id, name, owner, closed, used_at_ms FROM stream"):
        if row[0] in living:
            fresh.execute("INSERT OR REPLACE INTO stream VALUES (?, ?, ?, max(?, -1), ?)", row)
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


def _count_anew(fresh: apsw.Connection) -> None:
    fresh.execute(
        "INSERT INTO queue_count (queue_id, visible, in_flight, delayed)"
        " SELECT q.id, count(m.seq) FILTER (WHERE m.state = 0), count(m.seq) FILTER (WHERE m.state = 2),"
        " count(m.seq) FILTER (WHERE m.state = 1)"
        " FROM queue q LEFT JOIN message m ON m.queue_id = q.id GROUP BY q.id"
    )
    fresh.execute(
        "UPDATE queue SET ranked = 1 WHERE id IN (SELECT queue_id FROM message WHERE priority <> 8)"
    )
    fifo = [row[0] for row in fresh.execute(CHECKS.all_queues) if decode_settings(row[2].decode()).fifo]
    # With one min(), the bare `state` is that of the first message of the group.
    fresh.execute(
        "INSERT INTO lane (queue_id, group_name, turn, is_open, members, in_flight)"
        " SELECT queue_id, group_name, min(seq), state = 0 AND queue_id IN (SELECT value FROM json_each(?)),"
        " count(*), sum(state = 2) FROM message WHERE group_name IS NOT NULL GROUP BY queue_id, group_name",
        (msgspec.json.encode(fifo).decode(),),
    )
    # Where the mark is lost, the newest message says how far time had come.
    fresh.execute(
        "INSERT OR IGNORE INTO clock_mark (id, engine_ms, wall_ms, boot_ms, boot_id, last_seq, outbox_last, outbox_bytes)"
        " SELECT 1, seq >> 20, sent_wall_ms, 0, '', seq, 0, 0 FROM message ORDER BY seq DESC LIMIT 1"
    )
    fresh.execute(
        "UPDATE clock_mark SET last_seq = max(last_seq, coalesce((SELECT max(seq) FROM message), 0),"
        " coalesce((SELECT max(turn) FROM lane), 0))"
    )
