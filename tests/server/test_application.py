"""The application: which path is answered by whom, and when the server is ready."""

from __future__ import annotations

from typing import Any

import pytest

from veil.core.clock import ManualClock
from veil.core.errors import StoreFailed
from veil.server.access import AccessRules
from veil.server.application import Application
from veil.server.metrics import Metrics
from veil.server.requests import RequestTallies
from veil.service.service import Service
from veil.stores.memory import MemoryStore
from veil.wire.exchange import Request, Response


class FailedStore(MemoryStore):
    async def all_queues(self) -> Any:
        raise StoreFailed("the disk is gone")


def an_application(store: MemoryStore | None = None, metrics_for: str = "open") -> Application:
    clock = ManualClock()
    tallies = RequestTallies()

    async def front_end(request: Request) -> Response:
        return Response(418, request.body)

    metrics = Metrics(Service(store or MemoryStore(clock), clock), tallies, lambda: 0, "1")
    access = AccessRules(has_keys=False)
    application = Application(front_end, access, tallies, metrics, metrics_for=metrics_for)
    application.down = None
    return application


def a_request(method: str, path: str, peer: str = "127.0.0.1", query: str = "", **headers: str) -> Request:
    return Request(method, path, query, {"host": "localhost"} | headers, b"", peer)


async def test_it_is_ready_only_while_nothing_is_down():
    application = an_application()
    assert (await application.handle(a_request("GET", "/readyz"))).status == 200
    for reason in ("starting", "stopping", "the store failed"):
        application.down = reason
        response = await application.handle(a_request("GET", "/readyz"))
        assert (response.status, response.body) == (503, f"{reason}\n".encode())
        assert (await application.handle(a_request("GET", "/healthz"))).status == 200


async def test_a_new_application_is_not_ready():
    built = an_application()
    fresh = Application(built.handle, AccessRules(has_keys=False), RequestTallies(), None)  # type: ignore[arg-type]
    assert (await fresh.handle(a_request("GET", "/readyz"))).status == 503


@pytest.mark.parametrize(
    "request_made",
    [
        a_request("POST", "/"),
        a_request("GET", "/", query="Action=ListQueues"),
        a_request("GET", "/", authorization="AWS4-HMAC-SHA256 x"),
        a_request("POST", "/000000000000/orders"),
        a_request("GET", "/healthz/"),
    ],
)
async def test_everything_else_is_for_the_front_end(request_made: Request):
    assert (await an_application().handle(request_made)).status == 418


async def test_answers_are_counted_by_action_and_class():
    application = an_application()
    request = a_request("POST", "/")
    request.headers = {"host": "localhost", "x-amz-target": "AmazonSQS.ListQueues"}
    await application.handle(request)
    page = (await application.handle(a_request("GET", "/metrics"))).body.decode()
    assert 'veil_requests_total{action="ListQueues",status="4xx"} 1.0' in page


async def test_metrics_for_this_machine_only_are_kept_from_others():
    application = an_application(metrics_for="loopback")
    assert (await application.handle(a_request("GET", "/metrics", peer="10.0.0.7"))).status == 403
    assert (await application.handle(a_request("GET", "/metrics", peer="::1"))).status == 200
    assert (await application.handle(a_request("POST", "/metrics"))).status == 405


async def test_metrics_of_a_store_that_failed_are_an_error_not_zeros():
    response = await an_application(FailedStore(ManualClock())).handle(a_request("GET", "/metrics"))
    assert response.status == 503
