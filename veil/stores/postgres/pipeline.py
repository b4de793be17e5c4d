"""Statements that go to PostgreSQL in one write, and their answers.

The driver's own pipeline sends every statement by itself and prepares its arguments with great care, which costs a tenth of a
millisecond each: more than most of the statements take. Here the arguments are few kinds (whole numbers, texts, bytes, and
lists of them), every query says what its arrays hold, and a whole round trip leaves in one write.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.waiting import Ready, Wait

from veil.stores.sql import NamedQueries

Q: Final = NamedQueries("veil.stores.postgres", "queries.sql")

Arguments = Mapping[str, Any]
Statement = tuple[str, Arguments]

_NAMED: Final = re.compile(r"%\((\w+)\)s")
_BINARY: Final = 1
# The types of arguments that cannot be left to the server to find out.
_INT8, _BYTEA, _BOOL, _ANY = 20, 17, 16, 0


class _Query(NamedTuple):
    """A query as the server reads it, and the names of its arguments in their order."""

    text: bytes
    names: tuple[str, ...]


class PipelinedConnection(psycopg.AsyncConnection[Any]):
    """A connection that sends statements together, and remembers which of them are prepared there."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._names_of: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        # Never used twice: where a statement failed, nobody knows which of those before it were prepared.
        self._numbers = itertools.count()
        self._loader = Transformer(self)
        self.has_worked = False  # a transaction was committed by it
        self.warnings: list[str] = []  # what the server warned of in the latest round trip
        self.add_notice_handler(self._noticed)

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self.warnings.append(notice.message_primary or "")

    async def exchange(self, statements: Sequence[Statement]) -> list[list[Any]]:
        """The rows of each; raises what the first that failed met, and none after it was done."""
        # Made before anything is sent, so that an argument that cannot be sent leaves the connection as it was.
        ready = [_bound(*statement) for statement in statements]
        pgconn, is_preparing = self.pgconn, self.prepare_threshold is not None  # a pooler would mix them up
        self.warnings.clear()
        fresh: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        pgconn.enter_pipeline_mode()
        answers: list[int] = []  # where each statement's own is among the results: a preparation has one too
        try:
            sent = 0
            for query, values, types, formats in ready:
                if is_preparing:
                    key = (query.text, types)
                    name = self._names_of.get(key) or fresh.get(key)
                    if name is None:
                        name = fresh[key] = b"veil_%d" % next(self._numbers)
                        pgconn.send_prepare(name, query.text, types)
                        sent += 1
                    pgconn.send_query_prepared(name, values, formats, _BINARY)
                else:
                    pgconn.send_query_params(query.text, values, types, formats, _BINARY)
                answers.append(sent)
                sent += 1
            pgconn.pipeline_sync()
            results = await self.wait(_exchange(pgconn))
        except psycopg.Error as error:
            # Cancelled, the driver asks the server to stop; where the connection is gone too, its error takes the place of the
            # cancellation, and whoever retries after errors would never end.
            if isinstance(error.__context__, asyncio.CancelledError):
                raise asyncio.CancelledError from error
            raise
        finally:
            if pgconn.status == pq.ConnStatus.OK and pgconn.pipeline_status != pq.PipelineStatus.OFF:
                try:
                    pgconn.exit_pipeline_mode()
                except psycopg.OperationalError:
                    pgconn.finish()  # answers are still to come: who waited for them was cancelled, and once more meanwhile
        for result in results:
            if result.status in _FAILED:
                raise psycopg.errors.error_from_result(result, self.info.encoding)
        self._names_of |= fresh
        return [self._loaded(results[at]) for at in answers]

    def _loaded(self, result: pq.abc.PGresult) -> list[Any]:
        if result.status != pq.ExecStatus.TUPLES_OK or not result.ntuples:
            return []
        self._loader.set_pgresult(result)
        return self._loader.load_rows(0, result.ntuples, tuple)


_queries: dict[str, _Query] = {}
_FAILED: Final = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE)


def _query(text: str) -> _Query:
    names: list[str] = []

    def place(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return _Query(_NAMED.sub(place, text).replace("%%", "%").encode(), tuple(names))


def _bound(text: str, arguments: Arguments) -> tuple[_Query, list[bytes | None], tuple[int, ...], list[int]]:
    query = _queries.get(text)
    if query is None:
        query = _queries[text] = _query(text)
    values: list[bytes | None] = []
    types: list[int] = []
    formats: list[int] = []
    for name in query.names:
        value = arguments[name]
        kind, oid, form = type(value), _ANY, 0
        if kind is list or kind is str:
            written = array(value) if kind is list else value
            if "\x00" in written:
                raise psycopg.DataError("PostgreSQL stores no text with a NUL in it")
            value = written.encode()
        elif kind is bytes:
            oid, form = _BYTEA, _BINARY
        elif kind is bool:
            value, oid = b"t" if value else b"f", _BOOL
        elif isinstance(value, int):  # or the member of an enum
            value, oid = b"%d" % value, _INT8
        elif value is not None:
            raise TypeError(f"{name}={value!r}: expected a number, a text, bytes, or a list of them")
        values.append(value)
        types.append(oid)
        formats.append(form)
    return query, values, tuple(types), formats


def _exchange(pgconn: pq.abc.PGconn) -> Generator[Wait, Ready | int | None, list[pq.abc.PGresult]]:
    """Write everything, reading meanwhile what comes back, until the end of the pipeline."""
    while pgconn.flush():
        ready = yield Wait.RW
        if ready is None or ready & Ready.R:  # None: begun again, after a cancellation
            pgconn.consume_input()
    results: list[pq.abc.PGresult] = []
    while True:
        while pgconn.is_busy():
            yield Wait.R
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            if pgconn.status == pq.ConnStatus.BAD:
                raise psycopg.OperationalError("the connection is lost")
            continue  # between the answers of two statements
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            return results
        results.append(result)
        if result.status == pq.ExecStatus.FATAL_ERROR and pgconn.status == pq.ConnStatus.BAD:
            return results  # nothing more will come


# ---- arrays: a hundred rows are one argument for each of their columns
#
# The driver would look at every element to find out what it is, which takes longer than the statement. Every query says itself
# what its arrays hold, so text will do.


def array(values: Sequence[Any]) -> str:
    """The literal of an array of whole numbers, of texts or of bytes, each with or without gaps."""
    first = next((value for value in values if value is not None), 0)
    write = _WRITERS.get(type(first))
    if write is None:
        if not isinstance(first, int):
            raise TypeError(f"{first!r}: expected a number, a text or bytes")
        write = str  # the member of an enum
    return "{" + ",".join(["NULL" if value is None else write(value) for value in values]) + "}"


def _quoted(value: str) -> str:
    if "\\" in value:
        value = value.replace("\\", "\\\\")
    if '"' in value:
        value = value.replace('"', '\\"')
    return f'"{value}"'


def _blob(value: bytes) -> str:
    return f'"\\\\x{value.hex()}"'


_WRITERS: dict[type, Callable[[Any], str]] = {int: str, str: _quoted, bytes: _blob, bool: str}
