"""A queue's settings as SMQ writes them, on the way in and on the way out."""

from __future__ import annotations

import re
from typing import Any, Final
from xml.etree.ElementTree import Element

from veil.core import limits
from veil.core.errors import NameRefused
from veil.core.queue import Queue, QueueCounts
from veil.wire.smq.numbers import read_number
from veil.wire.smq.refusals import ArgumentRefused, NameTooLong, XmlMalformed
from veil.wire.smq.xml_in import local_name, texts
from veil.wire.smq.xml_out import element

MESSAGE_BYTES_MAX: Final = 65_536  # what SMQ lets a queue be set to, and gives it if nothing is said
RETENTION_MAX_S: Final = 604_800
# SMQ would take 120, but every queue can be reached by SQS's clients too.
NAME_CHARS_MAX: Final = 80
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*\Z")

# Element, setting, and the range that SMQ gives it.
_NUMBERS: Final = (
    ("VisibilityTimeout", "visibility_s", 1, limits.VISIBILITY_MAX_S),
    ("MaximumMessageSize", "message_bytes_max", limits.MESSAGE_SIZE_MIN, MESSAGE_BYTES_MAX),
    ("MessageRetentionPeriod", "retention_s", limits.RETENTION_MIN_S, RETENTION_MAX_S),
    ("DelaySeconds", "delay_s", 0, limits.DELAY_LONGEST_S),
    ("PollingWaitSeconds", "wait_s", 0, limits.WAIT_LONGEST_S),
)


def check_new_name(name: str) -> None:
    """Raise NameTooLong or NameRefused unless a new queue may have the name."""
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        raise NameTooLong(name, NAME_CHARS_MAX)
    if not _NAME.match(name):
        raise NameRefused(name, "letters, digits and hyphens, a letter or a digit first")


def read_settings(root: Element) -> dict[str, Any]:
    """The settings that were given, typed and in SMQ's range; elements that SMQ does not know are passed over."""
    if local_name(root) != "Queue":
        raise XmlMalformed("the root element must be Queue")
    given = texts(root)
    settings: dict[str, Any] = {
        setting: read_number(name, given[name], low, high)
        for name, setting, low, high in _NUMBERS
        if name in given
    }
    if "LoggingEnabled" in given:
        logging = given["LoggingEnabled"].strip().lower()
        if logging not in ("true", "false"):
            raise ArgumentRefused("LoggingEnabled", given["LoggingEnabled"], "True or False")
        settings["logging"] = logging == "true"
    return settings


def print_queue(queue: Queue, counts: QueueCounts) -> str:
    """The twelve elements of a queue; SDKs miss each one that is not there."""
    settings = queue.settings
    numbers = "".join(element(name, getattr(settings, setting)) for name, setting, _, _ in _NUMBERS)
    return (
        element("QueueName", queue.name)
        + element("CreateTime", queue.created_wall_ms // 1000)
        + element("LastModifyTime", queue.modified_wall_ms // 1000)
        + numbers
        + element("LoggingEnabled", "True" if settings.logging else "False")
        + element("ActiveMessages", counts.visible)
        + element("InactiveMessages", counts.in_flight)
        + element("DelayMessages", counts.delayed)
    )
