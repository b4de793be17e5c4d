"""One call of an SMQ operation: who asks (and signed it), for which queue, with which parameters."""

from __future__ import annotations

import hmac
import re
from base64 import b64encode
from collections.abc import Awaitable, Mapping
from functools import lru_cache
from hashlib import md5
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import unquote
from xml.etree.ElementTree import Element

from veil.core.queue import Queue, QueueKey
from veil.wire.call import Call
from veil.wire.exchange import Request
from veil.wire.large import LARGE_BYTES, in_thread
from veil.wire.sigv4 import SKEW_MS, AccessKey, read_http_date
from veil.wire.smq.codes import ArgumentRefused, SmqRefused
from veil.wire.smq.xml import read_xml

# ---- routes

PARAMETERS_MAX: Final = 32
_KEPT_CHARS_MAX: Final = 256

Parameters = Mapping[str, str]  # by name in lower case: SDKs and documents disagree on the spelling

_QUEUE_OPERATIONS: Final = {"PUT": "CreateQueue", "GET": "GetQueueAttributes", "DELETE": "DeleteQueue"}
_MESSAGE_OPERATIONS: Final = {
    "POST": "SendMessage",
    "GET": "ReceiveMessage",
    "DELETE": "DeleteMessage",
    "PUT": "ChangeMessageVisibility",
}


class SmqRoute(NamedTuple):
    operation: str
    queue: str = ""
    parameters: Parameters = MappingProxyType({})


def route(request: Request) -> SmqRoute:
    """The operation, the queue it is about and the parameters; raises SmqRefused."""
    path = request.path
    # Long ones are not kept: clients could fill memory with them.
    parts = _kept_parts(path) if len(path) <= _KEPT_CHARS_MAX else _parts(path)
    parameters = read_query(request.query) if request.query else {}
    method = request.method
    if len(parts) == 3 and parts[0] == "queues" and parts[2] == "messages":
        operation = _MESSAGE_OPERATIONS.get(method)
        if operation == "ReceiveMessage" and _is_true(parameters, "peekonly"):
            operation = "PeekMessage"
        elif operation == "DeleteMessage" and "receipthandle" not in parameters and request.body:
            operation = "BatchDeleteMessage"
        if operation is not None:
            return SmqRoute(operation, parts[1], parameters)
    elif len(parts) == 2 and parts[0] == "queues":
        operation = _QUEUE_OPERATIONS.get(method)
        if operation == "CreateQueue" and _is_true(parameters, "metaoverride"):
            operation = "SetQueueAttributes"
        if operation is not None:
            return SmqRoute(operation, parts[1], parameters)
    elif parts == ("queues",) and method == "GET":
        return SmqRoute("ListQueue", "", parameters)
    elif not parts and "accountmeta" in parameters and method in ("GET", "PUT"):
        return SmqRoute("GetAccountAttributes" if method == "GET" else "SetAccountAttributes")
    elif parts and parts[0] == "topics":
        raise SmqRefused("TopicNotExist", "Veil serves queues: there are no topics.", 404)
    raise SmqRefused("InvalidRequestURL", f"There is nothing to {method} at {path[:_KEPT_CHARS_MAX]}.")


def read_query(query: str) -> dict[str, str]:
    """The parameters of a query string. A plus is a plus: receipt handles come unescaped."""
    parameters: dict[str, str] = {}
    pairs = query.split("&", PARAMETERS_MAX + 1)
    if len(pairs) > PARAMETERS_MAX:
        raise SmqRefused("InvalidQueryString", f"more than {PARAMETERS_MAX} parameters")
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name:
            parameters[unquote(name).lower()] = unquote(value) if "%" in value else value
    return parameters


def _parts(path: str) -> tuple[str, ...]:
    return tuple(unquote(part) for part in path.strip("/").split("/")) if path.strip("/") else ()


_kept_parts = lru_cache(maxsize=4_096)(_parts)  # the same few paths come all day


def _is_true(parameters: Parameters, name: str) -> bool:
    return parameters.get(name, "").lower() == "true"


# ---- whole numbers

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}\Z", re.ASCII)


def read_number(name: str, text: str, low: int, high: int) -> int:
    """The number in that range; raises ArgumentRefused."""
    text = text.strip()
    number = int(text) if _INTEGER.match(text) else low - 1
    if not low <= number <= high:
        raise ArgumentRefused(name, text, f"a whole number from {low} to {high}")
    return number


# What SQS calls it: policies speak of actions, and must hold whichever way a request comes.
_ACTIONS: Final = {
    "ListQueue": "ListQueues",
    "PeekMessage": "ReceiveMessage",
    "BatchDeleteMessage": "DeleteMessage",
}
BATCH_MAX: Final = 16
# In front of an operation, among the actions that are counted: SQS has some of the same name.
LABEL: Final = "Smq."


