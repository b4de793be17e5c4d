"""Dead letters without receiving them: the dead-letter queues, groups by cause, and running redrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import msgspec

from veil.console.messages import PAGE_ROWS
from veil.console.queue_views import queue_now
from veil.console.visit import Visit
from veil.console.web import Form, dead_letters_link, view
from veil.core.limits import MOVE_RATE_MAX
from veil.core.queue import MoveTask, Queue, QueueKey
from veil.core.sequence import SEQ_MAX
from veil.journal.attempts import LastError
from veil.service.dead_letters import Letter, LetterFilter, look_through, read_filter
from veil.service.messages import SEARCH_BYTES_MAX, SEARCH_ROWS_MAX
from veil.service.moves import list_moves
from veil.service.service import Service
from veil.service.time_slices import TimeSlice

# ---- letters

_SOURCES_SHOWN: Final = 5
_SOURCES_OF_QUEUE_SHOWN: Final = 20
_QUEUES_LISTED_MAX: Final = 300
GROUPED_ROWS: Final = 1_000  # unless somebody asks for more: the page shall be there at once
GROUPED_ROWS_MAX: Final = 50_000
GROUPED_BYTES_MAX: Final = 64 << 20  # where more is asked for than usual
GROUPS_SHOWN_MAX: Final = 50
_SAMPLE_MAX: Final = 20
_ERRORS_SHOWN: Final = 3
SAMPLED_GROUPS: Final = 10
GROUPS_MAX: Final = 2_000  # each keeps an example
_CHOICES_MAX: Final = 200


class LetterSelection(NamedTuple):
    """Which dead letters, and from where on; what the address of the page says."""

    filter: LetterFilter = LetterFilter()
    after: int = 0

    def query(self, *, after: int = 0, **changed: str) -> str:
        """The query of the page from there on, or of one whose filter differs in this."""
        return urlencode(LetterSelection(msgspec.structs.replace(self.filter, **changed), after).fields)

    def address(self, queue: Queue) -> str:
        """Of the page that shows these letters of the queue."""
        return dead_letters_link(queue.key) + (f"?{urlencode(self.fields)}" if self.fields else "")

    @property
    def fields(self) -> list[tuple[str, str]]:
        """What a form must carry to mean the same letters, and to come back to this page of them."""
        fields = msgspec.structs.asdict(self.filter) | {"after": str(self.after or "")}
        return [(name, value) for name, value in fields.items() if value]


def read_selection(form: Form) -> LetterSelection:
    redriven = form.text("redriven")
    wanted = LetterFilter(
        text=form.text("text")[:200],
        source=form.text("source")[:100],
        type=form.text("type")[:256],
        error=form.text("error")[:256],
        group=form.text("group")[:12],
        redriven=redriven if redriven in ("yes", "no") else "",
    )
    return LetterSelection(wanted, form.number("after", 0, 0, SEQ_MAX))


class LetterPage(NamedTuple):
    """Some dead letters, and how far the look came."""

    letters: list[Letter]
    rows: int
    behind: int | None  # the key to go on behind; None at the end of the queue
    is_full: bool


@dataclass(slots=True)
class LetterGroup:
    """Dead letters of one source, type and reason."""

    example: Letter
    count: int = 0
    redriven: int = 0
    first_ms: int = 1 << 62
    last_ms: int = 0
    sample: list[int] = field(default_factory=list)  # of those without a reason: whose attempts to ask about

    def take(self, letter: Letter) -> None:
        self.count += 1
        self.redriven += letter.redriven_from is not None
        self.first_ms = min(self.first_ms, letter.message.sent_wall_ms)
        self.last_ms = max(self.last_ms, letter.message.sent_wall_ms)
        if not letter.reason and len(self.sample) < _SAMPLE_MAX:
            self.sample.append(letter.message.seq)

    def errors(self, known: Mapping[int, LastError]) -> list[tuple[str, int]]:
        """The commonest types of error among the sample, with their numbers."""
        types = Counter(known[seq].reported.error_type or "" for seq in self.sample if seq in known)
        return types.most_common(_ERRORS_SHOWN)


@dataclass(slots=True)
class LetterGroups:
    """What the first rows of a queue are, the most frequent first; bounded in rows and in bytes."""

    by_key: dict[str, LetterGroup] = field(default_factory=dict)
    groups: list[LetterGroup] = field(default_factory=list)
    rows: int = 0
    matching: int = 0  # of those rows, the ones that the filter lets through
    movable: int = 0  # of the matching ones, those whose source the server itself knows
    sourceless: int = 0  # of the matching ones, those that nobody knows the source of
    ungrouped: int = 0
    is_all: bool = True

    def take(self, letter: Letter) -> None:
        self.rows += 1
        # Of thousands of groups the first are told apart; what else there is shows as one number.
        if letter.group in self.by_key or len(self.by_key) < GROUPS_MAX:
            self.by_key.setdefault(letter.group, LetterGroup(letter)).take(letter)
        else:
            self.ungrouped += 1

    @property
    def sources(self) -> list[str]:
        names = {each.example.source.name for each in self.groups if each.example.source is not None}
        return sorted(names)[:_CHOICES_MAX]

    @property
    def types(self) -> list[str]:
        types = {each.example.message_type for each in self.groups}
        return sorted(each for each in types if each)[:_CHOICES_MAX]


async def letter_page(
    service: Service, queue: Queue, selection: LetterSelection, time_slice: TimeSlice
) -> LetterPage:
    """The next dead letters that match, behind the selection's `after`."""
    found: list[Letter] = []
    rows = looked_bytes = 0
    async for letter, matches in look_through(
        service.store, queue, selection.filter, service.lives, time_slice, after_seq=selection.after
    ):
        rows, looked_bytes = rows + 1, looked_bytes + letter.message.held_bytes
        if matches:
            found.append(letter)
        is_full = len(found) == PAGE_ROWS
        if is_full or rows >= SEARCH_ROWS_MAX or looked_bytes >= SEARCH_BYTES_MAX:
            return LetterPage(found, rows, letter.message.seq, is_full)
    return LetterPage(found, rows, None, False)


