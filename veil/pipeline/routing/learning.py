"""Which band suits each class of messages, by what the tables tell of the time that its work took.

A class stays where it is until the evidence is clear. It moves to a longer timeout when even the lower end of the
confidence interval says that more of its work than allowed outlasts the present one; to a shorter one when even the upper
end says that less of it than allowed would outlast a timeout that is yet a fifth shorter than that band's. Between the two
lies the hysteresis: no single history asks for both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Final

from veil import words
from veil.pipeline.routing.router import RouterState
from veil.pipeline.routing.rules import TYPE, Band, Match, RouteTable, Rule, Target
from veil.pipeline.sql import TYPE_ATTRIBUTES
from veil.pipeline.timeouts.history import History, Work
from veil.pipeline.timeouts.recommendation import curve_of, sort_lapses
from veil.pipeline.timeouts.run import past

if TYPE_CHECKING:
    from veil.journal.storage import Storage

QUANTILE_DEFAULT: Final = 0.99
MARGIN: Final = 1.25
_OBSERVATIONS_LEAST: Final = 30
# Where a deadline cuts the work off the curve ends at that deadline, up to the width of a bucket.
_EDGE: Final = 1.05


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where the messages of a class go, whether that is new, and why."""

    message_class: str
    band: Band
    moved_from: Band | None
    observed: int
    quantile_s: float | None
    reason: str


def by_class(histories: Mapping[Work, History]) -> dict[str, History]:
    """The histories of each class, whichever queues they come from."""
    found: dict[str, History] = {}
    for work, history in sorted(histories.items()):
        found.setdefault(work.message_type, History()).add(history)
    return found


def learn(
    histories: Mapping[str, History],
    bands: Sequence[Band],
    present: Mapping[str, str],
    default: Band,
    quantile: float = QUANTILE_DEFAULT,
) -> list[Verdict]:
    """A verdict for each class that was ever seen; `present` says in which band a class is, the default where it does not."""
    by_name = {band.name: band for band in bands}
    classes = sorted({*histories, *present})
    return [
        decide(
            each, histories.get(each, History()), bands, by_name.get(present.get(each, ""), default), quantile
        )
        for each in classes
    ]


def decide(
    message_class: str, history: History, bands: Sequence[Band], here: Band, quantile: float
) -> Verdict:
    """Where a class that is in the band `here` should be; `bands` from the shortest."""
    allowed = 1 - quantile
    needed = max(round(1 / allowed), _OBSERVATIONS_LEAST)
    lapses = sort_lapses(history)
    # Work that was cut off at its deadline is evidence too, and for some classes the only one.
    observed = history.completed + round(sum(count for _, count in lapses.at_work))

    def verdict(band: Band, reason: str, at_s: float | None = None) -> Verdict:
        return Verdict(message_class, band, None if band == here else here, observed, at_s, reason)

    if observed < needed:
        return verdict(here, f"{observed} leases tell of it, {needed} are needed: it stays in {here.name}")
    curve = curve_of(history, lapses)
    at_s = curve.quantile_s(quantile)
    usual = f"{words.chance(quantile)} of the work takes " + (
        "an unknown time" if at_s is None else f"up to {words.length(at_s)}"
    )

    chance, low, _ = curve.at(here.timeout_s)
    if low > allowed and here.timeout_s <= curve.end_s * _EDGE and here != bands[-1]:
        longer = [band for band in bands if band.timeout_s > here.timeout_s]
        # Beyond the end of the curve nothing is known: one step, and then the next look sees further.
        fits = (b for b in longer if b.timeout_s > curve.end_s or curve.at(b.timeout_s)[0] <= allowed)
        band = next(fits, longer[-1])
        return verdict(
            band,
            f"{usual}; {words.chance(chance)} of it (at least {words.chance(low)}) outlasts {words.length(here.timeout_s)}",
            at_s,
        )
    # Leases that lapsed in silence are taken for crashes; where that is not shown, they may have been at work.
    doubt = 0.0 if lapses.proven else lapses.crashed / max(history.leases, 1)
    for band in bands:
        if band.timeout_s >= here.timeout_s:
            break
        high = curve.at(band.timeout_s / MARGIN)[2] + doubt
        if high <= allowed:
            return verdict(
                band,
                f"{usual}; at most {words.chance(high)} of it outlasts {words.length(band.timeout_s / MARGIN)}",
                at_s,
            )
    return verdict(here, f"{usual}: {here.name} is right, or nothing else is clearly better", at_s)


@dataclass
class LearnedRules:
    """Knows the rules of the moment; `table` looks at the tables again where the last look is too old."""

    tables: Storage
    state: RouterState
    bands: Sequence[Band]
    default: Band
    queue_of: Callable[[Band], str]
    queues: Sequence[str]  # whose past counts
    class_by: str = TYPE
    type_attributes: Sequence[str] = TYPE_ATTRIBUTES
    quantile: float = QUANTILE_DEFAULT
    since: date | None = None
    look_every_s: float = 3600.0
    tell: Callable[[list[Verdict]], None] = lambda _: None
    verdicts: list[Verdict] = field(default_factory=list)
    _looked_at_s: float = float("-inf")

    def table(self) -> RouteTable:
        """The rules, of a look that is no older than `look_every_s`."""
        if time.monotonic() - self._looked_at_s >= self.look_every_s:
            self._look()
            self._looked_at_s = time.monotonic()
        return self._as_table()

    def _look(self) -> None:
        histories = past(self.tables, since=self.since, queues=self.queues)
        self.verdicts = learn(
            by_class(histories), self.bands, self.state.classes(), self.default, self.quantile
        )
        self.state.keep_classes({each.message_class: each.band.name for each in self.verdicts})
        self.tell(self.verdicts)

    def _as_table(self) -> RouteTable:
        rules = []
        for band in self.bands:
            classes = tuple(each.message_class for each in self.verdicts if each.band == band)
            if classes and band != self.default:
                rules.append(Rule(self.queue_of(band), (Match(self.class_by, classes),)))
        return RouteTable(
            tuple(Target(self.queue_of(band), band.timeout_s) for band in self.bands),
            self.queue_of(self.default),
            tuple(rules),
            tuple(self.type_attributes),
            None if self.class_by == TYPE else self.class_by,
        )
