"""One request to the console: its identity, its query and form, and the ways to answer it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from veil.console.sessions import Identity
from veil.console.web import ROOT, Form, NotFound, Role, html, read_cookies
from veil.core.message import Caller
from veil.core.queue import Queue, QueueKey
from veil.service.service import Service
from veil.service.time_slices import TimeSlice
from veil.wire.exchange import Request, Response

if TYPE_CHECKING:
    from veil.console.app import Console


T = TypeVar("T")

_KEPT_MAX = 500


class Notices:
    """Keeps sentences between a change and the page that follows it."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, str]] = {}

    def leave(self, cookie: str, sentence: str) -> str:
        """Keep the sentence for that visitor; returns the number to ask for it with."""
        if len(self._kept) >= _KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        number = secrets.token_hex(8)
        self._kept[number] = (cookie, sentence)
        return number

    def take(self, cookie: str, number: str) -> str | None:
        """The sentence, the first time it is asked for by whom it was left for."""
        if number in self._kept and self._kept[number][0] == cookie:
            return self._kept.pop(number)[1]
        return None


_USER_AGENT_CHARS_MAX = 256


class Visit:
    """What a page needs to know; lives for one request, or for one stream."""

    def __init__(
        self,
        console: Console,
        request: Request,
        identity: Identity,
        parts: dict[str, str],
        query: Form,
        form: Form,
    ) -> None:
        self.console = console
        self.request = request
        self.identity = identity
        self.parts = parts  # of the path, as the route names them
        self.query = query
        self.form = form  # empty unless it is a POST
        self.problems: dict[str, str] = {}  # what is wrong with the form that was sent, by field
        self.notice: str | None = None
        self.is_live = False  # it draws a stream, for all who look
        self.time_slice = TimeSlice(console.service.time_slices)
        # What to add to an engine instant to read it on the wall. Once for the visit: a stream draws again and again, and with a
        # fresh difference each time every instant in it would shake by a millisecond.
        self.wall_offset_ms = self.wall_ms - self.now_ms

    @property
    def service(self) -> Service:
        return self.console.service

    @property
    def now_ms(self) -> int:
        """Engine time: what deadlines are compared with."""
        return self.service.clock.now_ms()

    @property
    def wall_ms(self) -> int:
        """Wall time: what people read."""
        return self.service.clock.wall_ms()

    @property
    def asked(self) -> Form:
        """The fields that were sent: of the form, or of the address."""
        return self.form if self.request.method == "POST" else self.query

    @property
    def here(self) -> str:
        return self.request.path + (f"?{self.request.query}" if self.request.query else "")

    def query_with(self, **changed: object) -> str:
        """The query of this page, or of one that differs in this; an empty text takes a field away."""
        fields: dict[str, object] = {name: value for name, value in self.query.pairs if name != "notice"}
        return urlencode({name: value for name, value in (fields | changed).items() if value not in ("", 0)})

    def with_query(self, path: str) -> str:
        """The path with this page's query: the same part of a list, by the same filter."""
        query = self.query_with()
        return f"{path}?{query}" if query else path

    def paged(self, rows: Sequence[T], size: int) -> tuple[Sequence[T], tuple[int, int]]:
        """The rows of the page that the address asks for; and its number, and how many pages there are."""
        pages = max(1, -(-len(rows) // size))
        number = self.query.number("page", 1, 1, pages)
        return rows[(number - 1) * size : number * size], (number, pages)

    async def own_queues(self) -> list[Queue]:
        account = self.identity.account
        return [queue for queue in await self.service.store.all_queues() if queue.key.account == account]

    @property
    def endpoint_url(self) -> str:
        """Where the visitor's clients reach the server."""
        console = self.console
        return console.base_url or f"{console.scheme}://{self.request.headers.get('host') or 'localhost'}"

    @property
    def caller(self) -> Caller:
        """The visitor as the journal names it."""
        user_agent = f"veil-console {self.request.headers.get('user-agent', '')}"
        return Caller(
            self.identity.account, self.identity.name, user_agent[:_USER_AGENT_CHARS_MAX], self.request.peer
        )

    @property
    def csrf_token(self) -> str:
        """What every form of this visitor carries."""
        # A live fragment is drawn once for all who look: a form in it would carry one visitor's token to the others.
        assert not self.is_live, "a live fragment must not hold a form"
        return self.console.sessions.csrf_token(self.identity.cookie)

    @property
    def theme(self) -> str:
        """The colours that the visitor chose: light, dark or system."""
        chosen = read_cookies(self.request.headers.get("cookie", "")).get("veil_theme", "")
        return chosen if chosen in ("light", "dark") else "system"

    def with_notice(self, place: str, sentence: str) -> str:
        """The address of a page that says the sentence to this visitor, once."""
        number = self.console.notices.leave(self.identity.cookie, sentence)
        return f"{place}{'&' if '?' in place else '?'}notice={number}"

    def may(self, role: str) -> bool:
        """Whether the visitor has that role, or a higher one."""
        return self.identity.role >= Role[role.upper()]

    async def queue(self) -> Queue:
        """The queue that the path names by `region` and `name`, one of the visitor's own account."""
        key = QueueKey(self.parts["region"], self.identity.account, self.parts["name"])
        queue = await self.service.store.find_queue(key)
        if queue is None:
            raise NotFound(f"There is no queue {key.name[:100]} in {key.region[:50]}.")
        return queue

    async def page(self, template: str, *, title: str, status: int = 0, **values: Any) -> Response:
        """A page; one that says what is wrong with a form is a 422, unless a status is given."""
        text = await self.fragment(template, title=title, problems=self.problems, **values)
        return html(text, status or (422 if self.problems else 200))

    async def fragment(self, template: str, **values: Any) -> str:
        return await self.console.templates.render_in_slices(
            template, self.time_slice, visit=self, root=ROOT, **values
        )
