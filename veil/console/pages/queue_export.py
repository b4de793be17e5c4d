"""Queues written down for other tools, to read and to download."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from veil.console.exports import as_cloudformation, as_terraform, as_toml
from veil.console.visit import Visit
from veil.console.web import TEXT, Answer, link, page, queue_link
from veil.core.queue import Queue

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
