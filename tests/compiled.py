"""`pytest -p tests.compiled`: the same tests, against the compiled build in whose directory they run (`make compiled`).

Compiled code calls its own functions directly, and has constants built in that are `Final`, those of other modules too; only a
plain variable of a module is looked up when it is used. A test that replaces anything else would change nothing and then fail, or
pass for no reason. So it is skipped when it tries, with the name of what it would replace.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from _pytest.monkeypatch import derive_importpath

from veil.installed import is_compiled

_UNSET: Final = object()
_replace: Final = pytest.MonkeyPatch.setattr


def pytest_configure() -> None:
    if not is_compiled():
        raise pytest.UsageError("Veil's modules are not compiled here: run `make compiled`")
    pytest.MonkeyPatch.setattr = _replace_unless_compiled  # type: ignore[method-assign]


def _replace_unless_compiled(
    self: pytest.MonkeyPatch, target: Any, name: Any, value: Any = _UNSET, raising: bool = True
) -> None:
    if value is _UNSET:  # setattr("module.name", value)
        name, target, value = *derive_importpath(target, raising), name
    owner = target if isinstance(target, ModuleType | type) else type(target)
    if not _is_looked_up(owner, name):
        pytest.skip(f"compiled: cannot replace {owner.__name__}.{name}")
    _replace(self, target, name, value, raising)


def _is_looked_up(owner: ModuleType | type, name: str) -> bool:
    """Whether compiled code would notice the replacement, or has nothing to do with it."""
    if isinstance(owner, type):
        return "__mypyc_attrs__" not in vars(owner)
    if not owner.__name__.startswith("veil.") or owner.__file__ is None:
        return True
    file = Path(owner.__file__)
    source = file.with_name(file.name.partition(".")[0] + ".py").read_text(encoding="utf-8")
    if re.search(rf"^{name}: Final", source, re.MULTILINE):
        return False
    return file.suffix == ".py" or re.search(rf"^{name} = ", source, re.MULTILINE) is not None
