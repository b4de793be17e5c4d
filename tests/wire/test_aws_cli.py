"""The aws command, unmodified."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.wire.listening import listening

AWS = Path(sys.executable).with_name("aws")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not AWS.exists(), reason="the aws command is not installed"),
]


def aws(port: int, *arguments: str) -> Any:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, str(AWS), "--endpoint-url", endpoint, "--output", "json", "sqs", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout) if done.stdout.strip() else {}


def test_create_send_receive_delete_and_an_error() -> None:
    with listening() as port:
        url = aws(port, "create-queue", "--queue-name", "q", "--attributes", "VisibilityTimeout=60")[
            "QueueUrl"
        ]
        assert url == f"http://127.0.0.1:{port}/000000000000/q"
        sent = aws(port, "send-message", "--queue-url", url, "--message-body", "héllo")
        (found,) = aws(port, "receive-message", "--queue-url", url, "--attribute-names", "All")["Messages"]
        assert (found["MessageId"], found["Body"]) == (sent["MessageId"], "héllo")
        aws(port, "delete-message", "--queue-url", url, "--receipt-handle", found["ReceiptHandle"])
        assert aws(port, "list-queues")["QueueUrls"] == [url]
        with pytest.raises(RuntimeError, match=r"AWS\.SimpleQueueService\.NonExistentQueue"):
            aws(port, "get-queue-url", "--queue-name", "none")
