"""Every change goes the same way: shown as a difference and as a command, confirmed, recorded, made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from veil.console.audit import DONE, FAILED
from veil.console.exchange import Answer, see_other
from veil.core.errors import VeilError

if TYPE_CHECKING:
    from veil.console.visit import Visit

# Fields of the confirmation itself; all others are what was filled in, and are sent again with it.
_OWN_FIELDS = frozenset(("token", "step", "plan", "word"))


class Difference(NamedTuple):
    """One thing that will be another; an empty text is nothing."""

    name: str
    before: str
    after: str


class Done(NamedTuple):
    """What to say, and the page to say it on."""

    notice: str
    place: str


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change that is ready to be made. `make` raises VeilError where the service refuses it."""

    action: str  # for the audit log: `edit queue`
    target: str  # what is changed: a queue's name, a message's id
    title: str
    button: str
    back: str  # where to go instead
    make: Callable[[], Awaitable[Done]] = field(repr=False)
    differences: Sequence[Difference] = ()
    commands: Sequence[str] = ()
    notes: Sequence[str] = ()  # what it means, and what cannot be undone
    is_danger: bool = False
    word: str | None = None  # to be typed before it is made
    carried: Sequence[
        tuple[str, str]
    ] = ()  # fields to send again besides those of the form: an upload's text

    @property
    def fingerprint(self) -> str:
        """Tells whether what is confirmed is what was shown."""
        shown = repr((self.action, self.target, [tuple(each) for each in self.differences]))
        return sha256(shown.encode("utf-8", "replace")).hexdigest()[:32]


async def offer(visit: Visit, change: Change) -> Answer:
    """Show the change; or make it, if the form confirms that it was shown."""
    form = visit.form
    problem = ""
    if form.text("step") == "make":
        if form.text("plan") != change.fingerprint:
            problem = "This has changed since it was shown. Look at it again before you confirm it."
        elif change.word is not None and form.text("word") != change.word:
            problem = f"Type {change.word} to confirm."
        else:
            return await _make(visit, change)
    return await _shown(visit, change, problem, 409 if problem else 200)


async def _make(visit: Visit, change: Change) -> Answer:
    audit = visit.console.audit
    entry_id = await audit.asked(
        **visit.audit_facts,
        action=change.action,
        target=change.target,
        differences=change.differences,
        commands=change.commands,
    )
    try:
        done = await change.make()
    except VeilError as refusal:
        await audit.ended(entry_id, FAILED, str(refusal))
        return await _shown(visit, change, f"It was not done: {refusal}.", 409)
    except BaseException as error:
        await audit.ended(entry_id, FAILED, type(error).__name__)
        raise
    await audit.ended(entry_id, DONE, done.notice)
    number = visit.console.notices.leave(visit.identity.cookie, done.notice)
    return see_other(f"{done.place}{'&' if '?' in done.place else '?'}notice={number}")


async def _shown(visit: Visit, change: Change, problem: str, status: int) -> Answer:
    repeated = [(name, value) for name, value in visit.form.pairs if name not in _OWN_FIELDS]
    return await visit.page(
        "change.html",
        title=change.title,
        change=change,
        repeated=[*repeated, *change.carried],
        problem=problem,
        status=status,
    )
