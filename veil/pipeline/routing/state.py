"""What a router remembers beside Spark's checkpoint: in which band each class is, and how the last batch was routed.

The rules may change between a batch that was cut short and its repetition, and a message that had been sent to one queue
would then go to another as well. So the rules of a batch are written down before its first message is sent.
"""

from __future__ import annotations

import json
from typing import Final

import msgspec

from veil.journal.place import Place
from veil.pipeline.routing.refusal import RouteRefused
from veil.pipeline.routing.route_table import RouteTable

CHECKPOINT: Final = "checkpoint"
SEGMENTS: Final = "segments"
_INTAKE: Final = "intake.json"
_CLASSES: Final = "classes.json"
_BATCH: Final = "batch.json"


class _Batch(msgspec.Struct, frozen=True):
    query: str
    batch: int
    table: RouteTable


class RouterState:
    """A directory of one router."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def belongs_to(self, intake: str) -> None:
        """See that the directory is this intake's; raises RouteRefused. A new one becomes it."""
        try:
            found = json.loads(self.place.read(_INTAKE))["intake"]
        except FileNotFoundError:
            self.place.write(_INTAKE, json.dumps({"intake": intake}).encode())
            return
        except (ValueError, KeyError, TypeError):
            raise RouteRefused(f"state {self.place.uri}: {_INTAKE} is not readable") from None
        if found != intake:
            raise RouteRefused(f"state {self.place.uri}: it belongs to the intake {found}, expected {intake}")

    def classes(self) -> dict[str, str]:
        """In which band each class is."""
        try:
            return msgspec.json.decode(self.place.read(_CLASSES), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as problem:
            raise RouteRefused(f"state {self.place.uri}: {_CLASSES} is not readable: {problem}") from None

    def keep_classes(self, classes: dict[str, str]) -> None:
        """Remember the bands."""
        if classes != self.classes():
            self.place.write(_CLASSES, msgspec.json.encode(classes))

    def query_id(self) -> str:
        """The id that Spark gave the query in the checkpoint; stable over restarts."""
        return str(json.loads(self.place.read(f"{CHECKPOINT}/metadata"))["id"])

    def rules_of(self, batch: int, query: str) -> RouteTable | None:
        """The rules that this batch was begun with; None for a batch that begins now."""
        try:
            found = msgspec.json.decode(self.place.read(_BATCH), type=_Batch)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as problem:
            raise RouteRefused(f"state {self.place.uri}: {_BATCH} is not readable: {problem}") from None
        return found.table if (found.query, found.batch) == (query, batch) else None

    def begin(self, batch: int, query: str, table: RouteTable) -> None:
        """Write down by which rules this batch is routed."""
        self.place.write(_BATCH, msgspec.json.encode(_Batch(query, batch, table)))
