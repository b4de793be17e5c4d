"""The sender's trace, as it travels with a message: W3C attributes, or X-Ray's header."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from veil.consumer.message import Message

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\Z")
_ROOT: Final = re.compile(r"1-([0-9a-fA-F]{8})-([0-9a-fA-F]{24})\Z")
_PARENT: Final = re.compile(r"[0-9a-fA-F]{16}\Z")


class SenderContext(NamedTuple):
    """The span in which a message was sent."""

    trace_id: int
    span_id: int
    is_sampled: bool


def sender_context(message: Message) -> SenderContext | None:
    """Who sent it, if it says so in a way that can be read; the attribute of the sender's own tracing wins."""
    attribute = message.attributes.get("traceparent")
    if attribute is not None and isinstance(attribute.value, str):
        found = _TRACEPARENT.match(attribute.value)
        if found is not None:
            return _context(found[1], found[2], bool(int(found[3], 16) & 1))
    header = message.system.get("AWSTraceHeader")
    return _from_header(header) if header else None


def _from_header(header: str) -> SenderContext | None:
    # Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1
    parts = dict(part.strip().partition("=")[::2] for part in header.split(";"))
    root = _ROOT.match(parts.get("Root", ""))
    parent = parts.get("Parent", "")
    if root is None or not _PARENT.match(parent):
        return None
    return _context(root[1] + root[2], parent, parts.get("Sampled") == "1")


def _context(trace: str, span: str, is_sampled: bool) -> SenderContext | None:
    trace_id, span_id = int(trace, 16), int(span, 16)
    # All zeroes means "none" in both formats.
    return SenderContext(trace_id, span_id, is_sampled) if trace_id and span_id else None
