"""The servers that are compared, each in a process of its own for as long as it is needed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import veil
from bench import elasticmq, goaws
from bench.elasticmq import NotAvailable
from bench.processes import await_listening, free_port

VEIL, VEIL_COMPILED, VEIL_CORE, VEIL_POSTGRES = "veil", "veil-compiled", "veil-core", "veil-postgres"
NOOP, ELASTICMQ, GOAWS, SMOOTHMQ, MOTO = "noop", "elasticmq", "goaws", "smoothmq", "moto"
WORKERS: Final = {"veil-worker": 1, "veil-workers": 2}
NAMES: Final = (
    VEIL,
    VEIL_COMPILED,
    VEIL_CORE,
    *WORKERS,
    VEIL_POSTGRES,
    NOOP,
    ELASTICMQ,
    GOAWS,
    SMOOTHMQ,
    MOTO,
)
COMPILED = (
    Path(__file__).parents[1] / "build/compiled"
)  # whatever --build says: `make compiled` knows one place
_STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Contender:
    """A server that listens, or the reason why it does not."""

    name: str
    label: str
    port: int = 0
    pid: int = 0
    missing: str | None = None  # why it is not available


@contextlib.contextmanager
def running(command: list[str], port: int, talk: Path | None = None) -> Iterator[int]:
    """The process of the command while it is needed, listening; gives its id."""
    # The caller's settings have no say in a benchmark.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VEIL_")}
    with (talk or Path(os.devnull)).open("wb") as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environ)
    try:
        await_listening(port)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def veil_command(data: Path, port: int, *more: str) -> list[str]:
    """The command that starts Veil on the embedded store, durability on."""
    serve = [sys.executable, "-m", "veil.cli.main", "serve", "--config", os.devnull]
    return [
        *serve,
        "--data",
        str(data),
        "--port",
        str(port),
        "--no-rest-rules",
        "--log-level",
        "warning",
        *more,
    ]


@contextlib.contextmanager
def scratch(build: Path) -> Iterator[Path]:
    """A directory for data on the disk of the build directory: the system's own may be memory, which syncs nothing."""
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=build, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@contextlib.contextmanager
def contender(name: str, build: Path) -> Iterator[Contender]:
    """Start the contender of that name; one that cannot be had here says why and is still given."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        try:
            label, command = _prepare(name, port, build, stack)
            pid = stack.enter_context(running(command, port, build / f"{name}.log"))
            started = Contender(name, label, port, pid)
        except NotAvailable as reason:
            started = Contender(name, name, missing=str(reason))
        except TimeoutError:
            started = Contender(name, name, missing=f"it did not start; see {name}.log in {build.name}/")
        yield started


def _prepare(name: str, port: int, build: Path, stack: contextlib.ExitStack) -> tuple[str, list[str]]:
    if name == VEIL:
        data = stack.enter_context(scratch(build))
        return f"Veil {version('veilmq')}, durable", veil_command(data, port)
    if name == VEIL_COMPILED:
        place = _compiled()
        data = stack.enter_context(scratch(build))
        python, *arguments = veil_command(data, port)
        # -P: or the sources in the working directory would go first.
        return "Veil, compiled", ["env", f"PYTHONPATH={place}", python, "-P", *arguments]
    if name == VEIL_CORE:
        data, core = stack.enter_context(scratch(build)), min(os.sched_getaffinity(0))
        return "Veil on one core", ["taskset", "--cpu-list", str(core), *veil_command(data, port)]
    if name in WORKERS:
        data = stack.enter_context(scratch(build))
        return f"Veil, workers: {WORKERS[name]}", veil_command(data, port, "--workers", str(WORKERS[name]))
    if name == VEIL_POSTGRES:
        from bench.postgres_server import a_database

        try:
            dsn = stack.enter_context(a_database(None))
        except SystemExit as reason:
            raise NotAvailable(str(reason)) from None
        data = stack.enter_context(scratch(build))
        return "Veil on a PostgreSQL of its own", veil_command(data, port, "--store", dsn)
    if name == GOAWS:
        cache = build.resolve() / "goaws"
        goaws.fetch(cache)
        return "goaws, in memory", goaws.command(cache, port)
    if name == SMOOTHMQ:
        # Its server asks for a valid signature of every request, and the generator sends the same bytes again and again.
        raise NotAvailable("it verifies signatures, and the generator signs nothing")
    if name == NOOP:
        return "no-op on the same HTTP stack", [sys.executable, "-m", "bench.noop", str(port)]
    if name == ELASTICMQ:
        cache = build.resolve() / "elasticmq"
        found = elasticmq.fetch(cache)
        return f"ElasticMQ {found}, in memory", elasticmq.command(cache, port)
    if name == MOTO:
        script = Path(sys.executable).with_name("moto_server")
        command = str(script) if script.exists() else shutil.which("moto_server")
        if command is None:
            raise NotAvailable("moto's server is not installed")
        return f"moto {version('moto')}, in memory", [command, "-p", str(port)]
    raise ValueError(f"contender={name!r}: expected one of {', '.join(NAMES)}")


def _compiled() -> Path:
    """Where `make compiled` has put a build of these very sources."""
    sources = Path(veil.__file__).parent
    if not any((COMPILED / "veil/core").glob("decide.*.so")):
        raise NotAvailable("it has not been built: run `make compiled`")
    for source in sources.rglob("*.py"):
        built = COMPILED / "veil" / source.relative_to(sources)
        if not built.exists() or built.read_bytes() != source.read_bytes():
            raise NotAvailable("it was built from other sources: run `make compiled`")
    return COMPILED
