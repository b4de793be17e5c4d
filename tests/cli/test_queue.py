from __future__ import annotations

import re
import sys

import pytest

from tests.cli.conftest import Veil
from veil.testing import VeilServer


def test_create_prints_the_url_and_nothing_else(veil: Veil, veil_server: VeilServer) -> None:
    ran = veil("queue", "create", "orders", "--visibility-timeout", "45")

    assert ran == (0, f"{veil_server.endpoint_url}/000000000000/orders\n", "")
    shown = veil("queue", "show", "orders", "--json").object
    assert shown["visibility_timeout_s"] == 45


def test_every_setting_reaches_the_server(veil: Veil) -> None:
    veil("queue", "create", "dead.fifo", "--fifo")
    options = [
        "--visibility-timeout",
        "5",
        "--dead-letter",
        "dead.fifo",
        "--max-receives",
        "7",
        "--fifo",
        "--delay",
        "3",
        "--retention",
        "90",
        "--max-message-bytes",
        "2048",
        "--wait",
        "4",
        "--content-deduplication",
        "--tag",
        "a=1",
        "--tag",
        "b=x=y",
    ]
    assert veil("queue", "create", "steps.fifo", *options).code == 0

    shown = veil("queue", "show", "steps.fifo", "--json").object
    expected = {
        "name": "steps.fifo",
        "visibility_timeout_s": 5,
        "delay_s": 3,
        "retention_s": 90,
        "wait_s": 4,
        "max_message_bytes": 2048,
        "fifo": True,
        "content_deduplication": True,
        "dead_letters": "dead.fifo",
        "max_receives": 7,
        "tags": {"a": "1", "b": "x=y"},
    }
    assert shown.items() >= expected.items()


def test_creating_the_same_queue_again_is_no_error_but_other_settings_are(veil: Veil) -> None:
    first = veil("queue", "create", "orders", "--visibility-timeout", "45")
    assert veil("queue", "create", "orders", "--visibility-timeout", "45") == first

    other = veil("queue", "create", "orders", "--visibility-timeout", "46")
    assert other.code == 1
    assert other.out == ""
    assert other.err.startswith("veil: queue 'orders': QueueNameExists: A queue already exists")
    assert other.err.endswith("; to change it: veil queue edit orders\n")
    assert "VisibilityTimeout" in other.err
    assert other.err.count("\n") == 1


def test_ls_aligns_for_a_pipe_and_counts_exactly(veil: Veil) -> None:
    veil("queue", "create", "b-long-name")
    veil("queue", "create", "a")
    veil("msg", "send", "a", "one")
    veil("msg", "send", "a", "two")
    veil("msg", "send", "a", "later", "--delay", "900")
    veil("msg", "receive", "a")

    lines = veil("queue", "ls").out.splitlines()
    assert lines[0].split() == [
        "QUEUE",
        "VISIBLE",
        "IN",
        "PROGRESS",
        "RETRYING",
        "DELAYED",
        "VISIBILITY",
        "DEAD",
        "LETTERS",
    ]
    assert lines[1].split() == ["a", "1", "1", "0", "1", "30", "s", "-"]
    assert lines[0].index("VISIBLE") + len("VISIBLE") == lines[1].index(" 1 ") + 2
    assert [queue["name"] for queue in veil("queue", "ls", "b", "--json").objects] == ["b-long-name"]


def test_ls_of_no_queues_says_so_on_stderr_only(veil: Veil) -> None:
    ran = veil("queue", "ls")
    assert (ran.code, ran.out) == (0, "")
    assert "no queues" in ran.err


def test_edit_shows_the_difference_and_makes_it(veil: Veil) -> None:
    veil("queue", "create", "dead")
    veil("queue", "create", "orders", "--visibility-timeout", "30", "--tag", "old=1")
    ran = veil(
        "queue", "edit", "orders", "--visibility-timeout", "600", "--dead-letter", "dead", "--max-receives", "3",
        "--tag", "new=2", "--untag", "old",
    )  # fmt: skip

    assert ran == (
        0,
        "",
        "orders\n"
        "- visibility timeout  30 s\n"
        "+ visibility timeout  10 min\n"
        "+ dead letters        dead after 3 receives\n"
        "- tag old             1\n"
        "+ tag new             2\n",
    )
    shown = veil("queue", "show", "orders", "--json").object
    assert (shown["visibility_timeout_s"], shown["dead_letters"], shown["tags"]) == (
        600,
        "dead",
        {"new": "2"},
    )


