"""`veil pipeline report`: what each queue's timeout costs and what it should be, as a page and as a table."""

from __future__ import annotations

import os
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from veil.cli.failures import CommandFailed
from veil.cli.options import AsJson, option
from veil.cli.output import is_terminal, say_json, show_table, talk
from veil.cli.pipeline import pipeline_app
from veil.cli.pipeline.options import Conf, Data, JournalPlace, Master, TablesPlace, places, spark_session
from veil.cli.timeouts import read_findings

if TYPE_CHECKING:
    from veil.core.findings import Findings


Out = Annotated[Path, option("--out FILE", "Where the page goes: one HTML file that needs nothing else.")]


@pipeline_app.command("report", epilog="Example: veil pipeline report --out report.html")
def report(
    out: Out = Path("veil-report.html"),
    data: Data = None,
    journal: JournalPlace = None,
    tables: TablesPlace = None,
    as_json: AsJson = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Tell what each queue's timeout costs and what it should be: as an HTML file, and as a table here."""
    from veil.pipeline.report import collect_overview, render_html, summary

    _, where = places(data, journal, tables)
    _check_writable(out)
    findings = read_findings(where)  # before Spark is started for nothing
    with spark_session(master, conf, "report", quiet=as_json, brief=True) as spark:
        overview = collect_overview(spark, where, since=_begin(findings))
    _write(out, render_html(findings, overview))
    if as_json:
        say_json({**summary(findings, overview), "report": str(out.resolve())})
        return
    show_headline(findings)
    talk(f"the report is in {out.resolve()}")


def show_headline(findings: Findings) -> None:
    """The table on stdout: with as many columns as the terminal has room for, all of them into a pipe."""
    from veil.pipeline.report.summary import headline

    width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
    table = headline(findings, width)
    if not table.rows:
        talk("no queue has been received from yet")
        return
    show_table(table.columns, table.rows, right=table.right)


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
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        beside.write_text(page, encoding="utf-8", newline="\n")
        beside.replace(out)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise CommandFailed(f"--out {out}: {error.strerror}") from None
