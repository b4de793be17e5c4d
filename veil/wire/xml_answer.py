"""AWS Query, the way out: XML, or the same tree as JSON for clients that ask for it."""

from __future__ import annotations

from typing import Any, Final
from xml.sax.saxutils import escape

import msgspec

from veil.wire.exchange import Response
from veil.wire.query_names import MAP_NAMES, list_name
from veil.wire.shapes import Shape
from veil.wire.sqs_codes import Refusal

CONTENT_TYPE: Final = "text/xml"
JSON_CONTENT_TYPE: Final = "application/json"
_NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
_DECLARATION: Final = '<?xml version="1.0"?>'

_encode = msgspec.json.Encoder().encode


def answer(action: str, output: Shape | None, request_id: str, *, as_json: bool = False) -> Response:
    """A success; an action without output has no result element, one with an empty output an empty element."""
    response: dict[str, Any] = {}
    if output is not None:
        response[f"{action}Result"] = _flattened(msgspec.to_builtins(output), action)
    response["ResponseMetadata"] = {"RequestId": request_id}
    return _response(200, f"{action}Response", response, request_id, as_json)


def refuse(refusal: Refusal, request_id: str, *, as_json: bool = False) -> Response:
    """An error."""
    code, message = refusal
    error = {"Type": code.fault, "Code": code.query_code, "Message": message, "Detail": {}}
    if as_json:
        del error["Type"], error["Detail"]
        body = _encode({"Error": error, "RequestId": request_id})
        return Response(code.status, body, JSON_CONTENT_TYPE, (("x-amzn-RequestId", request_id),))
    return _response(
        code.status, "ErrorResponse", {"Error": error, "RequestId": request_id}, request_id, False
    )


def refuse_without_action(request_id: str) -> Response:
    """What AWS answers to a request that names no action, whatever form was asked for."""
    return Response(404, b"<UnknownOperationException/>\n", CONTENT_TYPE, (("x-amzn-RequestId", request_id),))


def _response(status: int, name: str, tree: dict[str, Any], request_id: str, as_json: bool) -> Response:
    headers = (("x-amzn-RequestId", request_id),)
    if as_json:
        return Response(status, _encode({name: tree}), JSON_CONTENT_TYPE, headers)
    pieces = [_DECLARATION, f'<{name} xmlns="{_NAMESPACE}">']
    _write_members(tree, pieces)
    pieces.append(f"</{name}>")
    return Response(status, "".join(pieces).encode(), CONTENT_TYPE, headers)


def _flattened(structure: dict[str, Any], action: str) -> dict[str, Any]:
    """The structure with its lists and maps renamed and flattened as the protocol wants them."""
    tree: dict[str, Any] = {}
    for name, value in structure.items():
        if isinstance(value, list):
            tree[list_name(name, action)] = [
                _flattened(item, action) if isinstance(item, dict) else item for item in value
            ]
        elif isinstance(value, dict):
            entry, key_name, value_name = MAP_NAMES[name]
            tree[entry] = [
                {key_name: key, value_name: _flattened(item, action) if isinstance(item, dict) else item}
                for key, item in value.items()
            ]
        else:
            tree[name] = value
    return tree


def _write(name: str, value: Any, pieces: list[str]) -> None:
    if isinstance(value, list):
        for item in value:
            _write(name, item, pieces)
    elif isinstance(value, dict):
        if value:
            pieces.append(f"<{name}>")
            _write_members(value, pieces)
            pieces.append(f"</{name}>")
        else:
            pieces.append(f"<{name}/>")
    else:
        pieces.append(f"<{name}>{_text(value)}</{name}>")


def _write_members(tree: dict[str, Any], pieces: list[str]) -> None:
    for name, value in tree.items():
        _write(name, value, pieces)


def _text(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    # A bare return would reach the client as a line feed: XML parsers normalise line ends.
    text = escape(value, {"\r": "&#13;", '"': "&quot;"})
    return text if text.isprintable() else _without_controls(text)


def _without_controls(text: str) -> str:
    # Names and values from a refused request are repeated in its error; what XML cannot carry would break the answer.
    return "".join(
        char
        if char in "\t\n" or " " <= char <= "\ud7ff" or "\ue000" <= char <= "\ufffd" or char > "\uffff"
        else "\ufffd"
        for char in text
    )