async def letter_groups(
    service: Service,
    queue: Queue,
    selection: LetterSelection,
    time_slice: TimeSlice,
    rows_max: int = SEARCH_ROWS_MAX,
) -> LetterGroups:
    """The first rows of the queue as groups, and how many of them match."""
    told, looked_bytes = LetterGroups(), 0
    bytes_max = SEARCH_BYTES_MAX if rows_max <= SEARCH_ROWS_MAX else GROUPED_BYTES_MAX
    async for letter, matches in look_through(
        service.store, queue, selection.filter, service.lives, time_slice, after_seq=0
    ):
        if told.rows >= rows_max or looked_bytes >= bytes_max:
            told.is_all = False
            break
        looked_bytes += letter.message.held_bytes
        told.take(letter)
        if matches:
            told.matching += 1
            told.movable += letter.is_known_to_server
            told.sourceless += letter.source is None
    told.groups = sorted(told.by_key.values(), key=lambda each: (-each.count, each.first_ms))
    return told


# ---- moves

_TASKS_SHOWN: Final = 10


class MoveRow(NamedTuple):
    """A move task, and how far it has come."""

    task: MoveTask
    words: str  # which letters
    done: int  # of `total`: messages that were moved, or looked at where there is a filter
    total: int


def _move_row(task: MoveTask) -> MoveRow:
    words, done = "all", task.moved
    if task.scan is not None:
        words = read_filter(task.scan.filter).words()
        done = task.to_move if task.status == "COMPLETED" else task.scan.looked
    return MoveRow(task, words, done, max(task.to_move, done))


# ---- pages


