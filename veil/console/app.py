"""The console: answers requests below /console, and adds the security headers to every answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final
from urllib.parse import quote, urlsplit

from veil.console import pages, web
from veil.console.audit import REFUSED, Audit
from veil.console.live import SESSION_ENDED, Live, Viewer, event
from veil.console.queue_views import DepthCache
from veil.console.sessions import Identity, LoginRateLimit, Sessions
from veil.console.templates import static_file, templates
from veil.console.visit import Notices, Visit
from veil.console.web import ROOT, Forbidden, Form, NotFound, Refused, Role, Route, link
from veil.core.errors import StoreError, VeilError
from veil.journal.attempts import JournalLookup
from veil.service.service import Service
from veil.wire.exchange import Request, Response
from veil.wire.sigv4 import AccessKey

_log = logging.getLogger(__name__)

CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_RULES: Final = (
    ("Content-Security-Policy", CONTENT_POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    # Not no-referrer: browsers then send `Origin: null` with our own forms.
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
# What somebody who is not logged in may make us read.
_STRANGERS_FORM_BYTES_MAX: Final = 16 * 1024
_NOT_KEPT: Final = ("Cache-Control", "no-store")


def load_pages() -> None:
    """Import every page, which puts it into the table of routes; the first time takes a tenth of a second."""
    for module in iter_modules(pages.__path__):
        import_module(f"veil.console.pages.{module.name}")


class Console:
    """The pages of one server. `keys` is the server's own mapping; without any, every visitor is an admin."""

    def __init__(
        self,
        service: Service,
        *,
        keys: Mapping[str, AccessKey],
        account: str,
        region: str,
        base_url: str | None = None,
        scheme: str = "http",
        login_refusal: Callable[[Request], str | None] = lambda request: None,
        audit_file: Path | None = None,
        tables: Path | None = None,
        version: str = "",
    ) -> None:
        """`login_refusal` says why a secret may not come by this request's way, None if it may. `tables` is where
        the pipeline's findings are; None: nowhere."""
        self.service = service
        self.activity = service.watch()
        assert self.activity.history is not None, "a console needs a service that is watched with a history"
        self.history = self.activity.history
        self.account, self.region, self.base_url, self.scheme = account, region, base_url, scheme
        self.login_refusal = login_refusal
        self.tables, self.version = tables, version
        self.sessions = Sessions(service.clock, keys, account)
        self.login_rate_limit = LoginRateLimit(service.clock)
        self.audit = Audit(audit_file, service.clock)
        self.live = Live(service.clock)
        self.notices = Notices()
        self.depths = DepthCache(service)
        self.journal_lookup = service.lives or JournalLookup(service.store, None)
        # The pipeline's findings, and what their file was then; kept by their page.
        self.findings_read: Any = None
        self.drawn_lives: dict[Any, Any] = {}  # by message; kept by its page
        self.templates = templates()
        load_pages()

    async def handle(self, request: Request) -> Response:
        """The answer to a request; raises nothing but CancelledError."""
        began_s = time.perf_counter()
        try:
            answer = await self._answer(request)
        except Refused as refusal:
            answer = await self._refusal(request, refusal)
        except StoreError as problem:
            _log.error("the console could not answer %s: %s", request.path[:200], problem)
            changed = " Whether the change was made is not known." if request.method == "POST" else ""
            sentence = f"The store did not answer. Try again in a moment.{changed}"
            answer = await self._refusal(request, web.StoreUnanswered(sentence))
        except VeilError as problem:
            answer = await self._refusal(request, Refused(f"{problem}."))
        except Exception:
            _log.exception("the console failed on %s %s", request.method, request.path[:200])
            answer = web.plain(500, "The console failed on this page. The server's log says why.")
        took_ms = (time.perf_counter() - began_s) * 1000
        kept = any(name == "Cache-Control" for name, _ in answer.headers)
        answer.headers = (
            *answer.headers,
            *(() if kept else (_NOT_KEPT,)),
            *_RULES,
            ("Server-Timing", f"app;dur={took_ms:.1f}"),
        )
        return answer

    async def _answer(self, request: Request) -> Response:
        path = request.path.removeprefix(ROOT)
        if path.startswith("/static/") and request.method in ("GET", "HEAD"):
            return static_file(path.removeprefix("/static/"))
        if path in ("", "/"):
            return web.see_other(link("overview"))
        found = web.find_route(request.method, path)
        if found is None:
            allowed = web.methods_of(path)
            if allowed:
                return web.plain(405, "not allowed", ("Allow", ", ".join(allowed)))
            raise NotFound("There is no such page.")
        route, parts = found
        cookie = web.session_cookie(request.headers)
        # A stream goes on by itself: it must not keep a session from falling idle.
        identity = self.sessions.identity(cookie, counts=not route.is_live)
        if identity is None:
            if route.needs is not None:
                return self._to_login(request, route)
            identity = self._stranger(cookie)
        query = web.read_query(request.query)
        form = Form([])
        if request.method == "POST":
            if not identity.account and len(request.body) > _STRANGERS_FORM_BYTES_MAX:
                raise Refused("The form is too long: expected an access key and its secret.")
            form = await web.read_form(request.headers.get("content-type", ""), request.body)
            self._check_csrf_token(request, identity, form)
        visit = Visit(self, request, identity, parts, query, form)
        await self._check_role(visit, route)
        visit.notice = self.notices.take(identity.cookie, query.text("notice"))
        answer: Response = await (self._streamed(visit, route) if route.is_live else route.handler(visit))
        if identity.is_new and not any(name == "Set-Cookie" for name, _ in answer.headers):
            answer.headers = (*answer.headers, self.cookie_header(request, identity.cookie))
        return answer

    def cookie_header(self, request: Request, value: str) -> tuple[str, str]:
        secure = self.scheme == "https" or (self.base_url or "").startswith("https:")
        return web.set_cookie(web.cookie_name(request.headers), value, secure=secure)

    def _stranger(self, cookie: str) -> Identity:
        # Also the form to log in with carries a token, bound to a cookie that means nothing else.
        known = Sessions.is_value(cookie)
        value = cookie if known else Sessions.new_value()
        return Identity("", "", Role.VIEWER, value, is_new=not known)

    def _to_login(self, request: Request, route: Route) -> Response:
        if route.is_live:
            # Not as a 401: a browser tells the page nothing of it, and the page would say that the connection is lost.
            return Response(200, event("gone", {"sentence": SESSION_ENDED}), web.EVENTS)
        if request.method == "POST":
            raise Forbidden("Your session has ended, and nothing was changed. Log in again.")
        place = request.path + (f"?{request.query}" if request.query else "")
        return web.see_other(f"{ROOT}/login?next={quote(place, safe='')}")

    def _check_csrf_token(self, request: Request, identity: Identity, form: Form) -> None:
        # Where the page came from was compared with our own address before the request came here; that there
        # was something to compare is asked for here.
        if "origin" not in request.headers:
            raise Forbidden("The browser did not say where this form came from, so nothing was changed.")
        if identity.is_new or not self.sessions.is_csrf_token(identity.cookie, form.text("token")):
            raise Forbidden(
                "This form was not made for your session, or the server has been restarted since. Nothing was changed: "
                "go back, reload the page and try again."
            )

    async def _check_role(self, visit: Visit, route: Route) -> None:
        if route.needs is None or visit.identity.role >= route.needs:
            return
        if route.method == "POST":
            await self.audit.asked(
                **visit.identity.audit_facts(visit.request.peer),
                action="/".join(route.parts),
                target=visit.parts.get("name", ""),
                outcome=REFUSED,
                detail=f"needs the role {route.needs.label}",
            )
        raise Forbidden(
            f"This needs the role {route.needs.label}; the key {visit.identity.name} has the role "
            f"{visit.identity.role.label}."
        )

    async def _streamed(self, visit: Visit, route: Route) -> Response:
        identity = visit.identity
        visit.is_live = True
        # By their address of the server too: commands in a page name it.
        key = (identity.account, identity.role, visit.endpoint_url, visit.request.path, visit.request.query)
        stream = self.live.stream(
            key,
            lambda: route.handler(visit),
            lambda: self._is_still(identity),
            Viewer(identity.account, identity.name),
        )
        return Response(200, b"", web.EVENTS, (("X-Accel-Buffering", "no"),), stream=stream)

    def _is_still(self, identity: Identity) -> bool:
        present = self.sessions.identity(identity.cookie, counts=False)
        return present is not None and (present.account, present.role) == (identity.account, identity.role)

    async def _refusal(self, request: Request, refusal: Refused) -> Response:
        cookie = web.session_cookie(request.headers)
        identity = self.sessions.identity(cookie, counts=False) or self._stranger(cookie)
        visit = Visit(self, request, identity, {}, Form([]), Form([]))
        answer = await visit.page(
            "refused.html",
            title=refusal.title or ("Nothing was changed" if request.method == "POST" else "Not shown"),
            status=refusal.status,
            sentence=refusal.sentence,
            back=_came_from(request) or link("queues"),
        )
        if isinstance(refusal, web.TooMany):
            answer.headers = (("Retry-After", str(refusal.retry_after_s)),)
        return answer


def _came_from(request: Request) -> str | None:
    """The page of ours on which a form was, or a link; None where the browser does not say, or where it is this page."""
    parts = urlsplit(request.headers.get("referer", ""))
    if parts.netloc != request.headers.get("host") or not parts.path.startswith(f"{ROOT}/"):
        return None
    if parts.path == request.path:
        return None
    return parts.path + (f"?{parts.query}" if parts.query else "")
