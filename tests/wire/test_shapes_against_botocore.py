"""No field can be misspelt: shapes and answers are held against botocore's own model and parsers."""

from __future__ import annotations

import copy
import json
import types
from typing import Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlencode

import botocore.session
import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel, Shape
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from botocore.validate import ParamValidator

from tests.wire.kit import Wire, read_xml
from veil.wire import shapes
from veil.wire.actions import ACTIONS
from veil.wire.exchange import Response

# The names of the Query protocol, which botocore's model had until SQS went over to JSON.
LIST_ITEMS = {
    "MessageList": "Message",
    "QueueUrlList": "QueueUrl",
    "AttributeNameList": "AttributeName",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "MessageAttributeNameList": "MessageAttributeName",
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "TagKeyList": "TagKey",
    "SendMessageBatchRequestEntryList": "SendMessageBatchRequestEntry",
    "SendMessageBatchResultEntryList": "SendMessageBatchResultEntry",
    "DeleteMessageBatchRequestEntryList": "DeleteMessageBatchRequestEntry",
    "DeleteMessageBatchResultEntryList": "DeleteMessageBatchResultEntry",
    "ChangeMessageVisibilityBatchRequestEntryList": "ChangeMessageVisibilityBatchRequestEntry",
    "ChangeMessageVisibilityBatchResultEntryList": "ChangeMessageVisibilityBatchResultEntry",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    "StringList": "StringListValue",
    "BinaryList": "BinaryListValue",
}
MAPS = {
    "QueueAttributeMap": ("Attribute", "Name", "Value"),
    "MessageSystemAttributeMap": ("Attribute", "Name", "Value"),
    "MessageBodyAttributeMap": ("MessageAttribute", "Name", "Value"),
    "MessageBodySystemAttributeMap": ("MessageSystemAttribute", "Name", "Value"),
    "TagMap": ("Tag", "Key", "Value"),
}


def json_model() -> ServiceModel:
    return botocore.session.get_session().get_service_model("sqs")


def query_model() -> ServiceModel:
    raw = copy.deepcopy(Loader(include_default_search_paths=True).load_service_model("sqs", "service-2"))
    raw["metadata"] |= {"protocol": "query", "protocols": ["query"]}
    raw["metadata"].pop("awsQueryCompatible", None)
    for name, shape in raw["shapes"].items():
        if shape["type"] == "list":
            shape["member"]["locationName"] = LIST_ITEMS[name]
        elif shape["type"] == "map":
            _, shape["key"]["locationName"], shape["value"]["locationName"] = MAPS[name]
        for member in shape.get("members", {}).values():
            if member["shape"] in MAPS:
                member["locationName"] = MAPS[member["shape"]][0]
    for name, operation in raw["operations"].items():
        if "output" in operation:
            operation["output"]["resultWrapper"] = f"{name}Result"
    return ServiceModel(raw, "sqs")


JSON, QUERY = json_model(), query_model()
OUTPUTS: dict[str, type[shapes.Shape]] = {
    "CancelMessageMoveTask": shapes.CancelMessageMoveTaskOutput,
    "ChangeMessageVisibilityBatch": shapes.BatchOutput,
    "CreateQueue": shapes.QueueUrlOutput,
    "DeleteMessageBatch": shapes.BatchOutput,
    "GetQueueAttributes": shapes.AttributesOutput,
    "GetQueueUrl": shapes.QueueUrlOutput,
    "ListDeadLetterSourceQueues": shapes.ListDeadLetterSourceQueuesOutput,
    "ListMessageMoveTasks": shapes.ListMessageMoveTasksOutput,
    "ListQueueTags": shapes.TagsOutput,
    "ListQueues": shapes.ListQueuesOutput,
    "ReceiveMessage": shapes.ReceiveMessageOutput,
    "SendMessage": shapes.SendMessageOutput,
    "SendMessageBatch": shapes.SendMessageBatchOutput,
    "StartMessageMoveTask": shapes.StartMessageMoveTaskOutput,
}


