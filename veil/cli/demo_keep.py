"""The demo kept running: the same server and workers on the same data, gently, to be looked at."""

from __future__ import annotations

import http.client
import shlex
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from veil.cli.demo_server import DemoServer
from veil.cli.demo_workload import Workload
from veil.cli.output import say, talk

_CONSOLE: Final = "/console"


def keep_running(server: DemoServer, workload: Workload, folder: Path) -> None:
    """Start everything again on the same data, at a gentle rate, and let it run until somebody has had enough."""
    server.start()
    workload.start_workers()
    workload.start_producers(gently=True)
    talk()
    say(f"api      {server.endpoint}")
    if console := console_address(server.endpoint):
        say(f"console  {console}")
    talk("Server, producers and workers are running; Ctrl-C ends them. Try, in another terminal:")
    talk(f"  export AWS_ENDPOINT_URL_SQS={server.endpoint}")
    talk("  veil queue ls")
    talk("  veil msg tail thumbnails")
    talk(f"  veil timeouts apply --data {shlex.quote(str(folder / 'data'))}")
    with suppress(KeyboardInterrupt):
        while True:
            signal.pause()
    workload.stop()
    talk("stopped")


def console_address(endpoint: str) -> str | None:
    """Where the server's web pages are; None if it has none."""
    parts = urlsplit(endpoint)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=5)
    try:
        connection.request("GET", _CONSOLE)
        return f"{endpoint}{_CONSOLE}" if connection.getresponse().status < 400 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
