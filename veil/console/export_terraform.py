"""Queues as Terraform resources of the AWS provider."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from veil.console.aws_attributes import redrive_document
from veil.console.export_names import names_for
from veil.core.queue import Queue, QueueKey, QueueSettings

_ARGUMENTS: Final = {
    "visibility_timeout_seconds": "visibility_s",
    "message_retention_seconds": "retention_s",
    "delay_seconds": "delay_s",
    "receive_wait_time_seconds": "wait_s",
    "max_message_size": "message_bytes_max",
    "fifo_queue": "fifo",
    "content_based_deduplication": "content_deduplication",
    "deduplication_scope": "deduplication_scope",
    "fifo_throughput_limit": "throughput_limit",
    "sqs_managed_sse_enabled": "managed_sse",
    "kms_master_key_id": "kms_key",
    "kms_data_key_reuse_period_seconds": "kms_reuse_s",
}
_ESCAPE: Final = re.compile(r"\\.")
_NOT_IN_HCL: Final = {r"\b": r"\u0008", r"\f": r"\u000c"}
# Where the provider's default is another than Veil's, or what the queue is for.
_ALWAYS: Final = ("visibility_s", "message_bytes_max")


def as_terraform(queues: Sequence[Queue]) -> Iterator[str]:
    """One `aws_sqs_queue` for each, and resources of their own for the two policies that would else go in circles."""
    names = names_for(queues, lambda words: _identifier("_".join(words).lower()))
    for place, queue in enumerate(queues):
        yield ("\n" if place else "") + "\n".join(_blocks(queue, names))


def _blocks(queue: Queue, names: Mapping[QueueKey, str]) -> list[str]:
    name, settings = names[queue.key], queue.settings
    blocks = [_block("aws_sqs_queue", name, _arguments(queue, names))]
    url = f"aws_sqs_queue.{name}.url"
    if settings.policy is not None:
        blocks.append(
            _block("aws_sqs_queue_policy", name, {"queue_url": url, "policy": _text(settings.policy)})
        )
    if settings.redrive_allow is not None:
        document = json.dumps(redrive_document(settings.redrive_allow), separators=(",", ":"))
        blocks.append(
            _block(
                "aws_sqs_queue_redrive_allow_policy",
                name,
                {"queue_url": url, "redrive_allow_policy": _text(document)},
            )
        )
    return blocks


def _arguments(queue: Queue, names: Mapping[QueueKey, str]) -> dict[str, str]:
    settings, default = queue.settings, QueueSettings()
    arguments = {"name": _text(queue.name)}
    for argument, setting in _ARGUMENTS.items():
        value = getattr(settings, setting)
        if setting in _ALWAYS or value != getattr(default, setting):
            arguments[argument] = _value(value)
    # The provider refuses the two together, whatever the first one says.
    if settings.kms_key is not None:
        arguments.pop("sqs_managed_sse_enabled", None)
    if settings.redrive is not None:
        target = settings.redrive.dead_letters
        arn = f"aws_sqs_queue.{names[target]}.arn" if target in names else _text(target.arn)
        arguments["redrive_policy"] = (
            f"jsonencode({{\n    deadLetterTargetArn = {arn}\n    maxReceiveCount     = {settings.redrive.receives_max}\n  }})"
        )
    if queue.tags:
        pairs = "".join(f"\n    {_text(key)} = {_text(value)}" for key, value in queue.tags.items())
        arguments["tags"] = f"{{{pairs}\n  }}"
    return arguments


def _block(kind: str, name: str, arguments: Mapping[str, str]) -> str:
    width = max(len(argument) for argument in arguments)
    lines = [f"  {argument.ljust(width)} = {text}" for argument, text in arguments.items()]
    return f'resource "{kind}" "{name}" {{\n' + "\n".join(lines) + "\n}\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else _text(str(value))


def _text(text: str) -> str:
    # Within quotes HCL reads ${…} and %{…} as expressions unless their first character is doubled.
    quoted = json.dumps(text, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")
    return _ESCAPE.sub(lambda each: _NOT_IN_HCL.get(each[0], each[0]), quoted)


def _identifier(name: str) -> str:
    return name if name[:1].isalpha() or not name else f"queue_{name}"
