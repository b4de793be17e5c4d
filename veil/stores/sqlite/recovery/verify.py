"""Check the data page by page and message by message: what is kept must agree with what was promised.

All of it is read in one transaction, so it is the state of one instant, also while a server is running (whose log cannot
start anew until the check is done). Nothing is changed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import apsw
import msgspec

from veil.core.errors import StoreBusy, StoreError, VeilError
from veil.core.event import unpack
from veil.core.lease import NOTHING_CLOSED, State
from veil.core.message import PRIORITY_FIRST, PRIORITY_LAST
from veil.core.queue import parse_arn
from veil.core.receipt import delivery_of
from veil.stores.sql import NamedQueries, decode_attributes, decode_settings, decode_tags
from veil.stores.sqlite.data_directory import DATABASE, DataLock
from veil.stores.sqlite.database import Q
from veil.stores.sqlite.holds import decode_members
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


class Finding(NamedTuple):
    """One thing that was found."""

    severity: Severity
    where: str
    text: str


@dataclass(slots=True)
class Findings:
    """Everything that was found, and how much was looked at."""

    queues: int = 0
    messages: int = 0
    body_bytes: int = 0
    listed: list[Finding] = field(default_factory=list)
    # By severity and kind, unlisted ones too.
    totals: Counter[tuple[Severity, str]] = field(default_factory=Counter)

    def add(self, kind: str, where: str, text: str, severity: Severity = "error") -> None:
        """Note a finding; `kind` groups those that are alike."""
        self.totals[severity, kind] += 1
        if self.totals[severity, kind] <= LISTED_MAX:
            self.listed.append(Finding(severity, where, text))

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong; warnings and notes are not."""
        return not any(severity == "error" for severity, _ in self.totals)

    def __str__(self) -> str:
        lines = [f"{finding.severity}: {finding.where}: {finding.text}" for finding in self.listed]
        for (severity, kind), total in self.totals.items():
            if total > LISTED_MAX:
                lines.append(f"{severity}: {kind}: {total - LISTED_MAX:,} more of the same kind")
        verdict = "sound" if self.is_sound else "damaged"
        lines.append(
            f"{verdict}: {self.queues:,} queues, {self.messages:,} messages, {self.body_bytes:,} bytes of bodies read"
        )
        return "\n".join(lines)


Progress = Callable[[int, int], None]  # messages done, messages expected
PROGRESS_EVERY = 1_000
CHECKS: Final = NamedQueries("veil.stores.sqlite", "checks.sql")
# ValueError: UnicodeDecodeError is one.
UNREADABLE: Final = (VeilError, msgspec.MsgspecError, TypeError, ValueError, KeyError, IndexError)
_STATES: Final = frozenset(int(state) for state in State)


def verify(data_dir: Path, progress: Progress | None = None) -> Findings:
    """Everything that is wrong with the data; raises StoreError when there is none to look at."""
    findings = Findings()
    with looking_at(data_dir) as view:
        if view.wal is None:
            findings.add("log", "log", "a server is running and has the log: the log is not scanned", "note")
        elif view.wal.verdict == "damaged":
            findings.add("log", "log", view.wal.explain())
        elif view.wal.verdict == "torn_tail":
            findings.add("log", "log", view.wal.explain(), "note")
        _check_all(view.connection, findings, progress)
    return findings


def verify_file(path: Path) -> Findings:
    """The same for a single file, as a backup is."""
    findings = Findings()
    with closing(connect_to_read(path)) as connection:
        _check_all(connection, findings, None)
    return findings


def _check_all(connection: apsw.Connection, findings: Findings, progress: Progress | None) -> None:
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
    # Each on its own: one that meets a spoiled page must not hide what the others find.
    for check in (
        _check_pages,
        _check_meta,
        _check_queues,
        _check_counts,
        _check_groups,
        _check_priorities,
        _check_the_rest,
        _check_holds,
        _check_outbox,
    ):
        try:
            check(connection, findings)
        except apsw.Error as error:
            findings.add("database", check.__name__.removeprefix("_check_"), f"cannot be read: {error}")
    try:
        _check_messages(connection, findings, progress)
    except apsw.Error as error:
        findings.add("database", "messages", f"cannot be read after {findings.messages:,}: {error}")


def _check_pages(connection: apsw.Connection, findings: Findings) -> None:
    for (text,) in connection.execute("PRAGMA integrity_check"):
        if text != "ok":
            findings.add("database", "database", text)


def _check_meta(connection: apsw.Connection, findings: Findings) -> None:
    key = connection.execute(Q.read_meta, ("receipt_key",)).fetchone()
    if key is None or len(key[0]) < 16:
        findings.add("receipt key", "receipt key", "missing or cut short: no receipt could be read")
    mark = connection.execute(Q.read_mark).fetchone()
    highest = connection.execute(CHECKS.highest_seq).get
    if highest is None:
        return
    if mark is None:
        findings.add("clock", "clock", "no mark, though there are messages: windows would be judged anew")
        return
    *_, last_seq, _, _ = mark
    if highest > last_seq:
        text = f"the highest given out is said to be {last_seq}, but message {highest} exists"
        findings.add("clock", "order keys", text)


