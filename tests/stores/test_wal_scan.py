"""Damage in a write-ahead log is told from a torn tail; SQLite itself is asked what it would recover."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from veil.stores.sqlite.recovery.wal_scan import WalScan, scan_wal

HEADER = 32
FRAME_HEADER = 24


@dataclass(frozen=True)
class Wal:
    """A database and its WAL as a crash would leave them, with what they should recover."""

    database: bytes
    log: bytes
    page_bytes: int
    ends: tuple[int, ...]  # the frame, from 1, that ends each commit
    log_before_last: bytes = b""  # the same file before its last commit was written

    @property
    def commits(self) -> int:
        return len(self.ends)

    def offset(self, frame: int) -> int:
        return HEADER + (frame - 1) * (FRAME_HEADER + self.page_bytes)


def a_wal(
    folder: Path,
    *,
    page_bytes: int = 512,
    rows_per_commit: Callable[[int], int] = lambda number: (1, 1, 4, 2, 9)[number % 5],
    commits: int = 30,
    commits_before_reset: int = 0,
) -> Wal:
    """A real WAL: commit n writes rows that carry n; nothing of this generation is checkpointed."""
    path = folder / "made.db"
    log = folder / "made.db-wal"
    connection = apsw.Connection(str(path))
    connection.pragma("page_size", page_bytes)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "off")
    connection.pragma("wal_autocheckpoint", 0)
    connection.execute("create table entry (id integer primary key, number integer, body blob)")

    def commit(number: int) -> None:
        with connection:
            for _ in range(rows_per_commit(abs(number))):
                connection.execute("insert into entry (number, body) values (?, randomblob(230))", (number,))

    for number in range(-commits_before_reset, 0):
        commit(number)
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    if not commits_before_reset:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    ends: list[int] = []

    def committed(_connection: apsw.Connection, _name: str, frames: int) -> int:
        ends.append(frames)
        return apsw.SQLITE_OK

    connection.set_wal_hook(committed)
    before_last = b""
    for number in range(1, commits + 1):
        before_last = log.read_bytes()
        commit(number)
    wal = Wal(path.read_bytes(), log.read_bytes(), page_bytes, tuple(ends), before_last)
    connection.close()
    for left in folder.glob("made.db*"):
        left.unlink()
    assert len(ends) == commits
    return wal


def scanned(wal: Wal, log: bytes, folder: Path) -> WalScan:
    path = folder / "some.db-wal"
    path.write_bytes(log)
    scan = scan_wal(path)
    assert path.read_bytes() == log
    assert scan.explain().endswith(".")
    return scan


def recovered_commits(wal: Wal, log: bytes, folder: Path) -> int:
    """How many commits SQLite recovers, by opening the database with that log."""
    place = folder / "opened"
    place.mkdir()
    try:
        (place / "x.db").write_bytes(wal.database)
        (place / "x.db-wal").write_bytes(log)
        connection = apsw.Connection(str(place / "x.db"))
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # only to be quick
        found = connection.execute("select distinct number from entry where number > 0 order by 1").fetchall()
        connection.close()
    finally:
        shutil.rmtree(place)
    assert [number for (number,) in found] == list(range(1, len(found) + 1))
    return len(found)


def assert_no_silent_loss(wal: Wal, log: bytes, folder: Path, *, tolerated: int = 1) -> WalScan:
    """The essential property: all commits recovered, or only the last one lost, or damage reported."""
    scan = scanned(wal, log, folder)
    recovered = recovered_commits(wal, log, folder)
    lost = wal.commits - recovered
    assert scan.commits_valid == recovered
    assert lost <= tolerated or scan.verdict == "damaged", (lost, scan)
    if scan.verdict == "clean":
        assert lost == 0, scan
    return scan


def flipped(log: bytes, offset: int, bit: int = 0) -> bytes:
    changed = bytearray(log)
    changed[offset] ^= 1 << bit
    return bytes(changed)


SHAPES: dict[str, dict[str, Any]] = {
    "mixed": {},
    "one frame each": {"page_bytes": 16384, "rows_per_commit": lambda _: 1, "commits": 12},  # fits one leaf
    "large pages": {"page_bytes": 4096},
    "on stale frames": {"commits_before_reset": 60},
    "big-endian sums": {},
}


@pytest.fixture(scope="module", params=SHAPES)
def wal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Wal:
    made = a_wal(tmp_path_factory.mktemp("wal"), **SHAPES[request.param])
    if request.param == "one frame each":
        assert made.ends == tuple(range(1, 13))
    return with_big_endian_sums(made) if request.param == "big-endian sums" else made


def with_big_endian_sums(wal: Wal) -> Wal:
    """The same WAL as a big-endian machine writes it; SQLite reads both."""

    def checksum(data: bytearray, s1: int, s2: int) -> tuple[int, int]:
        for x0, x1 in struct.iter_unpack(">II", data):
            s1 = (s1 + x0 + s2) % 2**32
            s2 = (s2 + x1 + s1) % 2**32
        return s1, s2

    log = bytearray(wal.log)
    struct.pack_into(">I", log, 0, 0x377F0683)
    sums = checksum(log[:24], 0, 0)
    struct.pack_into(">II", log, 24, *sums)
    for frame in range(1, wal.ends[-1] + 1):
        at = wal.offset(frame)
        sums = checksum(log[at : at + 8] + log[at + FRAME_HEADER : at + FRAME_HEADER + wal.page_bytes], *sums)
        struct.pack_into(">II", log, at + 16, *sums)
    return Wal(wal.database, bytes(log), wal.page_bytes, wal.ends, bytes(log[: wal.offset(wal.ends[-2] + 1)]))


def test_an_untouched_wal_is_clean(wal: Wal, tmp_path: Path) -> None:
    scan = assert_no_silent_loss(wal, wal.log, tmp_path)

    assert scan == WalScan("clean", wal.page_bytes, wal.ends[-1], wal.commits)


def test_a_wal_cut_anywhere_is_never_called_damaged(wal: Wal, tmp_path: Path) -> None:
    for size in range(0, len(wal.log), 512):
        scan = scanned(wal, wal.log[:size], tmp_path)
        frames = max(0, size - HEADER) // (FRAME_HEADER + wal.page_bytes)
        assert scan.verdict in ({"clean", "torn_tail"} if size > HEADER else {"empty"}), (size, scan)
        assert scan.frames_valid == min(frames, wal.ends[-1])
        assert scan.commits_valid == sum(end <= frames for end in wal.ends)


def test_a_wal_cut_between_two_commits_is_clean_and_cut_inside_one_is_torn(wal: Wal, tmp_path: Path) -> None:
    whole = wal.ends[wal.commits // 2]

    assert scanned(wal, wal.log[: wal.offset(whole + 1)], tmp_path).verdict == "clean"
    torn = scanned(wal, wal.log[: wal.offset(whole + 1) + 100], tmp_path)
    assert (torn.verdict, torn.damaged_at_frame) == ("torn_tail", whole + 1)


def test_no_random_bit_flip_loses_more_than_the_last_commit_in_silence(wal: Wal, tmp_path: Path) -> None:
    dice = random.Random(20260)
    verdicts = set()
    for _ in range(100):
        log = flipped(wal.log, dice.randrange(len(wal.log)), dice.randrange(8))
        verdicts.add(assert_no_silent_loss(wal, log, tmp_path).verdict)
    assert "damaged" in verdicts


def test_no_bit_flip_in_the_wal_header_goes_unnoticed(wal: Wal, tmp_path: Path) -> None:
    for offset in range(HEADER):
        for bit in (0, 3, 7):
            scan = assert_no_silent_loss(wal, flipped(wal.log, offset, bit), tmp_path)
            assert (scan.verdict, scan.damaged_at_frame, scan.page_bytes) == ("damaged", 0, wal.page_bytes)
            assert scan.commits_after_damage >= wal.commits - 1


@pytest.mark.parametrize(
    "back", [1, 2, 3, 15, 0], ids=lambda back: f"{back} from the end" if back else "first"
)
def test_no_bit_flip_in_a_frame_header_loses_more_than_the_last_commit(
    wal: Wal, tmp_path: Path, back: int
) -> None:
    commit = -min(back, wal.commits) if back else 0
    last = wal.ends[commit]
    first = 1 if wal.ends[commit] == wal.ends[0] else wal.ends[wal.ends.index(last) - 1] + 1
    for frame in {first, last}:
        for place in [*range(FRAME_HEADER), FRAME_HEADER + wal.page_bytes // 2]:
            log = flipped(wal.log, wal.offset(frame) + place, place * 3 % 8)
            scan = assert_no_silent_loss(wal, log, tmp_path)
            assert scan.damaged_at_frame == frame
            assert scan.verdict == ("torn_tail" if back == 1 else "damaged")


def test_a_commit_size_that_loses_its_only_bit_still_counts_as_a_commit(tmp_path: Path) -> None:
    # Look for a last-but-one commit after which the database has a power of two pages.
    for commits in range(3, 40):
        wal = a_wal(tmp_path, rows_per_commit=lambda _: 1, commits=commits)
        at = wal.offset(wal.ends[-2]) + 4
        (pages,) = struct.unpack_from(">I", wal.log, at)
        if pages.bit_count() == 1:
            break
    log = wal.log[:at] + bytes(4) + wal.log[at + 4 :]

    scan = assert_no_silent_loss(wal, log, tmp_path)

    assert (scan.verdict, wal.commits - scan.commits_valid) == ("damaged", 2)


def test_a_garbled_sector_hides_at_most_the_commits_it_touches(wal: Wal, tmp_path: Path) -> None:
    dice = random.Random(7)
    for sector in range(0, len(wal.log) // 512, max(1, len(wal.log) // 512 // 60)):
        at = sector * 512
        for garbage in (bytes(512), dice.randbytes(512)):
            # A sector that ends one frame and begins the next can hit two commits.
            assert_no_silent_loss(wal, wal.log[:at] + garbage + wal.log[at + 512 :], tmp_path, tolerated=2)


@pytest.mark.parametrize("block_bytes", [512, 4096])
def test_a_last_commit_written_in_any_order_and_never_synced_is_a_torn_tail(
    wal: Wal, tmp_path: Path, block_bytes: int
) -> None:
    old = wal.log_before_last.ljust(len(wal.log), b"\0")
    dice = random.Random(11)
    for _ in range(50):
        log = b"".join(
            dice.choice((old, wal.log))[at : at + block_bytes] for at in range(0, len(wal.log), block_bytes)
        )
        scan = scanned(wal, log, tmp_path)
        assert scan.verdict in {"clean", "torn_tail"}, scan
        assert scan.commits_valid >= wal.commits - 1


def test_an_old_commit_size_joined_to_new_salts_by_a_torn_sector_is_a_torn_tail(tmp_path: Path) -> None:
    wal = a_wal(tmp_path, commits=3, rows_per_commit=lambda number: 160 if number == 3 else 1)
    joined = next(frame for frame in range(1, 65) if (wal.offset(frame) + 8) % 512 == 0)
    lost = joined - 5
    assert wal.ends[-2] < lost < joined < wal.ends[-1]
    log = bytearray(wal.log)
    log[wal.offset(lost) : wal.offset(lost + 1)] = bytes(wal.offset(2) - wal.offset(1))
    struct.pack_into(">I", log, wal.offset(joined) + 4, 17)

    scan = scanned(wal, bytes(log), tmp_path)

    assert (scan.verdict, scan.damaged_at_frame, scan.commits_after_damage) == ("torn_tail", lost, 1)


def test_every_frame_after_one_whose_checksum_was_hit_is_found_whole(wal: Wal, tmp_path: Path) -> None:
    for frame in (1, wal.ends[2], wal.ends[-2]):
        for place in (16, 20):
            scan = scanned(wal, flipped(wal.log, wal.offset(frame) + place), tmp_path)
            assert scan.frames_after_damage == wal.ends[-1] - frame
            assert scan.commits_after_damage == sum(end > frame for end in wal.ends)


def test_frames_of_the_generation_before_are_a_normal_end(tmp_path: Path) -> None:
    wal = a_wal(tmp_path, commits_before_reset=60, commits=5)
    assert len(wal.log) > wal.offset(wal.ends[-1] + 50)

    assert scanned(wal, wal.log, tmp_path) == WalScan("clean", 512, wal.ends[-1], 5)
    # Also cut inside one of them, as a size limit may do.
    assert scanned(wal, wal.log[: wal.offset(wal.ends[-1] + 1) + 60], tmp_path).verdict == "clean"


def test_what_a_rolled_back_transaction_spilled_is_not_damage(tmp_path: Path) -> None:
    path = tmp_path / "spill.db"
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.pragma("wal_autocheckpoint", 0)
    connection.pragma("cache_size", 10)
    connection.execute("create table entry (body blob)")
    connection.execute("begin")
    for _ in range(200):
        connection.execute("insert into entry values (randomblob(3000))")
    connection.execute("rollback")
    connection.execute("insert into entry values (randomblob(3000))")
    log = (tmp_path / "spill.db-wal").read_bytes()
    connection.close()
    (tmp_path / "copy-wal").write_bytes(log)

    scan = scan_wal(tmp_path / "copy-wal")

    assert scan.frames_after_damage > 50
    assert (scan.verdict, scan.commits_valid, scan.commits_after_damage) == ("torn_tail", 2, 0)


def test_no_file_and_no_bytes_are_nothing_to_recover(tmp_path: Path) -> None:
    assert scan_wal(tmp_path / "none-wal") == WalScan("absent")
    (tmp_path / "some-wal").write_bytes(b"")
    assert scan_wal(tmp_path / "some-wal") == WalScan("empty")
    (tmp_path / "some-wal").write_bytes(bytes(4096))
    assert scan_wal(tmp_path / "some-wal").verdict == "torn_tail"


def test_a_file_that_is_no_wal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "some-wal").write_bytes(b"not a log " * 1000)

    assert scan_wal(tmp_path / "some-wal").verdict == "damaged"


def test_the_sentence_names_the_frame_and_the_loss(tmp_path: Path) -> None:
    wal = a_wal(tmp_path, commits=10)
    frame = wal.ends[3]

    scan = scanned(wal, flipped(wal.log, wal.offset(frame) + 200), tmp_path)

    assert scan.explain() == (
        f"The write-ahead log is damaged at frame {frame}, and SQLite would silently ignore "
        "6 whole commits after it; opening it would drop data for good."
    )
