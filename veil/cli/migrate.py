"""`veil migrate`: bring the schema in a PostgreSQL to the present version."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from veil.cli.failures import CommandFailed, plainly
from veil.cli.options import AsJson
from veil.cli.output import say, say_json, talk
from veil.cli.postgres_driver import need_driver
from veil.cli.serve import SettingWrong
from veil.core.errors import VeilError
from veil.server.shown_url import without_password

# The store is imported when it is used: its driver takes longer to load than the rest of the command.


def register(app: typer.Typer) -> None:
    """Add `migrate` to the root."""
    app.command("migrate", epilog="Example: veil migrate --store postgresql://veil@db/veil --dry-run")(
        migrate
    )


@plainly
def migrate(
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="The database [VEIL_STORE, or veil.toml].")
    ] = None,
    citus: Annotated[
        bool,
        typer.Option("--citus", help="Distribute the tables by queue, where the extension citus is there."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring the schema `veil` of a PostgreSQL to the version of this Veil.

    A server does this by itself when it starts; this is for whoever wants to do it before, or with rights that the server
    does not have. Data directories are brought up by the server alone.
    """
    dsn = _dsn(store)
    need_driver(dsn)
    try:
        import asyncio

        before, after, calls = asyncio.run(_migrate(dsn, citus=citus, dry_run=dry_run))
    except VeilError as problem:
        raise CommandFailed(str(problem)) from problem
    if as_json:
        say_json({"from": before, "to": after, "citus": calls, "dry_run": dry_run})
        return
    would = "would be" if dry_run else "was"
    if before == after:
        talk(f"the schema of {without_password(dsn)} has version {after} already")
    else:
        talk(f"the schema of {without_password(dsn)} {would} brought from version {before} to {after}")
    for call in calls:
        say(call + ";")
    if citus and not calls:
        talk("every table that can be distributed is distributed already")


def _dsn(given: str | None) -> str:
    from veil.server.settings import SettingsError, load_settings

    try:
        store = load_settings({"store": given}, os.environ).store
    except SettingsError as refused:
        raise SettingWrong(str(refused)) from None
    if not store.startswith("postgresql://"):
        raise SettingWrong(
            f"store={store}: expected postgresql://USER@HOST/DATABASE; a data directory is brought up when its server starts"
        )
    return store


async def _migrate(dsn: str, *, citus: bool, dry_run: bool) -> tuple[int, int, list[str]]:
    import psycopg

    from veil.core.errors import StoreTooNew, StoreUnavailable
    from veil.stores.postgres import opening
    from veil.stores.postgres.citus import calls_to_distribute
    from veil.stores.postgres.dsn import parse_dsn
    from veil.stores.postgres.failures import in_our_words

    text = parse_dsn(dsn).text
    try:
        connection = await psycopg.AsyncConnection.connect(text, autocommit=True, prepare_threshold=None)
    except psycopg.OperationalError as error:
        reason = (str(error).strip().splitlines() or ["no answer"])[0]
        raise StoreUnavailable(f"PostgreSQL cannot be reached: {reason}") from None
    try:
        async with connection:
            before = await opening.schema_version(connection)
            if before > opening.SCHEMA_VERSION:
                raise StoreTooNew(
                    f"the schema veil has version {before}, this Veil knows up to {opening.SCHEMA_VERSION}"
                )
            if not dry_run:
                await opening.migrate(text)
            calls = await calls_to_distribute(connection) if citus else []
            for call in calls if not dry_run else ():
                await connection.execute(call.encode())
    except psycopg.Error as error:
        raise in_our_words(error) from error
    return before, opening.SCHEMA_VERSION, calls
