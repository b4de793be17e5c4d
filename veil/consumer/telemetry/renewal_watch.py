"""What the keeper of leases tells, as counts and log lines."""

from __future__ import annotations

import logging

from veil.consumer.lease import Lease
from veil.consumer.renewal.keeper_protocol import KeeperEvents
from veil.consumer.telemetry.metrics import ConsumerMetrics

_log = logging.getLogger("veil.consumer")


class RenewalWatch(KeeperEvents):
    """For the keeper of one queue; called from its thread."""

    def __init__(self, queue: str, metrics: ConsumerMetrics | None = None) -> None:
        self._queue, self._metrics = queue, metrics

    def renewed(self, lease: Lease, visibility_s: int) -> None:
        self._count("renewed")
        _log.debug("lease renewed for %d s", visibility_s, extra=self._facts(lease))

    def late(self, by_s: float) -> None:
        self._count("late")
        _log.warning(
            "renewal of queue %s woke %.1f s late: the process was held up; a helper process would not have been",
            self._queue,
            by_s,
            extra={"facts": {"queue": self._queue}, "queue": self._queue},
        )

    def failed(self, lease: Lease, problem: Exception, again: bool) -> None:
        self._count("failed")
        what = "it will be tried again" if again else "there is no time for another try"
        _log.warning("lease not renewed: %s; %s", problem, what, extra=self._facts(lease))

    def lost(self, lease: Lease, why: str) -> None:
        self._count("lost")
        _log.warning("lease lost: %s", why, extra=self._facts(lease))

    def capped(self, lease: Lease, why: str) -> None:
        self._count("capped")
        _log.warning("lease is renewed no more: %s", why, extra=self._facts(lease))

    def warned(self, lease: Lease, ends_in_s: float) -> None:
        _log.warning("lease is renewed for another %.0f s only", ends_in_s, extra=self._facts(lease))

    def _count(self, event: str) -> None:
        if self._metrics is not None:
            self._metrics.lease(event, self._queue)

    def _facts(self, lease: Lease) -> dict[str, object]:
        facts = {"message_id": lease.message_id, "queue": self._queue, "token": lease.token}
        return {"facts": facts, **facts}
