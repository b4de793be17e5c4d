"""A journal of as many events as wanted, as a busy server would have left it, and the share that comes after it.

    python -m bench.journal_events DIR [--events N] [--more SHARE] [--seed N] [--per-day N]

Fifty queues, busy by Zipf's law; processing times log-normal and bimodal; renewals, releases, crashes, deletes that come too
late, dead letters, redrives, purges, retention; a few events that reach the journal late. `DIR/journal` gets the first N
events, `DIR/later` the segments that continue it. The same options give the same bytes. It works an hour of the journal at
a time, so memory does not grow with N.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from bench.journal_lives import NONE, Events, Messages, SeqMaker, live
from bench.journal_segments import SegmentWriter
from bench.journal_world import DAY_MS, QUEUES, Ints, World, make_world

VERSION: Final = 2  # raise it when the same options come to mean other events
BEGIN_MS: Final = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp() * 1000)
_HOUR_MS: Final = DAY_MS // 24
_EVENTS_A_MESSAGE: Final = 3.6
_LATE_SHARE, _LATE_MS = 0.002, 120_000.0  # reach the journal later than they happened


@dataclass(frozen=True, slots=True)
class JournalPlan:
    """What to make."""

    events: int
    more: int  # events that follow
    seed: int = 4
    events_a_day: int = 10_000_000
    segment_events: int = 1_000_000
    hot: float = 0.0  # share of the messages that are of one queue; 0: as Zipf's law has it
    version: int = VERSION


def make_journal(plan: JournalPlan, folder: Path) -> bool:
    """Make `folder/journal` and `folder/later`, unless they are there by the same plan already; whether it did."""
    note = folder / "plan.json"
    if note.exists() and {"hot": 0.0, **json.loads(note.read_text())} == asdict(plan):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    world = make_world(plan.seed, plan.hot)
    journal_id = f"bench{plan.seed:04d}"
    writer = SegmentWriter(folder / "journal", world, journal_id, plan.segment_events)
    left, following = plan.events, False
    for events in hours(plan, world):
        while len(events["at"]) >= left:
            writer.write({name: column[:left] for name, column in events.items()})
            writer.close()
            if following:
                note.write_text(json.dumps(asdict(plan)) + "\n")
                return True
            events = {name: column[left:] for name, column in events.items()}
            later = folder / "later"
            writer = SegmentWriter(later, world, journal_id, plan.segment_events, writer.next_row)
            left, following = plan.more, True
        writer.write(events)
        left -= len(events["at"])
    raise AssertionError("the hours do not end")


def hours(plan: JournalPlan, world: World) -> Iterator[Events]:
    """The events of hour after hour, without end, in the order in which they reach the journal."""
    rng = np.random.default_rng([plan.seed, 2])
    seqs = SeqMaker()
    again: list[Messages] = []  # redriven, to be sent when their time comes
    pending: list[Events] = []  # their time has not come
    begin = BEGIN_MS
    while True:
        end = begin + _HOUR_MS
        due = _arrivals(plan, world, rng, begin, end)
        while len(due):
            events, redriven = live(world, rng, due, seqs)
            at = events["at"]
            late = np.where(rng.random(len(at)) < _LATE_SHARE, rng.exponential(_LATE_MS, len(at)), 0.0)
            events["recorded"] = at + late.astype(np.int64)
            pending.append(events)
            waiting = Messages.together([*again, redriven])
            now = waiting.sent_ms < end
            due, again = waiting.take(now), [waiting.take(~now)]
        known = {name: np.concatenate([part[name] for part in pending]) for name in pending[0]}
        come = known["recorded"] < end
        pending = [{name: column[~come] for name, column in known.items()}]
        order = np.argsort(known["recorded"][come], kind="stable")  # within a message, as it was told
        yield {name: column[come][order] for name, column in known.items()}
        begin = end


def _arrivals(plan: JournalPlan, world: World, rng: np.random.Generator, begin: int, end: int) -> Messages:
    """The messages of an hour; more of them by day than by night."""
    hour = begin // _HOUR_MS % 24
    rate = plan.events_a_day / _EVENTS_A_MESSAGE / 24 * (1 + 0.4 * np.sin((hour - 8) / 24 * 2 * np.pi))
    count = int(rng.poisson(rate))
    sent = np.sort(rng.integers(begin, end, count))
    counter = np.arange(count) - np.searchsorted(sent, sent)  # within the millisecond
    queue = rng.choice(QUEUES, count, p=world.share)
    types = world.types[queue]
    # The first types are the most usual.
    kind = np.where(types == 0, NONE, (rng.random(count) ** 2 * types).astype(np.int64))
    delayed = rng.random(count) < world.delayed[queue]
    body: Ints = np.minimum(np.exp(rng.normal(np.log(600), 1.0, count)), 262_144).astype(np.int64)
    return Messages(
        queue=queue,
        kind=kind,
        sent_ms=sent,
        seq=sent << 20 | counter,
        body_bytes=body,
        delay_ms=np.where(delayed, rng.integers(5, 61, count) * 1000, 0),
        poison=rng.random(count) < 0.003,
        origin=np.full(count, NONE),
    )


def main(arguments: list[str] | None = None) -> int:
    """Make a journal and say how long it took."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.journal_events",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--events", type=int, default=1_000_000, metavar="N", help="in the journal (1000000)")
    parser.add_argument("--more", type=float, default=0.01, metavar="SHARE", help="that follows (0.01)")
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument(
        "--per-day", type=int, default=10_000_000, metavar="N", help="events a day (10000000)"
    )
    given = parser.parse_args(arguments)
    begun_s = time.monotonic()
    plan = JournalPlan(given.events, max(1, int(given.events * given.more)), given.seed, given.per_day)
    made = make_journal(plan, given.folder)
    what = f"made in {time.monotonic() - begun_s:.1f} s" if made else "there already"
    print(f"{plan.events:,} events and {plan.more:,} more in {given.folder}: {what}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
