"""Check the data page by page and message by message: what is kept must agree with what was promised.

All of it is read in one transaction, so it is the state of one instant, also while a server is running (whose log cannot
start over until the check is done). Nothing is changed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import apsw
import msgspec

from veil.core.errors import StoreBusy, StoreError
from veil.core.event import unpack
from veil.core.lease import State
from veil.core.queue import parse_arn
from veil.core.receipt import delivery_of
from veil.stores.sql import (
    UNREADABLE,
    NamedQueries,
    decode_attributes,
    decode_members,
    decode_settings,
    decode_tags,
)
from veil.stores.sqlite.data_directory import DATABASE, DataLock
from veil.stores.sqlite.database import Q
from veil.stores.sqlite.lease_log import folded
from veil.stores.sqlite.opening import SCHEMA_VERSION, schema_version
from veil.stores.sqlite.recovery.wal_scan import WalScan, scan_wal


class View(NamedTuple):
    """What can be seen of the data."""

    connection: apsw.Connection
    # None while a server is running: it checked its log at the start and writes to it now.
    wal: WalScan | None


@contextmanager
def looking_at(directory: Path) -> Iterator[View]:
    """The data of a running server, or of a stopped one, which cannot be started meanwhile; raises StoreError."""
    path = directory / DATABASE
    if not path.exists():
        raise StoreError(f"{directory} holds no store: there is no {DATABASE} in it")
    lock = DataLock(directory)
    try:
        lock.acquire()
        wal = scan_wal(directory / (DATABASE + "-wal"))
    except StoreBusy:
        wal = None
    try:
        with closing(connect_to_read(path)) as connection:
            yield View(connection, wal)
    finally:
        lock.release()


def connect_to_read(path: Path) -> apsw.Connection:
    """A connection that can change nothing: not a row, and not the log by a checkpoint."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        connection = apsw.Connection(f"{path.absolute().as_uri()}?mode=ro", flags=flags)
    except apsw.Error as error:
        raise StoreError(f"{path} cannot be opened: {error}") from error
    connection.set_busy_timeout(5_000)
    return connection


Severity = Literal["error", "warning", "note"]
LISTED_MAX = 50  # of one kind: a spoiled disk has one thing to say, not a million


class Defect(NamedTuple):
    """One thing that was found."""

    severity: Severity
    where: str
    text: str


