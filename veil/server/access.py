"""Who may speak to the server: the access keys, and before anything is parsed addresses, hosts and sites.

The Query protocol is a plain form post, which any web page may send to any address: without these checks a
page could purge a queue on the reader's own machine. A name that an attacker points at 127.0.0.1 would even
let it read the answers, hence the list of hosts. No answer ever carries Access-Control-Allow-Origin.

Browsers name the page's origin with every POST. With a GET they do so only for addresses that they trust (https, localhost):
for `http://veil:9324` an image is asked for without a word. The front ends therefore refuse changes by an unsigned GET.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from veil.server.setting_values import KEYS_EXPECTED, access_keys
from veil.server.settings import ServerSettingsError, Settings, read_file
from veil.wire import aws_json, aws_query
from veil.wire.exchange import Request, Response
from veil.wire.front_end import OTHER, action_of
from veil.wire.request_errors import ACCESS_DENIED
from veil.wire.sigv4 import AccessKey
from veil.wire.sqs_codes import Refusal

CONSOLE_ROOT: Final = "/console"
_OWN_NAMES = frozenset(("localhost", "veil"))
_FOREIGN_SITES = frozenset(("cross-site", "same-site"))
_REMEMBERED_MAX = 256


def is_loopback(host: str) -> bool:
    """Whether listening on that host reaches no other machine."""
    return host.lower() == "localhost" or _is_loopback_address(host)


def _is_loopback_address(text: str) -> bool:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool(mapped.is_loopback if mapped is not None else address.is_loopback)


def is_console(path: str) -> bool:
    """Whether the path is the console's; everything else goes to the API."""
    return path == CONSOLE_ROOT or path.startswith(CONSOLE_ROOT + "/")


class AccessRules:
    """Turns away requests by where they come from; signatures are the front end's to check."""

    def __init__(
        self, *, has_keys: bool, allowed_hosts: Iterable[str] = (), base_url: str | None = None
    ) -> None:
        self.has_keys = has_keys
        names = set(allowed_hosts) | _OWN_NAMES
        if base_url is not None and (hostname := urlsplit(base_url).hostname):
            names.add(hostname)
        self._names = frozenset(name for name in names if not name.startswith("*."))
        self._suffixes = (".localhost", *(name[1:] for name in names if name.startswith("*.")))
        self._remembered: set[str] = set()  # Host headers that were found good, as sent

    def refusal(self, request: Request) -> str | None:
        """Why a request may not come in; None for one that may."""
        headers = request.headers
        host = headers.get("host", "")
        if not self.has_keys and host not in self._remembered and not self._is_allowed(host):
            return (
                f"Host {host[:100]!r} is not a name of this server. Use localhost, add the name to allowed_hosts, "
                "or start the server with keys."
            )
        origin = headers.get("origin")
        if origin is not None and not _is_same_origin(origin, host):
            return "Requests from web pages of another origin are refused."
        if headers.get("sec-fetch-site") in _FOREIGN_SITES and not _is_link_to_console(request):
            return "Requests from web pages of another site are refused."
        if request.method == "OPTIONS":
            return "Cross-origin requests are not offered."
        return None

    def _is_allowed(self, host: str) -> bool:
        name = host_name(host)
        if name is None:
            return False
        if name not in self._names and not name.endswith(self._suffixes) and not _is_loopback_address(name):
            return False
        if len(self._remembered) < _REMEMBERED_MAX:  # *.localhost are without end
            self._remembered.add(host)
        return True


def host_name(host: str) -> str | None:
    """The name or address in a Host header, in lower case without port and brackets; None for what is neither."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not _is_port(port)):
            return None
    else:
        name, colon, digits = host.partition(":")
        if colon and not _is_port(colon + digits):
            return None
    # Nothing that a browser or a proxy might read in another way than we do.
    if not name or any(char in name for char in "@/\\? #,;") or not name.isascii():
        return None
    return name.lower().rstrip(".") or None


def _is_port(text: str) -> bool:
    return text.startswith(":") and (
        text == ":" or (text[1:].isascii() and text[1:].isdigit() and len(text) <= 6)
    )


def _is_link_to_console(request: Request) -> bool:
    # Somebody followed a link to a page of the console: it is shown to them in a window of its own and to no other
    # page, and a GET changes nothing.
    headers = request.headers
    return (
        request.method == "GET"
        and is_console(request.path)
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def _is_same_origin(origin: str, host: str) -> bool:
    # The scheme is left out: behind a proxy that speaks TLS the page says https and we hear http. A page on
    # the same host and port is our own in either case. `null`, which sandboxed pages and files send, is never
    # equal to a Host.
    scheme, separator, place = origin.partition("://")
    if not separator or scheme not in ("http", "https"):
        return False
    default = ":443" if scheme == "https" else ":80"
    return place.lower().removesuffix(default) == host.lower().removesuffix(default)


def forbidden(request: Request, reason: str) -> Response:
    """The refusal in the protocol of the request, so that an SDK can tell its user the reason."""
    refusal = Refusal(ACCESS_DENIED, reason)
    if "x-amz-target" in request.headers:
        return aws_json.refuse(refusal, "none")
    if action_of(request) != OTHER:
        return aws_query.refuse(refusal, "none", as_json=aws_query.wants_json(request))
    return Response(403, reason.encode("ascii", "replace") + b"\n")


# ---- access keys


def gather_keys(settings: Settings) -> dict[str, AccessKey]:
    """Every key by its id; reads the keys file anew. Raises ServerSettingsError."""
    keys = {key.key_id: key for key in settings.keys}
    if settings.keys_file is not None:
        for key in _read_keys(settings.keys_file):
            if key.key_id in keys:
                raise ServerSettingsError(
                    f"keys_file={settings.keys_file}: expected no id twice, found {key.key_id}"
                )
            keys[key.key_id] = replace(key, account=key.account or settings.account)
        if not keys:
            # Somebody wanted keys: an emptied file must not open the server to everybody.
            raise ServerSettingsError(f"keys_file={settings.keys_file}: expected at least one key")
    return keys


def _read_keys(path: Path) -> list[AccessKey]:
    try:
        text = read_file("keys_file", path, private=True).decode("utf-8")
    except UnicodeDecodeError:
        raise ServerSettingsError(f"keys_file={path}: expected UTF-8") from None
    keys: list[AccessKey] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            keys += access_keys(line)
        except ValueError:
            raise ServerSettingsError(f"keys_file={path}, line {number}: expected {KEYS_EXPECTED}") from None
    if len({key.key_id for key in keys}) != len(keys):
        raise ServerSettingsError(f"keys_file={path}: expected no id twice")
    return keys
