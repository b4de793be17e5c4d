"""What came of an attempt: the words, and the one rule by which every part of Veil uses them.

A receive begins an attempt. SQS's API cannot say how one ends: a failed handler that backs off, a message that is given
back untouched and a renewal are all ChangeMessageVisibility, and a handler that left its message to lapse looks like a
process that died. Veil's own consumer therefore reports it (`ReportedOutcome`), and for every other client `outcome_of` goes by
what its calls did and by the holder's signs of life.

The rule reads facts of one attempt only, each of them a minimum or a maximum over the journal's events of that delivery (and
of its message, for `gone_at`). The pipeline applies the same rule to whole columns; a test holds the one to the other.

**Signs of life.** A lapse alone tells nothing of its holder. Whoever answers requests sees more: every poll, empty ones too. So
the server waits for a while after a lapse (`patience_ms`) and then records one of these events with the lease. `holder_seen`:
the caller went on, so it did not crash, and never came back for this message: its handler failed and left it. `holder_late`:
the same of a caller that reports how its attempts end; it had not failed, it was still at work. `holder_silent`: nothing was
heard of it while other callers of the queue went on. A late word about the message itself, a delete or an extension that came
after its deadline, counts more than these. Where there is none of them the outcome is unknown, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec

from veil.core.limits import VISIBILITY_MAX_S

RULE: Final = 2  # the rule that events written by this version can be judged by; before the first, `given_back` had no event


class AttemptOutcome(StrEnum):
    """How an attempt ended. The values are what the journal, the tables and the wire say."""

    COMPLETED = "completed"  # deleted
    # The handler raised; the message waits for its retry, was left to lapse, or was given up.
    FAILED = "failed"
    GIVEN_BACK = (
        "given_back"  # made visible by its holder before the deadline: drained, not for us, or not reported
    )
    OVERRAN = "overran"  # the deadline passed, and its holder came later
    CRASHED = "crashed"  # the deadline passed, and its holder was gone
    UNKNOWN = "unknown"  # the deadline passed, and nothing tells (yet) which of the others it was
    OPEN = "open"
    # Retention, a purge or somebody else's delete took the message away during the attempt.
    REMOVED = "removed"
    UNDONE = "undone"  # the answer to the receive never left

    @property
    def label(self) -> str:
        """The outcome as people read it."""
        return self.value.replace("_", " ")


# Plain texts: to look a member of an enum up takes longer than to read an entry.
_FAILED, _GIVEN_BACK = AttemptOutcome.FAILED.value, AttemptOutcome.GIVEN_BACK.value


class ReportedOutcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a holder reports of the end of its attempt, with the error that ended it; all texts are bounded by who read them."""

    outcome: str | None  # failed or given_back; None: it completed, or tried to
    error_type: str | None = None
    error_text: str | None = None
    traceback: str | None = None
    # How long the work took, where the message was held for longer: it waited for a free slot.
    worked_ms: int | None = None


NOTHING_REPORTED: Final[Mapping[int, ReportedOutcome]] = {}  # by the seq of the message


class AttemptFacts(NamedTuple):
    """What is known of one attempt; instants in any one unit.

    The latest of its events `received`, `extended`, `given_back` and `released`, by position, sets `deadline` (of `released`:
    its instant) and `is_returned`. The latest of those with an outcome sets `said`: the tables' column has that name.
    """

    deadline: int | None = None
    undone_at: int | None = None  # `undone`
    said: str | None = None
    deleted_at: int | None = None  # `deleted`, by its own receipt
    is_returned: bool = False  # by `given_back` or `released`, or by a receive without a window
    gone_at: int | None = None  # of its message: the first of `deleted`, `expired`, `purged`, `redriven`
    refused_at: int | None = None  # `delete_refused`, `extension_refused` or `holder_late`, the latest
    seen_at: int | None = None  # `holder_seen`, the latest
    silent_at: int | None = None  # `holder_silent`, the latest


def outcome_of(facts: AttemptFacts, now: int) -> AttemptOutcome:
    """Judge an attempt by all that is known of it at an instant."""
    deadline = facts.deadline
    if facts.undone_at is not None:
        return AttemptOutcome.UNDONE
    if facts.said is not None:
        return AttemptOutcome(facts.said)
    if facts.deleted_at is not None:
        return AttemptOutcome.COMPLETED
    if facts.is_returned:
        return AttemptOutcome.GIVEN_BACK
    if deadline is not None and facts.gone_at is not None and facts.gone_at < deadline:
        return AttemptOutcome.REMOVED
    if deadline is not None and deadline > now:
        return AttemptOutcome.OPEN
    if facts.refused_at is not None:
        return AttemptOutcome.OVERRAN
    if deadline is not None and facts.seen_at is not None and facts.seen_at >= deadline:
        return AttemptOutcome.FAILED
    if deadline is not None and facts.silent_at is not None and facts.silent_at >= deadline:
        return AttemptOutcome.CRASHED
    return AttemptOutcome.UNKNOWN


# A holder that is busy polls rarely: for as long as its window was, within these bounds, silence means nothing.
PATIENCE_MIN_MS: Final = 60_000
PATIENCE_MAX_MS: Final = 15 * 60_000


def patience_ms(window_ms: int) -> int:
    """How long after a lapse its holder may be silent without being taken for gone."""
    return min(max(window_ms, PATIENCE_MIN_MS), PATIENCE_MAX_MS)


