"""`veil migrate`, `store`, `backup`, `restore`, `verify`: commands on a whole store.

The stores are imported when they are used: their libraries take longer to load than the rest of the command.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veil.cli.app import app, group
from veil.cli.failures import ArgumentWrong, CommandFailed
from veil.cli.options import AsJson, DataDirectory, DryRun, argument, flag, option, server_settings
from veil.cli.output import echo, echo_err, echo_json, echo_object, progress_bar
from veil.core.errors import StoreError, VeilError
from veil.server.setting_values import without_password
from veil.words import plural

if TYPE_CHECKING:
    from veil.stores.copying.copy import Copied


def need_driver(dsn: str) -> None:
    """Raise ArgumentWrong where the DSN cannot be read, and ModuleNotFoundError without the driver."""
    from veil.stores.postgres.connection import parse_dsn

    try:
        parse_dsn(dsn)
    except StoreError as problem:
        raise ArgumentWrong(f"{without_password(dsn)}: {problem}") from None


@app.command("migrate", epilog="Example: veil migrate --store postgresql://veil@db/veil --dry-run")
def migrate(
    store: str | None = option("--store URL", "The database's URL. Default: VEIL_STORE or veil.toml."),
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Upgrade the schema `veil` of a PostgreSQL database to this version of Veil.

    A server does this by itself when it starts. Use this command to do it beforehand, or with rights that the server does
    not have. Only the server itself upgrades a data directory.
    """
    for dsn in _dsns(store):
        need_driver(dsn)
        try:
            import asyncio

            from veil.stores.postgres import opening

            before, after = asyncio.run(opening.migrate(dsn, dry_run=dry_run)), opening.SCHEMA_VERSION
        except VeilError as problem:
            raise CommandFailed(f"{without_password(dsn)}: {problem}") from problem
        facts = {"store": without_password(dsn), "from": before, "to": after, "dry_run": dry_run}
        upgraded = f"{'would be' if dry_run else 'was'} upgraded from version {before} to {after}"
        now = f"already has version {after}" if before == after else upgraded
        echo_object(facts, f"the schema of {without_password(dsn)} {now}", as_json=as_json, err=True)


def _dsns(given: str | None) -> list[str]:
    store = server_settings({"store": given}).store
    if not store.startswith("postgresql://"):
        raise ArgumentWrong(
            f"store={store}: expected postgresql://USER@HOST/DATABASE; a data directory is upgraded when its server starts"
        )
    return store.split()


store_app = group("store", "Copy a whole store, or mark a database as restored.")


@store_app.command("copy", epilog="Example: veil store copy sqlite:///var/lib/veil postgresql://veil@db/veil")
def copy(
    source: str = argument("FROM", "A data directory, sqlite:///DIR or postgresql://…"),
    target: str = argument("TO", "The target, named in the same way. It must be empty."),
    without_events: bool = flag(
        "--without-events", "Do not copy events that still wait to be exported to the journal."
    ),
    as_json: AsJson = False,
) -> None:
    """Copy every queue and message from one store to another.

    Ids, receive counts, deadlines, leases and receipts, deduplication, dead-letter sources, holds and move tasks are kept.
    Stop the servers of both stores first. If a copy is interrupted, run the same command again to continue it. Afterwards,
    start a server on one of the two stores only: neither learns of what happens in the other.
    """
    copied = _copied(source, target, without_events=without_events)
    facts = {"rows": copied.rows, "resumed": copied.resumed, "events_left": copied.events_left}
    again = ", the earlier ones included" if copied.resumed else ""
    text = f"{copied.rows:,} rows{again} copied from {without_password(source)} to {without_password(target)}"
    echo_object(facts, text, as_json=as_json, err=True)
    if copied.events_left and not as_json:
        echo_err(f"{copied.events_left:,} transactions of the journal were not copied")


@store_app.command("restored", epilog="Example: veil store restored postgresql://veil@db/veil")
def restored(store: str = argument("URL", "The database: postgresql://…")) -> None:
    """Mark a database as restored to an earlier point in time.

    Run this after every such restore, before the first server starts on the database: no receipt from the lost time can then
    be mistaken for a new one, and a new journal begins. (`veil restore` does this for data directories by itself.)
    """
    place = _place(store)
    if isinstance(place, Path):
        raise ArgumentWrong(
            f"{store!r}: expected postgresql://USER@HOST/DATABASE; for a data directory, use veil restore"
        )
    need_driver(place)
    from veil.stores.postgres.opening import mark_restored

    try:
        mark_restored(place)
    except StoreError as problem:
        raise CommandFailed(f"{without_password(store)}: {problem}") from problem
    echo_err(f"{without_password(store)} is marked as restored and will start a new journal")


def _copied(source: str, target: str, *, without_events: bool) -> Copied:
    from veil.stores.copying.copy import copy_store

    here, there = _place(source), _place(target)
    if here == there:
        raise ArgumentWrong("FROM and TO: expected two different stores")
    with ExitStack() as opened:
        read = _open(opened, "FROM", here)
        written = _open(opened, "TO", there)
        return copy_store(
            read, written, opened.enter_context(progress_bar("rows")), without_events=without_events
        )


