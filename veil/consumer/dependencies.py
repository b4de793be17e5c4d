"""What a consumer stands on: the service it calls, the clock it reads, the keeper of its leases. Tests bring their own."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import re
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from veil.client.api import QueueApi
from veil.client.endpoint import region_in
from veil.consumer.renewal.keeper import Keeper, KeeperEvents, steady_s
from veil.consumer.renewal.policy import RenewalPolicy
from veil.consumer.settings import ConsumerSettings

RECEIVES_MAX: Final = 32  # at a time; each holds a connection while it waits
_OTHER_CONNECTIONS: Final = 32  # for deletes, releases and dead letters


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """Real ones are made by `real_dependencies`, manual ones by the harness in `veil.testing`."""

    make_api: Callable[[], QueueApi]
    make_keeper: Callable[[RenewalPolicy, KeeperEvents], Keeper]
    monotonic: Callable[[], float] = steady_s
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: random.Random = field(default_factory=random.Random)


def worker_agent(name: str | None) -> str:
    """How this process names itself to the queue, so that whoever looks can tell its workers apart."""
    parts = {"host": socket.gethostname(), "pid": str(os.getpid()), "worker": name or ""}
    plain = {part: re.sub(r"[^A-Za-z0-9._-]", "-", text)[:64] for part, text in parts.items() if text}
    return " ".join(f"{part}/{text}" for part, text in plain.items())


def real_dependencies(settings: ConsumerSettings) -> Dependencies:
    """The service that the settings, the environment and the profile name, and a keeper with connections of its own."""
    from veil.client.client import SqsClient

    api = functools.partial(
        SqsClient,
        endpoint=settings.endpoint,
        region=settings.region or region_in(settings.queue),
        profile=settings.profile,
        monotonic=steady_s,
        user_agent_extra=worker_agent(settings.worker),
    )

    def make_keeper(policy: RenewalPolicy, events: KeeperEvents) -> Keeper:
        if settings.helper_process:
            from veil.consumer.renewal.keeper_process import KeeperProcess

            return KeeperProcess(api, policy, events=events)
        from veil.consumer.renewal.keeper_thread import KeeperThread

        return KeeperThread(api, policy, events=events)

    return Dependencies(
        make_api=functools.partial(api, connections=RECEIVES_MAX + _OTHER_CONNECTIONS),
        make_keeper=make_keeper,
    )
