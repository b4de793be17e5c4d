"""The application: which path is answered by whom, and when the server is ready."""

from __future__ import annotations

from typing import Any

import pytest

from veil.core.clock import ManualClock
from veil.core.errors import StoreFailed
from veil.core.message_rules import Draft
from veil.core.queue import QueueKey
from veil.server.access import AccessRules
from veil.server.application import Application
from veil.server.metrics import Metrics
from veil.service.messages import send
from veil.service.queues import create_queue
from veil.service.service import Service
from veil.stores.memory import MemoryStore
from veil.wire.exchange import AnswerCounts, Request, Response


class FailedStore(MemoryStore):
    async def all_queues(self) -> Any:
        raise StoreFailed("the disk is gone")


def an_application(
    store: MemoryStore | None = None,
    metrics_for: str = "auto",
    *,
    has_keys: bool = False,
    token: str | None = None,
) -> Application:
    clock = ManualClock()

    async def front_end(request: Request) -> Response:
        return Response(418, request.body)

    metrics = Metrics(Service(store or MemoryStore(clock), clock), AnswerCounts(), lambda: 0, "1")
    access = AccessRules(has_keys=has_keys)
    application = Application(front_end, access, metrics.page, metrics_for=metrics_for, metrics_token=token)
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
    fresh = Application(built.handle, AccessRules(has_keys=False), None)  # type: ignore[arg-type]
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


async def test_metrics_for_this_machine_only_are_kept_from_others():
    application = an_application(metrics_for="loopback")
    assert (await application.handle(a_request("GET", "/metrics", peer="10.0.0.7"))).status == 403
    assert (await application.handle(a_request("GET", "/metrics", peer="::1"))).status == 200
    assert (await application.handle(a_request("POST", "/metrics"))).status == 405


TOKEN = "a-token-of-the-scraper"


async def metrics_of_two_tenants(application_headers: dict[str, str], **given: Any) -> Response:
    store = MemoryStore(ManualClock())
    await store.open()
    application = an_application(store, **given)
    service = application._metrics.__self__._service
    for account in ("111111111111", "222222222222"):
        queue = await create_queue(service, QueueKey("us-east-1", account, f"of-{account}"), {}, {})
        await send(service, queue, [Draft("a"), Draft("b")], sender="x")
    return await application.handle(a_request("GET", "/metrics", **application_headers))


async def test_with_keys_nobody_reads_the_names_of_queues_and_accounts_without_the_token():
    for token in (None, TOKEN):
        response = await metrics_of_two_tenants({}, has_keys=True, token=token)
        page = response.body.decode()
        assert response.status == 200
        assert "of-" not in page and "1111" not in page and "2222" not in page
        assert 'veil_messages{account="",queue="_all",region="",state="visible"} 4.0' in page
        assert 'veil_messages_sent_total{account="",queue="_all",region=""} 4.0' in page
        assert "veil_queues 2.0" in page


@pytest.mark.parametrize(
    ("headers", "given"),
    [
        ({"authorization": f"Bearer {TOKEN}"}, {"has_keys": True, "token": TOKEN}),
        ({}, {"has_keys": True, "metrics_for": "open"}),
        ({}, {"has_keys": True, "metrics_for": "loopback"}),
        ({}, {"has_keys": False}),
    ],
)
async def test_they_are_for_those_who_show_the_token_or_where_it_was_configured(
    headers: dict[str, str], given: dict[str, Any]
):
    page = (await metrics_of_two_tenants(headers, **given)).body.decode()
    for account in ("111111111111", "222222222222"):
        labels = f'account="{account}",queue="of-{account}",region="us-east-1"'
        assert f'veil_messages{{{labels},state="visible"}} 2.0' in page
        assert f"veil_messages_sent_total{{{labels}}} 2.0" in page
    assert "_all" not in page


@pytest.mark.parametrize(
    "shown", ["Bearer another", f"bearer {TOKEN}x", TOKEN, "", "Bearer \xe9", "Basic eA=="]
)
async def test_a_wrong_token_is_told_so(shown: str):
    response = await metrics_of_two_tenants({"authorization": shown}, has_keys=True, token=TOKEN)
    assert response.status == 401
    assert b"veil_" not in response.body


async def test_metrics_of_a_store_that_failed_are_an_error_not_zeros():
    response = await an_application(FailedStore(ManualClock())).handle(a_request("GET", "/metrics"))
    assert response.status == 503
