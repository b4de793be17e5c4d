"""The command in this process, against a real server in another."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from veil.cli.main import run
from veil.testing import VeilServer


class Ran(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def object(self) -> dict[str, Any]:
        (only,) = self.objects
        return only


Veil = Callable[..., Ran]


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """An environment without any AWS or Veil variable and without a home."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "VEIL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(nowhere: None, capsys: pytest.CaptureFixture[str]) -> Veil:
    """Run `veil` with these arguments; no server is set."""

    def call(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run(arguments)
        return Ran(code, *capsys.readouterr())

    return call


@pytest.fixture
def veil(command: Veil, veil_server: VeilServer, monkeypatch: pytest.MonkeyPatch) -> Veil:
    """Run `veil` with these arguments against an empty server."""
    for name, value in veil_server.environ.items():
        monkeypatch.setenv(name, value)
    return command
