"""Log in with an access key, and out again."""

from __future__ import annotations

import logging

from veil.console.audit import DONE, REFUSED, AuditUnavailable
from veil.console.sessions import Identity
from veil.console.visit import Visit
from veil.console.web import ROOT, Forbidden, TooMany, link, page, post, see_other
from veil.wire.exchange import Response

_log = logging.getLogger(__name__)


@page("/login", needs=None)
async def login_page(visit: Visit) -> Response:
    return await _form(visit, visit.query.text("next"))


@post("/login", needs=None)
async def log_in(visit: Visit) -> Response:
    """Begin a session, or say that the key is not right; too many failures close the door for a while."""
    _check_transport(visit)
    console, address = visit.console, visit.request.peer
    key_id, secret, place = visit.form.text("key_id"), visit.form.text("secret"), visit.form.text("next")
    wait_s = console.login_rate_limit.wait_s(address, key_id)
    if wait_s:
        raise TooMany(f"Too many failed log-ins. Try again in {wait_s} seconds.", wait_s)
    cookie = console.sessions.log_in(key_id, secret)
    if cookie is None:
        console.login_rate_limit.failed(address, key_id)
        # Filed under the account of the key that was tried, so that its owners see it; a key that does not exist is
        # nobody's, and concerns the server's own account.
        await console.audit.asked(
            who=key_id[:128],
            role="",
            address=address,
            account=console.sessions.account_of(key_id),
            action="log in",
            target="console",
            outcome=REFUSED,
            detail="the access key id or its secret is wrong",
        )
        return await _form(visit, place, "The access key id or its secret is wrong.", key_id, 403)
    console.login_rate_limit.succeeded(address)
    console.sessions.log_out(visit.identity.cookie)
    await _record(visit, console.sessions.identity(cookie), "log in")
    return see_other(own_place(place), console.cookie_header(visit.request, cookie))


@post("/logout", needs=None)
async def log_out(visit: Visit) -> Response:
    if visit.console.sessions.needs_login and visit.identity.account:
        await _record(visit, visit.identity, "log out")
    visit.console.sessions.log_out(visit.identity.cookie)
    return see_other(link("login"), visit.console.cookie_header(visit.request, ""))


def own_place(text: str) -> str:
    """The text if it is a path of the console, as a browser would follow it; its front page for anything else."""
    path = text.partition("?")[0].partition("#")[0]
    is_own = (path == ROOT or path.startswith(ROOT + "/")) and text.isascii() and text.isprintable()
    # A browser goes one up for each `..`, also where its dots are percent-encoded, and takes a backslash for a slash.
    steps = {step.lower().replace("%2e", ".") for step in path.split("/")}
    is_straight = "\\" not in text and "//" not in path and steps.isdisjoint((".", ".."))
    return text if is_own and is_straight else link("overview")


async def _record(visit: Visit, identity: Identity | None, action: str) -> None:
    """Write into the audit log who comes or goes; if that fails, they may look all the same."""
    if identity is None:
        return
    try:
        facts = identity.audit_facts(visit.request.peer)
        await visit.console.audit.asked(**facts, action=action, target="console", outcome=DONE)
    except AuditUnavailable as problem:
        _log.error("%s of key %s is not in the audit log: %s", action, identity.name, problem)


def _check_transport(visit: Visit) -> None:
    # The form is not even shown: a person who fills it in has sent the secret by the time that it is refused.
    refusal = visit.console.login_refusal(visit.request)
    if refusal is not None:
        raise Forbidden(refusal)


async def _form(visit: Visit, place: str, problem: str = "", key_id: str = "", status: int = 200) -> Response:
    if not visit.console.sessions.needs_login:
        return see_other(own_place(place))
    _check_transport(visit)
    return await visit.page(
        "login.html", title="Log in", next=place, problem=problem, key_id=key_id, status=status
    )


THEMES = ("system", "light", "dark")


@post("/theme", needs=None)
async def choose_theme(visit: Visit) -> Response:
    theme = visit.form.text("theme")
    place = own_place(visit.form.text("back"))
    if theme not in THEMES:
        theme = "system"
    cookie = f"veil_theme={theme}; Path=/console; SameSite=Strict; Max-Age=31536000"
    return see_other(place, ("Set-Cookie", cookie))
