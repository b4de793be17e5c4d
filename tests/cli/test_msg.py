from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Veil
from veil.testing import VeilServer


@pytest.fixture
def orders(veil: Veil) -> Veil:
    veil("queue", "create", "orders", "--visibility-timeout", "60")
    return veil


@pytest.fixture
def nasty(orders: Veil, veil_server: VeilServer) -> Veil:
    """A body with what SQS lets through: C1 controls, a turn of direction, markup."""
    sqs = veil_server.client()
    url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="a\x9b31mb \u202ec [red]d[/red]\n\te\r")
    return orders


def test_send_prints_the_id_and_receive_gives_the_message(orders: Veil) -> None:
    sent = orders("msg", "send", "orders", "hello")
    received = orders("msg", "receive", "orders", "--json").object

    assert received["message_id"] == sent.out.strip()
    assert (received["body"], received["receive_count"]) == ("hello", 1)
    assert received["body_md5"] == "5d41402abc4b2a76b9719d911017c592"
    assert sent.err == ""


def test_a_received_message_is_hidden_from_the_next_receive(orders: Veil) -> None:
    orders("msg", "send", "orders", "hello")
    assert orders("msg", "receive", "orders").out
    again = orders("msg", "receive", "orders")
    assert again == (0, "", "orders: no messages are visible\n")


def test_attributes_of_each_type_arrive(orders: Veil, tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"\x00\xff")
    attributes = ["kind=new", "tries:Number=5", f"blob:Binary=@{tmp_path / 'blob'}", "text:String.label=a=b"]
    orders("msg", "send", "orders", "x", *(part for each in attributes for part in ("--attribute", each)))

    assert orders("msg", "receive", "orders", "--json").object["attributes"] == {
        "kind": {"type": "String", "value": "new"},
        "tries": {"type": "Number", "value": "5"},
        "blob": {"type": "Binary", "base64": "AP8="},
        "text": {"type": "String.label", "value": "a=b"},
    }


def test_a_body_comes_from_a_file_or_from_stdin_to_the_last_byte(
    orders: Veil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "zwei\r\nZeilen ✓\n"
    (tmp_path / "body").write_bytes(body.encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body.encode())))
    orders("msg", "send", "orders", f"@{tmp_path / 'body'}")
    orders("msg", "send", "orders", "-")

    received = orders("msg", "receive", "orders", "--max", "10", "--json").objects
    assert [message["body"] for message in received] == [body, body]


def test_a_delayed_message_is_not_received_yet(orders: Veil) -> None:
    orders("msg", "send", "orders", "later", "--delay", "900")
    assert orders("msg", "receive", "orders").out == ""
    assert orders("msg", "peek", "orders", "--json").object["state"] == "delayed"


def test_fifo_messages_carry_group_and_deduplication(veil: Veil) -> None:
    veil("queue", "create", "steps.fifo", "--fifo")
    first = veil("msg", "send", "steps.fifo", "1", "--group", "g", "--dedup-id", "d", "--json").object
    again = veil("msg", "send", "steps.fifo", "1", "--group", "g", "--dedup-id", "d", "--json").object
    assert first == again

    received = veil("msg", "receive", "steps.fifo", "--json").object
    assert (received["group"], received["deduplication_id"]) == ("g", "d")
    assert received["sequence_number"] == first["sequence_number"]


def test_receive_with_delete_leaves_nothing(orders: Veil) -> None:
    orders("msg", "send", "orders", "x")
    assert orders("msg", "receive", "orders", "--delete").code == 0
    assert orders("msg", "peek", "orders", "--json").out == ""


def test_delete_and_extend_by_receipt(orders: Veil) -> None:
    orders("msg", "send", "orders", "x")
    receipt = orders("msg", "receive", "orders", "--json").object["receipt"]

    before = orders("msg", "peek", "orders", "--json").object["visible_at_ms"]
    assert orders("msg", "extend", "orders", receipt, "600") == (0, "", "")
    assert orders("msg", "peek", "orders", "--json").object["visible_at_ms"] > before + 500_000
    assert orders("msg", "extend", "orders", receipt, "0").code == 0
    assert orders("msg", "receive", "orders").out
    assert orders("msg", "delete", "orders", receipt).code == 0
    assert orders("msg", "peek", "orders", "--json").object["state"] == "in_flight", (
        "the old receipt deletes nothing"
    )


