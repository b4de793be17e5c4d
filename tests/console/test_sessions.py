"""Sessions end when they are idle, when they are old, and with their key; failures are counted for five minutes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from veil.console.sessions import ADDRESS_FAILURES_MAX, KEY_FAILURES_MAX, LoginRateLimit, Sessions
from veil.console.web import Role
from veil.core.clock import ManualClock
from veil.wire.sigv4 import AccessKey

MINUTE = 60.0
HOUR = 60 * MINUTE


@dataclass(frozen=True)
class AKey(AccessKey):
    account: str = "1"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def keys() -> dict[str, AKey]:
    return {"KEY": AKey("KEY", "secret", role="operator")}


@pytest.fixture
def sessions(clock: ManualClock, keys: dict[str, AKey]) -> Sessions:
    return Sessions(clock, keys, "0")


def logged_in(sessions: Sessions) -> str:
    cookie = sessions.log_in("KEY", "secret")
    assert cookie is not None
    return cookie


def test_a_session_is_its_keys(sessions: Sessions):
    identity = sessions.identity(logged_in(sessions))
    assert identity is not None
    assert (identity.name, identity.account, identity.role) == ("KEY", "1", Role.OPERATOR)


@pytest.mark.parametrize(
    ("key_id", "secret"), [("KEY", "Secret"), ("key", "secret"), ("KEY", ""), ("", "of no key")]
)
def test_only_the_right_secret_begins_one(sessions: Sessions, key_id: str, secret: str):
    assert sessions.log_in(key_id, secret) is None


def test_it_ends_after_an_hour_without_a_page(sessions: Sessions, clock: ManualClock):
    cookie = logged_in(sessions)
    for _ in range(3):
        clock.advance(seconds=50 * MINUTE)
        assert sessions.identity(cookie) is not None
    clock.advance(seconds=61 * MINUTE)
    assert sessions.identity(cookie) is None


def test_a_live_page_does_not_keep_it_alive(sessions: Sessions, clock: ManualClock):
    cookie = logged_in(sessions)
    clock.advance(seconds=50 * MINUTE)
    assert sessions.identity(cookie, counts=False) is not None
    clock.advance(seconds=11 * MINUTE)
    assert sessions.identity(cookie, counts=False) is None


def test_it_ends_after_twelve_hours_however_busy(sessions: Sessions, clock: ManualClock):
    cookie = logged_in(sessions)
    for _ in range(24):
        clock.advance(seconds=30 * MINUTE)
        assert sessions.identity(cookie) is not None
    clock.advance(seconds=1)
    assert sessions.identity(cookie) is None


def test_it_ends_with_its_key_and_when_the_secret_is_another(sessions: Sessions, keys: dict[str, AKey]):
    cookie = logged_in(sessions)
    keys["OTHER"] = AKey("OTHER", "x")
    keys["KEY"] = AKey("KEY", "rotated")
    assert sessions.identity(cookie) is None
    cookie = sessions.log_in("KEY", "rotated") or ""
    del keys["KEY"]
    assert sessions.identity(cookie) is None


def test_a_role_that_was_taken_away_is_gone_at_once(sessions: Sessions, keys: dict[str, AKey]):
    cookie = logged_in(sessions)
    keys["KEY"] = AKey("KEY", "secret", role="viewer")
    identity = sessions.identity(cookie)
    assert identity is not None and identity.role == Role.VIEWER


def test_a_token_is_good_for_its_own_cookie_and_its_own_process(sessions: Sessions, clock: ManualClock):
    mine, other = logged_in(sessions), logged_in(sessions)
    assert sessions.is_csrf_token(mine, sessions.csrf_token(mine))
    assert not sessions.is_csrf_token(mine, sessions.csrf_token(other))
    assert not Sessions(clock, {}, "0").is_csrf_token(mine, sessions.csrf_token(mine))


def test_without_keys_everybody_is_admin_and_a_made_up_cookie_is_replaced(clock: ManualClock):
    sessions = Sessions(clock, {}, "0")
    identity = sessions.identity("<script>")
    assert identity is not None and identity.is_new and identity.role == Role.ADMIN
    again = sessions.identity(identity.cookie)
    assert again is not None and not again.is_new


def test_an_address_waits_until_its_first_failure_is_five_minutes_old(clock: ManualClock):
    throttle = LoginRateLimit(clock)
    for number in range(ADDRESS_FAILURES_MAX):
        assert throttle.wait_s("a", "KEY") == 0
        throttle.failed("a", f"key {number}")
        clock.advance(seconds=1)
    assert throttle.wait_s("a", "KEY") == 290
    assert throttle.wait_s("b", "KEY") == 0
    clock.advance(seconds=290)
    assert throttle.wait_s("a", "KEY") == 0


def test_a_key_that_is_guessed_from_many_addresses_waits_too(clock: ManualClock):
    throttle = LoginRateLimit(clock)
    for number in range(KEY_FAILURES_MAX):
        throttle.failed(f"address {number}", "KEY")
    assert throttle.wait_s("another", "KEY") > 0
    assert throttle.wait_s("another", "OTHER") == 0


def test_a_success_forgives_what_the_address_got_wrong(clock: ManualClock):
    throttle = LoginRateLimit(clock)
    for _ in range(ADDRESS_FAILURES_MAX):
        throttle.failed("a", "KEY")
    throttle.succeeded("a")
    assert throttle.wait_s("a", "OTHER") == 0
