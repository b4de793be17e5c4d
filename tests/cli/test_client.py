from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.cli.conftest import Veil
from tests.http_stub import StubAnswer, StubRequest, http_stub
from tests.waiting import PATIENCE_S
from veil.client.api import ApiError, Failure
from veil.client.blocking import BlockingClient, CallFailed, ServiceTarget
from veil.testing import VeilServer

BUSY, HUNG_UP = StubAnswer(b"busy", 503), None


@contextmanager
def a_server(answer: Callable[[int], StubAnswer | None]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that answers its n-th request so; gives its URL and the headers it saw."""
    seen: list[dict[str, str]] = []

    def answered(asked: StubRequest) -> StubAnswer | None:
        seen.append(asked.headers)
        return answer(len(seen))

    with http_stub(answered) as url:
        yield url, seen


def a_client(endpoint: str) -> BlockingClient:
    return BlockingClient(ServiceTarget(endpoint, "us-east-1"), timeout_s=PATIENCE_S)


@pytest.mark.parametrize("failure", [BUSY, HUNG_UP], ids=["503", "hang up"])
def test_a_repeatable_call_is_tried_again_under_the_same_id(failure: StubAnswer | None) -> None:
    with (
        a_server(lambda n: failure if n < 3 else StubAnswer(b'{"QueueUrls": []}')) as (url, seen),
        a_client(url) as client,
    ):
        assert client.call("ListQueues") == {"QueueUrls": []}
    assert len(seen) == 3
    assert len({headers["amz-sdk-invocation-id"] for headers in seen}) == 1


def test_a_call_that_goes_on_failing_ends_with_the_last_failure() -> None:
    body = json.dumps({"__type": "com.amazon.coral.service#InternalFailure", "message": "no"}).encode()
    with a_server(lambda n: StubAnswer(body, 500)) as (url, seen), a_client(url) as client:
        with pytest.raises(CallFailed, match="InternalFailure: no"):
            client.call("ListQueues")
        assert len(seen) == 3


def test_a_send_is_never_repeated() -> None:
    with a_server(lambda n: HUNG_UP) as (url, seen), a_client(url) as client:
        with pytest.raises(ApiError) as raised:
            client.call("SendMessage", {"QueueUrl": "q", "MessageBody": "x"})
        assert raised.value.failure is Failure.UNREACHABLE
        assert len(seen) == 1


def test_requests_are_signed_by_the_key_of_the_place(
    veil: Veil, veil_server: VeilServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"VEIL_KEYS": "AKIDVEIL:s3cret"}
    with VeilServer("--store", "memory", environ=environ) as guarded:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", guarded.endpoint_url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDVEIL")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
        assert veil("queue", "create", "orders").code == 0
        assert veil("msg", "send", "orders", "ünï ✓").code == 0

        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        refused = veil("queue", "ls")
    assert refused.code == 1
    assert "SignatureException" in refused.err
    assert refused.err.count("\n") == 1


def test_nobody_there_is_one_line_that_says_how_to_start_a_server(command: Veil) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, not listening: a connection is refused
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
        ran = command("queue", "ls", "--endpoint", endpoint)
    assert (ran.code, ran.out) == (1, "")
    assert (
        ran.err
        == f"veil: no server answers at {endpoint} (connection refused); start a server with: veil serve\n"
    )


def test_an_endpoint_that_is_no_url_is_a_wrong_argument(command: Veil) -> None:
    ran = command("queue", "ls", "--endpoint", "localhost:9324")
    assert ran.code == 2
    assert "'localhost:9324': expected a URL" in ran.err


def test_something_that_is_not_sqs_is_told_without_its_page(command: Veil) -> None:
    page = b"<html>\x1b[31m" + b"x" * 5000
    with a_server(lambda n: StubAnswer(page)) as (url, _):
        ran = command("queue", "ls", "--endpoint", url)
    assert ran.code == 1
    assert "is this an SQS endpoint?" in ran.err

    with a_server(lambda n: StubAnswer(page, 404)) as (url, _):
        ran = command("queue", "ls", "--endpoint", url)
    assert ran.code == 1
    assert "\x1b" not in ran.err
    assert len(ran.err) < 400
