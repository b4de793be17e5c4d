"""Tell a torn write-ahead log from a damaged one, before SQLite opens it; and copy a damaged one so that it can be read.

SQLite recovers the longest valid prefix of its WAL and forgets the rest without a word, so one flipped bit in
the middle drops every later commit while `integrity_check` says ok. A tail torn by a power cut looks the same
to SQLite, and is normal.

What tells them apart: Veil syncs each commit before it makes the next, and SQLite syncs the header before the
first frame. So a power cut can spoil one commit, the last (and what an open transaction spilled after it,
which ends no commit), and never the header. From the first bad frame on, counting that frame:
- at most one commit of the present generation ends there: a torn tail (damage to the last commit alone looks
  the same);
- more than one: the first of them had been synced, and something has changed it since;
and when the header is bad and anything follows it, the header had been synced and was changed since.

A frame's checksum goes on from that of the frame before, so a frame after a bad one is tested against what is
*stored* in its predecessor (right unless that value was hit), else against what is *computed* for it (right
unless the rest was hit). Being independent in this way, all frames of a block are summed at once, each in a
64-bit lane of one long integer: 16 MB in about 0.1 s. So there is no need to ask SQLite, on a copy of the
files, how far it would get; this module depends on nothing and only reads.

Frames of an earlier generation (other salts) after the end are normal. The remains of a torn tail keep the
present salts, and SQLite goes on writing over them: checkpoint with TRUNCATE after opening on `torn_tail`, so
that the remains of several power cuts cannot add up to what looks like damage.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from veil.words import plural

Verdict = Literal["absent", "empty", "clean", "torn_tail", "damaged"]

MAGIC = 0x377F0682  # the lowest bit says that checksums read their words big-endian
VERSION = 3007000
HEADER = struct.Struct(">IIII8sII")  # magic, version, page size, checkpoint number, salts, checksum
FRAME_HEADER = struct.Struct(">II8sII")  # page number, database pages after commit (or 0), salts, checksum
_PAGE_SIZES = tuple(1 << power for power in range(9, 17))
_SECTOR_BYTES = 512
_BLOCK_BYTES = 4 << 20
_LANE_BYTES = 8
_PAIRS_BETWEEN_MASKS = 16  # 32 Fibonacci steps grow a 32-bit sum to 56 bits: it stays inside its lane


@dataclass(frozen=True, slots=True)
class WalScan:
    """What a write-ahead log holds, and whether SQLite may be trusted to recover it."""

    verdict: Verdict
    page_bytes: int = 0  # 0 if unknown
    frames_valid: int = 0  # the prefix that SQLite accepts, an unfinished transaction at its end included
    commits_valid: int = 0
    frames_after_damage: int = 0  # whole frames of the present generation after the first bad one
    commits_after_damage: int = 0
    damaged_at_frame: int | None = None  # the first bad frame, counted from 1; 0 is the header

    def explain(self) -> str:
        """The verdict in one sentence for a person."""
        kept = f"{plural(self.commits_valid, 'commit')} in {plural(self.frames_valid, 'frame')}"
        match self.verdict:
            case "absent":
                return "There is no write-ahead log: the database file is complete by itself."
            case "empty":
                return "The write-ahead log holds nothing to recover."
            case "clean":
                return f"The write-ahead log is whole: {kept}."
            case "torn_tail":
                return (
                    f"The write-ahead log is whole up to {kept}; after that lies at most one commit, "
                    "unfinished as a power cut leaves it, which will be ignored."
                )
            case "damaged":
                return f"The write-ahead log is damaged {self._where()}; opening it would drop data for good."

    def _where(self) -> str:
        if self.damaged_at_frame == 0:
            found = plural(self.frames_after_damage, "whole frame")
            return f"in its header, so SQLite would ignore all of it ({found} found)"
        lost = plural(self.commits_after_damage, "whole commit")
        return f"at frame {self.damaged_at_frame}, and SQLite would silently ignore {lost} after it"


def scan_wal(path: Path) -> WalScan:
    """Read the WAL at `path`, change nothing, and say whether opening its database would lose synced commits."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return WalScan("absent")
    with file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(HEADER.size)
        if len(head) < HEADER.size:
            return WalScan("torn_tail" if size else "empty")
        layout = Layout.of_header(head)
        return _scan_without_header(file, head) if layout is None else _scan_frames(file, layout, size)