@dataclass(slots=True)
class VerifyReport:
    """Everything that was found, and how much was looked at."""

    queues: int = 0
    messages: int = 0
    body_bytes: int = 0
    listed: list[Defect] = field(default_factory=list)
    # By severity and kind, unlisted ones too.
    totals: Counter[tuple[Severity, str]] = field(default_factory=Counter)

    def add(self, kind: str, where: str, text: str, severity: Severity = "error") -> None:
        """Note a finding; `kind` groups those that are alike."""
        self.totals[severity, kind] += 1
        if self.totals[severity, kind] <= LISTED_MAX:
            self.listed.append(Defect(severity, where, text))

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong; warnings and notes are not."""
        return not any(severity == "error" for severity, _ in self.totals)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """What was found, a line each."""
        lines = [f"{finding.severity}: {finding.where}: {finding.text}" for finding in self.listed]
        for (severity, kind), total in self.totals.items():
            if total > LISTED_MAX:
                lines.append(f"{severity}: {kind}: {total - LISTED_MAX:,} more of the same kind")
        return lines


Progress = Callable[[int, int], None]  # messages done, messages expected
PROGRESS_EVERY = 1_000
CHECKS: Final = NamedQueries("veil.stores.sqlite", "checks.sql")
_STATES: Final = frozenset(int(state) for state in State)

Check = Callable[[apsw.Connection, VerifyReport], None]
# The queries of checks.sql that say what is wrong, since which version of the schema, and of which kind it is.
_WRONG: Final = (
    (1, "counts", "wrong_counts"),
    (1, "groups", "wrong_groups"),
    (3, "priorities", "wrong_priorities"),
    (2, "holds", "wrong_streams"),
    (2, "holds", "wrong_holds"),
)
# Those whose rows must be readable, and by what.
_READABLE: Final[tuple[tuple[int, str, str, str, Callable[[bytes], object]], ...]] = (
    (1, "settings", "all_settings", "settings unreadable", lambda content: decode_settings(content.decode())),
    (1, "tags", "all_tags", "tags unreadable", lambda content: decode_tags(content.decode())),
    (
        1,
        "attempts",
        "all_claims",
        "unreadable",
        msgspec.json.Decoder(list[tuple[int, int, int | None]]).decode,
    ),
    (1, "move tasks", "all_moved", "unreadable", lambda content: parse_arn(content.decode())),
    (2, "holds", "all_streams", "unreadable", bytes.decode),
    (2, "holds", "all_members", "unreadable", decode_members),
)


def verify(data_dir: Path, progress: Progress | None = None) -> VerifyReport:
    """Everything that is wrong with the data; raises StoreError when there is none to look at."""
    findings = VerifyReport()
    with looking_at(data_dir) as view:
        if view.wal is None:
            findings.add("log", "log", "a server is running and has the log: the log is not scanned", "note")
        elif view.wal.verdict == "damaged":
            findings.add("log", "log", view.wal.explain())
        elif view.wal.verdict == "torn_tail":
            findings.add("log", "log", view.wal.explain(), "note")
        _check_all(view.connection, findings, progress)
    return findings


def verify_file(path: Path) -> VerifyReport:
    """The same for a single file, as a backup is."""
    findings = VerifyReport()
    with closing(connect_to_read(path)) as connection:
        _check_all(connection, findings, None)
    return findings


def _check_all(connection: apsw.Connection, findings: VerifyReport, progress: Progress | None) -> None:
    try:
        connection.execute("BEGIN")
        version = schema_version(connection)
        if not 1 <= version <= SCHEMA_VERSION:
            expected = f"this Veil knows 1 to {SCHEMA_VERSION}"
            findings.add("schema", "schema", f"version {version}, but {expected}; nothing more was checked")
            return
    except apsw.Error as error:
        findings.add("database", "database", f"cannot be read: {error}")
        return
    checks: dict[str, Check] = {"pages": _check_pages, "meta": _check_meta, "queues": _check_queues}
    checks["lease_log"] = _check_lease_log
    for since, kind, query in _WRONG:
        if version >= since:
            checks[query] = partial(_check_wrong, kind, getattr(CHECKS, query))
    for since, kind, query, what, read in _READABLE:
        if version >= since:
            checks[query] = partial(_check_readable, kind, getattr(CHECKS, query), what, read)
    checks |= {"outbox": _check_outbox, "messages": partial(_check_messages, progress)}
    for name, check in checks.items():
        # Each on its own: one that meets a spoiled page must not hide what the others find.
        try:
            check(connection, findings)
        except apsw.Error as error:
            findings.add("database", name.replace("_", " "), f"cannot be read: {error}")


def _check_pages(connection: apsw.Connection, findings: VerifyReport) -> None:
    for (text,) in connection.execute("PRAGMA integrity_check"):
        if text != "ok":
            findings.add("database", "database", text)


def _check_meta(connection: apsw.Connection, findings: VerifyReport) -> None:
    key = connection.execute(Q.read_meta, ("receipt_key",)).fetchone()
    if key is None or len(key[0]) < 16:
        findings.add("receipt key", "receipt key", "missing or cut short: no receipt could be read")
    mark = connection.execute(Q.read_mark).fetchone()
    highest = connection.execute(CHECKS.highest_seq).get
    if highest is None:
        return
    if mark is None:
        findings.add(
            "clock",
            "clock",
            "the mark is missing although there are messages: open leases would be timed again from the start",
        )
        return
    *_, last_seq, _, _ = mark
    if highest > last_seq:
        text = f"the highest given out is said to be {last_seq}, but message {highest} exists"
        findings.add("clock", "order keys", text)


def _check_queues(connection: apsw.Connection, findings: VerifyReport) -> None:
    for name, deleted in connection.execute(CHECKS.all_queues):
        findings.queues += not deleted
        if deleted:
            text = "deleted; what is left of it will be swept"
            findings.add("deleted queues", f"queue {_shown(name)}", text, "note")


def _check_lease_log(connection: apsw.Connection, findings: VerifyReport) -> None:
    """Whatever counts messages next has to know which of them are in flight though their rows do not say so."""
    connection.execute(CHECKS.make_leased)
    if not connection.table_exists("main", "lease_log"):
        return
    try:
        queues = folded([packed for (packed,) in connection.execute(Q.lease_log)])
    except UNREADABLE as error:
        findings.add("leases", "lease log", f"unreadable: {error}")
        return
    connection.executemany(CHECKS.add_leased, ((seq,) for leases in queues.values() for seq in leases))


def _check_wrong(kind: str, query: str, connection: apsw.Connection, findings: VerifyReport) -> None:
    for where, text in connection.execute(query):
        findings.add(kind, _shown(where), text)


def _check_readable(
    kind: str,
    query: str,
    what: str,
    read: Callable[[bytes], object],
    connection: apsw.Connection,
    findings: VerifyReport,
) -> None:
    for where, content in connection.execute(query):
        try:
            read(content)
        except UNREADABLE as error:
            findings.add(kind, _shown(where), f"{what}: {error}")


def _check_outbox(connection: apsw.Connection, findings: VerifyReport) -> None:
    for name in ("store_id", "journal_id"):
        if not connection.execute(Q.read_meta, (name,)).fetchone():
            findings.add("journal", "journal", f"the {name} is missing: exports could not be distinguished")
    mark, export = connection.execute(Q.read_mark).fetchone(), connection.execute(Q.read_export).fetchone()
    if export is None:
        findings.add("journal", "outbox", "how far its export has come is not known")
        return
    *_, last, size = mark or (0, 0)
    done, planned, _ = export
    if not done <= (done if planned is None else planned) <= last:
        text = f"exported up to {done}, planned up to {planned}, but the last row is said to be {last}"
        findings.add("journal", "outbox", text)
    expected, found = done + 1, 0
    for number, packed in connection.execute(CHECKS.all_outbox):
        found += len(packed)
        if number <= done:
            continue  # safe elsewhere, and on its way out
        if number != expected:
            findings.add("journal", "outbox", f"row {expected} is missing: the next is {number}")
        expected = number + 1
        try:
            unpack(packed)
        except UNREADABLE as error:
            findings.add("journal", f"outbox row {number}", f"unreadable: {error}")
    if expected != last + 1:
        findings.add("journal", "outbox", f"ends at row {expected - 1}, but {last} were given out")
    if found != size:
        findings.add("journal", "outbox", f"holds {found} bytes, but is said to hold {size}")


def _check_messages(progress: Progress | None, connection: apsw.Connection, findings: VerifyReport) -> None:
    expected = connection.execute(CHECKS.expected_messages).get
    queues = {queue_id for (queue_id,) in connection.execute("SELECT id FROM queue")}
    for seq, queue_id, state, wake_ms, due_ms, delivery, holder, *content, body_bytes in connection.execute(
        CHECKS.all_messages
    ):
        where = f"message {seq} of queue {queue_id}"
        if queue_id not in queues:
            findings.add("queues", f"message {seq}", f"is in queue {queue_id}, which does not exist")
        if wrong := wrong_state(state, wake_ms, due_ms, delivery, holder):
            findings.add("states", where, wrong)
        if wrong := wrong_content(*content):
            findings.add("contents", where, wrong)
        _, _, body, *_ = content
        if body_bytes != len(body):
            text = f"its body has {len(body)} bytes, but is said to have {body_bytes}"
            findings.add("contents", where, text)
        findings.messages += 1
        findings.body_bytes += len(body)
        if progress is not None and findings.messages % PROGRESS_EVERY == 0:
            progress(findings.messages, max(expected, findings.messages))
    if progress is not None:
        progress(findings.messages, findings.messages)


def wrong_state(
    state: int, wake_at_ms: int | None, due_at_ms: int | None, delivery: int, holder: int
) -> str | None:
    """What is wrong with where the message stands; None when nothing is."""
    if state not in _STATES:
        return f"its state is {state}, which means nothing"
    if state == State.VISIBLE:
        return None
    if wake_at_ms is None or due_at_ms is None:
        return "it is hidden and nothing would wake it"
    if wake_at_ms > due_at_ms:
        return f"it would wake at {wake_at_ms}, after it is due at {due_at_ms}"
    if state == State.IN_FLIGHT and not 0 < delivery_of(holder) <= delivery:
        return f"it is held by delivery {delivery_of(holder)}, though the latest is {delivery}"
    return None


def wrong_content(attributes: bytes | None, body_md5: bytes, body: bytes, texts: bytes) -> str | None:
    """What is wrong with what was sent; None when nothing is."""
    found = hashlib.md5(body, usedforsecurity=False).hexdigest()
    if found.encode() != body_md5:
        return f"its body has the digest {found}, but was sent with {_shown(body_md5)}"
    try:
        decode_attributes(attributes)
        texts.decode()
    except UNREADABLE as error:
        return f"unreadable: {error}"
    return None


def _shown(text: Any) -> str:
    return text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else str(text)
