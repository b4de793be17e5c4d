"""What the pipeline found about the timeout of a queue: the answer of `veil pipeline timeouts`, read by people, the report
and the console alike (as JSON, so that none of them needs Spark)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from veil import words
from veil.core.limits import VISIBILITY_MAX_S
from veil.core.queue import QueueKey

VERSION: Final = 1
FILE: Final = "timeouts.json"  # beside the tables
NO_RENEWAL: Final = "none"
RENEWALS: Final = (NO_RENEWAL, "buffered", "heartbeat", "adaptive")  # how consumers may renew
CLEAR: Final = "clear"  # the upper end of the confidence interval is within the target too
# The estimate is, its upper end is not, or it rests on an assumption that `missing` names.
LIKELY: Final = "likely"
NOT_ENOUGH: Final = "not enough evidence"
FAR_TOO_MANY: Final = 0.1  # of the work is done twice: longer is right, whatever is known of the cost

# What to think of a timeout.
TOO_SHORT: Final = "too short"
TOO_LONG: Final = "too long"
RIGHT: Final = "right"
UNKNOWN: Final = "unknown"
UNSET: Final = "not compared"
# A timeout a little beside the recommended one is no mistake: the curve is known to a few per cent, and waiting is only
# as bad as it is long. A short one costs work done twice, so less is forgiven there.
_SHORT: Final = 0.95
_LONG: Final = 1.25
_WORTH_SHOWING: Final = 4  # times the timeouts in question: beyond, there is only more delay


class CurvePoint(msgspec.Struct, frozen=True):
    """The chance that work takes longer than `after_s`, with its confidence interval."""

    after_s: float
    survival: float
    low: float
    high: float
    at_risk: int


class WithPolicy(msgspec.Struct, frozen=True):
    """What a timeout means under one renewal policy (`none`: without renewal)."""

    policy: str
    duplicate_chance: float
    duplicate_chance_high: float  # the upper end of its confidence interval
    recovery_s: float  # expected, from a crash to the message being visible again
    calls_per_message: float  # extensions


class Candidate(msgspec.Struct, frozen=True):
    """One timeout that the queue could have."""

    timeout_s: int
    policies: list[WithPolicy]  # `none` first


class Replay(msgspec.Struct, frozen=True):
    """What the recommended timeout would have changed over the past that was analysed."""

    duplicates_then: int
    duplicates_with_recommended: float
    # Spent waiting for leases to lapse that crashed, or lapsed nobody knows why (`unknown`).
    hidden_hours_then: float
    hidden_hours_with_recommended: float
    # Of `hidden_hours_then`; None: told by a Veil that did not tell them apart.
    hidden_hours_crashed: float | None = None

    @property
    def avoidable(self) -> float:
        """Duplicates that the recommended timeout would have spared."""
        return max(0.0, self.duplicates_then - self.duplicates_with_recommended)


def told_names(keys: Iterable[QueueKey]) -> dict[QueueKey, str]:
    """What to call each of these queues: by its name, and where several have that name, with its account and region."""
    found = set(keys)
    known = Counter(key.name for key in found)
    return {
        key: key.name if known[key.name] == 1 else f"{key.name} ({key.account} in {key.region})"
        for key in found
    }


class Finding(msgspec.Struct, frozen=True):
    """One queue, or one message type of it (`message_type` None: all types together)."""

    region: str
    account: str
    queue: str
    message_type: str | None
    since: str | None  # the hours analysed, ISO 8601, UTC
    until: str | None
    leases: int
    completed: int  # observations of the whole processing time
    censored: int
    duplicates: int
    crashes: int  # attempts whose holder was gone at the deadline
    present_timeout_s: float | None
    recommended_timeout_s: int | None  # None: not enough evidence
    policy: str  # the renewal policy that the recommendation is for
    certainty: str  # CLEAR, LIKELY or NOT_ENOUGH
    reason: str  # one sentence for people
    missing: str | None  # what evidence is missing, in one sentence
    mean_s: float | None  # of the completed ones only: what a naive look says
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    p999_s: float | None  # None where the curve does not reach that far down
    curve: list[CurvePoint]
    candidates: list[Candidate]
    replay: Replay | None
    failed: int = 0  # attempts; their handler raised
    given_back: int = 0
    unknown: int = 0  # lapsed, and nothing tells whether their holder was gone or at work
    failed_s: float = 0.0  # of work that failed attempts took
    messages_completed: int = 0
    crash_share: float = 0.0  # of the attempts: to be expected, also where none has crashed yet

    @property
    def key(self) -> QueueKey:
        """Whose queue it is."""
        return QueueKey(self.region, self.account, self.queue)

    def cost_s(self, means: WithPolicy) -> float:
        """What an attempt costs with a timeout that means this: what is done twice, each as long as half of the work takes, and
        the time that its message stays hidden after a crash."""
        work_s = self.p50_s or self.mean_s or 1.0
        return means.duplicate_chance * work_s + self.crash_share * means.recovery_s

    def verdict(self, present_s: float | None = None) -> str:
        """What to think of the present timeout, or of the one given: one of the words above."""
        present_s = self.present_timeout_s if present_s is None else present_s
        if self.recommended_timeout_s is None:
            return UNKNOWN
        if present_s is None:
            return UNSET
        if present_s < self.recommended_timeout_s * _SHORT:
            return TOO_SHORT
        return TOO_LONG if present_s > self.recommended_timeout_s * _LONG else RIGHT

    def why_not(self, timeout_s: int | None) -> str | None:
        """Why the recommended timeout cannot be set on the queue, which has this one now (None: it is gone); None: it can."""
        after_s, analysed_s = self.recommended_timeout_s, self.present_timeout_s
        if after_s is None or self.certainty == NOT_ENOUGH:
            return f"not enough evidence: {self.missing or self.reason}"
        if not 0 <= after_s <= VISIBILITY_MAX_S:
            return f"recommended_timeout_s={after_s}: expected 0 to {VISIBILITY_MAX_S}"
        if timeout_s is None:
            return "the queue no longer exists"
        if timeout_s == after_s or analysed_s is None or round(analysed_s) == timeout_s:
            return None
        return (
            f"its leases began with {words.length(analysed_s)} and its timeout is {words.length(timeout_s)}: either it was "
            "changed since (run the pipeline again), or its consumers ask for a timeout of their own"
        )

    def worth_showing(self, present_s: float | None = None) -> list[Candidate]:
        """The candidates up to a few times the timeouts in question."""
        if self.recommended_timeout_s is None:
            return self.candidates
        longest_s = max(present_s or self.present_timeout_s or 0, self.recommended_timeout_s) * _WORTH_SHOWING
        near = [each for each in self.candidates if each.timeout_s <= longest_s]
        return near if len(near) >= 3 else self.candidates

    @property
    def hidden_hours(self) -> float | None:
        """Hours that messages spent waiting for leases to lapse whose holders had crashed, or may have."""
        return None if self.replay is None else self.replay.hidden_hours_then

    @property
    def past_cost_s(self) -> float:
        """What the present timeout has cost: the work done twice, and the time that messages waited hidden after crashes and
        after lapses that may have been crashes."""
        work_s = self.p50_s or self.mean_s or self.present_timeout_s or 1.0
        return self.duplicates * work_s + (self.hidden_hours or 0.0) * 3600


def after_losses(findings: Sequence[Finding], *, with_hours: bool = True) -> str:
    """What the messages of these stayed hidden after: crashes, lapses of which nobody knows whether the holder had crashed, or
    both, then with the hours of each. Of queues without enough evidence no hours are known."""
    known = [each for each in findings if each.replay is not None] or findings
    if not any(each.unknown for each in known):
        return "after crashes"
    if not any(each.crashes for each in known):
        return "after unexplained lapses"
    crashed_h = unknown_h = 0.0
    for each in known:
        if each.replay is None or each.replay.hidden_hours_crashed is None or not with_hours:
            return "after crashes and unexplained lapses"
        crashed_h += each.replay.hidden_hours_crashed
        unknown_h += each.replay.hidden_hours_then - each.replay.hidden_hours_crashed
    return f"after crashes ({words.hours(crashed_h)}) and unexplained lapses ({words.hours(unknown_h)})"


class QueueFindings(NamedTuple):
    """A queue's finding and those of its message types, dearest first."""

    whole: Finding
    types: list[Finding]


