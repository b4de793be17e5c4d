"""The loop: keep the tables fresh, look at each queue that allows it, write down what is intended, do it, and audit it.

**Killed anywhere, nothing is doubled or lost.** A change is first an intent in the state, then an entry of the audit log, then
a call, then the end of the entry, then the state of a change that is watched. Whoever starts next finds the intent and the
queue's timeout, and finishes what was begun: a timeout that is as intended was changed; one that is as before was not, and is
decided anew.

**Two of them.** One lock for those who share tables; a tag on each queue (`HELD_TAG`) for those who do not. A tag that was just
written is believed only on the next look, when a second writer would have shown itself.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import replace

from veil.core.autopilot import (
    DAY_MS,
    FILE,
    HELD_TAG,
    RESUME_TAG,
    TAG,
    AutopilotPolicy,
    AutopilotState,
    Decision,
    DecisionKind,
    Intent,
    Mode,
    PilotedQueue,
    PolicyUnreadable,
    decode_state,
    encode_state,
    read_policy,
)
from veil.core.errors import VeilError
from veil.core.findings import Findings
from veil.pipeline.autopilot.evidence import TablesEvidence, advice_on
from veil.pipeline.autopilot.pilot import Memory, changed, goal_of, is_due, look
from veil.pipeline.lifecycles.run import LifecyclesRun
from veil.pipeline.lifecycles.store import Manifest, load_manifest
from veil.pipeline.lifecycles.tables import HOUR_MS
from veil.pipeline.timeouts.history import Work
from veil.pipeline.timeouts.recommendation import Schedule, Timelines
from veil.pipeline.timeouts.run import Goal

if TYPE_CHECKING:
    from veil.journal.storage import Storage

LOCK: Final = "_autopilot_lock"
STALE_MS: Final = 900_000  # what is known of the queues is older than this: nothing is changed
_STEP_MS: Final = 60_000  # a clock that disagrees by more has been set
_HELD_MS: Final = 3_600_000
DONE, FAILED = "done", "failed"  # how an entry of the audit log ends


class QueueCalls(Protocol):
    """The queues, by name, over the API."""

    region: str

    def account(self, queue: str) -> str: ...
    def names(self) -> Iterable[str]: ...
    def tags(self, queue: str) -> Mapping[str, str]: ...
    def tag(self, queue: str, name: str, value: str) -> None: ...
    def timeout_s(self, queue: str) -> int | None:
        """None: there is no such queue."""
        ...

    def set_timeout(self, queue: str, timeout_s: int) -> None: ...


class AuditLog(Protocol):
    """Where every decision is recorded, synced before it returns."""

    def asked(self, entry_id: str, queue: str, decision: Decision, outcome: str | None = None) -> None: ...
    def ended(self, entry_id: str, outcome: str, detail: str) -> None: ...
    def known(self, entry_id: str) -> tuple[bool, bool]:
        """Whether the entry is there, and whether its end is."""
        ...


@dataclass(frozen=True, slots=True)
class JournalHealth:
    """What the server says of its journal: how long the oldest event has waited, how many it could not record, and what time
    it is by the clock of the events, which no step of the wall clock reaches (None: they have the wall clock's)."""

    waiting_s: float
    lost_events: float
    now_ms: int | None = None


@dataclass(kw_only=True)
class Autopilot:
    """Everything that it needs is handed in; `look_at_all` is one turn of the loop."""

    tables: Storage
    queues: QueueCalls
    audit: AuditLog
    refresh: Callable[[], LifecyclesRun | None]
    health: Callable[[], JournalHealth | str | None]
    now_ms: Callable[[], int]
    default: AutopilotPolicy = field(default_factory=AutopilotPolicy)
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    find_all: Callable[[Mapping[Work, Goal]], Findings | None] = lambda goals: None
    tell: Callable[[str, PilotedQueue, Decision], None] = lambda queue, state, decision: None
    on_step: Callable[[str], None] = lambda step: None
    has_claimed: bool = False  # a queue, by the last look: the next one may change it

    def __post_init__(self) -> None:
        self._timelines = Timelines(self.schedules)
        self._evidence = TablesEvidence(self.tables)
        self._findings: Findings | None = None
        self._found_ms = 0
        try:
            self.state = decode_state(self.tables.read(FILE))
        except FileNotFoundError:
            self.state = AutopilotState()
        self.state = replace(self.state, owner=self.state.owner or secrets.token_hex(6))

    def look_at_all(self) -> AutopilotState:
        """One turn: finish what a predecessor began, learn what is new, and decide about each queue."""
        self.has_claimed = False
        health = self.health()
        now_ms = (health.now_ms if isinstance(health, JournalHealth) else None) or self.now_ms()
        names = list(self.queues.names())
        account = self.queues.account(names[0]) if names else self.state.account
        self.state.expect(self.queues.region, account)
        self._recover()
        policies = self._policies(names, now_ms)
        problem = self._learn(policies, health, now_ms)
        manifest = load_manifest(self.tables)
        memories = self._evidence.memories(manifest, list(policies), now_ms)
        self.state = replace(
            self.state, looked_ms=now_ms, problem=problem, region=self.queues.region, account=account,
            queues={name: each for name, each in self.state.queues.items() if name in policies or each.intent},
        )  # fmt: skip
        for name, policy in policies.items():
            if policy.mode is Mode.OFF:
                continue
            work = self._work(name)
            self._look_at(name, policy, work, memories.get(work, Memory()), manifest, now_ms)
        self._save()
        return self.state

    # ---- one queue

    def _work(self, name: str) -> Work:
        """Whose history counts: others may have queues of the same names."""
        return Work(self.queues.region, self.queues.account(name), name, "")

    def _look_at(
        self, name: str, policy: AutopilotPolicy, work: Work, memory: Memory, manifest: Manifest, now_ms: int
    ) -> None:
        state = self.state.queues.get(name, PilotedQueue())
        timeout_s = self.queues.timeout_s(name)
        if timeout_s is None:
            return
        if self.state.problem is not None:
            if state.seen_s in (None, timeout_s):
                told = Decision(
                    kind=DecisionKind.NOTHING, code="findings", at_ms=now_ms, before_s=timeout_s,
                    reason=f"the findings cannot be relied on: {self.state.problem}",
                )  # fmt: skip
                self._told(name, replace(state, mode=policy.mode.value, seen_s=timeout_s), [told])
            return
        state, decisions = look(
            policy, work, memory, state, timeout_s,
            attempts=lambda watch: self._evidence.attempts(manifest, work, watch), newest_ms=manifest.newest_ms or 0,
            now_ms=now_ms, timelines=self._timelines, due=is_due(state, now_ms),
        )  # fmt: skip
        state = self._advised(name, policy, state, now_ms)
        act = (
            decisions[-1]
            if decisions and decisions[-1].kind in (DecisionKind.CHANGE, DecisionKind.TAKE_BACK)
            else None
        )
        if act is None:
            self._told(name, state, decisions)
            return
        self._told(name, state, decisions[:-1])
        state = self.state.queues[name]
        holder = self._holder(name, now_ms)
        if holder is None:  # claimed just now: the next look decides again, and may act
            self._put(name, replace(state, found_ms=0))
        elif holder != self.state.owner:
            reason = f"another autopilot ({holder}) has this queue"
            other = replace(
                act, kind=DecisionKind.NOTHING, code=f"held {holder}", reason=reason, after_s=None
            )
            self._told(name, state, [other])
        else:
            self._make(name, policy, replace(state, last=act), act)

    def _make(self, name: str, policy: AutopilotPolicy, state: PilotedQueue, decision: Decision) -> None:
        assert decision.after_s is not None
        intent = Intent(id=secrets.token_hex(8), decision=decision, rest_s=policy.rest_s)
        self._keep(name, replace(state, intent=intent))
        self.on_step("intended")
        self.audit.asked(intent.id, name, decision)
        self.on_step("asked")
        # A person's change always wins; this is the last look before ours.
        if self.queues.timeout_s(name) != decision.before_s:
            self.audit.ended(intent.id, FAILED, "somebody else changed the timeout in the same moment")
            self._keep(name, state)
            return
        self.queues.set_timeout(name, decision.after_s)
        self.on_step("set")
        self.audit.ended(intent.id, DONE, decision.told)
        self.on_step("ended")
        self._keep(name, changed(state, decision, policy.rest_s))
        self.on_step("kept")
        self.tell(name, self.state.queues[name], decision)

    def _recover(self) -> None:
        """Finish the changes that somebody was killed in."""
        for name, state in list(self.state.queues.items()):
            if state.intent is None:
                continue
            intent, decision = state.intent, state.intent.decision
            timeout_s = self.queues.timeout_s(name)
            is_asked, is_ended = self.audit.known(intent.id)
            is_made = timeout_s == decision.after_s
            if is_made and not is_asked:
                self.audit.asked(intent.id, name, decision)
            if (is_asked or is_made) and not is_ended:
                outcome = (DONE, decision.told) if is_made else (FAILED, "stopped before the change was made")
                self.audit.ended(intent.id, *outcome)
            self.on_step("recovered")
            cleared = replace(state, intent=None, found_ms=0)
            self._keep(name, changed(cleared, decision, intent.rest_s) if is_made else cleared)

    def _told(self, name: str, state: PilotedQueue, decisions: list[Decision]) -> None:
        """Record what was decided: what happened always, that nothing is to be done once for each reason."""
        for each in decisions:
            last = state.last
            if last is None or last.code != each.code or each.kind in (DecisionKind.KEEP, DecisionKind.DRIFT):
                self.audit.asked(secrets.token_hex(8), name, each, DONE)
                self.tell(name, state, each)
            elif each.kind is DecisionKind.ADVISE and each.at_ms - last.at_ms >= DAY_MS:
                self.tell(name, state, each)  # a line a day
            else:
                each = replace(each, at_ms=last.at_ms)
            state = replace(state, last=each)
        self._put(name, state)

    def _advised(self, name: str, policy: AutopilotPolicy, state: PilotedQueue, now_ms: int) -> PilotedQueue:
        """The state with what a timeout cannot mend: recorded when it is new, and told once a day."""
        key = (self.queues.region, self.queues.account(name), name)
        found = self._findings.findings if self._findings else []
        own = [each for each in found if each.key == key]
        whole = next((each for each in own if each.message_type is None), None)
        if whole is None:
            return state
        advised = advice_on(whole, [each for each in own if each is not whole], policy)
        is_daily = now_ms - state.advised_ms >= DAY_MS
        for subject, sentence in advised.items():
            told = Decision(
                kind=DecisionKind.ADVISE, code=f"advice on {subject}", reason=sentence, at_ms=now_ms
            )
            if subject not in state.advised:
                self.audit.asked(secrets.token_hex(8), name, told, DONE)
            if subject not in state.advised or is_daily:
                self.tell(name, state, told)
        return replace(state, advised=advised, advised_ms=now_ms if is_daily else state.advised_ms)

    # ---- what is known

    def _learn(
        self, policies: Mapping[str, AutopilotPolicy], health: JournalHealth | str | None, now_ms: int
    ) -> str | None:
        """Bring the tables up to date; says why nothing may be done by them, if that is so."""
        try:
            run = self.refresh()
        except VeilError as refused:  # other runs on the same tables too
            return str(refused)
        manifest = load_manifest(self.tables)
        if manifest.broken:
            return f"segment {manifest.broken[0].name} of the journal cannot be read: {manifest.broken[0].reason}"
        newest_ms = run.newest.timestamp() * 1000 if run is not None and run.newest else manifest.newest_ms
        if newest_ms is None:
            return "the journal is empty"
        if newest_ms > now_ms + _STEP_MS or now_ms + _STEP_MS < self.state.looked_ms:
            return "the clock has been set back: what is new and what is old cannot be told apart"
        if now_ms - newest_ms > STALE_MS:
            return "nothing is known of the last quarter of an hour: the queues are idle, or the journal is behind"
        if isinstance(health, str):
            return health
        if health is not None and health.lost_events != self.state.lost_events:
            self.state = replace(self.state, lost_events=health.lost_events)
            # What came before has holes; fewer than there were: the server counts anew.
            if health.lost_events:
                for name, state in self.state.queues.items():
                    self._put(name, replace(state, memory_ms=now_ms, watch=None))
                return f"the server could not record {health.lost_events:,.0f} events: its journal was full"
        if health is not None and health.waiting_s * 1000 > STALE_MS:
            return "the server's journal is behind"
        if now_ms - self._found_ms >= HOUR_MS:
            goals = {self._work(name): goal_of(policy) for name, policy in policies.items()}
            self._findings, self._found_ms = self.find_all(goals), now_ms
        return None

    # ---- whose queues

    def _policies(self, names: Iterable[str], now_ms: int) -> dict[str, AutopilotPolicy]:
        """The queues that allow something."""
        found: dict[str, AutopilotPolicy] = {}
        for name in names:
            tags = self.queues.tags(name)
            try:
                policy = read_policy(tags[TAG]) if TAG in tags else self.default
            except PolicyUnreadable as refused:
                policy = AutopilotPolicy()
                reason = f"the queue's tag {TAG} is not readable: {refused}"
                told = Decision(
                    kind=DecisionKind.NOTHING, code=f"tag {tags[TAG]}", reason=reason, at_ms=now_ms
                )
                self._told(name, self.state.queues.get(name, PilotedQueue()), [told])
            else:
                if policy.mode is Mode.OFF:
                    continue
            found[name] = policy
            state, resumed = self.state.queues.get(name, PilotedQueue()), tags.get(RESUME_TAG, "")
            if state.resumed not in (None, resumed):
                # It goes on from the timeout of that moment; one that was set later is a person's again.
                seen_s = _number(resumed.partition(" ")[2]) or state.seen_s
                state = replace(state, silenced_ms=None, seen_s=seen_s, watch=None, found_ms=0, last=None)
            self._put(name, replace(state, resumed=resumed))
        return found

    def _holder(self, name: str, now_ms: int) -> str | None:
        """Which autopilot may change the queue; None where that was nobody, and this one has claimed it just now."""
        owner, _, until = self.queues.tags(name).get(HELD_TAG, "").partition(" ")
        until_ms = _number(until)
        if owner and owner != self.state.owner and until_ms > now_ms:
            return owner
        if owner != self.state.owner or until_ms < now_ms + _HELD_MS // 2:
            self.queues.tag(name, HELD_TAG, f"{self.state.owner} {now_ms + _HELD_MS}")
            self.has_claimed = True
        return owner if owner == self.state.owner and until_ms > now_ms else None

    # ---- the state

    def _put(self, name: str, state: PilotedQueue) -> None:
        self.state = replace(self.state, queues={**self.state.queues, name: state})

    def _keep(self, name: str, state: PilotedQueue) -> None:
        self._put(name, state)
        self._save()

    def _save(self) -> None:
        self.tables.write(FILE, encode_state(self.state))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0
