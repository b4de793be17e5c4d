"""The answers of the service, decoded; one that cannot be decoded counts as no answer."""

from __future__ import annotations

import logging
from hashlib import md5
from typing import Any, Final, TypeVar

import msgspec

from veil.client.api import BATCH_MAX, ApiError, Failure, RawMessage, classify, known, plain
from veil.client.connection import HttpAnswer
from veil.core.limits import WAIT_MAX_S
from veil.core.text import whole_number

_log = logging.getLogger(__name__)


T = TypeVar("T")


class _Received(msgspec.Struct, rename="pascal"):
    messages: list[RawMessage] | None = None


class _Done(msgspec.Struct, rename="pascal"):
    id: str
    message_id: str = ""  # of a send


class _Refused(msgspec.Struct, rename="pascal"):
    id: str
    code: str = ""
    message: str | None = None
    sender_fault: bool = True


class _BatchAnswer(msgspec.Struct, rename="pascal"):
    successful: list[_Done] | None = None
    failed: list[_Refused] | None = None


class _Error(msgspec.Struct):
    kind: str = msgspec.field(name="__type", default="")
    message: str | None = None
    shouted: str | None = msgspec.field(name="Message", default=None)


GRACE_HEADER: Final = b"x-veil-lease-grace"
WAITED_HEADER: Final = b"x-veil-waited"
BULK_HEADER: Final = b"x-veil-bulk"
BULK_MAX: Final = 100
_GRACE_MAX_S: Final = 3_600.0

_received = msgspec.json.Decoder(_Received)
_batch = msgspec.json.Decoder(_BatchAnswer)
_fields = msgspec.json.Decoder(dict[str, Any])
_error = msgspec.json.Decoder(_Error)


def error_in(answer: HttpAnswer) -> ApiError:
    """The error that an answer other than 200 speaks of."""
    status = answer.status
    try:
        said = _error.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = _Error()
    code = said.kind.rpartition("#")[2].partition(":")[0]
    other = answer.header(b"x-amzn-query-error").partition(";")[0]
    if not known(code) and known(other):
        code = other
    code = code or other
    message = said.message or said.shouted or ""
    if not code:
        message = f"HTTP {status}, and not in the words of SQS"
        if answer.header(b"content-type").startswith("text/plain"):
            text = answer.body[:200].decode("utf-8", "replace")
            message += ": " + " ".join("".join(each if each.isprintable() else " " for each in text).split())
        if 300 <= status < 400:
            message = (
                f"HTTP {status} to {answer.header(b'location') or 'nowhere'}; redirects are not followed"
            )
    return ApiError(classify(status, code, message), code, message, away=status >= 500)


def messages_in(answer: HttpAnswer, asked_at_s: float) -> list[RawMessage]:
    """The received messages.

    One whose body does not match its checksum is left out, as if the answer had been lost: it comes again when its window
    ends. So is what follows it in its group, which must not overtake it.
    """
    found: list[RawMessage] = []
    damaged: set[str] = set()
    grace_s = _grace_s(answer)
    began_s = asked_at_s + _waited_s(answer)
    for each in decoded(_received, answer).messages or ():
        group = each.group
        if group is not None and group in damaged:
            continue
        digest = each.body_md5
        if digest is not None and md5(each.body.encode(), usedforsecurity=False).hexdigest() != digest:
            _log.warning(
                "message %s: its body does not match its checksum %s; left in the queue",
                each.message_id,
                digest,
            )
            if group is not None:
                damaged.add(group)
            continue
        each.began_at_s, each.grace_s = began_s, grace_s
        found.append(each)
    return found


def bulk_in(answer: HttpAnswer) -> int:
    """How many messages Veil offers to take in one call; ten of other services."""
    return max(BATCH_MAX, min(whole_number(answer.header(BULK_HEADER)) or 0, BULK_MAX))


def _grace_s(answer: HttpAnswer) -> float:
    """What Veil promises of leases after its own trouble; other services promise nothing."""
    text = answer.header(GRACE_HEADER)
    try:
        grace_s = float(text) if text else 0.0
    except ValueError:
        return 0.0
    return grace_s if 0.0 <= grace_s <= _GRACE_MAX_S else 0.0


def _waited_s(answer: HttpAnswer) -> int:
    """For how long Veil says that the receive had waited before the windows of its messages began; others do not say."""
    return min(whole_number(answer.header(WAITED_HEADER), digits_max=3) or 0, WAIT_MAX_S)


def receipts_in(answer: HttpAnswer) -> list[str]:
    """The receipts of the received messages, whatever state these are in."""
    return [each.receipt for each in decoded(_received, answer).messages or ()]


def results_in(answer: HttpAnswer, entries: int) -> list[ApiError | None]:
    """The outcome of each entry of a batch whose ids are 0, 1, 2, …; one that the answer passes over is unknown."""
    return [each if isinstance(each, ApiError) else None for each in sent_in(answer, entries)]


def sent_in(answer: HttpAnswer, entries: int) -> list[str | ApiError]:
    """The same of a batch of sends: the id of each message."""
    batch = decoded(_batch, answer)
    results: dict[str, str | ApiError] = {done.id: done.message_id for done in batch.successful or ()}
    for refused in batch.failed or ():
        status, message = 400 if refused.sender_fault else 500, refused.message or ""
        failure, code = classify(status, refused.code, message), plain(refused.code)
        results[refused.id] = ApiError(failure, code, message, away=status >= 500)
    unknown = ApiError(Failure.UNREACHABLE, "", "the answer passes it over")
    return [results.get(str(at), unknown) for at in range(entries)]


def field(answer: HttpAnswer, name: str, otherwise: Any = None) -> Any:
    """One field of the answer; an answer without it, where `otherwise` is not given, cannot be understood."""
    found = decoded(_fields, answer).get(name)
    if found is None:
        found = otherwise
    if found is None:
        raise _not_understood(f"it has no {name}")
    return found


def decoded(decoder: msgspec.json.Decoder[T], answer: HttpAnswer) -> T:
    """The body as the decoder's type; raises ApiError UNREACHABLE for any other answer."""
    try:
        return decoder.decode(answer.body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_understood(str(error)) from None


def _not_understood(why: str) -> ApiError:
    text = f"the answer cannot be understood ({why}); is this an SQS endpoint?"
    return ApiError(Failure.UNREACHABLE, "", text)
