"""The errors of a command, and their texts: one line and an exit code, never a stack trace.

CommandFailed and ArgumentWrong are a command's own; what a service refuses or does not answer (ApiError), what the rules refuse
(VeilError), what the machine refuses (OSError) and what is not installed are put into words here. Exit codes: 1, and 2 for a
wrong argument.
"""

from __future__ import annotations

import re
import sys
from typing import Final

from veil.cli.output import is_terminal
from veil.client.api import ApiError, plain
from veil.core.errors import VeilError

# What SQS calls a parameter, and what the command calls it.
_OUR_WORDS: Final = {
    "MessageGroupId": "--group",
    "MessageDeduplicationId": "--dedup-id",
    "ContentBasedDeduplication": "--content-deduplication",
    "DelaySeconds": "--delay",
    "MaxNumberOfMessagesPerSecond": "--rate",
    "ReceiptHandle": "RECEIPT",
}
_KEY_REFUSALS: Final = frozenset({
    "InvalidClientTokenId", "InvalidSignature", "MissingAuthenticationToken", "SignatureDoesNotMatch", "UnrecognizedClient",
})  # fmt: skip
# What comes with an extra of the distribution, by the package that is imported.
_EXTRAS: Final = {
    "numpy": "spark", "pandas": "spark", "py4j": "spark", "pyspark": "spark", "psycopg": "postgres", "psycopg_pool": "postgres",
    "botocore": "aws",
}  # fmt: skip


class CommandFailed(Exception):
    """The command could not do what was asked; its text is the line to show."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class ArgumentWrong(CommandFailed):
    """An argument, a variable or a setting has a value that it cannot have."""

    def __init__(self, text: str) -> None:
        super().__init__(text, 2)


# What a command may end with, told in one line; anything else is a defect.
TOLD: Final = (CommandFailed, VeilError, ApiError, OSError)


def is_told(error: Exception) -> bool:
    """Whether this is told in one line: a refusal, a failure of the machine, an extra that is not installed; not a defect."""
    if isinstance(error, UnicodeEncodeError):
        return _is_argument(error)
    return isinstance(error, TOLD) or (isinstance(error, ModuleNotFoundError) and _package(error) in _EXTRAS)


def _is_argument(error: UnicodeEncodeError) -> bool:
    """Whether it is about bytes that are no text: Python hands on those of a command line as halves of surrogate pairs."""
    return "\udc80" <= error.object[error.start] <= "\udcff"


def _package(missing: ModuleNotFoundError) -> str:
    return (missing.name or "").partition(".")[0]


def in_words(error: Exception) -> str:
    """What went wrong, as a sentence that names the server, the queue, the flag or the variable it is about."""
    if isinstance(error, ModuleNotFoundError):
        package = _package(error)
        return f'this needs {package}, which is not installed: pip install "veilmq[{_EXTRAS[package]}]"'
    if isinstance(error, UnicodeEncodeError):
        return "an argument has bytes that are not text in this terminal's encoding: expected UTF-8"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if not isinstance(error, ApiError):
        return str(error)
    from veil.client.blocking import CallFailed  # here, since `--help` loads no client
    from veil.client.credentials import DUMMY

    if not isinstance(error, CallFailed):
        return str(error)
    endpoint, key, no_answer = error.target.endpoint, error.target.credentials, error.no_answer
    if no_answer is not None and no_answer.untrusted:
        return str(no_answer)
    if no_answer is not None:
        advice = "; start a server with: veil serve" if no_answer.refused else ""
        return f"no server answers at {endpoint} ({no_answer}){advice}"
    if error.is_unknown_action:
        return f"{endpoint} is not a Veil server: it has no {error.action}, an extension of Veil's"
    if error.is_missing_queue and error.queue is not None:
        return f"there is no queue {error.queue!r} at {endpoint} in {error.target.region}; see: veil queue ls"
    if plain(error.code) in _KEY_REFUSALS:
        variables = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        if key is DUMMY:
            return f"{endpoint} needs a key: set {variables}"
        return f"{endpoint} does not accept the key {key.key_id}: check {variables} ({error})"
    message = re.sub("|".join(_OUR_WORDS), lambda found: _OUR_WORDS[found[0]], error.message)
    about = "" if error.queue is None else f"queue {error.queue!r}: "
    return about + (f"{error.code}: {message}" if error.code else message)


def confirm(question: str, *, yes: bool) -> None:
    """Return if the person agrees; raise CommandFailed if not, or if there is nobody to ask."""
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise ArgumentWrong(
            f"{question} stdin is not a terminal, so nobody can answer: use --yes to go ahead."
        )
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("nothing done")