class SmqCall(Call):
    """What an operation needs to know; lives for one request."""

    route: SmqRoute = SmqRoute("")

    def set_route(self, route: SmqRoute) -> None:
        self.route, self.label = route, LABEL + route.operation
        self.action = _ACTIONS.get(route.operation, route.operation)

    @property
    def key(self) -> QueueKey:
        return QueueKey(self.region, self.owner(), self.route.queue)

    def named_queue(self) -> Awaitable[Queue]:
        """The queue of the path, if it exists and the caller may do this with it."""
        return self.permitted(self.key)

    async def document(self) -> Element:
        """The root of the document that the request brings; raises XmlMalformed."""
        body = self.request.body
        return await in_thread(read_xml, body) if len(body) > LARGE_BYTES else read_xml(body)

    def url(self, queue: Queue) -> str:
        return f"{self.urls.base(self.request)}queues/{queue.name}"


# ---- the signature: HMAC-SHA1 over method, digest, type, date, SMQ's own headers and the target

_SCHEME: Final = "MNS "


class SmqVerifier:
    """Tells who signed a request, or refuses it with an `SmqRefused`."""

    def __init__(self, keys: Mapping[str, AccessKey]) -> None:
        self._keys = keys

    def verify(self, request: Request, now_ms: int) -> AccessKey:
        """The key that signed a current request. The signature covers the body by its Content-MD5, where that is sent."""
        key_id, given = _claim(request)
        _check_time(request, now_ms)
        key = self._keys.get(key_id)
        if key is None:
            raise SmqRefused("InvalidAccessKeyId", "The AccessKeyId you provided does not exist.", 403)
        secret, dates = key.secret.encode(), _dates(request)
        if not any(hmac.compare_digest(signature(secret, request, date), given) for date in dates):
            raise SmqRefused(
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the signature you provided. "
                "Check your key and signing method.",
                403,
            )
        return key


def _check_time(request: Request, now_ms: int) -> None:
    text = request.headers.get("date") or request.headers.get("x-mns-date")
    if not text:
        raise SmqRefused("MissingDateHeader", "Date header (or x-mns-date) is required.")
    try:
        signed_ms = read_http_date(text).timestamp() * 1000
    except ValueError:
        expected = "Date header must be of the form 'Thu, 01 Jan 2026 00:00:00 GMT'."
        raise SmqRefused("InvalidDateHeader", expected) from None
    if abs(signed_ms - now_ms) > SKEW_MS:
        reason = "The http request you sent is expired: its date is more than 15 minutes off."
        raise SmqRefused("TimeExpired", reason, 408)


def signature(secret: bytes, request: Request, date: str) -> bytes:
    """The signature of a request, in base64."""
    headers = request.headers
    own = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()) if name.startswith("x-mns-"))
    target = f"{request.path}?{request.query}" if request.query else request.path
    text = (
        f"{request.method}\n{headers.get('content-md5', '')}\n{headers.get('content-type', '')}\n"
        f"{date}\n{own}{target}"
    )
    return b64encode(hmac.digest(secret, text.encode("utf-8", "surrogatepass"), "sha1"))


def claimed_key_id(request: Request) -> str:
    """The key id that a request names, verified by nobody; empty where it names none."""
    authorization = request.headers.get("authorization", "")
    return authorization[len(_SCHEME) :].partition(":")[0] if authorization.startswith(_SCHEME) else ""


def check_digest(request: Request) -> None:
    """Raise SmqRefused unless the body is the one that Content-MD5 tells of, if it is there.

    The digest is raw in base64, as the header is defined, or (by some SDKs) its hexadecimal text in base64.
    """
    stated = request.headers.get("content-md5")
    if not stated:
        return
    digest = md5(request.body, usedforsecurity=False)
    hexadecimal = digest.hexdigest()
    # One after the other: nearly every client writes the first.
    if (
        stated != b64encode(hexadecimal.encode()).decode()
        and stated != b64encode(digest.digest()).decode()
        and stated != b64encode(hexadecimal.upper().encode()).decode()
    ):
        # InvalidDegist is their spelling.
        raise SmqRefused("InvalidDegist", "The Content-MD5 you specified did not match what we received.")


def _claim(request: Request) -> tuple[str, bytes]:
    authorization = request.headers.get("authorization")
    if not authorization:
        raise SmqRefused("MissingAuthorizationHeader", "Authorization header is required.")
    key_id, colon, given = authorization.removeprefix(_SCHEME).strip().rpartition(":")
    if not authorization.startswith(_SCHEME) or not colon or not key_id or not given:
        expected = "Authorization header must be of the form 'MNS AccessKeyId:Signature'."
        raise SmqRefused("InvalidAuthorizationHeader", expected)
    return key_id, given.encode("utf-8", "surrogatepass")


def _dates(request: Request) -> tuple[str, ...]:
    """What may stand on the date's line; without Date some leave the line empty and some repeat x-mns-date on it."""
    date = request.headers.get("date")
    return (date,) if date else ("", request.headers.get("x-mns-date", ""))
