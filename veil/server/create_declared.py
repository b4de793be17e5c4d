"""Declared queues are created at the start where they are missing, and never changed where they exist.

An existing queue that differs is left alone and named in a warning. To change it would let an old file on one
machine undo what an operator set an hour ago; to refuse the start would turn a harmless difference into an
outage.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from veil.core.errors import QueueMissing, VeilError
from veil.core.queue import QueueKey, RedrivePolicy
from veil.server.declared_queues import DeclaredQueue, settings_given
from veil.service.queues import create_queue, find_queue
from veil.service.service import Service

log = logging.getLogger("veil.server")


async def create_declared(
    service: Service, queues: Iterable[DeclaredQueue], region: str, account: str
) -> None:
    """Create what is missing; what differs, or cannot be created now, is a warning that names it."""
    for declared in queues:
        key = QueueKey(region, account, declared.name)
        given = settings_given(declared, key)
        try:
            existing = await find_queue(service, key)
        except QueueMissing:
            try:
                await create_queue(service, key, given, declared.tags)
                log.info("created queue %s", declared.name)
            except VeilError as refusal:
                log.warning("could not create the declared queue %s: %s", declared.name, refusal)
            continue
        for setting, wanted in given.items():
            found = getattr(existing.settings, setting)
            if found != wanted:
                log.warning(
                    "queue %s exists with %s=%s and is declared with %s; it was not changed",
                    declared.name,
                    setting,
                    _shown(found),
                    _shown(wanted),
                )


def _shown(value: object) -> str:
    if isinstance(value, RedrivePolicy):
        return f"{value.dead_letters.name} after {value.receives_max} receives"
    return str(value)
