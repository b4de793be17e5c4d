"""The bytes of a signed request: what never changes is written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from veil.consumer.sqs.credentials import Credentials
from veil.consumer.sqs.endpoint import Endpoint
from veil.signing.sigv4_post import PostSigner

# With the mode, services name errors in both spellings.
_CONSTANT: Final = {"Content-Type": "application/x-amz-json-1.0", "x-amzn-query-mode": "true"}


class RequestHead:
    """Writes requests to one endpoint."""

    def __init__(self, endpoint: Endpoint, region: str, user_agent: str, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._signer = PostSigner(
            host=endpoint.host_header, path=endpoint.path, region=region, headers=_CONSTANT
        )
        constant = "".join(f"{name}: {value}\r\n" for name, value in _CONSTANT.items())
        self._start = (
            f"POST {endpoint.path} HTTP/1.1\r\nHost: {endpoint.host_header}\r\n{constant}"
            f"User-Agent: {user_agent}\r\nX-Amz-Target: "
        )

    def request(
        self, target: str, body: bytes, credentials: Credentials, invocation: str, attempt: int
    ) -> bytes:
        """Head and body, signed for now."""
        token = credentials.session_token
        timestamp, authorization = self._signer.sign(
            target=target,
            body=body,
            key_id=credentials.key_id,
            secret=credentials.secret,
            session_token=token,
            now_ms=self._wall_ms(),
        )
        token_line = "" if token is None else f"X-Amz-Security-Token: {token}\r\n"
        head = (
            f"{self._start}{target}\r\nX-Amz-Date: {timestamp}\r\n{token_line}Authorization: {authorization}\r\n"
            f"amz-sdk-invocation-id: {invocation}\r\namz-sdk-request: attempt={attempt}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body
