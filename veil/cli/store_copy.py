"""`veil store copy`: a whole store from SQLite to PostgreSQL, or back; and `veil store restored`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veil.cli.failures import CommandFailed, plainly
from veil.cli.options import AsJson
from veil.cli.output import say_json, talk
from veil.cli.progress import progress_bar
from veil.core.errors import VeilError
from veil.server.shown_url import without_password

if TYPE_CHECKING:
    from veil.stores.copying import Copied, Source, Target

# The stores are imported when they are used: their libraries take longer to load than the rest of the command.


class PlaceWrong(CommandFailed):
    """What was given is no place of a store."""

    exit_code = 2


def register(app: typer.Typer) -> None:
    """Add `store` to the root."""
    group = typer.Typer(help="Work on whole stores.", no_args_is_help=True)
    example = "Example: veil store copy sqlite:///var/lib/veil postgresql://veil@db/veil"
    group.command("copy", epilog=example)(copy)
    group.command("restored", epilog="Example: veil store restored postgresql://veil@db/veil")(restored)
    app.add_typer(group, name="store")


@plainly
def copy(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="A data directory, sqlite:///DIR or postgresql://…")
    ],
    target: Annotated[str, typer.Argument(metavar="TO", help="The same; it must be empty.")],
    without_events: Annotated[
        bool, typer.Option("--without-events", help="Leave behind what waits to be exported to the journal.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy every queue and message from one store to another.

    Ids, receive counts, deadlines, leases and receipts, deduplication, dead-letter sources, holds and move tasks are kept.
    Stop the servers of both first. A copy that was cut short goes on when the same command is run again. Start only one of
    the two stores afterwards: what one does, the other does not know.
    """
    copied = _copied(source, target, without_events=without_events)
    if as_json:
        say_json({"rows": copied.rows, "resumed": copied.resumed, "events_left": copied.events_left})
        return
    again = ", the earlier ones included" if copied.resumed else ""
    talk(f"{copied.rows:,} rows{again} copied from {without_password(source)} to {without_password(target)}")
    if copied.events_left:
        talk(f"{copied.events_left:,} transactions of the journal stayed behind")


@plainly
def restored(
    store: Annotated[str, typer.Argument(metavar="URL", help="The database: postgresql://…")],
) -> None:
    """Tell a database that it was restored to an earlier time.

    Do this before the first server starts on it, and after every such restore: no receipt from the lost time can then be
    mistaken for a new one, and the journal begins anew. (`veil restore` does it for data directories by itself.)
    """
    place = _place(store)
    if isinstance(place, Path):
        raise PlaceWrong(
            f"{store!r}: expected postgresql://USER@HOST/DATABASE; for a data directory there is veil restore"
        )
    from veil.cli.postgres_driver import need_driver

    need_driver(place)
    from veil.stores.postgres.restored import mark_restored

    try:
        mark_restored(place)
    except VeilError as problem:
        raise CommandFailed(str(problem)) from problem
    talk(f"{without_password(store)} goes on with new numbers and a new journal")


def _copied(source: str, target: str, *, without_events: bool) -> Copied:
    from veil.stores.copying import copy_store

    if _place(source) == _place(target):
        raise PlaceWrong("FROM and TO: expected two stores, not the same one twice")
    try:
        with _source(source) as read, _target(target) as written, progress_bar("rows") as shown:
            return copy_store(read, written, shown, without_events=without_events)
    except VeilError as problem:
        raise CommandFailed(str(problem)) from problem
    except OSError as problem:
        raise CommandFailed(f"{problem.filename}: {problem.strerror}") from problem


def _place(text: str) -> Path | str:
    """The directory, or the DSN of the database."""
    scheme, _, rest = text.partition("://")
    if scheme in ("postgres", "postgresql") and rest.strip("/"):
        return f"postgresql://{rest}"
    if scheme == "sqlite" and rest.strip("/"):
        return Path("/" + rest.lstrip("/"))
    if "://" in text or not text.strip():
        raise PlaceWrong(
            f"{without_password(text)!r}: expected a data directory, sqlite:///DIRECTORY or postgresql://USER@HOST/DATABASE"
        )
    return Path(text).expanduser()


@contextmanager
def _source(text: str) -> Iterator[Source]:
    place = _place(text)
    if isinstance(place, Path):
        from veil.server.system_clock import SystemClock
        from veil.stores.copying_sqlite import sqlite_source

        with sqlite_source(place, SystemClock()) as source:
            yield source
        return
    from veil.cli.postgres_driver import need_driver

    need_driver(place)
    from veil.stores.copying_postgres import postgres_source

    with postgres_source(place) as database:
        yield database


@contextmanager
def _target(text: str) -> Iterator[Target]:
    place = _place(text)
    if isinstance(place, Path):
        from veil.server.system_clock import SystemClock
        from veil.stores.copying_sqlite import sqlite_target

        with sqlite_target(place, SystemClock()) as target:
            yield target
        return
    from veil.cli.postgres_driver import need_driver

    need_driver(place)
    from veil.stores.copying_postgres import postgres_target

    with postgres_target(place) as database:
        yield database
