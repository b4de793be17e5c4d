"""Export queues as veil.toml, CloudFormation or Terraform, to read and to download."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from veil.console.visit import Visit
from veil.console.web import link, page, queue_link
from veil.core.queue import TOML_NAMES, Queue, QueueKey, QueueSettings
from veil.core.text import short_length
from veil.wire.attributes import ATTRIBUTE_OF_SETTING, print_setting
from veil.wire.exchange import Response

_DEFAULT: Final = QueueSettings()

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


def _told(settings: QueueSettings, words: Mapping[str, str], *always: str) -> dict[str, Any]:
    """What a queue has beyond the defaults, in a format's own words; `words` has the setting that each stands for."""
    return {
        word: getattr(settings, setting)
        for word, setting in words.items()
        if setting in always or getattr(settings, setting) != getattr(_DEFAULT, setting)
    }


# ---- veil.toml

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
# What a veil.toml cannot say.
_UNSAID: Final = {
    "its redrive allow policy": "redrive_allow",
    "its policy": "policy",
    "its KMS key": "kms_key",
    "its deduplication scope": "deduplication_scope",
    "its throughput limit": "throughput_limit",
}


def as_toml(queues: Sequence[Queue]) -> Iterator[str]:
    """The tables, each a piece, and in comments what they leave out."""
    for place, queue in enumerate(queues):
        yield ("\n" if place else "") + _table(queue)


def _table(queue: Queue) -> str:
    settings = queue.settings
    lines = [f"[queues.{_key(queue.name)}]"]
    for word, value in _told(settings, TOML_NAMES, "visibility_s").items():
        lines.append(
            f"{word} = {json.dumps(short_length(value) if TOML_NAMES[word].endswith('_s') else value)}"
        )
    if settings.redrive is not None:
        lines.append(f"dead_letter = {_text(settings.redrive.dead_letters.name)}")
        lines.append(f"max_receives = {settings.redrive.receives_max}")
    if queue.tags:
        pairs = ", ".join(f"{_key(name)} = {_text(value)}" for name, value in queue.tags.items())
        lines.append(f"tags = {{ {pairs} }}")
    if unsaid := _told(settings, _UNSAID):
        lines.append(f"# Not included, because veil.toml has no setting for it: {', '.join(unsaid)}.")
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if _BARE.match(name) else _text(name)


def _text(text: str) -> str:
    # A JSON string is a basic TOML string, but for DEL, which TOML wants escaped, and surrogate pairs, which it has none of.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---- CloudFormation

_PROPERTIES: Final = {
    attribute: setting
    for setting, attribute in ATTRIBUTE_OF_SETTING.items()
    if setting not in ("redrive", "redrive_allow", "policy")  # documents
}


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
    name, settings = names[queue.key], queue.settings
    properties = {"QueueName": queue.name, **_told(settings, _PROPERTIES, "visibility_s")}
    if settings.redrive is not None:
        target = settings.redrive.dead_letters
        properties["RedrivePolicy"] = json.loads(print_setting(settings.redrive))
        if target in names:
            properties["RedrivePolicy"]["deadLetterTargetArn"] = {"Fn::GetAtt": [names[target], "Arn"]}
    if settings.redrive_allow is not None:
        # By their ARNs, not by reference: the source refers to this queue already, and circles are refused.
        properties["RedriveAllowPolicy"] = json.loads(print_setting(settings.redrive_allow))
    if queue.tags:
        properties["Tags"] = [{"Key": key, "Value": value} for key, value in queue.tags.items()]
    resources = {name: {"Type": "AWS::SQS::Queue", "Properties": properties}}
    if settings.policy is not None:
        policy = {"Queues": [{"Ref": name}], "PolicyDocument": json.loads(settings.policy)}
        resources[f"{name}Policy"] = {"Type": "AWS::SQS::QueuePolicy", "Properties": policy}
    return resources


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


def as_terraform(queues: Sequence[Queue]) -> Iterator[str]:
    """One `aws_sqs_queue` for each, and resources of their own for the two policies that would else go in circles."""
    names = names_for(queues, _identifier)
    for place, queue in enumerate(queues):
        yield ("\n" if place else "") + "\n".join(_blocks(queue, names))


