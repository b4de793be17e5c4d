"""Credentials that must be fetched: botocore knows every kind, and how each is refreshed.

Everything here may block on files, processes and the network, so it runs in a thread; botocore is imported on first use.
"""

from __future__ import annotations

from typing import Any

from veil.consumer.message import ApiError, Failure
from veil.consumer.sqs.credentials import Credentials


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
