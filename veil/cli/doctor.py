"""`veil doctor`: check a setup, and say what is wrong and what to do about it."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import typer

from veil.cli.app import app
from veil.cli.failures import ArgumentWrong, CommandFailed, in_words
from veil.cli.options import (
    AsJson,
    Endpoint,
    Region,
    ServerPage,
    server_page,
    server_settings,
    service_target,
)
from veil.cli.output import echo, echo_json, has_colour
from veil.cli.store import need_driver
from veil.client.api import ApiError
from veil.core.clock import TROUBLE_MIN_MS
from veil.core.errors import VeilError
from veil.installed import is_compiled
from veil.server.setting_values import without_password
from veil.words import visible

if TYPE_CHECKING:
    from veil.client.blocking import ServiceTarget
    from veil.server.settings import Settings

Verdict = Literal["ok", "skip", "warn", "fail"]  # skip: could not be checked, or does not apply

SQLITE_MIN: Final = (3, 51, 3)  # before it, two connections that checkpoint at once could damage the file
DISK_FAIL_BYTES, DISK_WARN_BYTES = 100 * 2**20, 2**30
SKEW_WARN_S, SKEW_FAIL_S = 60, 900  # signatures are refused beyond 15 minutes
CERTIFICATE_WARN_DAYS: Final = 14
_TIMEOUT_S: Final = 3
_OLD_TRANSACTION_S: Final = 300
_COLOURS: Final[dict[Verdict, str]] = {"ok": "32", "skip": "2", "warn": "33", "fail": "31"}


class CheckResult(NamedTuple):
    """What one check came to."""

    check: str
    verdict: Verdict
    text: str
    advice: str = ""


def _first(cases: Iterable[tuple[bool, CheckResult]]) -> list[CheckResult]:
    """Of the findings whose condition holds, the first of each check."""
    found: dict[str, CheckResult] = {}
    for holds, finding in cases:
        if holds:
            found.setdefault(finding.check, finding)
    return list(found.values())


@app.command("doctor", epilog="Example: veil doctor --json | jq 'select(.verdict != \"ok\")'")
def doctor(as_json: AsJson = False, endpoint: Endpoint = None, region: Region = None) -> None:
    """Check this machine, the settings and the server.

    Each line says ok, warn or fail with what to do about it, or skip if there was nothing to check. The exit code is 1 if
    any check fails.
    """
    findings = [
        CheckResult(
            "python", "ok", platform.python_version() + (", compiled modules" if is_compiled() else "")
        ),
        check_sqlite(),
        *check_settings(),
        *check_service(endpoint, region),
    ]
    for each in findings:
        verdict = each.verdict.ljust(4)
        if has_colour(sys.stdout):
            verdict = f"\x1b[{_COLOURS[each.verdict]}m{verdict}\x1b[0m"
        text = f"{each.text}; {each.advice}" if each.advice else each.text
        if as_json:
            echo_json(each._asdict())
        else:
            echo(f"{verdict}  {each.check.ljust(14)}  {visible(text)}", keep="\x1b")
    if any(each.verdict == "fail" for each in findings):
        raise typer.Exit(1)


# ---- this machine


def check_sqlite() -> CheckResult:
    """Is the SQLite that Veil's driver brings along, or was built with, new enough?"""
    import apsw

    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")) < SQLITE_MIN:
        return CheckResult("sqlite", "fail", version, "upgrade: pip install --upgrade apsw")
    return CheckResult("sqlite", "ok", version)


# ---- the settings, and whether a server could start here with them


def check_settings() -> list[CheckResult]:
    """Are the server's settings valid, and could it start here with them?"""
    try:
        settings = server_settings({})
    except ArgumentWrong as error:
        return [CheckResult("settings", "fail", str(error), "correct it; see: veil config show")]
    from veil.server.make_store import is_on_postgres

    if is_on_postgres(settings):
        store = [finding for dsn in settings.store.split() for finding in check_database(dsn)]
    else:
        store = check_data(settings.data)
    checked = [*check_tls(settings), *store, check_journal(settings), check_port(settings)]
    return [CheckResult("settings", "ok", "valid"), *checked]


def check_tls(settings: Settings) -> list[CheckResult]:
    """Will clients accept the server's certificate, and for how long, if it has one?"""
    from veil.server.settings import ServerSettingsError
    from veil.server.tls import Tls

    if settings.tls_cert is None:
        return []
    try:
        certificate = Tls(settings).certificate
    except ServerSettingsError as error:
        return [CheckResult("TLS", "fail", str(error), "correct it; the server does not start like this")]
    if certificate.expires is None:
        return [CheckResult("TLS", "fail", f"{settings.tls_cert}: {certificate.text}", "install a new one")]
    left_days = (certificate.expires.timestamp() - time.time()) / 86_400
    if left_days < CERTIFICATE_WARN_DAYS:
        advice = "install a new one; a running server takes it up by itself"
        return [CheckResult("TLS", "warn", f"{certificate.text} ({left_days:.0f} days left)", advice)]
    return [CheckResult("TLS", "ok", certificate.text)]


