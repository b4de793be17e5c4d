"""Queue attributes as AWS writes them, and the settings they stand for: parsed on the way in, printed in one normal form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn, get_args

from veil.core.errors import ArnRefused, SettingRefused, SettingUnknown
from veil.core.limits import DELAY_MAX_S, RECEIVES_MAX_MAX, WAIT_MAX_S
from veil.core.queue import (
    FIFO_ONLY,
    Queue,
    QueueCounts,
    QueueKey,
    QueueSettings,
    RedriveAllow,
    RedrivePermission,
    RedrivePolicy,
    parse_arn,
)
from veil.core.text import whole_number

# ---- redrive policies
#
# Terraform and its like compare what they wrote with what they read, so the form is fixed: no blanks, numbers as numbers.

_CHARS_MAX = 8_192


def parse_redrive(setting: str, text: str) -> RedrivePolicy | None:
    """The policy in the text, None for an empty text, which removes it; raises SettingRefused."""
    if not text.strip():
        return None
    document = _document(setting, text, "Redrive policy")
    for name in ("deadLetterTargetArn", "maxReceiveCount"):
        if document.get(name) in (None, ""):
            _refuse(setting, text, f"Redrive policy does not contain mandatory attribute: {name}.")
    for name in document:
        if name not in ("deadLetterTargetArn", "maxReceiveCount"):
            _refuse(setting, text, f"Redrive policy contains an unknown attribute: {name[:256]}.")
    count = document["maxReceiveCount"]
    receives_max = _small_whole(count)
    if receives_max is None or not 1 <= receives_max <= RECEIVES_MAX_MAX:
        _refuse(
            setting,
            text,
            f"Invalid value for maxReceiveCount: {str(count)[:256]}, "
            f"valid values are from 1 to {RECEIVES_MAX_MAX} both inclusive.",
        )
    return RedrivePolicy(
        _queue(setting, text, document["deadLetterTargetArn"], "deadLetterTargetArn"), receives_max
    )


def parse_redrive_allow(setting: str, text: str) -> RedriveAllow | None:
    """The policy in the text, None for an empty text, which removes it; raises SettingRefused."""
    if not text.strip():
        return None
    document = _document(setting, text, "Redrive allow policy")
    permission: Any = document.get("redrivePermission")
    if permission not in get_args(RedrivePermission):
        _refuse(setting, text, "must have a redrivePermission: allowAll, denyAll or byQueue")
    sources = document.get("sourceQueueArns")
    if permission != "byQueue":
        if sources:
            _refuse(setting, text, "may have sourceQueueArns only with the redrivePermission byQueue")
        return RedriveAllow(permission)
    if not isinstance(sources, list) or not sources:
        _refuse(setting, text, "must have sourceQueueArns with the redrivePermission byQueue")
    return RedriveAllow(
        "byQueue", tuple(_queue(setting, text, source, "sourceQueueArns") for source in sources)
    )


def _document(setting: str, text: str, what: str) -> dict[str, Any]:
    if len(text) > _CHARS_MAX:
        _refuse(setting, text, f"{what} is longer than {_CHARS_MAX} characters.")
    try:
        document = json.loads(text)
        json.dumps(document, ensure_ascii=False).encode()  # `\ud800` alone is JSON, and no text
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        _refuse(setting, text, f"{what} is not a valid JSON map.")
    return document


def _small_whole(value: Any) -> int | None:
    if isinstance(value, str):
        return whole_number(value, 9)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _queue(setting: str, text: str, arn: Any, name: str) -> QueueKey:
    try:
        return parse_arn(arn if isinstance(arn, str) else "", name)
    except ArnRefused:
        _refuse(setting, text, f"must have the ARN of a queue as {name}")


def _refuse(setting: str, text: str, reason: str) -> NoReturn:
    raise SettingRefused(setting, text[:1024], reason)


def _compact(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))


_INTEGER: Final = re.compile(r"-?[0-9]{1,10}\Z")


def _whole(setting: str, text: str) -> int:
    if not _INTEGER.match(text):
        raise SettingRefused(setting, text[:1024], "must be an integer")
    return int(text)


def _truth(setting: str, text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise SettingRefused(setting, text[:1024], "must be true or false")
    return lowered == "true"


def _one_of(*choices: str) -> Callable[[str, str], str]:
    def choose(setting: str, text: str) -> str:
        if text not in choices:
            raise SettingRefused(setting, text[:1024], f"must be one of {', '.join(choices)}")
        return text

    return choose


def _policy(setting: str, text: str) -> str | None:
    return text if text.strip() else None  # read and brought to its normal form where it is stored


def _key_id(setting: str, text: str) -> str | None:
    if len(text) > 2_048:
        raise SettingRefused(setting, text[:1024], "must be the id, alias or ARN of a key")
    return text or None


# AWS's name of each setting, in the order in which GetQueueAttributes lists them; the setting, and how its text is read.
_ATTRIBUTES: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    "VisibilityTimeout": ("visibility_s", _whole),
    "DelaySeconds": ("delay_s", _whole),
    "MaximumMessageSize": ("message_bytes_max", _whole),
    "MessageRetentionPeriod": ("retention_s", _whole),
    "ReceiveMessageWaitTimeSeconds": ("wait_s", _whole),
    "Policy": ("policy", _policy),
    "RedrivePolicy": ("redrive", parse_redrive),
    "RedriveAllowPolicy": ("redrive_allow", parse_redrive_allow),
    "SqsManagedSseEnabled": ("managed_sse", _truth),
    "KmsMasterKeyId": ("kms_key", _key_id),
    "KmsDataKeyReusePeriodSeconds": ("kms_reuse_s", _whole),
    "FifoQueue": ("fifo", _truth),  # false belongs to no kind of queue: one leaves it out
    "ContentBasedDeduplication": ("content_deduplication", _truth),
    "DeduplicationScope": ("deduplication_scope", _one_of("queue", "messageGroup")),
    "FifoThroughputLimit": ("throughput_limit", _one_of("perQueue", "perMessageGroupId")),
}
ATTRIBUTE_OF_SETTING: Final[Mapping[str, str]] = {setting: name for name, (setting, _) in _ATTRIBUTES.items()}
_HIGHEST: Final[Mapping[str, int]] = {"delay_s": DELAY_MAX_S, "wait_s": WAIT_MAX_S}


def parse_attributes(attributes: Mapping[str, str]) -> dict[str, Any]:
    """The settings that were given, typed; ranges are left to QueueSettings. Raises the refusals of settings."""
    given: dict[str, Any] = {}
    for name, text in attributes.items():
        if name not in _ATTRIBUTES:
            raise SettingUnknown(name[:1024])
        setting, read = _ATTRIBUTES[name]
        given[setting] = read(setting, text)
        # Queues can do more for the clients of other protocols.
        high = _HIGHEST.get(setting)
        if high is not None and given[setting] > high:
            raise SettingRefused(setting, given[setting], f"must be between 0 and {high}")
    return given


def print_settings(settings: QueueSettings) -> dict[str, str]:
    """Every attribute that the settings give a value; what is not set is absent, as are FIFO's on a standard queue."""
    printed: dict[str, str] = {}
    for name, (setting, _) in _ATTRIBUTES.items():
        if setting in FIFO_ONLY and not settings.fifo:
            continue
        value = getattr(settings, setting)
        if value is None or (setting == "kms_reuse_s" and value == 300 and settings.kms_key is None):
            continue
        printed[name] = print_setting(value)
    return printed


