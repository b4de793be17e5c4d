"""The rule that says what came of an attempt is the same on Spark as in the server."""

from __future__ import annotations

from tests.core.test_attempt import NOW, every_case
from veil.core.attempt import OUTCOME_SQL, AttemptFacts, outcome_of


def test_spark_judges_every_attempt_as_the_server_does(spark):
    cases = every_case()
    types = {"said": "string", "is_returned": "boolean"}
    schema = ", ".join(f"{name} {types.get(name, 'bigint')}" for name in AttemptFacts._fields)
    rows = spark.createDataFrame([(at, *case) for at, case in enumerate(cases)], f"at int, {schema}")
    instants = [f"timestamp_seconds({name}) as {name}" for name in AttemptFacts._fields if name not in types]
    judged = rows.selectExpr("at", *types, *instants).selectExpr(
        "at", f"{OUTCOME_SQL.format(now=f'timestamp_seconds({NOW})')} as outcome"
    )
    found = {row["at"]: row["outcome"] for row in judged.collect()}
    assert found == {at: outcome_of(case, NOW).value for at, case in enumerate(cases)}
