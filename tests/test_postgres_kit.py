"""The databases of the tests are their own: found by themselves, gone with them, and nobody else's is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import postgres_kit
from tests.postgres_kit import VARIABLE, drop_database, new_database, why_no_postgres
from tests.waiting import until

pytestmark = pytest.mark.skipif(why_no_postgres() is not None, reason=str(why_no_postgres()))

REPOSITORY = Path(__file__).parent.parent
STARTS_ONE = """
from tests.postgres_kit import own_server
server = own_server()
print(server.place, flush=True)
input()
"""


def names_of_databases(dsn: str) -> set[str]:
    import psycopg

    with psycopg.connect(dsn) as connection:
        return {name for (name,) in connection.execute("SELECT datname FROM pg_database")}


def test_a_server_goes_with_the_process_that_started_it_even_when_that_is_killed():
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    owner = subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=environ,
    )  # fmt: skip
    assert owner.stdin is not None and owner.stdout is not None
    place = Path(owner.stdout.readline().strip())
    assert (place / "data" / "postmaster.pid").exists()

    owner.send_signal(signal.SIGKILL)
    owner.communicate()

    until(lambda: not place.exists())


def test_on_a_server_that_is_named_only_databases_of_our_own_come_and_go(postgres: str, monkeypatch):
    before = names_of_databases(postgres)
    monkeypatch.setattr(postgres_kit, "GIVEN", postgres)

    made = new_database()

    assert names_of_databases(postgres) - before == {postgres_kit.database_name(made)}
    drop_database(made)
    assert names_of_databases(postgres) == before


def test_a_database_that_is_not_ours_is_never_dropped(postgres: str):
    with pytest.raises(AssertionError, match="not ours"):
        drop_database(postgres.replace(postgres_kit.database_name(postgres), "production"))


def test_without_any_server_there_is_one_clear_reason(monkeypatch):
    monkeypatch.setattr(postgres_kit, "GIVEN", None)
    monkeypatch.setattr(postgres_kit, "why_no_server", lambda: "no PostgreSQL server binaries")
    assert why_no_postgres() == f"no PostgreSQL server binaries, and {VARIABLE} names none"


async def test_a_database_that_stands_for_another_directory_is_as_its_migrations_left_it(postgres: str):
    import psycopg

    from tests.stores.kit import make_queue, some_messages
    from veil.core.clock import ManualClock
    from veil.stores.postgres import PostgresStore
    from veil.stores.postgres.opening import migrate

    def content() -> dict[str, list[tuple[object, ...]]]:
        with psycopg.connect(postgres) as connection:
            of_veil = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('veil') AND relkind IN ('r', 'S')"
            names = [name for (name,) in connection.execute(of_veil).fetchall() if name != "lease_time"]
            return {
                name: connection.execute(f"SELECT * FROM veil.{name}".encode()).fetchall() for name in names
            }

    assert not postgres_kit._emptied(postgres)  # it has no schema yet
    await migrate(postgres)
    migrated = content()
    store = PostgresStore(postgres, ManualClock())
    await store.open()
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b"))
    await store.receive(queue, 1)
    await store.close()
    assert content() != migrated

    assert postgres_kit._emptied(postgres)
    assert content() == migrated
