"""Runs a server from its settings to its end: the one place that joins clock, store, service, front end and HTTP.

Exit codes: 0 stopped when asked · 1 could not start · 2 a setting is wrong · 70 the store failed while
running.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import json
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import uvloop

from veil.core.clock import Clock
from veil.core.errors import StoreBusy, StoreDamaged, StoreError, StoreTooNew, VeilError
from veil.core.queue import QueueKey
from veil.installed import veil_version, version_in_words
from veil.server.access import gather_keys, is_loopback
from veil.server.application import make_applications, service_rules
from veil.server.attendant import SharedStore
from veil.server.console import ConsoleMount
from veil.server.http import HttpServer
from veil.server.http_limits import Capacity, room_for_connections
from veil.server.make_store import (
    JOURNAL_FOLDER,
    StoreProbe,
    check_location,
    is_on_postgres,
    journal_location,
    make_exporter,
    make_store,
    store_directory,
)
from veil.server.metrics import Metrics
from veil.server.process import (
    EXIT_STOPPED,
    EXIT_STORE_FAILED,
    SystemClock,
    begin_process,
    configure_logging,
    settle_down,
)
from veil.server.setting_values import settings_given, without_password
from veil.server.settings import DEFAULT, ServerSettingsError, Settings
from veil.server.tls import Tls
from veil.server.workers import Listener, Workers, WorkersFailed
from veil.service.queues import delete_queue, ensure_queue
from veil.service.service import Service
from veil.stores.store import Store
from veil.wire.exchange import AnswerCounts
from veil.wire.sigv4 import AccessKey
from veil.words import plural

if TYPE_CHECKING:
    from veil.journal.exporter import Exporter
    from veil.server.autopilot import AutopilotProcess
    from veil.stores.postgres.store import PostgresStore
    from veil.stores.sharded import ShardedStore


_log = logging.getLogger(__name__)

# After a failure there is nothing to wait for but the answers that say so.
_GRACE_AFTER_FAILURE_S: Final = 1.0
# What is not exported by then waits in the outbox for the next start.
_LAST_EXPORT_S: Final = 5.0
# For the nodes of one database to take leave of one another.
_LEAVE_S: Final = 15.0


# With fewer, a handful of consumers would shut everybody else out.
_CONNECTIONS_MIN: Final = 8
_CONNECTIONS_FEW: Final = 10_000


class StartRefused(VeilError):
    """The server cannot start; the text is the line to show."""


def run_server(settings: Settings, *, ready_file: Path | None = None, companion: bool = False) -> NoReturn:
    """Serve until told to stop, and exit; raises ServerSettingsError and StartRefused before it is ready."""
    configure_logging(settings.log_level, settings.log_format)
    begin_process()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_Server(settings, ready_file, companion).serve())
        # As Python ends, but for the threads: one may hang in a call to a sick disk or a share that is away.
        atexit._run_exitfuncs()
        os._exit(code)


class _Server:
    def __init__(self, settings: Settings, ready_file: Path | None, companion: bool) -> None:
        self._settings = settings
        self._ready_file = ready_file
        self._with_companion = companion
        self._keys = gather_keys(settings)
        _check_exposure(settings, self._keys)
        if settings.workers and is_on_postgres(settings):
            raise ServerSettingsError(
                f"workers={settings.workers}: expected 0, because the messages are in PostgreSQL; to use more cores, start "
                "more servers on that database"
            )
        self._tls = Tls(settings) if settings.tls_cert is not None else None
        self._autopilot: AutopilotProcess | None = None
        if settings.autopilot:
            from veil.server.autopilot import AutopilotProcess

            self._autopilot = AutopilotProcess(settings, self._keys)
        self._exit_code = EXIT_STOPPED
        self._signalled = False
        self._http: HttpServer | Listener
        self._smq: HttpServer | Listener | None = None  # where SMQ's clients come in, if they may
        self._workers: Workers | None = None

    async def serve(self) -> int:
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        store, clock = self._make_store()
        served = cast(Store, SharedStore(store)) if settings.workers else store
        self._service = service = Service(served, clock, service_rules(settings))
        answers = AnswerCounts()
        version = veil_version()
        metrics = Metrics(service, answers, self._connection_count, version)
        console = ConsoleMount(settings, service, self._keys, version).handle
        self._application, smq = make_applications(
            settings, service, self._keys, answers, metrics.page, console
        )
        if is_on_postgres(settings):
            self._application.store_probe = StoreProbe(cast("PostgresStore | ShardedStore", store))
        self._capacity = Capacity(settings.http)
        if settings.workers:
            self._workers = Workers(
                settings, service, self._keys, clock, metrics, self._application.handle, answers
            )
            metrics.workers = self._workers
            cast(Any, store).unsent_bytes = self._workers.unsent_bytes
            self._http, *rest = self._workers.listeners
            self._smq = rest[0] if rest else None
        else:
            self._http = HttpServer(self._application.handle, settings.http, self._capacity)
            if smq is not None:
                self._smq = HttpServer(smq, settings.http, self._capacity)

        await self._open_store()
        try:
            self._check_journal()
            self._fit_connections()
            await self._create_declared_queues()
            await self._listen(self._http, "port", settings.port)
            if self._smq is not None:
                await self._listen(self._smq, "smq_port", settings.smq_port or 0)
            if self._workers is not None:
                await self._start_workers(self._workers)
            self._application.down = None
            self._gather_facts(version)
            self._catch_signals()
            if self._ready_file is not None:
                self._write_ready_file(self._ready_file)
        except BaseException:
            await self._close_http(0)
            await service.stop()
            raise
        self._announce()
        exporter = metrics.exporter = make_exporter(settings, store, clock)
        if exporter is not None:
            exporter.start()
        beside = []
        if self._with_companion:
            beside.append(asyncio.create_task(Companion(service, self._ended.set).attend(self._facts)))
        if self._tls is not None:
            beside.append(asyncio.create_task(self._tls.watch()))
        if self._autopilot is not None:
            beside.append(asyncio.create_task(self._autopilot.keep(str(self._facts["endpoint_url"]))))
        settle_down()
        try:
            await self._ended.wait()
            await self._wind_down(exporter)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            if self._ready_file is not None:
                self._ready_file.unlink(missing_ok=True)
        return self._exit_code

    # ---- the start

    def _make_store(self) -> tuple[Store, Clock]:
        try:
            return make_store(self._settings, SystemClock(), self._store_failed)
        except StoreError as problem:
            raise StartRefused(f"store={without_password(self._settings.store)}: {problem}") from None

    async def _open_store(self) -> None:
        place: Path | str | None = store_directory(self._settings)
        if is_on_postgres(self._settings):
            place = without_password(self._settings.store)
        try:
            if isinstance(place, Path):
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
                if journal_location(self._settings) == str(place / JOURNAL_FOLDER):
                    from veil.stores.sqlite.data_directory import make_private

                    make_private(place / JOURNAL_FOLDER)
            await self._service.start(serves=not self._settings.workers)
        except (StoreBusy, StoreDamaged, StoreTooNew) as problem:
            raise StartRefused(str(problem)) from None
        except StoreError as problem:
            where = f"in {place}" if isinstance(place, Path) else f"at {place}"
            raise StartRefused(f"the store {where} cannot be opened: {problem}") from None
        except OSError as problem:
            reason = problem.strerror or problem
            raise StartRefused(f"data={place}: expected a directory that can be written ({reason})") from None

    def _fit_connections(self) -> None:
        wanted = self._settings.http.connections_max
        # It opens its connections as it needs them.
        pool_stats = getattr(self._service.store, "pool_stats", None)
        room = room_for_connections(wanted, 0 if pool_stats is None else pool_stats().get("pool_max", 0))
        if room.connections < _CONNECTIONS_MIN:
            raise StartRefused(
                f"the process may have {room.files} files open, too few for clients: raise the limit (ulimit -n, LimitNOFILE)"
            )
        self._capacity.connections_max, self._capacity.refused_max = room.connections, room.refused
        self._files_max = room.files

    async def _start_workers(self, workers: Workers) -> None:
        try:
            await workers.start(self._capacity.connections_max, self._capacity.refused_max)
            self._service.store.begin_serving()
        except WorkersFailed as problem:
            raise StartRefused(str(problem)) from None

    async def _create_declared_queues(self) -> None:
        for declared in self._settings.queues:
            key = QueueKey(self._settings.region, self._settings.account, declared.name)
            await ensure_queue(self._service, key, settings_given(declared, key), declared.tags)

    async def _listen(self, http: HttpServer | Listener, setting: str, port: int) -> None:
        host = self._settings.host
        try:
            await http.start(host, port, tls=None if self._tls is None else self._tls.current)
        except socket.gaierror as problem:
            raise StartRefused(
                f"host={host}: expected an address of this machine ({problem.strerror})"
            ) from None
        except OSError as problem:
            if problem.errno == errno.EADDRINUSE:
                flag = "--" + setting.replace("_", "-")
                reason = f"{setting}={port}: already in use on {host}; another server may be running, {flag} 0 takes a free one"
            elif problem.errno == errno.EADDRNOTAVAIL:
                reason = f"host={host}: expected an address of this machine"
            else:
                reason = f"cannot listen on {host} port {port}: {os.strerror(problem.errno or 0)}"
            raise StartRefused(reason) from None

    def _check_journal(self) -> None:
        where = journal_location(self._settings)
        try:
            check_location(self._settings, self._service.store)
        except VeilError as problem:
            raise StartRefused(f"journal={where}: {problem}") from None
        except OSError as problem:
            reason = problem.strerror or problem
            raise StartRefused(f"journal={where}: expected a directory that can be read ({reason})") from None

    def _gather_facts(self, version: str) -> None:
        host, port = self._http.address
        self._facts = {
            "endpoint_url": endpoint_url(self._settings, host, port),
            "host": host,
            "port": port,
            "pid": os.getpid(),
            "version": version,
        }
        if self._smq is not None:
            smq_port = self._facts["smq_port"] = self._smq.address[1]
            self._facts["smq_endpoint_url"] = address_url(self._settings, host, smq_port)

    def _announce(self) -> None:
        settings, facts = self._settings, self._facts
        place = store_directory(settings)
        if settings.log_format == "text":
            smq = facts.get("smq_endpoint_url")
            text = greeting(
                settings,
                str(facts["endpoint_url"]),
                place,
                list(self._keys),
                version_in_words(),
                smq=None if smq is None else str(smq),
                certificate=None if self._tls is None else self._tls.certificate.text,
            )
            print(text, file=sys.stderr, flush=True)  # noqa: T201
        _log.info(
            "ready on %s port %d, data in %s, %s",
            facts["host"],
            facts["port"],
            without_password(settings.store) if is_on_postgres(settings) else place or "memory",
            plural(len(self._keys), "key") if self._keys else "no keys",
            extra={"facts": facts},
        )
        self._tell_connections()
        if is_on_postgres(settings) and settings.journal == "on":
            _log.info(
                "no journal: the nodes of one database need a place that all of them reach; name it with --journal"
            )
        if self._tls is not None:
            self._tls.warn()
        elif not is_loopback(settings.host) and not (settings.base_url or "").startswith("https:"):
            _log.warning(
                "host=%s is reached over plain HTTP: messages travel in clear, and nobody can log in to the console from "
                "another machine; set tls_cert and tls_key, or base_url to the https address of a proxy that speaks TLS",
                settings.host,
            )
        if settings.origin("store") == "--store" and without_password(settings.store) != settings.store:
            _log.warning(
                "--store has a password in it, which the list of processes shows to everybody on this machine: "
                "use VEIL_STORE or PGPASSFILE"
            )

    def _tell_connections(self) -> None:
        wanted, present = self._settings.http.connections_max, self._capacity.connections_max
        # The default asks for more than most need; whoever asked for a number wants to know.
        is_asked = self._settings.origin("http.connections_max") != DEFAULT
        if present < wanted and (is_asked or present < _CONNECTIONS_FEW):
            _log.warning(
                "http.connections_max is %d instead of %d: the process may have %d files open (ulimit -n, LimitNOFILE)",
                present,
                wanted,
                self._files_max,
            )

    def _write_ready_file(self, path: Path) -> None:
        # By a rename, so that whoever waits for the file never reads half of it; from a name that nobody can foresee, so that
        # no link lies in wait there.
        try:
            fd, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            try:
                with os.fdopen(fd, "w") as file:
                    os.fchmod(fd, 0o644)  # an address is no secret
                    file.write(json.dumps(self._facts) + "\n")
                Path(draft).replace(path)
            except BaseException:
                Path(draft).unlink(missing_ok=True)
                raise
        except OSError as problem:
            raise StartRefused(
                f"ready_file={path}: expected a file that can be written ({problem.strerror})"
            ) from None

    # ---- the end

    def _catch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signal, number)
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _signal(self, number: signal.Signals) -> None:
        if self._signalled:
            # Asked twice: whoever asks does not want to wait. What was answered is on disk.
            _log.warning("second %s: leaving at once", number.name)
            logging.shutdown()
            if self._ready_file is not None:
                self._ready_file.unlink(missing_ok=True)
            os._exit(128 + number)
        self._signalled = True
        _log.info("%s: stopping", number.name)
        self._ended.set()

    def _store_failed(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._give_up, error)

    def _give_up(self, error: BaseException) -> None:
        # Nothing is retried: after a failed sync only a new start, which reads the disk again, knows what is
        # there.
        _log.critical("the store failed, the server stops: %s", error)
        self._exit_code = EXIT_STORE_FAILED
        self._application.down = "the store failed"
        self._ended.set()

    async def _wind_down(self, exporter: Exporter | None) -> None:
        failed = self._exit_code == EXIT_STORE_FAILED
        self._application.down = self._application.down or "stopping"
        self._service.waiting.close()  # long polls are answered now, with nothing
        self._service.store.end_serving()
        await self._close_http(_GRACE_AFTER_FAILURE_S if failed else self._settings.stop_grace_s)
        if exporter is not None:
            await (exporter.abandon() if failed else exporter.stop(_LAST_EXPORT_S))
        if failed:
            with contextlib.suppress(Exception):  # a failed store may fail again; it has said so already
                await asyncio.wait_for(self._service.stop(), _GRACE_AFTER_FAILURE_S)
            return
        try:
            # What was answered is in the database; a word to the other nodes is not worth more time if it does not answer.
            async with asyncio.timeout(_LEAVE_S if self._service.store.is_shared else None):
                await self._service.stop()
        except TimeoutError:
            _log.warning("the database does not answer: other nodes will notice that this one is gone")
        except StoreError as problem:
            _log.critical("the store failed while closing: %s", problem)
            self._exit_code = EXIT_STORE_FAILED
            return
        _log.info("stopped")

    async def _close_http(self, grace_s: float) -> None:
        if self._workers is not None:
            await self._workers.stop(grace_s, self._application.down or "stopping")
            return
        await asyncio.gather(*(server.close(grace_s) for server in self._servers()))

    def _connection_count(self) -> int:
        if self._workers is not None:
            return self._workers.connection_count
        return sum(server.connection_count for server in self._servers())

    def _servers(self) -> list[HttpServer]:
        return [each for each in (self._http, self._smq) if isinstance(each, HttpServer)]

    def _reload(self) -> None:
        if self._tls is not None:
            self._tls.reload("SIGHUP")
        if self._keys:
            self._reload_keys()
        elif self._tls is None:
            _log.info("SIGHUP: there are no keys to reload")
        if self._workers is not None:
            self._service.in_background(self._workers.reload())

    def _reload_keys(self) -> None:
        try:
            fresh = gather_keys(self._settings)
        except ServerSettingsError as problem:
            _log.error("SIGHUP: the keys stay as they were: %s", problem)
            return
        # In place: the verifier looks keys up in this very mapping.
        self._keys.clear()
        self._keys.update(fresh)
        _log.info("SIGHUP: %s in effect", plural(len(fresh), "key"))


def _check_exposure(settings: Settings, keys: dict[str, AccessKey]) -> None:
    if not keys and not is_loopback(settings.host):
        raise ServerSettingsError(
            f"host={settings.host!r}: expected a loopback address such as 127.0.0.1, because there are no keys; "
            "set VEIL_KEYS or keys_file to listen elsewhere"
        )


def endpoint_url(settings: Settings, host: str, port: int) -> str:
    """The address for clients on this machine, or the public one if it is set."""
    if settings.base_url is not None:
        return settings.base_url
    return address_url(settings, host, port)


def address_url(settings: Settings, host: str, port: int) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # all addresses: one of them to show
    return f"{settings.scheme}://[{host}]:{port}" if ":" in host else f"{settings.scheme}://{host}:{port}"


def where_data_lives(store: str, directory: Path | None) -> str:
    if store.startswith("postgresql://"):
        return f"{without_password(store)} (an answer is given only once PostgreSQL has committed it)"
    if directory is None:
        return "in memory, gone when the server stops"
    return f"{directory} ({store.partition(':')[0]}; an answer is given only once it is on disk)"


def greeting(
    settings: Settings,
    endpoint: str,
    directory: Path | None,
    key_ids: list[str],
    version: str,
    *,
    smq: str | None = None,
    certificate: str | None = None,
) -> str:
    """Lines for a person who has just started a server."""
    region = settings.region
    if key_ids:
        access = f"{plural(len(key_ids), 'access key')}; every request must be signed"
        key_id, secret = key_ids[0], "SECRET"
    else:
        access = "no keys: this machine only, any credentials will do"
        key_id, secret = "veil", "veil"
    smq_line = "" if smq is None else f'\n  SMQ      mns.account.Account("{smq}", "{key_id}", "{secret}")'
    workers = settings.workers
    told = (
        f"{workers}, beside one process that has the store"
        if workers
        else "none: one process does everything"
    )
    tls_line = "" if certificate is None else f"\n  TLS      {certificate}"
    console = "" if settings.console == "off" else f"\n  console  {endpoint}/console"
    return f"""\