# ---- The header by which a holder reports it.
#
# `x-veil-outcome: {"failed":{"0":[0,"no stock"],"2":null},"given_back":["1"],"errors":[["ValueError","  File …"]]}`: of the
# entries of a batch by their ids, or of a call for one message by `*`, which stands for every entry that is not named. A failed
# entry says which of the errors ended it, and the error's text. An error is a type and a traceback, and stands once however many
# attempts it ended, since what fails together mostly fails at one place. `"worked":{"0":120}` says for how many milliseconds it
# was worked on, of a message that had waited for a free slot before, however its attempt ended. The text is ASCII, as all of
# HTTP's headers are.

HEADER: Final = "x-veil-outcome"
HEADER_BYTES_MAX: Final = 6_144  # below the 8 KiB that many servers and proxies allow for all headers
ANY_ENTRY: Final = "*"
_TYPE_CHARS_MAX: Final = 128  # of an error's type, where the header must be cut


class OutcomeHeader(msgspec.Struct, omit_defaults=True):
    """What one request reports of the attempts that it ends."""

    # By entry: which of the errors, and its text.
    failed: dict[str, tuple[Annotated[int, msgspec.Meta(ge=0)], str] | None] = {}
    given_back: list[str] = []
    errors: list[tuple[str, str | None]] = []  # type, traceback
    # By entry, in milliseconds.
    worked: dict[str, Annotated[int, msgspec.Meta(ge=0, le=VISIBILITY_MAX_S * 1000)]] = {}

    def of(self, entry_ids: Collection[str]) -> list[ReportedOutcome | None]:
        """What is reported of each entry; IndexError where it names an error that is not there."""
        errors, worked = self.errors, self.worked
        reported = dict.fromkeys(self.given_back, GIVEN_BACK)
        for entry_id, failure in self.failed.items():
            if failure is None:
                reported[entry_id] = FAILED
            else:
                error_type, traceback = errors[failure[0]]
                reported[entry_id] = ReportedOutcome(_FAILED, error_type, failure[1], traceback)
        otherwise = reported.get(ANY_ENTRY)
        found = [reported.get(entry_id, otherwise) for entry_id in entry_ids]
        if worked:
            for at, entry_id in enumerate(entry_ids):
                worked_ms = worked.get(entry_id, worked.get(ANY_ENTRY))
                if worked_ms is not None:
                    found[at] = msgspec.structs.replace(found[at] or NO_OUTCOME, worked_ms=worked_ms)
        return found


FAILED: Final = ReportedOutcome(_FAILED)
GIVEN_BACK: Final = ReportedOutcome(_GIVEN_BACK)
NO_OUTCOME: Final = ReportedOutcome(None)
_decode_header, _encode_header = msgspec.json.Decoder(OutcomeHeader).decode, msgspec.json.Encoder().encode


def read_header(text: str, entry_ids: Collection[str]) -> list[ReportedOutcome | None] | None:
    """What a header reports of each entry; None for one that is too long or not as above."""
    if len(text) > HEADER_BYTES_MAX:
        return None
    try:
        return _decode_header(text).of(entry_ids)
    except (msgspec.DecodeError, UnicodeEncodeError, IndexError):
        return None


def write_header(reported: Mapping[str, ReportedOutcome | None]) -> str:
    """The header that reports this of each entry, empty where nothing is reported. Texts and tracebacks are cut where they do not
    fit together; of a traceback the end is kept."""
    failed: dict[str, tuple[int, str] | None] = {}
    given_back: list[str] = []
    errors: dict[tuple[str, str | None], int] = {}
    worked: dict[str, int] = {}
    at, kind, trace = 0, None, None  # of the last error: mostly that of the next entry too
    for entry_id, each in reported.items():
        if each is None:
            continue
        if each.worked_ms is not None:
            worked[entry_id] = each.worked_ms
        if each.outcome != _FAILED:
            if each.outcome is not None:
                given_back.append(entry_id)
        elif not each.error_type:
            failed[entry_id] = None
        else:
            if each.error_type is not kind or each.traceback is not trace:
                kind, trace = each.error_type, each.traceback
                at = errors.setdefault((kind, trace), len(errors))
            failed[entry_id] = at, each.error_text or ""
    if not (failed or given_back or worked):
        return ""
    header = OutcomeHeader(failed, given_back, list(errors), worked)
    text, room = _ascii(header), HEADER_BYTES_MAX // 2
    while len(text) > HEADER_BYTES_MAX and room and errors:
        for_text, for_trace = room // len(failed), room // len(errors)
        header.failed = {
            entry_id: each and (each[0], each[1][:for_text]) for entry_id, each in failed.items()
        }
        header.errors = [
            (kind[:_TYPE_CHARS_MAX], trace and trace[max(0, len(trace) - for_trace) :])
            for kind, trace in errors
        ]
        text = _ascii(header)
        room //= 2
    if len(text) > HEADER_BYTES_MAX:
        return _ascii(OutcomeHeader(dict.fromkeys(failed), given_back, worked=worked))
    return text


def _ascii(header: OutcomeHeader) -> str:
    text = _encode_header(header).decode()
    return text if text.isascii() else json.dumps(msgspec.to_builtins(header), separators=(",", ":"))
