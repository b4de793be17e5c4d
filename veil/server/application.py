"""What answers a request: health, metrics, the console, or the SQS front end behind the rules of access."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from veil.core.errors import AccessDenied, VeilError
from veil.server.access import AccessRules, forbidden, is_console, is_loopback
from veil.server.make_store import StoreProbe
from veil.server.settings import Settings
from veil.service.service import Service, ServiceRules
from veil.wire.exchange import AnswerCounts, Handler, Request, Response
from veil.wire.front_end import SqsFrontEnd, traced
from veil.wire.sigv4 import AccessKey, Verifier
from veil.wire.smq.call import SmqVerifier
from veil.wire.smq.codes import SmqRefusal, worded
from veil.wire.smq.front_end import SmqFrontEnd
from veil.wire.smq.xml import refuse

_ABOUT: Final = b"""This is Veil, a message queue that speaks the protocols of Amazon SQS.
Point an SQS client at this address: endpoint_url in boto3, --endpoint-url in the aws CLI.
Console: /console. Health: /healthz and /readyz. Metrics: /metrics.
"""

_ABOUT_SMQ: Final = b"""This is Veil, a message queue, at the port where it speaks the protocol of Alibaba SMQ (MNS).
Point an SMQ client at this address. Health and metrics are at the server's other port.
"""


CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"  # of Prometheus' text format


# Everything in Prometheus' text format; for False with all queues under `_all`.
MetricsPage = Callable[[bool], Awaitable[bytes]]


class Application:
    """Routes requests; what is `down` makes the server not ready, and nothing else."""

    def __init__(
        self,
        front_end: Handler,
        access: AccessRules,
        metrics: MetricsPage,
        *,
        metrics_for: str = "open",
        metrics_token: str | None = None,
        console: Handler | None = None,
    ) -> None:
        self._front_end = front_end
        self._access = access
        self._has_keys = access.has_keys
        self._metrics = metrics
        self._metrics_for = metrics_for
        self._metrics_token = metrics_token
        self._console = console
        self.down: str | None = "starting"  # why it is not ready
        self.store_probe: StoreProbe | None = None  # of a store that lives elsewhere

    def handle(self, request: Request) -> Awaitable[Response]:
        path = request.path
        # Probes come before the rules of access: they call by address or by any name, tell nothing and change
        # nothing.
        if path == "/healthz" or path == "/readyz":
            return self._health(path, request.method)
        refusal = self._access.refusal(request)
        if refusal is not None:
            return _answered(forbidden(request, refusal))
        if path == "/":
            # A person with a browser or a monitor, not a client: what asks for nothing and is not signed.
            if (
                request.method in ("GET", "HEAD")
                and not request.query
                and "authorization" not in request.headers
            ):
                return _answered(Response(200, _ABOUT))
        elif path == "/metrics":
            return self._metrics_page(request)
        elif self._console is not None and is_console(path):
            return self._console(request)
        return self._front_end(request)

    async def _health(self, path: str, method: str) -> Response:
        if method not in ("GET", "HEAD"):
            return Response(405, b"GET only\n", headers=(("Allow", "GET, HEAD"),))
        if path == "/readyz":
            problem = self.down
            if problem is None and self.store_probe is not None:
                problem = await self.store_probe.problem()
            if problem is not None:
                return Response(503, problem.encode() + b"\n")
        return Response(200, b"ok\n")

    async def _metrics_page(self, request: Request) -> Response:
        if self._metrics_for == "off":
            return Response(404, b"metrics are turned off\n")
        if self._metrics_for == "loopback" and not is_loopback(request.peer):
            return Response(403, b"metrics are for this machine only\n")
        if request.method not in ("GET", "HEAD"):
            return Response(405, b"GET only\n", headers=(("Allow", "GET, HEAD"),))
        by_queue = not self._has_keys or self._metrics_for != "auto"
        shown = request.headers.get("authorization")
        if shown is not None and self._metrics_token is not None:
            if not hmac.compare_digest(shown.encode("latin-1"), f"Bearer {self._metrics_token}".encode()):
                return Response(
                    401, b"the bearer token is not metrics_token\n", headers=(("WWW-Authenticate", "Bearer"),)
                )
            by_queue = True
        try:
            return Response(200, await self._metrics(by_queue), CONTENT_TYPE)
        except VeilError as problem:
            return Response(503, f"no metrics: {problem}\n".encode())


def _smq_handler(
    settings: Settings,
    service: Service,
    keys: dict[str, AccessKey],
    access: AccessRules,
    answers: AnswerCounts,
) -> Handler:
    """What answers at SMQ's own port: its front end behind the same rules of access."""
    front_end = SmqFrontEnd(
        service,
        verifier=SmqVerifier(keys) if keys else None,
        default_account=settings.account,
        region=settings.region,
        scheme=settings.scheme,
        answers=answers,
    )

    async def handle(request: Request) -> Response:
        refusal = access.refusal(request)
        if refusal is not None:
            denied = worded(AccessDenied("call", ""))
            told = SmqRefusal(denied.code, denied.status, refusal)
            return refuse(told, "none", f"{settings.scheme}://{request.headers.get('host', '')}")
        if request.path == "/" and not request.query and "authorization" not in request.headers:
            return Response(200, _ABOUT_SMQ)
        return await front_end.handle(request)

    return handle


async def _answered(response: Response) -> Response:
    return response


# ---- joined from settings


def service_rules(settings: Settings) -> ServiceRules:
    """Where the settings depart from SQS."""
    rules = ServiceRules(
        type_attributes=settings.journal_type_attributes,
        lease_grace=settings.lease_grace,
        error_texts=settings.error_texts,
    )
    return rules if settings.rest_rules else replace(rules, rest_after_delete_ms=0, rest_after_purge_ms=0)


def make_applications(
    settings: Settings,
    service: Service,
    keys: dict[str, AccessKey],
    answers: AnswerCounts,
    metrics: MetricsPage,
    console: Handler,
    *,
    relay: Handler | None = None,
) -> tuple[Application, Handler | None]:
    """What answers at the server's port, and what at SMQ's, if it has one; `relay` leads to the process that knows holders."""
    front_end = SqsFrontEnd(
        service,
        verifier=Verifier(keys) if keys else None,
        default_account=settings.account,
        default_region=settings.region,
        base_url=settings.base_url,
        scheme=settings.scheme,
        bulk=settings.bulk,
        answers=answers,
        relay=relay,
    )
    access = AccessRules(
        has_keys=bool(keys), allowed_hosts=settings.allowed_hosts, base_url=settings.base_url
    )
    application = Application(
        traced(front_end.handle),
        access,
        metrics,
        metrics_for=settings.metrics,
        metrics_token=settings.metrics_token,
        console=console,
    )
    if settings.smq_port is None:
        return application, None
    return application, _smq_handler(settings, service, keys, access, answers)
