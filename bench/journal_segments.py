"""Columns of events as segments of a journal: Parquet by day, as the exporter writes them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.journal_lives import NONE, Events
from bench.journal_world import ACCOUNT, DAY_MS, REGION, TYPES, Ints, World
from veil.core.attempt import RULE
from veil.core.event import Kind
from veil.journal.schema import FIRST_KEY, JOURNAL_KEY, LAST_KEY, VERSION, VERSION_KEY, segment_name
from veil.journal.segment_writer import SCHEMA
from veil.journal.segment_writer import TYPES as ARROW

ROW_EVENTS: Final = 40  # in one outbox row: what a transaction of a busy server comes to
_KINDS: Final = ["", *(kind.label for kind in Kind)]
_ERRORS: Final = ["ValueError", "TimeoutError", "KeyError"]
_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), dtype=np.uint8).reshape(
    256, 2
)
_ID_PLACES: Final = [at for at in range(36) if at not in (8, 13, 18, 23)]


class SegmentWriter:
    """Writes events that come in order, a segment for each piece of at most so many; no piece reaches over midnight."""

    def __init__(
        self, root: Path, world: World, journal_id: str, segment_events: int, first_row: int = 1
    ) -> None:
        self.root, self.next_row = root, first_row
        self._world, self._journal_id, self._segment_events = world, journal_id, segment_events
        self._waiting: Events = {}
        root.mkdir(parents=True, exist_ok=True)
        about = {"store_id": journal_id, "version": VERSION}
        (root / "_journal.json").write_text(json.dumps(about) + "\n")

    def write(self, events: Events) -> None:
        """Take more events, ordered by `recorded`."""
        if self._waiting:
            events = {name: np.concatenate([self._waiting[name], events[name]]) for name in events}
        while True:
            day = events["recorded"] // DAY_MS
            length = int(np.searchsorted(day, day[0], side="right")) if len(day) else 0
            if length == len(day) and length < self._segment_events:
                break
            length = min(length, self._segment_events)
            self._segment({name: column[:length] for name, column in events.items()})
            events = {name: column[length:] for name, column in events.items()}
        self._waiting = events

    def close(self) -> None:
        """Write what is left."""
        if self._waiting and len(self._waiting["at"]):
            self._segment(self._waiting)
        self._waiting = {}

    def _segment(self, events: Events) -> None:
        place = np.arange(len(events["at"]))
        first, last = self.next_row, self.next_row + int(place[-1]) // ROW_EVENTS
        self.next_row = last + 1
        position = first + place // ROW_EVENTS << 20 | place % ROW_EVENTS
        day = datetime.fromtimestamp(int(events["recorded"][0]) / 1000, UTC).strftime("%Y-%m-%d")
        path = self.root / segment_name(day, self._journal_id, first, last)
        path.parent.mkdir(exist_ok=True)
        notes = {VERSION_KEY: VERSION, JOURNAL_KEY: self._journal_id, FIRST_KEY: first, LAST_KEY: last}
        table = _table(events, position, self._world).replace_schema_metadata(
            {key: str(value) for key, value in notes.items()}
        )
        pq.write_table(table, path, compression="zstd", write_page_checksum=True, row_group_size=256 * 1024)


def _table(events: Events, position: Ints, world: World) -> Any:
    constant = np.zeros(len(position), dtype=np.int64)
    # Of those that gave up, half set a deadline rather than zero, and three of four say that they failed, and why.
    gave_up = events["kind"] == Kind.RELEASED
    returned = gave_up & (events["seq"] % 2 == 1)
    error = np.where(gave_up & (events["seq"] % 4 > 0), events["seq"] % 3, NONE)
    events = {
        **events,
        "kind": np.where(returned, Kind.GIVEN_BACK, events["kind"]),
        "deadline": np.where(returned, events["at"], events["deadline"]),
    }
    columns = {
        "position": pa.array(position),
        "at": _instants(events["at"]),
        "kind": _words(events["kind"], _KINDS),
        "region": _words(constant, [REGION]),
        "account": _words(constant, [ACCOUNT]),
        "queue": _words(events["queue"], world.names),
        "seq": pa.array(events["seq"]),
        "message_id": _ids(events["id_seq"]),
        "delivery": pa.array(events["delivery"].astype(np.int32)),
        "deadline": _instants(events["deadline"]),
        "receive_count": _numbers(events["receive_count"], pa.int32()),
        "body_bytes": _numbers(events["body_bytes"], pa.int32()),
        "message_type": _words(events["type"], list(TYPES)),
        "other_queue": _words(events["other_queue"], world.names),
        "other_seq": _numbers(events["other_seq"], pa.int64()),
        "caller_key": _words(events["caller"], world.caller_keys),
        "caller_address": _words(events["caller"], world.caller_addresses),
        "user_agent": _words(events["caller"], world.user_agents),
        "outcome": _words(np.minimum(error, 0), ["failed"]),
        "error_type": _words(error, _ERRORS),
        "error_text": _words(error, [f"{name}: it does not work" for name in _ERRORS]),
        "traceback": _words(error, [f'  File "work.py", line {len(name)}, in handle' for name in _ERRORS]),
        "rule": pa.array(constant + RULE, pa.int32()),
        "worked_ms": pa.nulls(len(constant), pa.int32()),
    }
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _numbers(values: Ints, of: Any) -> Any:
    return pa.array(values, mask=values == NONE).cast(of)


def _instants(ms: Ints) -> Any:
    return pa.array(ms * 1000, mask=ms == NONE).cast(ARROW["instant"])


def _words(places: Ints, words: list[str]) -> Any:
    index = pa.array(places.astype(np.int32), mask=places < 0)
    return pa.DictionaryArray.from_arrays(index, pa.array(words)).cast(pa.string())


def _ids(seqs: Ints) -> Any:
    """A random-looking id that the seq determines: so nobody has to remember which id a message has."""
    halves = np.stack([_mixed(seqs, 0x9E3779B97F4A7C15), _mixed(seqs, 0xD1B54A32D192ED03)], axis=1)
    text = np.full((len(seqs), 36), ord("-"), dtype=np.uint8)
    text[:, _ID_PLACES] = _HEX[halves.view(np.uint8).reshape(len(seqs), 16)].reshape(len(seqs), 32)
    text[:, 14] = ord("4")
    offsets = np.arange(len(seqs) + 1, dtype=np.int32) * 36
    known = pa.array(seqs != NONE).buffers()[1]
    return pa.StringArray.from_buffers(len(seqs), pa.py_buffer(offsets), pa.py_buffer(text), known)


def _mixed(values: Ints, salt: int) -> Any:
    with np.errstate(over="ignore"):  # it wraps around on purpose
        x = values.astype(np.uint64) + np.uint64(salt)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
