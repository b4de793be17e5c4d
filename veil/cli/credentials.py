"""Where a command sends its requests and whose key signs them, by the variables and files AWS names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from veil.cli.failures import CommandFailed
from veil.client.api import ApiError
from veil.client.credentials import DUMMY, Credentials, Profile, read_profile, static_credentials
from veil.client.tls import ca_bundle

ENDPOINT_DEFAULT = "http://127.0.0.1:9324"
REGION_DEFAULT = "us-east-1"


@dataclass(frozen=True, slots=True)
class ServiceTarget:
    """One server to talk to: endpoint, region and key."""

    endpoint: str
    endpoint_origin: str
    region: str
    credentials: Credentials
    ca_bundle: str | None = None  # whom to trust, None for the machine's own authorities


def find_target(
    endpoint: str | None = None, region: str | None = None, environ: Mapping[str, str] = os.environ
) -> ServiceTarget:
    """The place meant by flags, then the AWS variables, then the profile, then the defaults."""
    url, url_origin = _endpoint(endpoint, environ)
    profile = read_profile(environ=environ)
    found_region = (
        region
        or environ.get("AWS_REGION")
        or environ.get("AWS_DEFAULT_REGION")
        or profile.settings.get("region")
        or REGION_DEFAULT
    )
    return ServiceTarget(
        url.rstrip("/"),
        url_origin,
        found_region,
        _credentials(profile, environ),
        ca_bundle(environ, profile.settings),
    )


def _endpoint(given: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    if given:
        return given, "--endpoint"
    for name in ("AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL"):
        if environ.get(name):
            return environ[name], name
    return ENDPOINT_DEFAULT, "default"


def _credentials(profile: Profile, environ: Mapping[str, str]) -> Credentials:
    # Static keys only: single sign-on and role chains belong to the SDKs.
    try:
        return static_credentials(profile, environ) or DUMMY
    except ApiError as refused:
        raise CommandFailed(str(refused)) from None
