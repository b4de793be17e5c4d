"""Cut the power under a running server: a file system of its own, shut down without flushing anything, mounted again.

An ext4 (or xfs) image is mounted through a loop device. The shutdown ioctl makes the file system forget everything that was
not synced, its own log included, exactly as a machine does that loses power; then the server is killed, the image mounted
anew, and the server started on what is left. Needs root and loop devices.

An answer that arrives after the cut began counts as unknown: a machine without power gives none. This is no mere nicety. A
process lives on for a moment here, and an fdatasync that is under way while ext4 shuts down may return success for blocks
that are then dropped (seen in 15 of 150 cuts under a bare loop of write and fdatasync; never for one that had returned
before).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.faults.checker import check
from tests.faults.history import History
from tests.faults.load import Load
from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import ServerGone, ServerProcess

CUTS = 3
_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32): the same number on ext4 and xfs
_WITHOUT_LOG_FLUSH = 2
_LOAD_S = (0.2, 1.0)
_DRAIN_S = 60.0
_IMAGE_BYTES = {"ext4": 256 << 20, "xfs": 512 << 20}


def why_not(file_system: str = "ext4") -> str | None:
    """The reason for which this machine does not permit power cuts; None where it does."""
    if os.geteuid() != 0:
        return "power cuts need root, to mount an image"
    for tool in (f"mkfs.{file_system}", "mount", "umount", "losetup"):
        if shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is None:
            return f"power cuts need {tool}"
    found = subprocess.run(["losetup", "-f"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return f"power cuts need a loop device ({found.stderr.strip()})"
    with scratch(Outcome("power-cut-probe", 0)) as place:
        try:
            with contextlib.closing(Disk(place, file_system)) as disk:
                disk.mount()
                disk.cut()
        except (OSError, subprocess.CalledProcessError) as problem:
            return f"power cuts are not permitted here ({problem})"
    return None


class Disk:
    """A small disk of its own whose power can be cut."""

    def __init__(self, place: Path, file_system: str) -> None:
        self._image = place / "disk.img"
        self._file_system = file_system
        self.root = place / "mnt"
        self.root.mkdir()
        self._mounted = False
        with self._image.open("wb") as image:
            image.truncate(_IMAGE_BYTES[file_system])
        force = "-F" if file_system == "ext4" else "-f"
        _run(f"mkfs.{file_system}", "-q", force, str(self._image))

    def mount(self) -> None:
        """Switch on; what the log holds is replayed."""
        _run("mount", "-t", self._file_system, "-o", "loop", str(self._image), str(self.root))
        self._mounted = True

    def sync(self) -> None:
        """Write everything out."""
        _run("sync", "-f", str(self.root))

    def cut(self) -> None:
        """From this instant on nothing more reaches the disk, and what had not is gone."""
        fd = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _WITHOUT_LOG_FLUSH))
        finally:
            os.close(fd)

    def unmount(self) -> None:
        """Let go of the mount; nobody may use it any more."""
        for _ in range(100):
            try:
                _run("umount", str(self.root))
                break
            except subprocess.CalledProcessError:
                time.sleep(0.05)  # the killed server's last pages are being let go
        else:
            _run("umount", "-l", str(self.root))
        self._mounted = False

    def close(self) -> None:
        """Unmount if it is mounted."""
        if self._mounted:
            self.unmount()


def _run(*command: str) -> None:
    environ = os.environ | {"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    subprocess.run(command, check=True, capture_output=True, text=True, env=environ)


def run_power_cuts(
    cycles: int = CUTS, seed: int = 1, *, broken: str | None = None, file_system: str = "ext4"
) -> Outcome:
    """Cut the power so many times under load, then drain and check."""
    name = "power-cut" if file_system == "ext4" else f"power-cut-{file_system}"
    outcome = Outcome(name if broken is None else f"{name}-{broken}", seed)
    began_s = time.monotonic()
    with scratch(outcome) as place, _disk(place, file_system) as disk:
        # After each cut open leases would have a grace, in which their messages are late by design.
        server = ServerProcess(disk.root / "data", place, broken=broken, arguments=("--no-lease-grace",))
        history = History(place / "history.jsonl")
        load = Load(server.port, seed, history)
        try:
            asyncio.run(_run_load(outcome, server, load, disk, cycles, random.Random(seed)))
        except ServerGone as problem:
            outcome.add("server", str(problem))
        finally:
            server.kill()
            history.close()
        verdict = check(history.events, drained=outcome.ok)
        outcome.take(verdict)
        counts = " ".join(f"{name}={count}" for name, count in verdict.counts.items())
        outcome.done = f"{cycles} cuts in {time.monotonic() - began_s:.0f} s, {counts}"
    return outcome


@contextlib.contextmanager
def _disk(place: Path, file_system: str) -> Iterator[Disk]:
    disk = Disk(place, file_system)
    disk.mount()
    try:
        yield disk
    finally:
        disk.close()


async def _run_load(
    outcome: Outcome, server: ServerProcess, load: Load, disk: Disk, cycles: int, rng: random.Random
) -> None:
    await asyncio.to_thread(server.start)
    await load.create_queues()
    await asyncio.to_thread(disk.sync)  # the queues themselves are not what is tested
    load.start()
    try:
        for _ in range(cycles):
            await asyncio.sleep(rng.uniform(*_LOAD_S))
            server.require_alive()
            await asyncio.to_thread(_cut_and_restart, server, disk, load.history)
    finally:
        await load.stop()
    left = await load.drain(_DRAIN_S)
    if left:
        outcome.add("undrained", f"{left} messages were left after {_DRAIN_S:g} s of draining")


def _cut_and_restart(server: ServerProcess, disk: Disk, history: History) -> None:
    history.power_is_off = True
    disk.cut()
    server.kill()
    disk.unmount()
    disk.mount()
    history.power_is_off = False
    server.start()
