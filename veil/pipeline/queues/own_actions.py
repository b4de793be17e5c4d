"""The answers of Veil's own actions, which go beyond SQS: holds, looking without receiving, redriving what was chosen."""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, rename="pascal", omit_defaults=True):
    """A message attribute on the wire."""

    data_type: str
    string_value: str | None = None
    binary_value: bytes | None = None


class HeldMessage(msgspec.Struct, rename="pascal"):
    """A message of a hold. Its receipt is not asked for: holds are extended and deleted by name."""

    message_id: str
    body: str = ""
    attributes: dict[str, str] = {}
    message_attributes: dict[str, Value] = {}


class HoldContent(msgspec.Struct, rename="pascal"):
    """What is under the name of a hold; `lost` counts what could not be kept."""

    messages: list[HeldMessage] | None = None
    lost: int = 0


class HoldTally(msgspec.Struct, rename="pascal"):
    """How many messages an extension or a deletion of holds reached, and how many it no longer could."""

    messages: int = 0
    lost: int = 0