class Findings(msgspec.Struct, frozen=True):
    """All that one run of `veil pipeline timeouts` found."""

    version: int
    made_at: str
    target_duplicates: float
    findings: list[Finding]  # by queue; each queue as a whole first, then its message types
    policy: str = NO_RENEWAL  # the renewal policy that the recommendations are for

    def names(self) -> dict[QueueKey, str]:
        """What to call each of the queues."""
        return told_names(each.key for each in self.findings)

    def by_cost(self) -> list[QueueFindings]:
        """The findings by queue, the dearest first; among equals those that there is something to do about."""
        grouped: dict[QueueKey, list[Finding]] = {}
        for finding in self.findings:
            grouped.setdefault(finding.key, []).append(finding)
        queues = []
        for group in grouped.values():
            # A queue whose messages all bear types may come without a finding of its own; the largest speaks for it.
            whole = max(group, key=lambda each: (each.message_type is None, each.leases))
            types = [each for each in group if each is not whole]
            queues.append(QueueFindings(whole, sorted(types, key=lambda each: -each.past_cost_s)))
        order = (TOO_SHORT, TOO_LONG, UNSET, RIGHT, UNKNOWN)
        return sorted(
            queues,
            key=lambda each: (-each.whole.past_cost_s, order.index(each.whole.verdict()), each.whole.queue),
        )


class _Listed(msgspec.Struct, frozen=True):
    version: int
    made_at: str
    target_duplicates: float
    findings: list[msgspec.Raw]
    policy: str = NO_RENEWAL


_FINDING: Final = msgspec.json.Decoder(Finding)


class FindingsUnreadable(ValueError):
    """The text is not what `veil pipeline timeouts` writes, or is of a newer version."""


def encode(findings: Findings) -> bytes:
    return msgspec.json.encode(findings)


def decode(text: bytes) -> Findings:
    """The findings in that JSON; what a newer writer has added is passed over, a newer version is refused."""
    try:
        listed = msgspec.json.decode(text, type=_Listed)
        # One by one: a server that reads thousands of them in a thread has others to serve meanwhile.
        findings = Findings(
            listed.version,
            listed.made_at,
            listed.target_duplicates,
            [_FINDING.decode(each) for each in listed.findings],
            listed.policy,
        )
    except msgspec.DecodeError as error:
        raise FindingsUnreadable(f"{FILE} is not readable: {error}") from None
    if findings.version > VERSION:
        raise FindingsUnreadable(f"{FILE} has version {findings.version}: expected {VERSION} at most")
    return findings
