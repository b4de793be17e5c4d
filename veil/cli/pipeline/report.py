"""`veil pipeline report`: what each queue's timeout costs and what it should be, as a page and as a table."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from veil.cli.failures import CommandFailed
from veil.cli.options import AsJson, option
from veil.cli.output import echo_err, echo_json
from veil.cli.pipeline import pipeline_app
from veil.cli.pipeline.options import SparkOptions, spark_session, with_spark, with_tables
from veil.cli.timeouts import read_findings, show_findings

if TYPE_CHECKING:
    from veil.core.findings import Findings
    from veil.journal.storage import Storage


@pipeline_app.command("report", epilog="Example: veil pipeline report --out report.html")
@with_spark
@with_tables
def report(
    tables: Storage,
    spark: SparkOptions,
    out: Path = option(
        "--out FILE",
        "Where to write the report: one self-contained HTML file.",
        default=Path("veil-report.html"),
    ),
    as_json: AsJson = False,
) -> None:
    """Report what each queue's timeout costs and what it should be, as an HTML file and as a table."""
    from veil.pipeline.report import collect_overview, render_html, summary

    _check_writable(out)
    findings = read_findings(tables)  # before Spark is started for nothing
    with spark_session(*spark, "report", quiet=as_json) as session:
        overview = collect_overview(session, tables, since=_begin(findings))
    _write(out, render_html(findings, overview))
    if as_json:
        echo_json({**summary(findings, overview), "report": str(out.resolve())})
        return
    if not findings.findings:
        echo_err("no messages have been received from any queue yet")
    show_findings(findings)
    echo_err(f"the report is in {out.resolve()}")


def _begin(findings: Findings) -> datetime | None:
    """Where the findings begin: the report tells the same time."""
    from veil.words import parsed

    begins = [at for finding in findings.findings if (at := parsed(finding.since)) is not None]
    return min(begins, default=None)


def _check_writable(out: Path) -> None:
    if out.is_dir():
        raise CommandFailed(f"--out {out}: expected a file, and this is a directory")
    if not out.absolute().parent.is_dir():
        raise CommandFailed(f"--out {out}: the directory {out.absolute().parent} does not exist")


def _write(out: Path, page: str) -> None:
    """The page appears whole or not at all: somebody may be looking at the last one."""
    from veil.journal.storage import Storage

    try:
        Storage.at(out.absolute().parent).write(out.name, page.encode())
    except OSError as error:
        raise CommandFailed(f"--out {out}: {error.strerror}") from None
