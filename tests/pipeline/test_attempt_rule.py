"""The rule that says what came of an attempt is the same for the pipeline's columns as in the server."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tests.core.test_attempt import NOW, every_case
from veil.core.attempt import AttemptFacts, outcome_of
from veil.pipeline.lifecycles.columns import NONE, Coded
from veil.pipeline.lifecycles.lives import outcomes


def test_the_pipeline_judges_every_attempt_as_the_server_does() -> None:
    cases = every_case()
    facts: dict[str, object] = {}
    for name in AttemptFacts._fields:
        values = [getattr(case, name) for case in cases]
        facts[name] = (
            np.array([NONE if value is None else value for value in values]) if name != "said" else None
        )
    facts["is_returned"] = np.array([case.is_returned for case in cases])
    facts["said"] = Coded.of(pa.array([case.said for case in cases], pa.string()))

    found = outcomes(facts, NOW).array().to_pylist()

    assert found == [outcome_of(case, NOW).value for case in cases]
