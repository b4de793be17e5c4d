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
    system: dict[str, str] = msgspec.field(name="Attributes", default_factory=dict)
    attributes: dict[str, Value] = msgspec.field(name="MessageAttributes", default_factory=dict)


class HoldContent(msgspec.Struct, rename="pascal"):
    """What is under the name of a hold; `lost` counts what could not be kept."""

    messages: list[HeldMessage] | None = None
    lost: int = 0


class HoldTally(msgspec.Struct, rename="pascal"):
    """How many messages an extension or a deletion of holds reached, and how many it no longer could.

    `repeated` is the client's own: an answer before this one was lost, and what that call had deleted is not counted here.
    """

    messages: int = 0
    lost: int = 0
    repeated: bool = False


class PeekedMessage(msgspec.Struct, rename="pascal"):
    """A message that was looked at; `visible_at` says, in ms, when one in flight or delayed will be visible."""

    message_id: str
    body: str = ""
    state: str = ""
    system: dict[str, str] = msgspec.field(name="Attributes", default_factory=dict)
    attributes: dict[str, Value] = msgspec.field(name="MessageAttributes", default_factory=dict)
    visible_at: int | None = None
    sequence_number: str | None = None


class PeekedPage(msgspec.Struct, rename="pascal"):
    """A page of messages by rising sequence number; the token leads to the next one."""

    messages: list[PeekedMessage] | None = None
    next_token: str | None = None
