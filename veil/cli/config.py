"""`veil config`: which settings are in effect, and where each came from."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from veil.cli.failures import plainly
from veil.cli.output import say, say_json, show_table
from veil.cli.serve import SettingWrong
from veil.cli.settings_options import with_settings
from veil.server.settings import SettingsError, load_settings, settings_table, shown_value


def register(app: typer.Typer) -> None:
    """Add `config` to the root."""
    group = typer.Typer(help="Look at the server's settings.", no_args_is_help=True)
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
    return "none" if value is None else str(value)
