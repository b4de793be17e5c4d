"""What a router is asked for and cannot do."""

from __future__ import annotations

from veil.core.errors import VeilError


class RouteRefused(VeilError):
    """Bands, rules, queues or the state do not fit; says which, and what was expected."""
