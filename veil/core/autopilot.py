"""What the autopilot may do to a queue's timeout, what it decides, and when it takes a change back.

Everything here is a function of facts and an instant. The loop that gathers the facts and acts is `veil.pipeline.autopilot`;
the console reads the state that it leaves (`FILE`, beside the findings).

**After a change** the attempts that began under it are counted, each once it can be known how it ended. Two shares can show
that the change was wrong: more of the work outlasts a shorter timeout than was predicted, or so many more holders crash
under a longer one that the old one would have cost less. Each is held against a bound by a mixture of Wald's likelihood
ratios over several alternatives (Robbins 1970). As long as the true share is within the bound, this ratio ever exceeds
1/alpha with a chance of alpha at most, however often somebody looks (Ville 1939; Howard, Ramdas, McAuliffe and Sekhon
2021, Time-uniform, nonparametric, nonasymptotic confidence sequences). So it may be looked at with each new attempt.

**Drift**: the lengths of the latest work against those before, as two samples of octaves (the G-test, less Schwarz's penalty),
and only where the two differ by enough to matter: a daily rhythm is no change of the work's nature.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from veil import words
from veil.core.findings import CLEAR, FAR_TOO_MANY, NO_RENEWAL, NOT_ENOUGH, RENEWALS, Finding, WithPolicy
from veil.core.limits import VISIBILITY_MAX_S
from veil.core.text import length_s

FILE: Final = "autopilot.json"  # beside the tables
VERSION: Final = 1
TAG: Final = "veil:autopilot"  # a policy, such as "apply least=30s greatest=15m"
HELD_TAG: Final = "veil:autopilot.held"  # which autopilot may change the queue, and until when
RESUME_TAG: Final = "veil:autopilot.resumed"  # when it may go on, and from which timeout


DAY_MS: Final = 86_400_000
# To save so little is no reason for a change: the next day's evidence would ask for another.
_DEARER: Final = 1.1
# More changes than so many a week without a drift only where the timeout costs twice as much as it could.
_A_WEEK: Final = 3
_MUCH_DEARER: Final = 2.0
_WEEK_MS: Final = 7 * DAY_MS


# ---- policies


class Mode(StrEnum):
    """What the owner of a queue allows."""

    OFF = "off"
    ADVISE = "advise"
    APPLY = "apply"


class PolicyUnreadable(ValueError):
    """The text is no policy; says what was expected."""


class AutopilotPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the autopilot may do to one queue."""

    mode: Mode = Mode.OFF
    least_s: int = 1
    greatest_s: int = VISIBILITY_MAX_S
    step: float = 8.0  # by which factor one change may lengthen or shorten the timeout at most
    every_s: int = 6 * 3_600  # between two changes, at least
    rest_s: int = 24 * 3_600  # after a change that was taken back
    target: float = 1.0  # share of the work that may be done twice at most, though more would cost less
    renewal: str = NO_RENEWAL  # how the consumers renew


_EXPECTED: Final = (
    "off, advise or apply, then any of least=LENGTH greatest=LENGTH step=FACTOR every=LENGTH rest=LENGTH target=SHARE "
    "renewal=POLICY"
)


def read_policy(text: str) -> AutopilotPolicy:
    """A policy such as `apply least=30s greatest=15m step=4 every=6h target=0.001`; raises PolicyUnreadable."""
    mode, *pairs = text.split() or [""]
    if mode not in tuple(Mode):
        raise PolicyUnreadable(f"{text[:100]!r}: expected {_EXPECTED}")
    given: dict[str, object] = {"mode": Mode(mode)}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name in ("least", "greatest", "every", "rest"):
            seconds = length_s(value)
            if seconds is None or (name in ("least", "greatest") and not 1 <= seconds <= VISIBILITY_MAX_S):
                raise PolicyUnreadable(f"{pair!r}: expected a length such as 30s, 15m or 6h")
            given[f"{name}_s"] = seconds
        elif name in ("step", "target"):
            number = float(value) if re.fullmatch(r"[0-9]{0,6}\.?[0-9]{1,12}", value) else 0.0
            low, high = (1.1, 1_000.0) if name == "step" else (0.000_001, 0.5)
            if not low <= number <= high:
                raise PolicyUnreadable(f"{pair!r}: expected a number from {low:g} to {high:g}")
            given[name] = number
        elif name == "renewal" and value in RENEWALS:
            given[name] = value
        else:
            raise PolicyUnreadable(f"{pair!r}: expected {_EXPECTED}")
    policy = AutopilotPolicy(**given)  # type: ignore[arg-type]
    if policy.least_s > policy.greatest_s:
        raise PolicyUnreadable(f"{text[:100]!r}: expected least to be at most greatest")
    return policy


