"""What can be wrong with a request before it means anything to a queue, in the kinds that SMQ tells apart.

    SmqRefused
    ├── XmlMalformed · BodyDigestWrong
    ├── UrlUnknown · NoTopics · ReceiveFromWebPage
    ├── ArgumentRefused · QueryRefused · ReceiptHandleMissing · VisibilityMissing · NameTooLong
    ├── NothingToReceive                 an empty receive is an error to SMQ
    └── SmqSignatureRefused
        ├── AuthorizationMissing · AuthorizationUnreadable · DateMissing · DateUnreadable
        └── SmqKeyUnknown · SmqSignatureWrong · SmqTimeExpired

`codes.py` words them together with the family of `core.errors`.
"""

from __future__ import annotations

from veil.core.errors import VeilError

_SHOWN_MAX = 256


class SmqRefused(VeilError):
    """The request cannot be carried out as written; the members say why."""


class XmlMalformed(SmqRefused):
    """The body is not the XML that the operation takes."""


class BodyDigestWrong(SmqRefused):
    """The body is not the one that Content-MD5 tells of."""


class UrlUnknown(SmqRefused):
    """Nothing is served under that method and path."""

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"There is nothing to {method} at {path[:_SHOWN_MAX]}.")


class NoTopics(SmqRefused):
    """Topics are not served here."""

    def __init__(self) -> None:
        super().__init__("Veil serves queues: there are no topics.")


class ReceiveFromWebPage(SmqRefused):
    """A receive hides messages, and nothing shows that no web page had a browser ask for it."""

    def __init__(self) -> None:
        super().__init__(
            "A receive without an Authorization or x-mns-version header is refused, because any web page could make a "
            "browser send it."
        )


class ArgumentRefused(SmqRefused):
    """An element, header or parameter has a value that it cannot have."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"The value {str(value)[:_SHOWN_MAX]!r} of {name} is invalid: expected {expected}.")
        self.name = name


class QueryRefused(SmqRefused):
    """The query string cannot be read."""


class ReceiptHandleMissing(SmqRefused):
    """No ReceiptHandle was given."""

    def __init__(self) -> None:
        super().__init__("ReceiptHandle is required.")


class VisibilityMissing(SmqRefused):
    """No VisibilityTimeout was given."""

    def __init__(self) -> None:
        super().__init__("VisibilityTimeout is required.")


class NameTooLong(SmqRefused):
    """The name of the queue is empty or too long."""

    def __init__(self, name: str, chars_max: int) -> None:
        super().__init__(f"The queue name has {len(name)} characters: expected 1 to {chars_max}.")


class NothingToReceive(SmqRefused):
    """The queue has no message to give."""

    def __init__(self) -> None:
        super().__init__("Message not exist.")


class SmqSignatureRefused(SmqRefused):
    """The request is not authenticated; the members say why."""


class AuthorizationMissing(SmqSignatureRefused):
    """There are keys, and nothing was signed."""

    def __init__(self) -> None:
        super().__init__("Authorization header is required.")


class AuthorizationUnreadable(SmqSignatureRefused):
    """The header is not of SMQ's form."""

    def __init__(self) -> None:
        super().__init__("Authorization header must be of the form 'MNS AccessKeyId:Signature'.")


class DateMissing(SmqSignatureRefused):
    """Nothing dates the request."""

    def __init__(self) -> None:
        super().__init__("Date header (or x-mns-date) is required.")


class DateUnreadable(SmqSignatureRefused):
    """The date is no HTTP date."""

    def __init__(self) -> None:
        super().__init__("Date header must be of the form 'Thu, 01 Jan 2026 00:00:00 GMT'.")


class SmqKeyUnknown(SmqSignatureRefused):
    """No such access key."""

    def __init__(self) -> None:
        super().__init__("The AccessKeyId you provided does not exist.")


class SmqSignatureWrong(SmqSignatureRefused):
    """The signature does not belong to this request."""

    def __init__(self) -> None:
        super().__init__(
            "The request signature we calculated does not match the signature you provided. "
            "Check your key and signing method."
        )


class SmqTimeExpired(SmqSignatureRefused):
    """The request is dated too far from now."""

    def __init__(self) -> None:
        super().__init__("The http request you sent is expired: its date is more than 15 minutes off.")
