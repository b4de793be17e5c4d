"""The queues of the generated journal: fifty of them, busy by Zipf's law, each with its own habits and failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

QUEUES: Final = 50
CONSUMERS: Final = 8  # of each queue; a queue's producer stands before them
REGION, ACCOUNT = "us-east-1", "000000000000"
DAY_MS: Final = 86_400_000
TYPES: Final = ("created", "changed", "cancelled", "billed", "indexed", "rendered")
_STEMS: Final = (
    "orders",
    "invoices",
    "mail",
    "images",
    "search",
    "reports",
    "payments",
    "exports",
    "stock",
    "audit",
)
_AGENTS: Final = (
    "Boto3/1.44.0 Python/3.11",
    "veil-consumer/0.1.0",
    "aws-sdk-java/2.31.0",
    "aws-sdk-go-v2/1.36.0",
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class World:
    """What is true of each queue; the dead letters of queue q are queue q + QUEUES."""

    names: list[str]
    share: Floats  # of the messages
    fifo: Bools
    types: Ints  # how many types of message; 0: none is named
    visibility_ms: Ints
    median_ms: Floats  # of the processing time, before the factor of the type
    spread: Floats  # sigma of its logarithm
    slow_share: Floats  # of messages that take ten times as long: the second mode
    crash: Floats  # chance that a holder dies at work
    release: Floats  # chance that it gives up and says so
    renews: Bools
    receives_max: Ints
    retention_ms: Ints
    unread: Floats  # share that nobody ever asks for
    delayed: Floats  # share sent with a delay
    purge_every_ms: Ints  # 0: never
    caller_keys: list[str]
    caller_addresses: list[str]
    user_agents: list[str]

    @staticmethod
    def caller(queue: Ints, who: Ints | int) -> Ints:
        """The caller's place in the lists: 0 is the producer of the queue, 1 to CONSUMERS its consumers."""
        return queue % QUEUES * (CONSUMERS + 1) + who


def make_world(seed: int, hot: float = 0.0) -> World:
    """The same queues for the same seed; `hot` is the share of the messages that the first queue has, where it is not 0."""
    rng = np.random.default_rng([seed, 1])
    index = np.arange(QUEUES)
    fifo = index % 16 == 7
    stems = [f"{_STEMS[at % len(_STEMS)]}-{at:02d}" for at in index]
    names = [stem + ".fifo" * bool(is_fifo) for stem, is_fifo in zip(stems, fifo, strict=True)]
    dead = [f"{stem}-dead" + ".fifo" * bool(is_fifo) for stem, is_fifo in zip(stems, fifo, strict=True)]
    weight = 1.0 / (index + 1.0) ** 1.1
    if hot:
        weight[0] = weight[1:].sum() * hot / (1.0 - hot)
    visibility_ms = rng.choice([10_000, 30_000, 30_000, 30_000, 60_000, 120_000, 300_000], QUEUES)
    renews = index % 3 == 1
    # From a hundredth of the window to less than half of it: the timeouts are too long, right, or too short. With renewal
    # the work may take some windows.
    low, high = np.where(renews, 0.2, 0.01), np.where(renews, 3.0, 0.4)
    median_ms = visibility_ms * np.exp(rng.uniform(np.log(low), np.log(high)))
    brief = np.isin(index, (4, 21))  # telemetry: worthless after minutes
    who = range(CONSUMERS + 1)
    return World(
        names=names + dead,
        share=weight / weight.sum(),
        fifo=np.concatenate([fifo, fifo]),
        types=np.where(index % 5 == 2, 0, rng.integers(1, len(TYPES) + 1, QUEUES)),
        visibility_ms=visibility_ms.astype(np.int64),
        median_ms=median_ms,
        spread=rng.uniform(0.3, 0.9, QUEUES),
        slow_share=np.where(index % 4 == 2, 0.08, 0.0),
        crash=rng.uniform(0.01, 0.03, QUEUES),
        release=rng.uniform(0.005, 0.02, QUEUES),
        renews=renews,
        receives_max=rng.integers(3, 6, QUEUES),
        retention_ms=np.where(brief, 600_000, 4 * DAY_MS),
        unread=np.where(brief, 0.03, 0.0002),
        delayed=np.where(index % 7 == 3, 0.3, 0.0),
        purge_every_ms=np.where(index == 12, 3_600_000, 0),
        caller_keys=[f"key-{stem}-{'send' if one == 0 else 'work'}" for stem in stems for one in who],
        caller_addresses=[f"10.0.{at}.{10 + one}" for at in index for one in who],
        user_agents=[_AGENTS[(at + (one == 0)) % len(_AGENTS)] for at in index for one in who],
    )
