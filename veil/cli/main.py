"""The command `veil`: imports only the command that is called, and reports errors in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from veil.cli import COMMANDS

USAGE = 2
INTERRUPTED = 130


def main() -> None:
    _open_standard_streams()
    sys.exit(run(sys.argv[1:]))


def _open_standard_streams() -> None:
    """See that stdin, stdout and stderr are open, also if the process was started without them: the first socket or file that is
    opened would take the place of one, and be written to."""
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code."""
    try:
        from veil.cli.app import app

        for module in _needed(arguments):
            import_module(module)
        code = app(args=list(arguments), prog_name="veil", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):
        code = 0  # the reader of our output has gone (`veil … | head`): Typer then exits with 1
    except Exception as error:
        code = _told(error)
    try:
        sys.stdout.flush()
    except OSError:  # told already; Python would complain once more when it flushes at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code if isinstance(code, int) else 0


def _needed(arguments: Sequence[str]) -> list[str]:
    """The file of the command that is called; all of them for help, completion and mistakes."""
    if arguments and arguments[0] == "--version":
        return []
    module = COMMANDS.get(arguments[0]) if arguments else None
    if module is not None:
        return [module]
    return [each for each in dict.fromkeys(COMMANDS.values()) if find_spec(each) is not None]


def _told(error: Exception) -> int:
    """Tell what went wrong in one line, and give the exit code; raise what is a defect."""
    from veil.cli.failures import in_words, is_told
    from veil.cli.output import echo, echo_err

    if is_told(error):
        echo_err(f"veil: {in_words(error)}")
        return int(getattr(error, "exit_code", USAGE if isinstance(error, UnicodeEncodeError) else 1))
    # Typer carries its own copy of click in some versions and not in others, so its errors are known by their
    # shape.
    describe = getattr(error, "format_message", None)
    if describe is None:
        if type(error).__name__ == "Abort":
            return INTERRUPTED
        raise error
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
        echo(describe(), keep="\n")
        return USAGE
    text = " ".join(str(describe()).split())
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "veil"
    echo_err(f"veil: {text} (see {command} --help)")
    return int(getattr(error, "exit_code", USAGE))


if __name__ == "__main__":
    main()
