"""`veil doctor` where the store is a PostgreSQL."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Veil
from tests.postgres_server import PostgresServer, why_no_server

PASSWORD = "hunter2"


def told(ran: object) -> dict[str, tuple[str, str]]:
    return {each["check"]: (each["verdict"], each["text"]) for each in ran.objects}  # type: ignore[attr-defined]


def test_a_database_that_is_well_is_said_so_without_its_password(
    command: Veil, postgres: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("VEIL_STORE", postgres.replace("veil@", f"veil:{PASSWORD}@", 1))
    ran = command("doctor", "--json")
    found = told(ran)
    assert found["database"][0] == found["durability"][0] == "ok"
    assert "PostgreSQL" in found["database"][1] and PASSWORD not in ran.out
    assert "data directory" not in found


def test_a_database_that_does_not_answer_is_a_failure(command: Veil, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("psycopg")
    monkeypatch.setenv("VEIL_STORE", f"postgresql://me:{PASSWORD}@127.0.0.1:1/veil")
    ran = command("doctor", "--json")
    assert ran.code == 1
    assert told(ran)["database"][0] == "fail" and PASSWORD not in ran.out


@pytest.mark.skipif(why_no_server() is not None, reason=str(why_no_server()))
def test_a_database_that_does_not_sync_is_a_failure(command: Veil, monkeypatch: pytest.MonkeyPatch):
    with PostgresServer(in_memory=True, settings={"fsync": "off"}) as careless:
        monkeypatch.setenv("VEIL_STORE", careless.dsn("postgres"))
        assert told(command("doctor", "--json"))["durability"] == ("fail", "fsync=off")


@pytest.mark.skipif(why_no_server() is not None, reason=str(why_no_server()))
def test_a_standby_that_is_waited_for_and_not_there_is_a_failure(
    command: Veil, monkeypatch: pytest.MonkeyPatch
):
    with PostgresServer(in_memory=True, settings={"synchronous_standby_names": "nobody"}) as waiting:
        monkeypatch.setenv("VEIL_STORE", waiting.dsn("postgres"))
        verdict, text = told(command("doctor", "--json"))["durability"]
        assert (verdict, text) == ("fail", "no synchronous standby is connected")
