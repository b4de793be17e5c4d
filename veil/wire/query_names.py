"""How the Query protocol names lists and maps: flattened, in the singular, counted from one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


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
