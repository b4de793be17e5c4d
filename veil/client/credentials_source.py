"""The credentials in use: found on first need, refreshed in time, without holding up the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from veil.client.api import ApiError, Failure
from veil.client.credentials import DUMMY, Credentials, hints_at_others, read_profile, static_credentials

_log = logging.getLogger(__name__)


# ---- fetched credentials
#
# Everything here may block on files, processes and the network, so it runs in a thread; botocore is imported on first use.


class BotocoreCredentials:
    """What botocore's own chain found, refreshed as botocore sees fit."""

    def __init__(self, found: Any) -> None:
        self._found = found
        self._served = False

    @classmethod
    def find(cls, profile: str | None) -> BotocoreCredentials | None:
        """Run the whole chain for the profile (None: the one that the environment names); None if nothing was found."""
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
            found = botocore.session.Session(profile=profile).get_credentials()
        except BotoCoreError as error:
            raise _failed(error, served=False) from None
        return cls(found) if found is not None else None

    def refresh_needed(self) -> bool:
        """Whether botocore would fetch newer ones by now; cheap, and never blocks."""
        asked = getattr(self._found, "refresh_needed", None)  # static ones have no such question
        return bool(asked()) if asked is not None else False

    def freeze(self) -> Credentials:
        """The keys as of now, refreshed first if it is time."""
        try:
            frozen = self._found.get_frozen_credentials()
        except (
            Exception
        ) as error:  # the providers raise whatever their sources do: OSError, ValueError, RuntimeError, …
            raise _failed(error, served=self._served) from None
        self._served = True
        return Credentials(
            frozen.access_key, frozen.secret_key, frozen.token or None, f"botocore, {self._found.method}"
        )


def _failed(error: Exception, *, served: bool) -> ApiError:
    from botocore.exceptions import HTTPClientError

    # What worked before may work again: a token service can be away, and somebody can log in again.
    passing = served or isinstance(error, HTTPClientError)
    return ApiError(
        Failure.UNREACHABLE if passing else Failure.FATAL,
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
        self._fetched: BotocoreCredentials | None = None
        self._ask_again_at_s = 0.0
        self._finding = asyncio.Lock()

    def ready(self) -> Credentials | None:
        """The credentials, if they are at hand and not due for a refresh."""
        held, fetched = self._held, self._fetched
        if held is None or fetched is None:
            return held
        now_s = self._monotonic()
        if now_s >= self._ask_again_at_s:
            # While one caller refreshes them, the others go on with what there is.
            if fetched.refresh_needed() and not self._finding.locked():
                return None
            self._ask_again_at_s = now_s + _ASK_AGAIN_S
        return held

    async def current(self) -> Credentials:
        """The credentials, found or refreshed first if need be; ApiError if there are none."""
        async with self._finding:
            held = self._held_unless_due()
            if held is None:
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

    def _held_unless_due(self) -> Credentials | None:
        held, fetched = self._held, self._fetched
        return None if fetched is not None and fetched.refresh_needed() else held

    def _find(self) -> Credentials:
        if self._fetched is not None:
            return self._fetched.freeze()
        profile = read_profile(self._profile)
        found = static_credentials(profile)
        if found is not None:
            return found
        # Not asking the network for what a loopback server does not look at: off the cloud it takes seconds to learn of nothing.
        if self._dummies_will_do and not hints_at_others(profile):
            return DUMMY
        self._fetched = BotocoreCredentials.find(self._profile)
        if self._fetched is None:
            raise ApiError(
                Failure.FATAL,
                "NoCredentials",
                f"no credentials for {self._endpoint_url}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
            )
        return self._fetched.freeze()
