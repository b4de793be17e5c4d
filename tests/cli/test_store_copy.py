"""`veil store copy` and `veil migrate`, as their users meet them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Veil
from tests.postgres_kit import PASSWORD, drop_database, new_database, why_no_postgres, with_password
from veil.testing import VeilServer

pytestmark = pytest.mark.skipif(why_no_postgres() is not None, reason=str(why_no_postgres()))


@pytest.fixture
def data(command: Veil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory whose server has stopped, with one visible message and one in flight."""
    directory = tmp_path / "data"
    with VeilServer("--data", str(directory), "--journal", "off") as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", server.endpoint_url)
        command("queue", "create", "orders", "--visibility-timeout", "600")
        for body in ("one", "two"):
            command("msg", "send", "orders", body)
        assert command("msg", "receive", "orders", "--json").object["body"] == "one"
    return directory


def test_a_store_goes_to_postgresql_and_back_with_its_open_windows(
    command: Veil, data: Path, postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    there = command("store", "copy", str(data), with_password(postgres))
    assert (there.code, there.out) == (0, "")
    assert "rows copied from" in there.err and PASSWORD not in there.err
    with VeilServer("--store", postgres) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", server.endpoint_url)
        shown = command("queue", "show", "orders", "--json").object
        assert (shown["visible"], shown["in_flight"]) == (1, 1)
        command("msg", "send", "orders", "three")

    back = tmp_path / "back"
    outcome = command("store", "copy", postgres, f"sqlite://{back}", "--json")

    assert (outcome.code, outcome.object["resumed"]) == (0, False)
    with VeilServer("--data", str(back)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", server.endpoint_url)
        shown = command("queue", "show", "orders", "--json").object
        assert (shown["visible"], shown["in_flight"]) == (2, 1)
        assert command("msg", "receive", "orders", "--json").object["body"] == "two"


def test_mistakes_are_told_in_one_line(command: Veil, data: Path, postgres: str, tmp_path: Path):
    for arguments, code, told in (
        ((str(data), str(data)), 2, "expected two different stores"),
        ((str(data), f"mysql://me:{PASSWORD}@h/d"), 2, "'mysql://me:***@h/d': expected a data directory"),
        ((str(tmp_path / "nothing"), postgres), 1, "holds no store"),
        ((postgres, str(tmp_path / "new")), 1, "has no schema veil"),
        (
            (f"postgresql://me:{PASSWORD}@127.0.0.1:1/x", postgres),
            1,
            "FROM postgresql://me:***@127.0.0.1:1/x: PostgreSQL cannot be reached",
        ),
        (
            (str(data), f"postgresql://me:{PASSWORD}@127.0.0.1:1/x"),
            1,
            "TO postgresql://me:***@127.0.0.1:1/x: PostgreSQL cannot be reached",
        ),
        ((str(data), f"postgresql://me:{PASSWORD}%zz@h/d"), 2, "cannot be read"),
    ):
        ran = command("store", "copy", *arguments)
        assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1), ran
        assert told in ran.err and PASSWORD not in ran.err


def test_a_store_whose_server_runs_is_not_copied(command: Veil, data: Path, postgres: str, tmp_path: Path):
    with VeilServer("--data", str(data)):
        assert "in use" in command("store", "copy", str(data), postgres).err
    with VeilServer("--store", postgres):
        ran = command("store", "copy", postgres, str(tmp_path / "new"))
        assert (ran.code, ran.err.count("\n")) == (1, 1)
        assert "in use by 1 Veil node" in ran.err


def test_after_a_restore_no_receipt_is_written_twice(command: Veil, data: Path, postgres: str):
    import psycopg

    assert command("store", "copy", str(data), postgres).code == 0
    with psycopg.connect(postgres, autocommit=True) as connection:
        before = connection.execute("SELECT seq, delivery, holder FROM veil.message ORDER BY seq").fetchall()
        journal = connection.execute("SELECT value FROM veil.meta WHERE name = 'journal_id'").fetchone()

        assert command("store", "restored", with_password(postgres)).code == 0

        after = connection.execute("SELECT seq, delivery, holder FROM veil.message ORDER BY seq").fetchall()
        assert (
            connection.execute("SELECT value FROM veil.meta WHERE name = 'journal_id'").fetchone() != journal
        )
    assert after == [(seq, delivery + 1_000, holder) for seq, delivery, holder in before]
    refused = command("store", "restored", str(data))
    assert (refused.code, refused.err.count("\n")) == (2, 1)


# ---- veil migrate


def test_a_migration_is_shown_first_and_then_done_once(command: Veil, postgres: str):
    shown = command("migrate", "--store", with_password(postgres), "--dry-run")
    assert shown.code == 0
    assert "would be upgraded from version 0" in shown.err and PASSWORD not in shown.err
    assert command("migrate", "--store", postgres, "--dry-run", "--json").object["from"] == 0

    done = command("migrate", "--store", postgres, "--json").object
    assert done["from"] == 0 and done["to"] >= 1
    again = command("migrate", "--store", postgres)
    assert f"already has version {done['to']}" in again.err


def test_a_schema_newer_than_this_veil_is_refused(command: Veil, postgres: str):
    import psycopg

    command("migrate", "--store", postgres)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("UPDATE veil.meta SET value = '999' WHERE name = 'schema_version'")
    ran = command("migrate", "--store", postgres)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "version 999" in ran.err


def test_only_a_database_is_migrated(command: Veil, monkeypatch: pytest.MonkeyPatch):
    ran = command("migrate")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "store=sqlite: expected postgresql://" in ran.err


def test_every_server_of_several_is_migrated(command: Veil, postgres: str):
    second = new_database()
    try:
        ran = command("migrate", "--store", f"{with_password(postgres)} {second}", "--json")
        assert [(each["from"], each["to"] >= 1) for each in ran.objects] == [(0, True), (0, True)]
        assert PASSWORD not in ran.out
    finally:
        drop_database(second)
