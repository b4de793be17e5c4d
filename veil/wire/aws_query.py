"""AWS Query: a form or a query string, its dotted names made into the shape of the action's input; and the answer to it.

That is XML, or JSON of its own form for clients that ask for it.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from veil.core.text import read_pairs, xml_text
from veil.wire.actions import Action
from veil.wire.exchange import Request, Response
from veil.wire.large import encode_in_pieces
from veil.wire.request_errors import ParameterRefused, RequestUnreadable
from veil.wire.shapes import Shape
from veil.wire.sqs_codes import Refusal

# ---- names of lists and maps


class MapName(NamedTuple):
    """`Attribute.1.Name=…&Attribute.1.Value=…`: the name of an entry, of its key and of its value."""

    entry: str
    key: str
    value: str


LIST_NAMES: Final[Mapping[str, str]] = {
    "AttributeNames": "AttributeName",
    "MessageSystemAttributeNames": "MessageSystemAttributeName",
    "MessageAttributeNames": "MessageAttributeName",
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
    "TagKeys": "TagKey",
    "StringListValues": "StringListValue",
    "BinaryListValues": "BinaryListValue",
    "Messages": "Message",
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Results": "ListMessageMoveTasksResultEntry",
    "Failed": "BatchResultErrorEntry",
}

MAP_NAMES: Final[Mapping[str, MapName]] = {
    "Attributes": MapName("Attribute", "Name", "Value"),
    "MessageAttributes": MapName("MessageAttribute", "Name", "Value"),
    "MessageSystemAttributes": MapName("MessageSystemAttribute", "Name", "Value"),
    "Tags": MapName("Tag", "Key", "Value"),
    "tags": MapName("Tag", "Key", "Value"),
}


def list_name(field: str, action: str) -> str:
    """The name of one item of a list; those of a batch are named after their action."""
    if field == "Entries":
        return f"{action}RequestEntry"
    if field == "Successful":
        return f"{action}ResultEntry"
    return LIST_NAMES[field]


# Ten entries with ten attributes of four parameters each, and room for bulk deletes.
PARAMETERS_MAX: Final = 5_000
_DEPTH_MAX: Final = 8
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}\Z")

Parameters = Mapping[str, str]
_Node = Any  # a text, or a dict of nodes by the next part of the name


def read_parameters(query: str, form: bytes) -> dict[str, str]:
    """Every parameter of the query string and the form; the form counts where both have one."""
    try:
        parameters = _texts(query.encode("ascii")) if query else {}
        if form:
            parameters.update(_texts(form))
    except ValueError:  # UnicodeError is one
        raise RequestUnreadable(
            f"The request is not a valid form of at most {PARAMETERS_MAX} parameters in UTF-8."
        ) from None
    return parameters


def read_input(action: Action, parameters: Parameters, queue_path: str | None) -> Any:
    """The action's input; the path of a queue URL stands in for an absent QueueUrl."""
    tree = _tree(parameters)
    plain = _structure(action.input, tree, action.name)
    if queue_path is not None and "QueueUrl" in action.input.__struct_fields__:
        plain.setdefault("QueueUrl", queue_path)
    try:
        return msgspec.convert(plain, action.input, strict=False)
    except msgspec.ValidationError as problem:
        raise RequestUnreadable(str(problem)) from None


def _texts(form: bytes) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in read_pairs(form, PARAMETERS_MAX)}


def _tree(parameters: Parameters) -> dict[str, _Node]:
    """`{"Tag.1.Key": "a"}` as `{"Tag": {"1": {"Key": "a"}}}`; a name that is both a leaf and a branch stays a branch."""
    tree: dict[str, _Node] = {}
    for name, value in parameters.items():
        if "." not in name:
            tree.setdefault(name, value)
            continue
        *path, last = name.split(".", _DEPTH_MAX)
        node = tree
        for part in path:
            branch = node.get(part)
            if not isinstance(branch, dict):
                branch = node[part] = {}
            node = branch
        node.setdefault(last, value)
    return tree


def _structure(shape: type[Shape], node: _Node, action: str) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    if not isinstance(node, dict):
        return plain
    for name, kind in _fields(shape):
        value = _value(name, kind, node, action)
        if value is not None:
            plain[name] = value
    return plain


def _value(name: str, kind: Any, node: dict[str, _Node], action: str) -> Any:
    origin = get_origin(kind)
    if origin is list:
        items = _items(node.get(list_name(name, action)))
        if items is None:
            return None
        (item,) = get_args(kind)
        if isinstance(item, type) and issubclass(item, Shape):
            return [_structure(item, one, action) for one in items]
        return [one for one in items if isinstance(one, str)]
    if origin is dict:
        return _mapping(name, get_args(kind)[1], node, action)
    value = node.get(name)
    if not isinstance(value, str):
        return None
    if kind is int:
        if not _INTEGER.match(value):
            raise ParameterRefused(name, value, "Must be an integer.")
        return int(value)
    return value


