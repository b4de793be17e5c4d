"""Looking for messages costs a bounded number of rows, however long the queue is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from veil.console.messages import Search, read_search, search_messages
from veil.console.queue_views import LeaseName, LeaseOver, leased_message, open_leases
from veil.console.web import read_query
from veil.core.clock import ManualClock
from veil.core.message_rules import Draft
from veil.core.queue import Queue, QueueKey
from veil.service.messages import send
from veil.service.queues import create_queue
from veil.service.receive import receive
from veil.service.service import Service
from veil.service.turns import Turn, Turns
from veil.stores.memory import MemoryStore


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
        looked = await search_messages(service, queue, search, Turn(Turns()), rows_max=300)
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
            looked = await search_messages(service, queue, search, Turn(Turns()), page_rows=70)
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
    looked = await search_messages(service, queue, Search(newer="5m"), Turn(Turns()))
    assert [message.body for message in looked.messages] == ["fresh"] and looked.rows == 1


async def test_open_leases_are_found_without_looking_further_than_the_last(service: Service, queue: Queue):
    nothing = await open_leases(service, queue, 0, Turn(Turns()))
    assert (nothing.messages, nothing.rows) == ([], 0)
    await receive(service, queue, count=3, visibility_s=None, wait_s=0)
    looked = await open_leases(service, queue, 0, Turn(Turns()))
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
