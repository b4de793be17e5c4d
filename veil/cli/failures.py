"""What can go wrong in a command, and how it is told: one line, an exit code, never a stack trace.

CommandFailed
├── ServiceError      the server refused                       exit 1
│   ├── QueueMissing  there is no such queue
│   └── KeyRefused    the key is missing, or not accepted
├── Unreachable       no server answered                       exit 1
├── TlsFailed         the server's certificate, or ours, will not do  exit 1
├── NotVeil           another SQS, without Veil's extensions   exit 1
├── EndpointRefused   the endpoint is no URL                   exit 2
├── NotConfirmed      a question nobody could or would answer  exit 2 or 1
└── (itself)          anything else a command has to say       exit 1
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

import typer

from veil.cli.output import inert, is_terminal, talk
from veil.client.api import ApiError
from veil.core.errors import VeilError

P = ParamSpec("P")
R = TypeVar("R")


# What SQS calls a parameter, and what the command calls it.
_OUR_WORDS: Final = {
    "MessageGroupId": "--group",
    "MessageDeduplicationId": "--dedup-id",
    "ContentBasedDeduplication": "--content-deduplication",
    "DelaySeconds": "--delay",
    "MaxNumberOfMessagesPerSecond": "--rate",
    "ReceiptHandle": "RECEIPT",
}


def _in_our_words(text: str) -> str:
    return re.sub("|".join(_OUR_WORDS), lambda found: _OUR_WORDS[found[0]], text)


class CommandFailed(Exception):
    """The command could not do what was asked; its text is the line to show."""

    exit_code = 1


class ServiceError(CommandFailed):
    """The server refused, with its code and text."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(f"{code}: {_in_our_words(message)}" if message else code)
        self.code, self.status = code, status

    @property
    def is_missing_queue(self) -> bool:
        return self.code == "QueueDoesNotExist"


class QueueMissing(ServiceError):
    """There is no queue of that name."""

    def __init__(self, queue: str, endpoint: str, region: str) -> None:
        super().__init__("QueueDoesNotExist", "", 400)
        self.args = (f"there is no queue {queue!r} at {endpoint} in {region}; see: veil queue ls",)


class KeyRefused(ServiceError):
    """The server does not accept the key that signed the request."""

    def __init__(self, refusal: ServiceError, endpoint: str, key_id: str | None) -> None:
        super().__init__(refusal.code, "", refusal.status)
        self.args = (
            f"{endpoint} needs a key: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            if key_id is None
            else f"{endpoint} does not accept the key {key_id}: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY ({refusal})",
        )


class Unreachable(CommandFailed):
    """No server answered at the endpoint."""

    def __init__(self, endpoint: str, reason: str, *, refused: bool = False) -> None:
        advice = "; start a server with: veil serve" if refused else ""
        super().__init__(f"no server answers at {endpoint} ({reason}){advice}")
        self.endpoint, self.refused = endpoint, refused


class TlsFailed(CommandFailed):
    """No connection that could be trusted."""


class NotVeil(CommandFailed):
    """The server speaks SQS, but has none of Veil's own operations."""

    def __init__(self, endpoint: str, action: str) -> None:
        super().__init__(f"{endpoint} is not a Veil server: it has no {action}, an extension of Veil's")


class EndpointRefused(CommandFailed):
    """The endpoint is not a URL that can be called."""

    exit_code = 2

    def __init__(self, endpoint: str) -> None:
        super().__init__(f"endpoint {endpoint!r}: expected a URL such as http://127.0.0.1:9324")


class NotConfirmed(CommandFailed):
    """Somebody said no, or nobody was there to ask."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def plainly(command: Callable[P, R]) -> Callable[P, R]:
    """The command, with its failures told in one line on stderr."""

    @functools.wraps(command)
    def told(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except BrokenPipeError:
            raise
        except (CommandFailed, VeilError, ApiError) as failure:
            talk(f"veil: {inert(str(failure), keep='')}")
            raise typer.Exit(getattr(failure, "exit_code", 1)) from None
        except OSError as failure:
            talk(
                f"veil: {inert(f'{failure.filename}: {failure.strerror}' if failure.filename else str(failure), keep='')}"
            )
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return told


def confirm(question: str, *, yes: bool) -> None:
    """Return if the person agrees; raise NotConfirmed if not, or if there is nobody to ask."""
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise NotConfirmed(f"{question} Not a terminal: say --yes to go on.", exit_code=2)
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotConfirmed("nothing done", exit_code=1)