def test_a_dry_run_changes_nothing(veil: Veil) -> None:
    veil("queue", "create", "orders")
    ran = veil("queue", "edit", "orders", "--visibility-timeout", "7", "--dry-run")

    assert ran.code == 0
    assert "+ visibility timeout  7 s" in ran.err
    assert "nothing changed" in ran.err
    assert veil("queue", "show", "orders", "--json").object["visibility_timeout_s"] == 30


def test_a_queue_cannot_become_its_own_dead_letter_queue(veil: Veil) -> None:
    veil("queue", "create", "orders")
    ran = veil("queue", "edit", "orders", "--dead-letter", "orders", "--max-receives", "3")
    assert ran.code == 2
    assert "--dead-letter: 'orders': a queue cannot be its own dead-letter queue" in ran.err


def test_edit_can_change_the_maximum_of_receives_alone_and_take_dead_letters_away(veil: Veil) -> None:
    veil("queue", "create", "dead")
    veil("queue", "create", "orders", "--dead-letter", "dead", "--max-receives", "3")
    assert veil("queue", "edit", "orders", "--max-receives", "9").code == 0
    assert veil("queue", "show", "orders", "--json").object["max_receives"] == 9
    assert veil("queue", "edit", "orders", "--no-dead-letter").code == 0
    assert veil("queue", "show", "orders", "--json").object["dead_letters"] is None


def test_edit_of_nothing_says_so(veil: Veil) -> None:
    veil("queue", "create", "orders")
    assert veil("queue", "edit", "orders", "--visibility-timeout", "30").err == "orders: nothing to change\n"


@pytest.mark.parametrize("verb", ["rm", "purge"])
def test_without_a_terminal_and_yes_nothing_is_lost(veil: Veil, verb: str) -> None:
    veil("queue", "create", "orders")
    veil("msg", "send", "orders", "x")
    veil("msg", "send", "orders", "y")
    ran = veil("queue", verb, "orders")

    assert ran.code == 2
    assert "2 messages" in ran.err
    assert "--yes" in ran.err
    assert veil("queue", "show", "orders", "--json").object["visible"] == 2


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 1, 1), ("\n", 1, 1), ("", 1, 1)])
def test_purge_asks_on_a_terminal(
    veil: Veil, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, left: int
) -> None:
    veil("queue", "create", "orders")
    veil("msg", "send", "orders", "x")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdin, "readline", lambda: answer, raising=False)
    ran = veil("queue", "purge", "orders")

    assert ran.code == code
    assert "Purge 1 message from queue orders? [y/N]" in ran.err
    assert veil("queue", "show", "orders", "--json").object["visible"] == left


def test_rm_with_yes_removes_the_queue(veil: Veil) -> None:
    veil("queue", "create", "orders")
    assert veil("queue", "rm", "orders", "--yes").code == 0
    assert veil("queue", "ls", "--json").out == ""


