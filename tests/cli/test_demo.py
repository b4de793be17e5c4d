"""The demo runs on the real clock and a real disk: a few seconds, once."""

from __future__ import annotations

from tests.cli.conftest import Veil


def test_every_claim_of_the_demo_holds(command: Veil) -> None:
    ran = command("demo", "--json")
    assert ran.object["broken"] == []
    assert ran.code == 0
    assert len(ran.object["held"]) >= 25


def test_the_demo_fails_when_the_server_forgets(command: Veil) -> None:
    ran = command("demo", "--store", "memory")
    assert ran.code == 1
    assert "NOT SO" in ran.out
    assert "did not hold" in ran.err
