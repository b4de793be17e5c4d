"""Where a command sends its requests and whose key signs them, by the variables and files AWS names."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from veil.signing.client_tls import ca_bundle

ENDPOINT_DEFAULT = "http://127.0.0.1:9324"
REGION_DEFAULT = "us-east-1"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A key to sign with, and where it was found."""

    key_id: str
    secret: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    origin: str = ""


# A server without keys wants a signature's form, not its truth.
DUMMY = Credentials("veil", "veil", origin="none found, so dummies")


@dataclass(frozen=True, slots=True)
class Place:
    """One server to talk to: endpoint, region and key."""

    endpoint: str
    endpoint_origin: str
    region: str
    credentials: Credentials
    ca_bundle: str | None = None  # whom to trust, None for the machine's own authorities


def find_place(
    endpoint: str | None = None, region: str | None = None, environ: Mapping[str, str] = os.environ
) -> Place:
    """The place meant by flags, then the AWS variables, then the profile, then the defaults."""
    url, url_origin = _endpoint(endpoint, environ)
    profile = _profile(environ)
    found_region = (
        region
        or environ.get("AWS_REGION")
        or environ.get("AWS_DEFAULT_REGION")
        or profile.get("region")
        or REGION_DEFAULT
    )
    return Place(
        url.rstrip("/"), url_origin, found_region, _credentials(environ, profile), ca_bundle(environ, profile)
    )


def _endpoint(given: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    if given:
        return given, "--endpoint"
    for name in ("AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL"):
        if environ.get(name):
            return environ[name], name
    return ENDPOINT_DEFAULT, "default"


def _credentials(environ: Mapping[str, str], profile: Mapping[str, str]) -> Credentials:
    key_id, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
    if key_id and secret:
        return Credentials(key_id, secret, environ.get("AWS_SESSION_TOKEN") or None, "environment")
    key_id, secret = profile.get("aws_access_key_id"), profile.get("aws_secret_access_key")
    if key_id and secret:
        origin = f"profile {_profile_name(environ)}"
        return Credentials(key_id, secret, profile.get("aws_session_token") or None, origin)
    return DUMMY


def _profile_name(environ: Mapping[str, str]) -> str:
    return environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"


def _profile(environ: Mapping[str, str]) -> dict[str, str]:
    # Static keys only: single sign-on and role chains belong to the SDKs.
    name = _profile_name(environ)
    home = Path(environ.get("HOME") or "~").expanduser() / ".aws"
    config = Path(environ.get("AWS_CONFIG_FILE") or home / "config").expanduser()
    keys = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials").expanduser()
    section = name if name == "default" else f"profile {name}"
    return {**_section(config, section), **_section(keys, name)}


def _section(path: Path, section: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}  # somebody else's file: what cannot be read is as good as absent
    return dict(parser[section]) if parser.has_section(section) else {}
