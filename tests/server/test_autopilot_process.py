"""The autopilot beside a server: whatever becomes of its process, there is a next one."""

from __future__ import annotations

import asyncio
import errno
import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until_async
from veil.server import autopilot
from veil.server.settings import Settings


async def test_it_is_started_again_where_it_could_not_start_and_where_it_said_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    started, begin = 0, asyncio.create_subprocess_exec

    async def start(*command: str, **given: Any) -> asyncio.subprocess.Process:
        nonlocal started
        started += 1
        if started == 1:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        if started == 3:
            await asyncio.Event().wait()  # so that none runs at the end
        return await begin(sys.executable, "-c", "print('x' * 200_000); print('then this')", **given)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    monkeypatch.setattr(autopilot, "_PAUSES_S", (0,))
    caplog.set_level(logging.INFO, "veil")
    keeping = asyncio.create_task(autopilot.AutopilotProcess(Settings(data=tmp_path), {}).keep("http://a"))
    await until_async(lambda: keeping.done() or started == 3)
    assert not keeping.done() and "autopilot: then this" in caplog.text
    assert "the autopilot could not be started: Resource temporarily unavailable" in caplog.text
    assert "the autopilot ended (exit 0)" in caplog.text
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping
