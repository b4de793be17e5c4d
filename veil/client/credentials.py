"""The key that signs: given, from the environment, from the shared files, every other kind through botocore; found on first need
and refreshed in time, without holding up the event loop."""

from __future__ import annotations

import asyncio
import configparser
import logging
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from veil.client.api import ApiError, Failure

_log = logging.getLogger(__name__)


# ---- shared configuration files


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings of one profile; those of the credentials file come before those of the config file."""

    name: str
    named_by_caller: bool  # not by the environment, and not for want of another
    settings: Mapping[str, str] = field(repr=False)
    sqs: Mapping[str, str]  # what its `services` section says about SQS


def read_profile(name: str | None = None, environ: Mapping[str, str] = os.environ) -> Profile:
    """The profile of that name, or that the environment names, or the default one, which may be missing; ApiError for any other
    that is, as in AWS's tools: a mistyped name must not become another account's key."""
    # In botocore's order, which may be asked for the rest of the same profile later.
    variable = "AWS_DEFAULT_PROFILE" if environ.get("AWS_DEFAULT_PROFILE") else "AWS_PROFILE"
    wanted = name or environ.get(variable) or "default"
    home = _expanded(environ.get("HOME") or "~") / ".aws"
    files = (
        _path(environ.get("AWS_CONFIG_FILE"), home / "config"),
        _path(environ.get("AWS_SHARED_CREDENTIALS_FILE"), home / "credentials"),
    )
    config, keys = map(_sections, files)
    of_config = config.get(f"profile {wanted}") or (config.get("default") if wanted == "default" else None)
    of_keys = keys.get(wanted)
    if of_config is None and of_keys is None and wanted != "default":
        where = f"expected a profile of that name in {files[0]} or {files[1]}"
        raise ApiError(Failure.FATAL, "", f"{'profile' if name else variable}={wanted!r}: {where}")
    settings = {**(of_config or {}), **(of_keys or {})}
    services = config.get(f"services {settings['services']}", {}) if "services" in settings else {}
    return Profile(
        wanted,
        named_by_caller=name is not None,
        settings=settings,
        sqs=_nested(services.get("sqs", "")),
    )


def _expanded(path: str) -> Path:
    # Not by Path.expanduser, which raises where there is no home: a container may run under a number that no account has.
    return Path(os.path.expanduser(path))  # noqa: PTH111


def _path(given: str | None, usual: Path) -> Path:
    return _expanded(given) if given else usual


def _sections(path: Path) -> dict[str, dict[str, str]]:
    # A section called DEFAULT is a section like any other here; the parser's own idea of it would leak into all.
    parser = configparser.RawConfigParser(default_section="\0")
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        # The text of the error can hold the line itself, and a line can hold a secret.
        _log.warning("%s cannot be read (%s) and counts as empty", path, type(error).__name__)
        return {}
    return {_spelled(name): dict(parser[name]) for name in parser.sections()}


def _spelled(section: str) -> str:
    """The section's name with single blanks and without quotes: [profile "my own"] and [profile  x] both occur."""
    try:
        return " ".join(shlex.split(section))
    except ValueError:
        return section


def _nested(text: str) -> dict[str, str]:
    """The indented lines below a key, `name = value` each."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


# ---- whose key signs
#
#     given ▸ environment ▸ static keys in the profile ▸ botocore (roles, SSO, web identity, process, container, instance)
#
# As in the SDKs, a profile that the caller names comes before the keys in the environment.


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
        secret_name = "AWS_SECRET_ACCESS_KEY" if origin == "environment" else "aws_secret_access_key"
        raise ApiError(Failure.FATAL, "", f"{origin}: access key {key_id} needs its secret in {secret_name}")
    return Credentials(key_id, secret, token or None, origin)


# ---- fetched credentials
#
# Everything here may block on files, processes and the network, so it runs in a thread; botocore is imported on first use.


def _by_botocore(profile: str | None) -> Any:
    """What botocore's whole chain finds for the profile (None: the one that the environment names); None if it finds nothing."""
    try:
        import botocore.session
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise ApiError(
            Failure.FATAL,
            "NoCredentials",
            "no credentials in the environment or the shared files; for roles, SSO, containers and instances: "
            "pip install veilmq[aws]",
        ) from None
    try:
        return botocore.session.Session(profile=profile).get_credentials()
    except BotoCoreError as error:
        raise _failed(error) from None


