"""A visitor without a browser: sends what it likes, keeps its cookie, and reads the token of a page."""

from __future__ import annotations

import re
from http.client import HTTPConnection, HTTPResponse, RemoteDisconnected
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from veil.testing import VeilServer


class Got(NamedTuple):
    """An answer, whole."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def token(self) -> str:
        found = re.search(r'name="token" value="([0-9a-f]+)"', self.text)
        assert found is not None, self.text[:500]
        return found[1]

    @property
    def place(self) -> str:
        return self.headers["location"]


class Visitor:
    """One who visits the console over plain HTTP."""

    def __init__(self, server: VeilServer) -> None:
        self._host = urlsplit(server.endpoint_url).netloc
        self.origin: str | None = server.endpoint_url
        self.cookie = ""
        self._connection = HTTPConnection(self._host, timeout=60)

    def get(self, path: str, **headers: str) -> Got:
        return self._ask("GET", path, None, headers)

    def post(self, path: str, fields: dict[str, str] | None = None, **headers: str) -> Got:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        if self.origin is not None:
            form["Origin"] = self.origin
        return self._ask("POST", path, urlencode(fields or {}).encode(), form | headers)

    def log_in(self, key_id: str, secret: str) -> Got:
        token = self.get("/console/login").token
        return self.post("/console/login", {"token": token, "key_id": key_id, "secret": secret})

    def open(self, path: str, **headers: str) -> tuple[HTTPConnection, HTTPResponse]:
        """The answer, not read: for streams."""
        connection = HTTPConnection(self._host, timeout=60)
        connection.request("GET", path, headers=self._with_cookie(headers))
        return connection, connection.getresponse()

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Got:
        named = self._with_cookie(headers)
        try:
            self._connection.request(method, path, body, named)
            answer = self._connection.getresponse()
        except (RemoteDisconnected, ConnectionError):  # it was closed after the last answer
            self._connection.close()
            self._connection.request(method, path, body, named)
            answer = self._connection.getresponse()
        text = answer.read().decode()
        for cookie in answer.headers.get_all("set-cookie") or ():
            if cookie.startswith("veil_console"):
                self.cookie = cookie.partition(";")[0]
        return Got(answer.status, text, {name.lower(): value for name, value in answer.headers.items()})

    def __del__(self) -> None:
        self._connection.close()

    def _with_cookie(self, headers: dict[str, str]) -> dict[str, str]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return ({"Cookie": self.cookie} if self.cookie else {}) | named
