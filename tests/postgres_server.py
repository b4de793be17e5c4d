"""A PostgreSQL of our own: made from the machine's server binaries, in a folder of its own, gone with whoever started it."""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from tests.ports import free_port

USER = "veil"
_START_TIMEOUT_S = 60.0
# What every server here is started with: small, quiet, and durable (Veil refuses one that is not).
_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "64MB",
    "max_connections": "100",
    "log_min_messages": "warning",
    "log_checkpoints": "off",
    "timezone": "UTC",
    "max_wal_size": "1GB",
}
# The server ends when this script's input does, which it does however we end, kill -9 included; and unless a line came first,
# which names the signal, its files go too.
_KEEPER = """\
place=$1; ending=$2; shift 2
exec 3<&0
"$@" </dev/null 3<&- &
server=$!
( read signal <&3 || touch "$place/abandoned"; kill -${signal:-$ending} $server ) &
reader=$!
wait $server
kill $reader 2>/dev/null
[ ! -e "$place/abandoned" ] || rm -rf "$place"
"""


@cache
def postgres_binaries() -> Path | None:
    """The folder of the newest server binaries on this machine; None where there are none."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version_of, reverse=True)
    on_path = shutil.which("postgres")
    if on_path is not None:
        places.append(Path(on_path).resolve().parent)
    return next((place for place in places if (place / "initdb").exists()), None)


def _version_of(place: Path) -> int:
    found = re.match(r"[0-9]+", place.parent.name)
    return int(found[0]) if found else 0


def why_no_server() -> str | None:
    """Why a PostgreSQL cannot be started here; None where it can."""
    if postgres_binaries() is None:
        return "no PostgreSQL server binaries in /usr/lib/postgresql/*/bin or on PATH"
    if os.getuid() == 0 and _unprivileged() is None:
        return "PostgreSQL does not run as root, and there is no user postgres or nobody to run it as"
    return None


def _unprivileged() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


class PostgresGone(Exception):
    """The server did not start, or a tool of its own failed; the text ends with what it said."""


class PostgresServer:
    """One cluster: made once, started and stopped any number of times, on a socket in its folder and a loopback port."""

    def __init__(
        self, *, in_memory: bool = False, settings: Mapping[str, str] | None = None, host: str | None = None
    ) -> None:
        self.place = new_place(in_memory)
        self.host = host or str(self.place)  # where nodes and standbys find it
        self.data = self.place / "data"
        self.port = free_port()
        self._settings = _SETTINGS | dict(settings or {})
        self._keeper: subprocess.Popen[bytes] | None = None

    # ---- its making

    def create(self) -> None:
        """An empty cluster. The first is kept: to copy it costs a tenth of what initdb does."""
        if not (kept := _kept_cluster()).exists():
            arguments = ["-D", str(kept), "-U", USER, "-A", "trust", "-E", "UTF8", "-N", "--no-instructions"]
            try:
                # A language's own order of letters, not that of bytes: a query that forgot to ask for bytes shows.
                self.run("initdb", *arguments, "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en")
            except PostgresGone:
                shutil.rmtree(kept, ignore_errors=True)
                self.run("initdb", *arguments, "--no-locale")
        subprocess.run(["cp", "-a", kept, self.data], check=True)

    def copy_from(self, primary: PostgresServer, *, name: str) -> None:
        """Become a standby of that server, known to it by that name; what was here before is gone."""
        shutil.rmtree(self.data, ignore_errors=True)
        source = primary.dsn("postgres", host=primary.host, application_name=name)
        self.run(
            "pg_basebackup", "-D", str(self.data), "-d", source, "-R", "-X", "stream", "-N", "-c", "fast"
        )
        # The copied settings may ask for a standby; this one has none of its own. The last line of the file wins.
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("synchronous_standby_names = ''\n")

    def remove(self) -> None:
        """Stop it and leave nothing behind."""
        self.stop("immediate")
        shutil.rmtree(self.place, ignore_errors=True)

    # ---- its lives

    def start(self, *, wait: bool = True) -> None:
        """Start, and return when it takes connections."""
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        command = [self._tool("postgres"), "-D", str(self.data), "-p", str(self.port), "-k", str(self.place)]
        command += ["-h", "127.0.0.1", *options]
        self._keeper = start_kept(self.place, command)
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, within_s: float = _START_TIMEOUT_S) -> None:
        """Return when it takes connections; raises PostgresGone."""
        # By looks, not by the clock: all of the machine may have stood still meanwhile.
        for _ in range(round(within_s / 0.01)):
            if self._status_line().startswith(("ready", "standby")):
                return
            if self._keeper is None or self._keeper.poll() is not None:
                raise PostgresGone(f"PostgreSQL ended at its start: {self.talk()}")
            time.sleep(0.01)
        raise PostgresGone(f"PostgreSQL not ready after {within_s:g} s: {self.talk()}")

    def stop(self, mode: str = "fast") -> None:
        """End it: `fast` is an operator's stop, `immediate` a crash (nothing is finished or written), `kill` a kill -9 of all."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        assert keeper.stdin is not None
        left = self._processes() if mode == "kill" else []
        with contextlib.suppress(BrokenPipeError), keeper.stdin as orders:
            orders.write({"kill": b"KILL\n", "immediate": b"QUIT\n", "fast": b"INT\n"}[mode])
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        keeper.wait(_START_TIMEOUT_S)
        while any(map(_is_alive, left)):
            time.sleep(0.01)  # whoever starts it again is refused while one of them has its memory

    def promote(self) -> None:
        """Make a standby the primary, and return when it takes writes."""
        self.run("pg_ctl", "promote", "-D", str(self.data), "-w")

    # ---- talking to it

    def dsn(self, database: str, *, host: str | None = None, **more: str) -> str:
        """A connection string as `veil serve --store` takes it: over the socket, or to a host such as 127.0.0.1."""
        where = quote(str(self.place) if host is None else host, safe="")
        options = "".join(f"&{name}={quote(value, safe='')}" for name, value in more.items())
        return f"postgresql://{USER}@/{database}?host={where}&port={self.port}{options}"

    def run(self, tool: str, *arguments: str) -> str:
        """Run one of PostgreSQL's own tools as its user; what it said."""
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [self._tool(tool), *arguments], capture_output=True, text=True, cwd=self.place, **_as_user()
        )
        if done.returncode != 0:
            raise PostgresGone(f"{tool} failed: {(done.stdout + done.stderr).strip()[-2000:]}")
        return str(done.stdout)

    def run_sql(self, statement: str) -> None:
        """Have one statement done by its own user."""
        self.run("psql", "-d", self.dsn("postgres"), "-c", statement)

    def talk(self) -> str:
        """The end of what the server said."""
        with contextlib.suppress(FileNotFoundError):
            return (self.place / "log").read_text(errors="replace")[-2000:].strip()
        return ""

    def _tool(self, name: str) -> str:
        binaries = postgres_binaries()
        assert binaries is not None, why_no_server()
        return str(binaries / name)

    def _status_line(self) -> str:
        # The last line of the file says where the start has come to; a file of an earlier life has another pid.
        with contextlib.suppress(FileNotFoundError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            if len(lines) >= 8 and _is_alive(int(lines[0])):
                return lines[7].strip()
        return ""

    def _processes(self) -> list[int]:
        """Those that serve connections and do its own work; each has left the group of the first."""
        first = (self.data / "postmaster.pid").read_text().split()[0]
        return [int(pid) for pid in Path(f"/proc/{first}/task/{first}/children").read_text().split()]

    def __enter__(self) -> PostgresServer:
        self.create()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def start_kept(place: Path, command: Sequence[str], *, ending: str = "QUIT") -> subprocess.Popen[bytes]:
    """Start a server as its user, with its log in the place; `ending` ends it with us, or the signal that its input names."""
    with (place / "log").open("ab") as log:
        return subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "sh", str(place), ending, *command],
            stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=place, start_new_session=True, **_as_user(),
        )  # fmt: skip


def _as_user() -> dict[str, Any]:
    """What makes a process run as somebody PostgreSQL accepts: itself refuses to run as root."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    given: dict[str, Any] = {"env": environ | {"LC_ALL": "C"}}
    user = _unprivileged() if os.getuid() == 0 else None
    return given | (
        {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user is not None else {}
    )


@cache
def _kept_cluster() -> Path:
    place = new_place(in_memory=True)
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place / "data"


def new_place(in_memory: bool) -> Path:
    # Short: the path of a Unix socket ends after 107 bytes.
    shm = Path("/dev/shm")
    roomy = shm.is_dir() and shutil.disk_usage(shm).free > 2**30
    place = Path(tempfile.mkdtemp(prefix="veil-pg-", dir=shm if in_memory and roomy else "/tmp"))
    user = _unprivileged() if os.getuid() == 0 else None
    if user is not None:
        os.chown(place, user.pw_uid, user.pw_gid)
    return place


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
