from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.cli.conftest import Veil
from veil.testing import VeilServer


@pytest.fixture
def dead(veil: Veil, veil_server: VeilServer) -> Veil:
    """Twelve messages of `orders` in its dead letters."""
    veil("queue", "create", "orders-dead")
    veil("queue", "create", "orders", "--dead-letter", "orders-dead", "--max-receives", "1")
    sqs = veil_server.client()
    url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
    for start in (0, 6):
        entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(start, start + 6)]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    for _ in range(2):
        sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)
        sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)
    return veil


def counts(veil: Veil, queue: str) -> int:
    return int(veil("queue", "show", queue, "--json").object["visible"])


def test_ls_lists_only_dead_letters_with_their_sources(dead: Veil) -> None:
    dead("queue", "create", "parcels", "--dead-letter", "orders-dead", "--max-receives", "2")
    assert dead("dlq", "ls", "--json").object == {
        "name": "orders-dead",
        "visible": 12,
        "in_flight": 0,
        "sources": ["orders", "parcels"],
        "last_redrive": None,
    }
    assert "orders, parcels" in dead("dlq", "ls").out


def test_ls_says_when_there_are_none_and_when_one_is_missing(veil: Veil) -> None:
    assert "no queue has a dead-letter queue" in veil("dlq", "ls").err
    veil("queue", "create", "gone")
    veil("queue", "create", "orders", "--dead-letter", "gone", "--max-receives", "2")
    veil("queue", "rm", "gone", "--yes")
    ran = veil("dlq", "ls")
    assert ran.code == 0
    assert "gone: the dead-letter queue of orders does not exist" in ran.err


def test_redrive_sends_them_back_and_waits_for_the_end(dead: Veil) -> None:
    ran = dead("dlq", "redrive", "orders-dead", "--json")
    assert ran.code == 0
    assert ran.object == {
        "name": "orders-dead",
        "status": "COMPLETED",
        "moved": 12,
        "to_move": 12,
        "failure": None,
    }
    assert (counts(dead, "orders"), counts(dead, "orders-dead")) == (12, 0)
    assert dead("dlq", "ls", "--json").object["last_redrive"] == "COMPLETED"


def test_redrive_to_another_queue(dead: Veil) -> None:
    dead("queue", "create", "elsewhere")
    assert dead("dlq", "redrive", "orders-dead", "--to", "elsewhere", "--yes").code == 0
    assert (counts(dead, "orders"), counts(dead, "elsewhere")) == (0, 12)


def test_a_redrive_that_meets_a_message_of_unknown_origin_says_what_to_do(dead: Veil) -> None:
    dead("msg", "send", "orders-dead", "sent here by hand")
    ran = dead("dlq", "redrive", "orders-dead")
    assert ran.code == 1
    last = ran.err.splitlines()[-1]
    assert "CouldNotDetermineMessageSource" in last and "with --to QUEUE" in last
    assert dead("dlq", "redrive", "orders-dead", "--to", "orders").code == 0


def test_a_redrive_whose_target_is_gone_says_what_to_do(dead: Veil) -> None:
    dead("queue", "create", "parcels", "--dead-letter", "orders-dead", "--max-receives", "2")
    dead("queue", "rm", "orders", "--yes")
    ran = dead("dlq", "redrive", "orders-dead")
    assert ran.code == 1
    last = ran.err.splitlines()[-1]
    assert "does not exist" in last and "with --to QUEUE" in last, last


def test_a_slow_redrive_can_be_left_alone_and_cancelled(dead: Veil) -> None:
    started = dead("dlq", "redrive", "orders-dead", "--rate", "1", "--no-wait", "--json")
    assert started.code == 0
    assert json.loads(started.out)["status"] == "RUNNING"
    again = dead("dlq", "redrive", "orders-dead")
    assert again.code == 1
    assert "already a task running" in again.err
    assert dead("dlq", "cancel", "orders-dead").code == 0
    assert counts(dead, "orders-dead") >= 9


def test_what_is_not_a_dead_letter_queue_is_refused(dead: Veil) -> None:
    ran = dead("dlq", "redrive", "orders")
    assert ran.code == 1
    assert "Dead Letter Queue" in ran.err
    none = dead("dlq", "cancel", "orders-dead")
    assert (none.code, none.err) == (1, "veil: no redrive of orders-dead is running\n")


def test_ctrl_c_stops_the_waiting_not_the_redrive(dead: Veil, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("veil.cli.dlq.time", SimpleNamespace(sleep=interrupted))
    ran = dead("dlq", "redrive", "orders-dead", "--rate", "1")
    assert ran.code == 130
    assert "continues on the server; stop it with: veil dlq cancel orders-dead" in ran.err
    assert dead("dlq", "ls", "--json").object["last_redrive"] == "RUNNING"
    dead("dlq", "cancel", "orders-dead")


def test_redrive_of_what_matches_needs_no_spark(dead: Veil) -> None:
    for body in ("a pear of nobody", "another pear"):
        assert dead("msg", "send", "orders-dead", body).code == 0
    stayed = dead("dlq", "redrive", "orders-dead", "--contains", "of nobody")
    assert (stayed.code, "1 message stayed" in stayed.err) == (0, True)
    ran = dead(
        "dlq", "redrive", "orders-dead", "--contains", "PEAR", "--not-redriven", "--to", "orders", "--json"
    )
    assert (ran.code, ran.object["moved"], ran.object["status"]) == (0, 2, "COMPLETED")
    assert (counts(dead, "orders"), counts(dead, "orders-dead")) == (2, 12)
    assert dead("dlq", "redrive", "orders-dead", "--error", "KeyError", "--json").object["moved"] == 0
    assert dead("dlq", "redrive", "orders-dead", "--source", "orders", "--json").object["moved"] == 12


def test_a_refusal_names_the_queue_that_it_is_about(veil: Veil) -> None:
    veil("queue", "create", "orders")
    for words, refused in (
        (("dlq", "redrive", "orders"), "must be configured as a Dead Letter Queue"),
        (("msg", "delete", "orders", "nonsense"), "is not a valid receipt handle"),
    ):
        ran = veil(*words)
        assert ran.code == 1
        assert ran.err.startswith("veil: queue 'orders': ")
        assert refused in ran.err
    assert veil("msg", "tail", "nowhere").err.startswith("veil: there is no queue 'nowhere' at ")
