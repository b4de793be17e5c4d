"""What a journal must be: the same from every store, and enough to tell from it alone what is in the queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.stores.journal_kit import Told
from tests.stores.model_ledger import Broken
from veil.core.sequence import instant_of

_ENDS = {"deleted", "expired", "purged", "redriven"}


class JournalReplay:
    """Follows every message by its events: where it is, and until when somebody holds it."""

    def __init__(self) -> None:
        self._queues: dict[int, str] = {}
        self._leases: dict[int, tuple[int, int]] = {}  # seq: delivery and deadline

    def read(self, told: list[Told]) -> None:
        """Go on with further events; raises Broken where they make no sense."""
        for event in told:
            if event.kind.endswith("_refused"):
                self._refused(event)
            elif event.kind == "sent":
                if event.seq in self._queues:
                    raise Broken(f"sent twice: {event}")
                self._queues[event.seq] = event.queue
            elif self._queues.get(event.seq) != event.queue:
                raise Broken(f"of a message that is not there: {event}")
            else:
                self._happened(event)

    def _refused(self, event: Told) -> None:
        if (event.message_id is not None) != (self._queues.get(event.seq) == event.queue):
            raise Broken(f"says wrongly whether the message is there: {event}")

    def _happened(self, event: Told) -> None:
        seq = event.seq
        if event.kind in ("received", "extended", "given_back"):
            assert event.deadline_ms is not None
            self._leases[seq] = (event.delivery, event.deadline_ms)
            return
        lease = self._leases.pop(seq, None)
        if event.kind == "delayed" and (lease is not None or event.deadline_ms is None):
            raise Broken(f"waits out a delay though {lease} was told: {event}")
        ends_own = event.kind == "deleted" and event.deadline_ms is not None
        if ends_own and lease != (event.delivery, event.deadline_ms):
            raise Broken(f"ends another lease than {lease}: {event}")
        if event.kind in _ENDS:
            del self._queues[seq]
        elif event.kind == "dead_lettered":
            del self._queues[seq]
            self._queues[event.other_seq or seq] = event.other_queue or ""

    def check(self, queue: str, present: int, in_flight: int, now_ms: int) -> None:
        """The queue must hold as many messages, and as many in flight, as the journal says."""
        told = [seq for seq, where in self._queues.items() if where == queue]
        held = [seq for seq in told if self._leases.get(seq, (0, 0))[1] > now_ms]
        if (len(told), len(held)) != (present, in_flight):
            raise Broken(
                f"{queue} holds {present}, {in_flight} in flight; told were {len(told)} and {len(held)}"
            )


def first_difference(
    here: list[Told],
    there: list[Told],
    same_seq: Callable[[Any, Any], bool],
    same_id: Callable[[Any, Any], bool],
) -> str | None:
    """Where two stores tell of something else; None where they tell the same.

    Compared without their order: retention is settled queue by queue, at the latest when somebody looks, so its events
    may stand elsewhere and carry a later instant.
    """
    kinds = [Counter(event.kind for event in told) for told in (here, there)]
    if kinds[0] != kinds[1]:
        return f"{kinds[0] - kinds[1]} only in the reference, {kinds[1] - kinds[0]} only in the store"
    for one, other in zip(sorted(here, key=_place), sorted(there, key=_place), strict=True):
        alike = (
            _plain(one) == _plain(other)
            and same_seq(one.seq, other.seq)
            and (one.other_seq is None) == (other.other_seq is None)
            and (one.other_seq is None or same_seq(one.other_seq, other.other_seq))
            and (one.message_id is None) == (other.message_id is None)
            and (one.message_id is None or same_id(one.message_id, other.message_id))
        )
        if not alike:
            return f"reference: {one}\n  store:     {other}"
    return None


def _plain(event: Told) -> tuple[Any, ...]:
    """What does not depend on the names that a store gives by itself."""
    at_ms = 0 if event.kind == "expired" else event.at_ms
    return (event.kind, event.queue, at_ms, instant_of(event.seq), *event[5:12])


def _place(event: Told) -> str:
    return repr((*_plain(event), event.seq))
