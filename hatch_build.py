"""The optional build with compiled modules: `VEIL_COMPILE=1 pip install .` compiles the hot path with mypyc.

Without the variable the wheel is pure Python and needs nothing but hatchling. A compiled wheel has the sources beside the
compiled modules, as everything that reads them (tracebacks, `inspect`) expects, and is for one Python on one platform.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE: Final = "VEIL_COMPILE"
# What a send, a receive, a change of visibility and a delete pass through, from the socket to SQLite. Not compiled are modules
# whose annotations are read at run time: mypyc keeps `list` of a `list[int]`, so that msgspec would accept and decode anything.
# So none of these defines a struct, or a class that msgspec decodes (tests/test_compiled_modules.py).
MODULES: Final = (
    "veil/core/decide.py",
    "veil/core/sequence.py",
    "veil/server/access.py",
    "veil/server/application.py",
    "veil/server/http_connection.py",
    "veil/server/http_reader.py",
    "veil/service/messages.py",
    "veil/service/waiting.py",
    "veil/stores/sqlite/apply.py",
    "veil/stores/sqlite/commit.py",
    "veil/stores/sqlite/database.py",
    "veil/stores/sqlite/leases.py",
    "veil/stores/sqlite/messages.py",
    "veil/stores/sqlite/outbox.py",
    "veil/wire/attributes.py",
    "veil/wire/aws_json.py",
    "veil/wire/front_end.py",
    "veil/wire/smq/front_end.py",
)
# Types come from the modules themselves and from the packages that they import; the rest of the tree is `make check`'s.
MYPY_FLAGS: Final = ("--config-file=", "--follow-imports=silent", "--ignore-missing-imports")


class CompiledModules(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel that is asked for with the variable; never to an editable one."""

    PLUGIN_NAME = "custom"
    _work: Path | None = None

    def dependencies(self) -> list[str]:
        """What the build needs besides hatchling: the compiler, and what Veil imports, whose types it reads."""
        return ["mypy[mypyc]>=2.4", *self.metadata.core.dependencies] if _is_asked_for() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have the wheel take the result."""
        if version == "editable" or not _is_asked_for():
            return
        self._work = Path(tempfile.mkdtemp(prefix="veil-compile-"))
        with contextlib.chdir(self.root):  # mypyc names modules by their path from here
            made = compile_modules(self._work)
        build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["force_include"].update(
            {str(each): str(each.relative_to(self._work / "lib")) for each in made}
        )

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what the compiler left."""
        if self._work is not None:
            shutil.rmtree(self._work)


def compile_modules(work: Path) -> list[Path]:
    """Compile the modules of the tree in the working directory, and give the libraries, which lie below `work / "lib"`."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    extensions = mypycify(
        [*MYPY_FLAGS, f"--cache-dir={work / 'cache'}", *MODULES],
        group_name="veil",
        opt_level="2",
        debug_level="0",
        multi_file=True,  # builds in a third less CPU time than one large file
        target_dir=str(work / "c"),
    )
    command = build_ext(Distribution({"name": "veilmq", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(work / "lib"), str(work / "objects")
    command.ensure_finalized()
    command.run()
    return [Path(each) for each in command.get_outputs()]


def _is_asked_for() -> bool:
    return os.environ.get(VARIABLE, "") not in ("", "0")
