"""Queues written down for other tools, to read and to download: veil.toml, CloudFormation, Terraform."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from veil.console.changes import ATTRIBUTE_OF_SETTING, redrive_document
from veil.console.visit import Visit
from veil.console.web import TEXT, Answer, link, page, queue_link
from veil.core.queue import Queue, QueueKey, QueueSettings

# ---- names of resources


def names_for(queues: Sequence[Queue], shape: Callable[[list[str]], str]) -> dict[QueueKey, str]:
    """A name for each queue; `shape` joins the words of a queue's name. Those that come to the same get a number."""
    names: dict[QueueKey, str] = {}
    taken: dict[str, int] = {}  # and the last number given behind it
    for queue in queues:
        stem = shape(re.findall(r"[A-Za-z0-9]+", queue.name)) or shape(["queue"])
        name = stem
        while name in taken:
            taken[stem] += 1
            name = f"{stem}{taken[stem]}"
        taken[name] = 1
        names[queue.key] = name
    return names


# ---- veil.toml

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_LENGTHS: Final = {
    "visibility_timeout": "visibility_s",
    "retention": "retention_s",
    "delay": "delay_s",
    "receive_wait": "wait_s",
}
# What a veil.toml cannot say.
_UNSAID: Final = {
    "redrive_allow": "its redrive allow policy",
    "policy": "its policy",
    "kms_key": "its KMS key",
    "deduplication_scope": "its deduplication scope",
    "throughput_limit": "its throughput limit",
}


def as_toml(queues: Sequence[Queue]) -> Iterator[str]:
    """The tables, each a piece, and in comments what they leave out."""
    for place, queue in enumerate(queues):
        yield ("\n" if place else "") + _table(queue)


def _table(queue: Queue) -> str:
    settings, default = queue.settings, QueueSettings(fifo=queue.settings.fifo)
    lines = [f"[queues.{_key(queue.name)}]"]
    for word, setting in _LENGTHS.items():
        value = getattr(settings, setting)
        if setting == "visibility_s" or value != getattr(default, setting):
            lines.append(f"{word} = {_length(value)}")
    if settings.message_bytes_max != default.message_bytes_max:
        lines.append(f"max_message_bytes = {settings.message_bytes_max}")
    if settings.fifo:
        lines.append("fifo = true")
    if settings.content_deduplication:
        lines.append("content_deduplication = true")
    if settings.redrive is not None:
        lines.append(f"dead_letter = {_text(settings.redrive.dead_letters.name)}")
        lines.append(f"max_receives = {settings.redrive.receives_max}")
    if queue.tags:
        pairs = ", ".join(f"{_key(name)} = {_text(value)}" for name, value in queue.tags.items())
        lines.append(f"tags = {{ {pairs} }}")
    unsaid = [
        words for setting, words in _UNSAID.items() if getattr(settings, setting) != getattr(default, setting)
    ]
    if unsaid:
        lines.append(f"# Not here, because veil.toml cannot say it: {', '.join(unsaid)}.")
    return "\n".join(lines) + "\n"


def _length(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f'"{seconds // size}{unit}"'
    return f'"{seconds}s"'


def _key(name: str) -> str:
    return name if _BARE.match(name) else _text(name)


def _text(text: str) -> str:
    # A JSON string is a basic TOML string, but for DEL, which TOML wants escaped, and surrogate pairs, which it has none of.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---- CloudFormation

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


# ---- Terraform

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
            _block("aws_sqs_queue_policy", name, {"queue_url": url, "policy": _hcl_text(settings.policy)})
        )
    if settings.redrive_allow is not None:
        document = json.dumps(redrive_document(settings.redrive_allow), separators=(",", ":"))
        blocks.append(
            _block(
                "aws_sqs_queue_redrive_allow_policy",
                name,
                {"queue_url": url, "redrive_allow_policy": _hcl_text(document)},
            )
        )
    return blocks