# ---- state and decisions


class DecisionKind(StrEnum):
    """What was decided."""

    CHANGE = "change"
    TAKE_BACK = "take back"
    KEEP = "keep"  # what followed a change is as predicted
    ADVISE = "advise"
    DRIFT = "drift"  # the nature of the work has changed: what came before is forgotten
    NOTHING = "nothing"


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What one timeout meant and what another was to mean, by the finding that a change was made on."""

    overrun_before: float  # share of the attempts
    overrun_after: float
    overrun_after_high: float
    recovery_before_s: float  # from a crash to the message being visible again
    recovery_after_s: float
    crashed: float  # share of the attempts whose holder was gone or silent
    work_s: float  # what one duplicate costs: half of the work takes no longer


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision with its evidence. Two with the same `code` say the same: only the first of them is told."""

    kind: DecisionKind
    code: str
    reason: str  # a sentence for people
    at_ms: int
    before_s: int | None = None  # the timeout
    after_s: int | None = None
    bound: str | None = None  # that kept it from what was recommended
    recommended_s: int | None = None
    attempts: int = 0  # that it rests on, half and 99 in 100 of which took no longer than this
    p50_s: float | None = None
    p99_s: float | None = None
    since: str | None = None
    until: str | None = None
    prediction: Prediction | None = None

    @property
    def told(self) -> str:
        """The reason with the bound that limited it and what it rests on."""
        told = self.reason if self.bound is None else f"{self.reason} (limited by {self.bound})"
        if self.attempts:
            told += f"; by {words.plural(self.attempts, 'attempt')}"
        if self.p50_s is not None:
            told += f", of which half took up to {words.length(self.p50_s)}"
        if self.p99_s is not None:
            told += f" and 99 % up to {words.length(self.p99_s)}"
        return told


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """A change whose consequences are still being looked at."""

    changed_ms: int
    before_s: int
    after_s: int
    prediction: Prediction
    until_ms: int


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A change that is written down before it is made, so that whoever comes after a crash knows of it."""

    id: str  # of its entry in the audit log
    decision: Decision
    rest_s: int = 24 * 3_600  # as the policy says


class PilotedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """What the autopilot remembers of one queue."""

    mode: str = Mode.OFF.value
    seen_s: int | None = None  # the timeout, as it was last seen or set
    memory_ms: int = 0  # what was sent before does not count any more
    drift_ms: int = 0  # up to where the work was looked through for a drift
    found_ms: int = 0  # when the last finding was made
    changed_ms: int = 0  # the last change of its own
    changes_ms: tuple[int, ...] = ()  # the last ones since the work changed
    resting_ms: int = 0  # nothing is changed until then
    silenced_ms: int | None = None  # since a person changed the timeout
    watch: Watch | None = None
    intent: Intent | None = None
    last: Decision | None = None  # as told
    change: Decision | None = None  # the last change or return, for its command of undoing
    advised: dict[str, str] = {}  # what a timeout cannot mend: a sentence for each kind of advice
    advised_ms: int = 0  # when that was last told
    resumed: str | None = None  # the tag RESUME_TAG, as it was last seen


class AutopilotState(msgspec.Struct, frozen=True, kw_only=True):
    """All that the autopilot remembers; the console shows it."""

    version: int = VERSION
    region: str = ""  # of the queues
    account: str = ""
    owner: str = ""  # names this state in the tags of queues, so that two autopilots know of each other
    looked_ms: int = 0
    lost_events: float = 0.0  # as the server counted them
    problem: str | None = None  # why nothing is done at all
    queues: dict[str, PilotedQueue] = {}

    def expect(self, region: str, account: str) -> None:
        """See that the state tells of the queues of this region and account, or of none yet; raises StateUnreadable."""
        if self.account and (self.region, self.account) != (region, account):
            raise StateUnreadable(
                f"{FILE} tells of the queues of account {self.account} in {self.region}: expected account {account} in {region}"
            )


def encode_state(state: AutopilotState) -> bytes:
    return msgspec.json.encode(state)


class StateUnreadable(ValueError):
    """The text is not what the autopilot writes, is of a newer version, or tells of other queues."""


def decode_state(text: bytes) -> AutopilotState:
    try:
        state = msgspec.json.decode(text, type=AutopilotState)
    except msgspec.DecodeError as error:
        raise StateUnreadable(f"{FILE} is not readable: {error}") from None
    if state.version > VERSION:
        raise StateUnreadable(f"{FILE} has version {state.version}: expected {VERSION} at most")
    return state


# ---- the decision

UNSETTLED: Final = ("not enough evidence", "not clear")  # codes: a few attempts more may say more
RIGHT: Final = "right"


def decide(
    policy: AutopilotPolicy, finding: Finding | None, state: PilotedQueue, now_s: int, now_ms: int
) -> Decision:
    """What to do about a queue whose timeout is `now_s`, by what the attempts in its memory say.

    Longer is decided as soon as the evidence is clear. Shorter only where the memory covers a whole day: work is quick in
    the small hours, and quick again when an outage ends.
    """

    def nothing(code: str, reason: str) -> Decision:
        return _decision(DecisionKind.NOTHING, code, reason, finding, now_s, now_ms)

    if finding is None or finding.recommended_timeout_s is None or finding.certainty == NOT_ENOUGH:
        why = "no attempts were seen yet" if finding is None else finding.missing or finding.reason
        return nothing("not enough evidence", f"there is not enough evidence: {why}")
    seen_s = finding.present_timeout_s
    if seen_s is not None and round(seen_s) != now_s and now_ms - state.changed_ms > 3_600_000:
        return nothing(
            "timeout of consumers",
            f"attempts begin with {words.length(seen_s)} although the queue's timeout is {words.length(now_s)}: its consumers "
            "ask for a timeout of their own",
        )
    wanted_s = finding.recommended_timeout_s
    now, wanted = _means(finding, now_s), _means(finding, wanted_s)
    is_within = now.duplicate_chance <= min(policy.target, FAR_TOO_MANY) or now_s >= wanted_s
    if is_within and finding.cost_s(now) <= _DEARER * finding.cost_s(wanted):
        return nothing(RIGHT, f"{words.length(now_s)} is right; {words.length(wanted_s)} is recommended")
    lately = [each for each in state.changes_ms if now_ms - each < _WEEK_MS]
    if is_within and len(lately) >= _A_WEEK and finding.cost_s(now) <= _MUCH_DEARER * finding.cost_s(wanted):
        return nothing(
            "three a week",
            f"{words.length(wanted_s)} would cost a little less; that is not worth a fourth change in a week",
        )
    if finding.certainty != CLEAR:
        return nothing("not clear", f"the evidence is not clear yet: {finding.missing or finding.reason}")
    after_s, bound = _bounded(policy, wanted_s, now_s)
    if after_s == now_s or (after_s > now_s) != (wanted_s > now_s) or now_s / 1.1 <= after_s <= now_s * 1.1:
        return nothing(
            f"bound {bound}",
            f"{words.length(wanted_s)} is recommended, and {bound} does not allow a step towards it",
        )
    if after_s < now_s and now_ms - state.memory_ms < DAY_MS:
        return nothing(
            "not a day",
            f"{words.length(wanted_s)} is recommended; to shorten the timeout a whole day of this work must have been seen",
        )
    if now_ms < state.resting_ms:
        return nothing("resting", "the queue rests, since the last change was taken back")
    if now_ms - state.changed_ms < policy.every_s * 1000:
        return nothing(
            "one at a time",
            f"{words.length(after_s)} is next; one change in {words.length(policy.every_s)} is allowed",
        )
    prediction = prediction_of(finding, now_s, after_s)
    before, after = words.chance(prediction.overrun_before), words.chance(prediction.overrun_after)
    means = (
        f"attempts that outlast the timeout {before} to {after}, hidden after a crash "
        f"{words.length(prediction.recovery_before_s)} to {words.length(prediction.recovery_after_s)}"
    )
    if after_s > now_s and before == after:
        means = finding.reason  # how long the work takes is what the change is to show
    said = f"{words.length(now_s)} to {words.length(after_s)}: {means}"
    kind = DecisionKind.CHANGE if policy.mode is Mode.APPLY else DecisionKind.ADVISE
    told = _decision(kind, f"{kind} {after_s}", said, finding, now_s, now_ms)
    return msgspec.structs.replace(told, after_s=after_s, bound=bound, prediction=prediction)


def _bounded(policy: AutopilotPolicy, wanted_s: int, now_s: int) -> tuple[int, str | None]:
    """The timeout to set, and which bound made it another than the wanted one."""
    after_s, bound = wanted_s, None
    base_s = max(now_s, 1)
    if after_s > base_s * policy.step:
        after_s, bound = int(base_s * policy.step), f"step={policy.step:g}"
    elif after_s < base_s / policy.step:
        after_s, bound = math.ceil(base_s / policy.step), f"step={policy.step:g}"
    if after_s > policy.greatest_s:
        after_s, bound = policy.greatest_s, f"greatest={policy.greatest_s}s"
    elif after_s < policy.least_s:
        after_s, bound = policy.least_s, f"least={policy.least_s}s"
    return after_s, bound


def reachable_s(policy: AutopilotPolicy, now_s: int) -> set[int]:
    """The present timeout, and where a bound may stop a change of it: what each would mean has to be known."""
    ends = (now_s, _bounded(policy, VISIBILITY_MAX_S, now_s)[0], _bounded(policy, 1, now_s)[0])
    return {max(each, 1) for each in ends}


def _decision(
    kind: DecisionKind, code: str, reason: str, finding: Finding | None, now_s: int, now_ms: int
) -> Decision:
    told = Decision(kind=kind, code=code, reason=reason, at_ms=now_ms, before_s=now_s)
    if finding is None:
        return told
    same = {name: getattr(finding, name) for name in ("p50_s", "p99_s", "since", "until")}
    return msgspec.structs.replace(
        told, recommended_s=finding.recommended_timeout_s, attempts=finding.leases, **same
    )


def prediction_of(finding: Finding, before_s: int, after_s: int) -> Prediction:
    """What one timeout means and what another would, by a finding."""
    before, after = _means(finding, before_s), _means(finding, after_s)
    return Prediction(
        overrun_before=before.duplicate_chance,
        overrun_after=after.duplicate_chance,
        overrun_after_high=after.duplicate_chance_high,
        recovery_before_s=before.recovery_s,
        recovery_after_s=after.recovery_s,
        crashed=max((finding.crashes + finding.unknown) / max(finding.leases, 1), finding.crash_share),
        work_s=finding.p50_s or finding.mean_s or 1.0,
    )


def _means(finding: Finding, timeout_s: int) -> WithPolicy:
    """What a timeout means under the finding's policy; between two candidates the worse of each."""
    rows = {each.timeout_s: {one.policy: one for one in each.policies} for each in finding.candidates}
    below = rows[max((each for each in rows if each <= timeout_s), default=min(rows))]
    above = rows[min((each for each in rows if each >= timeout_s), default=max(rows))]
    recovery_s = above.get(finding.policy, above[NO_RENEWAL]).recovery_s
    return msgspec.structs.replace(below.get(finding.policy, below[NO_RENEWAL]), recovery_s=recovery_s)


