"""Copy a damaged write-ahead log so that SQLite reads all of it, not only what lies before the damage.

Each frame's checksum goes on from that of the frame before, which is why SQLite stops at the first bad one. The copy has
every frame of the present generation up to the last whole commit, under new checksums. A bad frame is first put right where
that is possible: if the frame after it agrees with what its checksum should be, only the checksum was hit; and the
checksum is linear, so the one flipped bit that explains the difference is found by arithmetic. Where neither helps,
the frame is taken as it is: a page with a few wrong bytes mostly spoils one row, a missing page the whole tree.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from veil.stores.sqlite.recovery.wal_scan import (
    HEADER,
    MAGIC,
    VERSION,
    Frame,
    Layout,
    checksum_of,
    read_frames,
    summed_part,
)

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
        layout = _layout_of(file)
        if layout is None:
            return Mending()
        frames = list(read_frames(file, layout))
        end = _end_of_last_commit(layout, frames)
        return _write(file, target, layout, frames[:end]) if end else Mending()


def _layout_of(file: BinaryIO) -> Layout | None:
    head = file.read(HEADER.size)
    if len(head) < HEADER.size:
        return None
    if layout := Layout.of_header(head):
        return layout
    for guess in Layout.guesses(head):
        for frame in read_frames(file, guess, blocks=1):
            if frame.whole:
                return guess._replace(salts=frame.salts)
    return None


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
