"""The console's place in the server: who may open it, and that it costs nothing until somebody does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from veil.journal.attempts import JournalLookup
from veil.server.access import host_name, is_loopback
from veil.server.make_store import is_on_postgres, journal_location, store_directory
from veil.server.settings import Settings
from veil.service.service import Service
from veil.stores.sqlite.history_file import HISTORY_FILE, HistoryFile
from veil.wire.exchange import Request, Response
from veil.wire.sigv4 import AccessKey

if TYPE_CHECKING:
    from veil.console.app import Console


_NOT_INSTALLED: Final = b"The console needs Jinja2, which is not installed: pip install jinja2\n"
AUDIT_FILE: Final = "audit.jsonl"
_TABLES: Final = "tables"  # where `veil pipeline` keeps them unless told otherwise


class LoginTransport:
    """Whether a log-in may be sent by this request's way: the form carries a secret, so not in clear over a network."""

    def __init__(self, settings: Settings) -> None:
        self._is_tls = settings.tls_cert is not None
        self._is_plain_allowed = settings.console_plain_http_login
        base_url = urlsplit(settings.base_url or "")
        self._proxied_host = base_url.netloc.lower() if base_url.scheme == "https" else None

    def refusal(self, request: Request) -> str | None:
        """What to tell the visitor instead of the form; None where logging in is safe, or its risk is accepted."""
        if self._is_tls or self._is_plain_allowed or self._is_by_proxy(request) or self._is_here(request):
            return None
        return (
            "Logging in over plain HTTP would show your secret to the network. Open the console over https (set "
            "tls_cert and tls_key, or base_url to the https address of a proxy that speaks TLS), or as http://localhost on "
            "the server's own machine, by a tunnel for example. The setting console_plain_http_login accepts the risk."
        )

    def _is_by_proxy(self, request: Request) -> bool:
        # The page's own address tells how the browser came: by the proxy, or past it. It is the reader who is protected
        # here, and their browser does not lie to them.
        if self._proxied_host is None or request.headers.get("origin", "https:").startswith("http:"):
            return False
        host = request.headers.get("host", "").lower()
        return host.removesuffix(":443") == self._proxied_host.removesuffix(":443")

    @staticmethod
    def _is_here(request: Request) -> bool:
        # The peer decides: a Host header is anybody's to write. The name must agree, for the peer is this machine too
        # where a proxy that runs here brings somebody from elsewhere.
        name = host_name(request.headers.get("host", "")) or ""
        return is_loopback(request.peer) and (is_loopback(name) or name.endswith(".localhost"))


class ConsoleMount:
    """Answers requests below /console; the pages are loaded with the first of them."""

    def __init__(
        self, settings: Settings, service: Service, keys: Mapping[str, AccessKey], version: str
    ) -> None:
        self._settings = settings
        self._service = service
        self._keys = keys
        self._version = version
        self._console: Console | None = None
        self._loading = asyncio.Lock()
        self._who = settings.console
        if self._who != "off" or journal_location(settings) is not None:
            # From the start on, so that the first visitor sees what happened before, and the journal what became of holders.
            directory = _directory(settings) if self._who != "off" else None
            if is_on_postgres(settings) and not settings.data.is_dir():
                directory = None  # a node keeps nothing of its own unless it is given a place for it
            service.watch(
                None if directory is None else HistoryFile(directory / HISTORY_FILE),
                has_history=self._who != "off",
            )
        service.lives = service.moves.lives = JournalLookup(service.store, journal_location(settings))

    async def handle(self, request: Request) -> Response:
        if self._who == "off":
            return Response(404, b"the console is turned off\n")
        # Without keys everybody is admin: that is for people at this machine, whatever the server listens on.
        if (self._who == "loopback" or not self._keys) and not is_loopback(request.peer):
            return Response(403, b"the console is for this machine only\n")
        try:
            console = self._console or await self._load()
        except ModuleNotFoundError as missing:
            if missing.name not in ("jinja2", "markupsafe"):
                raise
            return Response(501, _NOT_INSTALLED)
        return await console.handle(request)

    async def _load(self) -> Console:
        async with self._loading:
            if self._console is None:
                # In a thread: importing takes a tenth of a second, and messages do not wait for it.
                make = await asyncio.to_thread(_console_class)
                self._console = make(
                    self._service,
                    keys=self._keys,
                    account=self._settings.account,
                    region=self._settings.region,
                    base_url=self._settings.base_url,
                    scheme=self._settings.scheme,
                    login_refusal=LoginTransport(self._settings).refusal,
                    audit_file=audit_file(self._settings),
                    tables=tables_directory(self._settings),
                    version=self._version,
                )
            return self._console


def _console_class() -> Callable[..., Console]:
    from veil.console.app import Console, load_pages
    from veil.console.templates import templates

    load_pages()
    templates()
    return Console


def _directory(settings: Settings) -> Path | None:
    # The nodes of one PostgreSQL have a directory each: what was asked of a node is in its own log.
    return settings.data if is_on_postgres(settings) else store_directory(settings)


def audit_file(settings: Settings) -> Path | None:
    """Where the audit log of the server is; None: in memory."""
    directory = _directory(settings)
    return None if directory is None else directory / AUDIT_FILE


def tables_directory(settings: Settings) -> Path | None:
    """Where the pipeline's tables are; None: nowhere."""
    if settings.console_tables is not None:
        return settings.console_tables
    directory = _directory(settings)
    return None if directory is None else directory / _TABLES
