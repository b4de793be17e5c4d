"""Every error that Veil can raise has words for SMQ's clients."""

from __future__ import annotations

import pytest

from tests.wire.test_sqs_codes import _everything_imported, _family
from veil.core import errors as e
from veil.core.errors import VeilError
from veil.wire.smq.codes import INTERNAL, worded

PARTS = ("veil.core.", "veil.stores.", "veil.service.", "veil.signing.", "veil.wire.")


def test_no_member_of_the_error_family_is_without_words() -> None:
    _everything_imported()
    members = [member for member in _family(VeilError) if member.__module__.startswith(PARTS)]
    assert len(members) > 60
    for member in members:
        error = member.__new__(member)
        # What the wording may look at is set by constructors of many shapes: any value will do.
        error.__dict__.update(dict.fromkeys((*getattr(member, "facts", ()), "refusal"), "x"))
        assert worded(error) != INTERNAL, member.__name__


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (e.QueueMissing("q"), "QueueNotExist", 404),
        (e.QueueExists("q", "visibility_s"), "QueueAlreadyExist", 409),
        (e.QueueDeletedRecently("q"), "QueueDeletedRecently", 400),
        (e.ReceiptInvalid("x"), "ReceiptHandleError", 400),
        (e.ReceiptExpired("x"), "MessageNotExist", 404),
        (e.MessageGone("x"), "MessageNotExist", 404),
        (e.PriorityRefused(0), "InvalidArgument", 400),
        (e.AccessDenied("SendMessage", "q"), "AccessDenied", 403),
        (e.StoreFull("full"), "InternalServerError", 503),
    ],
)
def test_each_kind_has_its_code_and_status(error: VeilError, code: str, status: int) -> None:
    assert worded(error)[:2] == (code, status)
