"""What can go wrong with dead letters, told in one line."""

from __future__ import annotations

from veil.core.errors import VeilError


class DeadLettersRefused(VeilError):
    """What was asked cannot be done: the line says which option or queue, and what was expected."""


class NotVeil(DeadLettersRefused):
    """The service has none of Veil's own actions."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(
            f"{endpoint} is not a Veil server: dead letters are looked at without receiving, and redriven in one "
            "transaction each, by actions that only Veil has; elsewhere use: veil dlq redrive"
        )
        self.endpoint = endpoint
