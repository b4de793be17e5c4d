"""The modules that `VEIL_COMPILE=1` compiles mean the same compiled: nothing in them is among the few things that mypyc changes.

`make compiled` compiles them and runs the tests against the result; these are the traps that would pass it unseen.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from veil.installed import is_compiled

ROOT = Path(__file__).parent.parent
# They use up what they are given, so it does not matter that mypyc gives them a list.
CONSUMES = {
    "all",
    "any",
    "bytes",
    "dict",
    "frozenset",
    "list",
    "max",
    "min",
    "next",
    "set",
    "sorted",
    "sum",
    "tuple",
}
CONSUMES_AS_METHOD = {"extend", "fromkeys", "join", "update"}


def compiled_modules() -> tuple[str, ...]:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    return build.MODULES


def nodes_of(module: str | Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))))


def test_an_editable_install_is_pure():
    assert not is_compiled()


@pytest.mark.parametrize("module", compiled_modules())
def test_no_generator_expression_is_lazy(module: str):
    """mypyc makes a list of it, which may be a whole backlog; a generator function or `filter` stays lazy."""
    nodes = nodes_of(module)
    used_up: set[ast.AST] = set()
    for node in nodes:
        if isinstance(node, ast.Call) and (
            (isinstance(node.func, ast.Name) and node.func.id in CONSUMES)
            or (isinstance(node.func, ast.Attribute) and node.func.attr in CONSUMES_AS_METHOD)
        ):
            used_up.update(node.args)
        elif isinstance(node, ast.Starred):
            used_up.add(node.value)
    lazy = [node for node in nodes if isinstance(node, ast.GeneratorExp) and node not in used_up]
    assert [ast.unparse(node) for node in lazy] == []


@pytest.mark.parametrize("module", compiled_modules())
def test_no_class_is_one_that_msgspec_decodes(module: str):
    """Of the annotation `list[int]` mypyc leaves `list`, so msgspec would accept and decode anything."""
    nodes = nodes_of(module)
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    assert [each.name for each in classes if any("Struct" in ast.unparse(base) for base in each.bases)] == []
    decoded = [
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Call) and "Decoder" in ast.unparse(node.func)
    ]
    own = {each.name for each in classes}
    assert [
        call
        for call in decoded
        if own & set(call.replace("(", " ").replace(")", " ").replace("[", " ").split())
    ] == []


def test_no_other_module_inherits_from_a_class_of_theirs():
    """A compiled class takes only compiled heirs."""
    modules = {ROOT / module for module in compiled_modules()}
    theirs = {node.name for module in modules for node in nodes_of(module) if isinstance(node, ast.ClassDef)}
    inherits = re.compile(rf"^class \w+\(.*\b(?:{'|'.join(theirs)})\b", re.M)
    others = [file for file in (ROOT / "veil").rglob("*.py") if file not in modules]
    assert [file for file in others if inherits.search(file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("module", compiled_modules())
def test_no_attribute_is_a_word_of_c(module: str):
    """mypyc puts an underscore before a name, and some names become words of the compiler: `_thread`."""
    names = {node.attr for node in nodes_of(module) if isinstance(node, ast.Attribute)}
    assert names.isdisjoint({"_thread", "_asm", "_inline", "_func"})


@pytest.mark.parametrize("module", compiled_modules())
def test_no_generator_is_made_a_coroutine(module: str):
    """`types.coroutine` marks the code of a function, and a compiled one has none: nothing could await it."""
    imported = {
        each.name for node in nodes_of(module) if isinstance(node, ast.ImportFrom) for each in node.names
    }
    assert "coroutine" not in imported
