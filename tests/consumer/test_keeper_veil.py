"""Keepers against a real server: what they believe of a lease is what the queue does."""

from __future__ import annotations

import asyncio
import functools
import time

import pytest

from veil.client.client import SqsClient
from veil.consumer.lease import Lease
from veil.consumer.renewal import Adaptive
from veil.consumer.renewal.keeper import Keeper, steady_s
from veil.consumer.renewal.keeper_process import KeeperProcess
from veil.consumer.renewal.keeper_thread import KeeperThread
from veil.testing import VeilServer

SHORT = {"visibility": 1, "window_min": 1, "window_max": 1}


@pytest.mark.parametrize("kind", [KeeperThread, KeeperProcess])
@pytest.mark.punctual(lease_s=1)
async def test_a_message_is_kept_for_as_long_as_it_is_held_and_not_a_window_longer(
    kind: type[KeeperThread | KeeperProcess], veil_server: VeilServer, monkeypatch: pytest.MonkeyPatch
):
    for name, value in veil_server.environ.items():
        monkeypatch.setenv(name, value)
    sqs = veil_server.client()
    url = sqs.create_queue(QueueName="films")["QueueUrl"]
    for body in ("kept", "deleted elsewhere"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    factory = functools.partial(SqsClient, endpoint=veil_server.endpoint_url, monotonic=steady_s)
    api = factory()
    keeper: Keeper = kind(factory, Adaptive(**SHORT))
    await keeper.start()
    received = {}
    while len(received) < 2:
        for raw in await api.receive(url, count=10, wait_s=1, visibility_s=1):
            received[raw.body] = lease = Lease(
                queue_url=url, message_id=raw.message_id, receipt=raw.receipt, token=raw.receive_count,
                received_at_s=raw.asked_at_s, visibility_s=1, monotonic=steady_s,
            )  # fmt: skip
            keeper.hold(lease)
    kept, deleted = received["kept"], received["deleted elsewhere"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=deleted.receipt)
    # A plain pause: that nothing happens for two windows is what is to be seen.
    assert await api.receive(url, count=10, wait_s=2) == []
    assert kept.extensions >= 2 and not kept.lost
    assert deleted.lost and "the service says" in deleted.why
    await keeper.let_go(kept)
    began_s = time.monotonic()
    (again,) = await api.receive(url, count=10, wait_s=5)
    assert again.body == "kept" and time.monotonic() - began_s < 2
    await keeper.close()
    await api.close()
    await asyncio.sleep(0)
