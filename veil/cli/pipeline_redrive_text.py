"""What a redrive shows: the selection before it is asked about, a bar while it runs, and what it came to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from veil.cli.output import has_colour, is_terminal, one_line, say_json, show_table, talk
from veil.cli.pipeline_dead_letters import iso

if TYPE_CHECKING:
    from veil.journal.place import Place
    from veil.pipeline.dead_letters.runs import Progress, Run

EXAMPLES = 5
_CHARS = 60
_COLUMNS = ("message", "source", "type", "error", "what", "before", "body")


def question(run: Run) -> str:
    """What is asked before anything is done."""
    where = f"to {run.to}" if run.to else "to where they came from"
    changed = " with another content" if run.set_body is not None or run.set_attributes else ""
    return f"Redrive {run.messages:,} dead letters {where}{changed}?"


def show_selection(run: Run, tables: Place, *, as_json: bool) -> None:
    """How many there are, and the first of them as they would go."""
    from veil.pipeline.dead_letters.sealing import sample

    rows = sample(tables, run, EXAMPLES)
    if as_json:
        shown = [{**row, "first_seen": iso(row["first_seen"])} for row in rows]
        say_json({"selected": run.messages, "sample": shown})
        return
    talk(f"{run.messages:,} dead letters are selected")
    if rows:
        show_table(_COLUMNS, [_row(row) for row in rows])


def _row(row: Mapping[str, Any]) -> list[str]:
    texts = [row["source"], row["message_type"], row["error_type"], row["fingerprint"]]
    return [
        row["message_id"],
        *(one_line(text or "-", _CHARS) for text in texts),
        "redriven" if row["redriven_before"] else "-",
        one_line(row["body"] or "", _CHARS),
    ]


def tell_unfinished(tables: Place) -> None:
    """Name the runs that were stopped, and how to go on with them."""
    from veil.pipeline.dead_letters.runs import unfinished

    for run, progress in unfinished(tables):
        talk(
            f"run {run.id} of {run.queue.rpartition('/')[2]} was stopped after {progress.settled:,} of {run.messages:,}: "
            f"veil pipeline redrive --resume {run.id}"
        )


def tell_end(run: Run, progress: Progress, *, as_json: bool) -> None:
    """What the run came to."""
    if as_json:
        say_json(
            {
                "run": run.id,
                "selected": run.messages,
                "moved": progress.moved,
                "gone": progress.gone,
                "left": progress.left,
            }
        )
    gone = f", {progress.gone:,} were gone already" if progress.gone else ""
    talk(f"{progress.moved:,} of {run.messages:,} redriven{gone}")
    for example in progress.examples[:EXAMPLES]:
        talk(f"left: {one_line(f'{example.message_id}: {example.reason or example.code}', 200)}")


@contextmanager
def shown_progress(run: Run) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal during the block; what is given is to be told how far the run is."""
    if not is_terminal(sys.stderr):
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, no_color=not has_colour(sys.stderr))
    columns = (TextColumn("redrive"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=run.messages)
        yield lambda progress: bar.update(task, completed=progress.settled)
