"""The server's table of settings as options of a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from veil.server.settings import settings_table

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
    return "none" if value is None or value == () else str(value)
