"""Which action a request asks for, and how many of each were answered how: plain numbers for metrics."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from veil.wire.actions import ACTIONS
from veil.wire.exchange import Request

# Only what the protocol knows becomes a label; whatever else a client makes up is counted as `other`.
_KNOWN: Final = frozenset(ACTIONS)
_BY_TARGET: Final = {f"AmazonSQS.{name}": name for name in ACTIONS}
OTHER: Final = "other"
_ACTION_BYTES_MAX = 64


def action_of(request: Request) -> str:
    """The SQS action that the request names, or `other`."""
    target = request.headers.get("x-amz-target")
    if target is not None:
        return _BY_TARGET.get(target, OTHER)
    body = request.body
    start = 0 if body.startswith(b"Action=") else body.find(b"&Action=") + 1
    if start or body.startswith(b"Action="):
        raw = body[start + 7 : start + 7 + _ACTION_BYTES_MAX].partition(b"&")[0]
        name = raw.decode("ascii", "replace")
    else:
        name = f"&{request.query}".partition("&Action=")[2].partition("&")[0]
    return name if name in _KNOWN else OTHER


class RequestTallies:
    """Answers by action and status class."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: defaultdict[tuple[str, int], int] = defaultdict(int)

    def add(self, action: str, status: int) -> None:
        """Count one answer."""
        self.counts[action, status // 100] += 1
