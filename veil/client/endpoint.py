"""Where the service is, by the names AWS has for it (endpoint and region), and which certificates to trust there."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from veil.client.api import ApiError, Failure
from veil.client.credentials import Profile

LOCAL = "http://127.0.0.1:9324"  # where `veil serve` listens unless told otherwise
REGION_OF_OTHERS = "us-east-1"  # for a service that is not AWS, where no region is named

_REGION: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ARN = re.compile(r"arn:[a-z-]+:sqs:([a-z0-9-]+):")
_AWS_URL: Final = re.compile(r"https?://sqs(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.|api\.)")
# Regions whose names begin so belong to a partition with a domain of its own.
_DOMAINS: Final = (
    ("cn-", "amazonaws.com.cn"),
    ("eusc-", "amazonaws.eu"),
    ("us-iso-", "c2s.ic.gov"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("eu-isoe-", "cloud.adc-e.uk"),
    ("us-isof-", "csp.hci.ic.gov"),
    ("", "amazonaws.com"),
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address that requests go to."""

    url: str
    secure: bool
    host: str
    port: int
    host_header: str
    path: str

    @property
    def is_loopback(self) -> bool:
        """Whether it is this very machine."""
        if self.host == "localhost" or self.host.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def find_endpoint(
    given: str | None, region: str | None, profile: Profile, environ: Mapping[str, str] = os.environ
) -> tuple[Endpoint, str]:
    """Endpoint and region: what the caller gives, then the environment, then the profile, then AWS's own address of the
    region; where no region is found either, Veil on this machine."""
    url = given or configured_endpoint(profile, environ)
    region = (
        region
        or environ.get("AWS_REGION")
        or environ.get("AWS_DEFAULT_REGION")
        or profile.settings.get("region")
        or (REGION_OF_OTHERS if url else None)
    )
    if region is None:
        # Nothing speaks of AWS: somebody who tries Veil out has its server on this machine.
        url, region = LOCAL, REGION_OF_OTHERS
    if not _REGION.fullmatch(region):
        raise EndpointRefused(f"region {region!r}: expected a name such as eu-central-1")
    return parse_endpoint(url or _of_aws(region, profile, environ)), region


def parse_endpoint(url: str) -> Endpoint:
    """The parts of an endpoint's URL; ApiError if it cannot be called."""
    refusal = EndpointRefused(f"endpoint {url!r}: expected a URL such as http://127.0.0.1:9324")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        # As the lookup of the name will do: its labels have 1 to 63 characters.
        (host or "").encode("idna")
    except ValueError:
        raise refusal from None
    if (
        parts.scheme not in ("http", "https")
        or not host
        or not host.isascii()
        or parts.query
        or parts.fragment
    ):
        raise refusal
    if not re.fullmatch(r"[A-Za-z0-9._:%-]+", host) or not re.fullmatch(r"[!-~]*", parts.path):
        raise refusal
    secure = parts.scheme == "https"
    usual_port = 443 if secure else 80
    host_header = f"[{host}]" if ":" in host else host
    if port is not None and port != usual_port:
        host_header += f":{port}"
    path = parts.path.rstrip("/") + "/"
    return Endpoint(f"{parts.scheme}://{host_header}", secure, host, port or usual_port, host_header, path)


def region_in(queue: str) -> str | None:
    """The region of a queue, if it is given by an ARN, or by a URL of AWS's that says so."""
    found = _ARN.match(queue) or _AWS_URL.match(queue)
    return found[1] if found else None


def configured_endpoint(profile: Profile, environ: Mapping[str, str] = os.environ) -> str | None:
    """The endpoint's URL by AWS's variables and the profile; None where none is named."""
    ignored = environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or profile.settings.get(
        "ignore_configured_endpoint_urls", ""
    )
    if ignored.lower() == "true":
        return None
    return (
        environ.get("AWS_ENDPOINT_URL_SQS")
        or environ.get("AWS_ENDPOINT_URL")
        or profile.sqs.get("endpoint_url")
        or profile.settings.get("endpoint_url")
    )


def _of_aws(region: str, profile: Profile, environ: Mapping[str, str]) -> str:
    fips = environ.get("AWS_USE_FIPS_ENDPOINT") or profile.settings.get("use_fips_endpoint", "")
    # GovCloud's ordinary name is the FIPS one.
    service = "sqs-fips" if fips.lower() == "true" and not region.startswith("us-gov-") else "sqs"
    domain = next(domain for beginning, domain in _DOMAINS if region.startswith(beginning))
    return f"https://{service}.{region}.{domain}"


class EndpointRefused(ApiError):
    """What was given is no endpoint or region that can be called."""

    def __init__(self, text: str) -> None:
        super().__init__(Failure.FATAL, "", text)


# ---- TLS: which authorities to trust, by AWS's own variable, and what went wrong in words that help

CA_BUNDLE_VARIABLE: Final = "AWS_CA_BUNDLE"

# OpenSSL's numbers of what can be wrong with a certificate.
_NOT_YET_VALID, _EXPIRED, _HOST_MISMATCH, _ADDRESS_MISMATCH = 9, 10, 62, 64
_UNTRUSTED: Final = frozenset((2, 18, 19, 20, 21))


def ca_bundle(environ: Mapping[str, str], profile: Mapping[str, str]) -> str | None:
    """The file of trusted authorities: AWS_CA_BUNDLE, else `ca_bundle` in the profile; None for the machine's own."""
    return environ.get(CA_BUNDLE_VARIABLE) or profile.get("ca_bundle") or None


def client_context(bundle: str | None) -> ssl.SSLContext:
    """A context that trusts the authorities of that file alone, as AWS's SDKs do; ApiError if it cannot be used."""
    try:
        return ssl.create_default_context(cafile=bundle)
    except OSError as error:  # an SSLError is one
        reason = (
            "no certificate is in it" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        )
        raise EndpointRefused(
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
        return f"{host} requires a client certificate, which this client cannot present"
    return f"TLS with {host} failed: {(reason or str(error)).lower().replace('_', ' ')}"
