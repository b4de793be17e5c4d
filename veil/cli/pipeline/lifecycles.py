"""`veil pipeline lifecycles`: work what is new in the journal into the tables, once or as long as it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from veil.cli.failures import CommandFailed
from veil.cli.options import AsJson, how_often, option
from veil.cli.output import inert, say, say_json, talk
from veil.cli.pipeline import pipeline_app
from veil.cli.pipeline.options import Conf, Data, JournalPlace, Master, TablesPlace, places, spark_when_needed

if TYPE_CHECKING:
    from veil.journal.storage import Storage
    from veil.pipeline.lifecycles.run import LifecyclesRun


Follow = Annotated[bool, option("--follow", "Go on as long as the journal grows; Ctrl-C ends it.")]
Every = Annotated[
    float, how_often("--every", "With --follow: how often to look for new segments; else every 5s.")
]


@pipeline_app.command("lifecycles", epilog="Example: veil pipeline lifecycles --follow --every 5")
def lifecycles(
    follow: Follow = False,
    every: Every = 5.0,
    data: Data = None,
    journal: JournalPlace = None,
    tables: TablesPlace = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Turn the journal into tables: leases, messages, and sums by hour, day and month.

    Reads only what is new; to run it again changes nothing. A segment that cannot be read is named on stderr, left out,
    and tried again by the next run: the exit code is 0 all the same.
    """
    journal_place, tables_place = places(data, journal, tables)
    _expect_journal(journal_place)
    with spark_when_needed(master, conf, "pipeline lifecycles", quiet=as_json) as (spark, is_chosen):
        from veil.pipeline.lifecycles.generation import BYTES_HERE_MAX
        from veil.pipeline.lifecycles.run import follow_lifecycles, run_lifecycles

        here_max = 0 if is_chosen else BYTES_HERE_MAX
        if follow:
            talk(f"following {inert(journal_place.uri)}; Ctrl-C ends it")
            follow_lifecycles(
                spark,
                journal_place,
                tables_place,
                every_s=every,
                bytes_here_max=here_max,
                on_run=lambda run: _tell(run, tables_place, as_json),
                on_busy=lambda busy: talk(f"veil: {inert(str(busy))}; trying again"),
            )
        else:
            run = run_lifecycles(spark, journal_place, tables_place, bytes_here_max=here_max)
            _tell(run, tables_place, as_json)


@pipeline_app.command("files", epilog="Example: veil pipeline files leases")
def files(
    table: Annotated[str, typer.Argument(help="leases, messages, queue_hours, queue_days or queue_months.")],
    data: Data = None,
    tables: TablesPlace = None,
    as_json: AsJson = False,
) -> None:
    """Print the Parquet files that a table consists of now, for readers without Spark."""
    from veil.pipeline.lifecycles.store import files_of_table

    _, place = places(data, tables, tables)
    names = files_of_table(place, table)
    for name in names:
        path = f"{place.uri.rstrip('/')}/{name}"
        if as_json:
            say_json({"table": table, "path": path})
        else:
            say(path)


def _expect_journal(journal: Storage) -> None:
    if not journal.entries():
        raise CommandFailed(
            f"journal {journal.uri}: expected a directory with segments; it is empty or missing"
        )


def _tell(run: LifecyclesRun, tables: Storage, as_json: bool) -> None:
    for each in run.broken:
        talk(f"veil: set aside {inert(each.name, keep='')}: {inert(each.reason, keep='')}")
    if as_json:
        say_json({**_as_json(run), "tables": tables.uri})
        return
    if not run.changed:
        say(f"nothing new; the tables are at {inert(tables.uri)}")
        return
    say(
        f"{run.events:,} events of {run.segments:,} segments: {run.partitions:,} hours written in {run.seconds:.1f} s; "
        f"the tables are at {inert(tables.uri)}"
    )


def _as_json(run: LifecyclesRun) -> dict[str, object]:
    return {
        "segments": run.segments,
        "events": run.events,
        "partitions": run.partitions,
        "broken": [{"name": each.name, "reason": each.reason} for each in run.broken],
        "generation": run.generation,
        "newest": None if run.newest is None else run.newest.isoformat(),
        "seconds": round(run.seconds, 3),
    }
