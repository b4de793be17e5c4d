"""Settings are checked before anything starts, and a refusal is one line with name, value and expectation."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

import veil
from tests.consumer.renewal_stories import play
from veil import Adaptive, Consumer, Heartbeat, NoRenewal, SettingsError
from veil.consumer.outcomes import FailurePolicyRefused


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"concurrency": 0}, "concurrency=0: expected a whole number from 1"),
        ({"concurrency": "10"}, "concurrency='10': expected a whole number"),
        ({"concurrency": True}, "concurrency=True: expected a whole number"),
        ({"prefetch": -1}, "prefetch=-1: expected a whole number from 0"),
        ({"visibility": 0}, "visibility=0: expected 1 to 43200 seconds"),
        ({"visibility": 43_201}, "visibility=43201: expected 1 to 43200 seconds"),
        ({"visibility": 1.5}, "visibility=1.5: expected whole seconds"),
        ({"visibility": "30"}, "visibility='30': expected 1 to 43200 seconds"),
        ({"visibility": float("nan")}, "visibility=nan: expected 1 to 43200"),
        ({"visibility": 20, "renewal": Heartbeat(timeout=30)}, "visibility=20: expected the 30 s"),
        ({"drain_timeout": -1}, "drain_timeout=-1: expected seconds or a timedelta, 0 s or more"),
        ({"renewal": Adaptive}, "renewal=<class .*Adaptive.*>: expected a renewal policy: Adaptive()"),
        ({"renewal": 30}, "renewal=30: expected a renewal policy"),
        ({"on_poison": "drop"}, "on_poison='drop': expected an outcome"),
        ({"message_type_attribute": ""}, "message_type_attribute='': expected the name"),
        ({"message_type_attribute": 5}, "message_type_attribute=5: expected the name"),
        ({"worker": 5}, "worker=5: expected text"),
        ({"journal": 5}, "journal=5: expected a directory"),
        ({"lifespan": 5}, "lifespan=5: expected a function"),
        ({"metrics": 5}, "metrics=5: expected a ConsumerMetrics"),
        ({"endpoint": 9324}, "endpoint=9324: expected text"),
        ({"helper_process": "no"}, "helper_process='no': expected True or False"),
        ({"error_texts": "off"}, "error_texts='off': expected True or False"),
        ({"health_port": 70_000}, "health_port=70000: expected a whole number from 0 to 65535"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_setting_that_cannot_work_is_refused_in_one_line(given: dict[str, Any], words: str):
    with pytest.raises(SettingsError, match=words) as refused:
        Consumer("orders", **given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("queue", ["", None, 7])
def test_the_queue_has_a_name(queue: Any):
    with pytest.raises(SettingsError, match="queue="):
        Consumer(queue)


def test_a_failure_policy_that_cannot_work_is_refused():
    with pytest.raises(FailurePolicyRefused, match="on_failure"):
        Consumer("orders", on_failure=5)  # type: ignore[arg-type]


def test_lengths_of_time_are_seconds_or_timedeltas():
    app = Consumer("orders", visibility=timedelta(minutes=2), drain_timeout=timedelta(seconds=90))
    assert app.settings.visibility_s == 120
    assert app.settings.drain_timeout_s == 90


def test_a_length_of_visibility_is_meant_for_every_window():
    own = play(Consumer("orders", visibility=5).settings.renewal, visibility_s=5, handler_s=60)
    assert own.deleted_at_s == 60
    assert {asked for _, _, asked, _ in own.events} == {5}
    chosen = Adaptive(window_min=timedelta(seconds=20))
    assert Consumer("orders", visibility=5, renewal=chosen).settings.renewal is chosen


def test_the_defaults_are_those_of_the_guide():
    settings = Consumer("orders").settings
    assert (settings.concurrency, settings.visibility_s, settings.prefetch) == (10, None, None)
    assert isinstance(settings.renewal, Adaptive)
    assert settings.drain_timeout_s == 25
    assert not settings.helper_process


def test_two_consumers_do_not_learn_from_each_other():
    assert Consumer("a").settings.renewal is not Consumer("b").settings.renewal


@pytest.mark.parametrize(
    "queue",
    [
        "orders.fifo",
        "https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo",
        "arn:aws:sqs:eu-central-1:123456789012:orders.fifo",
    ],
)
def test_a_queue_may_be_given_by_name_url_or_arn(queue: str):
    assert Consumer(queue).settings.name == "orders.fifo"


def test_settings_can_be_replaced_before_the_start():
    app = Consumer("orders", renewal=NoRenewal())
    app.configure(concurrency=3)
    assert app.settings.concurrency == 3
    with pytest.raises(SettingsError, match="concurrency=0"):
        app.configure(concurrency=0)


@pytest.mark.parametrize("name", veil.__all__)
def test_what_the_package_offers_is_there(name: str):
    assert getattr(veil, name).__name__ == name
    assert name in dir(veil)


def test_what_the_package_does_not_offer_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Konsument'"):
        veil.Konsument  # noqa: B018


def test_importing_the_consumer_loads_no_server_and_no_sdk():
    code = "import sys; from veil import Consumer; print(*sys.modules)"
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert not {"boto3", "botocore", "apsw", "rich", "typer", "prometheus_client", "pydantic"} & loaded
    assert not any(
        name.startswith(("veil.server", "veil.service", "veil.stores", "veil.wire")) for name in loaded
    )