def _blocks(queue: Queue, names: Mapping[QueueKey, str]) -> Iterator[str]:
    name, settings = names[queue.key], queue.settings
    # The size's default is another in the provider than in Veil.
    told = _told(settings, _ARGUMENTS, "visibility_s", "message_bytes_max")
    # The provider refuses the two together, whatever the first one says.
    if settings.kms_key is not None:
        told.pop("sqs_managed_sse_enabled", None)
    arguments = {"name": _hcl(queue.name), **{word: _hcl(value) for word, value in told.items()}}
    if settings.redrive is not None:
        target = settings.redrive.dead_letters
        arn = f"aws_sqs_queue.{names[target]}.arn" if target in names else _hcl(target.arn)
        arguments["redrive_policy"] = (
            f"jsonencode({{\n    deadLetterTargetArn = {arn}\n    maxReceiveCount     = {settings.redrive.receives_max}\n  }})"
        )
    if queue.tags:
        pairs = "".join(f"\n    {_hcl(key)} = {_hcl(value)}" for key, value in queue.tags.items())
        arguments["tags"] = f"{{{pairs}\n  }}"
    yield _block("aws_sqs_queue", name, arguments)
    url = {"queue_url": f"aws_sqs_queue.{name}.url"}
    if settings.policy is not None:
        yield _block("aws_sqs_queue_policy", name, {**url, "policy": _hcl(settings.policy)})
    if settings.redrive_allow is not None:
        document = {"redrive_allow_policy": _hcl(print_setting(settings.redrive_allow))}
        yield _block("aws_sqs_queue_redrive_allow_policy", name, url | document)


def _block(kind: str, name: str, arguments: Mapping[str, str]) -> str:
    width = max(map(len, arguments))
    lines = [f"  {argument.ljust(width)} = {text}" for argument, text in arguments.items()]
    return f'resource "{kind}" "{name}" {{\n' + "\n".join(lines) + "\n}\n"


def _hcl(value: str | int | bool) -> str:
    # Within quotes HCL reads ${…} and %{…} as expressions unless their first character is doubled.
    written = json.dumps(value, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")
    return _ESCAPE.sub(lambda each: _NOT_IN_HCL.get(each[0], each[0]), written)


def _identifier(words: Sequence[str]) -> str:
    name = "_".join(words).lower()
    return name if name[:1].isalpha() or not name else f"queue_{name}"


# ---- the page

_TEXT: Final = "text/plain; charset=utf-8"
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
        "Put this into veil.toml: veil serve creates these queues when it starts.",
        ".toml",
        _TEXT,
        as_toml,
    ),
    "cloudformation": _Format(
        "CloudFormation", "A template for AWS CloudFormation.", ".template.json", _JSON, as_cloudformation
    ),
    "terraform": _Format("Terraform", "Resources of Terraform's AWS provider.", ".tf", _TEXT, as_terraform),
}


@page("/queues/export")
async def export_all(visit: Visit) -> Response:
    """All queues of a region: no format has a place for two queues of the same name."""
    queues = await visit.own_queues()
    regions = sorted({queue.key.region for queue in queues} | {visit.console.region})
    region = visit.query.text("region")
    region = region if region in regions else visit.console.region
    chosen = sorted((queue for queue in queues if queue.key.region == region), key=lambda queue: queue.name)
    return await _exported(visit, chosen, "queues", link("queues", "export"), regions, region)


@page("/queues/{region}/{name}/export")
async def export_one(visit: Visit) -> Response:
    queue = await visit.queue()
    return await _exported(visit, [queue], queue.name, queue_link(queue.key, "export"), [], queue.key.region)


async def _exported(
    visit: Visit, queues: Sequence[Queue], name: str, address: str, regions: Sequence[str], region: str
) -> Response:
    chosen = visit.query.text("format")
    chosen = chosen if chosen in _FORMATS else "toml"
    form = _FORMATS[chosen]
    pieces = _in_slices(form.write(queues) if queues else iter(()), visit)
    if visit.query.checked("download"):
        headers = (("Content-Disposition", f'attachment; filename="{name}{form.suffix}"'),)
        return Response(200, b"", form.content_type, headers, stream=pieces)
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


async def _in_slices(pieces: Iterator[str], visit: Visit) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece.encode("utf-8", "replace")
        await visit.time_slice.yield_if_spent()
