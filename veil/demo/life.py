"""`veil demo life`: the life of one message on a real server, command by command, with each claim checked.

The commands that are shown are the ones that are run, in this process, against the demo's server.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import signal
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

from veil.cli.failures import CommandFailed
from veil.cli.options import AsJson, option
from veil.cli.output import echo, echo_err, echo_json
from veil.demo.processes import Child, Children
from veil.demo.stage import Stage

QUEUE, DEAD = "orders", "orders-dead"
VISIBILITY_S, EXTENDED_S, RECEIVES_MAX = 2, 3, 3
BATCH: Final = 20
_WITHOUT_DATA: Final = ("msg delete", "msg extend")

Told = dict[str, Any]


class StepFailed(Exception):
    """A command of the story did not succeed; the text is what it said."""


def life(as_json: AsJson = False, store: str | None = option("--store", "", hidden=True)) -> None:
    """Show one message's life on a real server, in seconds; needs no Spark.

    The server is killed on the way. The exit code is 1 if anything does not behave as claimed. A claim that could not be
    shown because this machine was too slow is reported, but is not an error.
    """
    stage = Stage(None if as_json else sys.stdout)
    with tempfile.TemporaryDirectory(prefix="veil-demo-") as folder, Children(Path(folder)) as children:
        story = _Story(stage, children, () if store is None else ("--store", store))
        try:
            story.tell()
        except StepFailed as failed:
            stage.claim(
                f"the server answers every request as described (it said {failed})",
                False,
                is_timed=story.is_timed,
            )
    if as_json:
        echo_json({**stage.told, "steps": stage.acts})
    else:
        held, broken, not_shown = map(len, (stage.held, stage.broken, stage.not_shown))
        told = (
            f"{held} claims held, {not_shown} could not be shown."
            if not_shown
            else f"All {held} claims held."
        )
        echo()
        echo(f"{broken} of {held + broken} claims broken." if broken else told)
        if not broken and not not_shown:
            echo_err("Next: veil serve, then veil queue create NAME; or veil --help.")
    if stage.broken:
        raise CommandFailed(f"{len(stage.broken)} of the demo's claims did not hold")


class _Story:
    """The acts, in their order."""

    def __init__(self, stage: Stage, children: Children, options: tuple[str, ...]) -> None:
        self._stage, self._children, self._options = stage, children, options
        self.is_timed = False  # where the machine is late, a lease lapses too soon for the story

    def tell(self) -> None:
        stage = self._stage
        stage.act(
            "A queue server",
            "A real server process on a free port, with its data on disk. It speaks Amazon SQS's protocol: everything below "
            "could be boto3 or the aws command instead.",
        )
        server = self._serve()
        self._veil(f"queue create {DEAD}")
        redrive = f"--dead-letter {DEAD} --max-receives {RECEIVES_MAX}"
        self._veil(f"queue create {QUEUE} --visibility-timeout {VISIBILITY_S} {redrive}")
        stage.claim("the queue exists and is empty", self._counts() == (0, 0, 0))
        self.is_timed = True
        self._one_message()
        self.is_timed = False
        self._poison()
        server = self._crash(server)
        stage.act(
            "Stopped",
            "SIGTERM: the server answers waiting polls, finishes running requests, and exits.",
        )
        (code,) = self._children.end([server])
        stage.show(f"kill {server.pid}", f"exit code {code}")
        stage.claim("it stopped cleanly", code == 0, is_timed=code is None)

    def _one_message(self) -> None:
        stage = self._stage
        stage.act(
            "Sent", "The answer comes after fsync: from here on the message survives kill -9 and power loss."
        )
        (sent,) = self._veil(f"msg send {QUEUE} '{{\"order\": 1}}'")
        stage.claim("one message is visible", self._counts() == (1, 0, 0))

        stage.act(
            "Received, and therefore invisible",
            f"A receive does not remove the message. It hides it from everybody else for {VISIBILITY_S} seconds and gives this "
            "receiver a receipt: its lease.",
        )
        first = self._only(self._veil(f"msg receive {QUEUE}"))
        stage.claim(
            "it is the message that was sent, received once", _known(first) == (sent["message_id"], 1)
        )
        again = self._veil(f"msg receive {QUEUE}", note="a second worker")
        stage.claim("a second receive finds nothing", not again, is_timed=True)
        stage.claim("it is not gone: one message in flight", self._counts() == (0, 1, 0), is_timed=True)

        stage.act(
            "Extended",
            f"The work takes longer than expected, so the holder asks for {EXTENDED_S} seconds more. They count from now, not "
            "from the old deadline, and never go beyond 12 hours after the receive.",
        )
        self._veil(f"msg extend {QUEUE} {first['receipt']} {EXTENDED_S}")
        stage.claim("the message stays in flight", self._counts() == (0, 1, 0), is_timed=True)

        stage.act(
            "The lease lapses, the message comes back",
            "The first worker never deletes it: crashed, or too slow. A second worker waits in a long poll and gets the "
            "message the moment the deadline passes.",
        )
        begun_s = time.monotonic()
        second = self._only(self._veil(f"msg receive {QUEUE} --wait 20"))
        waited_s = time.monotonic() - begun_s
        stage.note(f"after {waited_s:.2f} s")
        in_time = EXTENDED_S - 0.5 < waited_s < EXTENDED_S + 1
        stage.claim(
            "it came back by itself, not early, within a second of its deadline", in_time, is_timed=True
        )
        stage.claim("same message, receive count 2", _known(second) == (sent["message_id"], 2), is_timed=True)
        stage.claim("with a new receipt", second["receipt"] != first["receipt"])

        stage.act(
            "The late receipt changes nothing",
            "Now the first worker wakes up and deletes. Its lease is over and somebody else holds the message: a receipt that "
            "does not hold the open lease never touches it.",
        )
        self._veil(f"msg delete {QUEUE} {first['receipt']}")
        stage.claim(
            "the answer is a success, but nothing was deleted", self._counts() == (0, 1, 0), is_timed=True
        )
        is_refused = False
        try:
            self._veil(f"msg extend {QUEUE} {first['receipt']} 0")
        except StepFailed:
            is_refused = True
        stage.claim("it cannot take the lease away from its holder either", is_refused, is_timed=True)
        # The rest of the story needs it open, however slow this machine is.
        self._veil(f"msg extend {QUEUE} {second['receipt']} 60")

        stage.act("Deleted", "The holder is done. Once this is answered the message never comes back.")
        self._veil(f"msg delete {QUEUE} {second['receipt']}")
        stage.claim("the queue is empty", self._counts() == (0, 0, 0))

    def _poison(self) -> None:
        stage = self._stage
        stage.act(
            "Poison goes to the dead letters",
            f"A message no worker can handle: each gives it back at once (timeout 0). After {RECEIVES_MAX} receives the next "
            "one moves it to the dead letters in the same transaction, and returns without it.",
        )
        body = "not json at all"
        (sent,) = self._veil(f"msg send {QUEUE} {body!r}")
        for turn in range(1, RECEIVES_MAX + 1):
            found = self._veil(f"msg receive {QUEUE} --visibility-timeout 0")
            stage.claim(f"receive {turn} is counted", [_known(each)[1] for each in found] == [turn])
        stage.claim("the next receive returns nothing", not self._veil(f"msg receive {QUEUE}"))
        dead = self._veil(f"msg peek {DEAD}", note="looks, does not receive")
        stage.claim(
            "it is among the dead letters, same id, its count kept",
            [_known(each) for each in dead] == [(sent["message_id"], RECEIVES_MAX)],
        )
        stage.claim("and nowhere else", self._counts() == (0, 0, 0))

        stage.act(
            "Redriven", "The bug is fixed; the dead letters go back to where they came from, as new messages."
        )
        (task,) = self._veil(f"dlq redrive {DEAD}")
        stage.claim("the task completed", task["status"] == "COMPLETED")
        found = self._veil(f"msg receive {QUEUE} --delete")
        is_back = [(each["body"], each["receive_count"]) for each in found] == [(body, 1)]
        stage.claim("the message is back, receive count 1", is_back)
        both = self._counts() == self._counts(DEAD) == (0, 0, 0)
        stage.claim("handled and deleted; both queues are empty", both)

    def _crash(self, server: Child) -> Child:
        stage = self._stage
        stage.act(
            "kill -9",
            f"{BATCH} more orders; a worker holds one of them for a minute. Then the server dies without warning and is "
            "started again on the same data.",
        )
        orders = self._children.folder / "orders.jsonl"
        orders.write_text("".join(f'{{"order": {number}}}\n' for number in range(BATCH)))
        self._veil(f"msg send {QUEUE} --lines {orders}")
        held = self._only(self._veil(f"msg receive {QUEUE} --visibility-timeout 60"))
        sent = {each["message_id"] for each in self._asked(f"msg peek {QUEUE} --max {2 * BATCH}")}
        self._children.end([server], signal.SIGKILL)
        stage.show(f"kill -9 {server.pid}", "killed")
        server = self._serve()
        (queue,) = self._asked(f"queue show {QUEUE}")
        counts = {name: queue[name] for name in ("visible", "in_flight", "delayed")}
        stage.show(
            f"veil queue show {QUEUE}",
            "  ".join(f"{name.replace('_', ' ')} {n}" for name, n in counts.items()),
        )
        stage.claim("nothing lost, and the window is still open", self._counts() == (BATCH - 1, 1, 0))
        found: list[str] = []
        while batch := self._asked(f"msg receive {QUEUE} --max 10 --visibility-timeout 60"):
            found += [each["message_id"] for each in batch]
        others = sorted(found) == sorted(sent - {held["message_id"]})
        stage.claim("every other message is there once; the held one was given to nobody", others)
        self._veil(f"msg delete {QUEUE} {held['receipt']}", note="the receipt from before the crash")
        is_deleted = self._counts() == (0, BATCH - 1, 0)
        stage.claim("the worker's receipt still works: its message is deleted", is_deleted)
        return server

    def _serve(self) -> Child:
        server, started_s = self._children.start_server(*self._options)
        shown = f"{self._children.endpoint}  pid {server.pid}  ready after {started_s:.1f} s"
        self._stage.show("veil serve", shown)
        return server

    def _veil(self, line: str, note: str = "") -> list[Told]:
        """Show the command, run it, and show what it came to; StepFailed if it did not succeed."""
        command = f"veil {_shortened(line)}" + (f"   # {note}" if note else "")
        try:
            told = self._asked(line)
        except StepFailed as failed:
            self._stage.show(command, _shortened(str(failed)))
            raise
        answer = "\n".join(_in_words(each) for each in told)
        self._stage.show(command, None if line.startswith(_WITHOUT_DATA) else answer)
        return told

    def _asked(self, line: str) -> list[Told]:
        from veil.cli.main import run

        form = [] if line.startswith(_WITHOUT_DATA) else ["--json"]
        said, out = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(said):
            code = run([*shlex.split(line), *form, "--endpoint", self._children.endpoint])
        if code != 0:
            raise StepFailed(said.getvalue().strip().removeprefix("veil: "))
        return [json.loads(each) for each in out.getvalue().splitlines()]

    def _counts(self, queue: str = QUEUE) -> tuple[int, int, int]:
        (found,) = self._asked(f"queue show {queue}")
        return found["visible"], found["in_flight"], found["delayed"]

    def _only(self, messages: list[Told]) -> Told:
        if not messages:
            raise StepFailed("no messages are visible")
        return messages[0]


def _shortened(text: str) -> str:
    """The text with the last characters of receipts only."""
    return re.sub(r"[\w-]{36,}([\w-]{8})", r"…\1", text)


def _known(message: Told) -> tuple[str, int]:
    return message["message_id"], message["receive_count"]


def _in_words(told: Told) -> str:
    """What a command said, on one line."""
    if "receive_count" not in told:
        return "  ".join(
            f"{name.replace('_', ' ')} {value}" for name, value in told.items() if value is not None
        )
    rest = f"receipt {_shortened(told['receipt'])}" if "receipt" in told else told["state"]
    return f"{told['message_id']}  receive count {told['receive_count']}  {rest}  {told['body']}"
