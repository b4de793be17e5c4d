"""Sessions: one for each log-in with a key, or the people at this machine if there are no keys.

A session lives in memory: a restart of the server ends it. The cookie is HttpOnly and SameSite=Strict; the token in each
form is made from the cookie's value with a secret of this process, so that neither can be had without the other.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from veil.console.web import Role
from veil.core.clock import Clock
from veil.wire.sigv4 import AccessKey

# ---- rate limit for log-ins

WINDOW_MS: Final = 5 * 60_000
ADDRESS_FAILURES_MAX: Final = 10
# More than for an address: somebody who knows a key's id could otherwise keep its owner out with ten requests.
KEY_FAILURES_MAX: Final = 50
_REMEMBERED_MAX: Final = 10_000


class LoginRateLimit:
    """Counts failed log-ins of the last five minutes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[tuple[str, str], list[int]] = {}

    def wait_s(self, address: str, key_id: str) -> int:
        """How long until the next try is heard; 0: now."""
        now_ms = self._clock.now_ms()
        return max(
            self._wait_s(("address", address), ADDRESS_FAILURES_MAX, now_ms),
            self._wait_s(("key", key_id), KEY_FAILURES_MAX, now_ms),
        )

    def failed(self, address: str, key_id: str) -> None:
        now_ms = self._clock.now_ms()
        for key in (("address", address), ("key", key_id)):
            if key not in self._failures and len(self._failures) >= _REMEMBERED_MAX:
                del self._failures[next(iter(self._failures))]
            recent = [at_ms for at_ms in self._failures.pop(key, []) if at_ms > now_ms - WINDOW_MS]
            self._failures[key] = [*recent, now_ms][-KEY_FAILURES_MAX:]

    def succeeded(self, address: str) -> None:
        """The address has shown a secret: what it got wrong before is forgiven."""
        self._failures.pop(("address", address), None)

    def _wait_s(self, key: tuple[str, str], failures_max: int, now_ms: int) -> int:
        recent = [at_ms for at_ms in self._failures.get(key, ()) if at_ms > now_ms - WINDOW_MS]
        if len(recent) < failures_max:
            return 0
        return max(1, (recent[-failures_max] + WINDOW_MS - now_ms + 999) // 1000)


IDLE_MS: Final = 60 * 60_000
LIFETIME_MS: Final = 12 * 60 * 60_000
_SESSIONS_MAX: Final = 10_000
_VALUE_BYTES: Final = 24
_VALUE: Final = re.compile(r"[A-Za-z0-9_-]{32}\Z")
# Stands in for keys that do not exist, so that a wrong id costs the same as a wrong secret.
_DECOY: Final = "of no key"


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose request it is. `cookie` is what its forms are bound to."""

    name: str  # the key's id, or `local`
    account: str
    role: Role
    cookie: str
    is_new: bool = False  # the cookie must be set

    def audit_facts(self, address: str) -> dict[str, str]:
        return {"who": self.name, "role": self.role.label, "address": address, "account": self.account}


@dataclass(slots=True)
class _Session:
    key_id: str
    secret_digest: bytes
    began_ms: int
    seen_ms: int

    def is_over(self, now_ms: int) -> bool:
        return now_ms - self.seen_ms > IDLE_MS or now_ms - self.began_ms > LIFETIME_MS


class Sessions:
    """Logs in and out, and tells whose cookie it is."""

    def __init__(self, clock: Clock, keys: Mapping[str, AccessKey], account: str) -> None:
        self._clock = clock
        self._keys = keys  # the server's own mapping: a key that is taken away ends its sessions
        self._account = account
        self._secret = secrets.token_bytes(32)
        self._sessions: dict[str, _Session] = {}

    @property
    def needs_login(self) -> bool:
        return bool(self._keys)

    def log_in(self, key_id: str, secret: str) -> str | None:
        """The cookie's value of a new session; None unless it is that key's secret."""
        key = self._keys.get(key_id)
        known = key.secret if key is not None else _DECOY
        is_right = hmac.compare_digest(_digest(secret), _digest(known))
        if key is None or not is_right:
            return None
        now_ms = self._clock.now_ms()
        for old in [cookie for cookie, session in self._sessions.items() if session.is_over(now_ms)]:
            del self._sessions[old]
        if len(self._sessions) >= _SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        cookie = self.new_value()
        self._sessions[cookie] = _Session(key_id, _digest(key.secret), now_ms, now_ms)
        return cookie

    def account_of(self, key_id: str) -> str:
        """The account of that key; the server's own if there is no such key."""
        key = self._keys.get(key_id)
        return (key.account if key is not None else "") or self._account

    def log_out(self, cookie: str) -> None:
        self._sessions.pop(cookie, None)

    def identity(self, cookie: str, *, counts: bool = True) -> Identity | None:
        """Whose cookie it is, None for nobody's; `counts` keeps the session from falling idle."""
        if not self._keys:
            if self.is_value(cookie):
                return Identity("local", self._account, Role.ADMIN, cookie)
            return Identity("local", self._account, Role.ADMIN, self.new_value(), is_new=True)
        session = self._sessions.get(cookie)
        if session is None:
            return None
        now_ms = self._clock.now_ms()
        key = self._keys.get(session.key_id)
        if (
            key is None
            or not hmac.compare_digest(_digest(key.secret), session.secret_digest)
            or session.is_over(now_ms)
        ):
            del self._sessions[cookie]
            return None
        if counts:
            session.seen_ms = now_ms
        return Identity(key.key_id, key.account or self._account, Role[key.role.upper()], cookie)

    def csrf_token(self, cookie: str) -> str:
        return hmac.new(self._secret, cookie.encode(), sha256).hexdigest()

    def is_csrf_token(self, cookie: str, token: str) -> bool:
        return hmac.compare_digest(self.csrf_token(cookie).encode(), token.encode("utf-8", "replace"))

    @staticmethod
    def new_value() -> str:
        return secrets.token_urlsafe(_VALUE_BYTES)

    @staticmethod
    def is_value(text: str) -> bool:
        return _VALUE.match(text) is not None


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "replace")).digest()
