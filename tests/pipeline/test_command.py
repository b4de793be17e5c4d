"""`veil pipeline`: quick to describe itself, and where it looks for the journal and the tables."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from veil.cli.failures import CommandFailed
from veil.cli.pipeline import JOBS
from veil.cli.pipeline.options import places
from veil.pipeline.spark.workers import package

SHOW_MODULES = (
    "import sys\n"
    "from veil.cli.main import run\n"
    "code = run(sys.argv[1:])\n"
    "print(*sorted(sys.modules), file=sys.stderr)\n"
    "sys.exit(code)"
)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A directory without veil.toml, and no variable of the server's."""
    monkeypatch.chdir(tmp_path)
    for name in ("VEIL_DATA", "VEIL_JOURNAL", "VEIL_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def modules_after(*arguments: str) -> tuple[str, set[str]]:
    command = [sys.executable, "-c", SHOW_MODULES, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, set(done.stderr.split())


def test_help_names_every_job_without_loading_spark():
    text, modules = modules_after("pipeline", "--help")

    listed = re.findall(r"^  (\S+)", text.partition("Commands:")[2], re.MULTILINE)
    assert listed == list(JOBS)
    assert {"lifecycles", "timeouts", "report", "package"} <= set(listed)
    assert modules.isdisjoint({"pyspark", "pyarrow", "rich", "pandas", "asyncio", "veil.server.settings"})


def test_a_job_loads_its_own_file_only():
    _, modules = modules_after("pipeline", "package", "--help")

    assert {each for each in JOBS.values() if each in modules} == {"veil.cli.pipeline.lifecycles"}


def test_a_job_that_does_not_exist_is_told_in_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "veil.cli.main", "pipeline", "nonsense"], capture_output=True, text=True
    )

    assert done.returncode == 2
    assert done.stderr == "veil: No such command 'nonsense'. (see veil pipeline --help)\n"


def test_places_are_those_of_the_data_directory(tmp_path: Path):
    journal, tables = places(None, None, None)

    assert journal.uri.endswith(f"{tmp_path}/veil-data/journal")
    assert tables.uri.endswith(f"{tmp_path}/veil-data/tables")


def test_an_option_wins_over_a_variable_and_this_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    Path("veil.toml").write_text('data = "by-file"\n')
    by_file = places(None, None, None)
    monkeypatch.setenv("VEIL_DATA", "by-variable")
    by_variable = places(None, None, None)
    by_option = places("by-option", None, None)
    monkeypatch.setenv("VEIL_JOURNAL", "s3://lake/journal")
    journal_by_variable = places(None, None, None)
    past_the_variable = places("by-option", None, None)
    one_by_one = places("by-option", str(tmp_path / "j"), "s3://lake/tables")

    assert by_file[0].uri.endswith("by-file/journal")
    assert by_variable[0].uri.endswith("by-variable/journal")
    assert by_option[1].uri.endswith("by-option/tables")
    assert journal_by_variable[0].uri == "s3://lake/journal"
    assert journal_by_variable[1].uri.endswith("by-variable/tables")
    assert past_the_variable[0].uri.endswith("by-option/journal")
    assert (one_by_one[0].uri.endswith("/j"), one_by_one[1].uri) == (True, "s3://lake/tables")


def test_a_place_that_is_none_is_refused_by_name():
    with pytest.raises(CommandFailed, match="tables 'gopher://x': expected a path"):
        places(None, None, "gopher://x")


def test_a_mistake_in_the_servers_settings_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VEIL_DATTA", "x")

    with pytest.raises(CommandFailed, match="unknown variable VEIL_DATTA; did you mean VEIL_DATA"):
        places(None, None, None)


def test_the_package_is_whole_and_the_same_files_make_the_same_bytes(tmp_path: Path):
    first, second = package(tmp_path / "first"), package(tmp_path / "second")

    assert first.zip.read_bytes() == second.zip.read_bytes()
    with zipfile.ZipFile(first.zip) as archive:
        names = archive.namelist()
    assert {"veil/__init__.py", "veil/pipeline/spark/session.py", "veil/cli/main.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or not name.startswith("veil/")]
    assert sorted(each.name for each in (tmp_path / "first").iterdir()) == ["veil.zip", "veil_job.py"]


def test_a_package_can_be_imported_from_its_zip(tmp_path: Path):
    made = package(tmp_path)

    code = "import veil.pipeline.spark.session as module; print(module.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(made.zip)}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.stdout.strip() == f"{made.zip}/veil/pipeline/spark/session.py", done.stderr