def _scan_frames(file: BinaryIO, layout: Layout, size: int) -> WalScan:
    frames = list(read_frames(file, layout))
    valid = 0
    while valid < len(frames) and frames[valid].whole and frames[valid].salts == layout.salts:
        valid += 1
    commits = [index for index in range(valid) if frames[index].commit_pages]
    unfinished = valid > (commits[-1] + 1 if commits else 0)
    after = _whole_frames_after(file, layout, frames, valid)

    bad: int | None = None
    if valid < len(frames):
        ended = not after and _is_of_another_generation(frames[valid], layout)
        bad = None if ended else valid + 1
    elif (size - HEADER.size) % layout.frame_bytes:
        file.seek(layout.offset(valid))
        stump = file.read(FRAME_HEADER.size)
        ended = len(stump) == FRAME_HEADER.size and stump[8:16] not in (layout.salts, bytes(8))
        bad = None if ended else valid + 1

    verdict: Verdict
    if bad is None:
        verdict = "torn_tail" if unfinished else "clean" if valid else "empty"
    else:
        dropped = _claimed_commits(layout, frames, valid, after)
        dropped += _ended_a_commit(file, layout, frames, valid)
        verdict = "damaged" if dropped > 1 else "torn_tail"
    commits_after = sum(1 for index in after if frames[index].commit_pages)
    return WalScan(verdict, layout.page_bytes, valid, len(commits), len(after), commits_after, bad)


def _scan_without_header(file: BinaryIO, head: bytes) -> WalScan:
    """The scan of a WAL whose header is bad: SQLite would ignore the file, and all that it holds."""
    layout = _guessed(file, head)
    if layout is not None:
        frames = list(read_frames(file, layout))
        after = _whole_frames_after(file, layout, frames, -1)
        commits = sum(1 for index in after if frames[index].commit_pages)
        return WalScan("damaged", layout.page_bytes, 0, 0, len(after), commits, 0)
    file.seek(HEADER.size)
    while block := file.read(_BLOCK_BYTES):
        if any(block):
            return WalScan("damaged", damaged_at_frame=0)
    return WalScan("torn_tail", damaged_at_frame=0)


def _guessed(file: BinaryIO, head: bytes) -> Layout | None:
    """The layout of a WAL whose header is bad: a block is enough, and the first frame that goes on from another has the salts."""
    for guess in Layout.guesses(head):
        for frame in read_frames(file, guess, blocks=1):
            if frame.whole:
                return guess._replace(salts=frame.salts)
    return None


class Layout(NamedTuple):
    """How to read the frames of one WAL."""

    page_bytes: int
    big_endian: bool
    salts: bytes
    seed: tuple[int, int]  # the header's checksum, from which the first frame's goes on

    @property
    def frame_bytes(self) -> int:
        return FRAME_HEADER.size + self.page_bytes

    def offset(self, index: int) -> int:
        return HEADER.size + index * self.frame_bytes

    @classmethod
    def of_header(cls, head: bytes) -> Layout | None:
        """The layout that the header states, or None where SQLite would not believe it."""
        magic, version, page_bytes, _, salts, *checksum = HEADER.unpack(head)
        layout = cls(page_bytes, bool(magic & 1), salts, (checksum[0], checksum[1]))
        believed = (
            magic & ~1 == MAGIC
            and version == VERSION
            and page_bytes in _PAGE_SIZES
            and checksum_of(head[:24], (0, 0), layout.big_endian) == layout.seed
        )
        return layout if believed else None

    @classmethod
    def guesses(cls, head: bytes) -> Iterator[Layout]:
        """Every layout there is, the one that the bad header states first."""
        magic, _, stated_bytes, _, salts, *checksum = HEADER.unpack(head)
        for page_bytes in sorted(_PAGE_SIZES, key=lambda page_bytes: page_bytes != stated_bytes):
            for big_endian in (bool(magic & 1), not magic & 1):
                yield cls(page_bytes, big_endian, salts, (checksum[0], checksum[1]))


class Frame(NamedTuple):
    page: int
    commit_pages: int  # the size of the database after the commit that this frame ends, or 0
    salts: bytes
    stored: tuple[int, int]
    computed: tuple[int, int]  # from the checksum stored in the frame before

    @property
    def whole(self) -> bool:
        return self.stored == self.computed and self.page != 0  # zeros sum to zero, and SQLite refuses page 0


