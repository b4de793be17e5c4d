"""A handler is given what its annotation says, or the message is poison; never anything in between."""

import dataclasses
import enum
import json
from datetime import datetime
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from tests.consumer.handler_kit import a_message
from veil.consumer.handlers.payload import PayloadRefused, TypeRefused, decoder_for


class Model(pydantic.BaseModel):
    order_id: int
    note: str = ""

    @pydantic.field_validator("note")
    @classmethod
    def no_secrets(cls, note: str) -> str:
        if note == "forbidden":
            raise ValueError("is forbidden")
        return note


class Struct(msgspec.Struct):
    order_id: int


@dataclasses.dataclass
class Data:
    order_id: int

    def __post_init__(self) -> None:
        if self.order_id < 0:
            raise ValueError("order_id is negative")


@pydantic.dataclasses.dataclass
class PydanticData:
    order_id: pydantic.PositiveInt


@dataclasses.dataclass
class WithModel:
    inner: Model
    children: "list[WithModel]" = dataclasses.field(default_factory=list)


class Typed(TypedDict):
    order_id: int


class StructOfModel(msgspec.Struct):
    inner: Model


class TypedOfModel(TypedDict):
    inner: Model


class Tuple(NamedTuple):
    order_id: int


class Colour(enum.Enum):
    RED = "red"


class Stranger:
    pass


def decoded(annotation: Any, body: str) -> Any:
    return decoder_for(annotation)(a_message(body).content)


@pytest.mark.parametrize(
    ("annotation", "body", "expected"),
    [
        (Model, '{"order_id": 7}', Model(order_id=7)),
        (Struct, '{"order_id": 7}', Struct(7)),
        (Data, '{"order_id": 7}', Data(7)),
        (PydanticData, '{"order_id": 7}', PydanticData(7)),
        (Typed, '{"order_id": 7}', {"order_id": 7}),
        (Tuple, "[7]", Tuple(7)),
        (WithModel, '{"inner": {"order_id": 1}, "children": []}', WithModel(Model(order_id=1))),
        (dict, '{"a": [1, null]}', {"a": [1, None]}),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (list, "[1, 2]", [1, 2]),
        (list[Model], '[{"order_id": 1}]', [Model(order_id=1)]),
        (list[Struct], '[{"order_id": 1}]', [Struct(1)]),
        (Struct | None, "null", None),
        (Model | PydanticData, '{"order_id": 1}', Model(order_id=1)),
        (list[Model | PydanticData] | Model, '[{"order_id": 1}]', [Model(order_id=1)]),
        (Colour, '"red"', Colour.RED),
        (int, "42", 42),
        (Any, '"text"', "text"),
        (str, '{"left": "alone"}', '{"left": "alone"}'),
        (str, "ünï", "ünï"),
        (bytes, "ünï", "ünï".encode()),
    ],
)
def test_a_body_becomes_what_the_annotation_says(annotation: Any, body: str, expected: Any) -> None:
    assert decoded(annotation, body) == expected


@pytest.mark.parametrize(
    ("annotation", "body", "words"),
    [
        (Model, '{"order_id": "x"}', "order_id"),
        (Model, "not json", "JSON"),
        (Model, '{"order_id": 1, "note": "forbidden"}', "is forbidden"),
        (Struct, '{"order_id": "7"}', "order_id"),
        (Struct, "{}", "order_id"),
        (Struct, "", "truncated"),
        (Data, '{"order_id": -1}', "negative"),
        (PydanticData, '{"order_id": -1}', "order_id"),
        (Typed, '{"order_id": null}', "order_id"),
        (dict, "[]", "object"),
        (list, "{}", "array"),
        (Any, "plain words", "malformed"),
        (Any, "[" * 100_000, "recursion"),
        (int, "4.5", "int"),
        (dict, '{"a": "\ud800"}', "surrogates"),
    ],
)
def test_a_body_that_is_something_else_is_poison_and_the_reason_names_the_field(
    annotation: Any, body: str, words: str
) -> None:
    with pytest.raises(PayloadRefused, match=words):
        decoded(annotation, body)


def test_the_reason_does_not_repeat_what_was_in_the_body() -> None:
    with pytest.raises(PayloadRefused) as refused:
        decoded(Model, '{"order_id": "4111-1111-1111-1111"}')
    assert "4111" not in str(refused.value)
    assert str(refused.value).startswith("payload is not Model: order_id: ")


def test_a_bytes_payload_that_cannot_be_encoded_is_poison() -> None:
    with pytest.raises(PayloadRefused, match="bytes"):
        decoded(bytes, "\ud800")


@pytest.mark.parametrize("annotation", [Stranger, list[Stranger], Stranger | None, dict[str, Stranger]])
def test_a_class_that_nothing_can_decode_is_refused_beforehand(annotation: Any) -> None:
    with pytest.raises(TypeRefused, match="Stranger is no payload type, expected a pydantic model"):
        decoder_for(annotation)


@pytest.mark.parametrize("annotation", [StructOfModel, TypedOfModel])
def test_a_type_that_pydantic_cannot_build_is_refused_beforehand(annotation: Any) -> None:
    with pytest.raises(TypeRefused, match=f"{annotation.__name__} cannot be decoded: "):
        decoder_for(annotation)


def test_a_union_that_cannot_be_told_apart_is_refused_beforehand() -> None:
    class Other(msgspec.Struct):
        b: int

    with pytest.raises(TypeRefused, match="tagged"):
        decoder_for(Struct | Other)


def test_dates_are_read_as_dates() -> None:
    assert decoded(datetime, '"2026-11-15T10:00:00Z"').year == 2026


def a_cloud_event(**more: Any) -> str:
    return json.dumps({"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.created", **more})


@pytest.mark.parametrize(
    ("annotation", "event", "expected"),
    [
        (Struct, {"data": {"order_id": 7}}, Struct(7)),
        (Model, {"data": {"order_id": 7}}, Model(order_id=7)),
        (dict, {"data": {"order_id": 7}}, {"order_id": 7}),
        (str, {"data": "words", "datacontenttype": "text/plain"}, "words"),
        (str, {"data": [1]}, "[1]"),
        (bytes, {"data_base64": "AAH/"}, b"\x00\x01\xff"),
        (str, {"data_base64": "aGk="}, "hi"),
        (bytes, {"data": "hi"}, b"hi"),
        (Struct, {"data_base64": "eyJvcmRlcl9pZCI6IDd9"}, Struct(7)),
        (Any, {}, None),
    ],
)
def test_the_payload_of_a_cloud_event_is_its_data(
    annotation: Any, event: dict[str, Any], expected: Any
) -> None:
    assert decoded(annotation, a_cloud_event(**event)) == expected


@pytest.mark.parametrize("annotation", [str, bytes, dict])
def test_a_cloud_event_whose_binary_data_is_damaged_is_poison(annotation: Any) -> None:
    with pytest.raises(PayloadRefused, match="data_base64 is not base64"):
        decoded(annotation, a_cloud_event(data_base64="!!!"))


def test_binary_data_that_is_no_text_is_poison_for_a_handler_of_text() -> None:
    with pytest.raises(PayloadRefused, match="not text"):
        decoded(str, a_cloud_event(data_base64="AAH/"))


def test_a_body_that_only_mentions_specversion_is_left_as_it_is() -> None:
    body = '{"note": "\\"specversion\\" is a word", "specversion": 3}'
    assert decoded(str, body) == body
    assert decoded(dict, body)["specversion"] == 3
