"""The client from PyPI, unmodified, over a socket to a real server; and an SQS client on the same queues beside it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mns.account import Account
from mns.message_property import MessagePropertyValue, MessageSystemPropertyValue
from mns.mns_exception import MNSServerException
from mns.mns_request import ListQueueRequest, ListQueueResponse
from mns.queue import Message, Queue, QueueMeta
from mns.topic import TopicMeta

from veil.testing import VeilServer

# The client deprecates its own counts of messages, and reads them all the same.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated function:DeprecationWarning")

KEYS = "ak:sk,other:sk2:111122223333"
_names = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VeilServer]:
    data: Path = tmp_path_factory.mktemp("smq") / "data"
    with VeilServer("--data", str(data), "--smq-port", "0", environ={"VEIL_KEYS": KEYS}) as server:
        yield server


@pytest.fixture
def account(server: VeilServer) -> Iterator[Account]:
    account = Account(server.smq_endpoint_url, "ak", "sk", debug=True)
    yield account
    account.mns_client.close_connection()


@pytest.fixture
def queue(account: Account) -> Queue:
    queue = account.get_queue(f"q-{next(_names)}")
    queue.create(QueueMeta())
    return queue


@pytest.fixture
def sqs(server: VeilServer) -> Any:
    return server.client(aws_access_key_id="ak", aws_secret_access_key="sk")


def refused(call: Any, *arguments: Any) -> str:
    with pytest.raises(MNSServerException) as refusal:
        call(*arguments)
    assert refusal.value.req_id
    return str(refusal.value.type)


# ---- queues


def test_a_queue_is_created_told_changed_and_deleted(account: Account) -> None:
    queue = account.get_queue("life")
    meta = QueueMeta(vis_timeout=100, max_msg_size=10_240, msg_ttl=3_600, delay_sec=10, polling_wait_sec=20)
    meta.set_logging_enabled(True)
    assert queue.create(meta).endswith("/queues/life")
    assert queue.create(meta).endswith("/queues/life")
    told = queue.get_attributes()
    assert (told.visibility_timeout, told.maximum_message_size, told.message_retention_period) == (
        100,
        10_240,
        3_600,
    )
    assert (told.delay_seconds, told.polling_wait_seconds, told.logging_enabled) == (10, 20, True)
    assert told.create_time > 1_600_000_000

    queue.set_attributes(QueueMeta(vis_timeout=5, delay_sec=604_800, polling_wait_sec=30))
    told = queue.get_attributes()
    assert (told.visibility_timeout, told.delay_seconds, told.polling_wait_seconds) == (5, 604_800, 30)
    assert refused(queue.create, QueueMeta(vis_timeout=6)) == "QueueAlreadyExist"

    queue.delete()
    assert refused(queue.get_attributes) == "QueueNotExist"
    assert refused(queue.send_message, Message("x")) == "QueueNotExist"


def test_queues_are_listed_in_pages(account: Account) -> None:
    for number in range(5):
        account.get_queue(f"page-{number}").create(QueueMeta())
    seen: list[str] = []
    marker = ""
    while True:
        urls, marker = account.list_queue("page-", 2, marker)
        seen += [url.rpartition("/")[2] for url in urls]
        if not marker:
            break
    assert seen == [f"page-{number}" for number in range(5)]
    assert account.list_queue("nothing-like-it") == ([], "")


def test_a_listing_brings_the_settings_along_if_asked(account: Account) -> None:
    account.get_queue("meta-1").create(QueueMeta(vis_timeout=17))
    answer = ListQueueResponse()
    account.mns_client.list_queue(ListQueueRequest("meta-", -1, "", True), answer)
    (meta,) = answer.queuemeta_list
    assert (meta["QueueName"], meta["VisibilityTimeout"], meta["ActiveMessages"]) == ("meta-1", "17", "0")


def test_the_account_tells_that_nothing_is_logged(account: Account) -> None:
    assert account.get_attributes().logging_bucket == ""


def test_topics_are_not_served_and_the_client_is_told_so(account: Account) -> None:
    assert refused(account.get_topic("t").create, TopicMeta()) == "TopicNotExist"


# ---- messages


def test_a_message_lives_its_life(queue: Queue) -> None:
    sent = queue.send_message(Message("grün"))
    got = queue.receive_message()
    assert (got.message_body, got.message_id) == ("grün".encode(), sent.message_id)
    assert got.message_body_md5 == sent.message_body_md5
    assert (got.dequeue_count, got.priority) == (1, 8)
    # Two clocks are read for it, one after the other.
    assert abs(got.next_visible_time - got.first_dequeue_time - 30_000) <= 5
    queue.delete_message(got.receipt_handle)
    assert refused(queue.receive_message) == "MessageNotExist"
    assert refused(queue.delete_message, got.receipt_handle) == "MessageNotExist"
    assert refused(queue.delete_message, "nonsense") == "ReceiptHandleError"


@pytest.mark.parametrize("body", ["plain", "grün & <rot>", 'quo"te', "many\nlines", "\N{SNOWMAN}" * 100])
def test_a_body_that_is_not_encoded_comes_back_as_it_went(queue: Queue, body: str) -> None:
    queue.set_encoding(False)
    queue.send_message(Message(body))
    assert queue.receive_message().message_body == body


def test_batches_of_sixteen_are_sent_received_and_deleted(queue: Queue) -> None:
    sent = queue.batch_send_message([Message(f"m{number}") for number in range(16)])
    assert len({message.message_id for message in sent}) == 16
    got = queue.batch_receive_message(16)
    assert [message.message_body for message in got] == [f"m{number}".encode() for number in range(16)]
    queue.batch_delete_message([message.receipt_handle for message in got])
    assert refused(queue.batch_receive_message, 16) == "MessageNotExist"


def test_a_batch_that_fails_in_part_is_one_exception_with_every_entry(queue: Queue) -> None:
    with pytest.raises(MNSServerException) as refusal:
        queue.batch_send_message([Message("good"), Message("bad", priority=99)])
    good, bad = refusal.value.sub_errors
    assert (set(good), bad["ErrorCode"]) == ({"MessageId", "MessageBodyMD5"}, "InvalidArgument")

    handle = queue.receive_message().receipt_handle
    with pytest.raises(MNSServerException) as refusal:
        queue.batch_delete_message([handle, "nonsense"])
    assert [error["ReceiptHandle"] for error in refusal.value.sub_errors] == ["nonsense"]
    assert queue.get_attributes().inactive_messages == 0


def test_a_change_of_visibility_gives_the_handle_to_go_on_with(queue: Queue) -> None:
    queue.send_message(Message("x"))
    got = queue.receive_message()
    changed = queue.change_message_visibility(got.receipt_handle, 43_200)
    assert int(changed.next_visible_time) - got.next_visible_time > 43_000_000
    assert refused(queue.delete_message, got.receipt_handle) == "MessageNotExist"
    released = queue.change_message_visibility(changed.receipt_handle, 0)
    assert refused(queue.delete_message, released.receipt_handle) == "MessageNotExist"
    assert queue.receive_message().dequeue_count == 2


def test_priorities_decide_and_peeks_change_nothing(queue: Queue) -> None:
    for body, priority in (("last", 16), ("middle", -1), ("first", 1)):
        queue.send_message(Message(body, priority=priority))
    peeked = queue.peek_message()
    assert (peeked.message_body, peeked.dequeue_count, peeked.priority) == (b"first", 0, 1)
    assert peeked.first_dequeue_time == peeked.enqueue_time
    assert [message.message_body for message in queue.batch_peek_message(16)] == [
        b"first",
        b"middle",
        b"last",
    ]
    assert [queue.receive_message().message_body for _ in range(3)] == [b"first", b"middle", b"last"]
    assert refused(queue.peek_message) == "MessageNotExist"


def test_a_delayed_message_can_be_taken_back(queue: Queue) -> None:
    kept = queue.send_message(Message("waits", delay_seconds=604_800))
    assert queue.get_attributes().delay_messages == 1
    assert refused(queue.receive_message) == "MessageNotExist"
    queue.delete_message(kept.receipt_handle)
    assert queue.get_attributes().delay_messages == 0


def test_properties_travel_with_the_message(queue: Queue) -> None:
    message = Message("x")
    message.set_user_properties(
        {
            "text": MessagePropertyValue.create_string("grün & <rot>"),
            "number": MessagePropertyValue.create_number(7.5),
            "truth": MessagePropertyValue.create_boolean(True),
            "bytes": MessagePropertyValue.create_binary(b"\x00\xff"),
        }
    )
    message.add_system_property("traceparent", MessageSystemPropertyValue.create_string("00-1-2-01"))
    queue.send_message(message)
    for got in (queue.peek_message(), queue.batch_peek_message(1)[0], queue.receive_message()):
        told = {
            name: (value.get_data_type(), value.get_raw_value())
            for name, value in got.user_properties.items()
        }
        assert told == {
            "text": ("STRING", "grün & <rot>"),
            "number": ("NUMBER", "7.5"),
            "truth": ("BOOLEAN", "true"),
            "bytes": ("BINARY", b"\x00\xff"),
        }
        assert got.system_properties["traceparent"].get_raw_value() == "00-1-2-01"


def test_a_long_poll_is_answered_by_the_next_message(queue: Queue, server: VeilServer, sqs: Any) -> None:
    got: list[Any] = []
    own = Account(server.smq_endpoint_url, "ak", "sk")
    poll = threading.Thread(target=lambda: got.append(own.get_queue(queue.queue_name).receive_message(30)))
    poll.start()
    url = sqs.get_queue_url(QueueName=queue.queue_name)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="d29rZW4=")
    poll.join(25)
    assert got[0].message_body == b"woken"
    own.mns_client.close_connection()


def test_an_empty_long_poll_ends_with_an_error_too(queue: Queue) -> None:
    assert refused(queue.receive_message, 1) == "MessageNotExist"


# ---- keys


@pytest.mark.parametrize(
    ("key", "secret", "expected"),
    [("ak", "wrong", "SignatureDoesNotMatch"), ("nobody", "sk", "InvalidAccessKeyId")],
)
def test_the_server_looks_at_the_signature(server: VeilServer, key: str, secret: str, expected: str) -> None:
    stranger = Account(server.smq_endpoint_url, key, secret)
    assert refused(stranger.get_queue("q-1").get_attributes) == expected
    stranger.mns_client.close_connection()


def test_each_account_has_its_own_queues(server: VeilServer, queue: Queue) -> None:
    other = Account(server.smq_endpoint_url, "other", "sk2")
    assert refused(other.get_queue(queue.queue_name).get_attributes) == "QueueNotExist"
    assert other.list_queue("q-") == ([], "")
    other.mns_client.close_connection()


# ---- both clients on one queue at once


def test_both_clients_work_off_one_queue_and_nobody_gets_what_another_has(
    server: VeilServer, queue: Queue, sqs: Any
) -> None:
    url = sqs.get_queue_url(QueueName=queue.queue_name)["QueueUrl"]
    queue.set_encoding(False)
    seen: list[str] = []

    def send_over_sqs() -> None:
        for batch in range(5):
            entries = [{"Id": str(n), "MessageBody": f"sqs-{batch}-{n}"} for n in range(10)]
            assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10

    def send_over_smq() -> None:
        own = Account(server.smq_endpoint_url, "ak", "sk")
        there = own.get_queue(queue.queue_name)
        there.set_encoding(False)
        for batch in range(5):
            there.batch_send_message([Message(f"smq-{batch}-{n}", priority=1 + n) for n in range(10)])
        own.mns_client.close_connection()

    def receive_over_sqs() -> None:
        while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=3).get("Messages"):
            seen.extend(message["Body"] for message in messages)
            for message in messages:
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    def receive_over_smq() -> None:
        own = Account(server.smq_endpoint_url, "ak", "sk")
        there = own.get_queue(queue.queue_name)
        there.set_encoding(False)
        while True:
            try:
                messages = there.batch_receive_message(3)
            except MNSServerException as empty:
                assert empty.type == "MessageNotExist"
                break
            seen.extend(message.message_body for message in messages)
            handles = [
                there.change_message_visibility(each.receipt_handle, 60).receipt_handle for each in messages
            ]
            there.batch_delete_message(handles)
        own.mns_client.close_connection()

    for together in ((send_over_sqs, send_over_smq), (receive_over_sqs, receive_over_smq)):
        threads = [threading.Thread(target=each) for each in together]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    expected = [f"{kind}-{batch}-{n}" for kind in ("sqs", "smq") for batch in range(5) for n in range(10)]
    assert sorted(seen) == sorted(expected)
    told = queue.get_attributes()
    assert (told.active_messages, told.inactive_messages, told.delay_messages) == (0, 0, 0)
