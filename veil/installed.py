"""What is installed: Veil's version, and whether its hot modules are compiled (docs/deploy.md)."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec


def veil_version() -> str:
    """The version of the installed distribution."""
    try:
        return version("veilmq")
    except PackageNotFoundError:
        return "(not installed)"


def is_compiled() -> bool:
    """Whether this process runs the modules that `VEIL_COMPILE=1` compiles as machine code."""
    found = find_spec("veil.core.decide")
    return found is not None and not str(found.origin).endswith(".py")


def version_in_words() -> str:
    """The version as people are told it."""
    return f"{veil_version()} (compiled)" if is_compiled() else veil_version()
