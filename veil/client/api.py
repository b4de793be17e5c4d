"""What a client of queues gets from a service: messages, and the ways in which a call can fail."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

import msgspec

from veil.core.limits import BATCH_ENTRIES_MAX


class Failure(Enum):
    """Why a call, or one entry of a batch, did not succeed; what to do about it depends on nothing else."""

    LOST = "lost"  # the message is gone or another consumer holds it: the receipt means nothing any more
    CAPPED = "capped"  # the lease cannot be made longer: twelve hours after the receive is the end
    THROTTLED = "throttled"  # try again, more slowly
    UNREACHABLE = "unreachable"  # no answer, a broken one, or a 5xx: the outcome is unknown, try again
    REFUSED = "refused"  # the request is wrong: trying again will not help
    FATAL = "fatal"  # no such queue, no access, no usable credentials: the consumer cannot go on


class ApiError(Exception):
    """A call that failed, in the service's words.

    `away`: the service itself is in trouble, since it refused the connection or said so. Silence is not enough: that may be
    the way to it.
    """

    def __init__(self, failure: Failure, code: str, message: str, *, away: bool = False) -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.failure, self.code, self.message, self.away = failure, code, message, away

    @property
    def may_pass(self) -> bool:
        """Whether another try may succeed."""
        return self.failure in (Failure.UNREACHABLE, Failure.THROTTLED)

    @property
    def is_missing_queue(self) -> bool:
        """Whether there is no such queue."""
        return plain(self.code) in ("QueueDoesNotExist", "NonExistentQueue")

    @property
    def is_unknown_action(self) -> bool:
        """Whether the service does not know the operation, as those that are not Veil do not know Veil's own."""
        return plain(self.code) in ("UnknownOperation", "InvalidAction")


class Attribute(msgspec.Struct, frozen=True, rename="pascal", omit_defaults=True):
    """A message attribute, here as on the wire; text for String and Number, bytes for Binary."""

    data_type: str
    string_value: str | None = None
    binary_value: bytes | None = None

    @classmethod
    def of(cls, data_type: str, value: str | bytes) -> Attribute:
        """An attribute with that value."""
        return cls(data_type, None, value) if isinstance(value, bytes) else cls(data_type, value)

    @property
    def value(self) -> str | bytes:
        return self.binary_value if self.binary_value is not None else self.string_value or ""

    def size_bytes(self, name: str) -> int:
        """What it takes under that name of a message's bytes, as the service counts them."""
        value = self.value
        value_bytes = len(value if isinstance(value, bytes) else value.encode())
        return len(name.encode()) + len(self.data_type.encode()) + value_bytes


class RawMessage(msgspec.Struct, rename="pascal"):
    """A message as the service gave it. `began_at_s` is monotonic time from before its window began: before the receive was sent,
    or as much later as Veil says that it waited. So counting from it can only make the holder more careful."""

    message_id: str
    receipt: str = msgspec.field(name="ReceiptHandle")
    body: str = ""
    attributes: dict[str, Attribute] = msgspec.field(name="MessageAttributes", default_factory=dict)
    # ApproximateReceiveCount, SentTimestamp, MessageGroupId, …
    system: dict[str, str] = msgspec.field(name="Attributes", default_factory=dict)
    began_at_s: float = 0.0
    # How long after the service's own trouble its lease stays open; 0: nothing is promised.
    grace_s: float = 0.0
    body_md5: str | None = msgspec.field(name="MD5OfBody", default=None)

    @property
    def receive_count(self) -> int:
        return int(self.system.get("ApproximateReceiveCount", "1"))

    @property
    def group(self) -> str | None:
        return self.system.get("MessageGroupId")


BATCH_MAX: Final = BATCH_ENTRIES_MAX  # messages in one call, on any SQS


@dataclass(frozen=True, slots=True)
class RetryBackoff:
    """Pauses that double from `first_s` up to `max_s`, each partly random: those who failed together come back apart."""

    first_s: float
    max_s: float
    jitter: float = 0.5  # the share of a pause that is random; 1: anything from nothing to the whole of it
    throttled: float = 1.0  # how many times as long, where the service asked for fewer calls

    def pause_s(self, failures: int, failure: Failure, random: Random) -> float:
        """How long to wait after this failure, with so many before it in a row."""
        longest_s = self.first_s * float(2 ** min(failures, 20))
        if failure is Failure.THROTTLED:
            longest_s *= self.throttled
        return min(self.max_s, longest_s) * (1 - self.jitter * random.random())


