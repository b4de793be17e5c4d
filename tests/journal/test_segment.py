"""A segment holds exactly the events of its rows, readable by anyone, and says what it is."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from tests.journal.kit import NOON_MS, ORDERS, SHOP, APlan, a_row, an_event, events_of
from veil.core.attempt import RULE, ReportedOutcome
from veil.core.clock import Trouble, TroubleKind
from veil.core.event import EventRecorder, Kind, unpack
from veil.journal.lives import from_packed
from veil.journal.schema import COLUMNS, VERSION
from veil.journal.segment_writer import SCHEMA, write_segment
from veil.journal.segments import check_segment, list_segments
from veil.journal.storage import Storage


@pytest.fixture
def place(tmp_path: Path) -> Storage:
    return Storage.at(tmp_path / "journal")


def instant(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_every_field_of_an_event_is_in_its_column(place: Storage):
    event = an_event(
        Kind.DEAD_LETTERED, NOON_MS, seq=7 << 20, message_id="m", delivery=3, deadline_ms=NOON_MS + 30_000,
        receive_count=4, body_bytes=120, message_type="order", caller=1, other_queue=1, other_seq=9 << 20,
    )  # fmt: skip
    write_segment(place, APlan(first=5, last=5), [(5, a_row(an_event(), event))])

    assert events_of(place)[1] == {
        "position": 5 << 20 | 1,
        "at": instant(NOON_MS),
        "kind": "dead_lettered",
        "region": "eu-central-1",
        "account": "000000000000",
        "queue": "orders",
        "seq": 7 << 20,
        "message_id": "m",
        "delivery": 3,
        "deadline": instant(NOON_MS + 30_000),
        "receive_count": 4,
        "body_bytes": 120,
        "message_type": "order",
        "other_queue": "orders-dead",
        "other_seq": 9 << 20,
        "caller_key": SHOP.key_id,
        "caller_address": SHOP.peer,
        "user_agent": SHOP.user_agent,
        "rule": RULE,
    } | dict.fromkeys(("outcome", "error_type", "error_text", "traceback", "worked_ms"))


def test_a_trouble_of_the_server_is_told_without_a_queue(place: Storage):
    recorder = EventRecorder()
    recorder.record_trouble(Trouble(NOON_MS - 20_000, NOON_MS, TroubleKind.RESTART))
    write_segment(place, APlan(), [(1, recorder.pack())])

    [event] = events_of(place)
    assert [event[name] for name in ("kind", "region", "account", "queue", "seq")] == [
        "trouble",
        "",
        "",
        "",
        0,
    ]
    assert (event["deadline"], event["at"]) == (instant(NOON_MS - 20_000), instant(NOON_MS))
    assert event["outcome"] == "restart"


def test_a_traceback_stands_once_in_a_packed_row_and_is_told_with_each_of_its_attempts(place: Storage):
    errors = [
        ReportedOutcome("failed", "NoStock", "none", "  File a" * 50),
        ReportedOutcome("failed", "NoStock", "one", "  File a" * 50),
        ReportedOutcome("failed", "NoStock", "two", "  File b"),
        ReportedOutcome("failed", "NoStock"),
        None,
    ]
    recorder = EventRecorder()
    told = {at: each for at, each in enumerate(errors) if each is not None}
    facts = [(at, "m", 1, None, 1, 9, None) for at in range(len(errors))]
    recorder.record_facts(Kind.DELETED, NOON_MS, ORDERS, facts, SHOP, told)
    packed = recorder.pack()
    # As rows were packed before: each with its own text, and before that without a rule.
    before = a_row(an_event(outcome="failed", traceback="  File c"))
    first = msgspec.msgpack.encode(msgspec.msgpack.decode(before)[:3])
    rows = [(1, packed), (2, before), (3, first)]
    write_segment(place, APlan(last=3), rows)

    assert packed.count(b"  File a") == 50
    traces = ["  File a" * 50] * 2 + ["  File b", None, None, "  File c", "  File c"]
    events = events_of(place)
    assert [event["traceback"] for event in events] == traces
    assert [event["rule"] for event in events] == [RULE] * 6 + [None]
    assert [each.traceback for row in rows for each in from_packed(*row)] == traces


def test_many_alike_are_packed_as_one_and_told_one_by_one(place: Storage):
    facts = [(at, f"m{at}", 1 + at % 2, NOON_MS, 1, 9, None) for at in range(100)]
    one_by_one, together = EventRecorder(), EventRecorder()
    for recorder in (one_by_one, together):
        recorder.record_facts(Kind.EXTENDED, NOON_MS, ORDERS, facts[:1], SHOP)
    for each in facts:
        one_by_one.record_facts(Kind.RECEIVED, NOON_MS, ORDERS, [each], SHOP)
    together.record_facts(Kind.RECEIVED, NOON_MS, ORDERS, facts, SHOP)
    failed = {0: ReportedOutcome("failed", "NoStock")}
    for recorder in (one_by_one, together):  # an event with more fields than those
        recorder.record_facts(Kind.DELETED, NOON_MS, ORDERS, facts[:1], SHOP, failed)
    assert together.count == one_by_one.count == 102
    singly, packed = one_by_one.pack(), together.pack()
    assert len(packed) < 0.6 * len(singly)
    assert unpack(packed) == unpack(singly)

    assert write_segment(place, APlan(), [(1, packed)]).unreadable == []
    events = events_of(place)
    told = [(event["kind"], event["seq"], event["message_id"], event["delivery"]) for event in events]
    assert told[0] == ("extended", 0, "m0", 1)
    assert told[1:-1] == [("received", *each[:3]) for each in facts]
    assert told[-1] == ("deleted", 0, "m0", 1)
    assert [event["outcome"] for event in events] == [None] * 101 + ["failed"]


def test_what_an_event_does_not_say_is_null(place: Storage):
    # An outbox leaves out the fields at the end of an event; rows of short and of long events come mixed.
    short = an_event(Kind.DELETE_REFUSED, NOON_MS, message_id=None)[:5]
    write_segment(place, APlan(), [(1, a_row(short, an_event(delivery=1, other_queue=1), short))])

    first, second, third = events_of(place)
    nullable = {column.name for column in COLUMNS if column.nullable} - {"rule"}
    assert {name for name, value in first.items() if value is None} == nullable
    assert (first["delivery"], second["delivery"], second["other_queue"]) == (0, 1, "orders-dead")
    assert third == first | {"position": 1 << 20 | 2}


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_has_its_name(place: Storage, kind: Kind):
    write_segment(place, APlan(), [(1, a_row(an_event(kind)))])
    assert [event["kind"] for event in events_of(place)] == [kind.name.lower()]


def test_many_rows_with_their_own_queues_and_callers_keep_theirs(place: Storage):
    from veil.core.event import pack
    from veil.core.message import Caller
    from veil.core.queue import QueueKey

    rows = []
    for number in range(1, 301):
        queue, caller = QueueKey("r", "a", f"q{number % 7}"), Caller(None, f"k{number % 5}", "", "")
        rows.append((number, pack([queue], [caller], [an_event(at_ms=NOON_MS + n) for n in range(300)])))
    write_segment(place, APlan(first=1, last=300), rows)

    events = events_of(place)
    assert len(events) == 90_000
    for event in events[::97]:
        number = event["position"] >> 20
        assert (event["queue"], event["caller_key"]) == (f"q{number % 7}", f"k{number % 5}")
        assert event["user_agent"] is None
    positions = [event["position"] for event in events]
    assert positions == sorted(set(positions))


def test_the_same_plan_gives_the_same_file(tmp_path: Path):
    rows = [(1, a_row(an_event())), (2, a_row(an_event(Kind.RECEIVED, delivery=1)))]
    written = [write_segment(Storage.at(tmp_path / name), APlan(last=2), rows) for name in ("a", "b")]
    assert written[0] == written[1]
    assert written[0].name == "day=2026-09-21/abc-0000000000000001-0000000000000002.parquet"
    assert Storage.at(tmp_path / "a").read(written[0].name) == Storage.at(tmp_path / "b").read(
        written[0].name
    )
    assert written[0].size == len(Storage.at(tmp_path / "a").read(written[0].name))


def test_a_segment_says_what_it_is(place: Storage):
    written = write_segment(place, APlan("xyz", 3, 4), [(3, a_row(an_event())), (4, a_row(an_event()))])
    with place.open_input(written.name) as file:
        parquet = pq.ParquetFile(file)
        metadata = parquet.metadata
        assert metadata.metadata == {
            b"veil.journal.version": str(VERSION).encode(),
            b"veil.journal.id": b"xyz",
            b"veil.journal.first": b"3",
            b"veil.journal.last": b"4",
        }
        assert parquet.schema_arrow.remove_metadata() == SCHEMA
        columns = [metadata.row_group(0).column(place) for place in range(metadata.num_columns)]
    assert {column.compression for column in columns} == {"ZSTD"}
    in_dictionaries = {column.path_in_schema for column in columns if column.has_dictionary_page}
    texts = {column.name for column in COLUMNS if column.kind == "text"}
    assert texts - in_dictionaries == {"message_id"}


def test_row_groups_are_bounded(place: Storage):
    row = a_row(*(an_event(at_ms=NOON_MS + n) for n in range(1_000)))
    written = write_segment(place, APlan(last=700), [(number, row) for number in range(1, 701)])
    with place.open_input(written.name) as file:
        metadata = pq.ParquetFile(file).metadata
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert sum(sizes) == written.events == 700_000
    assert len(sizes) == 3 and max(sizes) < 300_000


@pytest.mark.parametrize(
    "row", [b"", b"\xff\xff", a_row((99, NOON_MS, 0, 1)), a_row((1, NOON_MS, 5, 1)), a_row((1, NOON_MS))]
)
def test_a_row_that_cannot_be_read_is_passed_over_and_named(place: Storage, row: bytes):
    written = write_segment(place, APlan(last=3), [(1, a_row(an_event())), (2, row), (3, a_row(an_event()))])
    assert written.events == 2
    assert len(written.unreadable) == 1 and written.unreadable[0].startswith("outbox row 2 cannot be read")
    assert [event["position"] >> 20 for event in events_of(place)] == [1, 3]


def test_a_plan_without_a_readable_event_is_still_a_whole_segment(place: Storage):
    written = write_segment(place, APlan(), [(1, b"")])
    (segment,) = list_segments(place)
    assert written.events == 0
    assert check_segment(place, segment, thorough=True) is None
