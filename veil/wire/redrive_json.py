"""The two redrive policies as JSON texts: read leniently, written in one normal form.

Terraform and its like compare what they wrote with what they read, so the form is fixed: no blanks, numbers as numbers.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, get_args

from veil.core.errors import ArnRefused, SettingRefused
from veil.core.limits import RECEIVES_MAX_MAX
from veil.core.queue import QueueKey, RedriveAllow, RedrivePermission, RedrivePolicy, parse_arn

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
        _refuse(setting, text, "redrivePermission must be one of allowAll, denyAll, byQueue.")
    sources = document.get("sourceQueueArns")
    if permission != "byQueue":
        if sources:
            _refuse(setting, text, "sourceQueueArns can only be given with redrivePermission byQueue.")
        return RedriveAllow(permission)
    if not isinstance(sources, list) or not sources:
        _refuse(setting, text, "sourceQueueArns is required with redrivePermission byQueue.")
    return RedriveAllow(
        "byQueue", tuple(_queue(setting, text, source, "sourceQueueArns") for source in sources)
    )


def print_redrive(policy: RedrivePolicy) -> str:
    """The normal form."""
    return _compact({"deadLetterTargetArn": policy.dead_letters.arn, "maxReceiveCount": policy.receives_max})


def print_redrive_allow(allow: RedriveAllow) -> str:
    """The normal form."""
    document: dict[str, Any] = {"redrivePermission": allow.permission}
    if allow.sources:
        document["sourceQueueArns"] = [source.arn for source in allow.sources]
    return _compact(document)


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
        return int(value) if value.isascii() and value.isdigit() and len(value) <= 9 else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _queue(setting: str, text: str, arn: Any, name: str) -> QueueKey:
    try:
        return parse_arn(arn if isinstance(arn, str) else "", name)
    except ArnRefused:
        _refuse(setting, text, f"{name} must be the ARN of a queue.")


def _refuse(setting: str, text: str, reason: str) -> NoReturn:
    raise SettingRefused(setting, text[:1024], reason)


def _compact(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))
