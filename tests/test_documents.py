"""What the documents show is run, and what they list is compared with the code.

Each document has a server of its own and its blocks run in order, so that a page can tell a story. A block after
`<!-- not run: reason -->` is left out; one after `<!-- run with pytest -->` is a test file.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.forked_veil import veil_on_path
from veil.server.setting_values import declared_queues
from veil.server.settings import load_settings, settings_table
from veil.testing import VeilServer

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN_ENDPOINT = "http://127.0.0.1:9324"
FENCE = re.compile(r"(?:<!-- (?P<note>[^\n]*?) -->\n)?^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S)
WITH_SPARK = ("spark-source.md",)  # their examples run in tests/pipeline, where a Spark is
FIRST_STEPS = ("README.md", "quickstart.md", "consumer.md", "testing.md")
# Installing and starting for good: shown, not run. That the targets of `make` exist is checked by itself.
SET_UP = re.compile(r"(make|pip|python3 -m venv) ")


class Block(NamedTuple):
    """One fenced block, and the comment in front of it."""

    language: str
    code: str
    note: str
    line: int

    @property
    def is_run(self) -> bool:
        return self.language != "text" and not self.note.startswith("not run") and not SET_UP.match(self.code)


def blocks(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["code"], found["note"] or "", text.count("\n", 0, found.start("code")))
        for found in FENCE.finditer(text)
    ]


@pytest.fixture
def server() -> Iterator[VeilServer]:
    with VeilServer() as server:
        yield server


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The directory of a command `veil` that starts at once."""
    with veil_on_path(tmp_path_factory.mktemp("command")) as place:
        yield place


@pytest.mark.parametrize(
    "document", [each for each in DOCUMENTS if each.name not in WITH_SPARK], ids=lambda path: path.stem
)
def test_every_example_runs(document: Path, server: VeilServer, forked: str, tmp_path: Path) -> None:
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("VEIL_", "AWS_", "PYTEST_"))
    }
    # As pasted by somebody without any configuration of AWS; the server's own port is all that differs here.
    environ |= {"AWS_ENDPOINT_URL_SQS": server.endpoint_url, "HOME": str(tmp_path)}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    if document.name != "README.md":  # there the command is the one that was installed
        environ["PATH"] = f"{forked}{os.pathsep}{environ['PATH']}"
    environ["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # their Sparks live for seconds
    test_files: list[str] = []
    for number, block in enumerate(each for each in blocks(document) if each.is_run):
        code = block.code.replace(SHOWN_ENDPOINT, server.endpoint_url)
        if block.language == "toml":
            (tmp_path / "shown.toml").write_text(code)
            load_settings({}, {}, str(tmp_path / "shown.toml"))
            continue
        script = tmp_path / f"test_block_{number}.py"
        if block.note == "run with pytest":
            script.write_text(code)
            test_files.append(str(script))
        else:
            run(document, block.line, command_for(block, code, script), tmp_path, environ)
    if test_files:
        pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        run(document, 0, [*pytest_, *test_files], tmp_path, environ)


def run(document: Path, line: int, command: list[str], place: Path, environ: dict[str, str]) -> None:
    ran = subprocess.run(command, cwd=place, env=environ, capture_output=True, text=True)
    assert ran.returncode == 0, f"{document.name}, line {line}:\n{ran.stdout}\n{ran.stderr}"


def command_for(block: Block, code: str, script: Path) -> list[str]:
    if block.language == "sh":
        for tool in ("jq", "curl", "openssl"):
            if tool in code and shutil.which(tool) is None:
                pytest.skip(f"{tool} is not installed")
        return ["bash", "-euo", "pipefail", "-c", code]
    assert block.language == "python", f"nobody knows how to run {block.language}"
    script.write_text(code)
    return [sys.executable, str(script)]


def test_examples_are_found_at_all() -> None:
    found = [block for document in DOCUMENTS for block in blocks(document) if block.is_run]
    assert sum(block.language == "python" for block in found) >= 6
    assert sum("veil " in block.code for block in found if block.language == "sh") >= 9


def test_the_readme_says_what_and_why_then_shows_the_console_and_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (first, *_) = blocks(ROOT / "README.md")
    assert [line.split("#")[0].strip() for line in first.code.splitlines()] == ["make demo", "make test"]
    wanted = (
        "A durable message queue that speaks Amazon SQS",
        "Why Veil?",
        "docs/images/",
        "make demo",
        "pip install .",
        "veil serve",
        "@app.handler",
        "The promise",
        "What Veil is not",
    )
    places = [text.index(part) for part in wanted]
    assert places == sorted(places)
    assert first.line <= 20
    assert text.count("\n", 0, places[-1]) <= 60


@pytest.mark.parametrize("name", FIRST_STEPS)
def test_the_first_steps_need_only_what_they_install(name: str) -> None:
    document = ROOT / name if (ROOT / name).exists() else ROOT / "docs" / name
    text = document.read_text(encoding="utf-8")
    run = "\n".join(block.code for block in blocks(document) if block.is_run)
    for tool in ("boto3", "jq", "curl", "awscli" if re.search(r"^aws ", run, re.M) else "aws-is-not-used"):
        used = re.search(rf"\b{'aws ' if tool == 'awscli' else tool}\b", run)
        assert not used or re.search(rf"pip install [^\n]*\b{tool}\b", text), (
            f"{name} uses {tool}, and does not install it"
        )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_what_examples_import_from_veil_exists(document: Path) -> None:
    """Of those too that need more than a test has."""
    for block in blocks(document):
        if block.language == "python":
            for node in ast.walk(ast.parse(block.code)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "veil":
                    module = importlib.import_module(str(node.module))
                    missing = [each.name for each in node.names if not hasattr(module, each.name)]
                    assert not missing, f"{document.name}, line {block.line}"


def test_targets_of_make_that_are_shown_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    for document in DOCUMENTS:
        shown = re.findall(r"(?:^|`)make (\w+)", document.read_text(encoding="utf-8"), re.M)
        assert set(shown) <= targets, document.name


def test_the_promises_are_told_in_both_places() -> None:
    for document in (ROOT / "README.md", ROOT / "docs" / "semantics.md"):
        text = document.read_text(encoding="utf-8")
        assert all(re.search(rf"\bP{number}\b", text) for number in range(1, 12)), document.name


def test_the_table_of_settings_is_the_one_in_the_code() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    shown = (
        text.partition("<!-- settings: begin")[2].partition("-->\n")[2].partition("\n<!-- settings: end")[0]
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VEIL_")}
    command = [sys.executable, "-m", "veil.cli.main", "config", "reference"]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert shown.strip() == ran.stdout.strip(), (
        "run `veil config reference` and put it into docs/configuration.md"
    )
    assert len(shown.strip().splitlines()) == len(settings_table()) + 2


def test_every_command_is_in_the_reference() -> None:
    import typer

    from veil.cli import COMMANDS
    from veil.cli.app import app
    from veil.cli.main import run

    assert run(["--version"]) == 0  # adds every command to the root
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert all(re.search(rf"\b(veil )?{name}\b", text) for name in COMMANDS)
    for group in app.registered_groups:
        assert isinstance(group.typer_instance, typer.Typer)
        for command in group.typer_instance.registered_commands:
            assert re.search(rf"`((config|demo) )?{command.name}\b", text), f"{group.name} {command.name}"


def test_every_metric_that_is_named_exists(server: VeilServer) -> None:
    from urllib.request import urlopen

    sqs = server.client()
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="x")
    with urlopen(f"{server.endpoint_url}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    exported = set(re.findall(r"^# TYPE (veil_\w+)", page, re.M))
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"\bveil_\w+", text) if not name.startswith("veil_data")}
    # A store in memory has no commits to time.
    of_disks = {f"veil_commit_{name}" for name in ("group_size", "seconds", "p99_seconds", "worst_seconds")}
    assert named - exported <= of_disks
    assert len(named) > 10


def test_the_words_for_a_declared_queue_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="not nonsense") as refused:
        declared_queues({"orders": {"nonsense": 1}})
    listed = re.search(r"these are (.*)", str(refused.value))
    assert listed is not None
    for word in listed[1].split(", "):
        assert f"`{word}`" in text, word