def test_a_missing_queue_is_one_line_and_exit_code_1(veil: Veil) -> None:
    ran = veil("queue", "show", "nowhere")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("veil: there is no queue 'nowhere' at http://") and ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "named", "expected"),
    [
        (
            ["create", "x", "--visibility-timeout", "43201"],
            "'--visibility-timeout': '43201'",
            "from 0 to 12h",
        ),
        (["create", "x", "--delay", "soon"], "'--delay': 'soon'", "from 0 to 15m"),
        (["create", "x", "--fifo"], "'x'", "ends in .fifo"),
        (["create", "x", "--content-deduplication"], "'x' is a standard queue", "ends in .fifo"),
        (["edit", "x", "--content-deduplication"], "'x' is a standard queue", "ends in .fifo"),
        (["create", "a b"], "'a b'", "1 to 80 alphanumeric"),
        (["create", "x", "--dead-letter", "d"], "--max-receives", "both or neither"),
        (["create", "x", "--tag", "novalue"], "'novalue'", "KEY=VALUE"),
        (["create"], "'NAME'", "Missing argument"),
        (["create", "x", "--nonsense"], "--nonsense", "No such option"),
    ],
)
def test_a_wrong_argument_is_one_line_that_names_it_and_exit_code_2(
    veil: Veil, arguments: list[str], named: str, expected: str
) -> None:
    ran = veil("queue", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert named in ran.err
    assert expected in ran.err
    assert ran.err.count("\n") == 1


def test_queues_are_listed_over_all_pages(veil: Veil, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veil.client.blocking._PAGE", 2)
    names = ["a", "b", "c", "d", "e"]
    for name in names:
        veil("queue", "create", name)
    assert [queue["name"] for queue in veil("queue", "ls", "--json").objects] == names


def test_a_pause_stops_deliveries_and_is_seen_wherever_the_queue_is(veil: Veil) -> None:
    veil("queue", "create", "orders")
    veil("msg", "send", "orders", "hello")
    assert veil("queue", "pause", "orders").code == 0

    assert veil("msg", "receive", "orders", "--json").objects == []
    assert "orders (paused)" in veil("queue", "ls").out
    assert veil("queue", "ls", "--json").object["paused"] is True
    assert "deliveries" in veil("queue", "show", "orders").out

    assert veil("queue", "resume", "orders").code == 0
    assert veil("queue", "ls", "--json").object["paused"] is False
    assert veil("msg", "receive", "orders", "--json").object["body"] == "hello"


def test_a_pause_of_a_missing_queue_says_so(veil: Veil) -> None:
    ran = veil("queue", "pause", "nowhere")
    assert ran.code == 1
    assert "there is no queue 'nowhere'" in ran.err


# ---- watching


def test_top_shows_each_queue_with_its_rates_the_fullest_first(veil: Veil) -> None:
    for name in ("bills", "orders"):
        veil("queue", "create", name)
    for body in "ab":
        veil("msg", "send", "orders", body)
    veil("queue", "pause", "bills")

    once = veil("top").out.splitlines()
    assert once[0].split()[:5] == ["QUEUE", "VISIBLE", "IN", "PROGRESS", "RETRYING"]
    assert [line.split()[0] for line in once[1:]] == ["orders", "bills"]
    assert "bills (paused)" in once[2]

    assert [each["name"] for each in veil("top", "--json").objects] == ["orders", "bills"]  # and it ends
    looks = veil("top", "ord", "--interval", "0.05", "--count", "2", "--json").objects
    assert [(each["name"], each["visible"], each["sent_per_s"]) for each in looks] == [
        ("orders", 2, None),
        ("orders", 2, 0.0),
    ]


def test_leases_shows_who_holds_what_until_when(veil: Veil) -> None:
    for name in ("bills", "orders"):
        veil("queue", "create", name)
        veil("msg", "send", name, "x")
    veil("msg", "send", "orders", "not received")
    assert "no messages are in flight" in veil("leases").err
    held = veil("msg", "receive", "orders", "--visibility-timeout", "5m", "--json").object
    veil("msg", "receive", "bills", "--visibility-timeout", "1m")

    first, second = veil("leases", "--json").objects
    assert (first["queue"], second["queue"]) == ("bills", "orders")
    assert second["message_id"] == held["message_id"]
    assert (second["receive_count"], second["renewals"], second["outcome"]) == (1, 0, None)
    assert re.fullmatch(r"veil/\S+ command", second["user_agent"])
    assert second["address"] == "127.0.0.1"
    assert 0 < second["visible_at_ms"] - second["received_at_ms"] <= 300_000
    assert [each["queue"] for each in veil("leases", "orders", "--json").objects] == ["orders"]
    assert "127.0.0.1" in veil("leases").out
