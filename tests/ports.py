"""Ports for servers that are stopped and started again, and for "nobody listens here".

The kernel hands out ports for whoever asks for any (`bind` to 0, every outgoing connection): while a server of a test is down,
its port may so become another test's, whose server then gets the requests of clients that wait for the first. Ports below
that range are handed out by nobody, and a name in the kernel keeps each for the process that took it.
"""

from __future__ import annotations

import errno
import random
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

_HANDED_OUT: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST: Final = 10_240
_ENOUGH: Final = 1_000
_kept: Final[list[socket.socket]] = []  # for as long as this process lives


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, and that no other process of tests will get."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of so many that follow each other."""
    end = _end_of_unasked()
    starts = range(_FIRST, end - count)
    if len(starts) < _ENOUGH:
        with socket.create_server(
            ("127.0.0.1", 0)
        ) as listener:  # only a guess, on a machine that leaves no room
            return int(listener.getsockname()[1])
    anywhere = random.SystemRandom()  # a test may have seeded the other
    for _ in range(_ENOUGH):
        first = anywhere.choice(starts)
        if all(_is_taken_over(port) for port in range(first, first + count)):
            return first
    raise OSError(errno.EADDRINUSE, f"no {count} free ports found below {end}")


def _end_of_unasked() -> int:
    with suppress(OSError):
        return int(_HANDED_OUT.read_text().split()[0])
    return 0


def _is_taken_over(port: int) -> bool:
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0veil-tests-port-{port}")
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        name.close()
        return False
    _kept.append(name)
    return True
