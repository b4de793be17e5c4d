"""A mistake in the options is told in one line: which option, its value, what was expected."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from tests.ports import free_port
from veil.pipeline import register
from veil.pipeline.options import OptionError
from veil.pipeline.sink.options import SinkOptions
from veil.pipeline.source.columns import body_column
from veil.pipeline.source.options import SourceOptions, check_body_schema
from veil.pipeline.source.stream import TokenBucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "option queue is not given: expected the name, URL or ARN of a queue"),
        ({"queue": "q", "partition": "3"}, "option partition: expected a known option; did you mean partitions?"),
        ({"queue": "q", "rate": "fast"}, "option rate='fast': expected a number from 0.001 to 1e+09"),
        (
            {"queue": "q", "visibilityTimeout": "20", "receiveTime": "6"},
            "option receiveTime=6.0: expected at most a quarter of the visibility timeout (20 s), so 5 seconds",
        ),
        ({"queue": "q", "sentAfter": "noon"}, "option sentAfter='noon': expected an instant such as 2026-01-31T12:00:00Z"),
        ({"queue": "q", "attributes": "[]"}, """option attributes='[]': expected a JSON object of texts"""),
        ({"queue": "q", "mode": "peek"}, "option mode='peek': expected one of drain, browse"),
        ({"queue": "q", "segments": "ftp://x/y"}, "option segments='ftp://x/y': expected a directory"),
    ],
)  # fmt: skip
def test_each_mistake_names_option_value_and_what_was_expected(given: dict[str, str], told: str):
    with pytest.raises(OptionError) as caught:
        SourceOptions.read(given)
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("options", [SourceOptions, SinkOptions])
def test_the_value_of_an_unknown_option_is_never_shown(options: type[SourceOptions | SinkOptions]):
    with pytest.raises(OptionError) as caught:
        options.read({"queue": "q", "secretKey": "hunter2"})
    carried = pickle.loads(pickle.dumps(caught.value))
    for error in (caught.value, carried):
        assert str(error).startswith("option secretKey: expected a known option; one of ")
        assert "hunter2" not in repr(error) + repr(vars(error))


@pytest.mark.parametrize(
    "text",
    [
        "id int",
        "id: bigint, `the name, or none` string",
        "price decimal(10,2), tags map<string, array<string>>, at timestamp",
        "who STRUCT<name: string, ids: array< map<string,decimal(5)> >, born date>",
    ],
)
def test_body_schemas_that_are_right(text: str):
    check_body_schema(text)


@pytest.mark.parametrize(
    ("text", "slip"),
    [
        ("id", "not 'id'"),
        ("at date, id inttt", "not 'id inttt'"),
        ("id int,", "not ''"),
        ("tags array<string", "not 'tags array<string'"),
        ("tags map<string>, id int", "not 'tags map<string>'"),
        ("id int; drop", "not 'id int; drop'"),
        ("id int not null", "none of them not null"),
        ("id int(3)", "not 'id int(3)'"),
    ],
)
def test_body_schemas_that_are_wrong_say_where(text: str, slip: str):
    with pytest.raises(OptionError, match="bodySchema") as caught:
        check_body_schema(text)
    assert slip in str(caught.value)


def test_a_rate_is_kept_however_often_one_asks():
    now = [0.0]
    pace = TokenBucket(10.0, 1_000, lambda: now[0])
    taken = 0
    while now[0] < 10:
        allowed = pace.allowance()
        pace.spend(allowed)
        taken += allowed
        now[0] += 0.013
    assert 100 <= taken <= 110  # ten seconds' worth, and the second that it begins with


def test_a_rate_is_reached_when_asked_rarely():
    now = [0.0]
    pace = TokenBucket(10.0, 1_000, lambda: now[0])
    pace.spend(pace.allowance())
    now[0] = 7.0
    assert pace.allowance() == 70
    now[0] = 1_000.0
    assert pace.allowance() == 1_000


def test_a_slow_rate_gives_whole_messages():
    now = [0.0]
    pace = TokenBucket(0.1, 1_000, lambda: now[0])
    assert pace.allowance() == 0
    assert pace.wait_s() == pytest.approx(9.0)
    now[0] = 9.1
    assert pace.allowance() == 1


def test_spark_shows_the_line(spark: SparkSession, tmp_path: Path):
    register(spark)
    read = spark.readStream.format("veil").option("queue", "q")
    with pytest.raises(AnalysisException) as caught:
        spark.readStream.format("veil").option("queue", "q").option("maxMessagePerTrigger", "5").load()
    assert "did you mean maxMessagesPerTrigger?" in str(caught.value)
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("veil").option("queue", "q").option("mode", "drain").load().count()
    assert "option mode='drain': expected the block `with veil.pipeline.drain(" in str(caught.value)
    nobody = f"http://127.0.0.1:{free_port()}"
    query = read.option("endpoint", nobody).option("region", "us-east-1").load().writeStream.format("noop")
    with pytest.raises(StreamingQueryException) as failed:
        query.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
    assert f"option endpoint='{nobody}': expected a service that answers" in str(failed.value)
    assert "During handling" not in str(failed.value)


def test_queries_that_start_at_once_find_a_map_that_they_may_fill_together(spark: SparkSession):
    """Two that put the same variable into Spark's own plain map at one moment make the source unusable for good."""
    before = dict(spark.sparkContext.environment)
    register(spark)
    sources: Any = spark._jsparkSession.sessionState().dataSourceManager()
    shared = sources.lookupDataSource("veil").dataSourceCls().envVars()
    assert shared.getClass().getName() == "java.util.concurrent.ConcurrentHashMap"
    assert dict(shared) == before == spark.sparkContext.environment


def test_a_body_that_is_nested_too_deeply_is_null_it_alone():
    wanted = pa.struct([("id", pa.int64())])
    deep = '{"id": 1, "more": ' + "[" * 100_000 + "]" * 100_000 + "}"
    assert body_column([deep, '{"id": 2}'], wanted).to_pylist() == [None, {"id": 2}]
