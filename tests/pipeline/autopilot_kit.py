"""An autopilot on a real server, a journal of told stories, and a clock that the test owns."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.pipeline.journal_kit import (
    START_MS,
    S,
    a_message,
    journal_of,
    no_spark,
    numbered,
    write_segment_of,
)
from veil.cli.autopilot import ClientQueues, SharedAudit
from veil.client.blocking import BlockingClient, find_target
from veil.console.audit import AuditFile
from veil.core.autopilot import AutopilotPolicy, Decision
from veil.journal.storage import Storage
from veil.pipeline.autopilot.loop import Autopilot, JournalHealth
from veil.pipeline.lifecycles.run import run_lifecycles

REGION = "eu-central-1"
HOUR_MS = 3_600_000
QUICKLY = "apply target=0.05 every=0 step=100"  # some hundred attempts are enough for it


class World:
    """A queue `orders` on the server, and what is told of it."""

    def __init__(self, place: Path, endpoint_url: str, now_ms: int = START_MS) -> None:
        self.journal, self.tables = Storage.at(place / "journal"), Storage.at(place / "tables")
        self.audit_file = place / "audit.jsonl"
        self.client = BlockingClient(find_target(endpoint_url, REGION))
        self.queues = ClientQueues(self.client)
        self.now_ms = now_ms
        self.health: JournalHealth | str | None = JournalHealth(0.0, 0.0)
        self.told: list[tuple[str, Decision]] = []
        self._counter = itertools.count(now_ms % 1000)
        self._row = 1

    def create(self, timeout_s: int, tag: str = QUICKLY) -> None:
        """Create the queue, with its owner's policy."""
        self.client.call(
            "CreateQueue",
            {
                "QueueName": "orders",
                "Attributes": {"VisibilityTimeout": str(timeout_s)},
                "tags": {"veil:autopilot": tag},
            },
        )

    @property
    def timeout_s(self) -> int | None:
        return self.queues.timeout_s("orders")

    def pass_time(
        self,
        hours: float,
        work_s: Callable[[int], float],
        *,
        attempts: int = 400,
        account: str = "000000000000",
        **told: Any,
    ) -> None:
        """Time in which so many messages are worked on, each as long as `work_s` of its number says."""
        window_ms = (self.timeout_s or 30) * S
        every_ms = int(hours * HOUR_MS / attempts)
        stories = []
        for number in range(attempts):
            at = self.now_ms + number * every_ms
            story = a_message(at, counter=next(self._counter) % 1000, **told)
            stories.append(
                story.received(at + S, visibility=window_ms).deleted(at + S + int(work_s(number) * S))
            )
        self.now_ms += int(hours * HOUR_MS)
        # What has not happened yet is left out: a journal tells of the past.
        past = (each for each in journal_of(*stories) if each.at <= self.now_ms)
        events = [replace(each, account=account) for each in past]
        write_segment_of(self.journal, numbered(events, first_row=self._row))
        self._row += len(events)

    def pilot(self, **given: Any) -> Autopilot:
        """An autopilot of this world; another one after a crash."""
        return Autopilot(
            tables=given.pop("tables", self.tables),
            queues=given.pop("queues", self.queues),
            audit=SharedAudit(AuditFile(self.audit_file), self.queues),
            refresh=lambda: run_lifecycles(no_spark, self.journal, self.tables),
            health=lambda: self.health,
            now_ms=given.pop("now_ms", lambda: self.now_ms),
            default=AutopilotPolicy(),
            tell=lambda queue, state, decision: self.told.append((queue, decision)),
            **given,
        )

    def look(self, pilot: Autopilot | None = None) -> Autopilot:
        """Two looks: the first claims the queue, the second may change it."""
        pilot = pilot or self.pilot()
        pilot.look_at_all()
        pilot.look_at_all()
        return pilot

    def audit(self) -> list[dict[str, Any]]:
        """The entries of the audit log, each with how it ended."""
        entries: dict[str, dict[str, Any]] = {}
        for line in self.audit_file.read_text().splitlines() if self.audit_file.exists() else ():
            fields = json.loads(line)
            assert ("action" in fields) != (fields["id"] in entries), (
                f"told twice, or ended without a beginning: {line}"
            )
            entries.setdefault(fields["id"], {}).update(fields)
        return list(entries.values())

    def actions(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.audit() if each["action"] == f"autopilot: {kind}"]


@contextmanager
def a_world(place: Path) -> Iterator[World]:
    """A world with a server of its own."""
    from veil.testing import VeilServer

    with VeilServer() as server:
        world = World(place, server.endpoint_url)
        try:
            yield world
        finally:
            world.client.close()


def slow(number: int) -> float:
    """Work of which a third outlasts 30 s, and none 110 s."""
    return 10 + number % 3 * 40 + number % 10


def quick(number: int) -> float:
    """Work of 2 to 5 s."""
    return 2 + number % 4
