"""Queue URLs: read by their path alone, written with the host by which the caller reached us.

SDKs for JavaScript, Ruby and PHP and the old ones for Java send to the URL's own host, so a URL must be reachable by the
client that asked for it. On the way in the host says nothing: a queue is its account and its name.
"""

from __future__ import annotations

from urllib.parse import unquote

from veil.core.errors import QueueMissing
from veil.core.policy import is_account
from veil.core.queue import QueueKey
from veil.signing.sigv4 import path_segments
from veil.wire.exchange import Request
from veil.wire.request_errors import AddressRefused

_KEPT_MAX = 4_096
_KEPT_CHARS_MAX = 256


class QueueUrls:
    """Turns queue URLs into keys and keys into URLs."""

    def __init__(self, base_url: str | None = None, scheme: str = "http") -> None:
        self._base_url = base_url.rstrip("/") if base_url else None
        self.scheme = scheme
        # Clients send the same few texts with every request. Emptied when full, since a client may make texts up.
        self._keys: dict[tuple[str, str, str], QueueKey] = {}

    def key(self, text: str, region: str, account: str) -> QueueKey:
        """The key behind a queue URL, a path or a bare name; the account is the one that a bare name belongs to."""
        kept = self._keys.get((text, region, account))
        if kept is not None:
            return kept
        path = _path_of(text)
        named = read_path(path)
        if named is None:
            # AWS tells the two apart: a host alone is a queue that is not there, a path without a name is no address.
            raise AddressRefused(text) if path or "://" not in text else QueueMissing(text[:_KEPT_CHARS_MAX])
        key = QueueKey(region, named[0] or account, named[1])
        if len(text) <= _KEPT_CHARS_MAX:
            if len(self._keys) >= _KEPT_MAX:
                self._keys.clear()
            self._keys[text, region, account] = key
        return key

    def url(self, key: QueueKey, request: Request) -> str:
        """The URL of a queue, for the client that sent the request."""
        base_url = self._base_url
        if base_url is None:
            base_url = f"{self.scheme}://{request.headers.get('host') or 'localhost'}"
        return f"{base_url}/{key.account}/{key.name}"


def read_path(path: str) -> tuple[str | None, str] | None:
    """The account, if the path has one, and the name; None for a path that names no queue."""
    # The last two parts count, so that a proxy may serve us under a prefix.
    parts = [unquote(part) for part in path_segments(path)[-2:]]
    if not parts:
        return None
    account = parts[0] if len(parts) == 2 and is_account(parts[0]) else None
    return account, parts[-1]


def _path_of(text: str) -> str:
    start = text.find("://")
    if start >= 0:
        slash = text.find("/", start + 3)
        text = text[slash:] if slash >= 0 else ""
    return text.partition("?")[0]
