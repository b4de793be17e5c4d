"""Why a signature was refused, in the words and codes that AWS uses.

    SignatureRefused
    ├── SignatureMissing      nothing was signed: the caller is anonymous
    ├── SignatureMalformed    what should be a signature cannot be read
    ├── KeyUnknown            readable, but nobody holds that key
    └── SignatureMismatch     readable, but not the signature of this request
        ├── ScopeRefused      for another service, day or purpose
        ├── HeaderUnsigned    a header that matters is not covered
        ├── SignatureExpired  too old
        └── SignatureTooEarly dated in the future

Each class carries its codes: they are wire facts, alike for every service, and have no meaning in the core.
"""

from __future__ import annotations

from typing import ClassVar

from veil.core.errors import VeilError


class SignatureRefused(VeilError):
    """The request is not authenticated; the members say why."""

    code_json: ClassVar[str] = "InvalidSignatureException"
    code_query: ClassVar[str] = "SignatureDoesNotMatch"
    status: ClassVar[int] = 403


class SignatureMissing(SignatureRefused):
    """The request carries no signature at all."""

    code_json = "MissingAuthenticationTokenException"
    code_query = "MissingAuthenticationToken"

    def __init__(self) -> None:
        super().__init__("Request is missing Authentication Token")


class SignatureMalformed(SignatureRefused):
    """A part of the signature is absent or unreadable."""

    code_json = "IncompleteSignatureException"
    code_query = "IncompleteSignature"
    status = 400


class KeyUnknown(SignatureRefused):
    """No such access key."""

    code_json = "UnrecognizedClientException"
    code_query = "InvalidClientTokenId"

    def __init__(self) -> None:
        super().__init__("The security token included in the request is invalid.")


class SignatureMismatch(SignatureRefused):
    """The signature does not belong to this request."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(
            reason
            or "The request signature we calculated does not match the signature you provided. Check your AWS"
            " Secret Access Key and signing method. Consult the service documentation for details."
        )


class ScopeRefused(SignatureMismatch):
    """The credential is scoped to another service, day, region form or purpose."""


class HeaderUnsigned(SignatureMismatch):
    """A header that decides what the request means is not covered by the signature."""


class SignatureExpired(SignatureMismatch):
    """The signature is older than the clocks, or the presigned link, allow."""


class SignatureTooEarly(SignatureMismatch):
    """The signature is dated further ahead than the clocks allow."""
