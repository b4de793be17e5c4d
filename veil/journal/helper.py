"""The exporter's helper process: encodes and writes segments, so that the server need not.

It has an interpreter lock of its own and a low priority, and it alone loads pyarrow. It ends with its parent, however
that ends: then its input is at its end. Signals are for the parent, which stops it in its own time.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import BinaryIO

import msgspec

from veil.core.event import ExportPlan
from veil.journal import frames, import_arrow_alone
from veil.journal.storage import Location, LocationRefused


def main() -> None:
    """Serve the parent until it is gone."""
    # By the mask, not by the mode of each file: where a folder's default ACL lets others in, it has the last word.
    os.umask(0o077)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(int(sys.argv[1]))
    import_arrow_alone()
    with suppress(EOFError, BrokenPipeError):
        JournalHelper(Location(*sys.argv[2:]), sys.stdin.buffer, sys.stdout.buffer).serve()
    # Whatever libraries still have to tidy up must not keep us: the parent is gone, or does not wait.
    os._exit(0)


class JournalHelper:
    """Commands from one stream, answers to another, one after the other."""

    def __init__(self, location: Location, commands: BinaryIO, answers: BinaryIO) -> None:
        self._location, self._commands, self._answers = location, commands, answers

    def serve(self) -> None:
        """Carry out commands until there are no more; raises EOFError then."""
        acts: dict[bytes, Callable[[bytes], object]] = {
            frames.SEGMENT: self._segment,
            frames.SWEEP: self._sweep,
        }
        while True:
            kind, body = frames.read_frame(self._commands)
            try:
                answer = frames.frame(frames.DONE, acts[kind](body))
            except (EOFError, BrokenPipeError):
                raise
            except Exception as problem:  # whatever a file system can think of; the parent says it
                answer = frames.frame(frames.FAILED, _reason(problem))
            self._answers.write(answer)
            self._answers.flush()

    def _segment(self, body: bytes) -> frames.Written:
        plan = msgspec.msgpack.decode(body, type=ExportPlan)
        rows = self._rows()
        try:
            self._location.claim()
            from veil.journal.segment_writer import write_segment

            return write_segment(self._location.place, plan, rows)
        finally:
            # The parent sends the rows whether or not we can use them; the next command comes after the last.
            for _ in rows:
                pass

    def _rows(self) -> Iterator[tuple[int, bytes]]:
        while True:
            kind, body = frames.read_frame(self._commands)
            if kind == frames.END:
                return
            yield frames.NUMBER.unpack_from(body)[0], body[frames.NUMBER.size :]

    def _sweep(self, body: bytes) -> list[str]:
        return self._location.sweep(msgspec.msgpack.decode(body, type=str))


def _reason(problem: Exception) -> str:
    if isinstance(problem, LocationRefused):
        return str(problem)
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.strerror} ({problem.filename})" if problem.filename else problem.strerror
    return f"{type(problem).__name__}: {str(problem).strip().partition(chr(10))[0]}"


if __name__ == "__main__":
    main()