def test_a_forged_receipt_is_refused_in_one_line(orders: Veil) -> None:
    ran = orders("msg", "delete", "orders", "forged")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("veil: queue 'orders': ReceiptHandleIsInvalid: ")
    assert ran.err.count("\n") == 1


def test_peek_neither_hides_nor_counts(orders: Veil) -> None:
    for body in ("one", "two", "three"):
        orders("msg", "send", "orders", body)
    for _ in range(3):
        states = [
            (m["body"], m["state"], m["receive_count"])
            for m in orders("msg", "peek", "orders", "--json").objects
        ]
        assert states == [("one", "visible", 0), ("two", "visible", 0), ("three", "visible", 0)]
    assert len(orders("msg", "receive", "orders", "--max", "10", "--json").objects) == 3


def test_peek_reads_as_many_pages_as_it_needs(orders: Veil, veil_server: VeilServer) -> None:
    sqs = veil_server.client()
    url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
    for start in range(0, 250, 10):
        entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(start, start + 10)]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)

    bodies = [
        message["body"] for message in orders("msg", "peek", "orders", "--max", "230", "--json").objects
    ]
    assert bodies == [str(n) for n in range(230)]


def test_tail_shows_what_is_there_when_asked_and_stops_at_the_count(orders: Veil) -> None:
    for body in ("one", "two", "three"):
        orders("msg", "send", "orders", body)
    ran = orders("msg", "tail", "orders", "--from-start", "--count", "2", "--json")
    assert [message["body"] for message in ran.objects] == ["one", "two"]
    assert orders("queue", "show", "orders", "--json").object["in_flight"] == 0


def test_tail_shows_only_what_is_new_across_pages_and_deletes(orders: Veil, veil_server: VeilServer) -> None:
    from veil.cli.msg import follow
    from veil.client.blocking import BlockingClient, find_target

    sqs = veil_server.client()
    url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]

    def send(count: int, name: str) -> None:
        for n in range(count):
            sqs.send_message(QueueUrl=url, MessageBody=f"{name}-{n}")

    send(150, "old")
    # What happens between the looks, in order: each is run instead of a pause.
    pauses: Iterator[Callable[[], object]] = iter(
        [lambda: send(120, "new"), lambda: sqs.receive_message(QueueUrl=url), lambda: send(1, "last")]
    )
    with BlockingClient(find_target()) as client:
        messages = follow(client, "orders", lambda: next(pauses)())
        bodies = [next(messages)["Body"] for _ in range(121)]
    assert bodies == [f"new-{n}" for n in range(120)] + ["last-0"]


def test_a_body_cannot_speak_to_the_terminal(nasty: Veil) -> None:
    for arguments in (["peek", "orders"], ["peek", "orders", "--json"], ["receive", "orders"]):
        out = nasty("msg", *arguments).out
        assert not set(out) & set("\x1b\x9b\u202e\r\x07"), arguments
        assert "[red]d[/red]" in out


def test_json_output_still_means_the_same_body(nasty: Veil) -> None:
    assert nasty("msg", "peek", "orders", "--json").object["body"] == "a\x9b31mb \u202ec [red]d[/red]\n\te\r"


