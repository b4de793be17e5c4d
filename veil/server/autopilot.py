"""The autopilot of a server (`veil serve --autopilot`): a process beside it that is started again when it dies.

It is a client like any other and does no work in the server's own process. What it says goes into the server's log. It ends
with the server, however that ends: then its input is at its end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from veil.journal.helper_process import module_path
from veil.server.console import audit_file, tables_directory
from veil.server.make_store import journal_location
from veil.server.settings import ServerSettingsError, Settings
from veil.wire.sigv4 import AccessKey

_log = logging.getLogger(__name__)

_PAUSES_S: Final = (1, 5, 15, 60)


class AutopilotProcess:
    """Runs from `keep` until it is cancelled."""

    def __init__(self, settings: Settings, keys: Mapping[str, AccessKey]) -> None:
        journal, tables, audit = journal_location(settings), tables_directory(settings), audit_file(settings)
        if journal is None or tables is None or audit is None:
            raise ServerSettingsError(
                "autopilot=on: expected a journal to learn from, and a data directory to keep what was learned"
            )
        if settings.tls_client_ca is not None:
            raise ServerSettingsError(
                "autopilot=on: expected no tls_client_ca, because the autopilot has no certificate to show; start it with "
                "`veil autopilot`, through a proxy that has one"
            )
        own = [key for key in keys.values() if key.account == settings.account]
        if keys and not own:
            raise ServerSettingsError(
                f"autopilot=on: expected a key of account {settings.account}, whose queues it looks after"
            )
        self._settings = settings
        self._environ = {}
        if own:
            key = next((each for each in own if each.role == "admin"), own[0])
            self._environ = {"AWS_ACCESS_KEY_ID": key.key_id, "AWS_SECRET_ACCESS_KEY": key.secret}
        self._arguments = ["--journal", journal, "--tables", str(tables), "--audit", str(audit)]
        self._arguments += ["--region", settings.region, "--default", settings.autopilot_default]
        if settings.autopilot_webhook is not None:
            self._arguments += ["--webhook", settings.autopilot_webhook]

    async def keep(self, endpoint_url: str) -> None:
        """Keep one running, and pass on what it says."""
        failures = 0
        while True:
            begun_s = asyncio.get_running_loop().time()
            try:
                told = f"ended (exit {await self._run(endpoint_url)})"
            except OSError as problem:
                told = f"could not be started: {problem.strerror}"
            failures = 0 if asyncio.get_running_loop().time() - begun_s > _PAUSES_S[-1] else failures + 1
            pause_s = _PAUSES_S[min(failures, len(_PAUSES_S)) - 1]
            _log.warning("the autopilot %s; the next one starts in %d s", told, pause_s)
            await asyncio.sleep(pause_s)

    async def _run(self, endpoint_url: str) -> int | None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("VEIL_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "veil.cli.main", "autopilot", "--attached", "--endpoint", endpoint_url,
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C in the terminal is for the server
            env=inherited | self._environ | {"PYTHONPATH": os.pathsep.join(module_path())},
        )  # fmt: skip
        assert process.stdout is not None
        try:
            while True:
                with suppress(ValueError):  # a line that is longer than the reader's buffer is left out
                    if not (line := await process.stdout.readline()):
                        return await process.wait()
                    _log.info("autopilot: %s", line.decode("utf-8", "replace").rstrip()[:2_000])
        finally:
            with suppress(ProcessLookupError):
                process.kill()  # safe at every step
