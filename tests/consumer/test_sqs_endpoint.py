"""Endpoint and region are found where AWS's own tools find them."""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import NoReturn

import botocore.session
import pytest

from tests.consumer.sqs_kit import forget_aws
from veil.client.api import ApiError, Failure
from veil.client.client import SqsClient
from veil.client.credentials import read_profile
from veil.client.endpoint import find_endpoint, parse_endpoint, region_in

CONFIG = """
[default]
region = eu-west-1
endpoint_url = http://of-default

[profile dev]
region = eu-west-2
endpoint_url = http://of-dev
services = local

[profile "two words"]
region = eu-west-3

[services local]
sqs =
  endpoint_url = http://of-services
s3 =
  endpoint_url = http://of-s3
"""


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_aws(monkeypatch, tmp_path)


@pytest.fixture
def config(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(CONFIG)


def found(
    endpoint: str | None = None, region: str | None = None, profile: str | None = None
) -> tuple[str, str]:
    place, its_region = find_endpoint(endpoint, region, read_profile(profile))
    return place.url, its_region


def test_what_is_given_comes_first_then_variables_then_the_profile(
    config: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found() == ("http://of-default", "eu-west-1")
    assert found(profile="dev") == ("http://of-services", "eu-west-2")
    assert found(profile="two words") == ("https://sqs.eu-west-3.amazonaws.com", "eu-west-3")
    monkeypatch.setenv("AWS_PROFILE", "dev")
    assert found() == ("http://of-services", "eu-west-2")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "ap-south-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://general")
    assert found() == ("http://general", "ap-south-1")
    monkeypatch.setenv("AWS_REGION", "ap-south-2")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://special")
    assert found() == ("http://special", "ap-south-2")
    assert found("http://given:9324", "me-south-1") == ("http://given:9324", "me-south-1")
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert found() == ("https://sqs.ap-south-2.amazonaws.com", "ap-south-2")


def test_the_sdk_agrees_on_every_choice(config: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same precedence in botocore itself, except that it does not read AWS_REGION."""

    def by_botocore(profile: str | None = None) -> tuple[str, str]:
        session = botocore.session.Session(profile=profile)
        session.set_credentials("a", "b")
        client = session.create_client("sqs")
        return client.meta.endpoint_url, client.meta.region_name

    assert found() == by_botocore()
    assert found(profile="dev") == by_botocore("dev")
    assert found(profile="two words") == by_botocore("two words")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://general")
    assert found(profile="dev") == by_botocore("dev")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://special")
    assert found(profile="dev") == by_botocore("dev")


@pytest.mark.parametrize("fips", ["false", "true"])
@pytest.mark.parametrize(
    "region",
    ["us-east-1", "eu-central-1", "cn-north-1", "us-gov-west-1", "eusc-de-east-1", "us-iso-east-1",
     "us-isob-east-1", "eu-isoe-west-1", "us-isof-south-1"],
)  # fmt: skip
def test_the_address_of_aws_is_the_one_that_the_sdk_calls(
    region: str, fips: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", fips)
    session = botocore.session.Session()
    session.set_credentials("a", "b")
    client = session.create_client("sqs", region_name=region)
    operation = client.meta.service_model.operation_model("ListQueues")
    called = client._ruleset_resolver.construct_endpoint(operation, {}, {}).url
    assert found(region=region) == (called, region)


def test_where_nothing_speaks_of_aws_the_server_is_this_machines_own() -> None:
    assert found("http://10.0.0.1:9324") == ("http://10.0.0.1:9324", "us-east-1")
    assert found() == ("http://127.0.0.1:9324", "us-east-1")


@pytest.mark.parametrize("region", ["eu west", "evil.example/", "-x", "EU-WEST-1"])
def test_a_region_that_is_no_region_never_becomes_a_host_name(region: str) -> None:
    with pytest.raises(ApiError, match="expected a name such as"):
        found(region=region)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:9324", "ftp://x", "http://", "http://x:port", "http://a b", "http://x/\r\nEvil: 1", "http://sqs..example",
        f"http://{'a' * 64}.example",
    ],
)  # fmt: skip
def test_an_endpoint_that_cannot_be_called_is_refused_in_words(url: str) -> None:
    with pytest.raises(ApiError, match="expected a URL such as") as raised:
        parse_endpoint(url)
    assert raised.value.failure is Failure.FATAL


def test_the_host_header_leaves_out_the_usual_port_and_keys_in_the_url() -> None:
    assert parse_endpoint("https://sqs.example:443").host_header == "sqs.example"
    assert parse_endpoint("http://user:pass@h:80/x/").host_header == "h"
    six = parse_endpoint("http://[::1]:9324")
    assert (six.host, six.port, six.host_header, six.path) == ("::1", 9324, "[::1]:9324", "/")


@pytest.mark.parametrize(
    ("url", "loopback"),
    [("http://localhost:9324", True), ("http://127.9.9.9", True), ("http://[::1]:1", True),
     ("http://veil.localhost", True), ("http://10.0.0.1", False), ("http://localhost.example", False)],
)  # fmt: skip
def test_loopback_is_known_by_name_and_number(url: str, loopback: bool) -> None:
    assert parse_endpoint(url).is_loopback is loopback


def test_the_region_is_read_from_the_urls_of_aws_only() -> None:
    assert region_in("https://sqs.eu-west-1.amazonaws.com/1/q") == "eu-west-1"
    assert region_in("https://sqs.cn-north-1.amazonaws.com.cn/1/q") == "cn-north-1"
    assert region_in("arn:aws:sqs:eu-west-1:000000000000:q") == "eu-west-1"
    assert region_in("http://127.0.0.1:9324/000000000000/q") is None


async def test_a_queue_of_another_region_is_refused_before_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = SqsClient(region="eu-west-1")
    for queue in ("https://sqs.us-east-1.amazonaws.com/1/q", "arn:aws:sqs:us-east-1:123456789012:q"):
        with pytest.raises(ApiError, match="is in us-east-1") as raised:
            await client.queue_url(queue)
        assert raised.value.failure is Failure.FATAL
    with pytest.raises(ApiError, match="expected an ARN"):
        await client.queue_url("arn:aws:sns:eu-west-1:123456789012:q")
    await client.close()


def test_a_config_file_that_cannot_be_read_counts_as_empty_and_is_not_quoted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("aws_secret_access_key = hush\n")
    assert read_profile().settings == {}
    assert "credentials cannot be read" in caplog.text
    assert "hush" not in caplog.text


def test_a_bundle_of_authorities_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere.pem")
    with pytest.raises(ApiError, match=r"AWS_CA_BUNDLE=/nowhere\.pem"):
        SqsClient(region="eu-west-1")


def test_a_user_without_a_home_has_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number which no account has."""

    def nobody(number: int) -> NoReturn:
        raise KeyError(number)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert not read_profile(environ={}).settings
    assert not read_profile(environ={"AWS_CONFIG_FILE": "~nosuch/config"}).settings