def test_a_body_cannot_speak_to_a_real_terminal_either(nasty: Veil, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    out = nasty("msg", "peek", "orders").out
    assert "a\\x9b31mb \\u202ec [red]d[/red]\\n\\te\\r" in out
    assert not set(out) & set("\x9b\u202e\r\x07")


def test_a_long_body_takes_no_screen_of_its_own(orders: Veil, monkeypatch: pytest.MonkeyPatch) -> None:
    orders("msg", "send", "orders", "x" * 5_000)
    assert "x" * 999 + "…" in orders("msg", "peek", "orders").out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert orders("msg", "peek", "orders").out.count("\n") < 20


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["send", "orders", "@/no/such/file"], "'/no/such/file': expected a file that can be read"),
        (["send", "orders", ""], "BODY: '': expected at least one character"),
        (["send", "orders", "x", "--attribute", "plain"], "'plain': expected NAME=VALUE"),
        (
            ["send", "orders", "x", "--attribute", "n:Float=1"],
            "'n:Float=1': expected NAME=VALUE, NAME:Number=VALUE",
        ),
        (["send", "orders", "x", "--attribute", "a=1", "--attribute", "a=2"], "'a': given twice"),
        (["receive", "orders", "--max", "11"], "'--max': 11: expected a whole number from 1 to 10"),
        (["extend", "orders", "r", "never"], "'never': expected a length from 0 to 12h"),
    ],
)
def test_a_wrong_argument_is_told_in_one_line(orders: Veil, arguments: list[str], named: str) -> None:
    ran = orders("msg", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert named in ran.err
    assert ran.err.count("\n") == 1


def test_a_body_that_is_not_utf8_is_refused(orders: Veil, tmp_path: Path) -> None:
    (tmp_path / "latin1").write_bytes("grün".encode("latin-1"))
    ran = orders("msg", "send", "orders", f"@{tmp_path / 'latin1'}")
    assert ran.code == 2
    assert "expected UTF-8, byte 2" in ran.err


def test_a_message_that_could_not_be_printed_is_not_deleted(orders: Veil) -> None:
    orders("msg", "send", "orders", "x")
    command = [sys.executable, "-m", "veil.cli.main", "msg", "receive", "orders", "--delete"]
    read_end, write_end = os.pipe()
    os.close(read_end)  # nobody reads any more, as in `veil msg receive … | true`
    try:
        subprocess.run(command, stdout=write_end, stderr=subprocess.DEVNULL)
    finally:
        os.close(write_end)
    assert orders("queue", "show", "orders", "--json").object["in_flight"] == 1


def test_each_line_of_a_file_is_a_message_of_its_own(orders: Veil, tmp_path: Path) -> None:
    lines = tmp_path / "orders.jsonl"
    lines.write_text("".join(f'{{"order": {number}}}\r\n' for number in range(23)) + "\n\nlast")
    ran = orders("msg", "send", "orders", "--lines", str(lines), "--attribute", "kind=new", "--json")
    assert (ran.code, ran.object) == (0, {"sent": 24, "refused": 0})
    found = orders("msg", "peek", "orders", "--max", "100", "--json").objects
    assert [each["body"] for each in found] == [*(f'{{"order": {number}}}' for number in range(23)), "last"]
    assert {each["attributes"]["kind"]["value"] for each in found} == {"new"}
    assert (
        orders("msg", "send", "orders").code == orders("msg", "send", "orders", "x", "--lines", "-").code == 2
    )


def test_a_line_that_is_refused_is_named_and_the_others_are_sent(orders: Veil, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("good\n\n\nbad \x01\nalso good")
    ran = orders("msg", "send", "orders", "--lines", str(lines))
    assert ran.code == 1
    assert "2 of 3 messages sent" in ran.err and "1 message was refused; the first is line 4" in ran.err


def test_lines_cannot_share_a_deduplication_id(orders: Veil, tmp_path: Path) -> None:
    assert orders("queue", "create", "steps.fifo").code == 0
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    ran = orders("msg", "send", "steps.fifo", "--lines", str(lines), "--group", "g", "--dedup-id", "d")
    assert ran.code == 2  # all but the first would be taken for repetitions, and reported as sent
    assert "--dedup-id" in ran.err


def test_lines_that_are_too_long_for_one_request_go_in_several(orders: Veil, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}{'x' * 200_000}\n" for number in range(12)))
    ran = orders("msg", "send", "orders", "--lines", str(lines), "--attribute", "kind=new", "--json")
    assert (ran.code, ran.object) == (0, {"sent": 12, "refused": 0})