# ---- what followed a change


class Attempts(msgspec.Struct, frozen=True):
    """Attempts that began under a changed timeout, each of which has ended or could have."""

    count: int = 0
    overran: int = 0
    crashed: int = 0  # gone, or silent


ALPHA: Final = 0.001  # the chance of taking back a change that was right
_TIMES_WORSE: Final = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 300.0)
_TIMES_TOLD: Final = 3.0  # better than this is good enough to be kept


def evidence_against(bound: float, count: int, hits: int) -> float:
    """The logarithm of the odds that a share is above the bound: `hits` of `count` under several shares beyond it, against
    the bound itself."""
    if count <= 0 or not 0 < bound < 1:
        return 0.0
    shares = [min(bound * times, (1 + bound) / 2) for times in _TIMES_WORSE]
    logs = [
        hits * math.log(each / bound) + (count - hits) * math.log((1 - each) / (1 - bound)) for each in shares
    ]
    top = max(logs)
    return top + math.log(sum(math.exp(each - top) for each in logs) / len(logs))


def judge(watch: Watch, target: float, seen: Attempts, now_ms: int) -> tuple[DecisionKind | None, str]:
    """Whether to keep a change or to take it back, by the attempts since (None: that is still open); and why, for people."""
    bound, hits, what = _watched(watch, target, seen)
    share = f"{hits:,} of {seen.count:,} attempts {what}, predicted were {words.chance(bound)} at most"
    if evidence_against(bound, seen.count, hits) >= math.log(1 / ALPHA):
        return DecisionKind.TAKE_BACK, share
    # The other way round: were the share three times the bound, so few would be unlikely.
    worse = min(bound * _TIMES_TOLD, 0.9)
    for_it = hits * math.log(bound / worse) + (seen.count - hits) * math.log((1 - bound) / (1 - worse))
    if for_it >= math.log(20):
        return DecisionKind.KEEP, share
    if now_ms >= watch.until_ms:
        return (
            DecisionKind.KEEP,
            f"{share}; that is all that could be seen in time, and nothing speaks against it",
        )
    return None, share


