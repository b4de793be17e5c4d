"""What was acknowledged survives a kill and a disk that fails; what was not is never claimed."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tests
from tests.stores.kit import a_key, bodies
from tests.stores.sqlite_kit import open_store
from veil.core.clock import ManualClock
from veil.core.errors import StoreBusy
from veil.stores.sqlite import SqliteStore
from veil.stores.sqlite.recovery.verify import verify

ROOT = Path(tests.__file__).parent.parent


def start_sender(directory: Path, label: str, *, rounds: int = 1_000_000, under: tuple[str, ...] = ()) -> Any:
    command = [*under, sys.executable, "-m", "tests.stores.sqlite_sender", str(directory), label, str(rounds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def said(lines: list[str], word: str) -> set[str]:
    return {line.split()[1] for line in lines if line.startswith(f"{word} ")}


async def bodies_in(directory: Path) -> list[str]:
    async with open_store(directory, ManualClock()) as store:
        queue = await store.find_queue(a_key("orders"))
        assert queue is not None
        return bodies(await store.peek(queue, limit=1_000_000))


@pytest.mark.slow
async def test_a_kill_at_any_moment_loses_nothing_that_was_acknowledged(tmp_path: Path):
    chance = random.Random(20)
    sent: set[str] = set()
    tried: set[str] = set()
    for cycle in range(15):
        process = start_sender(tmp_path, f"c{cycle}")
        lines = []
        stop_after = chance.randrange(1, 400)
        for line in process.stdout:
            lines.append(line.strip())
            if len(lines) == stop_after:
                process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
        # A line that was cut by the kill is not whole.
        sent |= said(lines, "sent")
        tried |= said(lines, "try")
    found = await bodies_in(tmp_path)
    assert len(sent) > 100
    assert sent <= set(found)
    assert set(found) <= tried
    assert len(found) == len(set(found))
    findings = verify(tmp_path)
    assert findings.is_sound, str(findings)


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def run_with_failing_syncs(directory: Path, when: int) -> tuple[str, str]:
    """What a sender says on a disk that fails from that sync of a thread on, SQLite's own syncs counted too."""
    trace = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync")
    inject = ("-e", f"inject=fdatasync:error=EIO:when={when}+")
    out, err = start_sender(directory, "s", rounds=200, under=(*trace, *inject)).communicate(timeout=60)
    if "not permitted" in err:
        pytest.skip("strace may not trace here")
    return out, err


@needs_strace
@pytest.mark.parametrize("when", [1, 4, 9])
async def test_a_disk_that_fails_while_the_store_opens_is_told_and_nothing_is_spoiled(
    tmp_path: Path, when: int
):
    out, err = run_with_failing_syncs(tmp_path, when)
    assert "open" not in out
    assert "StoreError" in err and "cannot be opened: " in err
    async with open_store(tmp_path):
        pass


@needs_strace
@pytest.mark.parametrize("when", [12, 13, 30])
async def test_a_disk_that_fails_to_sync_stops_the_store_and_loses_nothing(tmp_path: Path, when: int):
    out, err = run_with_failing_syncs(tmp_path, when)
    lines = out.splitlines()
    assert "open" in lines, err
    assert lines.count("failed") == 1, err
    failed_at = lines.index("failed")
    assert not said(lines[failed_at:], "sent")  # nothing is acknowledged after the failure
    refused = said(lines, "refused")
    assert refused and refused.isdisjoint(said(lines, "sent"))
    found = await bodies_in(tmp_path)
    assert said(lines, "sent") <= set(found) <= said(lines, "try")
    assert len(found) == len(set(found))


async def test_a_second_server_in_another_process_is_refused(tmp_path: Path):
    process = start_sender(tmp_path, "x")
    try:
        assert process.stdout.readline().strip() == "open"
        with pytest.raises(StoreBusy, match=f"in use by another Veil server .process {process.pid}."):
            await SqliteStore(tmp_path, ManualClock()).open()
    finally:
        process.kill()
        process.communicate()
    # The lock dies with its holder: nothing has to be cleaned up.
    async with open_store(tmp_path):
        pass
