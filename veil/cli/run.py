"""`veil run`: run a consumer, or a supervisor with several consumer processes."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

import veil
from veil.cli.app import app
from veil.cli.failures import ArgumentWrong, CommandFailed
from veil.cli.options import Region, argument, flag, given, option, whole_number
from veil.cli.output import echo_err

if TYPE_CHECKING:
    from veil.consumer.app import Consumer


# ---- loading the consumer

DEFAULT_NAME = "app"


def find_app(target: str) -> Consumer:
    """The consumer that `module:attribute` names (`module` alone: its `app`), looked for from the current directory."""
    from veil.consumer.app import Consumer

    module_name, _, path = target.partition(":")
    if not module_name or target.endswith(":") or module_name.endswith(".py") or "/" in module_name:
        raise ArgumentWrong(f"{target!r}: expected module:app, such as shop.orders:app")
    path = path or DEFAULT_NAME
    found = _imported(module_name)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            consumers = [
                each for each, value in vars(_imported(module_name)).items() if isinstance(value, Consumer)
            ]
            hint = f"; its consumers are: {', '.join(consumers)}" if consumers else "; it has no consumer"
            raise ArgumentWrong(f"module {module_name} has no {path}{hint}") from None
    if not isinstance(found, Consumer):
        raise ArgumentWrong(f"{module_name}:{path} is of type {type(found).__name__}, expected a Consumer")
    return found


def _imported(name: str) -> object:
    here = os.getcwd()  # noqa: PTH109 - sys.path holds texts
    if here not in sys.path:
        sys.path.append(here)
    try:
        with _found_first_in(here, name.partition(".")[0]):
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            text = f"there is no module {name} in {here} or among the installed packages"
            raise ArgumentWrong(text) from None
        raise _import_failed(name, error) from error


@contextmanager
def _found_first_in(place: str, package: str) -> Iterator[None]:
    """Let the package that was asked for come from that directory if it lies there, and everything else from where it is
    installed: a file that happens to be called like one of Python's or of our own modules must not take its place."""

    class Finder(MetaPathFinder):
        def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
            return PathFinder.find_spec(name, [place]) if name == package else None

    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _import_failed(name: str, error: BaseException) -> ArgumentWrong:
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{error.filename}:{error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        # Of a setting that Veil refuses, the line that gave it: ours says nothing to the author.
        files = [(frame, Path(frame.filename)) for frame in frames]
        theirs = [frame for frame, file in files if file.is_file() and not file.is_relative_to(_OURS)]
        last = (theirs or frames)[-1]
        place = f"{last.filename}:{last.lineno}"
    return ArgumentWrong(f"importing {name} failed at {place}: {type(error).__name__}: {error}")


_OURS = Path(veil.__file__).parent
_LEVELS = ("debug", "info", "warning", "error")
_PARENT_LOOK_S = 1.0
_THREADS_PATIENCE_S = 0.5


@app.command(
    "run",
    epilog="Exit codes: 0 stopped on request, 1 the consumer cannot continue (no queue, no access, a handler raised Stop), "
    "2 no such consumer, or a wrong setting.",
)
def run(
    targets: list[str] = argument(
        "MODULE:APP...",
        "The consumers, imported from the current directory. If there are several, each gets its own process.",
    ),
    concurrency: int | None = option(
        "--concurrency N",
        "How many handlers run at a time. Default: the consumer's own setting.",
        whole_number(1, 10_000),
    ),
    workers: int = option(
        "--workers N",
        "How many processes to run for each consumer. Processes that crash are restarted.",
        whole_number(1, 256),
        default=1,
    ),
    reload: bool = flag("--reload", "Restart when a .py file in or below the current directory changes."),
    endpoint: str | None = option(
        "--endpoint URL",
        "The service's URL. Default: the consumer's own, AWS_ENDPOINT_URL_SQS or AWS_ENDPOINT_URL; "
        "otherwise Amazon SQS if a region is configured, and http://127.0.0.1:9324 if not.",
    ),
    region: Region = None,
    health_port: int | None = option(
        "--health-port N",
        "Serve /healthz, /readyz and /metrics on this port; with several processes, process k uses N + k.",
        whole_number(0, 65_535),
    ),
    health_host: str | None = option(
        "--health-host ADDRESS", "The address of the health endpoint. Default: 127.0.0.1."
    ),
    journal: str | None = option(
        "--journal PLACE", "Record attempts in this journal, for a service that keeps none itself."
    ),
    log_level: str = option("--log-level LEVEL", f"One of {', '.join(_LEVELS)}.", default="info"),
    log_format: str = option("--log-format FORMAT", "text, or json for one object per line.", default="text"),
    parent: int | None = option("--parent", "", hidden=True),
    place: int = option("--place", "", default=0, hidden=True),
) -> None:
    """Run a consumer, or several, until they are told to stop.

    SIGTERM and SIGINT stop it gracefully: it receives nothing new, lets running handlers finish, and gives all other
    messages back. A second signal interrupts the handlers.
    """
    _set_up_logging(log_level, log_format, with_pid=parent is not None)
    changes = given(
        concurrency=concurrency,
        endpoint=endpoint,
        region=region,
        health_port=health_port,
        health_host=health_host,
        journal=journal,
    )
    if len(targets) > 1 or workers > 1 or reload:
        if not reload:
            for target in targets:
                _configured(target, changes)  # a mistake is told once, before anything is started
        raise typer.Exit(_supervised(targets, changes, workers, reload, log_level, log_format))
    consumer = _configured(targets[0], changes)
    if place and health_port is None and consumer.settings.health_port:
        consumer.configure(health_port=consumer.settings.health_port + place)
    if parent is not None:
        threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    raise typer.Exit(_run(consumer))


def _configured(target: str, changes: dict[str, Any]) -> Any:
    consumer = find_app(target)
    try:
        consumer.configure(**changes)
    except ValueError as error:
        raise ArgumentWrong(str(error)) from None
    return consumer


def _run(consumer: Any) -> int:
    from veil.consumer.renewal.policies import RenewalRefused
    from veil.consumer.runner import ConsumerFailed
    from veil.consumer.settings import SettingsError

    failure: CommandFailed | None = None
    try:
        consumer.run()
    except ConsumerFailed as reason:
        failure = CommandFailed(str(reason))
    except (SettingsError, RenewalRefused) as refusal:  # a setting that only the queue itself could refute
        failure = ArgumentWrong(str(refusal))
    _leave_handlers_behind(consumer, failure)
    if failure is not None:
        raise failure
    return 0


def _leave_handlers_behind(consumer: Any, failure: CommandFailed | None) -> None:
    """End the process now, if a handler that was interrupted has not ended: the interpreter would wait for the thread of a
    sync one and tear an async one down half-way, and their messages have been given back."""
    until_s = time.monotonic() + _THREADS_PATIENCE_S
    while consumer.left_behind or any(
        thread.name.startswith("veil-handler") for thread in threading.enumerate()
    ):
        if time.monotonic() > until_s:
            if failure is not None:
                echo_err(f"veil: {failure}")
            logging.shutdown()
            os._exit(failure.exit_code if failure is not None else 0)
        time.sleep(0.01)


def _supervised(
    targets: list[str], changes: dict[str, Any], workers: int, reload: bool, log_level: str, log_format: str
) -> int:
    commands = []
    told = {**changes, "log_level": log_level, "log_format": log_format}
    for number, (target, place) in enumerate(product(targets, range(workers))):
        own = {**told, "place": place}  # a port that the consumer itself names is counted on from there
        if own.get("health_port"):
            own["health_port"] += number
        commands.append(
            worker_command([target, *(f"--{name.replace('_', '-')}={value}" for name, value in own.items())])
        )
    return Supervisor(commands, watch=Path.cwd() if reload else None).run()


def _leave_with(parent: int) -> None:
    """Stop when the supervisor is gone: a worker that outlives it would be nobody's."""
    while os.getppid() == parent:
        time.sleep(_PARENT_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)


def _set_up_logging(level: str, form: str, *, with_pid: bool) -> None:
    """With the process id where several processes write to one terminal."""
    if level not in _LEVELS:
        raise ArgumentWrong(f"--log-level {level!r}: expected one of {', '.join(_LEVELS)}")
    if form not in ("text", "json"):
        raise ArgumentWrong(f"--log-format {form!r}: expected text or json")
    from veil.consumer.message import MessageFacts
    from veil.server.process import JsonLines, TextLines

    handler = logging.StreamHandler(sys.stderr)
    pid = os.getpid() if with_pid else None
    handler.setFormatter(JsonLines(pid) if form == "json" else TextLines(pid))
    handler.addFilter(MessageFacts())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if level == "debug" else level.upper())
    logging.getLogger("veil").setLevel(level.upper())


