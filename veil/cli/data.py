"""`veil backup`, `restore`, `verify`: the data directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from veil.cli.failures import CommandFailed, plainly
from veil.cli.options import AsJson
from veil.cli.output import inert, progress_bar, say, say_json, talk
from veil.core.errors import VeilError

# The store is imported when it is used: its library takes longer to load than the rest of the command.

Data = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="DIR",
        envvar="VEIL_DATA",
        show_envvar=False,
        show_default=False,
        help="The data directory; else VEIL_DATA, veil-data.",
    ),
]
DATA_DEFAULT = Path("veil-data")


@plainly
def backup(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; must not exist.")],
    data: Data = DATA_DEFAULT,
) -> None:
    """Copy the data to one file, while the server runs."""
    with _told():
        from veil.stores.sqlite.recovery.backup import backup as write_backup

        write_backup(data, out)
    talk(f"backup of {data} written to {out}")


@plainly
def restore(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A file that veil backup wrote.")],
    data: Data = DATA_DEFAULT,
) -> None:
    """Make a data directory from a backup.

    The directory must not hold data yet. What happened since the backup is undone.
    """
    with _told():
        from veil.stores.sqlite.recovery.backup import restore as restore_backup

        restore_backup(source, data)
    talk(f"{source} restored to {data}")


@plainly
def verify(
    data: Data = DATA_DEFAULT,
    salvage: Annotated[
        Path | None,
        typer.Option("--salvage", metavar="OUT", help="Save what can be read to this new directory."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the data, page by page and message by message.

    With --salvage nothing is checked: what can be read is saved to another directory, and the server must be stopped.
    """
    if salvage is not None:
        _salvage(data, salvage, as_json=as_json)
        return
    with _told(), progress_bar("messages") as shown:
        from veil.stores.sqlite.recovery.verify import verify as find

        findings = find(data, shown)
    if as_json:
        for finding in findings.listed:
            say_json(finding._asdict())
        counts = {"queues": findings.queues, "messages": findings.messages, "body_bytes": findings.body_bytes}
        say_json({"sound": findings.is_sound, **counts})
    else:
        for line in str(findings).splitlines():
            say(inert(line))
    if not findings.is_sound:
        raise CommandFailed(f"{data} is damaged; save what can be read with: veil verify --salvage OUT")


def _salvage(data: Path, out: Path, *, as_json: bool) -> None:
    with _told():
        from veil.stores.sqlite.recovery.salvage import salvage as save

        report = save(data, out)
    if as_json:
        say_json(asdict(report) | {"log": report.log._asdict()})
    else:
        say(inert(str(report)))
    talk(f"saved to {out}; start it with: veil serve --data {out}")


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except VeilError as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        raise CommandFailed(f"{error.filename}: {error.strerror}") from error


def register(app: typer.Typer) -> None:
    """Add `veil backup`, `veil restore` and `veil verify` to the command."""
    app.command("backup", epilog="Example: veil backup --data veil-data monday.veil")(backup)
    app.command("restore", epilog="Example: veil restore monday.veil --data veil-data")(restore)
    app.command("verify", epilog="Example: veil verify --data veil-data")(verify)
