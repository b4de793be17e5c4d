"""Whatever comes in, an answer goes out: malformed input is the sender's fault, and never an exception."""

from __future__ import annotations

import json
import logging
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as generated
from hypothesis import settings
from hypothesis import strategies as st

from tests.stores.kit import STORES
from tests.wire.kit import Refused, Wire, read_json
from veil.core.errors import StoreFailed
from veil.wire.actions import ACTIONS

SERIALIZATION = "com.amazon.coral.service#SerializationException"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"5",
        b"\xff\xfe",
        b"{} x",
        b'{"MessageBody":"\\ud800"}',
        b'{"MessageBody":"\xff"}',
        b'{"MessageBody":5}',
        b'{"QueueUrl":["x"]}',
        b'{"DelaySeconds":"five"}',
        b'{"DelaySeconds":1.5}',
        b'{"DelaySeconds":true}',
        b'{"DelaySeconds":99999999999}',
        b'{"DelaySeconds":' + b"9" * 10_000 + b"}",
        b'{"MessageAttributes":[]}',
        b'{"MessageAttributes":{"a":{"DataType":"Binary","BinaryValue":"!"}}}',
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x":' + b'{"x":' * 100_000,
    ],
)
async def test_what_is_not_the_actions_json_is_a_serialization_error(wire: Wire, body: bytes) -> None:
    with pytest.raises(Refused) as caught:
        read_json(await wire.post("SendMessage", body))
    assert (caught.value.kind, caught.value.status) == (SERIALIZATION, 400)


def _in_json(arn_name: str = "q", receives: object = 1, **more: object) -> str:
    arn = f"arn:aws:sqs:us-east-1:000000000000:{arn_name}"
    return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives, **more})


def _in_handle(task_id: object, arn_name: str = "q") -> str:
    arn = f"arn:aws:sqs:us-east-1:000000000000:{arn_name}"
    return b64encode(json.dumps({"taskId": task_id, "sourceArn": arn}).encode()).decode()


@pytest.mark.parametrize(
    ("action", "given"),
    [
        *(
            ("SetQueueAttributes", {"Attributes": {name: text}})
            for name, text in [
                ("RedrivePolicy", _in_json("\ud800")),
                ("RedrivePolicy", _in_json("q", "\ud800")),
                ("RedrivePolicy", _in_json("q", 10**400)),
                ("RedrivePolicy", _in_json(**{"\ud800": 1})),
                (
                    "RedriveAllowPolicy",
                    '{"redrivePermission":"byQueue","sourceQueueArns":["arn:aws:sqs:c:d:\\ud800"]}',
                ),
                ("Policy", '{"\\ud800":1}'),
                ("Policy", '{"Id":"\\udfff","Statement":[]}'),
            ]
        ),
        *(
            ("Veil.PeekMessages", {"NextToken": urlsafe_b64encode(text.encode()).decode()})
            for text in ("99999999999999999999", str(2**63), "-1", "²", "1.5")
        ),
        *(
            ("CancelMessageMoveTask", {"TaskHandle": text})
            for text in (
                _in_handle("\ud800"),
                _in_handle("x", "\ud800"),
                _in_handle(10**400),
                b64encode(b"[" * 750).decode(),
            )
        ),
    ],
)
@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
async def test_texts_and_numbers_that_no_store_can_hold_are_the_senders_fault(
    store: str, action: str, given: dict[str, Any], tmp_path: Path
) -> None:
    async with Wire(make_store=lambda clock: STORES[store].make(tmp_path, clock)) as wire:
        await wire.queue("q")
        with pytest.raises(Refused) as caught:
            await wire.call(action, QueueUrl="q", **given)
        assert caught.value.status == 400
        assert caught.value.code in ("InvalidParameterValue", "InvalidAttributeValue")


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("AddPermission", {"Label": "l", "AWSAccountIds": ["1" * 1_000] * 1_000, "Actions": ["SendMessage"]}),
        (
            "SendMessage",
            {
                "MessageBody": "x",
                "MessageAttributes": {"n" * 100_000: {"DataType": "String", "StringValue": "x"}},
            },
        ),
    ],
)
async def test_what_is_refused_is_repeated_in_part_only(wire: Wire, action: str, given: Any) -> None:
    await wire.queue("q")
    with pytest.raises(Refused) as caught:
        await wire.call(action, QueueUrl="q", **given)
    assert caught.value.status == 400
    assert len(caught.value.message) < 5_000


