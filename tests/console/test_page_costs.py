"""No page reads without a bound in bytes, and none keeps the event loop from everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.console.page_costs import BODIES, MIB, Asked, Crowded, Watch
from veil.console import web as routes
from veil.console.messages import show_body, show_preview
from veil.service.time_slices import SLICE_S, TimeSlice, TimeSlices

# Ten milliseconds are usual, half a second was: what lies between is the machine's.
LONGEST_MS = 100
# The most that a page looks through where one asks for the most, and a little over.
READ_MAX = 2 * 66 * MIB


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowded]:
    crowded = Crowded(tmp_path_factory.mktemp("crowded"), scale=0.1)
    crowded.fill()
    yield crowded
    crowded.close()


def test_every_page_lets_others_go_on(crowded: Crowded):
    costs = {}
    for name, asked in crowded.requests().items():
        cost = crowded.ask(asked)
        if cost.longest_ms > LONGEST_MS:  # a collection of garbage may fall into one of them
            cost = min(cost, crowded.ask(asked), key=lambda each: each.longest_ms)
        costs[name] = cost
    assert {name: cost.longest_ms for name, cost in costs.items() if cost.longest_ms > LONGEST_MS} == {}
    assert {name: cost.status for name, cost in costs.items() if cost.status >= 500} == {}
    assert {name: cost.bytes_read for name, cost in costs.items() if cost.bytes_read > READ_MAX} == {}


def test_every_route_that_shows_something_is_measured(crowded: Crowded):
    asked = list(crowded.requests().values())
    found = {
        routes.find_route(each.method, each.path.removeprefix(routes.ROOT)) is not None for each in asked
    }
    assert found == {True, False}  # one of them is no page
    measured = {
        tuple(match[0].parts)
        for each in asked
        if (match := routes.find_route(each.method, each.path.removeprefix(routes.ROOT))) is not None
    }
    shown = {route.parts for route in routes._routes if route.method != "POST"}
    assert shown - measured == set()


def test_a_look_at_large_messages_ends_by_bytes(crowded: Crowded):
    """The queue of dead letters has more than a look may read, all in few rows."""
    for name in ("heavy", "heavy-attributes"):
        crowded.fill_heavily(name, 24 * MIB)
        whole = crowded.ask(crowded.get(f"/dead-letters/us-east-1/{name}?text=zzz&rows=50000"))
        usual = crowded.ask(crowded.get(f"/dead-letters/us-east-1/{name}?text=zzz"))
        search = crowded.ask(crowded.get(f"/queues/us-east-1/{name}/messages?text=zzz"))
        page = crowded.ask(crowded.get(f"/queues/us-east-1/{name}/messages"))
        assert 24 * MIB < whole.bytes_read < 2 * 26 * MIB
        assert usual.bytes_read < 2 * 18 * MIB
        assert search.bytes_read < 18 * MIB
        assert page.bytes_read < 7 * MIB  # a page of 4, read a little over one at a time


async def test_of_many_pages_one_works_with_each_pass_of_the_loop():
    time_slices = TimeSlices()

    async def work() -> None:
        time_slice = TimeSlice(time_slices)
        for _ in range(5):
            time_slice._since_s -= SLICE_S  # has worked for a slice
            await time_slice.yield_if_spent()
            passes.append(count)

    passes: list[int] = []
    count = 0
    pages = [asyncio.create_task(work()) for _ in range(10)]
    pages[3].cancel()
    while not all(page.done() for page in pages):
        count += 1
        await asyncio.sleep(0)
    assert len(passes) == 45 and len(set(passes)) == 45


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_laid_out_no_further_than_it_is_shown(name: str):
    body = BODIES[name]()
    shown = show_body(body, 4_000)
    assert len(shown.text) <= 4_000 and len(show_preview(body)) <= 200
    assert shown.is_cut == (name != "none")


def test_the_watch_sees_what_keeps_the_loop():
    """The measure itself: a loop that is kept for half a second is seen."""
    watch = Watch()

    async def keep() -> None:
        await asyncio.sleep(0)
        sum(range(10_000_000))

    with watch.on():
        asyncio.run(keep())
    assert watch.longest_s > 0.03


def test_a_form_of_a_stranger_is_refused_unread(crowded: Crowded):
    assert crowded.ask(Asked("POST", "/console/login", body=b"%41" * 1_000)).status == 403
