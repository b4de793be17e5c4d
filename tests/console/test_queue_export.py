"""Queues as text: what is exported says the same as the queues do."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from tests.console.conftest import OpenPage
from veil.console.pages.queue_export import as_cloudformation, as_terraform, as_toml
from veil.core.queue import Queue, QueueKey, QueueSettings, RedriveAllow, RedrivePolicy
from veil.server.setting_values import declared_queues, settings_given
from veil.testing import VeilServer


def a_queue(name: str, tags: dict[str, str] | None = None, **settings: Any) -> Queue:
    return Queue(1, key(name), QueueSettings(fifo=name.endswith(".fifo"), **settings), tags or {})


def key(name: str) -> QueueKey:
    return QueueKey("us-east-1", "000000000000", name)


POLICY = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":"sqs:SendMessage","Resource":"*"}]}'
QUEUES = [
    a_queue("dead"),
    a_queue(
        "orders",
        {"team": 'shop "north"', "cost centre": "4711", "expression": "${oops} %{oops}"},
        visibility_s=90,
        retention_s=172_800,
        delay_s=5,
        wait_s=20,
        message_bytes_max=2_048,
        redrive=RedrivePolicy(key("dead"), 4),
    ),
    a_queue("mails.fifo", content_deduplication=True, visibility_s=43_200),
]


def test_veil_serve_reads_the_toml_as_the_same_queues():
    declared = {
        each.name: each for each in declared_queues(tomllib.loads("".join(as_toml(QUEUES)))["queues"])
    }
    assert sorted(declared) == ["dead", "mails.fifo", "orders"]
    for queue in QUEUES:
        assert QueueSettings(**settings_given(declared[queue.name], queue.key)) == queue.settings
        assert declared[queue.name].tags == queue.tags


def test_the_toml_says_what_it_cannot_say():
    text = "".join(as_toml([a_queue("orders", policy=POLICY, redrive_allow=RedriveAllow("denyAll"))]))
    assert (
        "# Not included, because veil.toml has no setting for it: its redrive allow policy, its policy."
        in text
    )
    assert tomllib.loads(text)["queues"] == {"orders": {"visibility_timeout": "30s"}}


def test_cloudformation_has_every_setting_and_refers_to_dead_letters_in_the_same_template():
    resources = json.loads("".join(as_cloudformation([*QUEUES, a_queue("open", policy=POLICY)])))["Resources"]
    assert resources["Orders"]["Properties"] == {
        "QueueName": "orders",
        "VisibilityTimeout": 90,
        "MessageRetentionPeriod": 172_800,
        "DelaySeconds": 5,
        "ReceiveMessageWaitTimeSeconds": 20,
        "MaximumMessageSize": 2_048,
        "RedrivePolicy": {"deadLetterTargetArn": {"Fn::GetAtt": ["Dead", "Arn"]}, "maxReceiveCount": 4},
        "Tags": [{"Key": tag, "Value": value} for tag, value in QUEUES[1].tags.items()],
    }
    assert resources["MailsFifo"]["Properties"] == {
        "QueueName": "mails.fifo",
        "FifoQueue": True,
        "VisibilityTimeout": 43_200,
        "ContentBasedDeduplication": True,
    }
    assert resources["OpenPolicy"]["Type"] == "AWS::SQS::QueuePolicy"
    assert resources["OpenPolicy"]["Properties"]["PolicyDocument"] == json.loads(POLICY)


def test_names_that_come_to_the_same_are_told_apart():
    resources = json.loads("".join(as_cloudformation([a_queue("a-b"), a_queue("a_b"), a_queue("--")])))[
        "Resources"
    ]
    assert sorted(resources) == ["AB", "AB2", "Queue"]


def test_terraform_escapes_what_it_would_take_for_an_expression_and_refers_to_dead_letters():
    text = "".join(
        as_terraform([*QUEUES, a_queue("9lives", policy=POLICY, kms_key="alias/mine", managed_sse=False)])
    )
    assert '"expression" = "$${oops} %%{oops}"' in text
    assert "deadLetterTargetArn = aws_sqs_queue.dead.arn" in text
    assert 'resource "aws_sqs_queue" "mails_fifo" {' in text and "fifo_queue " in text
    assert 'resource "aws_sqs_queue_policy" "queue_9lives" {' in text
    assert "sqs_managed_sse_enabled" not in text


def test_all_queues_are_shown_and_downloaded(
    server: VeilServer, sqs: Any, open_page: OpenPage, tmp_path: Path
):
    sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "90"})
    sqs.create_queue(QueueName="mails")
    page = open_page(f"{server.endpoint_url}/console/queues")
    page.get_by_role("link", name="Export").click()
    assert "[queues.orders]" in page.locator("pre.export").inner_text()
    page.get_by_role("link", name="CloudFormation").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "queues.template.json"
    download.value.save_as(tmp_path / "template.json")
    assert sorted(json.loads((tmp_path / "template.json").read_text())["Resources"]) == ["Mails", "Orders"]


def test_one_queue_is_exported_alone(server: VeilServer, sqs: Any, open_page: OpenPage):
    sqs.create_queue(QueueName="orders")
    sqs.create_queue(QueueName="mails")
    page = open_page(f"{server.endpoint_url}/console/queues/us-east-1/orders")
    page.get_by_role("link", name="Export").click()
    page.get_by_role("link", name="Terraform").click()
    text = page.locator("pre.export").inner_text()
    assert 'resource "aws_sqs_queue" "orders"' in text and "mails" not in text
