"""Inputs for every action, good ones and spoiled ones, built from botocore's model of SQS."""

from __future__ import annotations

import base64
import random
from functools import cache
from itertools import islice
from typing import Any

from botocore.loaders import Loader
from botocore.model import ListShape, MapShape, OperationModel, ServiceModel, Shape, StructureShape

QUEUE = "fuzz"
FIFO = "fuzz.fifo"

# Waits of 1 to 20 s would be good requests, and slow ones.
_NUMBERS: tuple[Any, ...] = (
    0, -1, 21, 43200, 43201, 2**31, -(2**31) - 1, 2**63, 2**64, 10**400, 1.5, -0.0, 1e308, 1e-7, True, "0",
    "", "1e3", "0x10", "٣",
)  # fmt: skip
_TEXTS: tuple[Any, ...] = (
    "", " ", "\x00", "a\x00b", "\ud800", "\udfff\ud800", "￾", "￿", "\x0b", "\u202e", "é" * 200,
    "x" * 70_000, "../../etc/passwd",
    "http://localhost/000000000000/fuzz", "/000000000000/fuzz", "http://[::1",
    "http://localhost/" + "9" * 40 + "/fuzz", "arn:aws:sqs:us-east-1:000000000000:fuzz",
    "arn:::::::", "%00", "%s%n", "' OR 1=1 --", '{"a":', "fuzz.fifo", "😀" * 30, "AQ" * 300, "=" * 50, "*",
    ".*",
)  # fmt: skip
_ATTRIBUTES = (
    "VisibilityTimeout", "MessageRetentionPeriod", "DelaySeconds", "MaximumMessageSize", "RedrivePolicy",
    "RedriveAllowPolicy", "Policy",
    "FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit", "KmsMasterKeyId",
    "SqsManagedSseEnabled", "All", "Nonsense",
)  # fmt: skip
_POLICIES: tuple[str, ...] = (
    '{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:fuzz","maxReceiveCount":"1e9"}',
    '{"deadLetterTargetArn":[],"maxReceiveCount":{}}', '{"maxReceiveCount":1}', "[]", "null", "1", '"x"',
    "{" * 5000, "[" * 100_000,
    '{"Version":"2012-10-17","Statement":{"Effect":"Maybe"}}',
    '{"Statement":[{"Principal":{"AWS":[[]]},"Action":5,"Condition":{"a":{"b":[]}}}]}',
    '{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:\\ud800","maxReceiveCount":1}',
    '{"deadLetterTargetArn":"x","maxReceiveCount":"\\ud800"}', '{"\\ud800":1}',
    '{"redrivePermission":"byQueue","sourceQueueArns":["arn:aws:sqs:us-east-1:000000000000:\\ud800"]}',
    '{"redrivePermission":"byQueue","sourceQueueArns":"x"}', '{"redrivePermission":["denyAll"]}',
)  # fmt: skip


@cache
def service_model() -> ServiceModel:
    """SQS as botocore knows it: every action, every field, every type."""
    return ServiceModel(Loader().load_service_model("sqs", "service-2"))


def operations() -> list[OperationModel]:
    """All 23 actions."""
    model = service_model()
    return [model.operation_model(name) for name in model.operation_names]


# ---- good requests, to be spoiled


def good_input(operation: OperationModel, rng: random.Random) -> dict[str, Any]:
    """An input that the action may well accept."""
    shape = operation.input_shape
    return {} if shape is None else _good_structure(shape, rng)


def _good_structure(shape: StructureShape, rng: random.Random) -> dict[str, Any]:
    required = set(shape.required_members)
    return {
        name: _good(name, member, rng)
        for name, member in shape.members.items()
        if (name in required or rng.random() < 0.4)
        and name not in ("WaitTimeSeconds", "StringListValues", "BinaryListValues")
    }


def _good(name: str, shape: Shape, rng: random.Random) -> Any:
    match shape:
        case StructureShape():
            return _good_structure(shape, rng)
        case ListShape():
            return [_good(name, shape.member, rng) for _ in range(rng.randint(1, 3))]
        case MapShape():
            return {_good_key(name, rng): _good("value", shape.value, rng) for _ in range(rng.randint(1, 2))}
    if shape.type_name == "integer":
        return rng.choice((0, 1, 5, 10)) if name != "VisibilityTimeout" else 1
    if shape.type_name == "boolean":
        return True
    if shape.type_name == "blob":
        return base64.b64encode(rng.randbytes(5)).decode()
    return _good_text(name, rng)


