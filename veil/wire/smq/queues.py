"""SMQ's operations on queues."""

from __future__ import annotations

import re
from typing import Any, Final
from xml.etree.ElementTree import Element

from veil.core import limits
from veil.core.errors import NameRefused
from veil.core.queue import Queue, QueueCounts
from veil.service import queues as service
from veil.service.history import queue_depths
from veil.wire.call import read_page_token, write_page_token
from veil.wire.exchange import Response
from veil.wire.request_errors import ParameterRefused
from veil.wire.smq.call import SmqCall, read_number
from veil.wire.smq.codes import ArgumentRefused, SmqRefused, XmlMalformed
from veil.wire.smq.xml import answer, children, document, element, local_name, texts

# ---- queue settings

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
    """Raise SmqRefused or NameRefused unless a new queue may have the name."""
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        lengths = f"The queue name has {len(name)} characters: expected 1 to {NAME_CHARS_MAX}."
        raise SmqRefused("QueueNameLengthError", lengths)
    if not _NAME.match(name):
        raise NameRefused(name, "letters, digits and hyphens, a letter or a digit first")


def read_settings(root: Element) -> dict[str, Any]:
    """The settings that were given, typed and in SMQ's range; elements that SMQ does not know are passed over."""
    if local_name(root) != "Queue":
        raise XmlMalformed("the root element must be Queue")
    given = {name: each.text or "" for name, each in children(root).items()}
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


PAGE_MAX: Final = 1_000


async def create(call: SmqCall) -> Response:
    """CreateQueue: 201 for a new queue, 204 for one that has every setting given already."""
    given = read_settings(await call.document()) if call.request.body else {}
    queue = await call.service.store.find_queue(call.key)
    if queue is not None:
        service.compare_with_existing(queue, given, service.new_settings(given))
        return answer(204, b"", ("Location", call.url(queue)))
    check_new_name(call.route.queue)
    # What is not said is SMQ's default, where it is another than SQS's.
    queue = await service.create_queue(
        call.service, call.key, {"message_bytes_max": MESSAGE_BYTES_MAX, **given}, {}
    )
    return answer(201, b"", ("Location", call.url(queue)))


async def set_attributes(call: SmqCall) -> Response:
    """SetQueueAttributes: what is not given stays as it is."""
    queue = await call.named_queue()
    given = read_settings(await call.document()) if call.request.body else {}
    if given:
        await service.change_settings(call.service, queue, given)
    return answer(204)


async def get_attributes(call: SmqCall) -> Response:
    queue = await call.named_queue()
    return answer(200, document("Queue", print_queue(queue, await call.service.store.counts(queue))))


async def delete(call: SmqCall) -> Response:
    await service.delete_queue(call.service, await call.named_queue(), caller=call.caller)
    return answer(204)


async def list_page(call: SmqCall) -> Response:
    """ListQueue: by name, a page at a time; the last page has no marker."""
    headers = call.request.headers
    size = read_number("x-mns-ret-number", headers.get("x-mns-ret-number") or str(PAGE_MAX), 1, PAGE_MAX)
    marker = headers.get("x-mns-marker", "")
    try:
        after = read_page_token(marker) if marker else ""
    except ParameterRefused:
        raise ArgumentRefused("x-mns-marker", marker, "the NextMarker of an earlier page") from None
    prefix = headers.get("x-mns-prefix", "")
    found = await call.service.store.list_queues(
        call.region, call.owner(), prefix=prefix, after=after, limit=size + 1
    )
    page = found[:size]
    listed = {queue.id: element("QueueURL", call.url(queue)) for queue in page}
    if headers.get("x-mns-with-meta", "").lower() == "true":
        depths = await queue_depths(call.service, page, with_oldest=False)
        listed = {
            queue.id: listed[queue.id] + print_queue(queue, depths[queue.id].counts)
            for queue in page
            if queue.id in depths  # otherwise it was deleted meanwhile
        }
    content = "".join([f"<Queue>{each}</Queue>" for each in listed.values()])
    if len(found) > size:
        content += element("NextMarker", write_page_token(page[-1].name))
    return answer(200, document("Queues", content))


async def get_account(call: SmqCall) -> Response:
    """GetAccountAttributes: there is nothing to log to."""
    return answer(200, document("Account", "<LoggingBucket></LoggingBucket>"))


async def set_account(call: SmqCall) -> Response:
    """SetAccountAttributes: only the empty bucket can be had."""
    root = await call.document() if call.request.body else None
    bucket = (
        texts(root).get("LoggingBucket", "") if root is not None and local_name(root) == "Account" else ""
    )
    if bucket.strip():
        raise ArgumentRefused("LoggingBucket", bucket, "nothing: Veil writes no logs to a bucket")
    return answer(204)
