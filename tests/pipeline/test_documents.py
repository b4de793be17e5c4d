"""The documents' example of a stream, in the Spark that these tests share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.test_documents import ROOT, WITH_SPARK, blocks
from veil.testing import VeilServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("name", WITH_SPARK)
def test_every_example_runs(
    name: str, spark: SparkSession, veil_server: VeilServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in veil_server.environ.items():
        monkeypatch.setenv(variable, value)
    (block,) = [each for each in blocks(ROOT / "docs" / name) if each.is_run]
    # This Spark has the environment and the directory that it was started with.
    here = f'.option("queue", "orders").option("endpoint", "{veil_server.endpoint_url}")'
    code = block.code.replace('.option("queue", "orders")', here).replace(
        '"orders-', f'"{tmp_path}/checkpoint-'
    )
    code = code.replace('"path", "orders"', f'"path", "{tmp_path}/orders"').replace(
        'parquet("orders")', f'parquet("{tmp_path}/orders")'
    )
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
