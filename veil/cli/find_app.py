"""From `module:app` to the consumer it names, or one line that says why not."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import TYPE_CHECKING

from veil.cli.failures import CommandFailed

if TYPE_CHECKING:
    from veil.consumer.app import Consumer

DEFAULT_NAME = "app"


class AppMissing(CommandFailed):
    """What was named is not there, or is no consumer."""

    exit_code = 2


def find_app(target: str) -> Consumer:
    """The consumer that `module:attribute` names (`module` alone: its `app`), looked for from the current directory."""
    from veil.consumer.app import Consumer

    module_name, _, path = target.partition(":")
    if not module_name or target.endswith(":") or module_name.endswith(".py") or "/" in module_name:
        raise AppMissing(f"{target!r}: expected module:app, such as shop.orders:app")
    path = path or DEFAULT_NAME
    found = _imported(module_name)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            consumers = [
                each for each, value in vars(_imported(module_name)).items() if isinstance(value, Consumer)
            ]
            hint = f"; its consumers are: {', '.join(consumers)}" if consumers else "; it has no consumer"
            raise AppMissing(f"module {module_name} has no {path}{hint}") from None
    if not isinstance(found, Consumer):
        raise AppMissing(f"{module_name}:{path} is of type {type(found).__name__}, expected a Consumer")
    return found


def _imported(name: str) -> object:
    here = os.getcwd()  # noqa: PTH109 - sys.path holds texts
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppMissing(f"no module {name} in {here} or among what is installed") from None
        raise _import_failed(name, error) from error
    except Exception as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: Exception) -> AppMissing:
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{error.filename}:{error.lineno}"
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.filename}:{last.lineno}"
    return AppMissing(f"importing {name} failed at {place}: {type(error).__name__}: {error}")