def _open(opened: ExitStack, argument: str, place: Path | str) -> Any:
    try:
        return opened.enter_context(_store_at(place, is_source=argument == "FROM"))
    except StoreError as problem:
        if isinstance(place, Path):  # it is named in what went wrong
            raise
        raise CommandFailed(f"{argument} {without_password(place)}: {problem}") from problem


def _store_at(place: Path | str, *, is_source: bool) -> AbstractContextManager[Any]:
    if isinstance(place, Path):
        from veil.server.process import SystemClock
        from veil.stores.copying.sqlite import sqlite_source, sqlite_target

        return (sqlite_source if is_source else sqlite_target)(place, SystemClock())
    need_driver(place)
    from veil.stores.copying.postgres import postgres_source, postgres_target

    return (postgres_source if is_source else postgres_target)(place)


def _place(text: str) -> Path | str:
    scheme, _, rest = text.partition("://")
    if scheme in ("postgres", "postgresql") and rest.strip("/"):
        return f"postgresql://{rest}"
    if scheme == "sqlite" and rest.strip("/"):
        return Path("/" + rest.lstrip("/"))
    if "://" in text or not text.strip():
        raise ArgumentWrong(
            f"{without_password(text)!r}: expected a data directory, sqlite:///DIRECTORY or postgresql://USER@HOST/DATABASE"
        )
    return Path(text).expanduser()


def _data_directory(given: str | None) -> Path:
    """The directory that was given, or the one that the server's settings name; raises CommandFailed where it has none."""
    if given is not None:
        return Path(given).expanduser()
    from veil.server.make_store import is_on_postgres, store_directory

    settings = server_settings({})
    directory = store_directory(settings)
    if directory is not None:
        return directory
    if is_on_postgres(settings):
        own = "the store is a PostgreSQL database: use PostgreSQL's own tools, and after a restore veil store restored"
        raise CommandFailed(f"{own}; --data DIR names a data directory")
    raise CommandFailed("store=memory: this store keeps no data; --data DIR names a data directory")


@app.command("backup", epilog="Example: veil backup --data veil-data monday.veil")
def backup(
    out: Path = argument("OUT", "The file to write. It must not exist yet."), data: DataDirectory = None
) -> None:
    """Copy the data to one file. The server can keep running."""
    directory = _data_directory(data)
    from veil.stores.sqlite.recovery.backup import backup as write_backup

    write_backup(directory, out)
    echo_err(f"backup of {directory} written to {out}")


@app.command("restore", epilog="Example: veil restore monday.veil --data veil-data")
def restore(
    source: Path = argument("IN", "A file that veil backup wrote."), data: DataDirectory = None
) -> None:
    """Make a data directory from a backup.

    The directory must not hold data yet. What happened since the backup is undone.
    """
    directory = _data_directory(data)
    from veil.stores.sqlite.recovery.backup import restore as restore_backup

    restore_backup(source, directory)
    echo_err(f"{source} restored to {directory}")


@app.command("verify", epilog="Example: veil verify --data veil-data")
def verify(
    data: DataDirectory = None,
    salvage: Path | None = option("--salvage OUT", "Save what can be read to this new directory."),
    as_json: AsJson = False,
) -> None:
    """Check the data, page by page and message by message.

    With --salvage, nothing is checked: what can be read is saved to a new directory. The server must be stopped.
    """
    directory = _data_directory(data)
    if salvage is not None:
        _salvage(directory, salvage, as_json=as_json)
        return
    with progress_bar("messages") as shown:
        from veil.stores.sqlite.recovery.verify import verify as find

        findings = find(directory, shown)
    if as_json:
        for finding in findings.listed:
            echo_json(finding._asdict())
        counts = {"queues": findings.queues, "messages": findings.messages, "body_bytes": findings.body_bytes}
        echo_json({"sound": findings.is_sound, **counts})
    else:
        for line in findings.lines():
            echo(line)
        found = f"{plural(findings.queues, 'queue')}, {plural(findings.messages, 'message')}"
        verdict = "sound" if findings.is_sound else "damaged"
        echo(f"{verdict}: {found}, {plural(findings.body_bytes, 'byte')} of bodies read")
    if not findings.is_sound:
        raise CommandFailed(f"{directory} is damaged; save what can be read with: veil verify --salvage OUT")


def _salvage(data: Path, out: Path, *, as_json: bool) -> None:
    from veil.stores.sqlite.recovery.salvage import SET_ASIDE
    from veil.stores.sqlite.recovery.salvage import salvage as save

    report = save(data, out)
    if as_json:
        echo_json(asdict(report) | {"log": report.log._asdict()})
    else:
        rebuilt, log = report.queues_rebuilt, report.log
        named = f" ({plural(rebuilt, 'queue')} under made-up names)" if rebuilt else ""
        echo(f"{plural(report.messages, 'message')} in {plural(report.queues, 'queue')} saved{named}")
        if report.set_aside:
            echo(f"{plural(report.set_aside, 'damaged message')} set aside in {SET_ASIDE}")
        events = f"{plural(report.events, 'event')} for a new journal"
        echo(f"{plural(report.given_up, 'message')} given up; {events}")
        echo(f"log: {plural(log.frames, 'frame')} read, {log.mended:,} mended, {log.doubtful:,} doubtful")
    echo_err(f"saved to {out}; start it with: veil serve --data {out}")
