"""A queue's settings between a form and the service: texts in fields, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from veil.console.changes import Difference
from veil.console.forms import Form
from veil.console.setting_fields import KMS_REUSE, NUMBERS, RECEIVES_MAX, NumberField, setting_texts
from veil.core.errors import PolicyRefused, SettingNotForQueueType, SettingRefused, TagsRefused, VeilError
from veil.core.limits import ALLOWED_SOURCES_MAX
from veil.core.queue import (
    DeduplicationScope,
    QueueKey,
    QueueSettings,
    RedriveAllow,
    RedrivePermission,
    RedrivePolicy,
    ThroughputLimit,
    check_name,
)
from veil.service.queues import changed_settings, check_redrive_target
from veil.service.service import Service

# Where a refusal of the service is shown: the field that has to be mended.
_FIELD_OF_SETTING: Final[Mapping[str, str]] = {"redrive": "dead_letters", "redrive_allow": "allow_sources"}
_KEY_CHARS_MAX: Final = 2_048


def form_values(settings: QueueSettings) -> dict[str, str]:
    """The texts that stand in the fields for these settings."""
    redrive, allow = settings.redrive, settings.redrive_allow
    return {
        **{field.setting: str(getattr(settings, field.setting)) for field in (*NUMBERS, KMS_REUSE)},
        "content_deduplication": _yes(settings.content_deduplication),
        "deduplication_scope": settings.deduplication_scope,
        "throughput_limit": settings.throughput_limit,
        "dead_letters": "" if redrive is None else redrive.dead_letters.name,
        "receives_max": "" if redrive is None else str(redrive.receives_max),
        "allow_permission": "" if allow is None else allow.permission,
        "allow_sources": "" if allow is None else "\n".join(source.name for source in allow.sources),
        "managed_sse": _yes(settings.managed_sse),
        "kms_key": settings.kms_key or "",
        "policy": settings.policy or "",
    }


class FormReader:
    """Reads the fields of one form; what is wrong is kept for the fields it stands in."""

    def __init__(self, form: Form, key: QueueKey, present: QueueSettings) -> None:
        self._form, self._key, self._present = form, key, present
        self.problems: dict[str, str] = {}

    def read(self) -> dict[str, Any]:
        """The settings that differ from the present ones; a field that is not there stays as it is."""
        given: dict[str, Any] = {}
        for field in (*NUMBERS, KMS_REUSE):
            self._put(given, field.setting, self._number(field, str(getattr(self._present, field.setting))))
        self._put(
            given, "managed_sse", self._choice("managed_sse", ("yes", "no"), lambda text: text == "yes")
        )
        self._put(given, "kms_key", self._kms_key())
        if self._present.fifo:
            self._put(
                given,
                "content_deduplication",
                self._choice("content_deduplication", ("yes", "no"), lambda text: text == "yes"),
            )
            self._put(
                given,
                "deduplication_scope",
                self._choice("deduplication_scope", get_args(DeduplicationScope)),
            )
            self._put(given, "throughput_limit", self._choice("throughput_limit", get_args(ThroughputLimit)))
        if self._form.checked("dead_letters"):
            self._put(given, "redrive", self._redrive())
        if self._form.checked("allow_permission"):
            self._put(given, "redrive_allow", self._redrive_allow())
        if self._form.checked("policy"):
            self._put(given, "policy", self._form.raw("policy").strip() or None)
        return given

    def _put(self, given: dict[str, Any], setting: str, value: Any) -> None:
        if value is not _UNREAD and value != getattr(self._present, setting):
            given[setting] = value

    def _number(self, field: NumberField, present: str) -> Any:
        text = self._form.text(field.setting, present)
        # What other clients set beyond SQS's limits stays as long as nobody touches it.
        return _UNREAD if text == present else self._read(field, text)

    def _read(self, field: NumberField, text: str) -> Any:
        try:
            return field.read(text)
        except ValueError as problem:
            self.problems[field.setting] = str(problem)
            return _UNREAD

    def _choice(self, name: str, choices: tuple[str, ...], meaning: Any = str) -> Any:
        if not self._form.checked(name):
            return _UNREAD
        text = self._form.text(name)
        if text in choices:
            return meaning(text)
        self.problems[name] = f"{text[:40]!r}: expected one of {', '.join(choices)}"
        return _UNREAD

    def _kms_key(self) -> Any:
        text = self._form.text("kms_key", self._present.kms_key or "")
        if len(text) > _KEY_CHARS_MAX:
            self.problems["kms_key"] = f"{len(text):,} characters: expected at most {_KEY_CHARS_MAX:,}"
            return _UNREAD
        return text or None

    def _redrive(self) -> Any:
        name = self._form.text("dead_letters")
        if not name:
            return None
        key = self._named("dead_letters", name)
        receives_max = self._read(RECEIVES_MAX, self._form.text("receives_max"))
        return _UNREAD if key is None or receives_max is _UNREAD else RedrivePolicy(key, receives_max)

    def _redrive_allow(self) -> Any:
        permission: Any = self._form.text("allow_permission")
        names = self._form.text("allow_sources").split(None, ALLOWED_SOURCES_MAX)
        if not permission:
            return None
        if permission not in get_args(RedrivePermission):
            self.problems["allow_permission"] = f"{permission[:40]!r}: expected allowAll, denyAll or byQueue"
            return _UNREAD
        if permission != "byQueue":
            return RedriveAllow(permission)
        if not names:
            self.problems["allow_sources"] = "expected the names of the queues, one on a line"
            return _UNREAD
        if len(names) > ALLOWED_SOURCES_MAX:
            self.problems["allow_sources"] = f"expected at most {ALLOWED_SOURCES_MAX} names"
            return _UNREAD
        keys = [self._named("allow_sources", name) for name in names]
        return _UNREAD if None in keys else RedriveAllow("byQueue", tuple(key for key in keys if key))

    def _named(self, field: str, name: str) -> QueueKey | None:
        try:
            check_name(name, fifo=name.endswith(".fifo"))
        except VeilError as refusal:
            self.problems[field] = str(refusal)
            return None
        return QueueKey(self._key.region, self._key.account, name)


_UNREAD: Final = object()


async def settings_after(
    service: Service, key: QueueKey, present: QueueSettings, given: Mapping[str, Any]
) -> QueueSettings:
    """What the settings would be; raises what the service would refuse, before anything is changed."""
    wanted = changed_settings(present, given)
    if given.get("redrive") is not None:
        # SQS takes it, and so does the API: nothing ever moves then. Who chooses it here has made a mistake.
        if given["redrive"].dead_letters == key:
            raise SettingRefused("redrive", key.arn, "A queue cannot be its own dead-letter queue.")
        target = await service.store.find_queue(given["redrive"].dead_letters)
        check_redrive_target(key, wanted.fifo, given["redrive"], target)
    return wanted


def problem_at(refusal: VeilError) -> dict[str, str]:
    """The refusal beside the field that it is about, in the service's own words."""
    if isinstance(refusal, SettingRefused):
        field = _FIELD_OF_SETTING.get(refusal.setting, refusal.setting)
        return {field: f"{str(refusal.value)[:200]}: {refusal.expected}"}
    if isinstance(refusal, SettingNotForQueueType):
        return {refusal.setting: str(refusal)}
    if isinstance(refusal, PolicyRefused):
        return {"policy": str(refusal)}
    if isinstance(refusal, TagsRefused):
        return {"tags": str(refusal)}
    return {"": str(refusal)}


def differences_between(before: QueueSettings | None, after: QueueSettings) -> list[Difference]:
    """Each setting that will be another, by its label; of a new queue, each that has a value."""
    then = setting_texts(after)
    now = setting_texts(before) if before is not None else dict.fromkeys(then, "")
    return [Difference(label, now[label], text) for label, text in then.items() if now[label] != text]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
