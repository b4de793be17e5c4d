"""What the system knows about a process that is being measured: its CPU time, its memory, whether it rests."""

from __future__ import annotations

import os
import resource
import socket
import time
from pathlib import Path

from bench.load import process_cpu_s

HOST = "127.0.0.1"


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def await_listening(port: int, timeout_s: float = 60.0) -> None:
    """Return once somebody accepts connections on the port."""
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise TimeoutError(f"port={port}: nothing listens there after {timeout_s:g} s")


def server_cpu_s(pid: int) -> float:
    """The CPU seconds that a server has used so far, its workers included."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    workers = [
        int(each) for each in children if b"veil.server.worker" in Path(f"/proc/{each}/cmdline").read_bytes()
    ]
    return sum(map(process_cpu_s, [pid, *workers]))


def rss_mb(pid: int) -> float:
    """The resident memory of a process, in megabytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"pid={pid}: expected a living process")


def await_rest(pid: int, timeout_s: float = 10.0) -> None:
    """Return once the process has nothing left to do, such as sweeping what a measurement left behind."""
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        before_s = process_cpu_s(pid)
        time.sleep(0.15)
        if process_cpu_s(pid) - before_s <= 0.02:
            return


def raise_file_limit() -> int:
    """Let this process and its children open as many files as the system allows; how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def sync_us(directory: Path, rounds: int = 100) -> float:
    """The median time in microseconds to append 4 KiB to a file there and have it on disk."""
    path = directory / "sync-probe"
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    times_us = []
    try:
        for _ in range(rounds):
            begun_s = time.perf_counter()
            os.write(file, bytes(4096))
            os.fdatasync(file)
            times_us.append((time.perf_counter() - begun_s) * 1e6)
    finally:
        os.close(file)
        path.unlink()
    return sorted(times_us)[rounds // 2]


def process_cpu_ns(pid: int) -> int:
    """The CPU nanoseconds of all threads of a process: for work too short for the system's ticks of 10 ms."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue  # the thread has ended since it was listed
    return total
