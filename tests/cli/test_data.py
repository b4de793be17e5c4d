from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Veil
from veil.testing import VeilServer


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def running(command: Veil, data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VeilServer]:
    """A server on disk with one visible message and one in flight."""
    with VeilServer("--data", str(data)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", server.endpoint_url)
        command("queue", "create", "orders", "--visibility-timeout", "600")
        for body in ("one", "two"):
            command("msg", "send", "orders", body)
        command("msg", "receive", "orders")
        yield server


def test_a_backup_of_a_running_server_is_restored_with_its_open_windows(
    command: Veil, running: VeilServer, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("backup", "--data", str(data), "monday.veil").code == 0
    command("queue", "purge", "orders", "--yes")
    running.close()
    again = tmp_path / "again"
    assert command("restore", "monday.veil", "--data", str(again)).code == 0

    with VeilServer("--data", str(again)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", server.endpoint_url)
        shown = command("queue", "show", "orders", "--json").object
        assert (shown["visible"], shown["in_flight"]) == (1, 1)
        assert command("msg", "receive", "orders", "--json").object["body"] == "two"


def test_nothing_is_written_over_anything(command: Veil, running: VeilServer, data: Path) -> None:
    command("backup", "--data", str(data), "monday.veil")
    again = command("backup", "--data", str(data), "monday.veil")
    assert (again.code, again.err.count("\n")) == (1, 1)
    assert "monday.veil exists already" in again.err
    over = command("restore", "monday.veil", "--data", str(data))
    assert (over.code, over.err.count("\n")) == (1, 1)


def test_sound_data_is_said_to_be_sound(command: Veil, running: VeilServer, data: Path) -> None:
    running.close()
    ran = command("verify", "--data", str(data))
    assert ran.code == 0
    assert ran.out.splitlines()[-1].startswith("sound: 1 queue, 2 messages")
    assert command("verify", "--data", str(data), "--json").objects[-1]["sound"] is True


def test_damage_is_exit_code_1_and_what_can_be_read_is_saved(
    command: Veil, running: VeilServer, data: Path, tmp_path: Path
) -> None:
    running.close()
    database = data / "veil.db"
    content = bytearray(database.read_bytes())
    at = content.index(b"two")
    content[at : at + 3] = b"six"
    database.write_bytes(content)

    ran = command("verify", "--data", str(data))
    assert ran.code == 1
    assert "error: " in ran.out
    assert "--salvage" in ran.err

    saved = command("verify", "--data", str(data), "--salvage", str(tmp_path / "rescued"))
    assert saved.code == 0
    assert saved.out.startswith("1 message in 1 queue saved\n1 damaged message set aside")
    assert command("verify", "--data", str(tmp_path / "rescued")).code == 0


def test_a_directory_without_data_is_one_line(command: Veil, tmp_path: Path) -> None:
    for words in (["verify"], ["backup", "out.veil"]):
        ran = command(*words, "--data", str(tmp_path / "nothing"))
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
        assert "holds no store" in ran.err


def test_the_data_is_that_of_the_servers_settings(
    command: Veil, running: VeilServer, data: Path, tmp_path: Path
) -> None:
    Path("veil.toml").write_text(f'data = "{data}"\n')
    assert command("backup", "monday.veil").err == f"backup of {data} written to monday.veil\n"
    assert command("verify").code == 0
    running.close()
    Path("veil.toml").write_text(f'store = "sqlite://{tmp_path}/again"\n')
    assert command("restore", "monday.veil").err == f"monday.veil restored to {tmp_path}/again\n"
    Path("veil.toml").write_text('store = "postgresql://db/veil"\n')
    ran = command("backup", "tuesday.veil")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "PostgreSQL's own tools" in ran.err
    assert command("verify", "--data", str(data)).code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["restore", "nothing"], "nothing: expected a file that veil backup wrote"),
        (["restore", "."], ".: expected a file that veil backup wrote"),
        (["restore", "veil.toml"], "veil.toml is not a sound backup: error: database: cannot be read"),
        (
            ["backup", "--data", "DATA", "no/such/monday.veil"],
            "no/such/monday.veil cannot be written: No such file",
        ),
    ],
)
def test_what_cannot_be_restored_or_written_is_one_plain_line(
    command: Veil, running: VeilServer, data: Path, words: list[str], said: str
) -> None:
    Path("veil.toml").write_text('data = "other"\n')
    ran = command(*(str(data) if word == "DATA" else word for word in words))
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert said in ran.err
    assert "\\n" not in ran.err
