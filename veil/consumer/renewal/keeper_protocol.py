"""What every keeper does, wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from veil.consumer.lease import Lease, Settling
from veil.consumer.queue_api import ApiError


class RenewalApi(Protocol):
    """The part of `QueueApi` that a keeper uses, from its own event loop."""

    async def extend(self, url: str, changes: Sequence[tuple[str, int]]) -> list[ApiError | None]:
        """Set the visibility of up to ten, in one call; what failed is said in its place."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class KeeperEvents:
    """What a keeper tells of its work, from its own thread; override what is of interest. Must return quickly."""

    def renewed(self, lease: Lease, visibility_s: int) -> None:
        """The service granted a window of that length."""

    def late(self, by_s: float) -> None:
        """The keeper woke so much later than planned: the interpreter was held, the process or the machine stopped."""

    def failed(self, lease: Lease, problem: Exception, again: bool) -> None:
        """A try to renew failed; `again` when there is time for another."""

    def lost(self, lease: Lease, why: str) -> None:
        """The lease is, or may be, somebody else's; its handler has been told."""

    def capped(self, lease: Lease, why: str) -> None:
        """The lease cannot be renewed any more; it lasts until its deadline."""

    def warned(self, lease: Lease, ends_in_s: float) -> None:
        """Renewal ends for good in so many seconds; the handler has been told."""


class Keeper(Protocol):
    """Keeps leases alive from `hold` to `let_go`. Both may be called from any thread, and never block."""

    # Whether a loss is on the lease the moment the keeper learns of it. From a helper process it has to travel, and
    # is only known once `let_go` has settled.
    knows_at_once: bool = True

    async def start(self) -> None:
        """Be ready to hold; raises what keeps it from working."""

    def hold(self, lease: Lease) -> None:
        """Keep the lease from now on: call it at once for everything that was received."""

    def let_go(self, lease: Lease) -> Settling:
        """Send no renewal for the lease after this; settled when none is under way either.

        Await it, then ask `lease.end()` whether the lease was kept, then delete or release. A renewal that overtook a release
        would hide the message again; and a loss that is on its way from a helper process is known only then.
        """

    def change(self, lease: Lease, visibility_s: int) -> Future[None]:
        """What `lease.extend` and `lease.release` call."""

    async def close(self) -> None:
        """Stop; what is still held is renewed no more."""
