"""SMQ's semantics of messages, with time in the test's hands."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.kit import until
from tests.wire.smq_kit import SmqWire, fields, xml
from veil.core.limits import VISIBILITY_MAX_S

GONE = "404 MessageNotExist"


# ---- sending


async def test_a_sent_message_is_told_by_id_and_digest_in_capitals(smq: SmqWire) -> None:
    path = await smq.smq_queue()
    response = await smq.ask("POST", path, xml("Message", MessageBody="aGk="))
    sent = await smq.smq_send(path, "aGk=")

    assert response.status == 201
    assert sent["MessageBodyMD5"] == "9A2FC0017AF31B9194A45FB6819E6DAA"
    assert sent.keys() == {"MessageId", "MessageBodyMD5"}


@pytest.mark.parametrize("namespace", ["", ' xmlns="http://mns.aliyuncs.com/doc/v1"', ' xmlns="urn:any"'])
async def test_the_namespace_does_not_matter(smq: SmqWire, namespace: str) -> None:
    path = await smq.smq_queue()
    body = f"<Message{namespace}><MessageBody>x</MessageBody></Message>"
    prefixed = '<m:Message xmlns:m="urn:m"><m:MessageBody>y</m:MessageBody></m:Message>'
    await smq.smq_call("POST", path, body)
    await smq.smq_call("POST", path, prefixed)

    assert [each["MessageBody"] for each in await smq.smq_receive_all(path)] == ["x", "y"]


@pytest.mark.parametrize(
    "body",
    ["aGk=", "ein Wort \N{SNOWMAN} & <mehr>", "  spaces  ", "line\nline", "]]>", "&amp;", "a" * 65_536],
)
async def test_the_body_comes_back_as_it_came(smq: SmqWire, body: str) -> None:
    path = await smq.smq_queue()
    await smq.smq_send(path, body)

    assert (await smq.smq_receive(path))["MessageBody"] == body


async def test_a_body_in_cdata_may_hold_what_looks_like_a_document_type(smq: SmqWire) -> None:
    path = await smq.smq_queue()
    page = "<!DOCTYPE html><html><!-- a comment --></html>"
    await smq.smq_call("POST", path, f"<Message><MessageBody><![CDATA[{page}]]></MessageBody></Message>")

    assert (await smq.smq_receive(path))["MessageBody"] == page


async def test_a_return_in_a_body_is_not_made_a_line_feed(smq: SmqWire) -> None:
    path = await smq.smq_queue()
    await smq.smq_call("POST", path, "<Message><MessageBody>a&#13;&#10;b</MessageBody></Message>")

    assert (await smq.smq_receive(path))["MessageBody"] == "a\r\nb"


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ({"Priority": 0}, "400 InvalidArgument"),
        ({"Priority": 17}, "400 InvalidArgument"),
        ({"Priority": "high"}, "400 InvalidArgument"),
        ({"DelaySeconds": -1}, "400 InvalidArgument"),
        ({"DelaySeconds": 604_801}, "400 InvalidArgument"),
        ({"DelaySeconds": "1.5"}, "400 InvalidArgument"),
        ({"MessageGroupId": "with blanks"}, "400 InvalidArgument"),
    ],
)
async def test_what_a_message_cannot_have_is_refused(
    smq: SmqWire, elements: dict[str, object], expected: str
) -> None:
    path = await smq.smq_queue()
    document = xml("Message", MessageBody="x", **elements)
    assert await smq.refusal("POST", path, document) == expected
    assert await smq.refusal("GET", path) == GONE


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b"", "400 MalformedXML"),
        (b"<Message>", "400 MalformedXML"),
        (b"\xff\xfe", "400 MalformedXML"),
        (b"<Queue/>", "400 MalformedXML"),
        (b"<Message/>", "400 InvalidArgument"),
        (b"<Message><MessageBody/></Message>", "400 InvalidArgument"),
        (b"<Messages/>", "400 InvalidArgument"),
        # Some clients do not escape: of such a body only what stands before the element would be stored.
        (b"<Message><MessageBody>a <b>bold</b> word</MessageBody></Message>", "400 MalformedXML"),
        (b"<Message><MessageBody><order/></MessageBody></Message>", "400 MalformedXML"),
        (
            b"<Message><MessageBody>x</MessageBody><UserProperties><PropertyValue><Name>n</Name><Type>STRING</Type>"
            b"<Value>a<b/></Value></PropertyValue></UserProperties></Message>",
            "400 MalformedXML",
        ),
        (b"<Message><MessageBody>" + b"x" * 65_537 + b"</MessageBody></Message>", "400 InvalidArgument"),
    ],
)
async def test_what_is_no_message_is_refused(smq: SmqWire, document: bytes, expected: str) -> None:
    assert await smq.refusal("POST", await smq.smq_queue(), document) == expected


async def test_a_batch_is_told_entry_by_entry_and_keeps_its_order(smq: SmqWire) -> None:
    path = await smq.smq_queue()
    many = "".join(f"<Message><MessageBody>m{n}</MessageBody></Message>" for n in range(16))
    root = await smq.smq_call("POST", path, f"<Messages>{many}</Messages>")

    assert root is not None
    assert [set(fields(each)) for each in root] == [{"MessageId", "MessageBodyMD5"}] * 16
    assert [each["MessageBody"] for each in await smq.smq_receive_all(path)] == [f"m{n}" for n in range(16)]


async def test_a_batch_that_fails_in_part_says_so_in_the_two_forms_that_sdks_read(smq: SmqWire) -> None:
    path = await smq.smq_queue()
    document = (
        "<Messages><Message><MessageBody>good</MessageBody><MessageGroupId>g</MessageGroupId></Message>"
        "<Message><MessageBody>bad</MessageBody><Priority>99</Priority></Message></Messages>"
    )
    response = await smq.ask("POST", path, document)

    assert response.status == 400
    assert b"<Message><MessageId>" in response.body
    assert b"<Message><ErrorCode>InvalidArgument</ErrorCode><ErrorMessage>" in response.body
    assert b"MessageGroupId" not in response.body
    assert [each["MessageBody"] for each in await smq.smq_receive_all(path)] == ["good"]


@pytest.mark.parametrize("count", [0, 17])
async def test_a_batch_has_one_to_sixteen_messages(smq: SmqWire, count: int) -> None:
    path = await smq.smq_queue()
    many = "<Message><MessageBody>x</MessageBody></Message>" * count
    assert await smq.refusal("POST", path, f"<Messages>{many}</Messages>") == "400 InvalidArgument"
    assert await smq.refusal("GET", f"{path}?numOfMessages={count}") == "400 InvalidArgument"
    handles = "<ReceiptHandle>x</ReceiptHandle>" * count
    expected = "400 InvalidArgument"
    assert await smq.refusal("DELETE", path, f"<ReceiptHandles>{handles}</ReceiptHandles>") == expected


async def test_a_batch_as_a_whole_is_bound_by_the_size_of_a_message(smq: SmqWire) -> None:
    path = await smq.smq_queue(MaximumMessageSize=1024)
    half = f"<Message><MessageBody>{'x' * 600}</MessageBody></Message>"
    assert await smq.refusal("POST", path, f"<Messages>{half * 2}</Messages>") == "400 InvalidArgument"
    await smq.smq_call("POST", path, f"<Messages>{half}</Messages>")


# ---- receiving


async def test_a_received_message_tells_its_times_in_milliseconds_of_the_wall_clock(smq: SmqWire) -> None:
    path = await smq.smq_queue(VisibilityTimeout=20)
    sent_ms = smq.clock.wall_ms()
    await smq.smq_send(path)
    smq.clock.advance(seconds=5)
    got = await smq.smq_receive(path)

    assert got["EnqueueTime"] == str(sent_ms)
    assert got["FirstDequeueTime"] == str(sent_ms + 5_000)
    assert got["NextVisibleTime"] == str(sent_ms + 25_000)
    assert (got["DequeueCount"], got["Priority"]) == ("1", "8")
    smq.clock.advance(seconds=20)
    again = await smq.smq_receive(path)
    assert (again["DequeueCount"], again["FirstDequeueTime"]) == ("2", str(sent_ms + 5_000))


async def test_an_empty_receive_is_an_error_also_after_a_long_poll(smq: SmqWire) -> None:
    path = await smq.smq_queue()
    for target in (path, f"{path}?waitseconds=0", f"{path}?numOfMessages=16", f"{path}?peekonly=true"):
        assert await smq.refusal("GET", target) == GONE
    poll = asyncio.create_task(smq.refusal("GET", f"{path}?waitseconds=30"))
    queue = (await smq.service.store.all_queues())[0]
    await until(lambda: smq.service.waiting.waiting(queue.id) == 1)
    smq.clock.advance(29_999)
    await asyncio.sleep(0)
    assert not poll.done()
    smq.clock.advance(1)
    assert await poll == GONE


async def test_a_long_poll_wakes_for_a_message_and_the_queues_own_wait_counts_where_none_is_asked(
    smq: SmqWire,
) -> None:
    path = await smq.smq_queue(PollingWaitSeconds=30)
    poll = asyncio.create_task(smq.smq_receive(path))
    queue = (await smq.service.store.all_queues())[0]
    await until(lambda: smq.service.waiting.waiting(queue.id) == 1)
    await smq.smq_send(path, "woken")

    assert (await poll)["MessageBody"] == "woken"
    assert await smq.refusal("GET", f"{path}?waitseconds=0") == GONE


@pytest.mark.parametrize("wait", [-1, 31, "x", ""])
async def test_a_wait_is_nought_to_thirty_seconds(smq: SmqWire, wait: object) -> None:
    path = await smq.smq_queue()
    assert await smq.refusal("GET", f"{path}?waitseconds={wait}") == "400 InvalidArgument"


async def test_parameters_may_be_spelled_in_any_case(smq: SmqWire) -> None:
    path = await smq.smq_queue()
    await smq.smq_send(path)
    got = await smq.smq_receive(path, WaitSeconds=0)
    await smq.smq_call("DELETE", f"{path}?receiptHandle={got['ReceiptHandle']}")
    assert await smq.refusal("GET", path) == GONE


async def test_the_lowest_priority_goes_first(smq: SmqWire) -> None:
    path = await smq.smq_queue()
    for body, priority in (("last", 16), ("plain", None), ("first", 1)):
        await smq.smq_send(path, body, **({} if priority is None else {"Priority": priority}))

    got = await smq.smq_receive_all(path)
    assert [(each["MessageBody"], each["Priority"]) for each in got] == [
        ("first", "1"),
        ("plain", "8"),
        ("last", "16"),
    ]


async def test_a_peek_shows_what_is_next_and_changes_nothing(smq: SmqWire) -> None:
    path = await smq.smq_queue()
    await smq.smq_send(path, "waits", DelaySeconds=60)
    await smq.smq_send(path, "second")
    await smq.smq_send(path, "first", Priority=2)

    for _ in range(2):
        peeked = fields(await smq.smq_call("GET", f"{path}?peekonly=true"))
        assert peeked["MessageBody"] == "first"
        assert peeked["DequeueCount"] == "0"
        assert peeked["FirstDequeueTime"] == peeked["EnqueueTime"]
        assert not {"ReceiptHandle", "NextVisibleTime"} & peeked.keys()
    root = await smq.smq_call("GET", f"{path}?peekonly=true&numOfMessages=5")
    assert root is not None
    assert [fields(each)["MessageBody"] for each in root] == ["first", "second"]
    assert (await smq.smq_receive(path))["DequeueCount"] == "1"


async def test_an_answer_that_finds_nobody_gives_its_messages_back(smq: SmqWire) -> None:
    path = await smq.smq_queue()
    await smq.smq_send(path)
    response = await smq.ask("GET", path)
    assert response.undelivered is not None
    response.undelivered()
    await until(lambda: smq.service.tallies.of("undone", 1) == 1)

    assert (await smq.smq_receive(path))["DequeueCount"] == "1"


# ---- handles


async def test_a_handle_deletes_once_and_only_while_its_deadline_lasts(smq: SmqWire) -> None:
    path = await smq.smq_queue(VisibilityTimeout=10)
    await smq.smq_send(path)
    late = (await smq.smq_receive(path))["ReceiptHandle"]
    smq.clock.advance(seconds=10)
    assert await smq.refusal("DELETE", f"{path}?ReceiptHandle={late}") == GONE
    assert await smq.refusal("PUT", f"{path}?ReceiptHandle={late}&VisibilityTimeout=5") == GONE

    handle = (await smq.smq_receive(path))["ReceiptHandle"]
    smq.clock.advance(9_999)
    await smq.smq_call("DELETE", f"{path}?ReceiptHandle={handle}")
    assert await smq.refusal("DELETE", f"{path}?ReceiptHandle={handle}") == GONE


async def test_a_change_of_visibility_gives_a_new_handle_and_the_old_one_dies(smq: SmqWire) -> None:
    path = await smq.smq_queue(VisibilityTimeout=10)
    await smq.smq_send(path)
    old = (await smq.smq_receive(path))["ReceiptHandle"]
    changed = fields(await smq.smq_call("PUT", f"{path}?ReceiptHandle={old}&VisibilityTimeout=60"))

    assert changed.keys() == {"ReceiptHandle", "NextVisibleTime"}
    assert changed["ReceiptHandle"] != old
    assert changed["NextVisibleTime"] == str(smq.clock.wall_ms() + 60_000)
    assert await smq.refusal("PUT", f"{path}?ReceiptHandle={old}&VisibilityTimeout=60") == GONE
    assert await smq.refusal("DELETE", f"{path}?ReceiptHandle={old}") == GONE
    smq.clock.advance(seconds=59)
    await smq.smq_call("DELETE", f"{path}?ReceiptHandle={changed['ReceiptHandle']}")


async def test_a_handle_can_be_changed_to_the_longest_visibility_again_and_again(smq: SmqWire) -> None:
    path = await smq.smq_queue()
    await smq.smq_send(path)
    handle = (await smq.smq_receive(path))["ReceiptHandle"]
    for _ in range(3):
        smq.clock.advance(seconds=29)
        target = f"{path}?ReceiptHandle={handle}&VisibilityTimeout={VISIBILITY_MAX_S}"
        handle = fields(await smq.smq_call("PUT", target))["ReceiptHandle"]
        smq.clock.advance(seconds=VISIBILITY_MAX_S - 30)
    await smq.smq_call("DELETE", f"{path}?ReceiptHandle={handle}")


async def test_a_visibility_of_nought_releases(smq: SmqWire) -> None:
    path = await smq.smq_queue()
    await smq.smq_send(path)
    handle = (await smq.smq_receive(path))["ReceiptHandle"]
    await smq.smq_call("PUT", f"{path}?ReceiptHandle={handle}&VisibilityTimeout=0")

    assert (await smq.smq_receive(path))["DequeueCount"] == "2"


@pytest.mark.parametrize(
    ("method", "parameters", "expected"),
    [
        ("DELETE", "", "400 MissingReceiptHandle"),
        ("DELETE", "?ReceiptHandle=", "400 MissingReceiptHandle"),
        ("DELETE", "?ReceiptHandle=nonsense", "400 ReceiptHandleError"),
        ("PUT", "?VisibilityTimeout=5", "400 MissingReceiptHandle"),
        ("PUT", "?ReceiptHandle=x", "400 MissingVisibilityTimeout"),
        ("PUT", "?ReceiptHandle=x&VisibilityTimeout=5", "400 ReceiptHandleError"),
        ("PUT", "?ReceiptHandle=x&VisibilityTimeout=43201", "400 InvalidArgument"),
        ("PUT", "?ReceiptHandle=x&VisibilityTimeout=-1", "400 InvalidArgument"),
    ],
)
async def test_handles_and_visibilities_that_make_no_sense_have_their_codes(
    smq: SmqWire, method: str, parameters: str, expected: str
) -> None:
    path = await smq.smq_queue()
    assert await smq.refusal(method, path + parameters) == expected


async def test_a_batch_of_deletes_is_silent_when_all_succeed_and_names_each_that_does_not(
    smq: SmqWire,
) -> None:
    path = await smq.smq_queue()
    for body in "abc":
        await smq.smq_send(path, body)
    a, b, c = [each["ReceiptHandle"] for each in await smq.smq_receive_all(path)]
    await smq.smq_call("DELETE", f"{path}?ReceiptHandle={a}")
    document = "".join(f"<ReceiptHandle>{handle}</ReceiptHandle>" for handle in (a, b, "forged"))
    response = await smq.ask("DELETE", path, f"<ReceiptHandles>{document}</ReceiptHandles>")

    assert response.status == 404
    told = response.body.decode()
    assert told.count("<Error>") == 2
    assert "<ErrorCode>MessageNotExist</ErrorCode>" in told
    assert f"<ReceiptHandle>{a}</ReceiptHandle>" in told
    assert "<ErrorCode>ReceiptHandleError</ErrorCode>" in told
    assert b not in told
    answer = await smq.ask(
        "DELETE", path, f"<ReceiptHandles><ReceiptHandle>{c}</ReceiptHandle></ReceiptHandles>"
    )
    assert (answer.status, answer.body) == (204, b"")


async def test_a_handle_that_cannot_be_one_is_not_repeated_whole(smq: SmqWire) -> None:
    document = f"<ReceiptHandle>{'h' * 100_000}</ReceiptHandle>" * 16
    answer = await smq.ask("DELETE", await smq.smq_queue(), f"<ReceiptHandles>{document}</ReceiptHandles>")
    assert answer.status == 400
    assert len(answer.body) < 50_000


# ---- delays


async def test_a_delayed_message_has_a_handle_by_which_it_can_be_taken_back(smq: SmqWire) -> None:
    path = await smq.smq_queue()
    sent = await smq.smq_send(path, DelaySeconds=604_800)
    assert await smq.refusal("GET", path) == GONE
    handle = sent["ReceiptHandle"]
    await smq.smq_call("DELETE", f"{path}?ReceiptHandle={handle}")

    assert fields(await smq.smq_call("GET", "/queues/q"))["DelayMessages"] == "0"


async def test_a_transaction_commits_and_rolls_back_by_the_handles_of_delayed_messages(smq: SmqWire) -> None:
    # A queue as Alibaba's SDK for Java makes it: what is neither committed nor rolled back goes before it is ever seen.
    path = await smq.smq_queue(DelaySeconds=172_800, MessageRetentionPeriod=169_200)
    commit, rollback, _ = [(await smq.smq_send(path, body))["ReceiptHandle"] for body in "abc"]
    said = fields(await smq.smq_call("PUT", f"{path}?ReceiptHandle={commit}&VisibilityTimeout=1"))
    later = fields(await smq.smq_call("PUT", f"{path}?ReceiptHandle={rollback}&VisibilityTimeout=60"))
    await smq.smq_call("DELETE", f"{path}?ReceiptHandle={later['ReceiptHandle']}")

    assert int(said["NextVisibleTime"]) == smq.clock.wall_ms() + 1_000
    assert await smq.refusal("PUT", f"{path}?ReceiptHandle={commit}&VisibilityTimeout=1") == GONE
    assert await smq.refusal("GET", path) == GONE
    smq.clock.advance(seconds=1)
    message = await smq.smq_receive(path)
    assert (message["MessageBody"], message["DequeueCount"]) == ("a", "1")
    assert await smq.refusal("DELETE", f"{path}?ReceiptHandle={said['ReceiptHandle']}") == GONE
    await smq.smq_call("DELETE", f"{path}?ReceiptHandle={message['ReceiptHandle']}")
    smq.clock.advance(seconds=169_200)
    assert await smq.refusal("GET", path) == GONE
    assert fields(await smq.smq_call("GET", "/queues/q"))["DelayMessages"] == "0"


async def test_the_handle_of_a_delayed_message_dies_with_the_delay(smq: SmqWire) -> None:
    path = await smq.smq_queue(DelaySeconds=60)
    handle = (await smq.smq_send(path))["ReceiptHandle"]
    assert "ReceiptHandle" not in await smq.smq_send(path, "now", DelaySeconds=0)
    smq.clock.advance(seconds=60)

    assert await smq.refusal("DELETE", f"{path}?ReceiptHandle={handle}") == GONE
    assert len(await smq.smq_receive_all(path)) == 2