Veil {version} is ready at {endpoint}{console}
  data     {where_data_lives(settings.store, directory)}
  access   {access}{tls_line}
  workers  {told}
  boto3    boto3.client("sqs", endpoint_url="{endpoint}", region_name="{region}", \
aws_access_key_id="{key_id}", aws_secret_access_key="{secret}")
  aws CLI  AWS_ACCESS_KEY_ID={key_id} AWS_SECRET_ACCESS_KEY={secret} \
aws sqs list-queues --endpoint-url {endpoint} --region {region}{smq_line}
  stop     Ctrl-C"""


class Companion:
    """Speaks lines of JSON with the process that started the server: orders come on stdin, which ends the server when it ends.

    Test suites start such a server. However the suite ends, its end of the pipe closes, so no server is left behind; and a
    reset needs no endpoint that somebody else could call.
    """

    def __init__(self, service: Service, leave: Callable[[], None]) -> None:
        self._service = service
        self._leave = leave

    async def attend(self, ready: Mapping[str, object]) -> None:
        """Tell that the server is ready, then do as told until the other end is gone."""
        self._say(ready)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        try:
            while line := await reader.readline():
                if line.strip() == b"reset":
                    self._say({"reset": await self._reset()})
        finally:
            self._leave()

    async def _reset(self) -> int:
        queues = await self._service.store.all_queues()
        for queue in queues:
            await delete_queue(self._service, queue)
        return len(queues)

    def _say(self, fact: Mapping[str, object]) -> None:
        print(json.dumps(fact), flush=True)  # noqa: T201  # stdout is the channel
