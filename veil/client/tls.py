"""TLS from the client's side: whom to trust, by AWS's own variable, and what went wrong in words that help."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

CA_BUNDLE_VARIABLE: Final = "AWS_CA_BUNDLE"

# OpenSSL's numbers of what can be wrong with a certificate.
_NOT_YET_VALID, _EXPIRED, _HOST_MISMATCH, _ADDRESS_MISMATCH = 9, 10, 62, 64
_UNTRUSTED: Final = frozenset((2, 18, 19, 20, 21))


class BundleRefused(Exception):
    """The file of authorities cannot be used; the text is the line to show."""


def ca_bundle(environ: Mapping[str, str], profile: Mapping[str, str]) -> str | None:
    """The file of trusted authorities: AWS_CA_BUNDLE, else `ca_bundle` in the profile; None for the machine's own."""
    return environ.get(CA_BUNDLE_VARIABLE) or profile.get("ca_bundle") or None


def client_context(bundle: str | None) -> ssl.SSLContext:
    """A context that trusts the authorities of that file alone, as AWS's SDKs do; BundleRefused if it cannot be used."""
    try:
        return ssl.create_default_context(cafile=bundle)
    except OSError as error:  # an SSLError is one
        reason = (
            "no certificate is in it" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        )
        raise BundleRefused(
            f"{CA_BUNDLE_VARIABLE}={bundle}: expected a file of certificates in PEM ({reason})"
        ) from None


def problem_in_words(error: BaseException, host: str, bundle: str | None) -> str | None:
    """What is wrong between this client and the host, and what to do about it; None if it is not TLS's doing."""
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code in (_HOST_MISMATCH, _ADDRESS_MISMATCH):
            return f"the server's certificate is not for {host}: use a name that is in it, or have {host} added to it"
        if code == _EXPIRED:
            return f"the certificate of {host} has expired: the server needs a new one"
        if code == _NOT_YET_VALID:
            return f"the certificate of {host} is not valid yet: check this machine's clock"
        if code in _UNTRUSTED:
            known = f"{CA_BUNDLE_VARIABLE}={bundle} does not hold" if bundle else "this machine does not know"
            return (
                f"the certificate of {host} is not trusted: {known} the authority that signed it; set {CA_BUNDLE_VARIABLE} "
                "to a file with that authority's certificate"
            )
        return f"the certificate of {host} is not accepted: {error.verify_message}"
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return f"{host} does not speak TLS at this port: use http://"
    if "CERTIFICATE_REQUIRED" in reason:
        return f"{host} wants a client certificate, which this client cannot show"
    return f"TLS with {host} failed: {(reason or str(error)).lower().replace('_', ' ')}"
