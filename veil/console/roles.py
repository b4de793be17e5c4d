"""Who may do what: a viewer looks, an operator works on messages, an admin on queues."""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """Each may do what the lower ones may."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        return self.name.lower()


def role_named(name: str) -> Role:
    """The role of that name."""
    return Role[name.upper()]
