"""What a queue's settings become when a caller gives some of them: pure rules, one queue at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from veil.core.errors import QueueExists, SettingNotForQueueType, SettingRefused, SettingUnknown
from veil.core.policy import parse_policy
from veil.core.queue import Queue, QueueKey, QueueSettings, RedrivePolicy

_NAMES: Final = frozenset(field.name for field in fields(QueueSettings))
_FIFO_ONLY: Final = ("fifo", "content_deduplication", "deduplication_scope", "throughput_limit")
_REMOVED_BY_EMPTY_TEXT: Final = ("policy", "kms_key")
_ONE_ENCRYPTION: Final = (
    "You can use one type of server-side encryption (SSE) at one time. "
    + "You can either enable KMS SSE or SQS SSE."
)


def new_settings(given: Mapping[str, Any]) -> QueueSettings:
    """The settings of a new queue; raises a member of the Setting… family, or PolicyRefused."""
    return _applied(QueueSettings(fifo=bool(given.get("fifo", False))), given)


def changed_settings(present: QueueSettings, given: Mapping[str, Any]) -> QueueSettings:
    """The settings with what was given in place; raises as `new_settings`, also for another queue type."""
    if "fifo" in given and given["fifo"] != present.fifo:
        raise SettingRefused("fifo", given["fifo"], "Modifying queue type is not supported.")
    return _applied(present, given)


def compare_with_existing(queue: Queue, given: Mapping[str, Any], wanted: QueueSettings) -> None:
    """Raise QueueExists for the first setting given that differs; absent ones do not matter."""
    for setting in given:
        if getattr(queue.settings, setting) != getattr(wanted, setting):
            raise QueueExists(queue.name, setting)


def check_redrive_target(source: QueueKey, fifo: bool, redrive: RedrivePolicy, target: Queue | None) -> None:
    """Raise SettingRefused unless the queue may send its dead letters to the target."""
    arn = redrive.dead_letters.arn
    if redrive.dead_letters == source:
        raise SettingRefused("redrive", arn, "A queue cannot be its own dead-letter queue.")
    if redrive.dead_letters[:2] != source[:2]:
        raise SettingRefused(
            "redrive", arn, "Dead-letter queue must be in the same region and account as the source."
        )
    if target is None:
        raise SettingRefused("redrive", arn, "Dead letter target does not exist.")
    if target.settings.fifo != fifo:
        raise SettingRefused("redrive", arn, "Dead-letter queue must be same type of queue as the source.")
    allow = target.settings.redrive_allow
    if allow is not None and not allow.permits(source):
        raise SettingRefused(
            "redrive", arn, "The dead-letter queue's redrive allow policy does not permit this source queue."
        )


def _applied(present: QueueSettings, given: Mapping[str, Any]) -> QueueSettings:
    for setting in given:
        if setting not in _NAMES:
            raise SettingUnknown(setting)
        if setting in _FIFO_ONLY and not present.fifo:
            raise SettingNotForQueueType(setting)
    values = dict(given)
    for setting in _REMOVED_BY_EMPTY_TEXT:
        if values.get(setting) == "":
            values[setting] = None
    if values.get("policy") is not None:
        values["policy"] = parse_policy(values["policy"]).text
    # A key turns the managed encryption off, and taking the key away does not turn it on again.
    if values.get("kms_key", present.kms_key) is not None:
        if values.get("managed_sse"):
            raise SettingRefused("managed_sse", True, _ONE_ENCRYPTION)
        values["managed_sse"] = False
    return replace(present, **values)