async def test_no_body_is_an_empty_object(wire: Wire) -> None:
    assert read_json(await wire.post("ListQueues", b"")) == {}


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("", b"Action=ListQueues&x=%ff"),
        ("", b"Action=ListQueues\xff"),
        ("", b"Action=ListQueues&" + b"&".join(b"a%d=1" % i for i in range(6_000))),
        (
            "Action=SendMessage&QueueUrl=q&MessageAttribute.1.Name=a&MessageAttribute.1.Value.BinaryValue=!",
            b"",
        ),
    ],
)
async def test_what_is_not_a_form_is_refused(wire: Wire, query: str, body: bytes) -> None:
    await wire.queue("q")
    response = await wire.request("POST", "/", query, body)
    assert response.status == 400


@pytest.mark.parametrize(
    "parameters",
    [
        {"AttributeName": "All", "AttributeName.1": "QueueArn"},
        {"AttributeName.1": "All", "AttributeName.1.x": "QueueArn"},
        {"AttributeName.1.2.3.4.5.6.7.8.9.10": "All"},
        {"AttributeName." + "9" * 5_000: "All"},
        {"AttributeName.x": "All", "Attribute..": "", ".": "", "..": "", "": ""},
        {"AttributeName.²": "All"},
    ],
)
async def test_odd_parameter_names_do_no_harm(wire: Wire, parameters: dict[str, str]) -> None:
    await wire.queue("q")
    assert (await wire.form("GetQueueAttributes", {"QueueUrl": "q"} | parameters)).status in (200, 400)


async def test_the_unexpected_is_an_internal_failure_and_is_logged(
    wire: Wire, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wire.queue("q")

    async def explode(*args: object, **more: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(wire.service.store, "find_queue", explode)
    with caplog.at_level(logging.ERROR), pytest.raises(Refused) as caught:
        await wire.call("PurgeQueue", QueueUrl="q")
    assert (caught.value.status, caught.value.code) == (500, "InternalFailure")
    assert "ZeroDivisionError" in caplog.text
    response = await wire.form("PurgeQueue", {"QueueUrl": "q"})
    assert response.status == 500
    assert b"InternalFailure" in response.body


async def test_a_failing_store_is_unavailable(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    url = await wire.queue("q")

    async def fail(*args: object, **more: object) -> None:
        raise StoreFailed("the disk is gone")

    monkeypatch.setattr(wire.service.store, "send", fail)
    with pytest.raises(Refused) as caught:
        await wire.call("SendMessage", QueueUrl=url, MessageBody="x")
    assert (caught.value.status, caught.value.code) == (503, "ServiceUnavailable")
    assert "disk" not in caught.value.message


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_names = st.sampled_from(
    sorted({name for action in ACTIONS.values() for name in action.input.__struct_encode_fields__})
)


@settings(max_examples=300)
@generated(action=st.sampled_from(sorted(ACTIONS)), given=st.dictionaries(_names, _json, max_size=4))
async def test_random_json_is_answered_without_a_server_error(action: str, given: dict[str, Any]) -> None:
    async with Wire() as wire:
        await wire.queue("q")
        response = await wire.post(action, json.dumps({"QueueUrl": "q"} | given).encode())
        assert response.status < 500


_pieces = st.lists(
    st.sampled_from(
        ["Attribute", "Tag", "Name", "Key", "Value", "1", "2", "SendMessageBatchRequestEntry", "Id", ""]
    ),
    min_size=1,
    max_size=5,
).map(".".join)


@settings(max_examples=300)
@generated(
    action=st.sampled_from(sorted(ACTIONS)),
    parameters=st.dictionaries(_names | _pieces, st.text(max_size=8), max_size=6),
)
async def test_random_forms_are_answered_without_a_server_error(
    action: str, parameters: dict[str, str]
) -> None:
    async with Wire() as wire:
        await wire.queue("q")
        try:
            response = await wire.form(action, {"QueueUrl": "q"} | parameters)
        except UnicodeEncodeError:  # the test's own: a form cannot carry a lone surrogate
            return
        assert response.status < 500


async def test_an_attribute_or_tag_without_a_name_is_refused_in_the_query_protocol(wire: Wire) -> None:
    """Passed over, a message would be stored without what its sender wrote on it."""
    url = await wire.queue("q")
    value = {"MessageAttribute.1.Value.DataType": "String", "MessageAttribute.1.Value.StringValue": "v"}
    for action, parameters in (
        ("SendMessage", {"MessageBody": "x", **value}),
        ("TagQueue", {"Tag.1.Value": "v"}),
        ("SetQueueAttributes", {"Attribute.1.Value": "5"}),
    ):
        with pytest.raises(Refused) as caught:
            await wire.query(action, {"QueueUrl": url, **parameters})
        assert caught.value.status == 400
    assert await wire.receive(url) == []