def test_the_examples_of_queues_in_toml_declare_what_they_say() -> None:
    (block,) = [each for each in blocks(ROOT / "docs" / "configuration.md") if each.language == "toml"]
    names = {queue.name for queue in declared_queues(tomllib.loads(block.code)["queues"])}
    assert names == {"orders", "orders-dead", "steps.fifo"}


def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "site" / "quickstart.md").exists()  # as llms.txt names it


def test_the_page_for_language_models_names_every_page() -> None:
    named = re.findall(r"^- \[.+\]\((.+\.md)\): \S", (ROOT / "docs" / "llms.txt").read_text(), re.M)
    assert sorted(named) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_the_example_files_run(server: VeilServer) -> None:
    environ = {**os.environ, **server.environ}

    def example(*arguments: str) -> str:
        command = [sys.executable, str(ROOT / "examples" / arguments[0]), *arguments[1:]]
        ran = subprocess.run(command, env=environ, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert "deleted" in example("send_receive_delete.py")
    sqs = server.client()
    url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
    for body in ("one", "two"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    assert example("worker.py", "orders", "--until-empty") == "handled one\nhandled two\n"
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessagesNotVisible"] == counts["ApproximateNumberOfMessages"] == "0"


def test_the_example_settings_are_valid() -> None:
    settings = load_settings({}, {}, str(ROOT / "examples" / "veil.toml"))
    assert [queue.name for queue in settings.queues] == ["orders-dead", "orders", "steps.fifo"]


def test_the_glossary_has_the_words_that_a_stranger_meets() -> None:
    words = """
        queue, message, body, receive, receive count, lease, receipt, visibility deadline, dead letters, redrive, attempt,
        outcome, worker, backoff, rate limit, CSRF token, read-only, snapshot, retry, holder, caller, effect, hold, outbox,
        segment, engine clock, grace, fencing token, peek, long poll, duty, slot, keeper, drain
    """
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"\*\*([^*]+)\*\*", text))
    assert {word.strip() for word in words.split(",")} - explained == set()


MAPS = (ROOT / "ARCHITECTURE.md", ROOT / "docs" / "how-it-works.md")


def test_the_map_is_short_enough_to_read() -> None:
    assert len(MAPS[0].read_text(encoding="utf-8").splitlines()) < 400


@pytest.mark.parametrize("document", MAPS, ids=lambda path: path.stem)
def test_files_that_the_maps_name_exist(document: Path) -> None:
    files = [
        str(file.relative_to(ROOT))
        for part in ("veil", "tests", "bench")
        for file in (ROOT / part).rglob("*.py")
    ]
    named = set(re.findall(r"`([\w/]+\.py)[`:]", document.read_text(encoding="utf-8")))
    assert named
    assert {name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)} == set()
