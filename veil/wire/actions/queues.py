"""Create, find, change, list, purge and delete queues."""

from __future__ import annotations

from veil.core.errors import NameRefused
from veil.core.limits import PAGE_MAX
from veil.core.queue import Queue, QueueKey, check_name
from veil.service import queues as service
from veil.service.messages import purge
from veil.wire import shapes
from veil.wire.attributes import COUNTED, parse_attributes, print_attributes
from veil.wire.call import BULK_OFFER, Call, read_page_token, write_page_token
from veil.wire.request_errors import ParameterMissing, check_range, required

_PLAIN_NAME = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
_FIFO_NAME = (
    "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
    "must end with .fifo suffix and be 1 to 80 in length."
)


async def create_queue(call: Call, given: shapes.CreateQueueInput) -> shapes.QueueUrlOutput:
    account = call.owner()
    _check_named(given.QueueName)
    wants_fifo = (given.Attributes or {}).get("FifoQueue", "").lower() == "true"
    try:
        # Before the attributes: a bad name is the first thing that AWS complains about.
        check_name(given.QueueName, wants_fifo)
    except NameRefused:
        raise NameRefused(given.QueueName[:80], _FIFO_NAME if wants_fifo else _PLAIN_NAME) from None
    settings = parse_attributes(given.Attributes or {})
    queue = await service.create_queue(
        call.service,
        QueueKey(call.region, account, given.QueueName),
        settings,
        {**(given.Tags or {}), **(given.tags or {})},
    )
    return shapes.QueueUrlOutput(call.url(queue))


def _check_named(name: str) -> None:
    if not name:
        raise NameRefused("", "Value for parameter QueueName is invalid. Reason: Must specify a queue name.")


async def get_queue_url(call: Call, given: shapes.GetQueueUrlInput) -> shapes.QueueUrlOutput:
    _check_named(given.QueueName)
    account = given.QueueOwnerAWSAccountId or call.owner()
    call.headers += BULK_OFFER
    return shapes.QueueUrlOutput(
        call.url(await call.permitted(QueueKey(call.region, account, given.QueueName)))
    )


async def get_queue_attributes(call: Call, given: shapes.GetQueueAttributesInput) -> shapes.AttributesOutput:
    queue = await call.queue(given.QueueUrl)
    names = given.AttributeNames
    if not names:
        return shapes.AttributesOutput()
    is_counted = any(name == "All" or name in COUNTED for name in names)
    counted = await call.service.store.counts(queue) if is_counted else None
    return shapes.AttributesOutput(print_attributes(queue, counted, names) or None)


async def set_queue_attributes(call: Call, given: shapes.SetQueueAttributesInput) -> None:
    queue = await call.queue(given.QueueUrl)
    if given.Attributes is None:
        raise ParameterMissing("Attributes")
    if settings := parse_attributes(given.Attributes):
        await service.change_settings(call.service, queue, settings)


async def list_queues(call: Call, given: shapes.ListQueuesInput) -> shapes.ListQueuesOutput:
    account = call.owner()
    size, after = read_page(given.MaxResults, given.NextToken)
    found = await call.service.store.list_queues(
        call.region, account, prefix=given.QueueNamePrefix or "", after=after, limit=size + 1
    )
    urls, token = _page(call, found, size, paged=given.MaxResults is not None)
    return shapes.ListQueuesOutput(urls or None, token)


async def list_dead_letter_source_queues(
    call: Call, given: shapes.ListDeadLetterSourceQueuesInput
) -> shapes.ListDeadLetterSourceQueuesOutput:
    queue = await call.queue(given.QueueUrl)
    size, after = read_page(given.MaxResults, given.NextToken)
    found = await call.service.store.dead_letter_sources(queue.key, after=after, limit=size + 1)
    return shapes.ListDeadLetterSourceQueuesOutput(
        *_page(call, found, size, paged=given.MaxResults is not None)
    )


async def purge_queue(call: Call, given: shapes.OnQueue) -> None:
    await purge(call.service, await call.queue(given.QueueUrl), caller=call.caller)


async def delete_queue(call: Call, given: shapes.OnQueue) -> None:
    await service.delete_queue(call.service, await call.queue(given.QueueUrl), caller=call.caller)


def read_page(size: int | None, token: str | None) -> tuple[int, str]:
    """How many are wanted, and the name that they come after."""
    if size is None:
        size = PAGE_MAX
    else:
        check_range("MaxResults", size, 1, PAGE_MAX)
    return size, read_page_token(token) if token else ""


def _page(call: Call, found: list[Queue], size: int, *, paged: bool) -> tuple[list[str], str | None]:
    # One more was asked for than fits: whether it came decides about the token. Clients that do not page get none.
    token = write_page_token(found[size - 1].name) if paged and len(found) > size else None
    return [call.url(queue) for queue in found[:size]], token


# ---- tags and permissions


async def tag_queue(call: Call, given: shapes.TagQueueInput) -> None:
    queue = await call.queue(given.QueueUrl)
    await service.tag_queue(call.service, queue, required("Tags", given.Tags))


async def untag_queue(call: Call, given: shapes.UntagQueueInput) -> None:
    queue = await call.queue(given.QueueUrl)
    await service.untag_queue(call.service, queue, required("TagKeys", given.TagKeys))


async def list_queue_tags(call: Call, given: shapes.OnQueue) -> shapes.TagsOutput:
    queue = await call.queue(given.QueueUrl)
    return shapes.TagsOutput(dict(queue.tags) or None)


async def add_permission(call: Call, given: shapes.AddPermissionInput) -> None:
    queue = await call.queue(given.QueueUrl)
    label = required("Label", given.Label)
    accounts, actions = required("AWSAccountIds", given.AWSAccountIds), required("Actions", given.Actions)
    await service.add_permission(call.service, queue, label, accounts, actions)


async def remove_permission(call: Call, given: shapes.RemovePermissionInput) -> None:
    queue = await call.queue(given.QueueUrl)
    await service.remove_permission(call.service, queue, required("Label", given.Label))
