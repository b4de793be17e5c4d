"""The root of the command `veil`; every command file adds its own with `register`."""

from __future__ import annotations

import typer

# Plain help: drawing it in colour costs more time than everything else a small command does.
app = typer.Typer(
    name="veil",
    help="A durable message queue that speaks Amazon SQS, built around the visibility timeout.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"veil {version('veilmq')}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", help="Show the version.", is_eager=True, callback=_show_version
    ),
) -> None:
    """A durable message queue that speaks Amazon SQS, built around the visibility timeout."""
