"""Queue URLs are read by their path, written with the caller's host; lists come in pages."""

from __future__ import annotations

import pytest

from tests.wire.kit import Refused, Wire, read_json
from veil.core.queue import QueueKey
from veil.wire.call import QueueUrls


@pytest.mark.parametrize(
    "url",
    [
        "q",
        "/q",
        "000000000000/q",
        "/000000000000/q",
        "http://localhost:9324/000000000000/q",
        "https://sqs.us-east-1.amazonaws.com/000000000000/q",
        "https://queue.amazonaws.com/000000000000/q",
        "http://proxy/sqs/000000000000/q",
        "http://localhost:9324/000000000000/q?Action=x",
    ],
)
async def test_a_queue_is_found_by_any_host_and_by_its_bare_name(wire: Wire, url: str) -> None:
    await wire.queue("q")
    for _ in range(2):
        assert "MessageId" in await wire.call("SendMessage", QueueUrl=url, MessageBody="x")
    await wire.call("DeleteQueue", QueueUrl=url)


async def test_the_url_follows_the_host_header_and_is_the_same_everywhere(wire: Wire) -> None:
    made = read_json(await wire.post("CreateQueue", {"QueueName": "q"}, host="veil.example:80"))
    found = read_json(await wire.post("GetQueueUrl", {"QueueName": "q"}, host="veil.example:80"))
    listed = read_json(await wire.post("ListQueues", {}, host="veil.example:80"))
    assert made["QueueUrl"] == found["QueueUrl"] == "http://veil.example:80/000000000000/q"
    assert listed["QueueUrls"] == [made["QueueUrl"]]


async def test_a_fixed_base_url_beats_the_host_header() -> None:
    async with Wire(base_url="https://queues.example/") as wire:
        assert await wire.queue("q") == "https://queues.example/000000000000/q"


async def test_the_region_of_the_scope_tells_queues_of_one_name_apart(wire: Wire) -> None:
    scope = "AWS4-HMAC-SHA256 Credential=k/20231114/{}/sqs/aws4_request, SignedHeaders=host, Signature=x"
    await wire.queue("q")
    response = await wire.post("GetQueueUrl", {"QueueName": "q"}, authorization=scope.format("eu-west-1"))
    with pytest.raises(Refused):
        read_json(response)
    read_json(await wire.post("CreateQueue", {"QueueName": "q"}, authorization=scope.format("eu-west-1")))
    given = {"QueueUrl": "q", "AttributeNames": ["QueueArn"]}
    found = read_json(await wire.post("GetQueueAttributes", given, authorization=scope.format("eu-west-1")))
    assert found["Attributes"]["QueueArn"] == "arn:aws:sqs:eu-west-1:000000000000:q"


def test_made_up_urls_do_not_fill_memory() -> None:
    urls = QueueUrls()
    for number in range(10_000):
        assert urls.key(f"q{number}", "r", "a") == QueueKey("r", "a", f"q{number}")
    urls.key("x" * 10_000, "r", "a")
    assert len(urls._keys) <= 4_096
    assert max(len(text) for text, _, _ in urls._keys) <= 256


async def test_listing_is_by_prefix_and_name(wire: Wire) -> None:
    for name in ("b", "a-2", "a-1", "A-3"):
        await wire.queue(name)
    found = await wire.call("ListQueues", QueueNamePrefix="a-")
    assert [url.rsplit("/")[-1] for url in found["QueueUrls"]] == ["a-1", "a-2"]
    assert "NextToken" not in found


async def test_pages_follow_each_other_to_the_end(wire: Wire) -> None:
    names = [f"q{number}" for number in range(5)]
    for name in names:
        await wire.queue(name)
    seen: list[str] = []
    more: dict[str, str] = {}
    for size in (2, 2, 1):
        page = await wire.call("ListQueues", MaxResults=2, **more)
        assert len(page["QueueUrls"]) == size
        seen += [url.rsplit("/")[-1] for url in page["QueueUrls"]]
        more = {"NextToken": page["NextToken"]} if "NextToken" in page else {}
    assert seen == names
    assert not more
    exact = await wire.call("ListQueues", MaxResults=5)
    assert "NextToken" not in exact


async def test_without_a_page_size_a_thousand_are_listed_and_no_token(wire: Wire) -> None:
    for number in range(1_001):
        await wire.queue(f"q{number:04}")
    found = await wire.call("ListQueues")
    assert len(found["QueueUrls"]) == 1_000
    assert "NextToken" not in found


@pytest.mark.parametrize("token", ["!", "x", "é", "A" * 10_000])
async def test_a_token_that_nobody_wrote_is_refused(wire: Wire, token: str) -> None:
    with pytest.raises(Refused) as caught:
        await wire.call("ListQueues", MaxResults=1, NextToken=token)
    assert caught.value.code == "InvalidParameterValue"


async def test_dead_letter_sources_come_in_pages(wire: Wire) -> None:
    dead = await wire.queue("dead")
    policy = '{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:dead","maxReceiveCount":1}'
    for name in ("a", "b", "c"):
        await wire.queue(name, RedrivePolicy=policy)
    page = await wire.call("ListDeadLetterSourceQueues", QueueUrl=dead, MaxResults=2)
    rest = await wire.call(
        "ListDeadLetterSourceQueues", QueueUrl=dead, MaxResults=2, NextToken=page["NextToken"]
    )
    found = [url.rsplit("/")[-1] for url in page["queueUrls"] + rest["queueUrls"]]
    assert found == ["a", "b", "c"]
    assert "NextToken" not in rest
