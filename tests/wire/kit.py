"""A front end over a real service and a store, the one in memory unless told otherwise, spoken to in both protocols."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

from veil.core.clock import Clock, ManualClock
from veil.service.service import Service, ServiceRules
from veil.stores.memory import MemoryStore
from veil.stores.store import Store
from veil.wire.exchange import Request, Response
from veil.wire.front_end import SqsFrontEnd
from veil.wire.sigv4 import Verifier

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"
BASE = "http://localhost:9324"


class Refused(Exception):
    """An error answer, as a client sees it."""

    def __init__(self, status: int, kind: str, code: str, message: str) -> None:
        super().__init__(f"{status} {kind} {code}: {message}")
        self.status, self.kind, self.code, self.message = status, kind, code, message


class Wire:
    """A server without sockets."""

    def __init__(
        self,
        *,
        make_store: Callable[[Clock], Store] = MemoryStore,
        verifier: Verifier | None = None,
        rules: ServiceRules | None = None,
        **options: Any,
    ):
        self.clock = ManualClock()
        self.service = Service(make_store(self.clock), self.clock, rules)
        self.front_end = SqsFrontEnd(self.service, verifier=verifier, **options)

    async def __aenter__(self) -> Wire:
        await self.service.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.service.stop()

    async def request(
        self, method: str = "POST", path: str = "/", query: str = "", body: bytes = b"", **headers: str
    ) -> Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.front_end.handle(
            Request(method, path, query, {"host": "localhost:9324"} | named, body, "127.0.0.1:5555")
        )

    async def post(self, action: str, given: Any, *, path: str = "/", **headers: str) -> Response:
        body = given if isinstance(given, bytes) else json.dumps(given).encode()
        target = action if "." in action else f"AmazonSQS.{action}"
        return await self.request("POST", path, "", body, **{"x-amz-target": target, **headers})

    async def call(self, action: str, **given: Any) -> dict[str, Any]:
        """A call in JSON: the output, or Refused."""
        return read_json(await self.post(action, given))

    async def form(self, action: str, parameters: dict[str, str], **more: Any) -> Response:
        """A call in the Query protocol, as a form post."""
        body = urlencode({"Action": action, "Version": "2012-11-05"} | parameters).encode()
        return await self.request("POST", more.pop("path", "/"), "", body, **more)

    async def query(self, action: str, parameters: dict[str, str], **more: Any) -> ElementTree.Element:
        """The XML tree of a success, or Refused."""
        return read_xml(await self.form(action, parameters, **more))

    async def queue(self, name: str = "q", **attributes: str) -> str:
        """The URL of a new queue."""
        if name.endswith(".fifo"):
            attributes.setdefault("FifoQueue", "true")
        url: str = (await self.call("CreateQueue", QueueName=name, Attributes=attributes))["QueueUrl"]
        return url

    async def receive(self, url: str, **more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.call("ReceiveMessage", QueueUrl=url, **more)).get(
            "Messages", []
        )
        return found


def read_json(response: Response) -> dict[str, Any]:
    assert response.content_type == "application/x-amz-json-1.0"
    found: dict[str, Any] = json.loads(response.body or b"{}")
    if response.status != 200:
        header = dict(response.headers)["x-amzn-query-error"]
        code, fault = header.split(";")
        assert fault == ("Sender" if response.status < 500 else "Receiver")
        raise Refused(response.status, found["__type"], code, found["message"])
    assert dict(response.headers)["x-amzn-RequestId"]
    return found


def read_xml(response: Response) -> ElementTree.Element:
    assert response.content_type == "text/xml"
    root = ElementTree.fromstring(response.body)
    for element in root.iter():
        element.tag = element.tag.removeprefix(NAMESPACE)
    if response.status != 200:
        assert root.tag == "ErrorResponse"
        raise Refused(
            response.status, "", root.findtext("Error/Code") or "", root.findtext("Error/Message") or ""
        )
    return root