RANDOM: Final = Random()  # noqa: S311 - spreads load, hides nothing


# ---- what an error answer means: one table, from SQS's codes and words to `Failure`
#
# Every code has two spellings, the `__type` of AWS JSON and the one of the older Query protocol, which batch entries and the
# header `x-amzn-query-error` still use. Both are found here.

# Codes without namespace and without a closing "Exception".
_CODES: Final = {
    # The receipt holds nothing any more.
    Failure.LOST: ("ReceiptHandleIsInvalid", "MessageNotInflight"),
    # Slower, please. OverLimit on a receive: too many messages in flight.
    Failure.THROTTLED: (
        "OverLimit", "RequestThrottled", "Throttled", "Throttling", "TooManyRequests", "RequestLimitExceeded", "SlowDown",
        "KmsThrottled", "KMS.Throttling",
    ),
    # The service's own trouble; a batch entry has no status to say so. And what was signed too long ago, such as before the
    # machine slept: the next try is signed again.
    Failure.UNREACHABLE: (
        "InternalError", "InternalFailure", "ServiceUnavailable", "RequestTimeout", "RequestExpired",
    ),
    # No such queue, or no access.
    Failure.FATAL: (
        "QueueDoesNotExist", "NonExistentQueue", "InvalidAddress", "AccessDenied", "AuthFailure", "ExpiredToken",
        "IncompleteSignature", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidSecurity", "InvalidSignature",
        "MissingAuthenticationToken", "NotAuthorized", "OptInRequired", "SignatureDoesNotMatch", "UnrecognizedClient",
    ),
}  # fmt: skip
_BY_CODE: Final = {code: failure for failure, codes in _CODES.items() for code in codes}
# Where one code stands for several things, the words decide; they come before the table.
_BY_WORDS: Final[dict[str, tuple[tuple[str, Failure], ...]]] = {
    "InvalidParameterValue": (
        ("total visibilitytimeout for the message is beyond the limit", Failure.CAPPED),
        ("not available for visibility timeout change", Failure.LOST),
        ("receipt handle has expired", Failure.LOST),
        ("parameter receipthandle is invalid", Failure.LOST),
    ),
    "SignatureDoesNotMatch": (
        ("signature expired", Failure.UNREACHABLE),
        ("signature not yet current", Failure.UNREACHABLE),
    ),
}
_BY_WORDS["InvalidSignature"] = _BY_WORDS["SignatureDoesNotMatch"]
# With other credentials the same request may pass.
_STALE_CREDENTIALS: Final = frozenset({"ExpiredToken", "InvalidClientTokenId", "UnrecognizedClient"})


def classify(status: int, code: str, message: str) -> Failure:
    """What the failure of a call or of a batch entry means; 500 is the status of an entry that was not the sender's fault.

    An empty code is an answer that no SQS has written, from a proxy for example: nothing is known but that it failed.
    """
    code = plain(code)
    if code in _BY_WORDS:
        words = message.lower()
        for fragment, failure in _BY_WORDS[code]:
            if fragment in words:
                return failure
    if code in _BY_CODE:
        return _BY_CODE[code]
    if code.startswith(("Kms", "KMS.")):
        return Failure.FATAL
    if status == 429:
        return Failure.THROTTLED
    if status >= 500 or not code:
        return Failure.UNREACHABLE
    return Failure.REFUSED


def plain(code: str) -> str:
    """The code without namespace, documentation link and ending: `com.amazonaws.sqs#X`, `AWS.SimpleQueueService.X`."""
    code = code.rpartition("#")[2].partition(":")[0]
    return code.removeprefix("AWS.SimpleQueueService.").removesuffix("Exception")


def known(code: str) -> bool:
    """Whether the table has an opinion on the code."""
    return plain(code) in _BY_CODE or plain(code) in _BY_WORDS


def wants_other_credentials(error: ApiError) -> bool:
    """Whether the service turned the key or token away for its age, so that newer ones are worth a try."""
    return plain(error.code) in _STALE_CREDENTIALS
