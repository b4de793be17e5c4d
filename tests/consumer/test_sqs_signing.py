"""The signer for many requests of one kind gives the signature that the general one gives."""

from __future__ import annotations

import pytest

from tests.signing import sign
from veil.signing.sigv4 import PostSigner

CONSTANT = {"Content-Type": "application/x-amz-json-1.0", "x-amzn-query-mode": "true"}
DAY_MS = 86_400_000


@pytest.mark.parametrize("path", ["/", "/behind/a proxy/"])
@pytest.mark.parametrize("token", [None, "AQoDYXdzEJr//token=="])
def test_both_signers_agree_on_every_request(path: str, token: str | None) -> None:
    signer = PostSigner(host="sqs.example:9324", path=path, region="eu-central-1")
    key = {"key_id": "AKID", "secret": "wJalr/x", "session_token": token}
    # The same second, another second, another day, and back: whatever is remembered must be forgotten in time.
    for now_ms in (0, 999, 1000, DAY_MS, DAY_MS + 5, 0):
        for body in (b"{}", b'{"QueueUrl":"\xc3\xa9"}'):
            target = "AmazonSQS.ReceiveMessage"
            expected = sign(
                method="POST",
                host="sqs.example:9324",
                path=path,
                headers={**CONSTANT, "X-Amz-Target": target},
                body=body,
                region="eu-central-1",
                now_ms=now_ms,
                **key,
            )
            found = signer.sign(target=target, body=body, now_ms=now_ms, **key)
            assert found == (expected["X-Amz-Date"], expected["Authorization"])


def test_new_credentials_are_signed_with_at_once() -> None:
    signer = PostSigner(host="h", path="/", region="r")

    def signed(**key: str | None) -> str:
        whole = {"key_id": "A", "secret": "s", "session_token": None} | key
        return signer.sign(target="t", body=b"", now_ms=0, **whole)[1]  # type: ignore[arg-type]

    all_different = {signed(), signed(secret="other"), signed(key_id="B"), signed(session_token="token")}
    assert len(all_different) == 4
    assert signed() in all_different
