"""`veil serve`: the server."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from veil.cli.app import app, group
from veil.cli.options import AsJson, SettingWrong, option, server_settings
from veil.cli.output import say, say_json, show_table
from veil.server.settings import SettingsError, settings_table, shown_value

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

    parameters = [*own, _option("config", str, option("--config FILE", CONFIG_HELP))]
    for info in rows:
        shown = f"{info.help} [{info.variable}; default: {_text(info.default)}]"
        if info.is_switch:
            names = f"{info.flag}/{info.flag.replace('--', '--no-', 1)}"
            parameters.append(_option(info.name, bool, typer.Option(names, help=shown)))
        else:
            valued = typer.Option(info.flag, metavar=info.metavar, help=shown)
            parameters.append(_option(info.name, str, valued))
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _option(name: str, kind: type, option: Any) -> inspect.Parameter:
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


@app.command(
    "serve",
    epilog="Exit codes: 0 stopped when asked, 1 could not start, 2 a setting is wrong, 70 the store failed.",
)
@with_settings
def serve(
    *,
    flags: dict[str, Any],
    config: str | None,
    ready_file: Annotated[
        Path | None,
        option(
            "--ready-file FILE",
            "Write endpoint_url, port and pid there as JSON once ready; removed at the end.",
        ),
    ] = None,
    companion: Annotated[bool, option("--companion", "", hidden=True)] = False,
) -> None:
    """Run the server until it is told to stop.

    Each option can also be set by the variable named beside it or in veil.toml; an option wins over a
    variable, a variable over the file.
    """
    from veil.server.main import run_server

    try:
        code = run_server(server_settings(flags, config), ready_file=ready_file, companion=companion)
    except SettingsError as problem:  # one that shows only at the start, such as a certificate
        raise SettingWrong(str(problem)) from None
    raise typer.Exit(code)


config_app = group("config", "Look at the server's settings.")


@config_app.command("show")
@with_settings
def show(
    *,
    flags: dict[str, Any],
    config: str | None,
    as_json: AsJson = False,
) -> None:
    """Show every setting, its value and where the value came from; secrets are counted, not shown."""
    settings = server_settings(flags, config)
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


@config_app.command("reference")
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
