from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Veil
from veil.client.api import ApiError
from veil.client.blocking import find_target
from veil.client.credentials import DUMMY


@pytest.fixture
def home(tmp_path: Path) -> Path:
    aws = tmp_path / ".aws"
    aws.mkdir()
    (aws / "credentials").write_text(
        "[default]\naws_access_key_id = D\naws_secret_access_key = ds\n"
        "[shop]\naws_access_key_id = S\naws_secret_access_key = s%s\naws_session_token = t\n"
    )
    (aws / "config").write_text("[default]\nregion = eu-west-1\n[profile shop]\nregion = eu-north-1\n")
    return tmp_path


def test_without_anything_there_are_defaults(tmp_path: Path) -> None:
    place = find_target(environ={"HOME": str(tmp_path)})
    assert (place.endpoint, place.region, place.credentials) == ("http://127.0.0.1:9324", "us-east-1", DUMMY)


def test_the_endpoint_is_the_flag_then_the_sqs_variable_then_the_general_one(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "AWS_ENDPOINT_URL": "http://all/", "AWS_ENDPOINT_URL_SQS": "http://sqs"}
    assert find_target("http://flag", environ=environ).endpoint == "http://flag"
    assert find_target(environ=environ).endpoint == "http://sqs"
    del environ["AWS_ENDPOINT_URL_SQS"]
    assert find_target(environ=environ).endpoint == "http://all"


def test_the_profile_may_name_the_endpoint(home: Path) -> None:
    config = home / ".aws" / "config"
    config.write_text(config.read_text() + "endpoint_url = http://shop:9324\n")
    named = find_target(environ={"HOME": str(home), "AWS_PROFILE": "shop"})
    assert (named.endpoint, named.is_default) == ("http://shop:9324", False)
    assert find_target(environ={"HOME": str(home)}).is_default


def test_variables_win_over_the_profile(home: Path) -> None:
    environ = {
        "HOME": str(home),
        "AWS_ACCESS_KEY_ID": "E",
        "AWS_SECRET_ACCESS_KEY": "es",
        "AWS_REGION": "xx-1",
    }
    place = find_target(environ=environ)
    assert (place.credentials.key_id, place.credentials.origin, place.region) == ("E", "environment", "xx-1")
    assert find_target(region="yy-1", environ=environ).region == "yy-1"


def test_the_profile_gives_keys_token_and_region(home: Path) -> None:
    place = find_target(environ={"HOME": str(home), "AWS_PROFILE": "shop"})
    key = place.credentials
    assert (key.key_id, key.secret, key.session_token) == ("S", "s%s", "t")
    assert place.region == "eu-north-1"
    assert find_target(environ={"HOME": str(home)}).credentials.key_id == "D"


def test_half_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ApiError, match=r"environment: access key E needs its secret in AWS_SECRET_ACCESS_KEY"
    ):
        find_target(environ={"HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": "E"})


def test_files_that_cannot_be_read_are_passed_over(home: Path) -> None:
    (home / ".aws" / "credentials").write_bytes(b"\xff\xfe nonsense ][")
    assert find_target(environ={"HOME": str(home)}).credentials is DUMMY


def test_secrets_are_not_in_the_representation(home: Path) -> None:
    assert "s%s" not in repr(find_target(environ={"HOME": str(home), "AWS_PROFILE": "shop"}))


@pytest.mark.parametrize("variable", ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"])
def test_a_profile_that_is_not_there_is_refused_like_aws_tools_do(home: Path, variable: str) -> None:
    missing = {"HOME": str(home), variable: "shpo", "AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "es"}
    with pytest.raises(
        ApiError, match=rf"{variable}='shpo': expected a profile of that name in .*config or .*credentials"
    ):
        find_target(environ=missing)
    assert find_target(environ={"HOME": "/nowhere", variable: "default"}).credentials is DUMMY


def test_a_command_names_the_variable_of_a_missing_profile(
    command: Veil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "shpo")
    for arguments in (("queue", "ls"), ("doctor",)):
        ran = command(*arguments)
        assert ran.code != 0
        assert "AWS_PROFILE='shpo': expected a profile" in ran.err + ran.out