@view(
    "/dead-letters",
    "dead_letters.html",
    title="Dead letters",
    live_parts={"dead-rows": "dead_letters_rows.html"},
)
async def dead_letters(visit: Visit) -> Mapping[str, Any]:
    """All dead-letter queues, and those that a redrive policy names but that do not exist."""
    search, hide_empty = visit.query.text("search")[:80], visit.query.text("empty") == "hide"
    own = {queue.key: queue for queue in await visit.own_queues()}
    sources: dict[QueueKey, list[str]] = {}
    for queue in sorted(own.values(), key=lambda queue: queue.name):
        if queue.settings.redrive is not None:
            sources.setdefault(queue.settings.redrive.dead_letters, []).append(queue.name)
    queues = sorted(
        (own[key] for key in sources if key in own and search.lower() in key.name.lower()),
        key=lambda queue: (queue.name, queue.key.region),
    )
    if hide_empty:
        depths = await visit.console.depths.at(queues, with_oldest=False)
        queues = [queue for queue in queues if depths[queue.id].total]
    shown, pager = visit.paged(queues, PAGE_ROWS)
    depths = await visit.console.depths.at(shown)
    moves: dict[QueueKey, list[MoveRow]] = {}
    for task in await visit.service.store.active_moves():
        moves.setdefault(task.source, []).append(_move_row(task))
    return {
        "rows": [(queue, depths[queue.id], sources[queue.key], moves.get(queue.key, [])) for queue in shown],
        "sources_max": _SOURCES_SHOWN,
        "missing": [(key, names) for key, names in sorted(sources.items()) if key not in own][:PAGE_ROWS],
        "all": sum(key in own for key in sources),
        "search": search,
        "hide_empty": hide_empty,
        "pager": pager,
    }


@view(
    "/dead-letters/{region}/{name}",
    "dead_letter_queue.html",
    live_parts={"letter-facts": "dead_letter_facts.html", "letter-moves": "dead_letter_moves.html"},
)
async def letters_page(visit: Visit) -> Mapping[str, Any]:
    """The dead letters that match, and what can be done about them; with what is wrong with the form, after a try."""
    now, selection = await queue_now(visit), read_selection(visit.asked)
    queue: Queue = now["queue"]
    tasks = await list_moves(visit.service, queue.key.arn, _TASKS_SHOWN)
    live_values = {**now, "moves": [_move_row(each) for each in tasks]}
    if visit.is_live:
        return live_values
    rows_max = visit.query.number("rows", GROUPED_ROWS, GROUPED_ROWS, GROUPED_ROWS_MAX)
    groups = await letter_groups(visit.service, queue, selection, visit.time_slice, rows_max)
    found = await letter_page(visit.service, queue, selection, visit.time_slice)
    asked = {each.message.seq for each in found.letters if not each.reason}
    asked.update(seq for group in groups.groups[:SAMPLED_GROUPS] for seq in group.sample)
    errors = await visit.console.journal_lookup.errors(asked)
    sources = await visit.service.store.dead_letter_sources(queue.key, limit=_SOURCES_OF_QUEUE_SHOWN)
    own = await visit.service.store.list_queues(queue.key.region, queue.key.account, limit=_QUEUES_LISTED_MAX)
    targets = [each for each in own if each.settings.fifo == queue.settings.fifo and each.key != queue.key]
    return {
        **live_values,
        "title": f"Dead letters of {queue.name}",
        "selection": selection,
        "groups": groups,
        "groups_max": GROUPS_SHOWN_MAX,
        "more_rows": min(rows_max * 5, GROUPED_ROWS_MAX) if rows_max < GROUPED_ROWS_MAX else None,
        "chosen_group": groups.by_key.get(selection.filter.group),
        "found": found,
        "errors": errors,
        "sources": sources,
        "targets": [each.name for each in targets],
        "address": LetterSelection().address(queue),
        "ticked": set(visit.form.all("letter")),
        "values": {"to": visit.form.text("to"), "rate": visit.form.text("rate")},
        "rate_max": MOVE_RATE_MAX,
    }
