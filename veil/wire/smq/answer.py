"""SMQ's answers: an XML document under a status, or an error document.

Names of headers are in lower case where the SDKs look them up so.
"""

from __future__ import annotations

from typing import Final

from veil.wire.exchange import Response
from veil.wire.smq.codes import Refusal
from veil.wire.smq.xml_out import document, element

CONTENT_TYPE: Final = "text/xml;charset=utf-8"
VERSION: Final = "2015-06-06"


class Reply:
    """What an operation comes to, before it has a request id."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes = b"", *headers: tuple[str, str]) -> None:
        self.status, self.body, self.headers = status, body, headers


def answer(reply: Reply, request_id: str) -> Response:
    """The answer with SMQ's own headers on it."""
    headers = (("x-mns-request-id", request_id), ("x-mns-version", VERSION), *reply.headers)
    return Response(reply.status, reply.body, CONTENT_TYPE, headers)


def refuse(refusal: Refusal, request_id: str, host_id: str) -> Response:
    """The error document; SDKs miss each of its four elements that is not there."""
    content = (
        element("Code", refusal.code)
        + element("Message", refusal.message)
        + element("RequestId", request_id)
        + element("HostId", host_id)
    )
    return answer(Reply(refusal.status, document("Error", content)), request_id)
