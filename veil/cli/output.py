"""What a command prints: data on stdout, messages for people on stderr, and in neither anything that a terminal would obey."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

from veil.words import INVISIBLE, visible

T = TypeVar("T", bound=Mapping[str, Any])

# To how many characters a column of text may be folded: no narrower than a message id, except for the last, which is prose.
_FOLDED = 36
_LAST_FOLDED = 12


def one_line(text: str, width: int) -> str:
    """The text on one line, visible, cut to the width."""
    line = visible(text[: width + 1])
    return line if len(line) <= width else line[: width - 1] + "…"


def json_line(value: Mapping[str, Any]) -> str:
    """The value as one line of JSON that is safe on a terminal too."""
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    # Such characters occur only inside strings here, where \uXXXX means the same.
    return INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def echo(text: str = "", *, keep: str = "") -> None:
    """Print one line of data to stdout, at once: with invisible characters spelled out, but for the controls in `keep`."""
    _write(sys.stdout, visible(text, keep=keep))


def echo_json(value: Mapping[str, Any]) -> None:
    _write(sys.stdout, json_line(value))


def echo_object(data: Mapping[str, Any], text: str, *, as_json: bool, err: bool = False) -> None:
    """Print one object, as JSON on stdout or as a line of text; `err`: the text goes to stderr, since it is not data."""
    if as_json:
        echo_json(data)
    else:
        (echo_err if err else echo)(text)


def echo_err(text: str = "", *, keep: str = "") -> None:
    """Print one line for people to stderr, as `echo` does."""
    _write(sys.stderr, visible(text, keep=keep))


def _write(stream: TextIO, text: str) -> None:
    try:
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:  # a terminal that is not UTF-8: show what it can
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()  # a stream of messages is read as it comes
    except BrokenPipeError:
        raise
    except OSError as problem:  # mostly of a full disk; the system does not name the file
        raise OSError(problem.errno, problem.strerror, stream.name.strip("<>")) from None


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def has_colour(stream: TextIO) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Rows under headings on stdout: drawn on a terminal, with a line for each value where it is too narrow; aligned text
    otherwise. Cells are never markup."""
    cells = [[visible(cell) for cell in row] for row in rows]
    if not is_terminal(sys.stdout):
        for line in _aligned(columns, cells, right):
            echo(line)
        return
    console = _terminal()
    drawn = _drawn(columns, cells, right, console.width)
    if drawn is not None:
        console.print(drawn)
        return
    width = max(map(len, columns))
    echo(
        "\n\n".join(
            "\n".join(f"{n.ljust(width)}  {v}" for n, v in zip(columns, row, strict=True)) for row in cells
        ),
        keep="\n",
    )


def _aligned(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for line in [[name.upper() for name in columns], *rows]:
        padded = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(columns, line, widths, strict=True)
        ]
        yield "  ".join(padded).rstrip()


def show_list(
    objects: Sequence[T],
    columns: Sequence[str],
    row: Callable[[T], Sequence[str]],
    *,
    as_json: bool,
    right: Sequence[str] = (),
    otherwise: str = "",
) -> None:
    """Each object as a line of JSON, or all as the rows of a table; `otherwise` is printed to stderr if there are none."""
    if as_json:
        for each in objects:
            echo_json(each)
    elif objects:
        show_table(columns, [row(each) for each in objects], right=right)
    elif otherwise:
        echo_err(otherwise)


def _terminal() -> Any:
    from rich.console import Console

    return Console(highlight=False, no_color=not has_colour(sys.stdout))


def _drawn(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], width: int
) -> Any | None:
    """The table drawn in that width, with long texts folded; None if that would break a number, an id or a heading's word."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    wide, least = [], []
    for name, *cells in zip(columns, *rows, strict=True):
        widest = max(map(cell_len, cells), default=0)
        may_fold = 0 if name in right else _LAST_FOLDED if name == columns[-1] else _FOLDED
        least.append(max(*map(cell_len, name.split()), min(widest, may_fold or widest)))
        # No column starts wider than the terminal: a cell may be a body of a megabyte.
        wide.append(min(max(cell_len(name), widest), max(width, least[-1])))
    for _ in range(sum(wide) + 3 * len(columns) - 1 - width):
        widest = max(range(len(columns)), key=lambda i: wide[i] - least[i])
        if wide[widest] == least[widest]:
            return None
        wide[widest] -= 1
    for name, its_width in zip(columns, wide, strict=True):
        justify: Any = "right" if name in right else "left"
        table.add_column(name, justify=justify, overflow="fold", width=its_width)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def drawn_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """How wide a terminal must be for the table: its cells, three between two columns, and one at each edge."""
    return sum(max(map(len, column)) + 3 for column in zip(columns, *rows, strict=True)) - 1


@contextmanager
def live_table(
    columns: Sequence[str], *, right: Sequence[str] = ()
) -> Iterator[Callable[[Sequence[Sequence[str]]], None]]:
    """Takes the rows again and again: on a terminal they take the place of the last ones, as many as it has lines for."""
    if not is_terminal(sys.stdout):
        yield lambda rows: show_table(columns, rows, right=right)
        return
    from rich.live import Live
    from rich.text import Text

    console = _terminal()
    with Live(console=console, auto_refresh=False, screen=True) as live:

        def show(rows: Sequence[Sequence[str]]) -> None:
            cells = [[visible(cell) for cell in row] for row in rows[: max(1, console.height - 4)]]
            drawn = _drawn(columns, cells, right, console.width)
            if drawn is None:  # long names are cut, and what still does not fit at the right
                widths = (max(map(len, column)) + 2 for column in zip(columns, *cells, strict=True))
                room = max(_LAST_FOLDED, console.width - sum(list(widths)[1:]))
                cells = [[one_line(row[0], room), *row[1:]] for row in cells]
                drawn = Text("\n".join(_aligned(columns, cells, right)), no_wrap=True, overflow="ellipsis")
            live.update(drawn, refresh=True)

        yield show


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Takes how much is done and how much is expected; draws on a terminal only."""
    if not is_terminal(sys.stderr):
        yield lambda done, expected: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True, no_color=not has_colour(sys.stderr))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, expected: progress.update(task, completed=done, total=max(done, expected))
