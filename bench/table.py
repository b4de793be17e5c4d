"""A report as plain text."""

from __future__ import annotations

from bench.throughput import Report, Row

_COLUMNS = (
    "part", "batch", "conns", "server", "req/s", "msg/s", "p50 ms", "p99 ms", "of no-op", "of ElasticMQ", "of one core",
    "server µs", "store µs", "load µs", "server cores", "load cores", "errors",
)  # fmt: skip
_LEFT = frozenset(("part", "server"))


def table(report: Report) -> str:
    """The rows in columns, without those that nobody has a figure for, and below them which servers these were and whether the
    load was up to them."""
    lines = [_COLUMNS, *(_cells(row) for row in report.rows)]
    whole = [line for line in lines if len(line) == len(_COLUMNS)]  # the others end in a remark
    widths = [max(len(line[at]) for line in whole) for at in range(len(_COLUMNS))]
    empty = [len(whole) > 1 and all(line[at] == "-" for line in whole[1:]) for at in range(len(_COLUMNS))]
    text = []
    for line in lines:
        cells = [
            cell.ljust(width) if _COLUMNS[at] in _LEFT else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=False))
            if not empty[at]
        ]
        text.append("  ".join(cells).rstrip())
    text.append("")
    text += [f"{name}: {label}" for name, label in report.labels.items()]
    if report.check is not None:
        verdict = (
            "one generator is enough"
            if report.check.passed
            else "ONE GENERATOR IS NOT ENOUGH: doubt the figures"
        )
        check = report.check
        text.append(
            f"no-op under one generator {check.one_per_s:,.0f} req/s (it used {check.generator_cores:.2f} cores), "
            f"under two {check.two_per_s:,.0f}: {verdict}"
        )
    return "\n".join(text)


def _cells(row: Row) -> tuple[str, ...]:
    start = (row.part, str(row.batch), str(row.connections), row.contender)
    if row.missing is not None:
        return (*start, row.missing)
    return (
        *start,
        f"{row.requests_per_s:,.0f}",
        f"{row.messages_per_s:,.0f}",
        f"{row.p50_ms:.2f}" if row.p50_ms else "-",
        f"{row.p99_ms:.2f}" if row.p99_ms else "-",
        _ratio(row.of_noop),
        _ratio(row.of_elasticmq),
        _ratio(row.of_one_core),
        f"{row.server_us_per_request:,.0f}",
        "-" if row.store_us_per_request is None else f"{row.store_us_per_request:,.0f}",
        f"{row.generator_us_per_request:,.0f}",
        f"{row.server_cores:.2f}",
        f"{row.generator_cores:.2f}",
        str(row.errors),
    )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