def _watched(watch: Watch, target: float, seen: Attempts) -> tuple[float, int, str]:
    """The share that would show that the change was wrong: the bound that it must not exceed, and how many it was."""
    told = watch.prediction
    crashed = max(1.5 * told.crashed, 1e-4)
    if watch.after_s < watch.before_s:
        # From this share of overruns on, the old timeout cost less; where fewer were predicted, that leaves some room, but not
        # beyond what is too many at any cost: what a duplicate costs was part of the prediction.
        even = (
            told.overrun_before
            + told.crashed * (told.recovery_before_s - told.recovery_after_s) / told.work_s
        )
        bound = max(told.overrun_after_high, min(even, target, FAR_TOO_MANY)) + crashed
        return min(bound, 0.9), seen.overran + seen.crashed, "outlasted the timeout or fell silent"
    # A longer timeout cannot cause overruns; it makes crashes dearer. From this share of crashes on, the old one cost less.
    gained_s = max(told.overrun_before - told.overrun_after, 0.0) * told.work_s
    even = gained_s / max(told.recovery_after_s - told.recovery_before_s, 1e-9)
    return min(max(crashed, even), 0.9), seen.crashed, "crashed or fell silent"


# ---- drift

_DIFFERENCE_LEAST: Final = 0.1  # nats an attempt; work that takes twice as long differs by about 0.3
_SURE: Final = math.log(1e6)
_BUCKETS_A_BIN: Final = 16  # an octave


