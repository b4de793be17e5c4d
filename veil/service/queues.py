"""Create, find, change, list and delete queues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from veil.core import errors
from veil.core.event import NOBODY
from veil.core.message import Caller
from veil.core.policy import add_permission as policy_with_permission
from veil.core.policy import parse_policy
from veil.core.policy import remove_permission as policy_without_permission
from veil.core.queue import (
    FIFO_ONLY,
    Queue,
    QueueKey,
    QueueSettings,
    RedrivePolicy,
    check_name,
    check_tag_keys,
    check_tags,
)
from veil.service.service import Service
from veil.stores.store import QueueContent

_log = logging.getLogger(__name__)


# ---- settings

_NAMES: Final = frozenset(field.name for field in fields(QueueSettings)) - {"paused"}
_REMOVED_BY_EMPTY_TEXT: Final = ("policy", "kms_key")


def new_settings(given: Mapping[str, Any]) -> QueueSettings:
    """The settings of a new queue; raises a member of the Setting… family, or PolicyRefused."""
    return _applied(QueueSettings(fifo=bool(given.get("fifo", False))), given)


def changed_settings(present: QueueSettings, given: Mapping[str, Any]) -> QueueSettings:
    """The settings with what was given in place; raises as `new_settings`, also for another queue type."""
    # A standard queue does not know the setting at all, whatever its value.
    if present.fifo and not given.get("fifo", True):
        raise errors.SettingRefused("fifo", given["fifo"], "Modifying queue type is not supported.")
    return _applied(present, given)


def compare_with_existing(queue: Queue, given: Mapping[str, Any], wanted: QueueSettings) -> None:
    """Raise QueueExists for the first setting given that differs; absent ones do not matter."""
    for setting in given:
        if getattr(queue.settings, setting) != getattr(wanted, setting):
            raise errors.QueueExists(queue.name, setting)


def check_redrive_target(source: QueueKey, fifo: bool, redrive: RedrivePolicy, target: Queue | None) -> None:
    """Raise SettingRefused unless the queue may send its dead letters to the target."""
    arn = redrive.dead_letters.arn
    if redrive.dead_letters[:2] != source[:2]:
        raise errors.SettingRefused(
            "redrive", arn, "Dead-letter queue must be in the same region and account as the source."
        )
    if target is None:
        raise errors.SettingRefused("redrive", arn, "Dead letter target does not exist.")
    if target.settings.fifo != fifo:
        raise errors.SettingRefused(
            "redrive", arn, "Dead-letter queue must be same type of queue as the source."
        )
    allow = target.settings.redrive_allow
    if allow is not None and not allow.permits(source):
        raise errors.SettingRefused(
            "redrive", arn, "The dead-letter queue's redrive allow policy does not permit this source queue."
        )


def _applied(present: QueueSettings, given: Mapping[str, Any]) -> QueueSettings:
    for setting in given:
        if setting not in _NAMES:
            raise errors.SettingUnknown(setting)
        if setting in FIFO_ONLY and not present.fifo:
            raise errors.SettingNotForQueueType(setting)
    values = dict(given)
    for setting in _REMOVED_BY_EMPTY_TEXT:
        if values.get(setting) == "":
            values[setting] = None
    if values.get("policy") is not None:
        values["policy"] = parse_policy(values["policy"]).text
    # A key turns the managed encryption off, and taking the key away does not turn it on again.
    if values.get("kms_key", present.kms_key) is not None:
        if values.get("managed_sse"):
            raise errors.EncryptionTwice("managed_sse", True, "expected one kind of server-side encryption")
        values["managed_sse"] = False
    return replace(present, **values)


async def find_queue(service: Service, key: QueueKey) -> Queue:
    """The queue of that key; raises QueueMissing."""
    queue = await service.store.find_queue(key)
    if queue is None:
        raise errors.QueueMissing(key.name)
    return queue


async def create_queue(
    service: Service, key: QueueKey, given: Mapping[str, Any], tags: Mapping[str, str]
) -> Queue:
    """The queue of that key, new or as it stood, with every setting given (QueueSettings' names and types).

    Raises NameRefused, SettingUnknown, SettingNotForQueueType, SettingRefused, PolicyRefused, TagsRefused,
    QueueDeletedRecently, and QueueExists where the one that stood has another value for a setting that was
    given.
    """
    check_name(key.name, fifo=bool(given.get("fifo", False)))
    settings = new_settings(given)
    check_tags(key.name, {}, tags)
    queue = await service.store.find_queue(key)
    if queue is None:
        await _check_redrive(service, key, settings)
        # Somebody else may create it in between: the store then answers with theirs, which is compared like
        # any other.
        queue = await service.store.create_queue(
            key, QueueContent(settings, dict(tags)), rest_ms=service.rules.rest_after_delete_ms
        )
    compare_with_existing(queue, given, settings)
    return queue


async def ensure_queue(
    service: Service, key: QueueKey, given: Mapping[str, Any], tags: Mapping[str, str]
) -> None:
    """Create the queue where it is missing; what differs, or cannot be created now, is a warning that names it.

    An existing queue is never changed: an old file on one machine could undo what an operator set an hour ago. Nor is the
    difference an error, which would turn something harmless into an outage.
    """
    existing = await service.store.find_queue(key)
    if existing is None:
        try:
            await create_queue(service, key, given, tags)
            _log.info("created queue %s", key.name)
        except errors.VeilError as refusal:
            _log.warning("could not create the declared queue %s: %s", key.name, refusal)
        return
    for setting, wanted in given.items():
        found = getattr(existing.settings, setting)
        if found != wanted:
            text = "queue %s exists with %s=%s and is declared with %s; it was not changed"
            _log.warning(text, key.name, setting, _shown(found), _shown(wanted))


def _shown(value: object) -> str:
    if isinstance(value, RedrivePolicy):
        return f"{value.dead_letters.name} after {value.receives_max} receives"
    return str(value)


async def change_settings(service: Service, queue: Queue, given: Mapping[str, Any]) -> Queue:
    """The queue with the settings given, the others as they stand; raises as `create_queue` for settings."""
    wanted = changed_settings(queue.settings, given)
    if "redrive" in given:
        await _check_redrive(service, queue.key, wanted)
    return await service.store.edit_queue(
        queue, lambda content: content._replace(settings=changed_settings(content.settings, given))
    )


async def set_paused(service: Service, queue: Queue, paused: bool, *, caller: Caller = NOBODY) -> Queue:
    """While it is paused a receive gets nothing, and long polls wait; leases that are open stay, and sends go on. Once it is
    not, receivers that wait get what is visible at once."""
    edited = await service.store.edit_queue(
        queue, lambda content: content._replace(settings=replace(content.settings, paused=paused))
    )
    word = "paused" if paused else "resumed"
    _log.info("queue %s was %s by %s at %s", queue.name, word, caller.key_id or "nobody", caller.peer)
    return edited


async def delete_queue(service: Service, queue: Queue, *, caller: Caller = NOBODY) -> None:
    """Remove the queue and everything in it; receivers that wait there get QueueMissing."""
    await service.store.delete_queue(queue, caller=caller)
    service.waiting.queue_deleted(queue)
    service.tallies.forget(queue.id)
    if service.activity is not None:
        service.activity.forget(queue.id)


async def tag_queue(service: Service, queue: Queue, tags: Mapping[str, str]) -> Queue:
    """Add the tags, over those of the same key; raises TagsRefused."""

    def edit(content: QueueContent) -> QueueContent:
        check_tags(queue.name, content.tags, tags)
        return content._replace(tags={**content.tags, **tags})

    return await service.store.edit_queue(queue, edit)


async def untag_queue(service: Service, queue: Queue, keys: Iterable[str]) -> Queue:
    """Remove the tags of those keys, as far as there are any; raises TagsRefused for what cannot be a key."""
    unwanted = frozenset(keys)
    check_tag_keys(unwanted)

    def edit(content: QueueContent) -> QueueContent:
        return content._replace(
            tags={key: value for key, value in content.tags.items() if key not in unwanted}
        )

    return await service.store.edit_queue(queue, edit)


async def add_permission(
    service: Service, queue: Queue, label: str, account_ids: Sequence[str], actions: Sequence[str]
) -> Queue:
    """Add a statement of that label to the policy; raises PolicyRefused."""

    return await _edit_policy(
        service,
        queue,
        lambda policy: policy_with_permission(policy, queue.key.arn, label, account_ids, actions),
    )


async def remove_permission(service: Service, queue: Queue, label: str) -> Queue:
    """Remove the statement of that label, and with the last one the policy; raises PolicyRefused."""
    return await _edit_policy(service, queue, lambda policy: policy_without_permission(policy, label))


async def _check_redrive(service: Service, source: QueueKey, settings: QueueSettings) -> None:
    if settings.redrive is not None:
        target = await service.store.find_queue(settings.redrive.dead_letters)
        check_redrive_target(source, settings.fifo, settings.redrive, target)


async def _edit_policy(service: Service, queue: Queue, edit: Callable[[str | None], str | None]) -> Queue:
    return await service.store.edit_queue(
        queue,
        lambda content: content._replace(
            settings=replace(content.settings, policy=edit(content.settings.policy))
        ),
    )