def read_frames(file: BinaryIO, layout: Layout, *, blocks: int | None = None) -> Iterator[Frame]:
    """The complete frames of the file in order, each judged by its predecessor alone."""
    frame_bytes = layout.frame_bytes
    per_block = max(1, _BLOCK_BYTES // frame_bytes)
    before = layout.seed
    file.seek(HEADER.size)
    while blocks is None or blocks > 0:
        block = file.read(per_block * frame_bytes)
        count = len(block) // frame_bytes
        if not count:
            return
        block = block[: count * frame_bytes]
        heads = [FRAME_HEADER.unpack_from(block, index * frame_bytes) for index in range(count)]
        seeds = [before, *((s1, s2) for *_, s1, s2 in heads)]
        before = seeds.pop()
        sums = _checksums(block, seeds, layout)
        for (page, commit_pages, salts, s1, s2), computed in zip(heads, sums, strict=True):
            yield Frame(page, commit_pages, salts, (s1, s2), computed)
        blocks = None if blocks is None else blocks - 1


def _whole_frames_after(file: BinaryIO, layout: Layout, frames: Sequence[Frame], bad: int) -> list[int]:
    """The indices of the frames after the bad one that are of the present generation and whole."""
    whole = []
    for index in range(bad + 1, len(frames)):
        frame = frames[index]
        if frame.salts != layout.salts or not frame.page:
            continue
        if frame.whole or (index and _follows_computed(file, layout, frames, index)):
            whole.append(index)
    return whole


def _follows_computed(file: BinaryIO, layout: Layout, frames: Sequence[Frame], index: int) -> bool:
    """Whether the frame goes on from what its predecessor's checksum should have been."""
    before = frames[index - 1]
    if before.salts != layout.salts or before.stored == before.computed:
        return False
    summed = summed_part(file, layout, index)
    return checksum_of(summed, before.computed, layout.big_endian) == frames[index].stored


def _is_of_another_generation(frame: Frame, layout: Layout) -> bool:
    # A frame that goes on from its predecessor was written after it: then it is the salts that were hit.
    return frame.salts not in (layout.salts, bytes(8)) and frame.stored != frame.computed


def _ended_a_commit(file: BinaryIO, layout: Layout, frames: Sequence[Frame], index: int) -> bool:
    """Whether the first bad frame ended a commit before it was hit."""
    if index == len(frames):
        return False  # only a stump of it is there
    frame = frames[index]
    if frame.commit_pages:
        return not _is_of_another_generation(frame, layout)
    # The size field of a commit may have lost its only bit: then putting one back makes the frame whole.
    seed = frames[index - 1].stored if index else layout.seed
    summed = bytearray(summed_part(file, layout, index))
    for bit in range(32):
        struct.pack_into(">I", summed, 4, 1 << bit)
        if checksum_of(summed, seed, layout.big_endian) == frame.stored:
            return True
    return False


def _claimed_commits(layout: Layout, frames: Sequence[Frame], bad: int, whole: Sequence[int]) -> int:
    """How many frames after the bad one end a commit of the present generation, by their headers.

    They need not be whole: what hits a header hides whether the next frame is. But where a sector ends
    between size and salts, a torn write may join an old size to new salts, so only a whole one counts.
    """
    surely = set(whole)
    claims = 0
    for index in range(bad + 1, len(frames)):
        if frames[index].commit_pages and frames[index].salts == layout.salts:
            claims += index in surely or (layout.offset(index) + 8) % _SECTOR_BYTES != 0
    return claims


def summed_part(file: BinaryIO, layout: Layout, index: int) -> bytes:
    file.seek(layout.offset(index))
    frame = file.read(layout.frame_bytes)
    return frame[:8] + frame[FRAME_HEADER.size :]  # salts and checksum are not summed


def checksum_of(summed: bytes | bytearray, seed: tuple[int, int], big_endian: bool) -> tuple[int, int]:
    """SQLite's WAL checksum, one word after the other."""
    words = struct.unpack(f"{'>' if big_endian else '<'}{len(summed) // 4}I", summed)
    s1, s2 = seed
    for even, odd in zip(words[::2], words[1::2], strict=True):
        s1 = (s1 + even + s2) & 0xFFFFFFFF
        s2 = (s2 + odd + s1) & 0xFFFFFFFF
    return s1, s2


def _checksums(block: bytes, seeds: Sequence[tuple[int, int]], layout: Layout) -> Iterator[tuple[int, int]]:
    """The same for all frames of a block at once, each frame in its own lane of two long integers."""
    count = len(seeds)
    if layout.big_endian:
        words = array("I", block)
        words.byteswap()
        block = words.tobytes()
    pairs = memoryview(block).cast("Q")
    stride = layout.frame_bytes // _LANE_BYTES
    low = int.from_bytes(b"\xff\xff\xff\xff\0\0\0\0" * count, "little")
    s1 = int.from_bytes(struct.pack(f"<{count}Q", *(seed[0] for seed in seeds)), "little")
    s2 = int.from_bytes(struct.pack(f"<{count}Q", *(seed[1] for seed in seeds)), "little")
    for step, column in enumerate((0, *range(FRAME_HEADER.size // _LANE_BYTES, stride)), 1):
        pair = int.from_bytes(pairs[column::stride].tobytes(), "little")
        s1 += (pair & low) + s2
        s2 += ((pair >> 32) & low) + s1
        if step % _PAIRS_BETWEEN_MASKS == 0:
            s1 &= low
            s2 &= low
    # The two sums of a frame side by side in its lane, as its header stores them.
    both = (s1 & low) | (s2 & low) << 32
    return struct.iter_unpack("<II", both.to_bytes(count * _LANE_BYTES, "little"))


# ---- a copy of a damaged log that SQLite reads all of, not only what lies before the damage
#
# Each frame's checksum goes on from that of the frame before, which is why SQLite stops at the first bad one. The copy has
# every frame of the present generation up to the last whole commit, under new checksums. A bad frame is first put right where
# that is possible: if the frame after it agrees with what its checksum should be, only the checksum was hit; and the
# checksum is linear, so the one flipped bit that explains the difference is found by arithmetic. Where neither helps,
# the frame is taken as it is: a page with a few wrong bytes mostly spoils one row, a missing page the whole tree.

_LOW = 0xFFFFFFFF


class Mending(NamedTuple):
    """What the copy holds."""

    frames: int = 0
    mended: int = 0  # bad frames that were put right
    doubtful: int = 0  # bad frames that were taken as they are, or left out


def copy_mended(source: Path, target: Path) -> Mending:
    """Write the mended log to `target`; nothing is written when the source holds nothing that SQLite could use."""
    try:
        file = source.open("rb")
    except FileNotFoundError:
        return Mending()
    with file:
        head = file.read(HEADER.size)
        layout = None
        if len(head) == HEADER.size:
            layout = Layout.of_header(head) or _guessed(file, head)
        if layout is None:
            return Mending()
        frames = list(read_frames(file, layout))
        end = _end_of_last_commit(layout, frames)
        return _write(file, target, layout, frames[:end]) if end else Mending()


def _end_of_last_commit(layout: Layout, frames: Sequence[Frame]) -> int:
    """One past the last frame that surely ends a commit of the present generation."""
    for index in range(len(frames) - 1, -1, -1):
        frame = frames[index]
        if frame.whole and frame.commit_pages and frame.salts == layout.salts:
            return index + 1
    return 0


def _write(file: BinaryIO, target: Path, layout: Layout, frames: Sequence[Frame]) -> Mending:
    pages_max = max(frame.commit_pages for frame in frames if frame.whole)
    head = HEADER.pack(MAGIC | layout.big_endian, VERSION, layout.page_bytes, 0, layout.salts, 0, 0)[:24]
    seed = checksum_of(head, (0, 0), layout.big_endian)
    written = mended = doubtful = 0
    before = layout.seed  # the checksum before this frame as it was when the frame was written
    with target.open("wb") as out:
        out.write(head + struct.pack(">II", *seed))
        for index, frame in enumerate(frames):
            summed = summed_part(file, layout, index)
            own = checksum_of(summed, before, layout.big_endian)
            before = frame.stored
            if own != frame.stored:
                if _goes_on_from(file, layout, frames, index + 1, own):
                    before, mended = own, mended + 1
                elif right := _with_one_bit_put_right(summed, own, frame.stored, layout.big_endian):
                    summed, mended = right, mended + 1
                else:
                    doubtful += 1
                    page = struct.unpack_from(">I", summed)[0]
                    if not 1 <= page <= pages_max or frame.salts != layout.salts:
                        continue
            seed = checksum_of(summed, seed, layout.big_endian)
            out.write(summed[:8] + layout.salts + struct.pack(">II", *seed) + summed[8:])
            written += 1
    return Mending(written, mended, doubtful)


def _goes_on_from(
    file: BinaryIO, layout: Layout, frames: Sequence[Frame], index: int, seed: tuple[int, int]
) -> bool:
    if index >= len(frames):
        return False
    return checksum_of(summed_part(file, layout, index), seed, layout.big_endian) == frames[index].stored


def _with_one_bit_put_right(
    summed: bytes, found: tuple[int, int], wanted: tuple[int, int], big_endian: bool
) -> bytes | None:
    """The bytes with the one bit flipped that turns the checksum found into the one wanted; None if there is none."""
    form = f"{'>' if big_endian else '<'}{len(summed) // 4}I"
    words = list(struct.unpack(form, summed))
    missing = ((wanted[0] - found[0]) & _LOW, (wanted[1] - found[1]) & _LOW)
    # How a change by one in the even and in the odd word of a pair reaches the two sums, from the last pair on.
    even, odd = (1, 1), (0, 1)
    for place in range(len(words) - 2, -1, -2):
        for at, (a, b) in ((place, even), (place + 1, odd)):
            for bit in range(32):
                change = -(1 << bit) if words[at] >> bit & 1 else 1 << bit
                if a * change & _LOW == missing[0] and b * change & _LOW == missing[1]:
                    words[at] += change
                    return struct.pack(form, *words)
        even = ((even[0] + even[1]) & _LOW, (even[0] + 2 * even[1]) & _LOW)
        odd = ((odd[0] + odd[1]) & _LOW, (odd[0] + 2 * odd[1]) & _LOW)
    return None
