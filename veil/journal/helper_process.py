"""The helper process seen from the server: started when it is first needed, started again if it has died."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from veil.core.errors import VeilError
from veil.core.event import ExportPlan, OutboxRow
from veil.journal import frames

T = TypeVar("T")

_ENDING_S: Final = 2.0
_NICENESS: Final = 10


def module_path() -> list[str]:
    """The PYTHONPATH of a helper process."""
    # Where our own modules come from, but for the current directory: what lies there is not part of Veil, and the
    # helper's environment has secrets.
    here = os.path.realpath(os.curdir)
    own = [path for path in sys.path if path and os.path.realpath(path) != here]
    return [*own, str(Path(__file__).parents[2])]


class ExportFailed(VeilError):
    """A segment could not be written; its rows are still in the outbox."""


class HelperProcess:
    """Writes segments to one location in another process. One command at a time."""

    def __init__(self, where: str, store_id: str) -> None:
        self._location = (where, store_id)
        self._process: asyncio.subprocess.Process | None = None
        self._niceness = _NICENESS

    @property
    def pid(self) -> int | None:
        """Of the helper, if one runs."""
        return None if self._process is None else self._process.pid

    async def write(self, plan: ExportPlan, rows: AsyncIterator[Sequence[OutboxRow]]) -> frames.Written:
        """Write the segment of a plan; raises ExportFailed with the reason."""
        async with self._in_step() as (commands, answers):
            commands.write(frames.frame(frames.SEGMENT, plan))
            async for some in rows:
                commands.writelines(frames.row_frames(some))
                await commands.drain()
            commands.write(frames.frame(frames.END))
            return await _answer(answers, frames.Written)

    async def sweep(self, before_day: str) -> list[str]:
        """Remove the days before this one and say which; raises ExportFailed with the reason."""
        async with self._in_step() as (commands, answers):
            commands.write(frames.frame(frames.SWEEP, before_day))
            return await _answer(answers, list[str])

    def hurry(self) -> None:
        """From now on nobody needs the processor more than the helper."""
        self._niceness = 0

    async def close(self) -> None:
        """Let the helper end; the next command starts another."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _ENDING_S)
        await self.kill()

    async def kill(self) -> None:
        """End the helper at once; what it had not finished never appears."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        with suppress(TimeoutError):  # one whose file system hangs ends when that answers
            await asyncio.wait_for(process.wait(), _ENDING_S)

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "veil.journal.helper", str(self._niceness), *self._location,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                # A Ctrl-C in the terminal is for the server, which still has something to export then.
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(module_path())},
            )  # fmt: skip
        except OSError as problem:
            raise ExportFailed(f"the helper process cannot be started: {problem.strerror}") from None
        return self._process

    @asynccontextmanager
    async def _in_step(self) -> AsyncIterator[tuple[asyncio.StreamWriter, asyncio.StreamReader]]:
        """What takes a command, and what gives its answer."""
        try:
            process = await self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            yield process.stdin, process.stdout
        except ExportFailed:
            raise
        except (OSError, EOFError) as problem:
            died = self._process
            await self.kill()
            code = died.returncode if died is not None else None
            raise ExportFailed(f"the helper process has died (exit {code})") from problem
        except BaseException:
            # Half a command was said, and the rest never will be: only a new helper is in step again.
            await self.kill()
            raise


async def _answer(answers: asyncio.StreamReader, expected: type[T]) -> T:
    kind, length = frames.HEAD.unpack(await answers.readexactly(frames.HEAD.size))
    body = await answers.readexactly(length)
    if kind == frames.FAILED:
        raise ExportFailed(msgspec.msgpack.decode(body, type=str))
    return msgspec.msgpack.decode(body, type=expected)