def compare(ours: Any, theirs: Shape, where: str) -> None:
    if get_origin(ours) in (Union, types.UnionType):
        (ours,) = (part for part in get_args(ours) if part is not type(None))
    if theirs.type_name == "structure":
        hints = get_type_hints(ours)
        fields = dict(zip(ours.__struct_encode_fields__, ours.__struct_fields__, strict=True))
        fields.pop("Tags", None) if where == "CreateQueue" else None  # a leniency of ours
        assert set(fields) == set(theirs.members), where
        for name, member in theirs.members.items():
            compare(hints[fields[name]], member, f"{where}.{name}")
    elif theirs.type_name == "list":
        assert get_origin(ours) is list, where
        compare(get_args(ours)[0], theirs.member, where)
    elif theirs.type_name == "map":
        assert get_origin(ours) is dict, where
        compare(get_args(ours)[1], theirs.value, where)
    else:
        kinds = {"string": str, "integer": int, "long": int, "boolean": bool, "blob": bytes}
        assert ours is kinds[theirs.type_name], where


def test_there_are_exactly_the_actions_of_the_model() -> None:
    assert set(ACTIONS) == set(JSON.operation_names)
    assert len(ACTIONS) == 23


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_every_field_of_an_action_is_one_of_the_model(action: str) -> None:
    operation = JSON.operation_model(action)
    compare(ACTIONS[action].input, operation.input_shape, action)
    if operation.output_shape is None or not operation.output_shape.members:
        assert action not in OUTPUTS
    else:
        compare(OUTPUTS[action], operation.output_shape, f"{action}Output")


class Botocore:
    """Writes requests and reads answers as botocore does, in either protocol."""

    def __init__(self, wire: Wire, model: ServiceModel) -> None:
        self.wire, self.model, self.protocol = wire, model, model.metadata["protocol"]

    async def __call__(self, action: str, **given: Any) -> dict[str, Any]:
        operation = self.model.operation_model(action)
        written = create_serializer(self.protocol).serialize_to_request(given, operation)
        headers = {name.lower(): value for name, value in written["headers"].items()}
        body = written["body"]
        if isinstance(body, dict):
            body = urlencode(body).encode()
        response = await self.wire.request("POST", "/", "", body, **headers)
        return self.read(action, response)

    def read(self, action: str, response: Response) -> dict[str, Any]:
        operation = self.model.operation_model(action)
        parsed: dict[str, Any] = create_parser(self.protocol).parse(
            {"status_code": response.status, "headers": dict(response.headers), "body": response.body},
            operation.output_shape,
        )
        assert response.status == 200, parsed
        parsed.pop("ResponseMetadata")
        if operation.output_shape is not None:
            if self.protocol == "json":
                # Nothing may be in the answer that the parser passed over.
                assert _bare(json.loads(response.body)) == _bare(parsed)
            else:
                root = read_xml(response).find(f"{action}Result")
                assert root is not None
                texts = sum(len(element) == 0 for element in root.iter() if element is not root)
                assert texts == _texts(parsed, operation.output_shape)
            for name in ("Successful", "Failed"):  # required in the model, and left out by AWS when empty
                if name in operation.output_shape.members:
                    parsed.setdefault(name, [])
            report = ParamValidator().validate(parsed, operation.output_shape)
            assert not report.has_errors(), report.generate_report()
        return parsed