_log = logging.getLogger(__name__)

# ---- worker processes: started, restarted when they crash or their source changes, and told when to stop

_LOOK_S: Final = 0.2
_BACKOFF_FIRST_S: Final = 0.5
_BACKOFF_MAX_S: Final = 30.0
# A worker that lived so long has not crashed at the start: its restarts are counted from one again.
_STEADY_S: Final = 60.0
_RELOAD_PATIENCE_S: Final = 5.0
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Sources:
    """The Python files under a directory; a change is a new, a lost or a newer file."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen = self._times()

    def changed(self) -> Path | None:
        now, before = self._times(), self._seen
        self._seen = now
        for path in now.keys() | before.keys():
            if now.get(path) != before.get(path):
                return path
        return None

    def _times(self) -> dict[Path, int]:
        found: dict[Path, int] = {}
        for folder, folders, files in os.walk(self._root):
            # Environments and caches hold thousands of files that nobody edits.
            folders[:] = [
                name
                for name in folders
                if not name.startswith((".", "__pycache__"))
                and name not in ("node_modules", "site-packages")
                and not Path(folder, name, "pyvenv.cfg").exists()
            ]
            for path in (Path(folder, name) for name in files if name.endswith(".py")):
                with suppress(OSError):
                    found[path] = path.stat().st_mtime_ns
        return found


class ConsumerProcess:
    """One place among the workers: its process, and when the next one may be started."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._crashes = 0
        self._started_s = 0.0
        self.not_before_s = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self._unheard: list[int] = []  # signals that came while it was being started

    def start(self, now_s: float) -> None:
        self._unheard.clear()
        # A session of its own: otherwise ^C in a terminal reaches it twice, from the terminal and from here, and the second
        # signal means "hurry".
        self.process = subprocess.Popen(  # noqa: S603 - our own interpreter
            self._command, start_new_session=True
        )
        for number in self._unheard:
            self.signal(number)
        self._started_s = now_s

    def crashed(self, now_s: float) -> float:
        """Its process is gone without being asked to: how long until the next one."""
        self._crashes = 1 if now_s - self._started_s > _STEADY_S else self._crashes + 1
        wait_s = min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2.0 ** (self._crashes - 1))
        self.process, self.not_before_s = None, now_s + wait_s
        return wait_s

    def forgive(self) -> None:
        self._crashes, self.not_before_s = 0, 0.0

    def signal(self, number: int) -> None:
        if self.process is None:
            self._unheard.append(number)
        elif self.process.poll() is None:
            self.process.send_signal(number)


