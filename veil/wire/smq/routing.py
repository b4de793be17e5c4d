"""From method, path and query to the operation that a request asks for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import unquote

from veil.wire.exchange import Request
from veil.wire.smq.refusals import NoTopics, QueryRefused, UrlUnknown

PARAMETERS_MAX: Final = 32
_KEPT_CHARS_MAX: Final = 256

Parameters = Mapping[str, str]  # by name in lower case: SDKs and documents disagree on the spelling

_QUEUE_OPERATIONS: Final = {
    "PUT": "CreateQueue",
    "GET": "GetQueueAttributes",
    "DELETE": "DeleteQueue",
}
_MESSAGE_OPERATIONS: Final = {
    "POST": "SendMessage",
    "GET": "ReceiveMessage",
    "DELETE": "DeleteMessage",
    "PUT": "ChangeMessageVisibility",
}
OPERATIONS: Final = frozenset(
    (
        *_QUEUE_OPERATIONS.values(),
        *_MESSAGE_OPERATIONS.values(),
        "SetQueueAttributes",
        "ListQueue",
        "PeekMessage",
        "BatchDeleteMessage",
        "GetAccountAttributes",
        "SetAccountAttributes",
    )
)


class Route(NamedTuple):
    """What a request asks for."""

    operation: str
    queue: str = ""
    parameters: Parameters = MappingProxyType({})


def route(request: Request) -> Route:
    """The operation, the queue it is about and the parameters; raises UrlUnknown, NoTopics, QueryRefused."""
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
            return Route(operation, parts[1], parameters)
    elif len(parts) == 2 and parts[0] == "queues":
        operation = _QUEUE_OPERATIONS.get(method)
        if operation == "CreateQueue" and _is_true(parameters, "metaoverride"):
            operation = "SetQueueAttributes"
        if operation is not None:
            return Route(operation, parts[1], parameters)
    elif parts == ("queues",) and method == "GET":
        return Route("ListQueue", "", parameters)
    elif not parts and "accountmeta" in parameters and method in ("GET", "PUT"):
        return Route("GetAccountAttributes" if method == "GET" else "SetAccountAttributes")
    elif parts and parts[0] == "topics":
        raise NoTopics
    raise UrlUnknown(method, path)


def read_query(query: str) -> dict[str, str]:
    """The parameters of a query string. A plus is a plus: receipt handles come unescaped."""
    parameters: dict[str, str] = {}
    pairs = query.split("&", PARAMETERS_MAX + 1)
    if len(pairs) > PARAMETERS_MAX:
        raise QueryRefused(f"more than {PARAMETERS_MAX} parameters")
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
