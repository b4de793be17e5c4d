"""What an error answer means for a consumer: one table, from SQS's codes and words to `Failure`.

Every code has two spellings, the `__type` of AWS JSON and the one of the older Query protocol, which batch entries and the
header `x-amzn-query-error` still use. Both are found here.
"""

from __future__ import annotations

from typing import Final

from veil.client.api import ApiError, Failure

# By code, without namespace and without a closing "Exception".
_BY_CODE: Final[dict[str, Failure]] = {
    # The receipt holds nothing any more.
    "ReceiptHandleIsInvalid": Failure.LOST,
    "MessageNotInflight": Failure.LOST,
    # Slower, please. OverLimit on a receive: too many messages in flight.
    "OverLimit": Failure.THROTTLED,
    "RequestThrottled": Failure.THROTTLED,
    "Throttled": Failure.THROTTLED,
    "Throttling": Failure.THROTTLED,
    "TooManyRequests": Failure.THROTTLED,
    "RequestLimitExceeded": Failure.THROTTLED,
    "SlowDown": Failure.THROTTLED,
    "KmsThrottled": Failure.THROTTLED,
    "KMS.Throttling": Failure.THROTTLED,
    # The service's own trouble; a batch entry has no status to say so.
    "InternalError": Failure.UNREACHABLE,
    "InternalFailure": Failure.UNREACHABLE,
    "ServiceUnavailable": Failure.UNREACHABLE,
    "RequestTimeout": Failure.UNREACHABLE,
    # Signed too long ago, such as before the machine slept: the next try is signed anew.
    "RequestExpired": Failure.UNREACHABLE,
    # No such queue.
    "QueueDoesNotExist": Failure.FATAL,
    "NonExistentQueue": Failure.FATAL,
    "InvalidAddress": Failure.FATAL,
    # No access.
    "AccessDenied": Failure.FATAL,
    "AuthFailure": Failure.FATAL,
    "ExpiredToken": Failure.FATAL,
    "IncompleteSignature": Failure.FATAL,
    "InvalidAccessKeyId": Failure.FATAL,
    "InvalidClientTokenId": Failure.FATAL,
    "InvalidSecurity": Failure.FATAL,
    "InvalidSignature": Failure.FATAL,
    "MissingAuthenticationToken": Failure.FATAL,
    "NotAuthorized": Failure.FATAL,
    "OptInRequired": Failure.FATAL,
    "SignatureDoesNotMatch": Failure.FATAL,
    "UnrecognizedClient": Failure.FATAL,
}
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
