"""The client against services that are slow, cut the line, talk nonsense or too much, and against its own cancelling."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.consumer.sqs_kit import Talk, bad_server, client_of, failure_of, forget_aws, http
from veil.client import client as client_module
from veil.client import connection as http_connection
from veil.client.api import ApiError, Attribute, Failure, RetryBackoff
from veil.client.client import SqsClient
from veil.core.attempt import ReportedOutcome

DELETED = http(200, {"Successful": [{"Id": "0"}]})
ONE_MESSAGE = {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "b"}]}


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_aws(monkeypatch, tmp_path)
    monkeypatch.setattr(http_connection, "LINGER_S", 0.2)
    monkeypatch.setattr(client_module, "_START_BACKOFF", RetryBackoff(0.0, 0.0))


def says(*answers: bytes) -> Any:
    """A service that gives these answers to the requests of a connection, then closes it."""

    async def behave(talk: Talk) -> None:
        for answer in answers:
            await talk.request()
            talk.say(answer)

    return behave


async def test_a_request_is_what_the_sdk_would_send() -> None:
    heard: list[tuple[str, Any]] = []

    async def behave(talk: Talk) -> None:
        while True:
            given = await talk.request()
            heard.append((talk.head, given))
            talk.say(http(200, {"MessageId": "m"}))

    async with bad_server(behave) as endpoint, client_of(endpoint, user_agent_extra="app/1") as client:
        attributes = {"a": Attribute.of("String", "é"), "b": Attribute.of("Binary", b"\x00\xff")}
        await client.send("u", "body", attributes=attributes, group="g", deduplication_id="d", delay_s=0)
        await client.send("u", "body")
    (head, given), (second_head, _) = heard
    assert head.startswith("POST / HTTP/1.1\r\nHost: 127.0.0.1:")
    assert "X-Amz-Target: AmazonSQS.SendMessage\r\n" in head
    assert "Content-Type: application/x-amz-json-1.0\r\n" in head
    assert "User-Agent: veil/" in head
    assert " consumer app/1\r\n" in head
    assert "amz-sdk-request: attempt=1\r\n" in head
    assert given == {
        "QueueUrl": "u",
        "MessageBody": "body",
        "MessageAttributes": {
            "a": {"DataType": "String", "StringValue": "é"},
            "b": {"DataType": "Binary", "BinaryValue": "AP8="},
        },
        "MessageGroupId": "g",
        "MessageDeduplicationId": "d",
        "DelaySeconds": 0,
    }
    assert invocation(head) != invocation(second_head)


def invocation(head: str) -> str:
    return head.partition("amz-sdk-invocation-id: ")[2].partition("\r\n")[0]


# ---- answers that are none

BAD = {
    "garbage": (b"\x00\x01 what is this\r\n\r\n", "not HTTP"),
    "an upgrade": (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "not HTTP"),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Le", "cut in the middle"),
    "half a body": (b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"Succ', "cut in the middle"),
    "half a chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{", "cut in the middle"),
    "nothing": (b"", "without an answer"),
    "no JSON": (http(200, b"<html>"), "cannot be understood"),
    "other JSON": (http(200, b'["x"]'), "cannot be understood"),
    "JSON cut short": (http(200, b'{"Successful":'), "cannot be understood"),
    "503 from a proxy": (http(503, b"<html>busy"), "HTTP 503"),
    "404 from something else": (http(404, b"not here"), "HTTP 404"),
    "503 in SQS's words": (http(503, {"__type": "ServiceUnavailable"}), "ServiceUnavailable"),
    "a redirect": (http(302, b"", "Location: https://x"), "not followed"),
    "too much": (b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b" " * 2_000_000, "larger than"),
    "a head without end": (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300_000, "larger than"),
}


@pytest.mark.parametrize(("answer", "words"), BAD.values(), ids=BAD.keys())
async def test_an_answer_that_is_none_leaves_the_outcome_unknown(answer: bytes, words: str) -> None:
    requests = 0

    async def behave(talk: Talk) -> None:
        nonlocal requests
        await talk.request()
        requests += 1
        talk.say(answer)

    async with bad_server(behave) as endpoint, client_of(endpoint) as client:
        failure, said = await failure_of(client.delete("q", ["r"]))
        assert failure is Failure.UNREACHABLE
        assert words in said
        assert requests == 1  # to try again is for the caller to decide
        with pytest.raises(ApiError):
            await client.delete("q", ["r"])
        assert requests == 2  # and the broken connection is not used again


WAYS = {
    "with a length": DELETED,
    "in chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (b'{"Succ', b'essful":[{"Id":"0"}]}', b"")),
    "until the connection ends": b'HTTP/1.1 200 OK\r\nServer: old\r\n\r\n{"Successful":[{"Id":"0"}]}',
    "after an interim answer": b"HTTP/1.1 100 Continue\r\n\r\n" + DELETED,
    "then it closes": http(200, {"Successful": [{"Id": "0"}]}, "Connection: close"),
    "with something behind it": DELETED + b"HTTP/1.1 200 OK\r\n",
}


@pytest.mark.parametrize("answer", WAYS.values(), ids=WAYS.keys())
async def test_every_way_to_end_an_answer_is_understood(answer: bytes) -> None:
    async with bad_server(says(answer)) as endpoint, client_of(endpoint) as client:
        for _ in range(2):
            assert await client.delete("q", ["r"]) == [None]


async def test_an_answer_in_single_bytes_is_put_together() -> None:
    async def behave(talk: Talk) -> None:
        await talk.request()
        for byte in DELETED:
            talk.say(bytes([byte]))
            await talk.writer.drain()
            await asyncio.sleep(0)

    async with bad_server(behave) as endpoint, client_of(endpoint) as client:
        assert await client.delete("q", ["r"]) == [None]


async def test_what_arrives_unasked_is_never_taken_for_an_answer() -> None:
    stray = asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.request()
        talk.say(DELETED)
        if talk.number == 1:
            await asyncio.wait_for(stray.wait(), 60)
            talk.say(http(200, {"Successful": [{"Id": "0"}]}))
            assert await talk.gone() == b""

    async with bad_server(behave) as endpoint, client_of(endpoint) as client:
        await client.delete("q", ["r"])
        (connection,) = client._pool._resting
        stray.set()
        await asyncio.wait_for(connection.gone, 60)
        assert await client.delete("q", ["r"]) == [None]


# ---- time


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_a_service_that_does_not_answer_is_given_up(begun: bytes) -> None:
    async def behave(talk: Talk) -> None:
        await talk.request()
        talk.say(begun)
        await talk.gone()

    async with bad_server(behave) as endpoint, client_of(endpoint, read_timeout_s=0.05) as client:
        failure, words = await failure_of(client.delete("q", ["r"]))
        assert (failure, "no answer within 0.05 s" in words) == (Failure.UNREACHABLE, True)


async def test_a_long_poll_gets_its_wait_on_top() -> None:
    async def behave(talk: Talk) -> None:
        given = await talk.request()
        assert given["WaitTimeSeconds"] == 20
        await asyncio.sleep(0.2)  # longer than any other call may take here
        talk.say(http(200, {}))
        await talk.gone()

    async with bad_server(behave) as endpoint, client_of(endpoint, read_timeout_s=0.05) as client:
        assert await client.receive("q", count=10, wait_s=20) == []


async def test_nobody_listening_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with client_of(f"http://127.0.0.1:{taken.getsockname()[1]}") as client:
            failure, words = await failure_of(client.delete("q", ["r"]))
    assert failure is Failure.UNREACHABLE
    assert "connection refused" in words


async def test_a_host_without_a_name_is_unreachable() -> None:
    async with client_of("http://no-such-host.invalid") as client:
        assert (await failure_of(client.delete("q", ["r"])))[0] is Failure.UNREACHABLE


async def test_a_name_of_several_addresses_that_all_refuse_is_a_service_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        port = nobody.getsockname()[1]

        async def both(*_: Any, **__: Any) -> list[Any]:
            addresses = ("127.0.0.1", "127.0.0.2")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

        monkeypatch.setattr(
            asyncio.get_running_loop(), "getaddrinfo", both
        )  # of localhost, as ::1 and 127.0.0.1
        async with client_of(f"http://localhost:{port}") as client:
            with pytest.raises(ApiError, match="connection refused") as raised:
                await client.delete("q", ["r"])
    assert raised.value.away


async def test_a_connection_that_does_not_come_about_is_given_up() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # never accepts, so that its backlog is soon full
        port = full.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for each in fillers:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        settings = {"connect_timeout_s": 0.1, "read_timeout_s": 0.1}
        async with client_of(f"http://127.0.0.1:{port}", **settings) as client:
            assert (await failure_of(client.delete("q", ["r"])))[0] is Failure.UNREACHABLE
        for each in fillers:
            each.close()


async def test_calls_beyond_the_connections_wait_for_their_turn_but_not_for_ever() -> None:
    free = asyncio.Event()

    async def behave(talk: Talk) -> None:
        while True:
            await talk.request()
            await free.wait()
            talk.say(DELETED)

    async with bad_server(behave) as endpoint, client_of(endpoint, connections=2) as client:
        calls = [asyncio.create_task(client.delete("q", ["r"])) for _ in range(6)]
        await asyncio.sleep(0)  # all of them have begun
        client._read_timeout_s = 0.05
        failure, words = await failure_of(client.delete("q", ["r"]))
        assert (failure, "all 2 connections were busy" in words) == (Failure.UNREACHABLE, True)
        free.set()
        assert await asyncio.gather(*calls) == [[None]] * 6
        assert len(client._pool._open) == 2


# ---- connections that the service closed at rest


class Forgetful:
    """Answers the first request of each connection and cuts it when the second comes, unread or not."""

    def __init__(self, connections: int = 1) -> None:
        self.attempts: list[tuple[str, str]] = []
        self._forgetful = connections

    async def __call__(self, talk: Talk) -> None:
        while True:
            given = await talk.request()
            self.attempts.append((talk.header("amz-sdk-request"), invocation(talk.head)))
            if len(self.attempts) > 1 and talk.number <= self._forgetful:
                return
            if "MessageBody" in given:
                talk.say(http(200, {"MessageId": "m"}))
            elif "Entries" in given:
                talk.say(http(200, {"Successful": [{"Id": each["Id"]} for each in given["Entries"]]}))
            else:
                talk.say(http(200, {"QueueUrl": "u", "Attributes": {}, **ONE_MESSAGE}))


CALLS = {
    "delete": lambda client: client.delete("q", ["r"]),
    "extend": lambda client: client.extend("q", [("r", 30)]),
    "attributes": lambda client: client.attributes("q"),
    "queue_url": lambda client: client.queue_url("q"),
    "receive": lambda client: client.receive("q", count=1, wait_s=0),
    "send with a deduplication id": lambda client: client.send("q", "b", deduplication_id="d"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_a_closed_connection_is_met_with_one_more_try_on_a_new_one(call: Any) -> None:
    service = Forgetful()
    async with bad_server(service) as endpoint, client_of(endpoint) as client:
        await client.delete("q", ["r"])
        await call(client)
    (_, first), second, third = service.attempts
    assert (second[0], third[0]) == ("attempt=1", "attempt=2")
    assert first != second[1] == third[1]


async def test_a_send_is_not_made_twice() -> None:
    service = Forgetful()
    async with bad_server(service) as endpoint, client_of(endpoint) as client:
        await client.delete("q", ["r"])
        assert (await failure_of(client.send("q", "b")))[0] is Failure.UNREACHABLE
    assert len(service.attempts) == 2


async def test_a_send_does_not_trust_a_connection_that_has_rested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_SEND_REST_S_MAX", 0.0)
    service = Forgetful()
    async with bad_server(service) as endpoint, client_of(endpoint) as client:
        await client.delete("q", ["r"])
        assert await client.send("q", "b") == "m"
        assert len(client._pool._open) == 2


async def test_the_second_try_is_the_last() -> None:
    async def behave(talk: Talk) -> None:
        await talk.request()
        if talk.number == 1:
            talk.say(DELETED)
            await talk.request()

    async with bad_server(behave) as endpoint, client_of(endpoint) as client:
        await client.delete("q", ["r"])
        failure, words = await failure_of(client.delete("q", ["r"]))
        assert (failure, "without an answer" in words) == (Failure.UNREACHABLE, True)


async def test_the_window_is_counted_from_the_first_try() -> None:
    now = iter(range(100, 200))
    service = Forgetful()
    async with bad_server(service) as endpoint, client_of(endpoint, monotonic=lambda: next(now)) as client:
        await client.delete("q", ["r"])
        (message,) = await client.receive("q", count=1, wait_s=0)
    assert message.began_at_s == 100


async def test_an_answer_that_came_while_the_process_stood_still_is_read() -> None:
    connection = http_connection.ClientConnection(asyncio.get_running_loop(), lambda _: None)
    connection.connection_made(asyncio.Transport())
    connection._transport = Mock()
    exchange = asyncio.ensure_future(connection.exchange(b"", timeout_s=3600, answer_bytes_max=10_000))
    await asyncio.sleep(0)
    connection._time_is_up(3600)  # uvloop looks at its timers first, and only then at what can be read
    connection.data_received(DELETED)
    assert (await exchange).status == 200


# ---- the questions at the start


async def test_a_service_that_is_just_starting_gets_a_moment() -> None:
    busy = http(503, {"__type": "ServiceUnavailable"})

    async def behave(talk: Talk) -> None:
        await talk.request()
        talk.say(busy if talk.number < 3 else http(200, {"QueueUrl": "u"}))

    async with bad_server(behave) as endpoint, client_of(endpoint) as client:
        assert await client.queue_url("q") == "u"


async def test_and_no_more_than_that() -> None:
    requests = 0

    async def behave(talk: Talk) -> None:
        nonlocal requests
        await talk.request()
        requests += 1

    async with bad_server(behave) as endpoint, client_of(endpoint) as client:
        assert (await failure_of(client.attributes("q")))[0] is Failure.UNREACHABLE
    assert requests == 3


# ---- cancelling and closing


async def test_a_cancelled_receive_closes_its_connection_at_once() -> None:
    waiting, left = asyncio.Event(), asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.request()
        waiting.set()
        await talk.gone()
        left.set()

    async with bad_server(behave) as endpoint, client_of(endpoint) as client:
        poll = asyncio.create_task(client.receive("q", count=10, wait_s=20))
        await waiting.wait()
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
        await asyncio.wait_for(left.wait(), 60)


async def test_a_cancelled_delete_cuts_its_connection() -> None:
    waiting, left = asyncio.Event(), asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.request()
        waiting.set()
        await talk.gone()
        left.set()

    async with bad_server(behave) as endpoint, client_of(endpoint) as client:
        call = asyncio.create_task(client.delete("q", ["r"]))
        await waiting.wait()
        call.cancel()
        await asyncio.wait_for(left.wait(), 60)
        assert not client._pool._resting


class Late:
    """Answers a receive although its client has gone, and notes what is given back."""

    def __init__(self, messages: int = 12) -> None:
        self.waiting = asyncio.Event()
        self.given_back: list[tuple[str, int]] = []
        self._messages = messages

    async def __call__(self, talk: Talk) -> None:
        while True:
            given = await talk.request()
            if "Entries" in given:
                entries = given["Entries"]
                self.given_back += [(each["ReceiptHandle"], each["VisibilityTimeout"]) for each in entries]
                talk.say(http(200, {"Successful": [{"Id": each["Id"]} for each in entries]}))
                continue
            self.waiting.set()
            await talk.gone()
            found = [
                {"MessageId": f"m{at}", "ReceiptHandle": f"r{at}", "Body": "b"}
                for at in range(self._messages)
            ]
            talk.say(http(200, {"Messages": found}))
            return


async def test_messages_on_their_way_to_a_cancelled_receive_are_made_visible_again() -> None:
    service = Late()
    async with bad_server(service) as endpoint:
        client = SqsClient(endpoint=endpoint)
        poll = asyncio.create_task(client.receive("q", count=10, wait_s=20))
        await service.waiting.wait()
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
        await client.close()
    assert service.given_back == [(f"r{at}", 0) for at in range(12)]


async def test_closing_ends_receives_under_way_and_gives_back_what_was_coming() -> None:
    service = Late(messages=1)
    async with bad_server(service) as endpoint:
        client = SqsClient(endpoint=endpoint)
        poll = asyncio.create_task(client.receive("q", count=10, wait_s=20))
        await service.waiting.wait()
        await client.close()
        assert (await failure_of(poll))[0] is Failure.UNREACHABLE
        assert "closed" in (await failure_of(client.delete("q", ["r"])))[1]
    assert service.given_back == [("r0", 0)]


async def test_a_receive_that_comes_too_late_claims_nothing_while_the_client_is_closing() -> None:
    heard: list[str] = []

    async def behave(talk: Talk) -> None:
        await talk.request()
        heard.append(talk.header("x-amz-target"))
        talk.say(DELETED)

    async with bad_server(behave) as endpoint, client_of(endpoint) as client:
        await client._pool.abandon()  # as closing does first, before it waits for what is given back
        failure, words = await failure_of(client.receive("q", count=1, wait_s=0))
        assert (failure, "was closed" in words) == (Failure.UNREACHABLE, True)
        assert await client.extend("q", [("r", 0)]) == [None]
    assert heard == ["AmazonSQS.ChangeMessageVisibilityBatch"]


async def test_an_answer_that_comes_in_the_very_moment_of_the_cancelling_is_given_back_too() -> None:
    given_back = asyncio.Event()

    async def behave(talk: Talk) -> None:
        while True:
            given = await talk.request()
            if "Entries" in given:
                given_back.set()
                talk.say(DELETED)
            else:
                talk.say(http(200, ONE_MESSAGE))

    async with bad_server(behave) as endpoint, client_of(endpoint) as client:
        poll = asyncio.create_task(client.receive("q", count=1, wait_s=0))

        def cancel_when_answered() -> None:
            for connection in client._pool._open:
                if connection._answers:
                    poll.cancel()  # the answer is there, its receiver has not run yet
                    return
            if not poll.done():
                asyncio.get_running_loop().call_soon(cancel_when_answered)

        cancel_when_answered()
        with pytest.raises(asyncio.CancelledError):
            await poll
        await asyncio.wait_for(given_back.wait(), 60)
        assert await client.delete("q", ["r"]) == [None]  # the connection is as good as before


async def test_a_service_that_keeps_a_cancelled_receive_open_does_not_hold_up_the_closing() -> None:
    waiting = asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.request()
        waiting.set()
        await asyncio.sleep(600)

    async with bad_server(behave) as endpoint, client_of(endpoint) as client:
        poll = asyncio.create_task(client.receive("q", count=10, wait_s=20))
        await waiting.wait()
        poll.cancel()
        async with asyncio.timeout(60):
            await client.close()


# ---- TLS


def certificate(directory: Path, host: x509.GeneralName) -> tuple[ssl.SSLContext, str]:
    """A service's certificate for that host, signed by itself, and the file that says to trust it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([host]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, key_pem = directory / "cert.pem", directory / "key.pem"
    pem.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key_pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key_pem)
    return context, str(pem)


