"""The map of the parts is true: imports run one way, the core does no I/O, and `import veil` stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Set
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "veil"

# What each part may import of the others; itself and `veil` go without saying.
MAY_IMPORT = {
    "core": set(),
    "signing": set(),  # how a request is signed, whoever sends or verifies it
    "stores": {"core"},
    "journal": {"core"},
    "service": {"core", "stores", "journal"},
    "wire": {"core", "service", "signing"},
    "console": {"core", "service", "journal", "wire"},  # requests, and the aws command that would do the same
    "server": {"core", "stores", "journal", "service", "wire", "console"},
    "client": {"core", "signing"},
    "consumer": {"core", "client", "journal"},  # of the journal: segments of its own attempts, where it is asked for them
    "pipeline": {"core", "journal", "client"},  # as a client of queues
    # A server is a process to it; the harness has the wire in its own.
    "testing": {"core", "stores", "service", "wire", "client", "consumer"},
    "cli": {
        "core", "stores", "journal", "service", "signing", "wire", "console", "server", "client", "consumer", "pipeline",
        "testing",
    },
    "demo": {"core", "journal", "client", "consumer", "pipeline", "cli"},  # `veil demo`; the command finds it by its name
}  # fmt: skip
# The core is rules: facts and instants go in, facts come out. So it needs what computes, and nothing that reaches outside.
COMPUTES = {
    "__future__", "binascii", "collections", "contextlib", "dataclasses", "datetime", "decimal", "enum", "functools", "hashlib",
    "heapq", "hmac", "ipaddress", "itertools", "json", "math", "msgspec", "operator", "re", "struct", "typing", "urllib.parse",
    "veil",
}  # fmt: skip
REACHES_OUT = {"open", "print", "input", "exec", "eval", "__import__", "compile"}
HEAVY = {"boto3", "botocore", "pyarrow", "pyspark", "rich", "typer", "prometheus_client", "uvloop", "apsw"}


@cache
def imports_of(file: Path) -> frozenset[str]:
    """Every module that the file imports, wherever in it, by its full name; those only for type checkers too."""
    package = ("veil", *file.relative_to(PACKAGE).parts[:-1])
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            # `from veil import core` names a part only in what it imports.
            found.update(f"{module}.{each.name}" for each in node.names)
            found.add(module)
    return frozenset(found)


def files_of(part: str) -> list[Path]:
    return sorted((PACKAGE / part).rglob("*.py"))


def parts_imported_by(part: str) -> set[str]:
    names: set[str] = set()
    for file in files_of(part):
        for name in imports_of(file):
            pieces = name.split(".")
            if pieces[0] == "veil" and len(pieces) > 1 and (PACKAGE / pieces[1]).is_dir():
                names.add(pieces[1])
    return names - {part}


def present_parts() -> list[str]:
    return sorted(each.name for each in PACKAGE.iterdir() if any(each.glob("*.py")))


def test_every_part_has_its_place_on_the_map():
    assert set(present_parts()) <= MAY_IMPORT.keys()


@pytest.mark.parametrize("part", present_parts())
def test_a_part_imports_only_what_stands_below_it(part: str):
    assert parts_imported_by(part) <= MAY_IMPORT[part]


@pytest.mark.parametrize("file", ["charts.py", "words.py"])
def test_what_report_and_console_share_knows_the_core_alone(file: str):
    shared = {"veil", "veil.words", "veil.charts"}
    own = {name for name in imports_of(PACKAGE / file) if name.split(".")[0] == "veil"} - shared
    assert {name.split(".")[1] for name in own} <= {"core"}


def test_the_map_itself_has_no_circle():
    below: dict[str, set[str]] = {}
    waiting = dict(MAY_IMPORT)
    while waiting:
        free = [part for part, needs in waiting.items() if needs <= below.keys()]
        assert free, f"a circle among {sorted(waiting)}"
        below |= {part: waiting.pop(part) for part in free}


@pytest.mark.parametrize("file", files_of("core"), ids=lambda file: file.name)
def test_the_core_does_no_io(file: Path):
    found = {name for name in imports_of(file) if not {name, name.split(".")[0]} & COMPUTES}
    assert {name for name in found if not name.startswith("urllib.parse.")} <= {"urllib"}
    calls = [node.func for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)]
    assert {call.id for call in calls if isinstance(call, ast.Name)}.isdisjoint(REACHES_OUT)


@pytest.mark.parametrize("file", files_of("core"), ids=lambda file: file.name)
def test_the_core_never_awaits(file: Path):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Await | ast.AsyncFunctionDef)]


def modules_after(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*(name.split('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_veil_is_light():
    assert modules_after("import veil").isdisjoint(HEAVY)


def test_the_pytest_plugin_is_light_for_suites_that_do_not_use_it():
    modules = modules_after("import pytest, sys; before = set(sys.modules); import veil.testing.fixtures")
    assert modules.isdisjoint(HEAVY - {"rich"})


def test_asking_for_help_does_not_load_the_server():
    code = (
        "import sys; sys.argv = ['veil', '--help']\n"
        "from veil.cli.main import run\n"
        "run(['--help'])\n"
        "print(*sorted(name for name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert loaded.isdisjoint(
        {"uvloop", "apsw", "prometheus_client", "boto3", "rich", "asyncio", "veil.server.main"}
    )


# Below the server and the command; clients, and Spark, live in another process with clocks of their own.
TIMELESS = ("core", "signing", "stores", "journal", "service", "wire", "console")
# What reads a clock there, and only to see how much time has gone by: commits, looks, and turns of the event loop.
MEASURES = {
    "stores/commit_stats.py",  # by the minute
    "stores/sqlite/commit.py",
    "stores/postgres/commit.py",
    "stores/postgres/engine.py",
    "stores/postgres/watermarks.py",
    "service/time_slices.py",
    "console/app.py",
    "console/live.py",
}
# The database's clock as one node sees it: a Clock like the server's own.
CLOCKS = {"stores/postgres/connection.py"}
INSTANTS = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime"}
LENGTHS = {
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "clock_gettime",
    "clock_gettime_ns",
}


def clocks_read_by(file: Path) -> set[str]:
    """The functions of `time` and `datetime` that the file reads a clock with."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ("time", "datetime", "date"):
                found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found.update(each.name for each in node.names)
    return found & (INSTANTS | LENGTHS)


