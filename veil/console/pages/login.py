"""Log in with an access key, and out again."""

from __future__ import annotations

from veil.console.audit import REFUSED
from veil.console.exchange import Answer, see_other
from veil.console.refusals import Forbidden, TooMany
from veil.console.routes import ROOT, change, link, page
from veil.console.visit import Visit


@page("/login", needs=None)
async def login_page(visit: Visit) -> Answer:
    """The form to log in with."""
    return _form(visit, visit.query.text("next"))


@change("/login", needs=None)
async def log_in(visit: Visit) -> Answer:
    """Begin a session, or say that the key is not right; too many failures close the door for a while."""
    _check_transport(visit)
    console, address = visit.console, visit.request.peer
    key_id, secret, place = visit.form.text("key_id"), visit.form.text("secret"), visit.form.text("next")
    wait_s = console.throttle.wait_s(address, key_id)
    if wait_s:
        raise TooMany(f"Too many failed log-ins. Try again in {wait_s} seconds.", wait_s)
    cookie = console.sessions.log_in(key_id, secret)
    if cookie is None:
        console.throttle.failed(address, key_id)
        await console.audit.asked(
            who=key_id[:128],
            role="",
            address=address,
            account=console.account,
            action="log in",
            target="console",
            outcome=REFUSED,
            detail="not the secret of a key",
        )
        return _form(
            visit, place, "This is not an access key of this server, or not its secret.", key_id, 403
        )
    console.throttle.succeeded(address)
    console.sessions.log_out(visit.identity.cookie)
    return see_other(own_place(place), console.cookie_header(visit.request, cookie))


@change("/logout", needs=None)
async def log_out(visit: Visit) -> Answer:
    """End the session."""
    visit.console.sessions.log_out(visit.identity.cookie)
    return see_other(link("login"), visit.console.cookie_header(visit.request, ""))


def own_place(text: str) -> str:
    """The text if it is a path of the console; its front page for anything else."""
    is_own = (text == ROOT or text.startswith(ROOT + "/")) and text.isascii() and text.isprintable()
    return text if is_own and "\\" not in text and "//" not in text.partition("?")[0] else link("queues")


def _check_transport(visit: Visit) -> None:
    # The form is not even shown: whoever fills it in has sent the secret by the time that it is refused.
    refusal = visit.console.login_refusal(visit.request)
    if refusal is not None:
        raise Forbidden(refusal)


def _form(visit: Visit, place: str, problem: str = "", key_id: str = "", status: int = 200) -> Answer:
    if not visit.console.sessions.needs_login:
        return see_other(own_place(place))
    _check_transport(visit)
    return visit.page("login.html", title="Log in", next=place, problem=problem, key_id=key_id, status=status)
