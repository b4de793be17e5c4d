"""The compose file is well-formed, and what it tells Veil and PostgreSQL makes sense; running it needs more than a test has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from veil.server.settings import load_settings

PLACE = Path(__file__).parent.parent / "examples" / "compose"
VALUES = {"POSTGRES_PASSWORD": "hunter2", "VEIL_KEYS": "AKIDSHOP:secret"}


@pytest.fixture
def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((PLACE / "compose.yaml").read_text(encoding="utf-8"))
    return content


def filled(text: str) -> str:
    """The text as compose would fill it in."""
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: VALUES[found[1]], text)


def test_two_nodes_share_one_database_and_know_both_of_its_servers(compose: dict[str, Any]) -> None:
    nodes = [service for name, service in compose["services"].items() if name.startswith("veil")]
    assert len(nodes) == 2
    assert len({tuple(node["ports"]) for node in nodes}) == 2
    for node in nodes:
        settings = load_settings({}, {name: filled(value) for name, value in node["environment"].items()})
        assert "@primary,standby/veil?target_session_attrs=read-write" in settings.store
        assert (settings.host, len(settings.keys)) == ("0.0.0.0", 1)
        pytest.importorskip("psycopg")
        from veil.stores.postgres.connection import parse_dsn

        parse_dsn(settings.store)


def test_services_that_are_waited_for_exist_and_say_when_they_are_ready(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        for name, how in service.get("depends_on", {}).items():
            assert name in services
            assert how["condition"] == "service_completed_successfully" or "healthcheck" in services[name]
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (PLACE / source).exists()


def test_the_standby_is_waited_for_under_the_name_that_it_follows_by(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert "application_name=standby" in services["standby"]["command"][-1]
    assert any("FIRST 1 (standby)" in word for word in services["synchronous"]["command"])


def test_the_scripts_are_shell(compose: dict[str, Any]) -> None:
    follow = compose["services"]["standby"]["command"][-1].replace("$$", "$")
    for script in (follow, (PLACE / "let-the-standby-in.sh").read_text()):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_every_value_that_must_be_given_is_in_the_readme(compose: dict[str, Any]) -> None:
    wanted = set(re.findall(r"\$\{(\w+):\?", (PLACE / "compose.yaml").read_text()))
    assert wanted == set(VALUES)
    readme = (PLACE / "README.md").read_text()
    assert all(f"{name}=" in readme for name in wanted)
