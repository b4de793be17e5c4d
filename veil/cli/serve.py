"""`veil serve`: the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from veil.cli.app import app, group
from veil.cli.failures import ArgumentWrong
from veil.cli.options import AsJson, flag, option, server_settings, shared, widened
from veil.cli.output import echo, show_list
from veil.server.settings import ServerSettingsError, Settings, settings_table, shown_value

CONFIG_HELP = "Read this file instead of ./veil.toml."


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with `--config` and a flag for each setting; its `settings` are made of them.

    Every flag is taken as text and read by the table, so that a wrong value is told in the same words
    wherever it came from.
    """
    rows = [info for info in settings_table() if info.has_flag]
    added: dict[str, Any] = {"config": Annotated[str | None, shared("--config FILE", CONFIG_HELP)]}
    for info in rows:
        shown = f"{info.help} [{info.variable}; default: {_text(info.default)}]"
        if info.is_switch:
            switch = f"{info.flag}/{info.flag.replace('--', '--no-', 1)}"
            added[info.name] = Annotated[bool | None, shared(switch, shown)]
        else:
            added[info.name] = Annotated[str | None, shared(f"{info.flag} {info.metavar}", shown)]

    def call(given: dict[str, Any]) -> None:
        flags = {info.name: given.pop(info.name) for info in rows}
        command(settings=server_settings(flags, given.pop("config")), **given)

    return widened(command, ["settings"], added, call)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


@app.command(
    "serve",
    epilog="Exit codes: 0 stopped on request, 1 could not start, 2 a setting is wrong, 70 the store failed.",
)
@with_settings
def serve(
    settings: Settings,
    ready_file: Path | None = option(
        "--ready-file FILE",
        "Write endpoint_url, port and pid to this file as JSON once the server is ready; removed when it stops.",
    ),
    companion: bool = flag("--companion", "", hidden=True),
) -> None:
    """Run the server until it is told to stop.

    Every option can also be set with the environment variable that is shown next to it, or in veil.toml. Options take
    precedence over variables, and variables over the file.
    """
    from veil.server.main import run_server

    try:
        run_server(settings, ready_file=ready_file, companion=companion)
    except ServerSettingsError as problem:  # one that shows only at the start, such as a certificate
        raise ArgumentWrong(str(problem)) from None


config_app = group("config", "Show the server's settings.")


@config_app.command("show")
@with_settings
def show(settings: Settings, as_json: AsJson = False) -> None:
    """Show every setting, its value and where the value came from; secrets are counted, not shown."""
    rows = [
        {
            "name": info.name,
            "value": shown_value(settings.value(info.name), is_secret=info.is_secret),
            "origin": settings.origin(info.name),
        }
        for info in settings_table()
    ]
    columns = ("name", "value", "origin")
    show_list(rows, columns, lambda row: [_text(row[name]) for name in columns], as_json=as_json)


@config_app.command("reference")
def reference() -> None:
    """Print every setting as a Markdown table: what it is for, its flag, its variable and its default."""
    echo("| veil.toml | variable | flag | default | |")
    echo("| --- | --- | --- | --- | --- |")
    for info in settings_table():
        flag = f"`{info.flag}`" if info.has_flag else ""
        if info.is_switch:
            flag += f", `{info.flag.replace('--', '--no-', 1)}`"
        default = _text(shown_value(info.default, is_secret=info.is_secret))
        echo(f"| `{info.name}` | `{info.variable}` | {flag} | {default} | {info.help} |")
