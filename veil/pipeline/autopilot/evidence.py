"""What the tables tell the autopilot: each queue's history by hour, the attempts since a change, and advice beyond timeouts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from pyarrow import compute as pc

from veil import words
from veil.core.attempt import patience_ms
from veil.core.autopilot import DAY_MS, Attempts, AutopilotPolicy, Watch
from veil.core.findings import CLEAR, FAR_TOO_MANY, NO_RENEWAL, Finding
from veil.pipeline.autopilot.pilot import MEMORY_MS, Memory
from veil.pipeline.lifecycles.columns import read_rows
from veil.pipeline.lifecycles.tables import HOUR_MS, LEASES, arrow_schema, day_of
from veil.pipeline.timeouts.history import History, Work, merged, read_histories

if TYPE_CHECKING:
    from veil.journal.storage import Storage
    from veil.pipeline.lifecycles.store import Manifest

_BY_HOUR_DAYS: Final = 2  # before today; what is older is read by day
_EARLIER_H: Final = 6  # messages may have been sent so long before the attempt
_ATTEMPTS_ENOUGH: Final = 200_000
_EXPORT_MS: Final = 120_000  # an event is in the journal by then
_CLOSE_MS: Final = 1_000  # a window is as long as the timeout, up to rounding


class TablesEvidence:
    """Reads the tables; sums that have not changed since the last look are kept."""

    def __init__(self, tables: Storage) -> None:
        self._tables = tables
        self._kept: dict[tuple[str, ...], dict[Work, History]] = {}

    def memories(self, manifest: Manifest, queues: Sequence[str], now_ms: int) -> dict[Work, Memory]:
        """The memory of each of the queues that there are attempts of."""
        today, first = now_ms // DAY_MS, (now_ms - MEMORY_MS) // DAY_MS
        by_hour_from = today - _BY_HOUR_DAYS
        found: dict[Work, Memory] = {}
        kept: dict[tuple[str, ...], dict[Work, History]] = {}

        def read(files: Sequence[str]) -> Iterable[tuple[Work, History]]:
            key = tuple(files)
            kept[key] = self._kept.get(key) or merged(
                read_histories(self._tables, files), lambda work: work.whole_queue
            )
            return ((work, each) for work, each in kept[key].items() if work.queue in wanted)

        wanted = set(queues)
        for day, files in manifest.days.items():
            if first <= day < by_hour_from:
                for work, history in read(files):
                    found.setdefault(work, Memory()).days[day] = history
        for hour, stored in manifest.hours.items():
            if day_of(hour) >= by_hour_from and stored.queue_hours:
                for work, history in read(stored.queue_hours):
                    found.setdefault(work, Memory()).hours[hour] = history
        self._kept = kept
        return found

    def attempts(self, manifest: Manifest, work: Work, watch: Watch) -> Attempts:
        """The attempts that began under a changed timeout and have ended, or could have by what is known."""
        visibility_ms = watch.after_s * 1000
        until_ms = (manifest.newest_ms or 0) - visibility_ms - patience_ms(visibility_ms) - _EXPORT_MS
        count = overran = crashed = 0
        first = watch.changed_ms // HOUR_MS - _EARLIER_H
        for hour in sorted((each for each in manifest.hours if each >= first), reverse=True):
            for file in manifest.hours[hour].leases:
                ended = _ended(self._tables, file, work, visibility_ms, watch.changed_ms, until_ms)
                count, overran, crashed = count + ended[0], overran + ended[1], crashed + ended[2]
            if count >= _ATTEMPTS_ENOUGH:
                break
        return Attempts(count, overran, crashed)


def _ended(
    tables: Storage, file: str, work: Work, visibility_ms: int, from_ms: int, until_ms: int
) -> tuple[int, int, int]:
    """Attempts of the queue that began between the instants with that window, those that overran it, and those whose holder
    crashed or fell silent."""
    whose = ("region", "account", "queue")
    schema = arrow_schema(LEASES, *whose, "received_at", "first_deadline", "outcome", "overrun")
    rows = read_rows(tables, file, schema)
    begun, end = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (from_ms, until_ms))
    is_own = reduce(and_, (pc.field(name) == getattr(work, name) for name in whose))
    is_within = (pc.field("received_at") >= begun) & (pc.field("received_at") <= end)
    rows = rows.filter(is_own & is_within & ~pc.field("outcome").isin(["undone", "removed", "open"]))
    length_us = pc.subtract(rows["first_deadline"].cast("int64"), rows["received_at"].cast("int64"))
    rows = rows.filter(pc.less_equal(pc.abs(pc.subtract(length_us, visibility_ms * 1000)), _CLOSE_MS * 1000))
    # Whoever deletes late, before anybody else received the message, completed it all the same: by luck.
    overran = rows.filter(pc.field("overrun") | (pc.field("outcome") == "overran"))
    silent = rows.filter(pc.field("outcome").isin(["crashed", "unknown"]))
    return rows.num_rows, overran.num_rows, silent.num_rows


# ---- what a timeout cannot mend

_ATTEMPTS_LEAST: Final = 100
_FAILING: Final = 0.5
_LONG_S: Final = 900
_TYPES_DIFFER: Final = 8.0
_TYPE_SHARE: Final = 0.01


def advice_on(whole: Finding, types: Sequence[Finding], policy: AutopilotPolicy) -> dict[str, str]:
    """Sentences for the owner of a queue by what they are about, each with what to do."""
    found: dict[str, str] = {}
    if whole.leases < _ATTEMPTS_LEAST:
        return found
    if whole.failed > _FAILING * whole.leases:
        found["failures"] = (
            f"{words.chance(whole.failed / whole.leases)} of the attempts failed, which no timeout can fix: look at the errors "
            "with `veil pipeline report` or on the queue's page in the console"
        )
    wanted_s, present_s = whole.recommended_timeout_s, whole.present_timeout_s or 0.0
    is_cut = whole.censored > FAR_TOO_MANY * whole.leases and wanted_s is None and present_s >= _LONG_S
    if policy.renewal == NO_RENEWAL and (is_cut or (wanted_s or 0) >= _LONG_S):
        why = (
            f"{words.chance(whole.censored / whole.leases)} of the work is given up at its deadline, after "
            f"{words.length(present_s)}, and no sensible timeout will do"
            if is_cut
            else f"work that takes up to {words.length(whole.p999_s or wanted_s)} needs a timeout of {words.length(wanted_s)}, "
            "and every crash hides its message for about as long"
        )
        found["renewal"] = (
            f"{why}: let the consumers renew (Veil's own does unless it is told not to), then say renewal=adaptive in the "
            "queue's tag"
        )
    if (split := _split(whole, types)) is not None:
        found["types"] = split
    return found


def _split(whole: Finding, types: Sequence[Finding]) -> str | None:
    """Message types that differ so much that one timeout cannot serve them all."""
    known = sorted(
        (each.recommended_timeout_s, each.message_type or "(none)")
        for each in types
        if each.certainty == CLEAR
        and each.recommended_timeout_s is not None
        and each.leases >= _TYPE_SHARE * whole.leases
    )
    if len(known) < 2 or known[-1][0] < known[0][0] * _TYPES_DIFFER:
        return None
    (short_s, quick), (long_s, slow) = known[0], known[-1]
    return (
        f"messages of type {quick} need {words.length(short_s)} and those of type {slow} {words.length(long_s)}: give them "
        f"queues of their own with `veil pipeline route --from {whole.queue} --learn --create-queues "
        f"--bands short={short_s}s,long={long_s}s`"
    )
