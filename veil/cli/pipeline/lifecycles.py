"""`veil pipeline lifecycles`, `files`, `package`: the journal as tables, their files, and how to make them on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from veil.cli.failures import ArgumentWrong, CommandFailed
from veil.cli.options import AsJson, argument, flag, how_often
from veil.cli.output import echo, echo_err, echo_json, echo_object
from veil.cli.pipeline import pipeline_app
from veil.cli.pipeline.options import spark_when_needed, with_spark, with_tables
from veil.words import plural

if TYPE_CHECKING:
    from veil.journal.storage import Storage
    from veil.pipeline.lifecycles.run import LifecyclesRun
    from veil.pipeline.spark.session import SparkSettings


@pipeline_app.command("lifecycles", epilog="Example: veil pipeline lifecycles --follow --every 5")
@with_spark
@with_tables
def lifecycles(
    journal: Storage,
    tables: Storage,
    spark: SparkSettings,
    follow: bool = flag("--follow", "Keep following the journal as it grows, until Ctrl-C."),
    every: float = how_often(
        "--every", "With --follow: how often to look for new segments. Default: 5s.", 5.0
    ),
    as_json: AsJson = False,
) -> None:
    """Turn the journal into tables: leases, messages, and sums by hour, day and month.

    Only new segments are read; running it again changes nothing. A segment that cannot be read is named on stderr, skipped,
    and tried again by the next run; the exit code is still 0.
    """
    is_empty = not journal.entries()
    if is_empty and not follow:
        raise CommandFailed(
            f"journal {journal.uri}: expected a directory with segments; it is empty or missing (a running server exports "
            "what happened every minute, and when it stops)"
        )
    with spark_when_needed(spark, "pipeline lifecycles", quiet=as_json) as (session, is_chosen):
        from veil.pipeline.lifecycles.generation import BYTES_HERE_MAX
        from veil.pipeline.lifecycles.run import follow_lifecycles, run_lifecycles

        here_max = 0 if is_chosen else BYTES_HERE_MAX
        if not follow:
            _tell(run_lifecycles(session, journal, tables, bytes_here_max=here_max), tables, as_json)
            return
        what = "waiting for the first segment in" if is_empty else "following"
        echo_err(f"{what} {journal.uri}; stop with Ctrl-C")
        follow_lifecycles(
            session,
            journal,
            tables,
            every_s=every,
            bytes_here_max=here_max,
            on_run=lambda run: _tell(run, tables, as_json),
            on_busy=lambda busy: echo_err(f"veil: {busy}; trying again"),
        )


def _tell(run: LifecyclesRun, tables: Storage, as_json: bool) -> None:
    for each in run.broken:
        echo_err(f"veil: set aside {each.name}: {each.reason}")
    newest = None if run.newest is None else run.newest.isoformat()
    facts = {"newest": newest, "seconds": round(run.seconds, 3), "tables": tables.uri}
    text = "nothing new"
    if run.changed:
        read = f"{plural(run.events, 'event')} of {plural(run.segments, 'segment')}"
        text = f"{read}: {plural(run.partitions, 'hour')} written in {run.seconds:.1f} s"
    echo_object(msgspec.to_builtins(run) | facts, f"{text}; the tables are at {tables.uri}", as_json=as_json)


@pipeline_app.command("files", epilog="Example: veil pipeline files leases")
@with_tables
def files(
    tables: Storage,
    table: str = argument("TABLE", "The table: leases, messages, queue_hours, queue_days or queue_months."),
    as_json: AsJson = False,
) -> None:
    """Print the Parquet files of a table as it is now, for readers without Spark."""
    from veil.pipeline.lifecycles.store import TablesRefused, check_table, files_of_table

    try:
        check_table(table)
    except TablesRefused as refused:
        raise ArgumentWrong(str(refused)) from None
    names = files_of_table(tables, table)
    if not names:
        echo_err(f"no files of {table} in {tables.uri}; make the tables with: veil pipeline lifecycles")
    for name in names:
        path = f"{tables.uri.rstrip('/')}/{name}"
        echo_object({"table": table, "path": path}, path, as_json=as_json)


@pipeline_app.command("package", epilog="Example: veil pipeline package cluster/")
def package(folder: Path = argument("DIR", "Where to put the two files."), as_json: AsJson = False) -> None:
    """Write the two files that spark-submit needs.

    With them the same jobs run on a cluster: the package as a zip for the workers, and a main file for the driver.
    """
    from veil.pipeline.spark.workers import package as write_package

    try:
        made = write_package(folder)
    except OSError as problem:
        raise CommandFailed(
            f"DIR {str(folder)!r}: expected a directory to write to ({problem.strerror})"
        ) from None
    if as_json:
        echo_json({"zip": str(made.zip), "main": str(made.main)})
        return
    echo(str(made.zip))
    echo(str(made.main))
    echo_err(
        f"run it with: spark-submit --master URL --py-files {made.zip} {made.main} lifecycles --journal … --tables …"
    )
