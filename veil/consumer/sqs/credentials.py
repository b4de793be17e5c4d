"""Whose key signs: given, from the environment, from the shared files; every other kind through botocore.

    given ▸ environment ▸ static keys in the profile ▸ botocore (roles, SSO, web identity, process, container, instance)

As in the SDKs, a profile that the caller names comes before the keys in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from veil.consumer.message import ApiError, Failure
from veil.consumer.sqs.profile import Profile


@dataclass(frozen=True, slots=True)
class Credentials:
    """A key to sign with, and where it was found."""

    key_id: str
    secret: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    origin: str = "given"

    def __post_init__(self) -> None:
        # They travel in headers. A line break at the end, as in many a mounted secret, would otherwise only show as a
        # signature that does not match.
        for name in ("key_id", "secret", "session_token"):
            value = getattr(self, name)
            if value is not None and not (
                value and value.isascii() and value.isprintable() and " " not in value
            ):
                raise ApiError(
                    Failure.FATAL,
                    "",
                    f"credentials ({self.origin}): {name} must be printable ASCII without blanks or line breaks",
                )


# A Veil without keys wants a signature's form, not its truth.
DUMMY: Final = Credentials("veil", "veil", origin="none found, so dummies")

# What makes a profile more than static keys; then botocore decides which of them comes first.
_OTHER_KINDS: Final = (
    "role_arn",
    "web_identity_token_file",
    "sso_session",
    "sso_start_url",
    "sso_account_id",
    "login_session",
    "credential_process",
    "credential_source",
)
_OTHER_VARIABLES: Final = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def static_credentials(profile: Profile, environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """The keys that can be read without asking anybody; None if another kind is set up, or none at all."""
    if environ.get("AWS_ACCESS_KEY_ID") and not profile.named_by_caller:
        return _pair(
            "environment",
            environ["AWS_ACCESS_KEY_ID"],
            environ.get("AWS_SECRET_ACCESS_KEY"),
            environ.get("AWS_SESSION_TOKEN") or environ.get("AWS_SECURITY_TOKEN"),
        )
    settings = profile.settings
    if hints_at_others(profile, environ) or not settings.get("aws_access_key_id"):
        return None
    return _pair(
        f"profile {profile.name}",
        settings["aws_access_key_id"],
        settings.get("aws_secret_access_key"),
        settings.get("aws_session_token") or settings.get("aws_security_token"),
    )


def hints_at_others(profile: Profile, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether profile or environment speak of credentials that must be fetched. A machine's own role leaves no hint."""
    # A container's variables come last in the SDKs, behind static keys; web identity comes before them.
    variables = _OTHER_VARIABLES if "aws_access_key_id" not in profile.settings else _OTHER_VARIABLES[:1]
    return any(profile.settings.get(name) for name in _OTHER_KINDS) or any(
        environ.get(name) for name in variables
    )


def _pair(origin: str, key_id: str, secret: str | None, token: str | None) -> Credentials:
    if not secret:
        raise ApiError(Failure.FATAL, "", f"credentials ({origin}): an access key id without its secret key")
    return Credentials(key_id, secret, token or None, origin)
