"""The console's one cookie, and the colours a visitor chose."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PORT = re.compile(r":([0-9]{1,5})\Z", re.ASCII)


def read_cookies(header: str) -> dict[str, str]:
    """The cookies of a request; of a name that comes twice, the first."""
    cookies: dict[str, str] = {}
    for pair in header.split(";"):
        name, equals, value = pair.strip().partition("=")
        if equals:
            cookies.setdefault(name, value)
    return cookies


def cookie_name(headers: Mapping[str, str]) -> str:
    """The name of this server's cookie: cookies do not know ports, and a machine may have several servers."""
    port = _PORT.search(headers.get("host", ""))
    return f"veil_console_{port[1]}" if port else "veil_console"


def set_cookie(name: str, value: str, *, secure: bool) -> tuple[str, str]:
    """The header that sets a cookie until the browser is closed; an empty value takes it away."""
    text = f"{name}={value}; Path=/console; HttpOnly; SameSite=Strict"
    if not value:
        text += "; Max-Age=0"
    return "Set-Cookie", text + ("; Secure" if secure else "")
