"""`veil demo`: the product in a minute. A real server, real work, real crashes; then what the timeouts should have been."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from veil.cli.demo_life import life
from veil.cli.demo_queues import FULL_S
from veil.cli.demo_signals import ended_by_signals
from veil.cli.failures import CommandFailed, plainly
from veil.cli.options import AsJson
from veil.cli.output import talk

_WITHOUT: Final = "without it there is: veil demo life"
_WITHOUT_SPARK: Final = f'the demo needs Spark: pip install "veilmq[spark]"; {_WITHOUT}'

demo_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@demo_app.callback(epilog="Example: veil demo --out shop")
@plainly
def demo(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Leave report.html, summary.json and the data there; else in a new temporary directory.",
        ),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="At the end, keep server, producers and workers running until Ctrl-C."),
    ] = False,
    as_json: AsJson = False,
    seconds: Annotated[float, typer.Option(hidden=True, min=1.0)] = FULL_S,
) -> None:
    """Show in a minute what Veil is for.

    A real server, producers and workers, some of them killed, on queues whose visibility timeouts are too short, too long
    and right; then Spark finds from the journal what each timeout costs and what it should be. Exit code 1 if anything is
    not as claimed.
    """
    if context.invoked_subcommand is not None:
        return
    _need_spark()
    from veil.cli.demo_acts import play
    from veil.cli.demo_folder import demo_folder

    with ended_by_signals():
        folder = demo_folder(out)
        try:
            stage = play(folder, seconds, keep=keep, as_json=as_json)
        except KeyboardInterrupt:
            talk(f"stopped; what there was is in {folder}")
            raise
    if stage.broken:
        raise CommandFailed(f"{len(stage.broken)} of the demo's claims did not hold")


def _need_spark() -> None:
    """Say what is missing before half a minute is spent."""
    if find_spec("pyspark") is None:
        raise CommandFailed(_WITHOUT_SPARK)
    from veil.pipeline.java import JavaMissing, find_java

    try:
        find_java(os.environ)
    except JavaMissing as missing:
        raise CommandFailed(f"{missing}; {_WITHOUT}") from None


demo_app.command("life", epilog="Example: veil demo life")(life)


def register(app: typer.Typer) -> None:
    """Add `veil demo` and `veil demo life` to the command."""
    app.add_typer(demo_app, name="demo")
