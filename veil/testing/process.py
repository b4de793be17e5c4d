"""A server in a process of its own, for as long as it is needed and not a moment longer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import IO, Any, ClassVar

KEY_ID = "veil"
SECRET = "veil"  # noqa: S105 - any will do on a server without keys
_STOP_TIMEOUT_S = 20.0


class VeilServer:
    """`veil serve` on a free port, ready when the constructor returns; close it, or use it in a `with`.

    Further arguments are those of `veil serve`. Neither the caller's `VEIL_*` variables nor a veil.toml have a say; `environ`
    adds to the child's environment. The rules of 60 seconds after a purge and a delete are off.
    """

    _popen: ClassVar[Callable[..., subprocess.Popen[bytes]]] = subprocess.Popen

    def __init__(
        self, *arguments: str, environ: dict[str, str] | None = None, region: str = "us-east-1"
    ) -> None:
        command = [sys.executable, "-P", "-m", "veil.cli.main", "serve", "--companion", "--port", "0"]
        command += ["--config", os.devnull, "--no-rest-rules", "--log-level", "warning", "--region", region]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("VEIL_")}
        # A file, not a pipe: it is not read while the server runs, and a full pipe would stop the server.
        self._talk: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = self._popen(
            [*command, *(arguments or ("--store", "memory"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._talk,
            env=inherited | (environ or {}),
        )
        self.region = region
        try:
            ready = self._heard()
        except BaseException:
            self.close()
            raise
        self.endpoint_url: str = ready["endpoint_url"]
        self.port: int = ready["port"]
        self.smq_endpoint_url: str | None = ready.get("smq_endpoint_url")  # with --smq-port
        self.pid: int = ready["pid"]

    @property
    def environ(self) -> dict[str, str]:
        """The variables that lead any AWS SDK to this server; the aws CLI v1 also wants `--endpoint-url`."""
        return {
            "AWS_ENDPOINT_URL_SQS": self.endpoint_url,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def client(self, **settings: Any) -> Any:
        """A boto3 client of this server; settings are those of `boto3.client`. Needs boto3."""
        import boto3

        own = {
            "endpoint_url": self.endpoint_url,
            "region_name": self.region,
            "aws_access_key_id": KEY_ID,
            "aws_secret_access_key": SECRET,
        }
        return boto3.client("sqs", **(own | settings))

    def reset(self) -> None:
        """Remove every queue of every account and region, with all messages."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"reset\n")
        self._process.stdin.flush()
        self._heard()

    def log_text(self) -> str:
        """What the server has said on stderr so far."""
        # Not by seek and read: the server writes at the same offset, and would overwrite what it has said.
        log = self._talk.fileno()
        return os.pread(log, os.fstat(log).st_size, 0).decode("utf-8", "replace")

    def close(self) -> int:
        """Stop the server, wait until it is gone and give its exit code; harmless the second time."""
        process = self._process
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()  # the server leaves when its companion does
        try:
            return process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            if process.stdout is not None:
                process.stdout.close()
            self._talk.close()

    def _heard(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # ends with the process, so it cannot wait for ever
        if not line:
            self._process.wait()
            raise RuntimeError(f"the Veil server is gone: {self.log_text().strip() or 'without a word'}")
        return json.loads(line)

    def __enter__(self) -> VeilServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
