"""Rows on their way to be messages: what is refused and why, and how they are cut into calls."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from veil.core.limits import BATCH_BYTES_MAX
from veil.core.message import MessageAttribute
from veil.core.message_rules import Draft
from veil.pipeline.options import OptionError
from veil.pipeline.sink.options import ColumnError, SinkColumns, SinkOptions
from veil.pipeline.sink.sender import (
    RowBatch,
    RowBatcher,
    RowRefused,
    SinkRow,
    on_the_wire,
    rows_of,
    why_refused,
)


def a_row(ordinal: int = 0, queue: str = "orders", body: str = "x", **draft: Any) -> SinkRow:
    return SinkRow(ordinal, queue, Draft(body, **draft))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (a_row(body=""), "no body"),
        (a_row(body="\x00"), "outside the allowed set"),
        (a_row(body="x" * 1_048_577), "1048577 bytes"),
        (a_row(body="x" * 1_048_560, attributes={"n": MessageAttribute("String", "12345678901")}), "1048578 bytes"),
        (a_row(queue=""), "names no queue"),
        (a_row(queue="o.fifo", deduplication_id="d"), "needs a group"),
        (a_row(queue="o.fifo", group="g g", deduplication_id="d"), "MessageGroupId"),
        (a_row(queue="o.fifo", group="g", deduplication_id="d" * 129), "MessageDeduplicationId"),
        (a_row(queue="o.fifo", group="g", deduplication_id="d", delay_s=5), "DelaySeconds"),
        (a_row(delay_s=901), "delay_s=901: expected 0 to 900"),
        (a_row(attributes={"AWS.x": MessageAttribute("String", "v")}), "AWS.x"),
        (a_row(attributes={"n": MessageAttribute("Number", "many")}), "number"),
        (a_row(attributes={"n": MessageAttribute("String", "")}), "non-empty"),
        (a_row(attributes={str(n): MessageAttribute("String", "v") for n in range(11)}), "11"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_a_message_is_refused_with_the_reason(row: SinkRow, reason: str):
    assert reason in (why_refused(row) or "")


def test_a_row_of_exactly_the_greatest_size_is_taken():
    row = a_row(body="x" * (1_048_576 - 1 - 6 - 3), attributes={"n": MessageAttribute("String", "abc")})

    assert why_refused(row) is None
    assert row.size == 1_048_576


@pytest.mark.usefixtures("spark")  # reads the schemas
def test_columns_become_what_a_message_has():
    schema = StructType.fromDDL(
        "body string, attributes map<string, struct<data_type: string, string_value: string, binary_value: binary>>, "
        "group string, deduplication_id string, delay_s int, trace_header string"
    )
    columns = SinkColumns.find(schema, SinkOptions.read({"queue": "q"}))
    attributes = [
        ("n", {"data_type": "Number", "string_value": "5", "binary_value": None}),
        ("b", {"data_type": "Binary", "string_value": None, "binary_value": b"\x00\xff"}),
    ]
    struct = pa.struct(
        [("data_type", pa.string()), ("string_value", pa.string()), ("binary_value", pa.binary())]
    )
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["hello", None]),
            pa.array([attributes, None], pa.map_(pa.string(), struct)),
            pa.array(["g", None]),
            pa.array(["d", None]),
            pa.array([3, None], pa.int32()),
            pa.array(["Root=1", None]),
        ],
        names=schema.names,
    )

    first, second = rows_of(batch, columns, "q", 40)

    assert (first.ordinal, first.queue, second.ordinal) == (40, "q", 41)
    assert on_the_wire(first.draft) == {
        "MessageBody": "hello",
        "MessageAttributes": {
            "n": {"DataType": "Number", "StringValue": "5"},
            "b": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        },
        "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}},
        "MessageGroupId": "g",
        "MessageDeduplicationId": "d",
        "DelaySeconds": 3,
    }
    assert on_the_wire(second.draft) == {"MessageBody": ""}


def cut(rows: list[SinkRow], *, looks_every: int) -> list[list[RowBatch]]:
    cutter, found = RowBatcher(4, lambda queue: 10), list[list[RowBatch]]()
    for number, row in enumerate(rows):
        assert why_refused(row) is None
        cutter.add(row)
        if number % looks_every == 0:
            found += cutter.full()
    return [*found, *cutter.rest()]


def test_batches_have_ten_messages_and_a_mebibyte_at_most_and_lose_nothing():
    rng = random.Random(5)
    rows = [
        a_row(n, rng.choice(["a", "b"]), "x" * rng.choice([1, 90_000, 400_000, 1_048_576]))
        for n in range(300)
    ]

    batches = [batch for sequence in cut(rows, looks_every=7) for batch in sequence]

    for batch in batches:
        assert 1 <= len(batch.rows) <= 10
        assert sum(len(row.draft.body) for row in batch.rows) <= BATCH_BYTES_MAX
        assert {row.queue for row in batch.rows} == {batch.queue}
    assert sorted(row.ordinal for batch in batches for row in batch.rows) == list(range(300))
    assert len(batches) < 300


def test_the_same_rows_are_cut_alike_whenever_what_is_ready_is_taken_away():
    rows = [a_row(n, body="x" * (n * 997 % 300_000 + 1)) for n in range(200)]

    def ordinals(looks_every: int) -> list[list[int]]:
        found = [
            [row.ordinal for row in batch.rows]
            for each in cut(rows, looks_every=looks_every)
            for batch in each
        ]
        return sorted(found)

    assert ordinals(1) == ordinals(13) == ordinals(1000)


def test_a_group_of_a_fifo_queue_stays_in_one_sequence_in_its_order():
    rows = [a_row(n, "q.fifo", group=f"g{n % 7}", deduplication_id=str(n)) for n in range(200)]

    sequences = cut(rows, looks_every=1000)

    assert len(sequences) > 1
    for group in range(7):
        holders = [s for s in sequences if any(row.draft.group == f"g{group}" for b in s for row in b.rows)]
        assert len(holders) == 1
        of_it = [row.ordinal for b in holders[0] for row in b.rows if row.draft.group == f"g{group}"]
        assert of_it == sorted(of_it)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "option queue is not given: expected the name, URL or ARN of a queue, or else queueColumn"),
        ({"queue": "q", "queueColumn": "c"}, "one of the two"),
        ({"queue": "q", "onError": "path"}, "option errorPath is not given: expected a directory"),
        ({"queue": "q", "onError": "fail", "errorPath": "/e"}, "none with onError=fail"),
        ({"queue": "q", "onError": "skip"}, "option onError='skip': expected one of fail, path"),
        ({"queue": "q", "errorPath": "ftp://x"}, "option errorPath='ftp://x'"),
        ({"queue": "q", "maxInFlight": "0"}, "option maxInFlight='0': expected a whole number from 1 to 64"),
        ({"queue": "q", "writeId": "a b"}, "option writeId='a b'"),
        ({"queue": "q", "errorpth": "/e"}, "did you mean errorPath?"),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_used_is_named_with_what_was_expected(given: dict[str, str], told: str):
    with pytest.raises(OptionError) as refused:
        SinkOptions.read(given)

    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("columns", "given", "told"),
    [
        ("text string", {}, "column body (missing): expected the text of the message"),
        ("body struct<a: int>", {}, "column body (struct<a:int>): expected string, such as to_json(body)"),
        ("body string, attribute map<string, string>", {}, "did you mean attributes?"),
        ("body string, attributes map<string, int>", {}, "column attributes (map<string,int>): expected map<string,string>"),
        ("body string, delay_s string", {}, "column delay_s (string): expected int or bigint"),
        ("body string, group string, message_group_id string", {}, "not both"),
        ("body string, shop string", {}, "column shop (string): expected a column of the sink"),
        ("body string", {"keyColumn": "id"}, "column id (missing): expected one of body, since option keyColumn names it"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("spark")
def test_a_column_that_cannot_be_used_is_named_with_what_was_expected(
    columns: str, given: dict[str, str], told: str
):
    with pytest.raises(ColumnError) as refused:
        SinkColumns.find(StructType.fromDDL(columns), SinkOptions.read({"queue": "q"} | given))

    assert told in str(refused.value)


@pytest.mark.usefixtures("spark")  # reads the schemas
def test_what_the_source_gives_can_be_written_as_it_is():
    from veil.pipeline.source.columns import SCHEMA

    found = SinkColumns.find(StructType.fromDDL(SCHEMA), SinkOptions.read({"queue": "q"}))

    assert found.are_typed
    assert found.queue is None


def test_errors_keep_their_words_on_the_way_from_a_worker():
    for error in (RowRefused("q", 1, 2, ("id", 7), "too long"), ColumnError("c", "int", "string")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
    assert str(RowRefused("q", 1, 2, ("id", 7), "too long")) == (
        "row 2 of partition 1 (id=7) cannot be sent to queue q: too long"
    )
