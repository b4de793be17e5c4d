"""AWS Query, the way out: XML, or JSON of its own form for clients that ask for it."""

from __future__ import annotations

import re
from typing import Any, Final
from xml.sax.saxutils import escape

import msgspec

from veil.wire.aws_query import MAP_NAMES, list_name
from veil.wire.exchange import Response
from veil.wire.large import encode_in_pieces
from veil.wire.shapes import Shape
from veil.wire.sqs_codes import Refusal

CONTENT_TYPE: Final = "text/xml"
JSON_CONTENT_TYPE: Final = "application/json"
_NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
_DECLARATION: Final = '<?xml version="1.0"?>'

_NOT_XML: Final = re.compile("[\\x00-\\x08\\x0b-\\x1f\\ud800-\\udfff\\ufffe\\uffff]")

_encode = msgspec.json.Encoder().encode


def answer(
    action: str, output: Shape | None, request_id: str, as_json: bool = False, *, is_large: bool = False
) -> Response:
    """A success; an action without output has no result element, one with an empty output an empty element."""
    response: dict[str, Any] = {}
    if output is not None:
        response[f"{action}Result"] = (
            _members(output) if as_json else _flattened(msgspec.to_builtins(output), action)
        )
    response["ResponseMetadata"] = {"RequestId": request_id}
    return _response(200, f"{action}Response", response, request_id, as_json, is_large)


def answer_large(action: str, output: Shape, request_id: str, as_json: bool) -> Response:
    """The same for an answer beyond LARGE_BYTES."""
    return answer(action, output, request_id, as_json, is_large=True)


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


def _response(
    status: int, name: str, tree: dict[str, Any], request_id: str, as_json: bool, is_large: bool = False
) -> Response:
    headers = (("x-amzn-RequestId", request_id),)
    if as_json:
        body = encode_in_pieces({name: tree}) if is_large else _encode({name: tree})
        return Response(status, body, JSON_CONTENT_TYPE, headers)
    pieces = [_DECLARATION, f'<{name} xmlns="{_NAMESPACE}">']
    _write_members(tree, pieces)
    pieces.append(f"</{name}>")
    body = b"".join([piece.encode() for piece in pieces]) if is_large else "".join(pieces).encode()
    return Response(status, body, CONTENT_TYPE, headers)


# Members that AWS begins in lower case in this form alone.
_JSON_NAMES: Final = {"Messages": "messages", "QueueUrls": "queueUrls"}


def _members(structure: Shape) -> dict[str, Any]:
    """Every member of the structure under its own name, null where it has no value; a map is a list of its entries."""
    return {
        _JSON_NAMES.get(name, name): _member(name, getattr(structure, field))
        for field, name in zip(structure.__struct_fields__, structure.__struct_encode_fields__, strict=True)
    }


def _member(name: str, value: Any) -> Any:
    if isinstance(value, Shape):
        return _members(value)
    if isinstance(value, list):
        return [_member(name, item) for item in value]
    if isinstance(value, dict):
        _, key_name, value_name = MAP_NAMES[name]
        return [{key_name: key, value_name: _member(name, item)} for key, item in value.items()]
    return value


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
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
