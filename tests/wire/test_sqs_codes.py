"""Every error that Veil can raise has words for SQS clients."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import veil.core
import veil.service
import veil.wire
from veil.core.errors import AttributeRefused, Described, PriorityRefused, StoreError, StoreFull, VeilError
from veil.wire.request_errors import (
    KeyUnknown,
    RequestRefused,
    SignatureMalformed,
    SignatureMismatch,
)
from veil.wire.sqs_codes import WORDS, Situation, worded


def _family(root: type[VeilError]) -> Iterator[type[VeilError]]:
    for member in root.__subclasses__():
        yield member
        yield from _family(member)


def _everything_imported() -> None:
    for package in (veil.core, veil.service, veil.wire):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def test_no_member_of_the_error_family_is_without_words() -> None:
    _everything_imported()
    # What the server raises before it listens reaches no client.
    parts = ("veil.core.", "veil.stores.", "veil.service.", "veil.signing.", "veil.wire.")
    members = [
        member
        for member in _family(VeilError)
        # SMQ's clients have a table of their own.
        if member.__module__.startswith(parts) and not member.__module__.startswith("veil.wire.smq")
    ]
    assert len(members) > 50
    worded_by_kin = (RequestRefused, StoreError, AttributeRefused, PriorityRefused)
    members.remove(Described)  # the form of all with facts, never raised itself
    strangers = [
        member for member in members if member not in WORDS and not issubclass(member, worded_by_kin)
    ]
    assert strangers == []


@pytest.mark.parametrize(
    ("error", "kind", "code", "status"),
    [
        (SignatureMalformed("x"), "IncompleteSignatureException", "IncompleteSignature", 400),
        (KeyUnknown(), "UnrecognizedClientException", "InvalidClientTokenId", 403),
        (SignatureMismatch(), "InvalidSignatureException", "SignatureDoesNotMatch", 403),
    ],
)
def test_signature_errors_have_their_codes(error: VeilError, kind: str, code: str, status: int) -> None:
    refusal = worded(error, Situation())
    assert refusal.code == (f"com.amazon.coral.service#{kind}", code, status)


def test_a_full_store_is_the_servers_fault_so_that_sdks_retry() -> None:
    refusal = worded(StoreFull("no room"), Situation("SendMessage"))
    assert (refusal.code.query_code, refusal.code.status, refusal.code.fault) == (
        "ServiceUnavailable",
        503,
        "Receiver",
    )