@pytest.mark.parametrize("part", TIMELESS)
def test_nothing_below_the_server_reads_a_clock_but_to_measure_its_own_work(part: str):
    for file in files_of(part):
        name, read = file.relative_to(PACKAGE).as_posix(), clocks_read_by(file)
        if name not in CLOCKS:
            assert read <= (LENGTHS if name in MEASURES else set()), name


QUICK = ("core", "service", "wire")


@pytest.mark.parametrize("folder", QUICK)
def test_the_tests_of_make_quick_do_not_sleep(folder: str):
    """A sleep of nothing only lets the loop turn."""
    for file in (PACKAGE.parent / "tests" / folder).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                is_pause = node.func.attr == "sleep" and ast.unparse(node.args[0]) != "0"
                assert not is_pause, f"{file.name}:{node.lineno}"


def test_what_may_read_a_clock_does():
    assert all(clocks_read_by(PACKAGE / name) for name in MEASURES | CLOCKS)


# A refusal names the parameter that its caller wrote, which is what must be mended.
NAMED_IN_REFUSALS = {
    "core/message_rules.py": {"MessageGroupId", "MessageDeduplicationId", "DelaySeconds"},
    "service/moves.py": {"SourceArn", "DestinationArn"},
    "service/receive.py": {"ReceiveRequestAttemptId", "UpToBatch"},
}


def aws_words() -> set[str]:
    """The parameters and attributes of SQS that cannot be taken for words of another kind: MessageGroupId, not Id."""
    from veil.wire import attributes, shapes

    fields = {name for each in vars(shapes).values() for name in getattr(each, "__struct_fields__", ())}
    words = fields | set(attributes.ATTRIBUTE_OF_SETTING.values())
    return {name for name in words if re.search(r"[a-z][A-Z]", name)} - {"MessageType"}  # that is users' own


@pytest.mark.parametrize("part", ["core", "stores", "journal", "service", "server"])
def test_sqs_parameters_attributes_and_codes_are_words_of_the_wire(part: str):
    words = aws_words()
    assert {"MessageGroupId", "VisibilityTimeout", "RedrivePolicy"} <= words
    for file in files_of(part):
        text = file.read_text(encoding="utf-8")
        assert "AWS.SimpleQueueService" not in text, file.name
        texts = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
        assert words & texts == NAMED_IN_REFUSALS.get(file.relative_to(PACKAGE).as_posix(), set())


def needed_by(file: Path, modules: Set[str]) -> set[str]:
    """The modules of ours that a file imports when it is loaded or run, inside its functions too."""
    found: set[str] = set()

    def look(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            named = {f"{node.module}.{each.name}" for each in node.names}
            found.update(named & modules or {node.module or ""})
        for child in ast.iter_child_nodes(node):
            look(child)

    look(ast.parse(file.read_text(encoding="utf-8")))
    return found & modules


def test_no_module_needs_one_that_needs_it():
    """Also where a function imports late; what only a type checker follows is not counted."""
    names = {
        ".".join(("veil", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): file
        for file in PACKAGE.rglob("*.py")
    }
    needs = {name: needed_by(file, names.keys()) - {name} for name, file in names.items()}
    while free := [name for name, wanted in needs.items() if not wanted & needs.keys()]:
        for name in free:
            del needs[name]
    assert not {name: sorted(wanted & needs.keys()) for name, wanted in needs.items()}


def test_a_name_means_one_class():
    names: dict[str, list[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names.setdefault(node.name, []).append(file.relative_to(PACKAGE).as_posix())
    # What a program sends to, by the name that everybody expects of it, and what a queue is.
    assert {name for name, files in names.items() if len(files) > 1} == {"Queue"}
