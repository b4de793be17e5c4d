"""Which Python Spark's workers run: the one that has Veil, also where no virtual environment is activated."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.pipeline.conftest import QUICK
from tests.pipeline.queues_kit import Queues
from veil.pipeline.spark.java import find_java
from veil.testing import VeilServer
from veil.testing.process import KEY_ID, SECRET

# A person's own session, started before Veil is imported, and every entry of Veil that has workers run Python.
EVERY_ENTRY = """
import contextlib, io, json, sys
from pyspark.sql import SparkSession

endpoint, folder, quick = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
builder = SparkSession.builder.master("local[2]")
for name, value in quick.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()

from veil.cli.main import run
from veil.pipeline import drain, register

given = spark.sparkContext.pythonExec
register(spark)
told = {"python": spark.sparkContext.pythonExec, "given": given}

at = {"endpoint": endpoint, "queue": "orders"}
rows = spark.range(0, 6, 1, 2).selectExpr("cast(id as string) body")
rows.write.format("veil").options(**at).mode("append").save()
told["browsed"] = spark.read.format("veil").options(**at, mode="browse").load().count()
with drain(spark, queue="orders", endpoint=endpoint, maxMessages=2) as messages:
    told["drained"] = messages.count()
stream = spark.readStream.format("veil").options(**at).load().selectExpr("body")
writer = stream.writeStream.format("veil").options(**at).option("queue", "copies")
query = writer.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()

rules = folder + "/rules.toml"
with open(rules, "w") as file:
    file.write('default = "routed"\\n[queues]\\nrouted = "30s"\\n')
words = {
    "route": ["--from", "copies", "--rules", rules, "--once", "--create-queues", "--state", folder + "/state"],
    "dead-letters": ["routed", "--tables", folder + "/tables"],
}
for command, options in words.items():
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = run(["pipeline", command, *options, "--endpoint", endpoint, "--json"])
    told[command] = [code, said.getvalue()]
json.dump(told, sys.stdout)
"""


@pytest.fixture
def bare_path(tmp_path: Path) -> str:
    """A PATH whose `python3` runs and has neither Veil nor anything that Veil needs."""
    venv.create(tmp_path / "bare", with_pip=False)
    return f"{tmp_path}/bare/bin:/usr/bin:/bin"


def clean(path: str) -> dict[str, str]:
    """What `env -i` leaves, the credentials of a test's server, and Java."""
    java = find_java({"PATH": path}).home
    keys = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    return {"PATH": path, **({"JAVA_HOME": java} if java else {}), **keys}


def test_every_entry_works_from_a_virtual_environment_that_is_not_activated(
    veil_server: VeilServer, bare_path: str, tmp_path: Path
):
    queues = Queues(veil_server)
    for name in ("orders", "copies"):
        queues.create(name)
    arguments = [veil_server.endpoint_url, str(tmp_path), json.dumps(QUICK)]

    done = subprocess.run(
        [sys.executable, "-c", EVERY_ENTRY, *arguments],
        cwd=tmp_path, env=clean(bare_path), capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    # What is the person's own is left as it was.
    assert told["given"] == told["python"] == "python3"
    assert (told["browsed"], told["drained"]) == (6, 2)
    assert told["route"][0] == 0, done.stderr
    assert told["dead-letters"][0] == 0, told["dead-letters"]
    assert queues.count("orders") == queues.count("copies") == 0
    assert queues.count("routed") == 4
