"""Alibaba's SDK for Java, unmodified, over a socket to a real server: every operation on queues and messages."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from veil.testing import VeilServer

HERE = Path(__file__).with_name("smq_java")
VERSIONS = (pytest.param("1.4.0", marks=pytest.mark.soak), "2.0.0")
STORIES = {
    "queues", "queues that exist and that do not", "lists of queues", "a message", "bodies", "nothing to receive", "batches",
    "batches that fail in part", "peeks", "visibility", "delays", "priorities", "properties", "calls that do not block",
    "transactions", "errors", "the account", "topics",
}  # fmt: skip
MISSING = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),  # the first time Maven fetches the jars
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]
# Mode, story and what came of it.
Told = list[tuple[str, str, str]]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, VeilServer]]:
    """A server that takes any credentials, and one that checks them; what a receiver left comes back when its window ends, also
    where the machine stood still."""
    data, given = tmp_path_factory.mktemp("smq-java"), ("--smq-port", "0", "--no-lease-grace")
    with (
        VeilServer("--data", str(data / "open"), *given) as unlocked,
        VeilServer("--data", str(data / "keys"), *given, environ={"VEIL_KEYS": "ak:sk"}) as locked,
    ):
        yield {"open": unlocked, "keys": locked}


def class_path(version: str, cache: pytest.Cache) -> str:
    """Where the jars of the SDK are; Maven is asked once, and again when one of them is gone."""
    known = cache.mkdir("smq-java") / f"{version}.classpath"
    if known.exists() and all(Path(jar).exists() for jar in known.read_text().split(":")):
        return known.read_text()
    goal = ["dependency:build-classpath", f"-Dsdk.version={version}", f"-Dmdep.outputFile={known}"]
    asked = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), *goal], capture_output=True, text=True
    )
    if asked.returncode:
        said = next((line for line in asked.stdout.splitlines() if "ERROR" in line), asked.stderr[-200:])
        pytest.skip(f"Maven could not find aliyun-sdk-mns {version}: {said[:300]}")
    return known.read_text()


@pytest.fixture(scope="module", params=VERSIONS)
def told(
    request: pytest.FixtureRequest, servers: dict[str, VeilServer], tmp_path_factory: pytest.TempPathFactory
) -> Told:
    """What the stories came to, in one virtual machine for both modes."""
    jars = class_path(request.param, request.config.cache)
    classes = tmp_path_factory.mktemp("classes")
    quickly = "-XX:TieredStopAtLevel=1"  # nothing here runs long enough for the better compiler
    source = str(HERE / "SmqOperations.java")
    compiler = ["javac", f"-J{quickly}", "-nowarn", "-cp", jars, "-d", str(classes), source]
    subprocess.run(compiler, check=True, capture_output=True, text=True)
    modes = [word for mode, server in servers.items() for word in (mode, str(server.smq_endpoint_url))]
    program = ["java", quickly, "-XX:+UseSerialGC", "-cp", f"{classes}:{jars}", "SmqOperations", *modes]
    ran = subprocess.run(program, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    for server in servers.values():
        server.reset()  # the next version makes queues of the same names
    lines = [line.split("\t", 2) for line in ran.stdout.splitlines()]
    return [(mode, story, came) for mode, story, came in lines]


@pytest.mark.parametrize("mode", ["open", "keys"])
def test_every_operation_works_as_the_sdk_expects(told: Told, mode: str) -> None:
    own = {story: came for said, story, came in told if said == mode}
    assert own == dict.fromkeys(STORIES, "passed")
