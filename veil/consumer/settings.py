"""The settings of a consumer, checked together before it starts."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, cast

from veil.consumer.outcomes import Outcome
from veil.consumer.renewal.policies import Adaptive, RenewalPolicy
from veil.core.limits import VISIBILITY_MAX_S

Seconds = float | timedelta

CONCURRENCY_MAX: Final = 10_000
PREFETCH_MAX: Final = 1_000


class SettingsError(ValueError):
    """A setting has a value with which the consumer cannot work."""

    def __init__(self, setting: str, value: object, expected: str) -> None:
        super().__init__(f"{setting}={value!r}: expected {expected}")
        self.setting, self.value, self.expected = setting, value, expected


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerSettings:
    """Every setting of a consumer, already valid. Lengths of time are seconds, or a timedelta, and kept as seconds."""

    queue: str
    concurrency: int = 10
    visibility: Seconds | None = None  # None: the queue's own
    renewal: RenewalPolicy = field(default_factory=Adaptive)
    on_poison: Outcome | None = None  # None: to the dead letters if the queue has any, else left to expire
    prefetch: int | None = None  # None: by how long handlers take
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    helper_process: bool = False
    # Kubernetes and ECS kill after 30 seconds: what is not done by then must have been given back.
    drain_timeout: Seconds = 25.0
    message_type_attribute: str = "type"
    health_port: int | None = None
    health_host: str = "127.0.0.1"
    worker: str | None = None  # what the console calls it, beside its host and its process
    error_texts: bool = True  # False: of an error only its class is reported
    # Where attempts are recorded, for a service that keeps no journal: a directory, s3://… or hdfs://…
    journal: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        _whole("concurrency", self.concurrency, 1, CONCURRENCY_MAX)
        if self.prefetch is not None:
            _whole("prefetch", self.prefetch, 0, PREFETCH_MAX)
        if self.health_port is not None:
            _whole("health_port", self.health_port, 0, 65_535)
        if self.visibility is not None:
            seconds = _seconds("visibility", self.visibility, 1, VISIBILITY_MAX_S)
            if seconds != int(seconds):
                raise SettingsError("visibility", self.visibility, "whole seconds")
            object.__setattr__(self, "visibility", int(seconds))
        object.__setattr__(self, "drain_timeout", _seconds("drain_timeout", self.drain_timeout, 0, math.inf))
        for settings, kind, expected in (
            ("endpoint region profile health_host worker", str | None, "text"),
            ("helper_process error_texts", bool, "True or False"),
        ):
            for setting in settings.split():
                if not isinstance(getattr(self, setting), kind):
                    raise SettingsError(setting, getattr(self, setting), expected)
        is_policy = callable(getattr(self.renewal, "due_s", None)) and not isinstance(self.renewal, type)
        is_outcome = self.on_poison is None or isinstance(self.on_poison, Outcome)
        has_type = isinstance(self.message_type_attribute, str) and self.message_type_attribute
        for setting, holds, expected in (
            ("queue", isinstance(self.queue, str) and self.queue, "the name, the URL or the ARN of a queue"),
            ("renewal", is_policy, "a renewal policy: Adaptive(), Buffered(), Heartbeat() or NoRenewal()"),
            ("on_poison", is_outcome, "an outcome, such as DeadLetter() or LetExpire()"),
            ("message_type_attribute", has_type, "the name of a message attribute"),
            (
                "journal",
                isinstance(self.journal, str | os.PathLike | None),
                "a directory, s3://… or hdfs://…",
            ),
        ):
            if not holds:
                raise SettingsError(setting, getattr(self, setting), expected)
        own_s = self.renewal.receive_visibility_s
        if self.visibility is not None and own_s is not None and own_s != self.visibility:
            raise SettingsError(
                "visibility", self.visibility, f"the {own_s} s that renewal={self.renewal!r} asks for"
            )

    @property
    def visibility_s(self) -> int | None:
        return cast("int | None", self.visibility)

    @property
    def drain_timeout_s(self) -> float:
        return cast(float, self.drain_timeout)

    @property
    def name(self) -> str:
        """The queue's name, also where a URL or an ARN was given."""
        return self.queue.rsplit("/", 1)[-1].rsplit(":", 1)[-1]


def _seconds(setting: str, value: object, low: float, high: float) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    expected = (
        f"seconds or a timedelta, {low:g} s or more" if math.isinf(high) else f"{low:g} to {high:g} seconds"
    )
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not low <= seconds <= high:
        raise SettingsError(setting, value, expected)
    return float(seconds)


def _whole(setting: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise SettingsError(setting, value, f"a whole number from {low} to {high}")
