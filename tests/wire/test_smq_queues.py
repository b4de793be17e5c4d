"""SMQ's operations on queues: what is made, told, listed, changed and removed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wire.smq_kit import HOST, SmqWire, fields, xml

EVERY = {
    "VisibilityTimeout": "43200",
    "MaximumMessageSize": "1024",
    "MessageRetentionPeriod": "604800",
    "DelaySeconds": "604800",
    "PollingWaitSeconds": "30",
    "LoggingEnabled": "True",
}


async def test_a_new_queue_is_201_with_its_place_and_the_same_again_is_204(smq: SmqWire) -> None:
    for status in (201, 204):
        response = await smq.ask("PUT", "/queues/orders", xml("Queue", VisibilityTimeout=60))
        assert (response.status, response.body) == (status, b"")
        assert dict(response.headers)["Location"] == f"http://{HOST}/queues/orders"
    assert (await smq.ask("PUT", "/queues/orders", xml("Queue"))).status == 204
    assert (
        await smq.refusal("PUT", "/queues/orders", xml("Queue", VisibilityTimeout=61))
        == "409 QueueAlreadyExist"
    )


async def test_a_queue_tells_all_twelve_of_its_elements(smq: SmqWire) -> None:
    path = await smq.smq_queue("orders")
    created_s = smq.clock.wall_ms() // 1000
    for delay in (0, 0, 60):
        await smq.smq_send(path, DelaySeconds=delay)
    await smq.smq_receive(path)

    assert fields(await smq.smq_call("GET", "/queues/orders")) == {
        "QueueName": "orders",
        "CreateTime": str(created_s),
        "LastModifyTime": str(created_s),
        "VisibilityTimeout": "30",
        "MaximumMessageSize": "65536",
        "MessageRetentionPeriod": "345600",
        "DelaySeconds": "0",
        "PollingWaitSeconds": "0",
        "LoggingEnabled": "False",
        "ActiveMessages": "1",
        "InactiveMessages": "1",
        "DelayMessages": "1",
    }


async def test_every_setting_can_be_given_and_changed_and_the_others_stay(smq: SmqWire) -> None:
    await smq.smq_queue("orders", **EVERY)
    assert EVERY.items() <= fields(await smq.smq_call("GET", "/queues/orders")).items()
    smq.clock.advance(seconds=7)
    changed = await smq.ask("PUT", "/queues/orders?metaoverride=true", xml("Queue", VisibilityTimeout=5))
    assert (changed.status, changed.body) == (204, b"")

    told = fields(await smq.smq_call("GET", "/queues/orders"))
    assert (EVERY | {"VisibilityTimeout": "5"}).items() <= told.items()
    assert int(told["LastModifyTime"]) - int(told["CreateTime"]) == 7
    assert (await smq.ask("PUT", "/queues/orders?metaoverride=true", xml("Queue"))).status == 204


@pytest.mark.parametrize(
    ("element", "values"),
    [
        ("VisibilityTimeout", (0, 43_201, "x", "")),
        ("MaximumMessageSize", (1_023, 65_537)),
        ("MessageRetentionPeriod", (59, 604_801)),
        ("DelaySeconds", (-1, 604_801)),
        ("PollingWaitSeconds", (-1, 31)),
        ("LoggingEnabled", ("perhaps",)),
    ],
)
async def test_a_setting_out_of_smqs_range_is_refused_by_name(
    smq: SmqWire, element: str, values: tuple[object, ...]
) -> None:
    await smq.smq_queue("orders")
    for value in values:
        for target in ("/queues/new", "/queues/orders?metaoverride=true"):
            response = await smq.ask("PUT", target, xml("Queue", **{element: value}))
            assert response.status == 400
            assert b"<Code>InvalidArgument</Code>" in response.body
            assert element.encode() in response.body
    assert await smq.refusal("GET", "/queues/new") == "404 QueueNotExist"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a" * 81, "400 QueueNameLengthError"),
        ("with_underscore", "400 InvalidQueueName"),
        ("-first", "400 InvalidQueueName"),
        ("orders.fifo", "400 InvalidQueueName"),
        ("a%20b", "400 InvalidQueueName"),
        ("%E4%BD%A0", "400 InvalidQueueName"),
    ],
)
async def test_a_name_is_letters_digits_and_hyphens(smq: SmqWire, name: str, expected: str) -> None:
    assert await smq.refusal("PUT", f"/queues/{name}", xml("Queue")) == expected


async def test_a_deleted_queue_is_gone_with_its_messages(smq: SmqWire) -> None:
    path = await smq.smq_queue("orders")
    await smq.smq_send(path)
    response = await smq.ask("DELETE", "/queues/orders")
    assert (response.status, response.body) == (204, b"")
    for method, target in (("GET", "/queues/orders"), ("GET", path), ("DELETE", "/queues/orders")):
        assert await smq.refusal(method, target) == "404 QueueNotExist"


async def test_queues_are_listed_by_name_a_page_at_a_time_and_the_last_page_has_no_marker(
    smq: SmqWire,
) -> None:
    for name in ("b", "a", "c", "other"):
        await smq.smq_queue(name)
    seen: list[str] = []
    marker, pages = "", 0
    while True:
        headers = {"x-mns-ret-number": "2"} | ({"x-mns-marker": marker} if marker else {})
        root = await smq.smq_call("GET", "/queues", **headers)
        assert root is not None
        seen += [each.findtext("QueueURL", "").rpartition("/")[2] for each in root.iter("Queue")]
        marker, pages = root.findtext("NextMarker", ""), pages + 1
        if root.find("NextMarker") is None:
            break
    assert (seen, pages) == (["a", "b", "c", "other"], 2)


async def test_a_listing_can_be_narrowed_and_bring_the_settings_along(smq: SmqWire) -> None:
    for name in ("a-1", "a-2", "b-1"):
        await smq.smq_queue(name, VisibilityTimeout=17)
    root = await smq.smq_call("GET", "/queues", **{"x-mns-prefix": "a-", "x-mns-with-meta": "true"})

    assert root is not None
    told = [fields(each) for each in root]
    assert [each["QueueName"] for each in told] == ["a-1", "a-2"]
    assert all(each["VisibilityTimeout"] == "17" and all(each.values()) for each in told)


async def test_a_queue_that_is_deleted_while_it_is_listed_is_left_out(
    smq: SmqWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await smq.smq_queue(name)
    store = smq.service.store
    found = store.list_queues

    async def then_deleted(*given: Any, **named: Any) -> Any:
        queues = await found(*given, **named)
        await store.delete_queue(queues[1])
        return queues

    monkeypatch.setattr(store, "list_queues", then_deleted)
    root = await smq.smq_call("GET", "/queues", **{"x-mns-with-meta": "true"})
    assert root is not None
    assert [fields(each)["QueueName"] for each in root] == ["a", "c"]


@pytest.mark.parametrize(
    "headers", [{"x-mns-ret-number": "0"}, {"x-mns-ret-number": "1001"}, {"x-mns-marker": "?"}]
)
async def test_a_listing_refuses_numbers_and_markers_that_make_no_sense(
    smq: SmqWire, headers: dict[str, str]
) -> None:
    assert await smq.refusal("GET", "/queues", **headers) == "400 InvalidArgument"


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/", "400 InvalidRequestURL"),
        ("POST", "/queues", "400 InvalidRequestURL"),
        ("PATCH", "/queues/q", "400 InvalidRequestURL"),
        ("HEAD", "/queues/q/messages", "400 InvalidRequestURL"),
        ("GET", "/queues/q/messages/x", "400 InvalidRequestURL"),
        ("GET", "/queues/q/other", "400 InvalidRequestURL"),
        ("GET", "/topics", "404 TopicNotExist"),
        ("PUT", "/topics/t", "404 TopicNotExist"),
        ("GET", "/queues/none/messages?" + "&".join(f"a{n}=1" for n in range(40)), "400 InvalidQueryString"),
        ("GET", "/queues/none", "404 QueueNotExist"),
        ("POST", "/queues/none/messages", "404 QueueNotExist"),
    ],
)
async def test_what_is_not_there_has_its_code(smq: SmqWire, method: str, target: str, expected: str) -> None:
    assert await smq.refusal(method, target) == expected


async def test_the_account_has_no_bucket_for_logs_and_takes_none(smq: SmqWire) -> None:
    assert fields(await smq.smq_call("GET", "/?accountmeta=true")) == {"LoggingBucket": ""}
    assert (await smq.ask("PUT", "/?accountmeta=true", xml("Account", LoggingBucket=""))).status == 204
    refused = await smq.refusal("PUT", "/?accountmeta=true", xml("Account", LoggingBucket="b"))
    assert refused == "400 InvalidArgument"


async def test_every_answer_is_counted_by_its_operation(smq: SmqWire) -> None:
    path = await smq.smq_queue("q")
    await smq.refusal("GET", path)
    await smq.refusal("GET", "/nowhere")
    assert smq.answers == {("Smq.CreateQueue", 2): 1, ("Smq.ReceiveMessage", 4): 1, ("Smq.other", 4): 1}


async def test_what_a_policy_denies_is_denied_over_smq_too(smq: SmqWire) -> None:
    url = await smq.queue("orders")
    policy = (
        '{"Statement":[{"Effect":"Deny","Principal":"*","Action":"sqs:ReceiveMessage","Resource":"*"},'
        '{"Effect":"Allow","Principal":"*","Action":"sqs:SendMessage","Resource":"*"}]}'
    )
    await smq.call("SetQueueAttributes", QueueUrl=url, Attributes={"Policy": policy})

    await smq.smq_send("/queues/orders/messages")
    assert await smq.refusal("GET", "/queues/orders/messages") == "403 AccessDenied"
    assert await smq.refusal("GET", "/queues/orders/messages?peekonly=true") == "403 AccessDenied"
