"""From a message to what its handler asks for: one decoder for each annotation, chosen when the handler is decorated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_args

import msgspec
from msgspec import inspect as shapes

from veil.consumer.message import Content

# ---- errors
#
# HandlerRefused         the function cannot be a handler; said when it is decorated
# HandlingError
# ├── PayloadRefused     the body is not what the handler asks for: no retry will mend it
# ├── HandlingCancelled  another consumer may hold the message: the result is not kept
# ├── ItemFailed         a batch handler named this message as failed
# └── AnswerRefused      a handler or a middleware returned something that is no outcome


class HandlerRefused(TypeError):
    """The function cannot be a handler."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"handler {name}: {problem}")
        self.name, self.problem = name, problem


class HandlingError(Exception):
    """The root of what is raised while a message is handled, other than by the handler itself."""


class PayloadRefused(HandlingError):
    """The message is poison: what the handler asks for cannot be made of it."""


class HandlingCancelled(HandlingError):
    """The handler was cancelled because its lease was lost."""


class ItemFailed(HandlingError):
    """A batch handler named this message as failed."""


class AnswerRefused(HandlingError):
    """A handler or a middleware returned something that is no outcome."""


Decoder = Callable[[Content], Any]

# Everything below is known to msgspec; pydantic is never imported unless an annotation is already made of it.
PAYLOAD_TYPES = (
    "a pydantic model, msgspec Struct, dataclass, TypedDict, dict, list, str, bytes, Any, Message or Lease"
)


class TypeRefused(TypeError):
    """No payload can be decoded into the type."""


def decoder_for(annotation: Any) -> Decoder:
    """The decoder for an annotation; raises TypeRefused when there can be none."""
    if annotation is str:
        return _text
    if annotation is bytes:
        return _binary
    return _json_into(annotation)


def type_name(annotation: Any) -> str:
    """An annotation as its author wrote it, or nearly."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _text(content: Content) -> str:
    if content.text is not None:
        return content.text
    if content.binary is not None:
        try:
            return content.binary.decode()
        except UnicodeDecodeError as error:
            raise PayloadRefused(f"payload is not text: {error}") from None
    return _json_text(content).decode()


def _binary(content: Content) -> bytes:
    if content.text is not None:
        try:
            return content.text.encode()
        except UnicodeEncodeError as error:
            raise PayloadRefused(f"payload has no bytes: {error}") from None
    if content.binary is not None:
        return content.binary
    return _json_text(content)


def _json_text(content: Content) -> bytes:
    """What an envelope carried as a JSON string is that string; anything else is its JSON."""
    raw = content.json
    if raw is None:
        raise PayloadRefused(f"payload cannot be read: {content.problem}")
    if not raw.startswith(b'"'):
        return raw
    try:
        return msgspec.json.decode(raw, type=str).encode()
    except (msgspec.DecodeError, UnicodeError) as error:
        raise PayloadRefused(f"payload is not text: {error}") from None


def _json_into(annotation: Any) -> Decoder:
    name = type_name(annotation)
    decode = _json_decoder(annotation, name)

    def decoded(content: Content) -> Any:
        source: str | bytes | None = content.text
        if source is None:
            source = content.binary if content.json is None else content.json
        if source is None:
            raise PayloadRefused(f"payload cannot be read: {content.problem}")
        try:
            return decode(source)
        except Exception as error:
            # Whatever a validator raises, it will raise again for the same bytes.
            raise PayloadRefused(f"payload is not {name}: {_words(error)}") from error

    return decoded


def _json_decoder(annotation: Any, name: str) -> Callable[[Any], Any]:
    try:
        try:
            foreign = list(_foreign_classes(shapes.type_info(annotation), set()))
        except TypeError:  # of a union of models, msgspec does not tell the shape
            foreign = [cls for cls in _named_in(annotation) if _is_pydantic(cls)]
            if not foreign:
                raise
        if not foreign:
            return msgspec.json.Decoder(annotation).decode
        strangers = [cls for cls in foreign if not _is_pydantic(cls)]
        if strangers:
            raise TypeRefused(f"{type_name(strangers[0])} is no payload type, expected {PAYLOAD_TYPES}")
        from pydantic import TypeAdapter

        return TypeAdapter(annotation).validate_json
    except TypeRefused:
        raise
    except (TypeError, NameError, RuntimeError) as error:  # pydantic's own are RuntimeErrors of several lines
        raise TypeRefused(f"{name} cannot be decoded: {str(error).splitlines()[0]}") from None


def _named_in(annotation: Any) -> Iterator[Any]:
    """What an annotation is written of."""
    yield annotation
    for part in get_args(annotation):
        yield from _named_in(part)


def _foreign_classes(shape: Any, seen: set[int]) -> Iterator[type]:
    """Every class in the shape that msgspec does not build itself, or that has rules of its own to obey."""
    if id(shape) in seen:  # types may contain themselves
        return
    seen.add(id(shape))
    cls = getattr(shape, "cls", None)
    if isinstance(shape, shapes.CustomType) or _is_pydantic(cls):
        # A pydantic dataclass is a dataclass to msgspec, which would pass its validators by.
        yield shape.cls
        return
    for part in _parts(shape):
        yield from _foreign_classes(part, seen)


def _parts(shape: Any) -> Iterator[Any]:
    for name in ("type", "item_type", "key_type", "value_type"):
        part = getattr(shape, name, None)
        if isinstance(part, shapes.Type):
            yield part
    for name in ("types", "item_types"):
        yield from getattr(shape, name, ())
    for field in getattr(shape, "fields", ()):
        yield field.type


def _is_pydantic(cls: Any) -> bool:
    return hasattr(cls, "__pydantic_validator__")


def _words(error: Exception) -> str:
    """What was wrong, without the values: a reason is written on dead letters and in logs, a body is not."""
    problems = getattr(error, "errors", None)
    if type(error).__module__.startswith("pydantic") and callable(problems):
        told = problems(include_url=False, include_context=False, include_input=False)
        return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'payload'}: {each['msg']}" for each in told)
    return str(error) or type(error).__name__
