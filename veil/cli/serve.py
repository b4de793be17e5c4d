"""`veil serve`: the server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from veil.cli.failures import CommandFailed, plainly
from veil.cli.settings_options import with_settings
from veil.server.settings import SettingsError, load_settings


class SettingWrong(CommandFailed):
    """A setting is unknown or has a value it cannot have."""

    exit_code = 2


def register(app: typer.Typer) -> None:
    """Add `serve` to the root."""
    codes = "Exit codes: 0 stopped when asked, 1 could not start, 2 a setting is wrong, 70 the store failed."
    app.command("serve", epilog=codes)(with_settings(serve))


@plainly
def serve(
    *,
    flags: dict[str, Any],
    config: str | None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write endpoint_url, port and pid there as JSON once ready; removed at the end.",
        ),
    ] = None,
    companion: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run the server until it is told to stop.

    Each option can also be set by the variable named beside it or in veil.toml; an option wins over a
    variable, a variable over the file.
    """
    from veil.server.main import StartRefused, run_server

    try:
        settings = load_settings(flags, os.environ, config)
        code = run_server(settings, ready_file=ready_file, companion=companion)
    except SettingsError as problem:
        raise SettingWrong(str(problem)) from None
    except StartRefused as problem:
        raise CommandFailed(str(problem)) from None
    raise typer.Exit(code)