def _mapping(name: str, kind: Any, node: dict[str, _Node], action: str) -> dict[str, Any] | None:
    names = MAP_NAMES[name]
    items = _items(node.get(names.entry))
    if items is None:
        return None
    found: dict[str, Any] = {}
    for one in items:
        if not isinstance(one, dict):
            continue
        # A value without a name keeps its place under the empty one, which every action refuses.
        key, value = one.get(names.key, ""), one.get(names.value, "")
        if not isinstance(key, str):
            continue
        if isinstance(kind, type) and issubclass(kind, Shape):
            found[key] = _structure(kind, value, action)
        elif isinstance(value, str):
            found[key] = value
    return found


def _items(node: _Node) -> list[_Node] | None:
    """The items in the order of their numbers. A single one may come without a number: kombu writes it so."""
    if node is None:
        return None
    if isinstance(node, dict):
        # More digits than any count has would only make a huge number of a text.
        numbered = [(int(part), one) for part, one in node.items() if part.isdecimal() and len(part) < 10]
        if numbered:
            numbered.sort(key=lambda pair: pair[0])
            return [one for _, one in numbered]
    return [node]


@lru_cache(maxsize=128)
def _fields(shape: type[Shape]) -> tuple[tuple[str, Any], ...]:
    """Name and bare type of each field: without its None, without its bounds."""
    hints = get_type_hints(shape)
    return tuple(
        (encoded, _bare(hints[name]))
        for name, encoded in zip(shape.__struct_fields__, shape.__struct_encode_fields__, strict=True)
    )


def _bare(kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (part for part in get_args(kind) if part is not type(None))
    return kind


# ---- the way out

CONTENT_TYPE: Final = "text/xml"
JSON_CONTENT_TYPE: Final = "application/json"
_NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
_DECLARATION: Final = '<?xml version="1.0"?>'

_encode = msgspec.json.Encoder().encode


def wants_json(request: Request) -> bool:
    return "application/json" in request.headers.get("accept", "")


def answer(
    action: str, output: Shape | None, request_id: str, as_json: bool = False, is_large: bool = False
) -> Response:
    """A success; an action without output has no result element, one with an empty output an empty element.

    Beyond LARGE_BYTES it is written in pieces.
    """
    headers = (("x-amzn-RequestId", request_id),)
    if as_json:
        result = {} if output is None else {f"{action}Result": _members(output)}
        tree = {f"{action}Response": result | {"ResponseMetadata": {"RequestId": request_id}}}
        return Response(
            200, encode_in_pieces(tree) if is_large else _encode(tree), JSON_CONTENT_TYPE, headers
        )
    pieces = [f'{_DECLARATION}<{action}Response xmlns="{_NAMESPACE}">']
    if output is not None:
        _write(f"{action}Result", msgspec.to_builtins(output), action, pieces)
    _write("ResponseMetadata", {"RequestId": request_id}, action, pieces)
    pieces.append(f"</{action}Response>")
    body = b"".join([piece.encode() for piece in pieces]) if is_large else "".join(pieces).encode()
    return Response(200, body, CONTENT_TYPE, headers)


def refuse(refusal: Refusal, request_id: str, *, as_json: bool = False) -> Response:
    code, message = refusal
    headers = (("x-amzn-RequestId", request_id),)
    if as_json:
        error = {"Code": code.query_code, "Message": message}
        return Response(
            code.status, _encode({"Error": error, "RequestId": request_id}), JSON_CONTENT_TYPE, headers
        )
    body = (
        f'{_DECLARATION}<ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>{code.fault}</Type>'
        f"<Code>{code.query_code}</Code><Message>{_text(message)}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    )
    return Response(code.status, body.encode(), CONTENT_TYPE, headers)


def refuse_without_action(request_id: str) -> Response:
    """What AWS answers to a request that names no action, whatever form was asked for."""
    return Response(404, b"<UnknownOperationException/>\n", CONTENT_TYPE, (("x-amzn-RequestId", request_id),))


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


def _write(name: str, value: Any, action: str, pieces: list[str]) -> None:
    """An element; lists and maps within it are flattened and renamed as the protocol wants them."""
    if not isinstance(value, dict):
        pieces.append(f"<{name}>{_text(value)}</{name}>")
        return
    if not value:
        pieces.append(f"<{name}/>")
        return
    pieces.append(f"<{name}>")
    for member, content in value.items():
        if isinstance(content, list):
            item_name = list_name(member, action)
            for item in content:
                _write(item_name, item, action, pieces)
        elif isinstance(content, dict):
            entry, key_name, value_name = MAP_NAMES[member]
            for key, item in content.items():
                pieces.append(f"<{entry}><{key_name}>{_text(key)}</{key_name}>")
                _write(value_name, item, action, pieces)
                pieces.append(f"</{entry}>")
        else:
            pieces.append(f"<{member}>{_text(content)}</{member}>")
    pieces.append(f"</{name}>")


def _text(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return xml_text(value)