def _arguments(queue: Queue, names: Mapping[QueueKey, str]) -> dict[str, str]:
    settings, default = queue.settings, QueueSettings()
    arguments = {"name": _hcl_text(queue.name)}
    for argument, setting in _ARGUMENTS.items():
        value = getattr(settings, setting)
        if setting in _ALWAYS or value != getattr(default, setting):
            arguments[argument] = _value(value)
    # The provider refuses the two together, whatever the first one says.
    if settings.kms_key is not None:
        arguments.pop("sqs_managed_sse_enabled", None)
    if settings.redrive is not None:
        target = settings.redrive.dead_letters
        arn = f"aws_sqs_queue.{names[target]}.arn" if target in names else _hcl_text(target.arn)
        arguments["redrive_policy"] = (
            f"jsonencode({{\n    deadLetterTargetArn = {arn}\n    maxReceiveCount     = {settings.redrive.receives_max}\n  }})"
        )
    if queue.tags:
        pairs = "".join(f"\n    {_hcl_text(key)} = {_hcl_text(value)}" for key, value in queue.tags.items())
        arguments["tags"] = f"{{{pairs}\n  }}"
    return arguments


def _block(kind: str, name: str, arguments: Mapping[str, str]) -> str:
    width = max(len(argument) for argument in arguments)
    lines = [f"  {argument.ljust(width)} = {text}" for argument, text in arguments.items()]
    return f'resource "{kind}" "{name}" {{\n' + "\n".join(lines) + "\n}\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else _hcl_text(str(value))


def _hcl_text(text: str) -> str:
    # Within quotes HCL reads ${…} and %{…} as expressions unless their first character is doubled.
    quoted = json.dumps(text, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")
    return _ESCAPE.sub(lambda each: _NOT_IN_HCL.get(each[0], each[0]), quoted)


def _identifier(name: str) -> str:
    return name if name[:1].isalpha() or not name else f"queue_{name}"


# ---- the page

_JSON: Final = "application/json; charset=utf-8"
_SHOWN_CHARS_MAX: Final = 200_000


class _Format(NamedTuple):
    words: str
    help: str
    suffix: str
    content_type: str
    write: Callable[[Sequence[Queue]], Iterator[str]]  # a piece for each queue


_FORMATS: Final[Mapping[str, _Format]] = {
    "toml": _Format(
        "veil.toml",
        "Put it into veil.toml: veil serve creates these queues at its start.",
        ".toml",
        TEXT,
        as_toml,
    ),
    "cloudformation": _Format(
        "CloudFormation", "A template for AWS CloudFormation.", ".template.json", _JSON, as_cloudformation
    ),
    "terraform": _Format("Terraform", "Resources of Terraform's AWS provider.", ".tf", TEXT, as_terraform),
}


@page("/queues/export")
async def export_all(visit: Visit) -> Answer:
    """All queues of a region: no format has a place for two queues of the same name."""
    queues = await visit.own_queues()
    regions = sorted({queue.key.region for queue in queues} | {visit.console.region})
    region = visit.query.text("region")
    region = region if region in regions else visit.console.region
    chosen = sorted((queue for queue in queues if queue.key.region == region), key=lambda queue: queue.name)
    return await _exported(visit, chosen, "queues", link("queues", "export"), regions, region)


@page("/queues/{region}/{name}/export")
async def export_one(visit: Visit) -> Answer:
    """One queue."""
    queue = await visit.queue()
    return await _exported(visit, [queue], queue.name, queue_link(queue.key, "export"), [], queue.key.region)


async def _exported(
    visit: Visit, queues: Sequence[Queue], name: str, address: str, regions: Sequence[str], region: str
) -> Answer:
    chosen = visit.query.text("format")
    chosen = chosen if chosen in _FORMATS else "toml"
    form = _FORMATS[chosen]
    pieces = _in_turns(form.write(queues) if queues else iter(()), visit)
    if visit.query.checked("download"):
        headers = (("Content-Disposition", f'attachment; filename="{name}{form.suffix}"'),)
        return Answer(200, b"", form.content_type, headers, pieces)
    text = ""
    async for piece in pieces:
        text += piece.decode()
        if len(text) > _SHOWN_CHARS_MAX:
            break
    return await visit.page(
        "queue_export.html",
        title="Export the queues" if regions else f"Export {name}",
        queues=queues,
        is_all=bool(regions),
        address=address,
        formats=_FORMATS,
        chosen=chosen,
        regions=regions,
        region=region,
        text=text[:_SHOWN_CHARS_MAX],
        is_cut=len(text) > _SHOWN_CHARS_MAX,
    )


async def _in_turns(pieces: Iterator[str], visit: Visit) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece.encode("utf-8", "replace")
        await visit.turn.pause()
