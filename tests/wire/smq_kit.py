"""Both front ends over one service, without sockets: SMQ's requests by hand, SQS's beside them on the same queues."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.wire.kit import Wire
from veil.service.service import ServiceRules
from veil.wire.exchange import AnswerCounts, Request, Response
from veil.wire.smq.call import SmqVerifier
from veil.wire.smq.front_end import SmqFrontEnd

NAMESPACE = "{http://mns.aliyuncs.com/doc/v1}"
HOST = "localhost:9326"


class SmqRefusal(Exception):
    """An error answer, as a client sees it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message = status, code, message


class SmqWire(Wire):
    """A server that speaks both protocols."""

    def __init__(self, *, smq_verifier: SmqVerifier | None = None, **options: Any) -> None:
        super().__init__(rules=ServiceRules(0, 0), **options)
        self.answers = AnswerCounts()
        self.smq = SmqFrontEnd(self.service, verifier=smq_verifier, answers=self.answers)

    async def ask(self, method: str, target: str, body: str | bytes = b"", **headers: str) -> Response:
        """One request, whatever comes of it."""
        path, _, query = target.partition("?")
        named = {"host": HOST} | {name.replace("_", "-"): value for name, value in headers.items()}
        if "authorization" not in named:  # there it would have to be signed
            named.setdefault("x-mns-version", "2015-06-06")  # as every client sends it
        raw = body.encode() if isinstance(body, str) else body
        return await self.smq.handle(Request(method, path, query, named, raw, "127.0.0.1:5555"))

    async def smq_call(
        self, method: str, target: str, body: str | bytes = b"", **headers: str
    ) -> ElementTree.Element | None:
        """The document of a success, None where it has none; or SmqRefusal."""
        return read_answer(await self.ask(method, target, body, **headers))

    async def smq_queue(self, name: str = "q", **elements: object) -> str:
        """The path of a new queue's messages."""
        await self.smq_call("PUT", f"/queues/{name}", xml("Queue", **elements))
        return f"/queues/{name}/messages"

    async def smq_send(self, path: str, body: str = "hello", **elements: object) -> dict[str, str]:
        return fields(await self.smq_call("POST", path, xml("Message", MessageBody=body, **elements)))

    async def smq_receive(self, path: str, **parameters: object) -> dict[str, str]:
        return fields(await self.smq_call("GET", path + query(**parameters)))

    async def smq_receive_all(self, path: str, count: int = 16) -> list[dict[str, str]]:
        root = await self.smq_call("GET", f"{path}?numOfMessages={count}")
        assert root is not None
        return [fields(each) for each in root]

    async def refusal(self, method: str, target: str, body: str | bytes = b"", **headers: str) -> str:
        """Status and code of what must be refused."""
        try:
            await self.smq_call(method, target, body, **headers)
        except SmqRefusal as refused:
            return f"{refused.status} {refused.code}"
        raise AssertionError(f"{method} {target} was not refused")


def xml(root: str, **elements: object) -> str:
    """A document of one level."""
    inner = "".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in elements.items())
    return f'<?xml version="1.0" encoding="utf-8"?><{root} xmlns="http://mns.aliyuncs.com/doc/v1/">{inner}</{root}>'


def query(**parameters: object) -> str:
    return "?" + "&".join(f"{name}={value}" for name, value in parameters.items()) if parameters else ""


def fields(root: ElementTree.Element | None) -> dict[str, str]:
    assert root is not None
    return {each.tag: each.text or "" for each in root}


def read_answer(response: Response) -> ElementTree.Element | None:
    headers = dict(response.headers)
    assert headers["x-mns-request-id"]
    assert headers["x-mns-version"] == "2015-06-06"
    if not response.body:
        assert response.status in (201, 204)
        return None
    assert response.content_type == "text/xml;charset=utf-8"
    root = ElementTree.fromstring(response.body)
    for each in root.iter():
        each.tag = each.tag.removeprefix(NAMESPACE)
    if response.status < 400:
        return root
    said = fields(root)
    if root.tag != "Error":
        raise SmqRefusal(response.status, root.tag, response.body.decode())
    assert said.keys() == {"Code", "Message", "RequestId", "HostId"}
    assert said["RequestId"] == headers["x-mns-request-id"]
    raise SmqRefusal(response.status, said["Code"], said["Message"])
