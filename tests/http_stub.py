"""A small HTTP server of the test's own: what it answers is a function of the request."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit


class StubRequest(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]  # their names in small letters
    body: bytes

    @property
    def action(self) -> str:
        """As SQS's JSON protocol names it: `SendMessage`."""
        return self.headers["x-amz-target"].partition(".")[2]


class StubAnswer(NamedTuple):
    body: bytes = b""
    status: int = 200
    content_type: str = "application/x-amz-json-1.0"


@contextmanager
def http_stub(answer: Callable[[StubRequest], StubAnswer | None]) -> Iterator[str]:
    """The URL of a server that answers so; None breaks the connection instead."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            answered = answer(StubRequest(self.command, self.path, headers, body))
            if answered is None:
                self.close_connection = True
                return
            self.send_response(answered.status)
            self.send_header("Content-Type", answered.content_type)
            self.send_header("Content-Length", str(len(answered.body)))
            self.end_headers()
            self.wfile.write(answered.body)

        do_GET = do_POST = _answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def passed_on(asked: StubRequest, endpoint: str) -> StubAnswer:
    """What another server answers to the same request."""
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc)
    try:
        headers = {name: value for name, value in asked.headers.items() if name != "host"}
        connection.request(asked.method, asked.path, asked.body, headers)
        answer = connection.getresponse()
        return StubAnswer(answer.read(), answer.status, answer.headers["Content-Type"])
    finally:
        connection.close()
