"""Arguments and options that many commands share, and the completion of queue names."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from veil.cli.failures import ArgumentWrong
from veil.client.api import ApiError
from veil.core.text import length_s, short_length

if TYPE_CHECKING:
    from veil.client.blocking import BlockingClient, ServiceTarget
    from veil.server.settings import Settings

_COMPLETION_TIMEOUT_S = 1.0
_INTERVAL_MIN_S = 0.05
_PAGE_BYTES_MAX = 16 << 20
_BY_NAME = inspect.Parameter.KEYWORD_ONLY


def complete_queue(incomplete: str) -> list[str]:
    """Names of queues that begin so; none if the server does not answer: a shell cannot show an error."""
    from veil.client.blocking import BlockingClient, find_target

    try:
        with BlockingClient(find_target(), timeout_s=_COMPLETION_TIMEOUT_S, tries=1) as client:
            return list(client.queue_names(incomplete))
    except ApiError:
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
    examples = "90, 90s or 5m" if high_s >= 300 else "5 or 5s"
    expected = f"a length from {short_length(low_s)} to {short_length(high_s)}, such as {examples}"

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


def option(
    spec: str, help_text: str, parser: Callable[[Any], Any] | None = None, default: Any = None, **more: Any
) -> Any:
    """An option as its help shows it: the flags, and behind them what stands for the value; required if the default is `...`."""
    flags = [word for word in spec.split() if word.startswith("-")]
    metavar = spec.split()[-1] if len(flags) < len(spec.split()) else None
    return typer.Option(default, *flags, metavar=metavar, help=help_text, parser=parser, **more)


def flag(spec: str, help_text: str, **more: Any) -> Any:
    """An option without a value, off unless it is given."""
    return option(spec, help_text, default=False, **more)


def how_often(spec: str, help_text: str, default: Any = None) -> Any:
    """The option of a command that looks again and again; the default is told by its help."""
    return option(f"{spec} LENGTH", help_text, interval, default, show_default=False)


def argument(
    metavar: str, help_text: str, parser: Callable[[Any], Any] | None = None, default: Any = ..., **more: Any
) -> Any:
    """An argument, named as its help shows it: `[NAME]` may be left out."""
    optional = default is ... and metavar.startswith("[")
    return typer.Argument(
        None if optional else default, metavar=metavar, help=help_text, parser=parser, **more
    )


def shared(spec: str, help_text: str, parser: Callable[[Any], Any] | None = None, **more: Any) -> Any:
    """An option of several commands, for an alias: each command gives its own default."""
    return option(spec, help_text, parser, ..., **more)


def wrong(parameter: str, text: str) -> typer.BadParameter:
    """The refusal of a value, which names the argument or option that had it."""
    return typer.BadParameter(text, param_hint=parameter)


def given(**values: Any) -> dict[str, Any]:
    """Those of the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def server_settings(flags: dict[str, Any], config: str | None = None) -> Settings:
    """The server's settings, by these flags, the environment and veil.toml."""
    from veil.server.settings import ServerSettingsError, load_settings

    try:
        return load_settings(flags, os.environ, config)
    except ServerSettingsError as refused:
        raise ArgumentWrong(str(refused)) from None


def service_target(endpoint: str | None, region: str | None) -> ServiceTarget:
    """The server that the options, the environment and the profile name."""
    from veil.client.blocking import find_target

    try:
        return find_target(endpoint, region)
    except ApiError as refused:
        raise ArgumentWrong(str(refused)) from None


class ServerPage(NamedTuple):
    """A page of the server's beside its API; of another implementation of SQS, which has none, as if it were empty."""

    status: int = 0
    text: str = ""
    date: str | None = None
    problem: str = ""  # why there is none

    @property
    def metrics(self) -> dict[str, str]:
        """The value of each metric on a page of metrics, by name and labels."""
        return dict(line.rpartition(" ")[::2] for line in self.text.splitlines() if line[:1] != "#")


def server_page(endpoint: str, path: str, timeout_s: float = 3.0) -> ServerPage:
    """The page at that path of the server, whose certificate is checked as that of its API is."""
    from urllib.error import HTTPError
    from urllib.request import urlopen

    from veil.client.credentials import read_profile
    from veil.client.endpoint import ca_bundle, client_context

    bundle = ca_bundle(os.environ, read_profile().settings)
    context = client_context(bundle) if endpoint.startswith("https:") else None
    try:
        answer = urlopen(f"{endpoint}{path}", timeout=timeout_s, context=context)  # noqa: S310 - its scheme was checked
    except HTTPError as error:
        answer = error
    except (OSError, ValueError) as problem:
        return ServerPage(problem=str(problem))
    with answer:
        text = answer.read(_PAGE_BYTES_MAX).decode(errors="replace")
        return ServerPage(answer.status, text, answer.headers["Date"])


def connect(endpoint: str | None, region: str | None) -> BlockingClient:
    from veil.client.blocking import BlockingClient

    return BlockingClient(service_target(endpoint, region))


QueueName = Annotated[str, argument("QUEUE", "The queue's name.", autocompletion=complete_queue)]
Endpoint = Annotated[
    str | None,
    shared(
        "--endpoint URL",
        "The server's URL. Default: AWS_ENDPOINT_URL_SQS, AWS_ENDPOINT_URL, the profile's endpoint_url, or http://127.0.0.1:9324.",
    ),
]
Region = Annotated[
    str | None,
    shared(
        "--region NAME",
        "The region. Default: AWS_REGION, AWS_DEFAULT_REGION, the profile's region, or us-east-1.",
    ),
]
AsJson = Annotated[bool, shared("--json", "Print JSON, one object per line.")]
DataDirectory = Annotated[
    str | None,
    shared("--data DIR", "The server's data directory. Default: VEIL_DATA, veil.toml, or veil-data."),
]
Yes = Annotated[bool, shared("--yes -y", "Do not ask for confirmation.")]
DryRun = Annotated[bool, shared("--dry-run", "Show what would be done without doing it.")]


def widened(
    command: Callable[..., None],
    gathered: Collection[str],
    added: Mapping[str, Any],
    call: Callable[[dict[str, Any]], None],
    *,
    first: bool = False,
) -> Callable[..., None]:
    """The command with more options (annotations by name, None unless given) in place of its parameters `gathered`, which `call`
    makes of them; help lists them first or last."""
    # Loaded when a command runs, not for `--help`.
    later = dict.fromkeys(("BlockingClient", "SparkSettings", "Storage"), Any)
    signature = inspect.signature(command, eval_str=True, locals=later)
    own = [each for name, each in signature.parameters.items() if name not in gathered]
    more = [inspect.Parameter(name, _BY_NAME, default=None, annotation=kind) for name, kind in added.items()]
    parameters = [each.replace(kind=_BY_NAME) for each in ([*more, *own] if first else [*own, *more])]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        call(given)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """The command with --endpoint and --region; its `client` is one of the server that they name."""

    def call(given: dict[str, Any]) -> None:
        with connect(given.pop("endpoint"), given.pop("region")) as client:
            command(client=client, **given)

    return widened(command, ["client"], {"endpoint": Endpoint, "region": Region}, call)
