"""SMQ's signature: vectors, time, keys, and what it must cover."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import AsyncIterator
from email.utils import formatdate

import pytest

from tests.wire.smq_kit import SmqWire, xml
from veil.wire.exchange import Request
from veil.wire.sigv4 import AccessKey
from veil.wire.smq.call import SmqVerifier, signature

KEYS = {"ak": AccessKey("ak", "sk", "000000000000"), "other": AccessKey("other", "sk2", "111122223333")}
DATE = "Thu, 01 Jan 2026 00:00:00 GMT"
TYPE = "text/xml;charset=UTF-8"


@pytest.fixture
async def smq() -> AsyncIterator[SmqWire]:
    async with SmqWire(smq_verifier=SmqVerifier(KEYS)) as made:
        yield made


@pytest.mark.parametrize(
    ("method", "target", "headers", "expected"),
    [
        ("GET", "/queues/q1/messages?waitseconds=10", {}, "WBiEe7X9ZDPj5nQx0Ri+GD90kIA="),
        (
            "POST",
            "/queues/q1/messages",
            {"content-md5": "Mjg3NGZkNWMxNjc4ODlmOGQ4YWM1ZjZlZjkzZDk3MmM=", "content-type": TYPE},
            "rMpGUb7E7m1minrq+B7xLkWPNas=",
        ),
    ],
)
def test_the_vectors(method: str, target: str, headers: dict[str, str], expected: str) -> None:
    path, _, query = target.partition("?")
    request = Request(
        method, path, query, {"x-mns-version": "2015-06-06", "date": DATE, "host": "h", **headers}
    )
    assert signature(b"sk", request, DATE) == expected.encode()


def digest(body: bytes) -> str:
    """As the Python SDK writes it: the hexadecimal text in base64."""
    return base64.b64encode(hashlib.md5(body).hexdigest().encode()).decode()


def signed(
    smq: SmqWire,
    method: str,
    target: str,
    body: bytes = b"",
    *,
    key: AccessKey = KEYS["ak"],
    off_s: float = 0,
    **headers: str,
) -> dict[str, str]:
    """The headers of a request that the key signed."""
    path, _, query = target.partition("?")
    named = {
        "date": formatdate(smq.clock.wall_ms() / 1000 + off_s, usegmt=True),
        "x-mns-version": "2015-06-06",
    }
    if body:
        named |= {"content-md5": digest(body), "content-type": TYPE}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    named = {name: value for name, value in named.items() if value}
    made = signature(key.secret.encode(), Request(method, path, query, named, body), named.get("date", ""))
    return named | {"authorization": f"MNS {key.key_id}:{made.decode()}"}


async def test_a_signed_request_is_served_for_the_account_of_its_key(smq: SmqWire) -> None:
    body = xml("Queue").encode()
    assert (await smq.ask("PUT", "/queues/q", body, **signed(smq, "PUT", "/queues/q", body))).status == 201
    target = "/queues/q/messages?waitseconds=0"
    assert await smq.refusal("GET", target, **signed(smq, "GET", target)) == "404 MessageNotExist"
    # Another account has another queue of that name, or none.
    strange = signed(smq, "GET", "/queues/q", key=KEYS["other"])
    assert await smq.refusal("GET", "/queues/q", **strange) == "404 QueueNotExist"


@pytest.mark.parametrize("off_s", [-899, 899])
async def test_a_clock_may_be_a_quarter_of_an_hour_off(smq: SmqWire, off_s: int) -> None:
    headers = signed(smq, "GET", "/queues/q", off_s=off_s)
    assert await smq.refusal("GET", "/queues/q", **headers) == "404 QueueNotExist"


@pytest.mark.parametrize("off_s", [-902, 902])
async def test_and_not_more(smq: SmqWire, off_s: int) -> None:
    headers = signed(smq, "GET", "/queues/q", off_s=off_s)
    assert await smq.refusal("GET", "/queues/q", **headers) == "408 TimeExpired"


async def test_nothing_is_done_for_who_did_not_sign(smq: SmqWire) -> None:
    assert await smq.refusal("GET", "/queues/q") == "400 MissingAuthorizationHeader"
    assert await smq.refusal("PUT", "/queues/q", xml("Queue")) == "400 MissingAuthorizationHeader"
    assert await smq.service.store.all_queues() == []


@pytest.mark.parametrize(
    "text", ["ak:xyz", "MNS ak", "MNS :", "MNS ak:", "AWS4-HMAC-SHA256 Credential=ak", "MNS"]
)
async def test_an_authorization_of_another_form_is_told_so(smq: SmqWire, text: str) -> None:
    headers = signed(smq, "GET", "/queues/q") | {"authorization": text}
    assert await smq.refusal("GET", "/queues/q", **headers) == "400 InvalidAuthorizationHeader"


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        ("", "400 MissingDateHeader"),
        ("yesterday", "400 InvalidDateHeader"),
        ("2026", "400 InvalidDateHeader"),
    ],
)
async def test_a_request_needs_a_date_that_can_be_read(smq: SmqWire, date: str, expected: str) -> None:
    assert await smq.refusal("GET", "/queues/q", **signed(smq, "GET", "/queues/q", date=date)) == expected


async def test_a_date_without_a_zone_is_gmt_wherever_the_server_stands(smq: SmqWire, monkeypatch) -> None:
    now = formatdate(smq.clock.wall_ms() / 1000, usegmt=True)
    with monkeypatch.context() as there:
        there.setenv("TZ", "Asia/Shanghai")
        time.tzset()
        for date in (now.replace("GMT", "-0000"), now.removesuffix(" GMT")):
            headers = signed(smq, "GET", "/queues/q", date=date)
            assert await smq.refusal("GET", "/queues/q", **headers) == "404 QueueNotExist"
    time.tzset()


async def test_its_own_date_header_will_do(smq: SmqWire) -> None:
    now = formatdate(smq.clock.wall_ms() / 1000, usegmt=True)
    headers = signed(smq, "GET", "/queues/q", date="", x_mns_date=now)
    assert await smq.refusal("GET", "/queues/q", **headers) == "404 QueueNotExist"


async def test_a_wrong_key_a_wrong_secret_and_a_made_up_signature_are_refused(smq: SmqWire) -> None:
    unknown = signed(smq, "GET", "/queues/q", key=AccessKey("nobody", "sk", ""))
    assert await smq.refusal("GET", "/queues/q", **unknown) == "403 InvalidAccessKeyId"
    wrong = signed(smq, "GET", "/queues/q", key=AccessKey("ak", "not it", ""))
    assert await smq.refusal("GET", "/queues/q", **wrong) == "403 SignatureDoesNotMatch"
    for made_up in ("AAAA", "ä", "\udcff"):
        headers = signed(smq, "GET", "/queues/q") | {"authorization": f"MNS ak:{made_up}"}
        assert await smq.refusal("GET", "/queues/q", **headers) == "403 SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("method", "target", "changed"),
    [
        ("PUT", "/queues/q", {}),
        ("GET", "/queues/r", {}),
        ("GET", "/queues/q?peekonly=true", {}),
        ("GET", "/queues/q", {"x-mns-version": "2014"}),
        ("GET", "/queues/q", {"x-mns-prefix": "a"}),
        ("GET", "/queues/q", {"content-type": "text/plain"}),
    ],
)
async def test_what_was_signed_cannot_be_made_into_something_else(
    smq: SmqWire, method: str, target: str, changed: dict[str, str]
) -> None:
    headers = signed(smq, "GET", "/queues/q") | changed
    assert await smq.refusal(method, target, **headers) == "403 SignatureDoesNotMatch"


async def test_a_tampered_body_is_refused_and_its_digest_cannot_be_taken_away(smq: SmqWire) -> None:
    body = xml("Queue").encode()
    headers = signed(smq, "PUT", "/queues/q", body)
    assert await smq.refusal("PUT", "/queues/q", body + b" ", **headers) == "400 InvalidDegist"
    forged = headers | {"content-md5": digest(body + b" ")}
    assert await smq.refusal("PUT", "/queues/q", body + b" ", **forged) == "403 SignatureDoesNotMatch"
    del headers["content-md5"]
    assert await smq.refusal("PUT", "/queues/q", body + b" ", **headers) == "403 SignatureDoesNotMatch"
    assert await smq.service.store.all_queues() == []


async def test_a_signed_body_needs_no_digest(smq: SmqWire) -> None:
    # Alibaba's SDK for Java never sends one.
    body = xml("Queue", VisibilityTimeout=7).encode()
    headers = signed(smq, "PUT", "/queues/q", body, content_md5="")
    assert "content-md5" not in headers
    assert (await smq.ask("PUT", "/queues/q", body, **headers)).status == 201
    strange = signed(smq, "PUT", "/queues/r", body, content_md5="", key=AccessKey("ak", "not sk", "0"))
    assert await smq.refusal("PUT", "/queues/r", body, **strange) == "403 SignatureDoesNotMatch"


async def test_the_digest_is_checked_without_keys_too_in_either_spelling() -> None:
    body = xml("Queue").encode()
    raw = base64.b64encode(hashlib.md5(body).digest()).decode()
    async with SmqWire() as smq:
        for good in (raw, digest(body)):
            assert (await smq.ask("PUT", "/queues/q", body, content_md5=good)).status in (201, 204)
        for bad in (digest(b"x"), "???", "AAAA"):
            assert await smq.refusal("PUT", "/queues/q", body, content_md5=bad) == "400 InvalidDegist"


async def test_without_keys_the_id_that_a_client_claims_is_kept_for_the_journal() -> None:
    async with SmqWire() as smq:
        path = await smq.smq_queue()
        response = await smq.ask(
            "POST", path, xml("Message", MessageBody="x"), authorization="MNS me:anything"
        )
        assert response.status == 201
