"""One run at a time on the same tables; a run that died holds nothing up.

On this machine's files the kernel keeps the lock and drops it with the process. Elsewhere a file says who runs and until
when, and is renewed: such a lock is taken over a minute after its owner fell silent.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from veil.core.errors import VeilError
from veil.journal.storage import Storage

NAME: Final = "_lock"
KEPT_S: Final = 60.0
RENEWED_S: Final = 15.0
SETTLED_S: Final = 1.0


class TablesBusy(VeilError):
    """Another run is writing the tables, or whatever else the lock is for."""

    def __init__(self, tables: Storage, owner: str) -> None:
        super().__init__(f"another run is writing {tables.uri}: {owner}")
        self.owner = owner


def only_run(tables: Storage, name: str = NAME) -> AbstractContextManager[Callable[[], None]]:
    """Be the only run on the tables during the block; raises TablesBusy. Each `name` is a lock of its own.

    What the block is given is to be called before the commit: it raises TablesBusy if the lock was lost.
    """
    return _held_locally(tables, name) if "://" not in tables.uri else held_by_file(tables, name)


def _me() -> dict[str, Any]:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"process": os.getpid(), "host": socket.gethostname(), "since": since}


def _told(owner: dict[str, Any]) -> str:
    return f"process {owner.get('process')} on {owner.get('host')}, since {owner.get('since')}"


@contextmanager
def _held_locally(tables: Storage, name: str) -> Iterator[Callable[[], None]]:
    import fcntl

    path = Path(tables.uri) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    # Never removed: a second run would lock a file that a third cannot see any more.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TablesBusy(tables, _told(_decoded(os.read(descriptor, 4096)))) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_me()).encode(), 0)
        yield lambda: None
    finally:
        os.close(descriptor)


@contextmanager
def held_by_file(
    tables: Storage,
    name: str = NAME,
    *,
    now_s: Callable[[], float] = time.time,
    rest: Callable[[float], None] = time.sleep,
) -> Iterator[Callable[[], None]]:
    """The lock for a place that has no locks of its own; for clocks that agree within a minute."""
    token, file = secrets.token_hex(8), f"{name}.json"

    def owner() -> dict[str, Any]:
        try:
            return _decoded(tables.read(file))
        except FileNotFoundError:
            return {}

    def claim() -> None:
        mine = {**_me(), "token": token, "until_s": now_s() + KEPT_S}
        tables.write(file, json.dumps(mine).encode())

    def check() -> None:
        found = owner()
        if found.get("token") != token:
            raise TablesBusy(tables, _told(found))

    found = owner()
    if float(found.get("until_s", 0.0)) > now_s():
        raise TablesBusy(tables, _told(found))
    claim()
    # Two that claimed in the same instant: the later write stands, and both will see whose it is.
    rest(SETTLED_S)
    check()
    ended = threading.Event()
    keeper = threading.Thread(target=_keep, args=(ended, check, claim), daemon=True)
    keeper.start()
    try:
        yield check
    finally:
        ended.set()
        keeper.join()
        if owner().get("token") == token:
            tables.remove(file)


def _keep(ended: threading.Event, check: Callable[[], None], claim: Callable[[], None]) -> None:
    while not ended.wait(RENEWED_S):
        try:
            check()
            claim()
        except TablesBusy:
            return  # the run learns it before its commit
        except OSError:
            continue  # perhaps the next time; the lock is kept for several of these


def _decoded(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