def _check_queues(connection: apsw.Connection, findings: Findings) -> None:
    for queue_id, name, settings, tags, deleted in connection.execute(CHECKS.all_queues):
        if deleted:
            text = "deleted; what is left of it will be swept"
            findings.add("deleted queues", f"queue {_shown(name)}", text, "note")
            continue
        findings.queues += 1
        for part, decode, text in (("settings", decode_settings, settings), ("tags", decode_tags, tags)):
            try:
                decode(text.decode())
            except UNREADABLE as error:
                findings.add(part, f"queue {_shown(name)} ({queue_id})", f"{part} unreadable: {error}")


def _check_counts(connection: apsw.Connection, findings: Findings) -> None:
    for queue_id, *numbers in connection.execute(CHECKS.wrong_counts):
        kept, real = _shown_counts(numbers[:3]), _shown_counts(numbers[3:])
        findings.add("counts", f"queue {queue_id}", f"counts say {kept}; there are {real}")


def _check_groups(connection: apsw.Connection, findings: Findings) -> None:
    fifo = []
    for queue_id, _, settings, _, _ in connection.execute(CHECKS.all_queues):
        try:
            if decode_settings(settings.decode()).fifo:
                fifo.append(queue_id)
        except UNREADABLE:
            continue  # told already
    for queue_id, group, *numbers in connection.execute(
        CHECKS.wrong_groups, (msgspec.json.encode(fifo).decode(),)
    ):
        kept, real = _shown_lane(numbers[:3]), _shown_lane(numbers[3:])
        where = f"queue {queue_id}, group {_shown(group)}"
        findings.add("groups", where, f"its row says {kept}; the messages say {real}")


def _check_the_rest(connection: apsw.Connection, findings: Findings) -> None:
    for queue_id, attempt_id, claims in connection.execute(CHECKS.all_attempts):
        try:
            msgspec.json.decode(claims, type=list[tuple[int, int, int | None]])
        except UNREADABLE as error:
            where = f"queue {queue_id}, attempt {_shown(attempt_id)}"
            findings.add("attempts", where, f"unreadable: {error}")
    for task_id, source, destination in connection.execute(CHECKS.all_moves):
        try:
            parse_arn(source.decode())
            if destination is not None:
                parse_arn(destination.decode())
        except UNREADABLE as error:
            findings.add("move tasks", f"move task {_shown(task_id)}", f"unreadable: {error}")


def _check_priorities(connection: apsw.Connection, findings: Findings) -> None:
    if schema_version(connection) < 3:
        return  # they came with version 3
    for queue_id, seq, priority, ranked in connection.execute(CHECKS.odd_priorities):
        where = f"queue {queue_id}, message {seq}"
        if not PRIORITY_FIRST <= priority <= PRIORITY_LAST:
            findings.add("priorities", where, f"its priority is {priority}, which no message can have")
        elif not ranked:
            findings.add("priorities", where, f"its priority is {priority}, which its queue knows nothing of")


def _check_holds(connection: apsw.Connection, findings: Findings) -> None:
    if schema_version(connection) < 2:
        return  # they came with version 2
    for queue_id, name, owner, closed, has_queue in connection.execute(CHECKS.all_streams):
        where = f"queue {queue_id}, stream {_shown(name)}"
        try:
            (name + owner).decode()
        except UNREADABLE as error:
            findings.add("holds", where, f"unreadable: {error}")
        if closed < NOTHING_CLOSED:
            findings.add("holds", where, f"says that {closed} is the last batch that was acknowledged")
        if not has_queue:
            findings.add("holds", where, "its queue does not exist")
    for queue_id, stream, batch, part, lost, members, has_queue, has_stream in connection.execute(
        CHECKS.all_holds
    ):
        where = f"queue {queue_id}, hold {_shown(stream)}/{batch}/{part}"
        try:
            decode_members(members)
        except UNREADABLE as error:
            findings.add("holds", where, f"unreadable: {error}")
        if lost < 0:
            findings.add("holds", where, f"says that it lost {lost}")
        if not has_queue:
            findings.add("holds", where, "its queue does not exist")
        elif not has_stream:
            findings.add("holds", where, "its stream does not exist: it could never be acknowledged")


def _check_outbox(connection: apsw.Connection, findings: Findings) -> None:
    for name in ("store_id", "journal_id"):
        if not connection.execute(Q.read_meta, (name,)).fetchone():
            findings.add("journal", "journal", f"the {name} is missing: exports could not be told apart")
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


def _check_messages(connection: apsw.Connection, findings: Findings, progress: Progress | None) -> None:
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


def wrong_content(
    attributes: bytes | None, body_md5: bytes, body: bytes, message_id: bytes, texts: bytes
) -> str | None:
    """What is wrong with what was sent; None when nothing is."""
    found = hashlib.md5(body, usedforsecurity=False).hexdigest()
    if found.encode() != body_md5:
        return f"its body has the digest {found}, but was sent with {_shown(body_md5)}"
    try:
        decode_attributes(attributes)
        message_id.decode()
        texts.decode()
    except UNREADABLE as error:
        return f"unreadable: {error}"
    return None


def _shown(text: Any) -> str:
    return text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else str(text)


def _shown_counts(numbers: list[int | None]) -> str:
    visible, in_flight, delayed = numbers
    return "nothing" if visible is None else f"{visible} visible, {in_flight} in flight, {delayed} delayed"


def _shown_lane(numbers: list[int | None]) -> str:
    members, in_flight, is_open = numbers
    if members is None:
        return "that it does not exist"
    return f"{members} messages, {in_flight} in flight, {'open' if is_open else 'closed'}"
