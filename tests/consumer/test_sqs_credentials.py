"""Credentials of every usual kind are found in the order in which the SDK finds them."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from tests.consumer.sqs_kit import Talk, bad_server, client_of, failure_of, forget_aws, http
from tests.http_stub import StubAnswer, StubRequest, http_stub
from veil.client.api import ApiError, Failure
from veil.client.credentials import DUMMY, Credentials, CredentialsSource

AWS = "https://sqs.eu-west-1.amazonaws.com"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "env-secret"}
KEYS_FILE = """
[default]
aws_access_key_id = FILE
aws_secret_access_key = file-secret
aws_session_token = file-token

[other]
aws_access_key_id = OTHER
aws_secret_access_key = other-secret
"""


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    forget_aws(monkeypatch, tmp_path)
    (tmp_path / ".aws").mkdir()
    return tmp_path / ".aws"


class Clock:
    """Monotonic time as the test has it."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def source(
    profile: str | None = None, given: Credentials | None = None, *, loopback: bool = False, clock: Any = None
) -> CredentialsSource:
    return CredentialsSource(
        given, profile, endpoint_url=AWS, dummies_will_do=loopback, monotonic=clock or Clock()
    )


def process_that_prints(home: Path, **keys: str) -> str:
    """A credential process; it counts its runs in a file beside it."""
    script = home / "process.sh"
    text = json.dumps({"Version": 1, "AccessKeyId": "PROC", "SecretAccessKey": "proc-secret", **keys})
    script.write_text(f"#!/bin/sh\necho run >> {home}/runs\ncat <<'EOF'\n{text}\nEOF\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def runs(home: Path) -> int:
    return len((home / "runs").read_text().splitlines())


CASES = {
    "nothing but the environment": (ENVIRONMENT, "", "", None, "ENV"),
    "a session token in the environment": (ENVIRONMENT | {"AWS_SESSION_TOKEN": "t"}, "", "", None, "ENV"),
    "the environment before the files": (ENVIRONMENT, KEYS_FILE, "", None, "ENV"),
    "a secret without its id is no key": ({"AWS_SECRET_ACCESS_KEY": "s"}, KEYS_FILE, "", None, "FILE"),
    "the default profile": ({}, KEYS_FILE, "", None, "FILE"),
    "a profile by variable": ({"AWS_PROFILE": "other"}, KEYS_FILE, "", None, "OTHER"),
    "two profiles by variable": (
        {"AWS_PROFILE": "default", "AWS_DEFAULT_PROFILE": "other"}, KEYS_FILE, "", None, "OTHER",
    ),
    "the environment before a profile by variable": (
        ENVIRONMENT | {"AWS_PROFILE": "other"}, KEYS_FILE, "", None, "ENV",
    ),
    "a named profile before the environment": (ENVIRONMENT, KEYS_FILE, "", "other", "OTHER"),
    "keys in the config file": (
        {}, "", "[default]\naws_access_key_id = CONF\naws_secret_access_key = s", None, "CONF",
    ),
    "the credentials file before the config file": (
        {}, KEYS_FILE, "[default]\naws_access_key_id = CONF\naws_secret_access_key = s", None, "FILE",
    ),
    "a process": ({}, "", "[default]\ncredential_process = PROCESS", None, "PROC"),
    "keys in the credentials file before a process": (
        {}, KEYS_FILE, "[default]\ncredential_process = PROCESS", None, "FILE",
    ),
    "a process before keys in the config file": (
        {}, "",
        "[default]\ncredential_process = PROCESS\naws_access_key_id = CONF\naws_secret_access_key = s", None, "PROC",
    ),
    "a process of a named profile": (
        ENVIRONMENT, KEYS_FILE, "[profile p]\ncredential_process = PROCESS", "p", "PROC",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_the_order_is_that_of_the_sdk(
    case: tuple[dict[str, str], str, str, str | None, str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables, keys, config, profile, expected = case
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (home / "credentials").write_text(keys)
    (home / "config").write_text(config.replace("PROCESS", process_that_prints(home)))
    found = await source(profile).current()
    assert found.key_id == expected
    by_sdk = botocore.session.Session(profile=profile).get_credentials().get_frozen_credentials()
    assert (found.key_id, found.secret, found.session_token) == (
        by_sdk.access_key,
        by_sdk.secret_key,
        by_sdk.token,
    )


async def test_what_is_given_comes_before_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    given = Credentials("GIVEN", "s")
    assert source(given=given).ready() is given


def test_the_client_loads_no_sdk() -> None:
    code = "import veil.client.client, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"botocore", "boto3", "uvloop"}.isdisjoint(done.stdout.split())


async def test_static_keys_need_no_botocore(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    (home / "credentials").write_text(KEYS_FILE)
    assert (await source().current()).key_id == "FILE"


async def test_without_botocore_other_kinds_say_what_to_install(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    (home / "config").write_text(f"[default]\ncredential_process = {process_that_prints(home)}")
    failure, words = await failure_of(source().current())
    assert failure is Failure.FATAL
    assert "pip install veilmq[aws]" in words
    # A loopback endpoint makes no difference: somebody has set up a process and means it.
    assert (await failure_of(source(loopback=True).current()))[0] is Failure.FATAL


async def test_a_loopback_server_gets_dummies_and_aws_gets_an_error() -> None:
    assert await source(loopback=True).current() is DUMMY
    failure, words = await failure_of(source().current())
    assert failure is Failure.FATAL
    assert AWS in words
    assert "AWS_ACCESS_KEY_ID" in words


async def test_half_a_key_is_an_error_as_it_is_for_the_sdk(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "credentials").write_text("[default]\naws_access_key_id = FILE\n")
    failure, words = await failure_of(source(loopback=True).current())
    assert failure is Failure.FATAL
    assert "profile default" in words
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENV")
    assert "environment" in (await failure_of(source(loopback=True).current()))[1]


async def test_a_profile_that_is_nowhere_is_named() -> None:
    failure, words = await failure_of(source("missing").current())
    assert failure is Failure.FATAL
    assert "missing" in words


async def test_a_process_that_fails_is_fatal_at_first(home: Path) -> None:
    (home / "config").write_text("[default]\ncredential_process = /bin/false")
    assert (await failure_of(source().current()))[0] is Failure.FATAL


@pytest.mark.parametrize("bad", ["with blank", "line\n", "é", ""])
def test_keys_that_cannot_travel_in_a_header_are_refused_without_being_shown(bad: str) -> None:
    with pytest.raises(ApiError, match="secret must be printable ASCII") as raised:
        Credentials("AKID", bad, origin="environment")
    assert not bad or bad not in str(raised.value)
    assert "hush" not in repr(Credentials("AKID", "hush", "hush"))


def in_minutes(minutes: float) -> str:
    return (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()


async def test_lasting_credentials_are_fetched_once(home: Path) -> None:
    process = process_that_prints(home, SessionToken="t", Expiration=in_minutes(60))
    (home / "config").write_text(f"[default]\ncredential_process = {process}")
    clock = Clock()
    asked = source(clock=clock)
    assert asked.ready() is None
    first = await asked.current()
    for clock.now_s in range(0, 100, 3):
        assert asked.ready() is first
        assert await asked.current() is first
    assert runs(home) == 1


async def test_credentials_about_to_expire_are_refreshed_and_the_old_ones_used_until_then(home: Path) -> None:
    process_that_prints(home, SessionToken="old", Expiration=in_minutes(12))  # within botocore's 15
    (home / "config").write_text(f"[default]\ncredential_process = {home}/process.sh")
    clock = Clock()
    asked = source(clock=clock)
    first = await asked.current()
    assert asked.ready() is first  # not asked again at once
    process_that_prints(home, SessionToken="new", Expiration=in_minutes(60))
    clock.now_s = 6
    assert asked.ready() is None
    assert (first.session_token, (await asked.current()).session_token) == ("old", "new")
    assert asked.ready() is not None


async def test_a_refresh_that_fails_is_no_reason_to_stop(home: Path) -> None:
    process_that_prints(home, SessionToken="old", Expiration=in_minutes(9))  # within botocore's mandatory 10
    (home / "config").write_text(f"[default]\ncredential_process = {home}/process.sh")
    clock = Clock()
    asked = source(clock=clock)
    await asked.current()
    (home / "process.sh").write_text("#!/bin/sh\nexit 1\n")
    clock.now_s = 6
    failure, words = await failure_of(asked.current())
    assert failure is Failure.UNREACHABLE
    assert "could not be fetched" in words
    process_that_prints(home, SessionToken="back", Expiration=in_minutes(60))
    assert (await asked.current()).session_token == "back"


@pytest.fixture
def container_endpoint() -> Iterator[str]:
    """What a container agent offers its tasks."""

    def agent(asked: StubRequest) -> StubAnswer:
        keys = {"AccessKeyId": "TASK", "SecretAccessKey": "s", "Token": "t", "Expiration": in_minutes(60)}
        return StubAnswer(json.dumps(keys).encode())

    with http_stub(agent) as url:
        yield f"{url}/keys"


async def test_a_container_gets_the_keys_of_its_task(
    container_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", container_endpoint)
    found = await source(loopback=True).current()
    assert (found.key_id, found.session_token) == ("TASK", "t")


# ---- refused by the service

EXPIRED = http(403, {"__type": "com.amazon.coral.service#ExpiredTokenException", "message": "expired"})


async def test_an_expired_token_is_replaced_once_and_the_call_made_again(home: Path) -> None:
    signed_by: list[str] = []

    async def service(talk: Talk) -> None:
        while True:
            await talk.request()
            token = talk.header("x-amz-security-token")
            signed_by.append(token)
            process_that_prints(home, SessionToken="new")
            talk.say(EXPIRED if token == "old" else http(200, {"MessageId": "m"}))

    process_that_prints(home, SessionToken="old")
    (home / "config").write_text(f"[default]\ncredential_process = {home}/process.sh")
    async with bad_server(service) as endpoint, client_of(endpoint, credentials=None) as client:
        assert await client.send("q", "body") == "m"  # even a send: it was refused, not lost
        assert await client.send("q", "body") == "m"
    assert signed_by == ["old", "new", "new"]


async def test_calls_that_are_refused_together_fetch_new_credentials_once(home: Path) -> None:
    process_that_prints(home, SessionToken="old")
    (home / "config").write_text(f"[default]\ncredential_process = {home}/process.sh")
    asked = source()
    old = await asked.current()
    process_that_prints(home, SessionToken="new")
    found = await asyncio.gather(*(asked.instead_of(old) for _ in range(5)))
    assert {each.session_token for each in found if each is not None} == {"new"}
    assert None not in found
    assert runs(home) == 2


async def test_what_was_refused_and_cannot_be_replaced_now_is_no_reason_to_stop(home: Path) -> None:
    process_that_prints(home, SessionToken="old")
    (home / "config").write_text(f"[default]\ncredential_process = {home}/process.sh")
    asked = source()
    old = await asked.current()
    (home / "process.sh").write_text("#!/bin/sh\nexit 1\n")
    assert (await failure_of(asked.instead_of(old)))[0] is Failure.UNREACHABLE
    process_that_prints(home, SessionToken="new")
    found = await asked.instead_of(old)
    assert found is not None and found.session_token == "new"


async def test_keys_changed_in_the_file_are_read_again_when_the_old_ones_are_refused(home: Path) -> None:
    async def service(talk: Talk) -> None:
        while True:
            await talk.request()
            (home / "credentials").write_text(KEYS_FILE.replace("FILE", "ROTATED"))
            new = "ROTATED" in talk.header("authorization")
            talk.say(http(200, {"MessageId": "m"}) if new else EXPIRED)

    (home / "credentials").write_text(KEYS_FILE)
    async with bad_server(service) as endpoint, client_of(endpoint, credentials=None) as client:
        assert await client.send("q", "body") == "m"


@pytest.mark.parametrize("given", [None, Credentials("GIVEN", "s")])
async def test_when_there_are_no_other_credentials_the_refusal_stands(
    given: Credentials | None, home: Path
) -> None:
    requests = 0

    async def service(talk: Talk) -> None:
        nonlocal requests
        while True:
            await talk.request()
            requests += 1
            talk.say(EXPIRED)

    (home / "credentials").write_text(KEYS_FILE)
    async with bad_server(service) as endpoint, client_of(endpoint, credentials=given) as client:
        assert (await failure_of(client.delete("q", ["r"])))[0] is Failure.FATAL
    assert requests == 1


async def test_a_service_that_refuses_every_token_is_asked_twice_and_no_more(home: Path) -> None:
    tokens: list[str] = []

    async def service(talk: Talk) -> None:
        while True:
            await talk.request()
            tokens.append(talk.header("x-amz-security-token"))
            process_that_prints(home, SessionToken=f"t{len(tokens)}")
            talk.say(EXPIRED)

    process_that_prints(home, SessionToken="t0")
    (home / "config").write_text(f"[default]\ncredential_process = {home}/process.sh")
    async with bad_server(service) as endpoint, client_of(endpoint, credentials=None) as client:
        assert (await failure_of(client.delete("q", ["r"])))[0] is Failure.FATAL
    assert tokens == ["t0", "t1"]
