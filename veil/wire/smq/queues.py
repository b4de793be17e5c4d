"""SMQ's operations on queues."""

from __future__ import annotations

from typing import Final

from veil.core.queue import Queue
from veil.service.queues import (
    change_settings,
    compare_with_existing,
    counts,
    create_queue,
    delete_queue,
    list_queues,
    new_settings,
)
from veil.wire.page_tokens import read_page_token, write_page_token
from veil.wire.request_errors import ParameterRefused
from veil.wire.smq.answer import Reply
from veil.wire.smq.call import SmqCall
from veil.wire.smq.numbers import read_number
from veil.wire.smq.queue_forms import MESSAGE_BYTES_MAX, check_new_name, print_queue, read_settings
from veil.wire.smq.refusals import ArgumentRefused
from veil.wire.smq.xml_in import local_name, texts
from veil.wire.smq.xml_out import document, element

PAGE_MAX: Final = 1_000


async def create(call: SmqCall) -> Reply:
    """CreateQueue: 201 for a new queue, 204 for one that has every setting given already."""
    given = read_settings(await call.document()) if call.request.body else {}
    queue = await call.service.store.find_queue(call.key)
    if queue is not None:
        compare_with_existing(queue, given, new_settings(given))
        return Reply(204, b"", ("Location", call.url(queue)))
    check_new_name(call.route.queue)
    # What is not said is SMQ's default, where it is another than SQS's.
    queue = await create_queue(call.service, call.key, {"message_bytes_max": MESSAGE_BYTES_MAX, **given}, {})
    return Reply(201, b"", ("Location", call.url(queue)))


async def set_attributes(call: SmqCall) -> Reply:
    """SetQueueAttributes: what is not given stays as it is."""
    queue = await call.queue()
    given = read_settings(await call.document()) if call.request.body else {}
    if given:
        await change_settings(call.service, queue, given)
    return Reply(204)


async def get_attributes(call: SmqCall) -> Reply:
    """GetQueueAttributes."""
    queue = await call.queue()
    return Reply(200, document("Queue", print_queue(queue, await counts(call.service, queue))))


async def delete(call: SmqCall) -> Reply:
    """DeleteQueue."""
    await delete_queue(call.service, await call.queue(), caller=call.caller)
    return Reply(204)


async def list_page(call: SmqCall) -> Reply:
    """ListQueue: by name, a page at a time; the last page has no marker."""
    headers = call.request.headers
    size = read_number("x-mns-ret-number", headers.get("x-mns-ret-number") or str(PAGE_MAX), 1, PAGE_MAX)
    marker = headers.get("x-mns-marker", "")
    try:
        after = read_page_token(marker) if marker else ""
    except ParameterRefused:
        raise ArgumentRefused("x-mns-marker", marker, "the NextMarker of an earlier page") from None
    found = await list_queues(
        call.service,
        call.region,
        call.account,
        prefix=headers.get("x-mns-prefix", ""),
        after=after,
        limit=size + 1,
    )
    with_meta = headers.get("x-mns-with-meta", "").lower() == "true"
    listed = "".join([await _listed(call, queue, with_meta) for queue in found[:size]])
    if len(found) > size:
        listed += element("NextMarker", write_page_token(found[size - 1].name))
    return Reply(200, document("Queues", listed))


async def _listed(call: SmqCall, queue: Queue, with_meta: bool) -> str:
    meta = print_queue(queue, await counts(call.service, queue)) if with_meta else ""
    return f"<Queue>{element('QueueURL', call.url(queue))}{meta}</Queue>"


async def get_account(call: SmqCall) -> Reply:
    """GetAccountAttributes: there is nothing to log to."""
    return Reply(200, document("Account", "<LoggingBucket></LoggingBucket>"))


async def set_account(call: SmqCall) -> Reply:
    """SetAccountAttributes: only the empty bucket can be had."""
    root = await call.document() if call.request.body else None
    bucket = (
        texts(root).get("LoggingBucket", "") if root is not None and local_name(root) == "Account" else ""
    )
    if bucket.strip():
        raise ArgumentRefused("LoggingBucket", bucket, "nothing: Veil writes no logs to a bucket")
    return Reply(204)