def _bare(value: Any) -> Any:
    """The names alone, all the way down."""
    if isinstance(value, dict):
        return {name: _bare(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_bare(one) for one in value]
    return None


def _texts(value: Any, shape: Shape) -> int:
    """How many texts of the XML the parser has used."""
    if shape.type_name == "structure":
        return sum(_texts(one, shape.members[name]) for name, one in value.items())
    if shape.type_name == "list":
        return sum(_texts(one, shape.member) for one in value)
    if shape.type_name == "map":
        return sum(1 + _texts(one, shape.value) for one in value.values())
    return 1


@pytest.mark.parametrize("model", [JSON, QUERY], ids=["json", "query"])
async def test_every_action_is_understood_by_botocores_parser(wire: Wire, model: ServiceModel) -> None:
    call = Botocore(wire, model)
    arn = "arn:aws:sqs:us-east-1:000000000000:"
    dead = (await call("CreateQueue", QueueName="dead"))["QueueUrl"]
    redrive = json.dumps({"deadLetterTargetArn": arn + "dead", "maxReceiveCount": 1})
    url = (await call("CreateQueue", QueueName="q", Attributes={"RedrivePolicy": redrive}, tags={"a": "1"}))[
        "QueueUrl"
    ]
    assert (await call("GetQueueUrl", QueueName="q"))["QueueUrl"] == url
    assert (await call("ListQueues", MaxResults=1))["NextToken"]
    assert (await call("ListQueues"))["QueueUrls"] == [dead, url]
    assert (await call("ListDeadLetterSourceQueues", QueueUrl=dead))["queueUrls"] == [url]
    await call("SetQueueAttributes", QueueUrl=url, Attributes={"VisibilityTimeout": "0", "DelaySeconds": "0"})
    found = (await call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"]))["Attributes"]
    assert found["VisibilityTimeout"] == "0"
    assert json.loads(found["RedrivePolicy"])["maxReceiveCount"] == 1
    await call("TagQueue", QueueUrl=url, Tags={"b": "2"})
    await call("UntagQueue", QueueUrl=url, TagKeys=["a"])
    assert (await call("ListQueueTags", QueueUrl=url))["Tags"] == {"b": "2"}
    await call(
        "AddPermission", QueueUrl=url, Label="l", AWSAccountIds=["123456789012"], Actions=["SendMessage"]
    )
    await call("RemovePermission", QueueUrl=url, Label="l")

    attributes = {
        "text": {"DataType": "String", "StringValue": "a & <b>\r\n"},
        "bytes": {"DataType": "Binary.x", "BinaryValue": b"\x00\xff"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}
    sent = await call(
        "SendMessage",
        QueueUrl=url,
        MessageBody="a\r\nb",
        MessageAttributes=attributes,
        MessageSystemAttributes=trace,
    )
    assert sent["MD5OfMessageSystemAttributes"]
    asked = {"QueueUrl": url, "MessageAttributeNames": ["All"], "MessageSystemAttributeNames": ["All"]}
    (message,) = (await call("ReceiveMessage", **asked))["Messages"]
    assert message["Body"] == "a\r\nb"
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"]["AWSTraceHeader"] == "Root=1"
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert "Messages" not in await call("ReceiveMessage", **asked)  # spent: it went to the dead letters

    entries = [
        {"Id": "good", "MessageBody": "x", "MessageAttributes": attributes, "MessageSystemAttributes": trace},
        {"Id": "late", "MessageBody": "x", "DelaySeconds": 901},
    ]
    batch = await call("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert batch["Successful"][0]["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert batch["Failed"][0]["SenderFault"] is True
    (message,) = (await call("ReceiveMessage", QueueUrl=url, VisibilityTimeout=9, WaitTimeSeconds=0))[
        "Messages"
    ]
    handle = message["ReceiptHandle"]
    await call("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=20)
    changed = await call(
        "ChangeMessageVisibilityBatch",
        QueueUrl=url,
        Entries=[
            {"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 30},
            {"Id": "b", "ReceiptHandle": "x", "VisibilityTimeout": 30},
        ],
    )
    assert (changed["Successful"], changed["Failed"][0]["Code"]) == ([{"Id": "a"}], "ReceiptHandleIsInvalid")
    await call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    deleted = await call("DeleteMessageBatch", QueueUrl=url, Entries=[{"Id": "a", "ReceiptHandle": handle}])
    assert deleted["Successful"] == [{"Id": "a"}]

    task = await call(
        "StartMessageMoveTask",
        SourceArn=arn + "dead",
        DestinationArn=arn + "q",
        MaxNumberOfMessagesPerSecond=1,
    )
    (running,) = (await call("ListMessageMoveTasks", SourceArn=arn + "dead", MaxResults=10))["Results"]
    assert running["TaskHandle"] == task["TaskHandle"]
    assert running["ApproximateNumberOfMessagesToMove"] == 1
    await call("CancelMessageMoveTask", TaskHandle=task["TaskHandle"])
    await call("PurgeQueue", QueueUrl=url)
    await call("DeleteQueue", QueueUrl=url)


@pytest.mark.parametrize(("model", "kind"), [(JSON, "json"), (QUERY, "query")], ids=["json", "query"])
async def test_botocore_reads_code_and_type_of_an_error(wire: Wire, model: ServiceModel, kind: str) -> None:
    if kind == "json":
        response = await wire.post("PurgeQueue", {"QueueUrl": "none"})
    else:
        response = await wire.form("PurgeQueue", {"QueueUrl": "none"})
    parsed = create_parser(kind).parse(
        {
            "status_code": response.status,
            "headers": {name.lower(): value for name, value in response.headers},
            "body": response.body,
        },
        None,
    )
    assert parsed["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    if kind == "json":
        assert parsed["Error"]["QueryErrorCode"] == "QueueDoesNotExist"
    else:
        assert parsed["Error"]["Type"] == "Sender"
    assert parsed["ResponseMetadata"]["HTTPStatusCode"] == 400
