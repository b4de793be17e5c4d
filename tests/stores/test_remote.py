"""The link between a worker and the store process: what the conformance suite does not come to."""

from __future__ import annotations

import asyncio
import inspect
import socket
import struct
from typing import Any

import apsw
import msgspec
import pytest
import uvloop

from tests.stores.kit import a_key, make_queue
from tests.stores.sqlite_kit import open_store
from veil.core.errors import StoreFull
from veil.core.event import NOBODY
from veil.core.queue import QueueKey, QueueSettings
from veil.server.attendant import STORE_PROCESS, Attendant, SharedStore
from veil.service.service import ReceiveRequest, Service
from veil.stores.remote import Link, RemoteStore, methods_of
from veil.stores.store import QueueContent, Store
from veil.wire.exchange import AnswerCounts

_MIB = 1 << 20


class _Bulk:
    """Takes large things and gives large things."""

    async def fetch(self, size: int) -> bytes:
        return bytes(size)

    async def put(self, given: bytes) -> int:
        return len(given)


async def _linked(methods: Any, handler: object, find_queue: Any = None) -> tuple[Link, Link]:
    """A worker's end and the store process's end of one link."""
    ours, theirs = socket.socketpair()
    connect = asyncio.get_running_loop().create_connection
    _, served = await connect(
        lambda: Link((), methods, handler, find_queue=find_queue, is_owner=True), sock=theirs
    )
    _, asking = await connect(lambda: Link(methods, (), None), sock=ours)
    return asking, served


async def test_large_sends_and_large_receives_at_once_do_not_wait_for_each_other_for_ever():
    asking, served = await _linked(methods_of(_Bulk), _Bulk())
    answers = [asking.ask("fetch", 8 * _MIB) for _ in range(8)]
    answers += [asking.ask("put", bytes(_MIB)) for _ in range(64)]
    async with asyncio.timeout(60):
        assert sum(isinstance(each, int) for each in await asyncio.gather(*answers)) == 64
    asking.close()
    served.close()


class _Words:
    """Hears a word, and then that nobody will say another."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def word(self, number: int) -> None:
        self.heard.append(number)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_the_other_end_said_before_it_died_is_heard_before_its_death(loop: Any):
    async def story() -> None:
        words, methods, (ours, theirs) = _Words(), methods_of(_Words), socket.socketpair()
        connect = asyncio.get_running_loop().create_connection
        gone = asyncio.Event()

        def lost() -> None:
            words.heard.append("lost")
            gone.set()

        _, served = await connect(
            lambda: Link(methods, methods, words, is_owner=True, on_lost=lost), sock=theirs
        )
        said = msgspec.msgpack.encode([7])
        ours.sendall(struct.pack("<IIH", len(said), 0, methods[0].kind) + said)
        ours.close()
        served.tell("word", 1)  # written before that is read, and to nobody
        served.flush()
        async with asyncio.timeout(60):
            await gone.wait()
        assert words.heard == [7, "lost"]

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(story())


async def test_a_poll_that_is_given_up_with_the_call_that_began_it_waits_no_more(tmp_path, clock):
    async with open_store(tmp_path, clock) as store:
        queue, service = await make_queue(store), Service(SharedStore(store), clock)
        attendant = Attendant(service, None, None, AnswerCounts())
        methods = [each for each in STORE_PROCESS if each.name in ("long_poll", "end_poll")]
        asking, served = await _linked(methods, attendant, store.find_queue)
        poll = asking.ask("long_poll", queue, 1, ReceiveRequest(1, None, 20, None, NOBODY))
        asking.tell("end_poll", 1)  # in the same write
        async with asyncio.timeout(60):
            assert await poll == []
        asking.close()
        served.close()


async def test_workers_forget_a_change_that_was_seen_and_came_to_nothing(tmp_path, clock, monkeypatch):
    forgotten: list[QueueKey] = []

    async def forget(key: QueueKey) -> None:
        forgotten.append(key)

    async with open_store(tmp_path, clock) as store:
        queue, made = await make_queue(store), a_key("made")
        shared = SharedStore(store)
        shared.forget = forget

        def no_room() -> None:
            raise apsw.FullError("no room")

        monkeypatch.setattr(store._db, "before_commit", no_room)
        longer = QueueSettings(visibility_s=99)
        changes = [
            asyncio.ensure_future(shared.edit_queue(queue, lambda it: it._replace(settings=longer))),
            asyncio.ensure_future(shared.create_queue(made, QueueContent(longer, {}), rest_ms=0)),
        ]
        await asyncio.sleep(0)
        # A worker that asks now is told of what is not on disk yet.
        assert (await shared.find_queue(queue.key)).settings == longer
        assert await shared.find_queue(made) is not None
        told = await asyncio.gather(*changes, return_exceptions=True)
        assert [type(each) for each in told] == [StoreFull, StoreFull]
        assert (await shared.find_queue(queue.key), await shared.find_queue(made)) == (queue, None)
        assert forgotten == [queue.key, made]
        monkeypatch.undo()


def test_operations_that_are_written_out_have_the_signatures_of_the_contract():
    for name in ("send", "receive", "delete", "extend"):
        ours, contract = (inspect.signature(getattr(each, name)).parameters for each in (RemoteStore, Store))
        assert [(name, each.default, each.kind) for name, each in ours.items()] == [
            (name, each.default, each.kind) for name, each in contract.items()
        ]


async def test_an_end_that_is_closed_after_the_other_has_gone_closes_no_file_of_anybody_else():
    methods, (ours, theirs) = methods_of(_Words), socket.socketpair()
    connect = asyncio.get_running_loop().create_connection
    gone = asyncio.Event()
    _, served = await connect(
        lambda: Link(methods, methods, _Words(), is_owner=True, on_lost=gone.set), sock=theirs
    )
    ours.close()
    await asyncio.wait_for(gone.wait(), 60)
    one, other = socket.socketpair()  # they get the numbers that are free again
    served.close()
    one.send(b"x")
    assert other.recv(1) == b"x"
    one.close()
    other.close()
