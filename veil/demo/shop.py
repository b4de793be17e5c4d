"""The demo's shop: four queues, the timeout that somebody guessed for each, how long their work really takes, and what the
pipeline must find about it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from veil import words
from veil.demo.stage import Stage

DEAD: Final = "shop-dead"
FULL_S: Final = 24.0  # for how long messages are sent
SECONDS_VARIABLE: Final = "DEMO_SECONDS"  # the same, told to the demo's processes
_LONG_SHORTENED_S: Final = 8
_USUAL_SHORTENED_S: Final = 2.5  # one in ten still takes far longer than three seconds
_RATE_SHORTENED: Final = 140.0  # a shortened demo is a test, and shares the machine with others


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoQueue:
    """One queue and its work. How long a handler takes is log-normal: mostly the usual time, now and then several times that."""

    name: str
    timeout_s: int
    guess: str  # how its timeout compares with its work, for the story
    usual_s: float  # the median
    spread: float  # standard deviation of the logarithm
    per_second: float
    share: float = 1.0  # of the sending time: what takes long must begin early
    renewed: bool = False  # handled by Veil's consumer, which renews leases; the others receive, work, delete
    poison_every: int = 0  # one in so many cannot be handled by anybody
    receives_max: int = 10
    kills_at_s: tuple[float, ...] = ()  # when one of its workers is killed

    def work_s(self, message: int, receive: int) -> float:
        """How long the work on this message takes this time: the same in every run of the demo."""
        random = Random(f"{self.name} {message} {receive}")  # noqa: S311 - no secret
        return random.lognormvariate(math.log(self.usual_s), self.spread)


QUEUES: Final = (
    DemoQueue(name="thumbnails", timeout_s=1, guess="too short: one in eight takes longer",
              usual_s=0.6, spread=0.45, per_second=280, kills_at_s=(9.0,)),
    DemoQueue(name="invoices", timeout_s=20, guess="too long: work takes a fifth of a second",
              usual_s=0.2, spread=0.3, per_second=280, kills_at_s=(3.0, 5.5)),
    DemoQueue(name="orders", timeout_s=2, guess="about right",
              usual_s=0.45, spread=0.32, per_second=280, kills_at_s=(7.0, 12.0), poison_every=300, receives_max=3),
    DemoQueue(name="videos", timeout_s=3, guess="far too short, but its consumer renews the leases",
              usual_s=4.0, spread=0.35, per_second=8, kills_at_s=(10.5,), share=0.75, renewed=True),
)  # fmt: skip


def the_queues(seconds: float) -> tuple[DemoQueue, ...]:
    """The queues of a demo that sends for so long; a shortened one cannot wait twenty seconds for a hidden message."""
    if seconds >= FULL_S:
        return QUEUES
    scale = seconds / FULL_S
    return tuple(
        replace(
            queue,
            timeout_s=min(queue.timeout_s, _LONG_SHORTENED_S),
            usual_s=min(queue.usual_s, _USUAL_SHORTENED_S),
            per_second=min(queue.per_second, _RATE_SHORTENED),
            poison_every=math.ceil(queue.poison_every * scale),
            kills_at_s=tuple(max(1.0, at_s * scale) for at_s in queue.kills_at_s[:1]),
        )
        for queue in QUEUES
    )


def queue_named(name: str) -> DemoQueue:
    """The queue of that name, as the demo that started this process has it."""
    queues = the_queues(float(os.environ.get(SECONDS_VARIABLE, FULL_S)))
    return next(queue for queue in queues if queue.name == name)


QueueSummary = dict[str, Any]  # one queue of the report's summary

_NEAR_S: Final = 1  # timeouts are whole seconds: one beside the recommended one is no mistake


def check_claims(
    stage: Stage,
    queues: tuple[DemoQueue, ...],
    sent: Mapping[str, int],
    outcomes: Mapping[str, Mapping[str, int]],
    summary: Mapping[str, Any],
) -> None:
    """Tell and check every claim: by what was acknowledged to the producers, what became of it, and the pipeline's summary."""
    ends = [outcomes.get(queue.name, {}) for queue in queues]
    total = sum(sent.values())
    deleted, dead = (sum(each.get(end, 0) for each in ends) for end in ("deleted", "dead_lettered"))
    poison = sum(sent[queue.name] // queue.poison_every for queue in queues if queue.poison_every)
    stage.claim(
        f"nothing is lost: of {total:,} messages sent {deleted:,} were handled and deleted, and the {dead} that "
        "nobody could read are dead letters",
        sum(sum(each.values()) for each in ends) == deleted + dead == total and dead == poison,
    )
    found = {each["name"]: each for each in summary["queues"]}
    for queue in queues:
        if queue.name not in found:
            stage.claim(f"{queue.name}: the pipeline knows the queue", False)
        else:
            text, holds = _CLAIMS[queue.name](queue, found[queue.name])
            stage.claim(f"{queue.name}: {text}", holds, is_timed=True)


def _too_short(queue: DemoQueue, found: QueueSummary) -> tuple[str, bool]:
    duplicates, wanted_s = found["duplicates"], found["recommended_timeout_s"]
    text = (
        f"{queue.timeout_s} s is too short: in {duplicates:,} of {found['leases']:,} cases a second worker began before the "
        f"first had ended; it should be {_seconds(wanted_s)}"
    )
    return text, duplicates > 0 and wanted_s is not None and wanted_s > queue.timeout_s


def _too_long(queue: DemoQueue, found: QueueSummary) -> tuple[str, bool]:
    wanted_s, hidden_s = found["recommended_timeout_s"], 3600 * (found["hidden_hours"] or 0.0)
    # Whether a silent holder is gone the server only says after a minute, and the demo is over by then.
    lost = found["crashes"] + found["unknown"]
    text = (
        f"{queue.timeout_s} s is too long: what killed workers held stayed hidden, {lost:,} messages for "
        f"{words.length(hidden_s)} in all; {_seconds(wanted_s)} would do"
    )
    return text, lost > 0 and wanted_s is not None and wanted_s < queue.timeout_s


def _right(queue: DemoQueue, found: QueueSummary) -> tuple[str, bool]:
    wanted_s = found["recommended_timeout_s"]
    text = f"{queue.timeout_s} s is about right: the data suggest {_seconds(wanted_s)}"
    return text, wanted_s is not None and abs(wanted_s - queue.timeout_s) <= _NEAR_S


def _renewed(queue: DemoQueue, found: QueueSummary) -> tuple[str, bool]:
    p90_s, twice = found["p90_s"], found["duplicates"]
    # None: fewer than nine in ten were seen to end at all, since the killed workers' leases say only "longer than this".
    long = "what was seen to end" if p90_s is None else words.length(p90_s)
    seen = "nothing was" if twice == 0 else f"{twice:,} messages were"
    text = (
        f"one in ten takes longer than {long} under a timeout of {queue.timeout_s} s, and {seen} done twice: Veil's consumer "
        "renews its leases"
    )
    return text, twice == 0 and (p90_s is None or p90_s > queue.timeout_s)


def _seconds(wanted_s: int | None) -> str:
    return "unknown" if wanted_s is None else f"{wanted_s} s"


_CLAIMS: Final = {"thumbnails": _too_short, "invoices": _too_long, "orders": _right, "videos": _renewed}
