"""What a consumer and its helper process say to each other: one JSON object a line, over the helper's stdin and stdout."""

from __future__ import annotations

import msgspec

from veil.client.api import Failure


class Hold(msgspec.Struct, tag="hold"):
    """Keep this lease. Instants are monotonic seconds, which are the same in every process of a host."""

    number: int
    queue_url: str
    message_id: str
    receipt: str
    received_at_s: float
    visibility_s: float
    deadline_s: float
    kind: str
    by_hand: bool
    grace_s: float = 0.0


class LetGo(msgspec.Struct, tag="let_go"):
    """Send nothing for it any more, and say when nothing is under way."""

    number: int


class Change(msgspec.Struct, tag="change"):
    """Set its window by hand."""

    number: int
    visibility_s: int


class Close(msgspec.Struct, tag="close"):
    """End properly; the end of the pipe does as well."""


class Ready(msgspec.Struct, tag="ready"):
    """The helper has its connections, or the reason why not."""

    problem: str = ""


# What the keeper's events tell, and the answers to LetGo and Change.


class HasRenewed(msgspec.Struct, tag="renewed"):
    number: int
    visibility_s: int
    deadline_s: float


class HasFailed(msgspec.Struct, tag="failed"):
    number: int
    failure: Failure
    code: str
    message: str
    again: bool


class HasLost(msgspec.Struct, tag="lost"):
    number: int
    why: str


class HasCapped(msgspec.Struct, tag="capped"):
    number: int
    why: str


class HasWarned(msgspec.Struct, tag="warned"):
    number: int
    ends_at_s: float


class WasLate(msgspec.Struct, tag="late"):
    by_s: float


class HasLetGo(msgspec.Struct, tag="gone"):
    number: int


class HasChanged(msgspec.Struct, tag="changed"):
    """The answer to Change; `lost`, or a failure, when it did not succeed."""

    number: int
    visibility_s: int
    deadline_s: float
    lost: str = ""
    failure: Failure | None = None
    code: str = ""
    message: str = ""


ToHelper = Hold | LetGo | Change | Close
FromHelper = (
    Ready | HasRenewed | HasFailed | HasLost | HasCapped | HasWarned | WasLate | HasLetGo | HasChanged
)

read_by_helper = msgspec.json.Decoder(ToHelper)
read_by_parent = msgspec.json.Decoder(FromHelper)
_encoder = msgspec.json.Encoder()


def line(message: ToHelper | FromHelper) -> bytes:
    """The message as a line."""
    return _encoder.encode(message) + b"\n"
