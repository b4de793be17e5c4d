"""Two hundred hostile strings wherever a string can be: they are shown as text, and nothing runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from botocore.config import Config

from tests.console.conftest import OpenPage, live_events
from tests.console.crawl import FoundForm, crawl, read_page
from tests.console.hostile import STRINGS, text_of, wrong_with
from tests.console.web import Visitor
from veil.testing import VeilServer

# Characters that SQS takes in a body.
BODIES = [
    text
    for text in STRINGS
    if text.strip("\t\n\r ") and all(c in "\t\n\r" or " " <= c <= "\ud7ff" for c in text)
]
QUEUES = ("calm", "calm-dead", "hostile", "hostile-dead", "steps.fifo")
HERE = "/console/queues/us-east-1/hostile"


@pytest.fixture(scope="module")
def seeded() -> Iterator[VeilServer]:
    """A server in which everything that can be a hostile string is one."""
    with VeilServer() as server:
        client = server.client(config=Config(user_agent_extra="<script>window.broken=1</script>"))
        dead = client.create_queue(QueueName="hostile-dead")["QueueUrl"]
        url = client.create_queue(
            QueueName="hostile",
            Attributes={
                "RedrivePolicy": '{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:hostile-dead","maxReceiveCount":1}',
                "KmsMasterKeyId": '"><script>window.broken=1</script>',
            },
        )["QueueUrl"]
        tags = {text[:100]: text[:200] for text in BODIES[:40]}
        client.tag_queue(QueueUrl=url, Tags=tags)
        client.create_queue(QueueName="steps.fifo", Attributes={"FifoQueue": "true"})
        entries = [
            {
                "Id": str(number),
                "MessageBody": body,
                "MessageAttributes": {"Type": {"DataType": "String", "StringValue": body[:200]}},
            }
            for number, body in enumerate(BODIES)
        ]
        for first in range(0, len(entries), 10):
            for each in (url, dead):
                answer = client.send_message_batch(QueueUrl=each, Entries=entries[first : first + 10])
                assert not answer.get("Failed")
        # What consumers write on dead letters, and redrives, written by somebody else.
        ours = ("Veil.RedrivenFrom", "veil.message_id", "veil.reason", "veil.error_type", "veil.source_queue")
        turned = {"DataType": "String", "StringValue": "\u202eright to left\u202c"}
        client.send_message(QueueUrl=dead, MessageBody="x", MessageAttributes=dict.fromkeys(ours, turned))
        # Some in flight, some dead-lettered from here.
        client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)
        client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=600)
        client.close()
        yield server


@pytest.fixture(scope="module")
def pages(seeded: VeilServer) -> dict[str, str]:
    """Every page of the seeded server."""
    return crawl(Visitor(seeded), "/console/queues")


def test_there_is_something_to_look_at(pages: dict[str, str]):
    assert len(pages) > 20 and len(BODIES) > 150


def test_no_page_holds_markup_that_is_not_ours(pages: dict[str, str]):
    wrong = {address: found for address, html in pages.items() if (found := wrong_with(html))}
    assert not wrong


def test_a_body_is_shown_as_it_is(pages: dict[str, str]):
    shown = "\n".join(text_of(html) for html in pages.values())
    assert "<script>window.broken=1</script>" in shown and "{{ 7*7 }}" in shown


def test_marks_that_turn_the_direction_of_text_are_spelled_out(pages: dict[str, str]):
    # In a page they make a line read as something else; what stands in a field to be edited stays as it is.
    turned = [
        address
        for address, html in pages.items()
        if set("\u202e\u2066\u200b\ufeff") & set(text_of(re.sub(r"(?s)<textarea.*?</textarea>", "", html)))
    ]
    assert turned == []
    shown = "\n".join(text_of(html) for html in pages.values())
    assert r"\u202eright to left\u202c" in shown and "zero\\u200bwidth\u200djoiners" in shown


def forms_of(pages: dict[str, str]) -> list[FoundForm]:
    """One of each form, that with the most fields: those for each message and queue are alike."""
    found: dict[tuple[str, ...], FoundForm] = {}
    for address, html in pages.items():
        for form in read_page(address, html)[1]:
            if not form.action.endswith(("/logout", "/theme")):
                pattern = (
                    "*" if each.isdigit() or each in QUEUES else each for each in form.action.split("/")
                )
                key = (*pattern, form.method)
                if key not in found or len(form.given) > len(found[key].given):
                    found[key] = form
    return list(found.values())


@pytest.fixture(scope="module")
def calm() -> Iterator[VeilServer]:
    """A server with little on it, whose forms are quickly drawn."""
    with VeilServer() as server:
        client = server.client()
        dead = client.create_queue(QueueName="calm-dead")["QueueUrl"]
        arn = "arn:aws:sqs:us-east-1:000000000000:calm-dead"
        redrive = f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":1}}'
        url = client.create_queue(QueueName="calm", Attributes={"RedrivePolicy": redrive})["QueueUrl"]
        client.create_queue(QueueName="steps.fifo", Attributes={"FifoQueue": "true"})
        client.tag_queue(QueueUrl=url, Tags={"team": "calm"})
        for each in (url, url, dead):
            client.send_message(QueueUrl=each, MessageBody="x")
        client.receive_message(QueueUrl=url, VisibilityTimeout=600)
        client.close()
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("turns", [4, pytest.param(1, marks=pytest.mark.soak)])
def test_every_field_of_every_form_takes_every_string(calm: VeilServer, turns: int):
    """The forms take turns with the strings: all of them have all, each has every fourth."""
    visitor = Visitor(calm)
    token = visitor.get("/console/queues").token
    forms = forms_of(crawl(visitor, "/console/queues", 100))
    assert sum(len(form.given) for form in forms) > 20
    failures: list[str] = []
    for turn, form in enumerate(forms):
        names = sorted(form.given)
        for number in range(turn % turns, len(STRINGS), turns):
            # Each field has another string each time, so that every field has had them all; every third time only
            # one field is filled in, so that what checks the others does not stand before it.
            fields = dict(form.fields)
            for place, name in enumerate(names):
                if number % 3 or place == number // 3 % len(names):
                    fields[name] = STRINGS[(number + place * 7) % len(STRINGS)]
            if "token" in fields:
                fields["token"] = token
            fields.pop("step", None)  # shown, not made: the next string needs what is there
            if form.method == "POST":
                got = visitor.post(form.action, fields)
            else:
                query = "&".join(f"{quote(name)}={quote(value)}" for name, value in fields.items())
                got = visitor.get(f"{form.action.partition('?')[0]}?{query}")
            wrong = wrong_with(got.text)
            if got.status >= 500 or wrong or "broken=1" in got.headers.get("set-cookie", ""):
                failures.append(f"{form.method} {form.action} {fields}: {got.status} {wrong[:2]}")
    assert not failures, "\n".join(failures[:20])


@pytest.mark.parametrize(
    "path",
    [
        "/console/{}",
        "/console/queues/{}/hostile",
        "/console/queues/us-east-1/{}",
        HERE + "/{}",
        HERE + "/messages/{}",
    ],
)
def test_every_part_of_an_address_takes_every_string(seeded: VeilServer, path: str):
    visitor = Visitor(seeded)
    for text in STRINGS:
        if len(text) > 2_000:
            continue  # longer than a request line may be
        got = visitor.get(path.format(quote(text, safe="")))
        assert got.status < 500, (text, got.status)
        assert not wrong_with(got.text), text


def test_every_part_of_a_query_takes_every_string(seeded: VeilServer):
    visitor = Visitor(seeded)
    for text in STRINGS:
        if len(text) > 2_000:
            continue
        said = quote(text, safe="")
        for path in (f"/console/queues?search={said}&sort={said}&page={said}&region={said}&notice={said}",):
            got = visitor.get(path)
            assert got.status == 200 and not wrong_with(got.text), text


def test_in_a_browser_nothing_of_it_runs(seeded: VeilServer, pages: dict[str, str], open_page: OpenPage):
    page = open_page(f"{seeded.endpoint_url}/console/queues", expected=("404", "400"))
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
    kinds: set[str] = set()
    for address, html in pages.items():
        kind = "/".join("*" if part.isdigit() else part for part in address.partition("?")[0].split("/"))
        if kind in kinds or not html:
            continue
        kinds.add(kind)
        page.goto(seeded.endpoint_url + address)
        assert page.evaluate("window.broken") is None, address
    assert len(kinds) > 10


def test_live_fragments_are_text_too(seeded: VeilServer, open_page: OpenPage):
    page = open_page(f"{seeded.endpoint_url}{HERE}/in-flight")
    from playwright.sync_api import expect

    events = live_events(page)
    assert page.evaluate("window.broken") is None
    client: Any = seeded.client()
    url = client.get_queue_url(QueueName="hostile")["QueueUrl"]
    client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=600)
    client.close()
    expect(page.locator("html")).not_to_have_attribute("data-live-events", events, timeout=60_000)
    assert page.evaluate("window.broken") is None