def changed_attributes(before: QueueSettings, after: QueueSettings) -> dict[str, str]:
    """The attributes that turn the one into the other; an empty text takes a setting away."""
    changed: dict[str, str] = {}
    for name, (setting, _) in _ATTRIBUTES.items():
        value = getattr(after, setting)
        if value != getattr(before, setting):
            changed[name] = "" if value is None else print_setting(value)
    return changed


# What a queue can be asked for beyond its settings.
COUNTED: Final[Mapping[str, str]] = {
    "ApproximateNumberOfMessages": "visible",
    "ApproximateNumberOfMessagesNotVisible": "in_flight",
    "ApproximateNumberOfMessagesDelayed": "delayed",
}
_READ_ONLY: Final = ("QueueArn", "CreatedTimestamp", "LastModifiedTimestamp")


def print_attributes(queue: Queue, counts: QueueCounts | None, names: Iterable[str]) -> dict[str, str]:
    """The attributes asked for that have a value; raises SettingUnknown for a name that is no attribute."""
    every = print_settings(queue.settings)
    if counts is not None:
        every |= {name: str(getattr(counts, field)) for name, field in COUNTED.items()}
    every["QueueArn"] = queue.key.arn
    every["CreatedTimestamp"] = str(queue.created_wall_ms // 1000)
    every["LastModifiedTimestamp"] = str(queue.modified_wall_ms // 1000)
    chosen: dict[str, str] = {}
    for name in dict.fromkeys(names):
        if name == "All":
            chosen.update(every)
        elif name in every:
            chosen[name] = every[name]
        elif name not in _ATTRIBUTES and name not in COUNTED and name not in _READ_ONLY:
            raise SettingUnknown(name[:1024])
    return chosen


def print_setting(value: Any) -> str:
    """A setting's value as SQS writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, RedrivePolicy):
        return _compact(
            {"deadLetterTargetArn": value.dead_letters.arn, "maxReceiveCount": value.receives_max}
        )
    if isinstance(value, RedriveAllow):
        sources = {"sourceQueueArns": [source.arn for source in value.sources]} if value.sources else {}
        return _compact({"redrivePermission": value.permission, **sources})
    return str(value)