def _nearest(path: Path) -> tuple[Path, bool]:
    """The path or the first directory above it that is there, and whether something can be written into it."""
    nearest = next(each for each in (path, *path.absolute().parents) if each.exists())
    return nearest, nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def check_data(data: Path) -> list[CheckResult]:
    """Can the data directory be written, and is there room?"""
    # What is not there yet is made by the server, if the directory above lets it.
    nearest, is_writable = _nearest(data)
    directory, space = partial(CheckResult, "data directory"), partial(CheckResult, "disk space")
    if not nearest.is_dir():
        return [directory("fail", f"{nearest} is a file", "name another with --data or VEIL_DATA")]
    if not is_writable:
        return [directory("fail", f"{nearest} cannot be written", f"chown or chmod {nearest}")]
    found = directory("ok", f"{data}" if nearest == data else f"{data} (not there yet: veil serve makes it)")
    free = shutil.disk_usage(nearest).free
    room = f"{free / 2**30:.1f} GiB free"
    if free >= DISK_WARN_BYTES:
        return [found, space("ok", room)]
    verdict: Verdict = "fail" if free < DISK_FAIL_BYTES else "warn"
    return [found, space(verdict, room, "make room, sends are refused when the disk is full")]


_DATABASE_FACTS: Final = """
SELECT current_setting('server_version'), current_setting('server_version_num')::int, current_setting('fsync'),
       current_setting('synchronous_commit'), pg_is_in_recovery(),
       (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
       current_setting('synchronous_standby_names'),
       (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::int FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid())
"""


def check_database(dsn: str) -> list[CheckResult]:
    """Could a node work on this database, and does anything about it want attention?"""
    try:
        need_driver(dsn)
    except CommandFailed as problem:
        return [CheckResult("database", "fail", str(problem))]
    import psycopg

    from veil.stores.postgres.connection import parse_dsn
    from veil.stores.postgres.opening import VERSION_MIN

    try:
        text = parse_dsn(dsn).text
        with psycopg.connect(text, connect_timeout=_TIMEOUT_S, prepare_threshold=None) as connection:
            row = connection.execute(_DATABASE_FACTS).fetchone()
    except psycopg.Error as error:
        reason = (str(error).strip().splitlines() or ["no answer"])[0]
        advice = "check VEIL_STORE and the server"
        return [CheckResult("database", "fail", f"{without_password(dsn)}: {reason}", advice)]
    assert row is not None
    version, number, fsync, commit, is_standby, standbys, standby_names, oldest_s = row
    where = f"PostgreSQL {version.split()[0]} at {without_password(dsn)}"
    is_lax = commit == "off" or (commit == "local" and standby_names)
    new = f"use PostgreSQL {VERSION_MIN} or newer"
    later = "the last moments before a crash or a failover are lost"
    alone = "a failover would lose what a standby lacks; see docs/postgresql.md"
    waits = "no message can be sent until one is: commits wait for it"
    vacuum = "end it: vacuum can remove nothing that died since, and receives get slower"
    return _first(
        (
            (number < VERSION_MIN * 10_000, CheckResult("database", "fail", where, new)),
            (is_standby, CheckResult("database", "fail", f"{where} is a standby", "add target_session_attrs=read-write")),
            (True, CheckResult("database", "ok", where)),
            (fsync != "on", CheckResult("durability", "fail", "fsync=off", "set fsync=on: a crash would lose messages")),
            (is_lax, CheckResult("durability", "warn", f"synchronous_commit={commit}", f"set synchronous_commit=on: {later}")),
            (not standby_names, CheckResult("durability", "ok", f"one machine, no synchronous standby: {alone}")),
            (not standbys, CheckResult("durability", "fail", "no synchronous standby is connected", waits)),
            (True, CheckResult("durability", "ok", f"{standbys} synchronous standby(s) connected")),
            (oldest_s >= _OLD_TRANSACTION_S, CheckResult("transactions", "warn", f"one has been open for {oldest_s} s", vacuum)),
        )
    )  # fmt: skip


def check_journal(settings: Settings) -> CheckResult:
    """Can the journal be reached and written, if there is one?"""
    from veil.journal.storage import Storage, read_mark
    from veil.server.make_store import journal_location

    where, journal = journal_location(settings), partial(CheckResult, "journal")
    if where is None:
        return journal("skip", "off")
    try:
        place = Storage.at(where)
        marked = read_mark(place) is not None
    except VeilError as problem:
        return journal("fail", str(problem), "name another location with VEIL_JOURNAL")
    except OSError as problem:
        # Events wait in the outbox, so nothing is lost yet.
        reason = problem.strerror or str(problem).partition("\n")[0]
        return journal("warn", f"{place.uri}: {reason}", "check the location and its credentials")
    if place.is_local:
        nearest, is_writable = _nearest(Path(place.uri))
        if not is_writable:
            advice = f"chown or chmod {nearest}, or name another with VEIL_JOURNAL"
            return journal("fail", f"{nearest} cannot be written", advice)
    return journal("ok", place.uri if marked else f"{place.uri} (nothing exported yet)")


