"""A PgBouncer of our own in front of a PostgreSQL: one connection a transaction, gone with whoever started it.

`python -m tests.pgbouncer COMMAND …` runs a command with a `VEIL_TEST_POSTGRES` that leads through one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from types import TracebackType
from urllib.parse import quote

from tests.ports import free_port
from tests.postgres_server import USER, PostgresServer, new_place, start_kept, why_no_server

_START_TIMEOUT_S = 30.0
# What docs/postgresql.md asks for, and room for the tests' many databases.
_SETTINGS = {
    "pool_mode": "transaction",
    "server_login_retry": "1",
    "query_wait_timeout": "10",
    "max_client_conn": "1000",
    "default_pool_size": "20",
    "server_idle_timeout": "5",
}


def why_no_pgbouncer() -> str | None:
    """Why no PgBouncer can be started here; None where one can."""
    return why_no_server() or (None if shutil.which("pgbouncer") else "no pgbouncer on PATH")


class PgBouncer:
    """Listens on a socket in its folder, and leads to one server at a time."""

    def __init__(self, server: PostgresServer) -> None:
        self.place = new_place(in_memory=False)
        self.port = free_port()
        self._settings_file = self.place / "pgbouncer.ini"
        self._write_settings(server)
        found = shutil.which("pgbouncer")
        assert found is not None, why_no_pgbouncer()
        command = [found, str(self._settings_file)]
        self._keeper = start_kept(self.place, command, ending="TERM")  # it does not mind QUIT
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if self._keeper.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"PgBouncer did not start: {(self.place / 'log').read_text()[-2000:]}")
            time.sleep(0.01)

    def lead_to(self, server: PostgresServer) -> None:
        """Lead to another server from now on, as a failover manager has it do: new settings, and RELOAD."""
        import psycopg

        self._write_settings(server)
        with psycopg.connect(self._dsn("pgbouncer"), autocommit=True) as console:
            console.pgconn.exec_(b"RELOAD")

    def dsn(self, database: str) -> str:
        """A connection string as `veil serve --store` takes it."""
        return self._dsn(database) + "&veil_pooler=1"

    def remove(self) -> None:
        """End it and leave nothing behind."""
        assert self._keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._keeper.stdin as orders:
            orders.write(b"TERM\n")
        self._keeper.wait(_START_TIMEOUT_S)
        shutil.rmtree(self.place, ignore_errors=True)

    def _dsn(self, database: str) -> str:
        return f"postgresql://{USER}@/{database}?host={quote(str(self.place), safe='')}&port={self.port}"

    def _write_settings(self, server: PostgresServer) -> None:
        own = {
            "unix_socket_dir": self.place,
            "listen_port": self.port,
            "auth_type": "any",
            "admin_users": USER,
        }
        lines = [
            "[databases]",
            f"* = host={server.place} port={server.port} user={USER}",
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in {**_SETTINGS, **own}.items()),
        ]
        self._settings_file.write_text("\n".join(lines) + "\n")

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(self.place / f".s.PGSQL.{self.port}"))
            return True
        return False

    def __enter__(self) -> PgBouncer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def main(command: list[str]) -> int:
    """Run the command with a database behind a PgBouncer; its exit code."""
    reason = why_no_pgbouncer()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    with PostgresServer(in_memory=True) as server, PgBouncer(server) as bouncer:
        environ = {**os.environ, "VEIL_TEST_POSTGRES": bouncer.dsn("postgres")}
        return subprocess.run(command, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