class Supervisor:
    """Keeps the workers running until it is told to stop, and then waits for them.

    A worker that ends by itself with 0 was done; one that could not be started because of its settings (2) would only
    fail again. Both stay away, and when all are gone, so is the supervisor.
    """

    def __init__(self, commands: Sequence[Sequence[str]], *, watch: Path | None = None) -> None:
        self._workers = [ConsumerProcess(command) for command in commands]
        self._sources = Sources(watch) if watch is not None else None
        self._stopping = False
        self._code = 0

    def run(
        self, *, monotonic: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep
    ) -> int:
        """The exit code: 0 unless a worker that stays away said otherwise."""
        before = {number: signal.signal(number, self._passed_on) for number in _STOP_SIGNALS}
        try:
            live = list(self._workers)
            while live:
                now_s = monotonic()
                live = [worker for worker in live if self._tended(worker, now_s)]
                if self._sources is not None and not self._stopping and (path := self._sources.changed()):
                    self._reload(path)
                    live = list(self._workers)
                if live:
                    pause(_LOOK_S)
            return self._code
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for worker in self._workers:
                worker.signal(signal.SIGKILL)

    def _tended(self, worker: ConsumerProcess, now_s: float) -> bool:
        """Whether the worker runs or will run again."""
        if worker.process is None:
            if self._stopping:
                return False
            if now_s >= worker.not_before_s:
                worker.start(now_s)
            return True
        code = worker.process.poll()
        if code is None:
            return True
        if self._stopping or code in (0, 2):
            if code > 0:
                self._code = code
            worker.process = None
            worker.not_before_s = float("inf")
            return self._sources is not None and not self._stopping  # with --reload the next edit may mend it
        wait_s = worker.crashed(now_s)
        _log.warning("a worker ended with %s; it is restarted in %.1f s", _in_words(code), wait_s)
        return True

    def _reload(self, path: Path) -> None:
        _log.info("%s changed: restarting", path)
        self._code = 0
        for worker in self._workers:
            worker.signal(signal.SIGTERM)
        for worker in self._workers:
            if worker.process is not None:
                try:
                    worker.process.wait(_RELOAD_PATIENCE_S)
                except subprocess.TimeoutExpired:
                    worker.signal(signal.SIGTERM)  # the second one hurries
                    worker.process.wait()
                worker.process = None
            worker.forgive()

    def _passed_on(self, number: int, frame: object) -> None:
        self._stopping = True
        for worker in self._workers:
            worker.signal(number)


def worker_command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "veil.cli.main", "run", *arguments, "--parent", str(os.getpid())]


def _in_words(code: int) -> str:
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