def check_port(settings: Settings) -> CheckResult:
    """Could a server listen on its port, or does one already?"""
    where, port = f"{settings.host}:{settings.port}", partial(CheckResult, "port")
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return port("ok", f"{where} is in use, by the server if one answers below")
            return port("fail", f"{where}: {error.strerror}", "choose another --host or --port")
    return port("ok", f"{where} is free")


# ---- the server


def check_service(endpoint: str | None, region: str | None) -> list[CheckResult]:
    """Is it clear which server is meant, does it answer, and which key signs the requests?"""
    try:
        target = service_target(endpoint, region)
    except ArgumentWrong as error:
        advice = "correct the option, the variable or the profile that says so"
        return [CheckResult("endpoint", "fail", str(error), advice)]
    answered = check_server(target)
    return [*answered, check_credentials(target, answered)]


def check_server(target: ServiceTarget) -> list[CheckResult]:
    """Does a server answer, does it accept our key, and do its clock and ours agree?"""
    from veil.client.blocking import BlockingClient, CallFailed

    endpoint = target.endpoint
    try:
        with BlockingClient(target, timeout_s=_TIMEOUT_S, tries=1) as client:
            client.call("ListQueues", {"MaxResults": 1})
    except CallFailed as error:
        no_answer, said = error.no_answer, in_words(error)
        if no_answer is None:
            text = said if endpoint in said else f"{endpoint} refused: {said}"
            refused = CheckResult("endpoint", "fail", text, "check endpoint, keys and clock")
            return [refused, check_clock(server_page(endpoint, "/readyz").date)]
        if no_answer.untrusted:
            return [CheckResult("endpoint", "fail", said)]
        # Nothing was asked for and nothing runs: a machine on which no server has been started yet.
        verdict: Verdict = "warn" if no_answer.refused and target.is_default else "fail"
        text = f"no server answers at {endpoint}"
        return [CheckResult("endpoint", verdict, text, "start one with: veil serve")]
    except ApiError as error:
        return [CheckResult("endpoint", "fail", str(error))]
    page = server_page(endpoint, "/readyz")
    return [check_ready(endpoint, page), check_clock(page.date), check_disk_speed(endpoint)]


def check_ready(endpoint: str, page: ServerPage) -> CheckResult:
    """A server that answers may still not take messages; Veil's own says so on /readyz."""
    if page.status == HTTPStatus.SERVICE_UNAVAILABLE:
        text = f"{endpoint} answers, but is not ready: {page.text[:200].strip()}"
        return CheckResult("endpoint", "fail", text)
    return CheckResult("endpoint", "ok", f"{endpoint} answers")


def check_disk_speed(endpoint: str) -> CheckResult:
    """How slow the server's commits were within the last hour, by its own metrics."""
    found = server_page(endpoint, "/metrics").metrics
    try:
        p99_s, worst_s = (float(found[f"veil_commit_{name}_seconds"]) for name in ("p99", "worst"))
    except (KeyError, ValueError):
        text = "not checked: the server does not report how long its commits took"
        return CheckResult("disk speed", "skip", text)
    told = f"commits of the last hour: 99 of 100 within {p99_s * 1000:.0f} ms, the slowest {worst_s * 1000:.0f} ms"
    if worst_s * 1000 <= TROUBLE_MIN_MS:
        return CheckResult("disk speed", "ok", told)
    return CheckResult("disk speed", "warn", told, "renewals had to wait; check what else writes to the disk")


def check_clock(server_date: str | None, wall_s: float | None = None) -> CheckResult:
    """How far the server's wall clock is from ours; only signatures depend on it."""
    try:
        server_s = parsedate_to_datetime(server_date or "").timestamp()
    except (TypeError, ValueError, IndexError):
        return CheckResult("clock", "skip", "not checked: the server does not report its time")
    own_s = time.time() if wall_s is None else wall_s
    skew_s = max(0, round(abs(own_s - server_s)) - 1)  # the header has whole seconds
    text = f"{skew_s} s apart from the server's"
    advice = "set the clocks by NTP: signatures are refused beyond 15 minutes"
    if skew_s < SKEW_WARN_S:
        return CheckResult("clock", "ok", text)
    return CheckResult("clock", "fail" if skew_s >= SKEW_FAIL_S else "warn", text, advice)


def check_credentials(target: ServiceTarget, answered: Sequence[CheckResult]) -> CheckResult:
    """Which key signs the requests, and whether the server has accepted it."""
    from veil.client.credentials import DUMMY

    key = target.credentials
    accepted: Verdict = "ok" if answered[0].verdict == "ok" else "skip"
    if key is DUMMY:
        text = "no key found: requests are signed with a dummy key, which only a server without keys accepts"
    else:
        checked = "accepted" if accepted == "ok" else "not checked"
        text = f"{checked}: key {key.key_id} from {key.origin}, region {target.region}"
    return CheckResult("credentials", accepted, text)
