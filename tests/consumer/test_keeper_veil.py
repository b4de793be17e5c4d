"""Keepers against a real server: what they believe of a lease is what the queue does."""

from __future__ import annotations

import asyncio
import functools

import pytest

from tests.waiting import until_async
from veil.client.client import SqsClient
from veil.consumer.lease import Lease
from veil.consumer.renewal import Heartbeat
from veil.consumer.renewal.keeper import Keeper, KeeperThread, steady_s
from veil.consumer.renewal.keeper_process import KeeperProcess
from veil.testing import VeilServer

# A window of a minute, renewed five times a second: the machine may stand still for most of it.
OFTEN = Heartbeat(timeout=60, threshold=59.5, interval=0.2)


@pytest.mark.parametrize("kind", [KeeperThread, KeeperProcess])
async def test_a_message_is_kept_for_as_long_as_it_is_held_and_no_longer(
    kind: type[KeeperThread | KeeperProcess], veil_server: VeilServer, monkeypatch: pytest.MonkeyPatch
):
    for name, value in veil_server.environ.items():
        monkeypatch.setenv(name, value)
    sqs = veil_server.client()
    url = sqs.create_queue(QueueName="films")["QueueUrl"]
    for body in ("kept", "let go", "deleted elsewhere"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    factory = functools.partial(SqsClient, endpoint=veil_server.endpoint_url, monotonic=steady_s)
    api = factory()
    keeper: Keeper = kind(factory, OFTEN)
    await keeper.start()
    received = {}
    while len(received) < 3:
        for raw in await api.receive(url, count=10, wait_s=1, visibility_s=60):
            received[raw.body] = lease = Lease(
                queue_url=url, message_id=raw.message_id, receipt=raw.receipt, token=raw.receive_count,
                received_at_s=raw.began_at_s, visibility_s=60, monotonic=steady_s,
            )  # fmt: skip
            keeper.hold(lease)
    kept, let_go, deleted = received["kept"], received["let go"], received["deleted elsewhere"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=deleted.receipt)
    await until_async(lambda: kept.extensions >= 2 and let_go.extensions >= 2 and deleted.lost)
    assert "the service says" in deleted.why
    await keeper.let_go(let_go)
    before = let_go.extensions, kept.extensions
    await until_async(lambda: kept.extensions >= before[1] + 3)
    assert let_go.extensions == before[0]
    assert not kept.lost
    await keeper.close()
    await api.close()
    await asyncio.sleep(0)
