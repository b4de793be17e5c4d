"""A server keeps a journal of its messages, on by default, wherever it is told to, and never at the queues' expense."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.journal.kit import NO_TROUBLES, events_of
from tests.waiting import until
from veil.journal.segments import list_segments
from veil.journal.storage import Storage
from veil.server.make_store import journal_location
from veil.server.settings import ServerSettingsError, Settings, load_settings, shown_value
from veil.testing import VeilServer


def live(server: VeilServer, queue: str = "orders") -> None:
    """One whole life: sent with a type, received, extended, deleted."""
    sqs = server.client()
    url = sqs.create_queue(QueueName=queue)["QueueUrl"]
    kind = {"type": {"DataType": "String", "StringValue": "order"}}
    sqs.send_message(QueueUrl=url, MessageBody="hello", MessageAttributes=kind)
    receipt = sqs.receive_message(QueueUrl=url)["Messages"][0]["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=60)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=receipt)


def metrics(server: VeilServer) -> dict[str, float]:
    with urlopen(f"{server.endpoint_url}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(veil_journal_\w+) (\S+)$", page, re.M)}


def test_it_is_on_by_default_and_a_stop_exports_what_waits(tmp_path: Path):
    with VeilServer("--data", str(tmp_path), NO_TROUBLES) as server:
        live(server)
        until(lambda: metrics(server)["veil_journal_outbox_rows"] == 4)
    events = events_of(Storage.at(tmp_path / "journal"))
    assert [event["kind"] for event in events] == ["sent", "received", "extended", "deleted"]
    assert {event["queue"] for event in events} == {"orders"}
    assert events[0]["body_bytes"] == 5
    assert events[0]["message_type"] == "order"
    assert all("Boto3" in event["user_agent"] for event in events)
    assert len({event["message_id"] for event in events}) == 1


def test_events_are_exported_while_it_runs(tmp_path: Path):
    place = Storage.at(tmp_path / "elsewhere")
    arguments = ("--data", str(tmp_path / "data"), "--journal", place.uri, "--journal-interval-s", "0.1")
    with VeilServer(*arguments, NO_TROUBLES) as server:
        live(server)
        until(lambda: metrics(server)["veil_journal_events_exported_total"] == 4)
        until(lambda: metrics(server)["veil_journal_outbox_rows"] == 0)
        shown = metrics(server)
        assert shown["veil_journal_outbox_bytes"] == 0
        assert shown["veil_journal_segments_total"] == len(list_segments(place))
        assert shown["veil_journal_segment_bytes_total"] == sum(each.size for each in list_segments(place))
        assert shown["veil_journal_export_failures_total"] == shown["veil_journal_events_lost_total"] == 0
    assert not (tmp_path / "data" / "journal").exists()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_pyarrow_is_never_in_the_server_and_the_helper_ends_with_it(tmp_path: Path):
    with VeilServer("--data", str(tmp_path), "--journal-interval-s", "0.1") as server:
        live(server)
        until(lambda: list_segments(Storage.at(tmp_path / "journal")))
        assert "libarrow" not in Path(f"/proc/{server.pid}/maps").read_text()
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        assert len(children) == 1
        assert "libarrow" in Path(f"/proc/{children[0]}/maps").read_text()
    assert not Path(f"/proc/{children[0]}").exists()


def test_events_of_a_killed_server_are_exported_by_the_next(tmp_path: Path):
    server = VeilServer("--data", str(tmp_path), NO_TROUBLES)
    live(server)
    os.kill(server.pid, signal.SIGKILL)
    server.close()
    assert list_segments(Storage.at(tmp_path / "journal")) == []
    with VeilServer("--data", str(tmp_path), NO_TROUBLES) as server:
        live(server)
    kinds = [event["kind"] for event in events_of(Storage.at(tmp_path / "journal"))]
    assert kinds == ["sent", "received", "extended", "deleted"] * 2


def test_off_keeps_none(tmp_path: Path):
    with VeilServer("--data", str(tmp_path), "--journal", "off") as server:
        live(server)
        assert metrics(server) == {}
    assert not (tmp_path / "journal").exists()


def test_a_store_in_memory_keeps_none_unless_it_is_told_where(tmp_path: Path):
    place = Storage.at(tmp_path / "journal")
    with VeilServer("--store", "memory") as server:
        live(server)
        assert metrics(server) == {}
    for rounds in (1, 2):  # each start is another store, and may go on in the same place
        with VeilServer("--store", "memory", "--journal", place.uri, NO_TROUBLES) as server:
            live(server)
        assert len(events_of(place)) == 4 * rounds


def test_which_attribute_tells_the_type_can_be_set(tmp_path: Path):
    with VeilServer("--data", str(tmp_path), "--journal-type-attributes", "Kind,Sort") as server:
        live(server)
        sqs = server.client()
        url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
        sort = {"Sort": {"DataType": "String", "StringValue": "refund"}}
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=sort)
    sent = [event for event in events_of(Storage.at(tmp_path / "journal")) if event["kind"] == "sent"]
    assert [event["message_type"] for event in sent] == [None, "refund"]


def test_a_location_that_fails_does_not_touch_the_queues(tmp_path: Path):
    (tmp_path / "journal").write_text("in the way")
    arguments = ("--data", str(tmp_path / "data"), "--journal", str(tmp_path / "journal"))
    with VeilServer(*arguments, "--journal-interval-s", "0.1", NO_TROUBLES) as server:
        live(server)
        until(lambda: metrics(server)["veil_journal_export_failures_total"] >= 1)
        live(server)
        until(lambda: metrics(server)["veil_journal_outbox_rows"] == 8)
        (tmp_path / "journal").unlink()
        until(lambda: metrics(server)["veil_journal_events_exported_total"] == 8)


def test_the_location_of_another_store_stops_the_start(tmp_path: Path):
    journal = str(tmp_path / "journal")
    with VeilServer("--data", str(tmp_path / "ours"), "--journal", journal) as server:
        live(server)
    command = [sys.executable, "-m", "veil.cli.main", "serve", "--port", "0", "--config", os.devnull]
    ran = subprocess.run(
        [*command, "--data", str(tmp_path / "theirs"), "--journal", journal],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 1
    assert "holds the journal of another store: name another location" in ran.stderr
    assert "Traceback" not in ran.stderr
    (segment,) = list_segments(Storage.at(journal))
    assert segment.first == 1


def test_a_restore_goes_on_in_the_same_place_under_a_new_name(tmp_path: Path):
    data, again, place = tmp_path / "data", tmp_path / "again", Storage.at(tmp_path / "journal")
    veil = [sys.executable, "-m", "veil.cli.main"]
    with VeilServer("--data", str(data), "--journal", place.uri) as server:
        live(server)
        backup = [*veil, "backup", "--data", str(data), str(tmp_path / "monday.veil")]
        subprocess.run(backup, check=True, capture_output=True)
    subprocess.run(
        [*veil, "restore", str(tmp_path / "monday.veil"), "--data", str(again)],
        check=True, capture_output=True,
    )  # fmt: skip
    with VeilServer("--data", str(again), "--journal", place.uri) as server:
        live(server)
    assert len({segment.journal_id for segment in list_segments(place)}) == 2


# ---- settings


def settings_for(**flags: str) -> Settings:
    return load_settings(flags, {}, os.devnull)


@pytest.mark.parametrize(
    ("flags", "where"),
    [
        ({"data": "d"}, "d/journal"),
        ({"data": "d", "journal": "yes"}, "d/journal"),
        ({"data": "d", "journal": "OFF"}, None),
        ({"data": "d", "journal": "s3://bucket/journal"}, "s3://bucket/journal"),
        ({"data": "d", "store": "sqlite:///var/lib/veil"}, "/var/lib/veil/journal"),
        ({"store": "memory"}, None),
        ({"store": "memory", "journal": "on"}, None),
        ({"store": "memory", "journal": "/j"}, "/j"),
    ],
)
def test_where_the_journal_lies(flags: dict[str, str], where: str | None):
    assert journal_location(settings_for(**flags)) == where


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            {"journal": "ftp://host/x"},
            "journal='ftp://host/x' (--journal): expected on, off, or a path, file:///PATH",
        ),
        ({"journal": "s3://key:secret@bucket/x"}, "without a secret"),
        ({"journal": ""}, "expected on, off, or a path"),
        (
            {"journal_interval_s": "soon"},
            "journal_interval_s='soon' (--journal-interval-s): expected a number",
        ),
        ({"journal_retention_days": "-1"}, "expected a whole number from 0"),
        ({"journal_outbox_max": "10"}, "expected a whole number from 1048576"),
        ({"journal_type_attributes": "a b"}, "expected names of message attributes"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_what_was_expected(flags: dict[str, str], expected: str):
    with pytest.raises(ServerSettingsError) as refused:
        settings_for(**flags)
    assert expected in str(refused.value)


def test_toml_may_say_it_its_own_way(tmp_path: Path):
    file = tmp_path / "veil.toml"
    file.write_text('journal = false\njournal_type_attributes = ["Kind"]\njournal_retention_days = 0\n')
    settings = load_settings({}, {}, str(file))
    assert (settings.journal, settings.journal_type_attributes, settings.journal_retention_days) == (
        "off",
        ("Kind",),
        0,
    )
    assert json.dumps(shown_value(settings.journal_type_attributes)) == '["Kind"]'
