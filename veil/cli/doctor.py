"""`veil doctor`: what is well, what is not, and what to do about it."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import typer

from veil.cli.app import app
from veil.cli.client import ServiceTarget, find_target
from veil.cli.failures import CommandFailed, EndpointRefused, ServiceError, Unreachable
from veil.cli.options import AsJson, Endpoint, Region
from veil.cli.output import has_colour, inert, say, say_json
from veil.cli.store import need_driver
from veil.client.credentials import DUMMY
from veil.core.clock import TROUBLE_MIN_MS
from veil.core.errors import VeilError
from veil.server.setting_values import without_password

if TYPE_CHECKING:
    from veil.server.settings import Settings


Verdict = Literal["ok", "skip", "warn", "fail"]  # skip: could not be checked, or does not apply


class Finding(NamedTuple):
    """What one check came to."""

    check: str
    verdict: Verdict
    text: str
    advice: str = ""


_CONNECT_TIMEOUT_S: Final = 3
_OLD_TRANSACTION_S: Final = 300
_LOOK: Final = """
SELECT current_setting('server_version'), current_setting('server_version_num')::int, current_setting('fsync'),
       current_setting('synchronous_commit'), pg_is_in_recovery(),
       (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
       current_setting('synchronous_standby_names'),
       (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::int FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid())
"""


def check_database(dsn: str) -> list[Finding]:
    """Could a node work on this database, and does anything about it want attention?"""
    try:
        need_driver(dsn)
    except CommandFailed as problem:
        return [Finding("database", "fail", str(problem))]
    import psycopg

    from veil.stores.postgres.connection import parse_dsn

    try:
        text = parse_dsn(dsn).text
        with psycopg.connect(text, connect_timeout=_CONNECT_TIMEOUT_S, prepare_threshold=None) as connection:
            row = connection.execute(_LOOK).fetchone()
    except psycopg.Error as error:
        reason = (str(error).strip().splitlines() or ["no answer"])[0]
        return [
            Finding(
                "database", "fail", f"{without_password(dsn)}: {reason}", "check VEIL_STORE and the server"
            )
        ]
    assert row is not None
    return _findings(dsn, *row)


def _findings(
    dsn: str,
    version: str,
    version_number: int,
    fsync: str,
    synchronous_commit: str,
    is_standby: bool,
    standbys: int,
    standby_names: str,
    oldest_s: int,
) -> list[Finding]:
    from veil.stores.postgres.opening import VERSION_MIN

    where = f"PostgreSQL {version.split()[0]} at {without_password(dsn)}"
    found = [Finding("database", "ok", where)]
    if version_number < VERSION_MIN * 10_000:
        found = [Finding("database", "fail", where, f"use PostgreSQL {VERSION_MIN} or newer")]
    elif is_standby:
        found = [Finding("database", "fail", f"{where} is a standby", "add target_session_attrs=read-write")]
    if fsync != "on":
        found.append(Finding("durability", "fail", "fsync=off", "set fsync=on: a crash would lose messages"))
    elif synchronous_commit in ("off", "local") and (synchronous_commit == "off" or standby_names):
        advice = "set synchronous_commit=on: the last moments before a crash or a failover are lost"
        found.append(Finding("durability", "warn", f"synchronous_commit={synchronous_commit}", advice))
    elif not standby_names:
        advice = "a failover would lose what a standby lacks; see docs/postgresql.md"
        found.append(Finding("durability", "ok", f"one machine, no synchronous standby: {advice}"))
    elif not standbys:
        found.append(
            Finding(
                "durability",
                "fail",
                "no synchronous standby is connected",
                "no message can be sent until one is: commits wait for it",
            )
        )
    else:
        found.append(Finding("durability", "ok", f"{standbys} synchronous standby(s) connected"))
    if oldest_s >= _OLD_TRANSACTION_S:
        advice = "end it: vacuum can remove nothing that died since, and receives get slower"
        found.append(Finding("transactions", "warn", f"one has been open for {oldest_s} s", advice))
    return found


PYTHON_MIN = (3, 11)
SQLITE_MIN = (3, 51, 3)  # before it, two connections that checkpoint at once could damage the file
DISK_FAIL_BYTES, DISK_WARN_BYTES = 100 * 2**20, 2**30
SKEW_WARN_S, SKEW_FAIL_S = 60, 900  # signatures are refused beyond 15 minutes
CERTIFICATE_WARN_DAYS = 14
_TIMEOUT_S = 3.0
_COLOURS: dict[Verdict, str] = {"ok": "32", "skip": "2", "warn": "33", "fail": "31"}


@app.command("doctor", epilog="Example: veil doctor --json | jq 'select(.verdict != \"ok\")'")
def doctor(as_json: AsJson = False, endpoint: Endpoint = None, region: Region = None) -> None:
    """Check this machine, the settings and the server.

    Each line is ok, warn or fail, with what to do, or skip where there was nothing to check. Exit code 1 if something fails.
    """
    place = find_target(endpoint, region)
    answered = check_server(place)
    findings = [
        check_python(),
        check_sqlite(),
        *check_settings(),
        *answered,
        check_credentials(place, answered),
    ]
    coloured = has_colour(sys.stdout)
    for finding in findings:
        if as_json:
            say_json(finding._asdict())
        else:
            say(_line(finding, coloured=coloured))
    if any(finding.verdict == "fail" for finding in findings):
        raise typer.Exit(1)


def _line(finding: Finding, *, coloured: bool) -> str:
    verdict = finding.verdict.ljust(4)
    if coloured:
        verdict = f"\x1b[{_COLOURS[finding.verdict]}m{verdict}\x1b[0m"
    advice = f"; {finding.advice}" if finding.advice else ""
    return f"{verdict}  {finding.check.ljust(14)}  {inert(finding.text + advice, keep='')}"


def check_python() -> Finding:
    """Is this Python new enough?"""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON_MIN:
        return Finding("python", "fail", version, "install Python 3.11 or newer")
    return Finding("python", "ok", version)


def check_sqlite() -> Finding:
    """Is the SQLite that Veil brings along new enough?"""
    try:
        import apsw
    except ImportError as error:
        return Finding("sqlite", "fail", str(error), "reinstall: pip install veilmq")
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")) < SQLITE_MIN:
        return Finding("sqlite", "fail", version, "upgrade: pip install --upgrade apsw")
    return Finding("sqlite", "ok", version)


def check_settings() -> list[Finding]:
    """Are the server's settings valid, and could it start here with them?"""
    from veil.server.settings import SettingsError, load_settings

    try:
        settings = load_settings({}, os.environ)
    except SettingsError as error:
        return [Finding("settings", "fail", str(error), "correct it; see: veil config show")]
    return [
        Finding("settings", "ok", "valid"),
        *check_tls(settings),
        *check_place(settings),
        check_journal(settings),
        check_port(settings),
    ]


def check_tls(settings: Settings, wall_s: Callable[[], float] = time.time) -> list[Finding]:
    """Will clients accept the server's certificate, and for how long, if it has one?"""
    from veil.server.settings import SettingsError
    from veil.server.tls import Tls

    if settings.tls_cert is None:
        return []
    try:
        certificate = Tls(settings).certificate
    except SettingsError as error:
        return [Finding("TLS", "fail", str(error), "correct it; the server does not start like this")]
    if certificate.expires is None:
        return [Finding("TLS", "fail", f"{settings.tls_cert}: {certificate.text}", "install a new one")]
    left_days = (certificate.expires.timestamp() - wall_s()) / 86_400
    if left_days < CERTIFICATE_WARN_DAYS:
        advice = "install a new one; a running server takes it up by itself"
        return [Finding("TLS", "warn", f"{certificate.text} ({left_days:.0f} days left)", advice)]
    return [Finding("TLS", "ok", certificate.text)]


def check_place(settings: Settings) -> list[Finding]:
    """Can the messages live where the settings say?"""
    from veil.server.make_store import is_on_postgres

    if not is_on_postgres(settings):
        return check_data(settings.data)
    return [finding for dsn in settings.store.split() for finding in check_database(dsn)]


def check_data(data: Path) -> list[Finding]:
    """Can the data directory be written, and is there room?"""
    # What is not there yet is made by the server, if the directory above lets it.
    nearest = next(path for path in (data, *data.absolute().parents) if path.exists())
    if not nearest.is_dir():
        return [
            Finding("data directory", "fail", f"{nearest} is a file", "name another with --data or VEIL_DATA")
        ]
    if not os.access(nearest, os.W_OK | os.X_OK):
        return [
            Finding("data directory", "fail", f"{nearest} cannot be written", f"chown or chmod {nearest}")
        ]
    state = "" if nearest == data else " (not there yet: veil serve makes it)"
    free = shutil.disk_usage(nearest).free
    room = f"{free / 2**30:.1f} GiB free"
    verdict: Verdict = "fail" if free < DISK_FAIL_BYTES else "warn" if free < DISK_WARN_BYTES else "ok"
    advice = "" if verdict == "ok" else "make room, sends are refused when the disk is full"
    return [Finding("data directory", "ok", f"{data}{state}"), Finding("disk space", verdict, room, advice)]


def check_journal(settings: Settings) -> Finding:
    """Can the journal be reached and written, if there is one?"""
    from veil.journal.storage import Storage, read_mark
    from veil.server.make_store import journal_location

    where = journal_location(settings)
    if where is None:
        return Finding("journal", "skip", "off")
    if find_spec("pyarrow") is None:
        return Finding("journal", "fail", "pyarrow is missing", "reinstall: pip install veilmq")
    place = Storage.at(where)
    try:
        marked = read_mark(place) is not None
    except VeilError as problem:
        return Finding("journal", "fail", str(problem), "name another location with VEIL_JOURNAL")
    except OSError as problem:
        # Events wait in the outbox, so nothing is lost yet.
        reason = problem.strerror or str(problem).partition("\n")[0]
        return Finding("journal", "warn", f"{place.uri}: {reason}", "check the location and its credentials")
    if place.is_local:
        path = Path(place.uri)
        nearest = next(each for each in (path, *path.parents) if each.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            advice = f"chown or chmod {nearest}, or name another with VEIL_JOURNAL"
            return Finding("journal", "fail", f"{nearest} cannot be written", advice)
    return Finding("journal", "ok", place.uri if marked else f"{place.uri} (nothing exported yet)")


def check_port(settings: Settings) -> Finding:
    """Could a server listen on its port, or does one already?"""
    where = f"{settings.host}:{settings.port}"
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return Finding("port", "ok", f"{where} is taken, by the server if one answers below")
            return Finding("port", "fail", f"{where}: {error.strerror}", "choose another --host or --port")
    return Finding("port", "ok", f"{where} is free")


def check_server(place: ServiceTarget, wall_s: Callable[[], float] = time.time) -> list[Finding]:
    """Does a server answer, does it accept our key, and do its clock and ours agree?"""
    from veil.cli.client import Client

    try:
        with Client(place, timeout_s=_TIMEOUT_S, pause=lambda _: None) as client:
            client.call("ListQueues", {"MaxResults": 1})
            return [
                check_ready(place.endpoint),
                check_clock(client.server_date, wall_s()),
                check_disk_speed(place.endpoint),
            ]
    except EndpointRefused as error:
        return [Finding("endpoint", "fail", str(error))]
    except Unreachable as error:
        # Nothing was asked for and nothing runs: a machine on which no server has been started yet.
        expected = not (error.refused and place.endpoint_origin == "default")
        verdict: Verdict = "fail" if expected else "warn"
        return [
            Finding("endpoint", verdict, f"nobody answers at {place.endpoint}", "start one with: veil serve")
        ]
    except ServiceError as error:
        refused = Finding(
            "endpoint", "fail", f"{place.endpoint} refused: {error}", "check endpoint, keys and clock"
        )
        return [refused, check_clock(client.server_date, wall_s())]
    except CommandFailed as error:
        return [Finding("endpoint", "fail", str(error))]


def check_ready(endpoint: str) -> Finding:
    """A server that answers may still not take messages; Veil's own says so."""
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    try:
        urlopen(f"{endpoint.rstrip('/')}/readyz", timeout=_TIMEOUT_S).close()  # noqa: S310
    except HTTPError as error:
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
            reason = error.read(200).decode(errors="replace").strip()
            return Finding("endpoint", "fail", f"{endpoint} answers, but is not ready: {reason}")
    except (URLError, OSError):
        pass  # another implementation of SQS, which need not have it
    return Finding("endpoint", "ok", f"{endpoint} answers")


def check_disk_speed(endpoint: str) -> Finding:
    """How slow the server's commits were within the last hour, by its own metrics."""
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        with urlopen(f"{endpoint.rstrip('/')}/metrics", timeout=_TIMEOUT_S) as answer:  # noqa: S310
            found = dict(line.split(" ", 1) for line in answer.read().decode().splitlines() if " " in line)
        p99_s, worst_s = (float(found[f"veil_commit_{name}_seconds"]) for name in ("p99", "worst"))
    except (URLError, OSError, ValueError, KeyError):
        return Finding(
            "disk speed", "skip", "not checked: the server does not tell how long its commits took"
        )
    told = f"commits of the last hour: 99 of 100 within {p99_s * 1000:.0f} ms, the slowest {worst_s * 1000:.0f} ms"
    if worst_s * 1000 <= TROUBLE_MIN_MS:
        return Finding("disk speed", "ok", told)
    return Finding("disk speed", "warn", told, "renewals had to wait; look for what else writes to the disk")


def check_clock(server_date: str | None, wall_s: float) -> Finding:
    """How far the server's wall clock is from ours; only signatures depend on it."""
    try:
        server_s = parsedate_to_datetime(server_date or "").timestamp()
    except (TypeError, ValueError, IndexError):
        return Finding("clock", "skip", "not checked: the server does not tell its time")
    skew_s = max(0, round(abs(wall_s - server_s)) - 1)  # the header has whole seconds
    verdict: Verdict = "fail" if skew_s >= SKEW_FAIL_S else "warn" if skew_s >= SKEW_WARN_S else "ok"
    advice = "" if verdict == "ok" else "set the clocks by NTP: signatures are refused beyond 15 minutes"
    return Finding("clock", verdict, f"{skew_s} s apart from the server's", advice)


def check_credentials(place: ServiceTarget, answered: Sequence[Finding]) -> Finding:
    """Which key signs the requests, and whether the server has accepted it."""
    key = place.credentials
    accepted: Verdict = answered[0].verdict if answered[0].verdict == "ok" else "skip"
    if key is DUMMY:
        return Finding(
            "credentials",
            accepted,
            "no key found: requests are signed with a dummy, which only a server without keys accepts",
        )
    checked = "accepted" if accepted == "ok" else "not checked"
    return Finding(
        "credentials", accepted, f"{checked}: key {key.key_id} from {key.origin}, region {place.region}"
    )