def loopback_address() -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


async def test_tls_works_with_a_trusted_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, trusted = certificate(tmp_path, loopback_address())
    monkeypatch.setenv("AWS_CA_BUNDLE", trusted)
    waiting = asyncio.Event()

    async def behave(talk: Talk) -> None:
        for _ in range(2):
            await talk.request()
            talk.say(DELETED)
        await talk.request()
        waiting.set()
        talk.say(http(200, ONE_MESSAGE)[:-5])
        await talk.gone()

    async with bad_server(behave, context) as endpoint, client_of(endpoint) as client:
        assert [await client.delete("q", ["r"]) for _ in range(2)] == [[None]] * 2
        assert len(client._pool._open) == 1
        poll = asyncio.create_task(client.receive("q", count=1, wait_s=20))
        await waiting.wait()
        poll.cancel()


@pytest.mark.parametrize("trusting", [False, True], ids=["not trusted", "for another host"])
async def test_a_certificate_that_does_not_fit_is_refused(
    trusting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = x509.DNSName("elsewhere.example") if trusting else loopback_address()
    context, trusted = certificate(tmp_path, host)
    if trusting:
        monkeypatch.setenv("AWS_CA_BUNDLE", trusted)
    async with bad_server(says(DELETED), context) as endpoint, client_of(endpoint) as client:
        failure, words = await failure_of(client.delete("q", ["r"]))
        assert failure is Failure.UNREACHABLE
        assert "certificate" in words


@pytest.mark.parametrize("settings", [{"connections": 0}, {"user_agent_extra": "a\r\nb"}])
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        SqsClient(endpoint="http://127.0.0.1:1", **settings)


@pytest.mark.parametrize(
    ("offered", "bulk_max"), [("100", 100), ("5000", 100), ("3", 10), ("many", 10), ("9" * 5_000, 10)]
)
async def test_a_service_may_offer_more_than_ten_messages_a_call(offered: str, bulk_max: int) -> None:
    async def behave(talk: Talk) -> None:
        await talk.request()
        talk.say(http(200, {}, f"x-veil-bulk: {offered}"))
        await talk.gone()

    async with bad_server(behave) as url, client_of(url) as client:
        assert await client.receive(url, count=10, wait_s=0) == []
        assert client.bulk_max == bulk_max


async def test_a_service_that_refuses_what_it_offered_is_asked_by_ten_from_then_on() -> None:
    """Behind one address may be nodes of several versions, or a proxy that lets only known headers through."""
    counts: list[tuple[int, str]] = []

    async def behave(talk: Talk) -> None:
        while True:
            given = await talk.request()
            entries = given.get("Entries", [])
            counts.append((given.get("MaxNumberOfMessages") or len(entries), talk.header("x-veil-bulk")))
            if counts[-1][0] > 10:
                talk.say(http(400, {"__type": "com.amazonaws.sqs#TooManyEntriesInBatchRequest"}))
            elif entries:
                talk.say(http(200, {"Successful": [{"Id": each["Id"]} for each in entries]}))
            else:
                talk.say(http(200, {}, "x-veil-bulk: 100"))

    receipts = [str(number) for number in range(25)]
    async with bad_server(behave) as url, client_of(url, connections=1) as client:
        assert await client.receive(url, count=10, wait_s=0) == []
        assert client.bulk_max == 100
        assert await client.delete(url, receipts) == [None] * 25
        assert counts == [(10, ""), (25, "1"), (10, ""), (10, ""), (5, "")]
        assert await client.receive(url, count=10, wait_s=0) == []
        assert client.bulk_max == 10
    async with bad_server(behave) as url, client_of(url) as client:
        await client.receive(url, count=10, wait_s=0)
        counts.clear()
        assert await client.receive(url, count=client.bulk_max, wait_s=0) == []
        assert counts == [(100, "1"), (10, "")]


async def test_errors_that_are_told_with_deletes_travel_by_ten() -> None:
    headers: list[tuple[int, str]] = []

    async def behave(talk: Talk) -> None:
        while True:
            entries = (await talk.request())["Entries"]
            headers.append((len(entries), talk.header("x-veil-outcome")))
            talk.say(http(200, {"Successful": [{"Id": each["Id"]} for each in entries]}))

    reported = [
        ReportedOutcome("failed", "shop.NoStock", f"none left of {at}", "x" * 1_000) for at in range(12)
    ]
    async with bad_server(behave) as url, client_of(url, connections=1) as client:
        assert await client.delete(url, list("abcdefghijkl"), reported=reported) == [None] * 12
    assert [count for count, _ in headers] == [10, 2]
    assert "none left of 11" in headers[1][1]
