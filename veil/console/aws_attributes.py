"""A queue's settings under the names and in the texts that AWS gives them: for commands and for exports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from veil.core.queue import QueueSettings, RedriveAllow, RedrivePolicy

# The wire layer has a table of its own, since it reads what clients write; this one only writes.
ATTRIBUTE_OF_SETTING: Final[Mapping[str, str]] = {
    "fifo": "FifoQueue",
    "visibility_s": "VisibilityTimeout",
    "retention_s": "MessageRetentionPeriod",
    "delay_s": "DelaySeconds",
    "wait_s": "ReceiveMessageWaitTimeSeconds",
    "message_bytes_max": "MaximumMessageSize",
    "content_deduplication": "ContentBasedDeduplication",
    "deduplication_scope": "DeduplicationScope",
    "throughput_limit": "FifoThroughputLimit",
    "redrive": "RedrivePolicy",
    "redrive_allow": "RedriveAllowPolicy",
    "managed_sse": "SqsManagedSseEnabled",
    "kms_key": "KmsMasterKeyId",
    "kms_reuse_s": "KmsDataKeyReusePeriodSeconds",
    "policy": "Policy",
}


def changed_attributes(before: QueueSettings, after: QueueSettings) -> dict[str, str]:
    """The attributes that turn the one into the other; an empty text takes a setting away."""
    return {
        name: attribute_text(getattr(after, setting))
        for setting, name in ATTRIBUTE_OF_SETTING.items()
        if getattr(before, setting) != getattr(after, setting)
    }


def attribute_text(value: Any) -> str:
    """One setting's value as a text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, RedrivePolicy | RedriveAllow):
        return json.dumps(redrive_document(value), separators=(",", ":"))
    return str(value)


def redrive_document(policy: RedrivePolicy | RedriveAllow) -> dict[str, Any]:
    """Either of the two redrive policies as the document that AWS reads."""
    if isinstance(policy, RedrivePolicy):
        return {"deadLetterTargetArn": policy.dead_letters.arn, "maxReceiveCount": policy.receives_max}
    document: dict[str, Any] = {"redrivePermission": policy.permission}
    if policy.sources:
        document["sourceQueueArns"] = [source.arn for source in policy.sources]
    return document
