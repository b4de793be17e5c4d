"""What became of the holders of leases that lapsed in silence: dead, or still at work?

The tables cannot tell, and the difference is everything. A holder that was still at work at the deadline needed a longer
timeout; one that had crashed, or had failed and left the message lying, says nothing about how long work takes, and to
count it as at work until the deadline would put the survival curve's end at the share of crashes, for ever above any target.

Two things in the data speak. Holders that come late show it where they do not give up: if a fair number of observations
end beyond the deadline, silence means dead. And work that is cut off by a deadline leaves a trace before it: completions up
to the very end of the window. From the completions in its last three octaves the number still at work is extrapolated:
as if the tail were a power law, which is heavier than nearly every real one, or lighter if it is getting lighter already.
What lapsed beyond that number is dead.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from veil.pipeline.history import History, bucket_of_s, middle_s

# Late completions that show that holders of this queue do not give up at the deadline.
_SHOWN_LEAST, _SHOWN_SHARE = 3, 1 / 10
# A larger share of all leases than this is not taken for crashes, whatever the completions look like.
_CREDIBLE_SHARE = 1 / 5


@dataclass(frozen=True, slots=True)
class Lapses:
    """The censored observations of a history, sorted by what they say."""

    at_work: list[
        tuple[float, float]
    ]  # (seconds, leases): at work at that instant for certain or by assumption
    elsewhere: Counter[int]  # released, removed or open: censored somewhere in that bucket
    crashed: float  # ended somewhere before their deadline, without completing
    proven: bool  # late holders of this queue show themselves, so silence means dead


def sort_lapses(history: History) -> Lapses:
    """Tell holders that were at work at their deadline from those that were dead by then."""
    lapses, elsewhere = _placed(history), history.censored
    total = sum(count for _, count in lapses)
    silent = min(history.silent, total)
    if not silent:
        return Lapses(lapses, elsewhere, 0.0, True)
    deadline_s = max(lapses, key=lambda each: each[1])[0]
    beyond = _completed(history, deadline_s, float("inf"))
    proven = beyond >= max(_SHOWN_LEAST, silent * _SHOWN_SHARE)
    still = 0.0 if proven else _still_at_work(history, deadline_s, silent)
    crashed = silent - still
    kept = (total - crashed) / total
    return Lapses([(at_s, count * kept) for at_s, count in lapses if kept], elsewhere, crashed, proven)


def _still_at_work(history: History, deadline_s: float, silent: float) -> float:
    if silent > _CREDIBLE_SHARE * history.leases:
        return silent
    last = _completed(history, deadline_s / 2, deadline_s)
    before = _completed(history, deadline_s / 4, deadline_s / 2)
    if last and last >= before:  # the tail has not begun yet: there is no telling how much of it is beyond
        return silent
    if not last:
        return 0.0
    # With a power law each octave holds the same multiple of the one before it; what follows the last is the series' rest.
    earlier = _completed(history, deadline_s / 8, deadline_s / 4)
    multiple = last / before
    if earlier:
        multiple *= min(1.0, multiple / (before / earlier))
    return min(silent, last * multiple / (1 - multiple))


def _completed(history: History, after_s: float, to_s: float) -> float:
    """Completions in that span; a bucket counts by its middle."""
    return sum(count for bucket, count in history.processing.items() if after_s < middle_s(bucket) <= to_s)


def _placed(history: History) -> list[tuple[float, float]]:
    """The instants at which leases lapsed. Of a bucket in which a window is known to have ended, all did so there: the others,
    whose leases had been extended, or whose holder was heard of later, in its middle."""
    windows = {bucket_of_s(window_ms / 1000): window_ms / 1000 for window_ms in sorted(history.windows)}
    return [
        (windows.get(bucket, middle_s(bucket)), float(count))
        for bucket, count in sorted(history.lapses.items())
        if count > 0
    ]
