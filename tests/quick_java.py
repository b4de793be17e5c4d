"""The Java of the tests: every JVM that they start has Spark's classes ready, and compiles quickly rather than well.

`python -m tests.quick_java DIRECTORY` writes a directory to be JAVA_HOME (`make test` does so once, after set-up): an archive of
the classes that a small job loads, parsed and checked, and a `java` that uses it. That halves what a start of Spark costs.
Where the class path or the Java is another one, Java leaves the archive alone, without a word.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

HOME: Final = Path(sys.prefix) / ".quick-java"
QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"

# What most of the pipeline's tests do: files, an aggregate, Python in tasks, and a stream of batches.
_JOB: Final = """
import sys
from pyspark.sql import SparkSession
from veil.pipeline import register

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
out = sys.argv[1]
counted = spark.range(100).selectExpr("id % 7 AS k", "cast(id AS string) AS s").groupBy("k").count()
counted.write.parquet(out + "/batch")
stream = spark.readStream.schema("k long, count long").parquet(out + "/batch").mapInArrow(lambda rows: rows, "k long, count long")
for name, writer in (("files", stream.writeStream.format("parquet").option("path", out + "/files")),
                     ("each", stream.writeStream.foreachBatch(lambda batch, number: batch.collect() and None))):
    writer.option("checkpointLocation", out + "/of-" + name).trigger(availableNow=True).start().awaitTermination()
assert spark.read.parquet(out + "/files").count() == 7
spark.stop()
"""


def use(environ: MutableMapping[str, str]) -> None:
    """Have all that is started from here take that Java, if there is one; somebody who chose one keeps it."""
    if "JAVA_HOME" not in environ and (HOME / "bin" / "java").exists():
        environ["JAVA_HOME"] = str(HOME)


def make(home: Path) -> None:
    """Write the directory, whole or not at all."""
    from veil.pipeline.spark.java import find_java

    found = find_java(os.environ).home
    java = Path(found, "bin", "java") if found else Path(str(shutil.which("java")))
    shutil.rmtree(home, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=home.parent))
    archive = home / "spark.jsa"
    with tempfile.TemporaryDirectory() as out:
        _write(
            made,
            f"{java} {QUICK} -Xlog:disable -XX:ArchiveClassesAtExit={shlex.quote(str(made / archive.name))}",
        )
        environ = {**os.environ, "JAVA_HOME": str(made), "PYSPARK_PYTHON": sys.executable}
        ran = subprocess.run(
            [sys.executable, "-c", _JOB, out],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    if ran.returncode:
        shutil.rmtree(made)
        sys.exit(
            f"not prepared, the tests go on without: {(ran.stderr.strip() or 'no reason').splitlines()[-1][:300]}"
        )
    _write(made, f"{java} {QUICK} {_QUIET} -XX:SharedArchiveFile={shlex.quote(str(archive))}")
    made.rename(home)


def _write(home: Path, command: str) -> None:
    script = home / "bin" / "java"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    script.chmod(0o755)


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