def drift(before: Mapping[int, int], latest: Mapping[int, int]) -> bool:
    """Whether the latest work is of another length than the work before, by the buckets of their histograms."""
    old, new = _octaves(before), _octaves(latest)
    count_old, count_new = old.total(), new.total()
    if count_old < 100 or count_new < 30:
        return False
    gain = 0.0
    both = count_old + count_new
    for each in old.keys() | new.keys():
        share = (old[each] + new[each]) / both
        for counts, count in ((old, count_old), (new, count_new)):
            if counts[each]:
                gain += counts[each] * math.log(counts[each] / count / share)
    bins = len(old.keys() | new.keys())
    sure = gain - (bins - 1) / 2 * math.log(min(count_new, count_old)) >= _SURE
    return sure and gain / min(count_new, count_old) >= _DIFFERENCE_LEAST


def tail_drift(bound: float, count: int, beyond: int) -> bool:
    """Whether more of the latest work outlasts the timeout than the bound says."""
    return beyond > 2 * bound * count and evidence_against(bound, count, beyond) >= _SURE


def _octaves(buckets: Mapping[int, int]) -> Counter[int]:
    found: Counter[int] = Counter()
    for bucket, count in buckets.items():
        if count > 0:
            found[bucket // _BUCKETS_A_BIN] += count
    return found