def _good_key(name: str, rng: random.Random) -> str:
    return rng.choice(_ATTRIBUTES) if name == "Attributes" else f"key{rng.randrange(9)}"


def _good_text(name: str, rng: random.Random) -> str:
    choices = {
        "QueueUrl": ("http://localhost/000000000000/fuzz", "http://localhost/000000000000/fuzz.fifo", "fuzz"),
        "QueueName": (QUEUE, FIFO, f"fuzz{rng.randrange(20)}"),
        "SourceArn": ("arn:aws:sqs:us-east-1:000000000000:fuzz",),
        "DestinationArn": ("arn:aws:sqs:us-east-1:000000000000:fuzz.fifo",),
        "DataType": ("String", "Number", "Binary", "String.label"),
        "value": ("0", "1", "60", "1024", "true", *_POLICIES[:3]),
        "AttributeNames": ("All", "Policy"),
        "ReceiptHandle": ("AQ" * 24, "x"),
        "Actions": ("SendMessage", "*"),
        "AWSAccountIds": ("123456789012",),
    }
    return rng.choice(choices.get(name, (f"text{rng.randrange(30)}",)))


# ---- spoiling


def spoil(value: Any, rng: random.Random) -> Any:
    """The same input with one field of the wrong type, out of range, missing, or out of this world."""
    paths = list(_paths(value))
    if not paths:
        return rng.choice(([], "x", 1, None, {"Unknown": rng.choice(_TEXTS)}))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        path = rng.choice(paths)
        holder = value
        try:
            for step in path[:-1]:
                holder = holder[step]
            if rng.random() < 0.1 and isinstance(holder, dict):
                del holder[path[-1]]
            else:
                before = holder[path[-1]]
                holder[path[-1]] = _nonsense(before, rng)
                # A list of lists, each made five hundred times as long: whoever writes it down is not heard of for minutes.
                if next(islice(_paths(value), _VALUES_MAX, None), None) is not None:
                    holder[path[-1]] = before
        except (KeyError, IndexError, TypeError):
            pass  # an earlier spoiling took it away
    return value


_VALUES_MAX = 20_000


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield (*before, key)
        yield from _paths(inner, (*before, key))


def _nonsense(value: Any, rng: random.Random) -> Any:
    kind = rng.randrange(7)
    if kind == 0:
        return rng.choice((None, True, [], {}, [[]], {"": ""}, [None] * 3, {"a": {"b": {"c": []}}}))
    if kind == 1:
        return rng.choice(_NUMBERS)
    if kind == 2:
        return rng.choice(_POLICIES)
    if kind == 3 and isinstance(value, list):
        return value * rng.choice((0, 4, 11, 500))
    if kind == 4 and isinstance(value, dict):
        return value | {f"k{n}": next(iter(value.values()), None) for n in range(rng.choice((11, 60, 400)))}
    if kind == 5 and isinstance(value, str):
        at = rng.randint(0, len(value))
        return value[:at] + str(rng.choice(_TEXTS)) + value[at:]
    return rng.choice(_TEXTS)


def flip(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, dropped, doubled or put in."""
    spoiled = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(spoiled) + 1)
        match rng.randrange(5):
            case 0 if at < len(spoiled):
                spoiled[at] ^= 1 << rng.randrange(8)
            case 1:
                spoiled[at : at + rng.randint(1, 8)] = b""
            case 2:
                spoiled[at:at] = rng.randbytes(rng.randint(1, 6))
            case 3:
                spoiled[at:at] = spoiled[max(0, at - 10) : at]
            case _:
                spoiled[at : at + 1] = rng.choice(
                    (b"\x00", b"\xff", b'"', b"{", b"[", b"\\", b"&", b"=", b"%", b"\r\n", b"\xed\xa0\x80")
                )
    return bytes(spoiled)
