"""The root of the command `veil`, and the layout of help: no text is cut, and no Python types are shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from veil.cli import COMMANDS


def _usage(piece: str) -> str:
    """QUEUE, [QUEUE] or QUEUE...: Typer writes {QUEUE}, and [[QUEUE]...]... where the name has brackets already."""
    found = re.fullmatch(r"(?:\{(.+?)\}|\[(\[.+?\])(?:\.\.\.)?\])(?:\.\.\.)?", piece)
    if found is None:
        return piece
    name = (found[1] or found[2]).removesuffix("...")
    return f"{name}..." if piece.endswith("...") else name


# A hyphen at which no line of help is broken: us-east-1 and orders-dead are read, and pasted, whole.
_HYPHEN = "\N{NON-BREAKING HYPHEN}"


_READERS: dict[Any, Callable[[Any], Any]] = {str: str, Path: Path, list[str]: list}


def _read_without_pydantic(param: Any) -> None:
    """Let an option or argument read its value by itself: Typer's newer versions import pydantic for that, also where nothing
    was given, and it takes as long to load as all the rest of a small command."""
    described = getattr(param, "type_descriptor", None)  # older versions have none
    if described is None or "process_value" in vars(param):
        return
    by_typer = param.process_value
    is_many = param.multiple or param.nargs != 1
    parser = None if is_many else described.parameter_info.parser
    reader = parser or _READERS.get(described.annotation)

    def process_value(ctx: Any, value: Any) -> Any:
        if value is None and not param.required:
            value = () if is_many else None
        elif reader is not None and (value or not param.required):
            value = reader(value)
        else:
            return by_typer(ctx, value)
        return value if param.callback is None else param.callback(ctx, param, value)

    param.process_value = process_value


class _Common:
    """What commands and groups have in common: their help, and how they read what is given to them."""

    epilog: str | None

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            _read_without_pydantic(param)
        return params

    def get_help(self, ctx: Any) -> str:
        help_text: str = super().get_help(ctx)  # type: ignore[misc]
        return help_text.replace(_HYPHEN, "-")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Examples on a line each, not wrapped, to be pasted; other words as a paragraph."""
        title, _, examples = (self.epilog or "").partition(": ")
        if not title.startswith("Example"):
            super().format_epilog(ctx, formatter)  # type: ignore[misc]
            return
        with formatter.section(title):
            for example in examples.split(" · "):
                formatter.write(f"  {example}\n")


class _Command(_Common, TyperCommand):
    """A command whose help names arguments as people write them."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [_usage(piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            name, text = record
            if param.param_type_name == "argument":
                name, text = name.partition(" <")[0], text.removesuffix("[required]").rstrip()
            section = sections["Arguments" if param.param_type_name == "argument" else "Options"]
            section.append((name, text.replace("-", _HYPHEN)))
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class CommandGroup(_Common, TyperGroup):
    """A group that lists each of its commands with the whole first paragraph of its help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, " ".join((each.help or "").split("\n\n")[0].split()))
            for name, each in commands
            if each is not None
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class _Root(CommandGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if name in self.commands]


class Commands(typer.Typer):
    def __init__(self, help: str | None = None, **settings: Any) -> None:
        # Plain help: drawing it in colour costs more time than everything else a small command does.
        plain: dict[str, Any] = {"cls": CommandGroup, "no_args_is_help": True, "rich_markup_mode": None}
        super().__init__(**plain | ({} if help is None else {"help": help}) | settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """As Typer's, with help of the house."""
        return super().command(name, cls=_Command, **settings)


app = Commands(
    "A durable message queue that speaks Amazon SQS, built around the visibility timeout.",
    name="veil",
    cls=_Root,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def group(name: str, help: str | None = None, **settings: Any) -> Commands:
    made = Commands(help, **settings)
    app.add_typer(made, name=name)
    return made


def _show_version(wanted: bool) -> None:
    if wanted:
        from veil.installed import version_in_words

        typer.echo(f"veil {version_in_words()}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", help="Show the version.", is_eager=True, callback=_show_version
    ),
) -> None:
    """A durable message queue that speaks Amazon SQS, built around the visibility timeout."""
