"""Looking for messages costs a bounded number of rows, however long the queue is."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.console.web import Visitor
from veil.console.messages import Search, read_search, search_messages
from veil.console.pages.queue_messages import LeaseName, LeaseOver, leased_message, open_leases
from veil.console.web import read_query
from veil.core.clock import ManualClock
from veil.core.message_rules import Draft
from veil.core.queue import Queue, QueueKey
from veil.service.messages import send
from veil.service.queues import create_queue
from veil.service.receive import receive
from veil.service.service import Service
from veil.service.time_slices import TimeSlice, TimeSlices
from veil.stores.memory import MemoryStore
from veil.testing import VeilServer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def service(clock: ManualClock) -> AsyncIterator[Service]:
    service = Service(MemoryStore(clock), clock)
    await service.start()
    yield service
    await service.stop()


@pytest.fixture
async def queue(service: Service) -> Queue:
    """A queue of a thousand messages, the last of which says `needle`."""
    queue = await create_queue(service, QueueKey("us-east-1", "000000000000", "orders"), {}, {})
    bodies = [f"hay {number}" for number in range(999)] + ["needle"]
    await send(service, queue, [Draft(body) for body in bodies], sender="")
    return queue


async def test_a_look_stops_at_its_bound_and_goes_on_from_there(service: Service, queue: Queue):
    search = Search(text="needle")
    found, rounds = [], 0
    while True:
        looked = await search_messages(service, queue, search, TimeSlice(TimeSlices()), rows_max=300)
        assert looked.rows <= 300
        found += looked.messages
        rounds += 1
        if looked.behind is None:
            break
        search = search._replace(after=looked.behind)
    assert ([message.body for message in found], rounds) == (["needle"], 4)


async def test_pages_neither_repeat_nor_leave_out_a_message(service: Service, queue: Queue):
    for search in (Search(), Search(text="hay")):
        bodies: list[str] = []
        while True:
            looked = await search_messages(service, queue, search, TimeSlice(TimeSlices()), page_rows=70)
            bodies += [message.body for message in looked.messages]
            if looked.behind is None:
                break
            search = search._replace(after=looked.behind)
        assert bodies[:999] == [f"hay {number}" for number in range(999)]


async def test_what_is_newer_is_found_without_going_through_what_is_older(
    service: Service, queue: Queue, clock: ManualClock
):
    clock.advance(3_600_000)
    await send(service, queue, [Draft("fresh")], sender="")
    looked = await search_messages(service, queue, Search(newer="5m"), TimeSlice(TimeSlices()))
    assert [message.body for message in looked.messages] == ["fresh"] and looked.rows == 1


async def test_open_leases_are_found_without_looking_further_than_the_last(service: Service, queue: Queue):
    nothing = await open_leases(service, queue, 0, TimeSlice(TimeSlices()))
    assert (nothing.messages, nothing.rows) == ([], 0)
    await receive(service, queue, count=3, visibility_s=None, wait_s=0)
    looked = await open_leases(service, queue, 0, TimeSlice(TimeSlices()))
    assert [message.body for message in looked.messages] == ["hay 0", "hay 1", "hay 2"]
    assert looked.rows <= 500 and looked.behind is None


async def test_a_lease_is_known_by_its_delivery_until_it_lapses(
    service: Service, queue: Queue, clock: ManualClock
):
    (message,) = await receive(service, queue, count=1, visibility_s=30, wait_s=0)
    name = LeaseName.read(f"{message.seq}:{message.delivery}")
    assert name is not None and (await leased_message(service, queue, name)).seq == message.seq
    clock.advance(31_000)
    with pytest.raises(LeaseOver):
        await leased_message(service, queue, name)


def test_an_address_with_nonsense_asks_for_nothing():
    search = read_search(read_query("after=-1&receives=x&state=gone&text=+"))
    assert search == Search() and not search.is_filtered


def test_messages_of_all_queues_are_found_by_prefix_text_and_attribute(server: VeilServer, sqs: Any) -> None:
    ids = {}
    for name in ("bills", "orders"):
        url = sqs.create_queue(QueueName=name)["QueueUrl"]
        attributes = {"kind": {"DataType": "String", "StringValue": name}}
        sent = sqs.send_message(QueueUrl=url, MessageBody=f"Hello {name} <b>", MessageAttributes=attributes)
        ids[name] = sent["MessageId"]
    sqs.create_queue(QueueName="empty")
    visitor = Visitor(server)

    def found(**query: str) -> set[str]:
        text = visitor.get(f"/console/messages?{urlencode(query)}").text
        assert "<b> <" not in text
        return {name for name, message_id in ids.items() if f"{message_id}</a>" in text}

    assert found(text="hello") == {"bills", "orders"}
    assert found(text="hello", queue="us-east-1/orders") == {"orders"}
    assert found(attribute="kind=bills") == {"bills"}
    assert found(id=ids["orders"][:8]) == {"orders"}
    assert found(state="in-flight") == set()
    assert found(text="nothing like it") == set()
    whole = visitor.get(f"/console/messages?id={ids['bills']}")
    assert whole.status == 303 and "/queues/us-east-1/bills/messages/" in whole.place


def test_a_search_over_all_queues_is_bounded_and_goes_on_where_it_was(server: VeilServer, sqs: Any) -> None:
    for name in ("first", "second", "third"):
        url = sqs.create_queue(QueueName=name)["QueueUrl"]
        for batch in range(3):
            entries = [{"Id": str(n), "MessageBody": f"{name} {batch * 10 + n}"} for n in range(10)]
            sqs.send_message_batch(QueueUrl=url, Entries=entries)
    visitor, address, seen = Visitor(server), "/console/messages?text=r", list[str]()
    pages = 0
    while address:
        text = visitor.get(address).text
        pages += 1
        seen += re.findall(r'<span class="preview">([^<]+)</span>', text)
        on = re.search(r'rel="next" href="([^"]+)"', text)
        address = f"/console/messages{html.unescape(on[1])}" if on else ""
    assert pages == 2
    assert seen == [f"{name} {n}" for name in ("first", "third") for n in range(30)]
