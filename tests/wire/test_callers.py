"""Who asked, as the journal names them: the key of the signature, the address and the client's own name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.signing import sign
from tests.stores.journal_kit import exported
from veil.core.clock import ManualClock
from veil.core.message import Caller
from veil.service.service import Service
from veil.stores.memory import MemoryStore
from veil.wire.exchange import Request
from veil.wire.front_end import SqsFrontEnd
from veil.wire.sigv4 import AccessKey, Verifier

HOST, URL = "localhost:9324", "http://localhost:9324/000000000000/q"
KEY = AccessKey("AKIAKNOWN", "secret", "000000000000")


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    clock = ManualClock()
    service = Service(MemoryStore(clock, journal=True), clock)
    await service.start()
    yield service
    await service.stop()


async def ask(
    front_end: SqsFrontEnd, action: str, peer: str = "192.0.2.7:5123", headers: dict[str, str] | None = None
) -> None:
    body = json.dumps({"QueueUrl": URL, "QueueName": "q", "MessageBody": "x"}).encode()
    named = {"host": HOST, "x-amz-target": f"AmazonSQS.{action}", "user-agent": "Boto3/1.40"}
    request = Request("POST", "/", "", named | (headers or {}), body, peer)
    assert (await front_end.handle(request)).status == 200


async def sender(service: Service) -> Caller:
    """Who sent the only message since the last look."""
    [event] = await exported(service.store)
    return event.caller


def claim(key_id: str) -> dict[str, str]:
    scope = f"{key_id}/20231114/us-east-1/sqs/aws4_request"
    return {"authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=00"}


async def test_without_keys_the_caller_is_who_it_says_it_is(service: Service) -> None:
    front_end = SqsFrontEnd(service, verifier=None)
    await ask(front_end, "CreateQueue")
    await ask(front_end, "SendMessage", headers=claim("AKIASAYS"))
    assert await sender(service) == Caller("000000000000", "AKIASAYS", "Boto3/1.40", "192.0.2.7")


async def test_with_keys_the_caller_is_who_signed(service: Service) -> None:
    front_end = SqsFrontEnd(service, verifier=Verifier({KEY.key_id: KEY}))
    for action in ("CreateQueue", "SendMessage"):
        body = json.dumps({"QueueUrl": URL, "QueueName": "q", "MessageBody": "x"}).encode()
        headers = {"host": HOST, "x-amz-target": f"AmazonSQS.{action}", "user-agent": "Boto3/1.40"}
        signed = sign(
            method="POST",
            host=HOST,
            path="/",
            headers={"x-amz-target": f"AmazonSQS.{action}"},
            body=body,
            key_id=KEY.key_id,
            secret=KEY.secret,
            region="us-east-1",
            now_ms=service.clock.wall_ms(),
        )
        headers |= {name.lower(): value for name, value in signed.items()}
        answer = await front_end.handle(Request("POST", "/", "", headers, body, "2001:db8::1"))
        assert answer.status == 200, answer.body
    assert await sender(service) == Caller("000000000000", "AKIAKNOWN", "Boto3/1.40", "2001:db8::1")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.7:99", "192.0.2.7"),
        ("[2001:db8::1]:99", "2001:db8::1"),
        ("", ""),
    ],
)
async def test_the_address_has_no_port(service: Service, peer: str, address: str) -> None:
    front_end = SqsFrontEnd(service, verifier=None)
    await ask(front_end, "CreateQueue")
    await ask(front_end, "SendMessage", peer=peer)
    assert (await sender(service)).peer == address


async def test_what_a_stranger_may_write_into_the_journal_is_bounded(service: Service) -> None:
    front_end = SqsFrontEnd(service, verifier=None)
    await ask(front_end, "CreateQueue")
    await ask(front_end, "SendMessage", headers=claim("K" * 5_000) | {"user-agent": "u" * 5_000})
    caller = await sender(service)
    assert (len(caller.key_id), len(caller.user_agent)) == (128, 256)
