"""Arguments and options that many commands share, and the completion of queue names."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veil.cli.client import Client, find_target
from veil.cli.failures import CommandFailed
from veil.core.text import length_s

if TYPE_CHECKING:
    from veil.server.settings import Settings

_COMPLETION_TIMEOUT_S = 1.0
_INTERVAL_MIN_S = 0.05


def complete_queue(incomplete: str) -> list[str]:
    """Names of queues that begin so; none if the server does not answer: a shell cannot show an error."""
    try:
        with Client(find_target(), timeout_s=_COMPLETION_TIMEOUT_S, pause=lambda _: None) as client:
            return list(client.queue_names(incomplete))
    except (CommandFailed, KeyError, ValueError):
        return []


def whole_number(low: int, high: int | None = None) -> Callable[[str | int], int]:
    """A reader of numbers in that range, whose refusal names the value and what was expected."""
    expected = f"a whole number from {low} to {high}" if high is not None else f"a whole number from {low} up"

    def read(text: str | int) -> int:
        digits = str(text)
        if re.fullmatch(r"-?[0-9]{1,18}", digits, re.ASCII) is None:
            raise typer.BadParameter(f"{digits!r}: expected {expected}")
        number = int(digits)
        if number < low or (high is not None and number > high):
            raise typer.BadParameter(f"{number}: expected {expected}")
        return number

    return read


def length(low_s: int, high_s: int) -> Callable[[str | int], int]:
    """A reader of lengths of time in that range, in seconds."""
    expected = f"a length from {_short(low_s)} to {_short(high_s)}, such as 90, 90s or 5m"

    def read(text: str | int) -> int:
        seconds = length_s(str(text))
        if seconds is None or not low_s <= seconds <= high_s:
            raise typer.BadParameter(f"{str(text)!r}: expected {expected}")
        return seconds

    return read


def interval(text: str | float) -> float:
    """Seconds between two looks: a length, or a fraction of a second such as 0.5."""
    try:
        seconds = float(length_s(str(text)) or text)
    except ValueError:
        seconds = 0.0
    if not _INTERVAL_MIN_S <= seconds <= 86_400:
        raise typer.BadParameter(
            f"{str(text)!r}: expected a length from {_INTERVAL_MIN_S} to 1d, such as 0.5, 5s or 1m"
        )
    return seconds


def option(spec: str, help_text: str, parser: Callable[[Any], Any] | None = None, **more: Any) -> Any:
    """An option as its help shows it: the flags, and behind them what stands for the value."""
    flags = [word for word in spec.split() if word.startswith("-")]
    metavar = spec.split()[-1] if len(flags) < len(spec.split()) else None
    return typer.Option(*flags, metavar=metavar, help=help_text, parser=parser, **more)


def argument(metavar: str, help_text: str, parser: Callable[[Any], Any] | None = None, **more: Any) -> Any:
    """An argument, named as its help shows it."""
    return typer.Argument(metavar=metavar, help=help_text, parser=parser, **more)


def how_often(flag: str, help_text: str) -> Any:
    """The option of a command that looks again and again; the default is told by its help."""
    return option(f"{flag} LENGTH", help_text, interval, show_default=False)


def _short(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s" if seconds else "0"


class SettingWrong(CommandFailed):
    """A setting of the server's is unknown or has a value it cannot have."""

    exit_code = 2


def server_settings(flags: dict[str, Any], config: str | None = None) -> Settings:
    """The server's settings, by these flags, the environment and veil.toml."""
    from veil.server.settings import SettingsError, load_settings

    try:
        return load_settings(flags, os.environ, config)
    except SettingsError as refused:
        raise SettingWrong(str(refused)) from None


def connect(endpoint: str | None, region: str | None) -> Client:
    """A client for the place that the options, the environment and the profile name."""
    return Client(find_target(endpoint, region))


QueueName = Annotated[str, argument("QUEUE", "The queue's name.", autocompletion=complete_queue)]
Endpoint = Annotated[
    str | None,
    option(
        "--endpoint URL", "The server; else AWS_ENDPOINT_URL_SQS, AWS_ENDPOINT_URL, http://127.0.0.1:9324."
    ),
]
Region = Annotated[
    str | None,
    option("--region NAME", "The region; else AWS_REGION, AWS_DEFAULT_REGION, the profile's, us-east-1."),
]
AsJson = Annotated[bool, option("--json", "Data as JSON, one object per line.")]
DataDirectory = Annotated[
    str | None, option("--data DIR", "The server's data directory; else VEIL_DATA, veil.toml, veil-data.")
]
Yes = Annotated[bool, option("--yes -y", "Do not ask.")]


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """The command with --endpoint and --region; its first argument is a client of the server that they name."""
    given = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    where = {"endpoint": Endpoint, "region": Region}
    parameters = [
        *given,
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in where.items()
        ),
    ]

    @functools.wraps(command)
    def called(*args: Any, endpoint: str | None = None, region: str | None = None, **more: Any) -> None:
        with connect(endpoint, region) as client:
            command(client, *args, **more)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called
