"""One call of an SMQ operation: who asks, for which queue, with which parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from xml.etree.ElementTree import Element

from veil.core.queue import Queue, QueueKey
from veil.service.service import Service
from veil.wire.call import Call
from veil.wire.exchange import Request
from veil.wire.large import LARGE_BYTES, in_thread
from veil.wire.queue_urls import QueueUrls
from veil.wire.smq.routing import Route
from veil.wire.smq.xml_in import read_xml

# What SQS calls it: policies speak of actions, and must hold whichever way a request comes.
_ACTIONS: Final = {
    "ListQueue": "ListQueues",
    "PeekMessage": "ReceiveMessage",
    "BatchDeleteMessage": "DeleteMessage",
}
BATCH_MAX: Final = 16
_URLS: Final = QueueUrls()


class SmqCall:
    """What an operation needs to know; lives for one request."""

    __slots__ = ("_call", "_scheme", "caller", "request", "route", "service", "undelivered")

    def __init__(
        self,
        service: Service,
        request: Request,
        route: Route,
        account: str,
        key_id: str,
        region: str,
        scheme: str = "http",
    ) -> None:
        self._scheme = scheme
        self.service, self.request, self.route = service, request, route
        action = _ACTIONS.get(route.operation, route.operation)
        self._call = Call(service, _URLS, request, action, account, key_id, region, False, BATCH_MAX)
        self.caller = self._call.caller
        self.undelivered: Callable[[], None] | None = None

    @property
    def sender(self) -> str:
        """The caller as receivers see it."""
        return self._call.sender

    @property
    def account(self) -> str:
        return self._call.owner()

    @property
    def region(self) -> str:
        return self._call.region

    @property
    def key(self) -> QueueKey:
        """The key of the queue that the path names: one of the caller's own."""
        return QueueKey(self._call.region, self._call.owner(), self.route.queue)

    async def queue(self) -> Queue:
        """The queue of the path, if it exists and the caller may do this with it."""
        queue = await self.service.store.find_queue(self.key)
        if queue is not None and queue.settings.policy is None:
            return queue
        return await self._call.permitted(self.key)

    async def document(self) -> Element:
        """The root of the document that the request brings; raises XmlMalformed."""
        body = self.request.body
        return await in_thread(read_xml, body) if len(body) > LARGE_BYTES else read_xml(body)

    def url(self, queue: Queue) -> str:
        """The queue's URL, reachable by this caller."""
        return f"{self._scheme}://{self.request.headers.get('host') or 'localhost'}/queues/{queue.name}"
