"""The report: what each queue's timeout costs and what it should be, as one HTML file and as a table in the terminal."""

from veil.pipeline.report.overview import Overview, collect_overview
from veil.pipeline.report.page import render_html
from veil.pipeline.report.summary import read_findings, summary

__all__ = ["Overview", "collect_overview", "read_findings", "render_html", "summary"]
