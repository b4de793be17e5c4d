"""Every change takes the same steps: shown as a difference and as a command, confirmed, recorded, made."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from veil.console.audit import DONE, FAILED
from veil.console.web import FormRefused, Role, page, post, see_other
from veil.core.errors import VeilError
from veil.core.limits import BATCH_ENTRIES_MAX
from veil.core.message import MessageAttribute
from veil.core.message_rules import Draft, size_bytes
from veil.core.queue import Queue
from veil.wire.exchange import Response
from veil.words import plural

if TYPE_CHECKING:
    from veil.console.visit import Visit


# ---- aws commands
#
# The command takes every value as text. The aws command itself reads a value that begins with `file://` or `fileb://` from a
# file, fetches one that begins with `http://`, and takes one that begins with `-` for an option: the sender of a message would
# choose what is uploaded from the machine of the person who pastes the command. So all values go through `aws_command`, which
# writes the whole input as one JSON document where any of them could be misread.

# Of the messages in a command: a longer one is of no use to anybody.
COMMAND_BYTES_MAX: Final = 4_000
NO_COMMAND: Final = (
    f"No aws command is shown because it would contain more than {COMMAND_BYTES_MAX:,} bytes of messages."
)
# The aws command takes a queue's URL for a text although it begins with http://.
_URL_OF_QUEUE: Final = "QueueUrl"
# What the short form of a map may hold: nothing that is a sign in it, and no beginning of an address.
_SHORT_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*\Z")
_SHORT_VALUE: Final = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_./:-]*)?\Z")


def aws_command(operation: str, endpoint_url: str, region: str, parameters: Mapping[str, Any]) -> str:
    """`aws sqs OPERATION …` with these parameters of the API, an option a line; no value is read as a file or an address."""
    lines = [f"aws sqs {operation}"]
    options = {name: _words(name, value) for name, value in parameters.items()}
    if all(words is not None for words in options.values()):
        for name, words in options.items():
            lines.append(" ".join((_option(name), *map(shlex.quote, words or ()))))
    else:
        lines.append(f"--cli-input-json {shlex.quote(_json(dict(parameters)))}")
    lines.append(f"--endpoint-url {shlex.quote(endpoint_url)} --region {shlex.quote(region)}")
    return " \\\n  ".join(lines)


def _words(name: str, value: Any) -> list[str] | None:
    """The words behind the option; None where the aws command could take one of them for something else."""
    if isinstance(value, str):
        words = [value]
    elif isinstance(value, list) and all(isinstance(each, str) for each in value):
        words = value
    elif isinstance(value, dict) and all(_is_short(*pair) for pair in value.items()):
        words = [",".join(f"{key}={text}" for key, text in value.items())]
    else:
        words = [_json(value)]  # begins with a bracket, or is a number
    return words if all(_is_text(name, word) for word in words) else None


def _is_short(name: str, value: Any) -> bool:
    return isinstance(value, str) and bool(_SHORT_NAME.match(name) and _SHORT_VALUE.match(value))


def _is_text(name: str, word: str) -> bool:
    """Whether the aws command takes the word as it stands, and a terminal too."""
    if name == _URL_OF_QUEUE:
        return True
    # A list of one word that begins with a bracket is read as JSON; so is a map.
    looks_else = word.startswith("-") or "://" in word[:10] or (name == "TagKeys" and word[:1] in "[{")
    return not looks_else and (word.isprintable() or word.replace("\n", "").isprintable())


def _option(name: str) -> str:
    return "-" + "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # What a terminal would obey instead of showing is written in escapes.
    return text if text.isprintable() else json.dumps(value)


def queue_url(endpoint_url: str, queue: Queue) -> str:
    return f"{endpoint_url}/{queue.key.account}/{queue.key.name}"


def queue_command(visit: Visit, operation: str, queue: Queue, **parameters: Any) -> str:
    url = queue_url(visit.endpoint_url, queue)
    return aws_command(operation, visit.endpoint_url, queue.key.region, {"QueueUrl": url, **parameters})


def send_commands(visit: Visit, queue: Queue, drafts: Sequence[Draft]) -> list[str]:
    """One message as it is, of several the first batch; none where that would be too long to paste."""
    batch = drafts[:BATCH_ENTRIES_MAX]
    if sum(map(size_bytes, batch)) > COMMAND_BYTES_MAX:
        return []
    entries = [_entry(draft) for draft in batch]
    if len(drafts) == 1:
        return [queue_command(visit, "send-message", queue, **entries[0])]
    numbered = [{"Id": str(number), **entry} for number, entry in enumerate(entries, 1)]
    return [queue_command(visit, "send-message-batch", queue, Entries=numbered)]


def _entry(draft: Draft) -> dict[str, Any]:
    attributes = {name: _attribute(attribute) for name, attribute in (draft.attributes or {}).items()}
    entry = {
        "MessageBody": draft.body,
        "MessageAttributes": attributes or None,
        "MessageGroupId": draft.group,
        "MessageDeduplicationId": draft.deduplication_id,
        "DelaySeconds": draft.delay_s,
    }
    return {name: value for name, value in entry.items() if value is not None}


def _attribute(attribute: MessageAttribute) -> dict[str, str]:
    if isinstance(attribute.value, str):
        return {"DataType": attribute.data_type, "StringValue": attribute.value}
    return {"DataType": attribute.data_type, "BinaryValue": base64.b64encode(attribute.value).decode()}


# ---- changes

# Fields of the confirmation itself; all others are what was filled in, and are sent again with it.
_OWN_FIELDS: Final = frozenset(("token", "step", "plan", "word"))
_REASONS_MAX: Final = 3


class Difference(NamedTuple):
    """One thing that will be another; an empty text is nothing."""

    name: str
    before: str
    after: str


class ChangeResult(NamedTuple):
    """What to say, and the page to say it on, where that is not the one to go back to."""

    notice: str
    place: str = ""


class NothingDone(VeilError):
    """None of several could be done; the text says why."""


def done_of(answers: Sequence[object], word: str, done: str) -> str:
    """What to say of several messages: how many are done, and why not the others; raises NothingDone where all were refused."""
    refusals = [str(answer) for answer in answers if isinstance(answer, VeilError)]
    count = len(answers) - len(refusals)
    reasons = "; ".join(dict.fromkeys(refusals[:_REASONS_MAX]))
    if not count:
        raise NothingDone(reasons)
    return f"{plural(count, 'message')} {done}." + (f" Not {word}: {reasons}." if refusals else "")


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change that is ready to be made. `make` raises VeilError where the service refuses it."""

    action: str  # for the audit log: `edit queue`
    target: str  # what is changed: a queue's name, a message's id
    title: str
    button: str
    back: str  # where to go instead, and afterwards unless there is a better place
    make: Callable[[], Awaitable[object]]
    done: str = ""  # what to say afterwards, unless `make` gives a ChangeResult
    then: str = ""  # where to go afterwards
    differences: Sequence[Difference] = ()
    commands: Sequence[str] = ()
    notes: Sequence[str] = ()  # what it means, and what cannot be undone
    is_danger: bool = False
    word: str | None = None  # to be typed before it is made
    # Fields to send again besides those of the form: an upload's text.
    carried: Sequence[tuple[str, str]] = ()

    @property
    def fingerprint(self) -> str:
        """Tells whether what is confirmed is what was shown."""
        shown = repr((self.action, self.target, [tuple(each) for each in self.differences]))
        return sha256(shown.encode("utf-8", "replace")).hexdigest()[:32]

    async def offer(self, visit: Visit) -> Response:
        """Show the change; or make it, if the form confirms that it was shown."""
        form = visit.form
        problem = ""
        if form.text("step") == "make":
            if form.text("plan") != self.fingerprint:
                problem = "This has changed since it was shown. Check it again before you confirm it."
            elif self.word is not None and form.text("word") != self.word:
                problem = f"Type {self.word} to confirm."
            else:
                return await self._make(visit)
        return await self._shown(visit, problem)

    async def _make(self, visit: Visit) -> Response:
        audit = visit.console.audit
        entry_id = await audit.asked(
            **visit.identity.audit_facts(visit.request.peer),
            action=self.action,
            target=self.target,
            differences=self.differences,
            commands=self.commands,
        )
        try:
            made = await self.make()
        except VeilError as refusal:
            await audit.ended(entry_id, FAILED, str(refusal))
            return await self._shown(visit, f"The change failed: {refusal}.")
        except BaseException as error:
            await audit.ended(entry_id, FAILED, type(error).__name__)
            raise
        notice, place = made if isinstance(made, ChangeResult) else (self.done, self.then)
        await audit.ended(entry_id, DONE, notice)
        return see_other(visit.with_notice(place or self.back, notice))

    async def _shown(self, visit: Visit, problem: str) -> Response:
        repeated = [(name, value) for name, value in visit.form.pairs if name not in _OWN_FIELDS]
        return await visit.page(
            "change.html",
            title=self.title,
            change=self,
            repeated=[*repeated, *self.carried],
            problem=problem,
            status=409 if problem else 200,
        )


Answered = Response | Change
H = TypeVar("H", bound=Callable[["Visit"], Awaitable[Answered]])


def change(
    path: str,
    *,
    needs: Role,
    form: Callable[[Visit], Awaitable[Response]] | None = None,
    is_page: bool = False,
) -> Callable[[H], H]:
    """What gives the change that a POST of the path asks for, which is then shown or made; or an answer of its own. Where it
    raises FormRefused, the page `form` is shown again, with what is wrong. `is_page`: a GET shows the change as well."""

    def put(handler: H) -> H:
        async def answer(visit: Visit) -> Response:
            try:
                wanted = await handler(visit)
            except FormRefused as refusal:
                if form is None:
                    raise
                visit.problems = {refusal.field: refusal.sentence}
                return await form(visit)
            return await wanted.offer(visit) if isinstance(wanted, Change) else wanted

        post(path, needs=needs)(answer)
        if is_page:
            page(path, needs=needs)(answer)
        return handler

    return put
