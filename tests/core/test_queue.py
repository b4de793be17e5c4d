"""Queue names, ARNs and settings."""

from __future__ import annotations

from dataclasses import fields

import pytest

from veil.core.errors import ArnRefused, NameRefused, SettingRefused
from veil.core.queue import (
    Queue,
    QueueCounts,
    QueueKey,
    QueueSettings,
    RedriveAllow,
    RedrivePolicy,
    check_name,
    parse_arn,
)

KEY = QueueKey("eu-central-1", "000000000000", "orders")


@pytest.mark.parametrize("name", ["a", "A-b_9", "x" * 80])
def test_a_standard_name_has_up_to_eighty_plain_characters(name):
    check_name(name, fifo=False)


@pytest.mark.parametrize("name", ["", "x" * 81, "a b", "a.b", "ü", "a\n", "a.fifo", "a/b"])
def test_other_texts_cannot_name_a_standard_queue(name):
    with pytest.raises(NameRefused) as refusal:
        check_name(name, fifo=False)
    assert refusal.value.name == name


@pytest.mark.parametrize("name", ["a.fifo", "x" * 75 + ".fifo"])
def test_a_fifo_name_ends_in_fifo_counted_in_the_eighty(name):
    check_name(name, fifo=True)


@pytest.mark.parametrize("name", ["a", ".fifo", "x" * 76 + ".fifo", "a.FIFO", "a.fifo\n", "a.fifo.fifo"])
def test_other_texts_cannot_name_a_fifo_queue(name):
    with pytest.raises(NameRefused):
        check_name(name, fifo=True)


def test_an_arn_names_its_key():
    assert KEY.arn == "arn:aws:sqs:eu-central-1:000000000000:orders"
    assert parse_arn(KEY.arn) == KEY
    assert parse_arn("arn:aws-cn:sqs:cn-north-1:1:q") == QueueKey("cn-north-1", "1", "q")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "arn:aws:sns:r:a:q",
        "arn:aws:sqs:r:a",
        "arn:aws:sqs:r:a:",
        "arn:aws:sqs:r:a:q:x",
        "arn::sqs:r:a:q",
    ],
)
def test_other_texts_are_no_arns_and_the_refusal_names_the_parameter(text):
    with pytest.raises(ArnRefused) as refusal:
        parse_arn(text, "SourceArn")
    assert (refusal.value.parameter, refusal.value.arn) == ("SourceArn", text)


@pytest.mark.parametrize(
    ("setting", "low", "high"),
    [
        ("visibility_s", 0, 43_200),
        ("delay_s", 0, 604_800),
        ("message_bytes_max", 1_024, 1_048_576),
        ("retention_s", 60, 1_209_600),
        ("wait_s", 0, 30),
        ("kms_reuse_s", 60, 86_400),
    ],
)
def test_each_length_and_size_has_its_range(setting, low, high):
    for value in (low, high):
        assert getattr(QueueSettings(**{setting: value}), setting) == value
    for value in (low - 1, high + 1):
        with pytest.raises(SettingRefused) as refusal:
            QueueSettings(**{setting: value})
        assert (refusal.value.setting, refusal.value.value) == (setting, value)


def test_the_defaults_are_those_of_sqs():
    settings = QueueSettings()
    assert (settings.visibility_s, settings.delay_s, settings.wait_s) == (30, 0, 0)
    assert (settings.retention_s, settings.message_bytes_max) == (345_600, 1_048_576)
    assert (settings.fifo, settings.deduplication_scope, settings.throughput_limit) == (
        False,
        "queue",
        "perQueue",
    )


@pytest.mark.parametrize(("receives_max", "fine"), [(0, False), (1, True), (1_000, True), (1_001, False)])
def test_a_redrive_policy_allows_one_to_a_thousand_receives(receives_max, fine):
    policy = RedrivePolicy(KEY, receives_max)
    if fine:
        assert QueueSettings(redrive=policy).redrive == policy
        return
    with pytest.raises(SettingRefused):
        QueueSettings(redrive=policy)


def test_at_most_ten_sources_can_be_named():
    QueueSettings(redrive_allow=RedriveAllow("byQueue", (KEY,) * 10))
    with pytest.raises(SettingRefused):
        QueueSettings(redrive_allow=RedriveAllow("byQueue", (KEY,) * 11))


def test_throughput_per_group_needs_deduplication_per_group():
    with pytest.raises(SettingRefused) as refusal:
        QueueSettings(fifo=True, throughput_limit="perMessageGroupId")
    assert refusal.value.setting == "throughput_limit"
    QueueSettings(fifo=True, throughput_limit="perMessageGroupId", deduplication_scope="messageGroup")


def test_who_may_send_dead_letters_here():
    other = KEY._replace(name="other")
    assert RedriveAllow("allowAll").permits(KEY)
    assert not RedriveAllow("denyAll").permits(KEY)
    assert RedriveAllow("byQueue", (KEY,)).permits(KEY)
    assert not RedriveAllow("byQueue", (KEY,)).permits(other)


def test_a_queue_knows_its_name_and_an_empty_one_counts_nothing():
    assert Queue(1, KEY, QueueSettings()).name == "orders"
    assert QueueCounts() == (0, 0, 0)


def test_settings_cannot_be_changed_in_place():
    settings = QueueSettings()
    for each in fields(settings):
        with pytest.raises(AttributeError):
            setattr(settings, each.name, None)
