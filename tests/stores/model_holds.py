"""What must hold of any store's holds, told from its answers and from a look at its messages alone.

* A name never gives a message that it did not give the first time, nor one that it has left out since; what it leaves out
  is counted.
* A batch that was acknowledged gives nothing any more.
* An acknowledgement removes messages that the last reader of their hold was given, and no others.
* An extension opens no window on what another holds.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.stores.model_ledger import Broken, Ledger
from veil.core.lease import HoldContent, State
from veil.core.message import StoredMessage

Name = tuple[str, str, int, int]  # queue, stream, batch, part


class HoldLedger:
    """Follows every hold by what its readers were given."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._given: dict[Name, dict[str, int]] = {}  # body and delivery
        self._size: dict[Name, int] = {}
        self._closed: dict[tuple[str, str], int] = {}

    def enter(
        self,
        step: dict[str, Any],
        answer: Any,
        before: list[StoredMessage],
        after: list[StoredMessage],
        now_ms: int,
    ) -> None:
        """Check what a step that was not refused came to."""
        op = step["op"]
        if op == "receive_hold":
            self._received((step["queue"], step["stream"], step["batch"], step["part"]), answer)
        elif op == "extend_holds":
            self._extended(step, after, now_ms)
        elif op == "delete_holds":
            self._deleted(step, answer, before, after, now_ms)
        elif op == "delete_queue":
            for known in (self._given, self._size):
                for name in [name for name in known if name[0] == step["queue"]]:
                    del known[name]
            for stream in [stream for stream in self._closed if stream[0] == step["queue"]]:
                del self._closed[stream]

    def _received(self, name: Name, content: HoldContent) -> None:
        if name[2] <= self._closed.get(name[:2], -1):
            raise Broken(f"{name} was acknowledged and gives {content}")
        given = {message.body: message.delivery for message in content.messages}
        if content.again != (name in self._size):
            raise Broken(f"{name} is {'not ' if content.again else ''}known")
        if not content.again:
            self._size[name] = len(given)
        elif not given.items() <= self._given[name].items():
            raise Broken(f"{name} gave {self._given[name]} before and {given} now")
        if len(given) + content.lost != self._size[name]:
            raise Broken(
                f"{name} took {self._size[name]}, gives {len(given)} and counts {content.lost} as lost"
            )
        self._given[name] = given

    def _extended(self, step: dict[str, Any], after: list[StoredMessage], now_ms: int) -> None:
        present = {message.body: message for message in after}
        for name in self._names(step):
            for body, delivery in self._given[name].items():
                message = present.get(body)
                if message is None:
                    continue
                # What was received since is lost to this hold, unless its own receipt took it back before another did.
                if message.delivery != delivery and self._ledger.holder(body, now_ms) != delivery:
                    continue
                if message.state == State.IN_FLIGHT and message.due_at_ms is not None:
                    self._ledger.seen_held(step["queue"], body, delivery, message.due_at_ms, now_ms)

    def _deleted(
        self,
        step: dict[str, Any],
        answer: Any,
        before: list[StoredMessage],
        after: list[StoredMessage],
        now_ms: int,
    ) -> None:
        stream = (step["queue"], step["stream"])
        names = [name for name in self._names(step) if name[2] <= step["batch"]]
        if names or any(name[:2] == stream for name in self._size):
            self._closed[stream] = max(self._closed.get(stream, -1), step["batch"])
        given = {body: delivery for name in names for body, delivery in self._given[name].items()}
        left = {message.body for message in after}
        gone = [message.body for message in before if message.body not in left]
        if len(gone) != answer.messages:
            raise Broken(f"{step} counts {answer.messages} and removes {gone}")
        for body in gone:
            if body not in given:
                raise Broken(
                    f"{body} was deleted by {step}, though the last reader of its hold was not given it"
                )
            self._ledger.acted(body, given[body], now_ms)
            self._ledger.ended(body)
        taken = sum(self._size[name] for name in names)
        if answer.messages + answer.lost != taken:
            raise Broken(f"{step} comes to {answer} of {taken}")
        for name in names:
            del self._given[name], self._size[name]

    def _names(self, step: dict[str, Any]) -> list[Name]:
        return [name for name in self._size if name[:2] == (step["queue"], step["stream"])]

    def tally(self) -> Counter[str]:
        """How many holds are known, for those who want to see that a history has any."""
        return Counter("empty" if not size else "full" for size in self._size.values())
