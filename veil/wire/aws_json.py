"""AWS JSON 1.0: the action is in the X-Amz-Target header, input and output are JSON objects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from veil.wire.actions import ACTIONS, EXTENSIONS
from veil.wire.call import Call
from veil.wire.exchange import Response
from veil.wire.large import LARGE_BYTES, check_structure, encode_in_pieces
from veil.wire.request_errors import RequestUnreadable
from veil.wire.shapes import Shape
from veil.wire.sqs_codes import Refusal

CONTENT_TYPE: Final = "application/x-amz-json-1.0"
_SQS_PREFIX: Final = "AmazonSQS."
_VEIL_PREFIX: Final = "Veil."


class JsonTarget(NamedTuple):
    """An action as a target header names it, with the decoder of its input made ready."""

    name: str
    run: Callable[[Call, Any], Awaitable[Shape | None]]
    decode: Callable[[bytes], Any]


# Not strict: hand-made clients send numbers as texts, and AWS takes them.
TARGETS: Final[Mapping[str, JsonTarget]] = {
    prefix + name: JsonTarget(name, action.run, msgspec.json.Decoder(action.input, strict=False).decode)
    for prefix, actions in ((_SQS_PREFIX, ACTIONS), (_VEIL_PREFIX, EXTENSIONS))
    for name, action in actions.items()
}

_encode = msgspec.json.Encoder().encode


def read_input(target: JsonTarget, body: bytes) -> Any:
    """The action's input; raises RequestUnreadable for anything but a JSON object with values of the right types.

    A body beyond LARGE_BYTES may not have more values than any request needs.
    """
    if len(body) > LARGE_BYTES:
        check_structure(body)
    try:
        # No body at all is what some clients send for an action without parameters.
        return target.decode(body or b"{}")
    except msgspec.ValidationError as problem:
        raise RequestUnreadable(str(problem)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RequestUnreadable("The request body is not a valid JSON document.") from None


def answer(output: Shape | None, request_id: str, is_large: bool = False) -> Response:
    """A success; beyond LARGE_BYTES it is written in pieces. An action without output has no body."""
    body = b"" if output is None else encode_in_pieces(output) if is_large else _encode(output)
    return Response(200, body, CONTENT_TYPE, (("x-amzn-RequestId", request_id),))


def refuse(refusal: Refusal, request_id: str) -> Response:
    """An error. The header carries the older code, by which SDKs name the error; some crash without it."""
    code, message = refusal
    # A value that was refused is repeated in the text, whatever it is; a refusal that cannot be written would be none.
    message = message.encode("utf-8", "replace").decode()
    return Response(
        code.status,
        _encode({"__type": code.json_type, "message": message}),
        CONTENT_TYPE,
        (("x-amzn-RequestId", request_id), ("x-amzn-query-error", f"{code.query_code};{code.fault}")),
    )
