"""Real clients over TLS with a private authority, and what each says where the certificate or the scheme will not do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import SSLError

from tests.tls_kit import Authority
from veil import Consumer
from veil.client.api import ApiError, Failure
from veil.client.client import SqsClient
from veil.testing import VeilServer


class Secured(NamedTuple):
    """A server by its address, and the authority of its certificate."""

    server: VeilServer
    ca: Path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    with VeilServer("--store", "memory", *authority.issue().flags) as server:
        yield Secured(server, authority.ca)


@pytest.fixture
def trusting(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> VeilServer:
    """The server, in an environment that leads to it and trusts it."""
    for name, value in {**secured.server.environ, "AWS_CA_BUNDLE": str(secured.ca)}.items():
        monkeypatch.setenv(name, value)
    return secured.server


def veil(*arguments: str) -> tuple[int, str]:
    """Exit code and all that the command says, in this environment."""
    done = subprocess.run(
        [sys.executable, "-m", "veil.cli.main", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("VEIL_")},
    )  # fmt: skip
    return done.returncode, done.stdout.strip()


def test_boto3_and_the_command_go_by_aws_ca_bundle(trusting: VeilServer):
    sqs = boto3.client("sqs")
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    assert url.startswith("https://127.0.0.1:")
    sqs.send_message(QueueUrl=url, MessageBody="hello")
    code, said = veil("msg", "peek", "orders")
    assert code == 0 and "hello" in said
    code, said = veil("doctor")
    assert f"{trusting.endpoint_url} answers" in said, said
    sqs.delete_queue(QueueUrl=url)
    sqs.close()


def test_the_profile_may_name_the_authorities(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for name, value in secured.server.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    (tmp_path / "config").write_text(f"[default]\nca_bundle = {secured.ca}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert veil("queue", "ls")[0] == 0


async def test_a_consumer_handles_messages_over_tls(trusting: VeilServer):
    sqs = boto3.client("sqs")
    url = sqs.create_queue(QueueName="films")["QueueUrl"]
    for n in range(20):
        sqs.send_message(QueueUrl=url, MessageBody=f"m{n}")
    handled: set[str] = set()
    done = asyncio.Event()
    consumer = Consumer("films", helper_process=True)

    @consumer.handler
    async def handle(body: str) -> None:
        handled.add(body)
        if len(handled) == 20:
            done.set()

    async with consumer, asyncio.timeout(60):
        await done.wait()
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessages"] == counts["ApproximateNumberOfMessagesNotVisible"] == "0"
    sqs.delete_queue(QueueUrl=url)
    sqs.close()


# ---- what will not do


class Ill(NamedTuple):
    """A server whose certificate clients refuse, and the file that they trust."""

    server: VeilServer
    bundle: Path
    told: str


ILLS = {
    "expired": "the certificate of 127.0.0.1 has expired: the server needs a new one",
    "another host": "the server's certificate is not for 127.0.0.1: use a name that is in it",
    "unknown authority": "the certificate of 127.0.0.1 is not trusted: AWS_CA_BUNDLE={bundle} does not hold the authority "
    "that signed it; set AWS_CA_BUNDLE to a file with that authority's certificate",
}


@pytest.fixture(params=ILLS)
def ill(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ill]:
    authority = Authority(tmp_path)
    (tmp_path / "other").mkdir()
    bundle = authority.ca
    if request.param == "expired":
        pair = authority.issue(days=-1)
    elif request.param == "another host":
        pair = authority.issue("veil.example", "10.0.0.1")
    else:
        pair, bundle = authority.issue(), Authority(tmp_path / "other").ca
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    with VeilServer("--store", "memory", *pair.flags) as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        yield Ill(server, bundle, ILLS[request.param].format(bundle=bundle))


async def test_a_certificate_that_will_not_do_is_refused_by_every_client_with_what_to_do(ill: Ill):
    sqs = boto3.client("sqs", config=Config(retries={"total_max_attempts": 1}))
    with pytest.raises(SSLError):
        await asyncio.to_thread(sqs.list_queues)
    sqs.close()
    code, said = await asyncio.to_thread(veil, "queue", "ls")
    assert code == 1 and said.startswith(f"veil: {ill.told}") and "\n" not in said
    client = SqsClient()
    with pytest.raises(ApiError) as refused:
        await client.receive("q", count=1, wait_s=0)
    # Not for good: a server may be given a better certificate while its consumers wait.
    assert refused.value.failure is Failure.UNREACHABLE
    assert ill.told in refused.value.message
    await client.close()


async def heard(endpoint: str) -> str:
    """What the consumer's client says of that endpoint."""
    client = SqsClient(endpoint=endpoint)
    with pytest.raises(ApiError) as refused:
        await client.receive("q", count=1, wait_s=0)
    await client.close()
    return refused.value.message


async def test_the_wrong_scheme_is_told_with_the_right_one(trusting: VeilServer):
    plainly = trusting.endpoint_url.replace("https:", "http:")
    assert "this port speaks TLS: use https://" in await heard(plainly)
    assert "this port speaks TLS: use https://" in veil("queue", "ls", "--endpoint", plainly)[1]
    with VeilServer() as plain:
        securely = plain.endpoint_url.replace("http:", "https:")
        told = "127.0.0.1 does not speak TLS at this port: use http://"
        assert told in await heard(securely)
        assert told in veil("queue", "ls", "--endpoint", securely)[1]


@pytest.mark.parametrize("content", [None, "", "not a certificate"])
def test_a_bundle_that_cannot_be_used_is_told(
    trusting: VeilServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
):
    bundle = tmp_path / "bundle.pem"
    if content is not None:
        bundle.write_text(content)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    told = f"AWS_CA_BUNDLE={bundle}: expected a file of certificates in PEM ("
    code, said = veil("queue", "ls")
    assert code == 1 and said.startswith(f"veil: {told}") and "\n" not in said
    with pytest.raises(ApiError) as refused:
        SqsClient()
    assert refused.value.failure is Failure.FATAL and told in refused.value.message


async def test_a_client_certificate_that_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    authority = Authority(tmp_path)
    own = authority.issue("worker", name="worker", client=True)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.ca))
    flags = (*authority.issue().flags, "--tls-client-ca", str(authority.ca))
    with VeilServer("--store", "memory", *flags) as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        told = "requires a client certificate, which this client cannot present"
        assert told in (await asyncio.to_thread(veil, "queue", "ls"))[1]
        assert told in await heard(server.endpoint_url)
        sqs = boto3.client("sqs", config=Config(client_cert=(str(own.cert), str(own.key))))
        assert sqs.list_queues()["ResponseMetadata"]["HTTPStatusCode"] == 200
        sqs.close()
