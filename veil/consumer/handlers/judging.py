"""What came of handling a message, judged: the outcome for the runner, a line in the log, a count for the metrics."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from veil.consumer.failure_policy import FailurePolicy, told
from veil.consumer.handlers.errors import LeaseLost, PayloadRefused
from veil.consumer.handlers.handling_settings import HandlingSettings
from veil.consumer.message import Message
from veil.consumer.outcome import DeadLetter, Delete, Fatal, Outcome, label
from veil.consumer.retry import Verdict, settled

_log = logging.getLogger("veil.consumer")


def is_from_outside(error: BaseException) -> bool:
    """Whether this is somebody ending the task, not the handler failing."""
    if isinstance(error, GeneratorExit):
        return True
    if not isinstance(error, asyncio.CancelledError):
        return False
    # A handler that awaits something cancelled elsewhere raises the same class without anybody meaning this task.
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class Judge:
    """One handler's way of turning endings into outcomes."""

    def __init__(
        self,
        name: str,
        settings: HandlingSettings,
        on_failure: FailurePolicy | None,
        on_poison: Outcome | None,
    ) -> None:
        self._name = name
        self._settings = settings
        self._on_failure = on_failure
        self._on_poison = on_poison

    def failed(self, message: Message, error: BaseException, *, trace: bool = True) -> Outcome | None:
        """What becomes of a message whose handling ended in this error; the trace may have been told before."""
        if message.lease.lost or isinstance(error, LeaseLost):
            return None
        if isinstance(error, PayloadRefused):
            outcome = self._settings.poison(error, self._on_poison)
            self._say(logging.ERROR, "poison: %s", message, outcome, error, trace=False)
        elif isinstance(error, SystemExit | KeyboardInterrupt):
            outcome = Fatal(told(error))
            self._say(logging.ERROR, "ended the process: %s", message, outcome, error, trace=trace)
        else:
            outcome = (self._on_failure or self._settings.on_failure).decide(error, message)
            if isinstance(error, Verdict):
                self._say(logging.INFO, "said: %s", message, outcome, error, trace=False)
            else:
                self._say(logging.WARNING, "failed: %s", message, outcome, error, trace=trace)
        if isinstance(outcome, DeadLetter):
            outcome = replace(outcome, handler=outcome.handler or self._name)
        return outcome

    def conclude(self, message: Message, outcome: Outcome | None, began_s: float | None) -> Outcome | None:
        """The outcome that the runner is to carry out; None once the lease is lost, whatever the handler said."""
        if message.lease.lost or outcome is None:
            outcome = None
            self._log(
                "lost its lease, the result is not kept: %s", message, message.lease.why or "unknown why"
            )
        elif not isinstance(outcome, Delete):
            outcome = settled(outcome, message.lease, message.receive_count, self._settings.random)
        observer = self._settings.observer
        if observer is not None:
            seconds = 0.0 if began_s is None else self._settings.monotonic() - began_s
            try:
                observer.handled(message, self._name, outcome, seconds)
            except Exception:
                _log.exception("the observer of handled messages failed")
        return outcome

    def _log(self, text: str, message: Message, *values: object) -> None:
        _log.warning(f"handler %s {text}", self._name, *values, extra=self._extra(message, None))

    def _say(
        self, level: int, text: str, message: Message, outcome: Outcome, error: BaseException, *, trace: bool
    ) -> None:
        _log.log(
            level,
            f"handler %s {text}; outcome %s",
            self._name,
            told(error),
            label(outcome),
            exc_info=error if trace else None,
            extra=self._extra(message, outcome),
        )

    def _extra(self, message: Message, outcome: Outcome | None) -> dict[str, object]:
        facts = {**message.facts, "handler": self._name, "outcome": label(outcome)}
        return {"facts": facts, **facts}
