"""Queues as a CloudFormation template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from veil.console.aws_attributes import ATTRIBUTE_OF_SETTING, redrive_document
from veil.console.export_names import names_for
from veil.core.queue import Queue, QueueKey, QueueSettings

_DOCUMENTS: Final = ("redrive", "redrive_allow", "policy")


def as_cloudformation(queues: Sequence[Queue]) -> Iterator[str]:
    """A template in JSON; what is a queue's default is left out, its visibility timeout never."""
    names = names_for(queues, lambda words: "".join(word[:1].upper() + word[1:] for word in words))
    yield '{\n  "AWSTemplateFormatVersion": "2010-09-09",\n  "Resources": {'
    for place, queue in enumerate(queues):
        resources = _resources(queue, names)
        # The braces of this piece are those of the whole; what is between them stands one step further in.
        text = json.dumps(resources, indent=2, ensure_ascii=False)[1:-2].replace("\n", "\n  ")
        yield ("," if place else "") + text
    yield "\n  }\n}\n"


def _resources(queue: Queue, names: Mapping[QueueKey, str]) -> dict[str, Any]:
    name = names[queue.key]
    resources: dict[str, Any] = {name: {"Type": "AWS::SQS::Queue", "Properties": _properties(queue, names)}}
    if queue.settings.policy is not None:
        resources[f"{name}Policy"] = {
            "Type": "AWS::SQS::QueuePolicy",
            "Properties": {
                "Queues": [{"Ref": name}],
                "PolicyDocument": json.loads(queue.settings.policy),
            },
        }
    return resources


def _properties(queue: Queue, names: Mapping[QueueKey, str]) -> dict[str, Any]:
    settings, default = queue.settings, QueueSettings(fifo=queue.settings.fifo)
    properties: dict[str, Any] = {"QueueName": queue.name}
    for setting, attribute in ATTRIBUTE_OF_SETTING.items():
        value = getattr(settings, setting)
        is_said = (
            setting == "visibility_s"
            or (setting == "fifo" and settings.fifo)
            or value != getattr(default, setting)
        )
        if is_said and value is not None and setting not in _DOCUMENTS:
            properties[attribute] = value
    if settings.redrive is not None:
        target = settings.redrive.dead_letters
        properties["RedrivePolicy"] = redrive_document(settings.redrive)
        if target in names:
            properties["RedrivePolicy"]["deadLetterTargetArn"] = {"Fn::GetAtt": [names[target], "Arn"]}
    if settings.redrive_allow is not None:
        # By their ARNs, not by reference: the source refers to this queue already, and circles are refused.
        properties["RedriveAllowPolicy"] = redrive_document(settings.redrive_allow)
    if queue.tags:
        properties["Tags"] = [{"Key": key, "Value": value} for key, value in queue.tags.items()]
    return properties
