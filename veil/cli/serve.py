"""`veil serve`: the server."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from veil.cli.app import Commands
from veil.cli.failures import CommandFailed, plainly
from veil.cli.output import say, say_json, show_table
from veil.server.settings import SettingsError, load_settings, settings_table, shown_value

# ---- settings as options

CONFIG_HELP = "Read this file instead of ./veil.toml."


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for each setting, gathered in its parameter `flags`, and `--config` in `config`.

    Every flag is taken as text and read by the table, so that a wrong value is told in the same words
    wherever it came from.
    """
    own = [
        each
        for each in inspect.signature(command, eval_str=True).parameters.values()
        if each.name not in ("flags", "config")
    ]
    rows = [info for info in settings_table() if info.has_flag]

    def called(**given: Any) -> None:
        flags = {info.name: given.pop(info.name) for info in rows}
        command(flags=flags, **given)

    parameters = [*own, _option("config", str, typer.Option("--config", metavar="FILE", help=CONFIG_HELP))]
    for info in rows:
        shown = f"{info.help} [{info.variable}; default: {_default(info.default)}]"
        if info.is_switch:
            names = f"{info.flag}/{info.flag.replace('--', '--no-', 1)}"
            parameters.append(_option(info.name, bool, typer.Option(names, help=shown)))
        else:
            option = typer.Option(info.flag, metavar=info.metavar, help=shown)
            parameters.append(_option(info.name, str, option))
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _option(name: str, kind: type, option: Any) -> inspect.Parameter:
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _default(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


class SettingWrong(CommandFailed):
    """A setting is unknown or has a value it cannot have."""

    exit_code = 2


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


# ---- config


def register(app: typer.Typer) -> None:
    """Add `serve` and `config` to the root."""
    codes = "Exit codes: 0 stopped when asked, 1 could not start, 2 a setting is wrong, 70 the store failed."
    app.command("serve", epilog=codes)(with_settings(serve))
    group = Commands("Look at the server's settings.")
    group.command("show")(with_settings(show))
    group.command("reference")(reference)
    app.add_typer(group, name="config")


@plainly
def show(
    *,
    flags: dict[str, Any],
    config: str | None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Show every setting, its value and where the value came from; secrets are counted, not shown."""
    try:
        settings = load_settings(flags, os.environ, config)
    except SettingsError as problem:
        raise SettingWrong(str(problem)) from None
    rows = []
    for info in settings_table():
        value = shown_value(settings.value(info.name), is_secret=info.is_secret)
        rows.append((info.name, value, settings.origin(info.name)))
    if as_json:
        for name, value, origin in rows:
            say_json({"name": name, "value": value, "origin": origin})
    else:
        show_table(
            ("name", "value", "origin"), [(name, _text(value), origin) for name, value, origin in rows]
        )


@plainly
def reference() -> None:
    """Print every setting as a Markdown table: what it is for, its flag, its variable and its default."""
    say("| veil.toml | variable | flag | default | |")
    say("| --- | --- | --- | --- | --- |")
    for info in settings_table():
        flag = f"`{info.flag}`" if info.has_flag else ""
        if info.is_switch:
            flag += f", `{info.flag.replace('--', '--no-', 1)}`"
        default = _text(shown_value(info.default, is_secret=info.is_secret))
        say(f"| `{info.name}` | `{info.variable}` | {flag} | {default} | {info.help} |")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
