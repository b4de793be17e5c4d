"""What a command shows: data on stdout, talk on stderr, and nothing in either that a terminal would obey."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

T = TypeVar("T", bound=Mapping[str, Any])

# Control characters, C1 included (0x9b alone begins an escape sequence on some terminals), and the marks that
# turn the direction of text, which can make a line read as something else.
_ACTIVE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def inert(text: str, *, keep: str = "\n\t") -> str:
    """The text with everything a terminal might obey made visible; `keep` names what may stay."""
    return _ACTIVE.sub(lambda found: found[0] if found[0] in keep else _visible(found[0]), text)


def _visible(char: str) -> str:
    code = ord(char)
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return named.get(char) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def one_line(text: str, width: int) -> str:
    """The text on one line, inert, cut to the width."""
    line = inert(text[: width + 1], keep="")
    return line if len(line) <= width else line[: width - 1] + "…"


def json_line(value: Mapping[str, Any]) -> str:
    """The value as one line of JSON that is safe on a terminal too."""
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    # Such characters occur only inside strings here, where \uXXXX means the same.
    return _ACTIVE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def say(text: str = "") -> None:
    """One line of data, on stdout, at once."""
    _write(sys.stdout, text)


def say_json(value: Mapping[str, Any]) -> None:
    """One object of data, as a line of JSON on stdout."""
    _write(sys.stdout, json_line(value))


def tell(data: Mapping[str, Any], text: str, *, as_json: bool, aside: bool = False) -> None:
    """One object of data, as JSON or in a line of words; `aside`: the words are for the person, on stderr."""
    if as_json:
        say_json(data)
    else:
        (talk if aside else say)(inert(text, keep=""))


def talk(text: str = "") -> None:
    """One line for the person, on stderr."""
    _write(sys.stderr, text)


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
    except (
        OSError
    ) as problem:  # of a full disk, mostly; which file it is that cannot be written the system does not say
        raise OSError(problem.errno, problem.strerror, stream.name.strip("<>")) from None


def is_terminal(stream: TextIO) -> bool:
    """Whether a person is looking at the stream."""
    return stream.isatty()


def has_colour(stream: TextIO) -> bool:
    """Whether the stream may be given colours."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Rows under headings on stdout: drawn for a person, aligned text for a pipe. Cells are never markup."""
    cells = [[inert(cell, keep="") for cell in row] for row in rows]
    if is_terminal(sys.stdout):
        from rich.console import Console

        Console(highlight=False, no_color=not has_colour(sys.stdout)).print(_drawn(columns, cells, right))
        return
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    for line in [[name.upper() for name in columns], *cells]:
        padded = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(columns, line, widths, strict=True)
        ]
        say("  ".join(padded).rstrip())


def show_list(
    objects: Sequence[T],
    columns: Sequence[str],
    row: Callable[[T], Sequence[str]],
    *,
    as_json: bool,
    right: Sequence[str] = (),
    otherwise: str = "",
) -> None:
    """Each object as a line of JSON, or all of them as the rows of a table; `otherwise` tells a person that there are none."""
    if as_json:
        for each in objects:
            say_json(each)
    elif objects:
        show_table(columns, [row(each) for each in objects], right=right)
    elif otherwise:
        talk(otherwise)


def _drawn(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> Any:
    """A table for a terminal; the cells are inert."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
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
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, no_color=not has_colour(sys.stdout))
    with Live(console=console, auto_refresh=False, screen=True) as live:

        def show(rows: Sequence[Sequence[str]]) -> None:
            cells = [[inert(cell, keep="") for cell in row] for row in rows[: max(1, console.height - 4)]]
            live.update(_drawn(columns, cells, right), refresh=True)

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