def _frozen(found: Any) -> Credentials:
    """Botocore's keys as of now, refreshed first if it is time."""
    try:
        frozen = found.get_frozen_credentials()
    except (
        Exception
    ) as error:  # the providers raise whatever their sources do: OSError, ValueError, RuntimeError, …
        raise _failed(error) from None
    return Credentials(
        frozen.access_key, frozen.secret_key, frozen.token or None, f"botocore, {found.method}"
    )


def _failed(error: Exception) -> ApiError:
    from botocore.exceptions import HTTPClientError

    return ApiError(
        Failure.UNREACHABLE if isinstance(error, HTTPClientError) else Failure.FATAL,
        type(error).__name__,
        f"credentials could not be fetched: {error}",
    )


# ---- the credentials in use

# Asking botocore whether it is time costs more than a request should, and the answer changes once an hour.
_ASK_AGAIN_S = 5.0


class CredentialsSource:
    """One client's credentials. `ready` serves nearly every request; the others wait for `current`."""

    def __init__(
        self,
        given: Credentials | None,
        profile: str | None,
        *,
        endpoint_url: str,
        dummies_will_do: bool,
        monotonic: Callable[[], float],
    ) -> None:
        self._given, self._profile = given, profile
        self._endpoint_url, self._dummies_will_do = endpoint_url, dummies_will_do
        self._monotonic = monotonic
        self._held = given
        self._fetched: Any = None  # botocore's, which refreshes them in time
        self._ask_again_at_s = 0.0
        self._finding = asyncio.Lock()

    def ready(self) -> Credentials | None:
        """The credentials, if they are at hand and not due for a refresh."""
        held = self._held
        if held is None or self._fetched is None:
            return held
        now_s = self._monotonic()
        if now_s >= self._ask_again_at_s:
            # While one caller refreshes them, the others go on with what there is.
            if self._refresh_needed() and not self._finding.locked():
                return None
            self._ask_again_at_s = now_s + _ASK_AGAIN_S
        return held

    async def current(self) -> Credentials:
        """The credentials, found or refreshed first if need be; ApiError if there are none."""
        async with self._finding:
            held = self._held
            if held is None or self._refresh_needed():
                held = self._held = await asyncio.to_thread(self._find)
                self._ask_again_at_s = self._monotonic() + _ASK_AGAIN_S
            return held

    async def instead_of(self, refused: Credentials) -> Credentials | None:
        """Other credentials than those the service has just refused; None if there are no others."""
        async with self._finding:
            if self._held is refused and self._given is None:
                self._fetched = None
                self._held = await asyncio.to_thread(self._find)
            held = self._held
        return held if held is not None and held != refused else None

    def _refresh_needed(self) -> bool:
        """Whether botocore would fetch newer ones by now; cheap, and never blocks."""
        asked = getattr(self._fetched, "refresh_needed", None)  # static ones have no such question
        return asked is not None and bool(asked())

    def _find(self) -> Credentials:
        try:
            return self._found()
        except ApiError as error:
            if self._held is None:
                raise
            # What worked before may work again: a token service can be away, and the user can log in again.
            raise ApiError(Failure.UNREACHABLE, error.code, error.message) from None

    def _found(self) -> Credentials:
        if self._fetched is not None:
            return _frozen(self._fetched)
        profile = read_profile(self._profile)
        found = static_credentials(profile)
        if found is not None:
            return found
        # Not asking the network for what a loopback server does not look at: off the cloud it takes seconds to learn of nothing.
        if self._dummies_will_do and not hints_at_others(profile):
            return DUMMY
        self._fetched = _by_botocore(self._profile)
        if self._fetched is None:
            raise ApiError(
                Failure.FATAL,
                "NoCredentials",
                f"no credentials for {self._endpoint_url}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
            )
        return _frozen(self._fetched)
