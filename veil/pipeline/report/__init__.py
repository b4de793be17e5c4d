"""The report: what each queue's timeout costs and what it should be, as one HTML file and as a table in the terminal."""

from veil.pipeline.report.overview import (
    FindingsMissing,
    FindingsUnreadable,
    Overview,
    collect_overview,
    read_findings,
)
from veil.pipeline.report.page import render_html
from veil.pipeline.report.summary import summary

__all__ = [
    "FindingsMissing",
    "FindingsUnreadable",
    "Overview",
    "collect_overview",
    "read_findings",
    "render_html",
    "summary",
]
