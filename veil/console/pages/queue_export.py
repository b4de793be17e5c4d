"""Queues written down as a veil.toml, to read and to download: a server that starts with it creates them."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final

from veil.console.visit import Visit
from veil.console.web import link, page, queue_link
from veil.core.queue import Queue, QueueSettings
from veil.core.text import short_length
from veil.wire.exchange import Response

_DEFAULT: Final = QueueSettings()
_SHOWN_CHARS_MAX: Final = 200_000
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_TOML: Final = {
    "visibility_timeout": "visibility_s",
    "retention": "retention_s",
    "delay": "delay_s",
    "receive_wait": "wait_s",
    "max_message_bytes": "message_bytes_max",
    "fifo": "fifo",
    "content_deduplication": "content_deduplication",
}
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
    for word, value in _beyond_defaults(settings, _TOML, "visibility_s").items():
        lines.append(f"{word} = {json.dumps(short_length(value) if _TOML[word].endswith('_s') else value)}")
    if settings.redrive is not None:
        lines.append(f"dead_letter = {_text(settings.redrive.dead_letters.name)}")
        lines.append(f"max_receives = {settings.redrive.receives_max}")
    if queue.tags:
        pairs = ", ".join(f"{_key(name)} = {_text(value)}" for name, value in queue.tags.items())
        lines.append(f"tags = {{ {pairs} }}")
    if unsaid := _beyond_defaults(settings, _UNSAID):
        lines.append(f"# Not included, because veil.toml has no setting for it: {', '.join(unsaid)}.")
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if _BARE.match(name) else _text(name)


def _text(text: str) -> str:
    # A JSON string is a basic TOML string, but for DEL, which TOML wants escaped, and surrogate pairs, which it has none of.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _beyond_defaults(settings: QueueSettings, names: Mapping[str, str], *always: str) -> dict[str, Any]:
    """What a queue has beyond the defaults, under these names, each with the setting that it stands for."""
    return {
        name: getattr(settings, setting)
        for name, setting in names.items()
        if setting in always or getattr(settings, setting) != getattr(_DEFAULT, setting)
    }


# ---- the pages


@page("/queues/export")
async def export_all(visit: Visit) -> Response:
    """All queues of a region: a veil.toml has no place for two queues of the same name."""
    queues = await visit.own_queues()
    regions = sorted({queue.key.region for queue in queues} | {visit.console.region})
    region = visit.query.text("region")
    region = region if region in regions else visit.console.region
    chosen = sorted((queue for queue in queues if queue.key.region == region), key=lambda queue: queue.name)
    return await _exported(visit, chosen, "queues", link("queues", "export"), regions, region)


@page("/queues/{region}/{name}/export")
async def export_one(visit: Visit) -> Response:
    """One queue."""
    queue = await visit.queue()
    return await _exported(visit, [queue], queue.name, queue_link(queue.key, "export"), [], queue.key.region)


async def _exported(
    visit: Visit, queues: Sequence[Queue], name: str, address: str, regions: Sequence[str], region: str
) -> Response:
    pieces = _in_turns(as_toml(queues), visit)
    if visit.query.checked("download"):
        headers = (("Content-Disposition", f'attachment; filename="{name}.toml"'),)
        return Response(200, headers=headers, stream=pieces)
    text = ""
    async for piece in pieces:
        text += piece.decode()
        if len(text) > _SHOWN_CHARS_MAX:
            break
    return await visit.page(
        "queue_export.html",
        title="Export the queues" if regions else f"Export {name}",
        queues=queues,
        address=address,
        regions=regions,
        region=region,
        text=text[:_SHOWN_CHARS_MAX],
        is_cut=len(text) > _SHOWN_CHARS_MAX,
    )


async def _in_turns(pieces: Iterator[str], visit: Visit) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece.encode("utf-8", "replace")
        await visit.turn.pause()
