"""`veil autopilot`: keep timeouts right where the owner of a queue allows it; show what it did, undo it, resume it."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from veil import words
from veil.cli.app import group
from veil.cli.failures import TOLD, ArgumentWrong, CommandFailed, in_words
from veil.cli.options import (
    AsJson,
    DataDirectory,
    Endpoint,
    QueueName,
    Region,
    connect,
    flag,
    how_often,
    option,
    server_page,
    server_settings,
    with_client,
)
from veil.cli.output import echo, echo_err, echo_json, echo_object, show_table
from veil.cli.pipeline.options import (
    JournalPlace,
    TablesPlace,
    places,
    read_beside,
    spark_when_needed,
    with_spark,
    with_tables,
)
from veil.cli.queue import set_timeout_command, visibility_timeout_s
from veil.client.api import ApiError
from veil.core.autopilot import (
    FILE,
    RESUME_TAG,
    AutopilotState,
    Decision,
    DecisionKind,
    PilotedQueue,
    PolicyUnreadable,
    StateUnreadable,
    decode_state,
    read_policy,
)

if TYPE_CHECKING:
    from veil.client.blocking import BlockingClient
    from veil.console.audit import AuditFile
    from veil.journal.storage import Storage
    from veil.pipeline.autopilot.loop import Autopilot, JournalHealth
    from veil.pipeline.spark.session import SparkSettings

_log = logging.getLogger(__name__)

_CALL_S: Final = 5.0
_HOOKS_WAITING_MAX: Final = 100
_SETTLED_S: Final = 1.0


class ClientQueues:
    """The queues of a server, by name."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client
        self.region = client.target.region

    def names(self) -> Iterable[str]:
        return list(self._client.queue_names())

    def tags(self, queue: str) -> Mapping[str, str]:
        """Of one queue; none where it is gone."""
        try:
            return dict(self._client.on_queue("ListQueueTags", queue).get("Tags", {}))
        except ApiError as refused:
            if not refused.is_missing_queue:
                raise
            return {}

    def tag(self, queue: str, name: str, value: str) -> None:
        self._client.on_queue("TagQueue", queue, {"Tags": {name: value}})

    def timeout_s(self, queue: str) -> int | None:
        return visibility_timeout_s(self._client, queue)

    def set_timeout(self, queue: str, timeout_s: int) -> None:
        attributes = {"VisibilityTimeout": str(timeout_s)}
        self._client.on_queue("SetQueueAttributes", queue, {"Attributes": attributes})

    def undo_command(self, queue: str, decision: Decision) -> str | None:
        """The command that undoes this change; None where nothing was changed."""
        if decision.kind not in (DecisionKind.CHANGE, DecisionKind.TAKE_BACK):
            return None
        return set_timeout_command(self._client, queue, decision.before_s)

    def account(self, queue: str) -> str:
        return self._client.account(queue)


class SharedAudit:
    """The server's own audit log, which the console shows; each decision is an entry."""

    def __init__(self, file: AuditFile, queues: ClientQueues) -> None:
        self._file, self._queues = file, queues

    def asked(self, entry_id: str, queue: str, decision: Decision, outcome: str | None = None) -> None:
        """A decision: one that is being carried out, or one with its outcome."""
        from veil.console.audit import ASKED, AuditEntry, as_line

        differences, undo = [], self._queues.undo_command(queue, decision)
        if decision.after_s is not None and decision.before_s not in (None, decision.after_s):
            lengths = (words.exact_length(decision.before_s), words.exact_length(decision.after_s))
            differences = [["Visibility timeout", *lengths]]
        entry = AuditEntry(
            id=entry_id, at=words.iso(time.time() * 1000), who="autopilot", role="autopilot", address="",
            account=self._queues.account(queue), action=f"autopilot: {decision.kind.value}", target=queue,
            differences=differences, commands=[undo] if undo else [], outcome=outcome or ASKED, detail=decision.told,
        )  # fmt: skip
        self._file.append(as_line(entry))

    def ended(self, entry_id: str, outcome: str, detail: str) -> None:
        from veil.console.audit import AuditEnd, as_line

        self._file.append(as_line(AuditEnd(entry_id, outcome, detail)))

    def known(self, entry_id: str) -> tuple[bool, bool]:
        """Whether the entry is there, and whether its end is."""
        mark = f'"id":"{entry_id}"'.encode()
        lines = [each for each in self._file.read(0, self._file.size()).splitlines() if mark in each]
        return any(b'"action":' in each for each in lines), any(b'"action":' not in each for each in lines)


class Webhook:
    """Posts decisions as JSON, in a thread: whoever does not answer holds nothing up, and what is too much is dropped."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ArgumentWrong(f"--webhook {url!r}: expected an http or https URL")
        self._url = url
        self._thread = ThreadPoolExecutor(1)
        self._waiting: set[Future[None]] = set()

    def __call__(self, told: Mapping[str, Any]) -> None:
        if len(self._waiting) < _HOOKS_WAITING_MAX:
            self._waiting.add(post := self._thread.submit(self._post, json.dumps(told).encode()))
            post.add_done_callback(self._waiting.discard)

    def finish(self) -> None:
        """Give what waits a moment."""
        wait(tuple(self._waiting), _CALL_S)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _post(self, body: bytes) -> None:
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url, body, kind)  # noqa: S310 - the scheme was checked
        try:
            with urllib.request.urlopen(request, timeout=_CALL_S) as answer:  # noqa: S310
                answer.read(1_024)
        except (OSError, ValueError) as problem:
            _log.warning("the webhook did not take a decision: %s", problem)


def journal_health(client: BlockingClient, journal: Storage) -> JournalHealth | str | None:
    """What the server's metrics say of its journal, or why they cannot be had. A journal that consumers write themselves tells
    by a row that is missing in it that they had to drop some."""
    from veil.journal.segments import gaps, list_segments
    from veil.journal.storage import OF_CONSUMERS, read_mark
    from veil.pipeline.autopilot.loop import JournalHealth

    mark = read_mark(journal)
    if mark is not None and mark[0].startswith(OF_CONSUMERS):
        return JournalHealth(
            0.0, float(sum(gap.last - gap.first + 1 for gap in gaps(list_segments(journal))))
        )
    page = server_page(client.target.endpoint, "/metrics", _CALL_S)
    if page.status != HTTPStatus.OK:
        why = page.problem or f"HTTP {page.status}"
        return f"the server's /metrics, which tell whether its journal is complete, cannot be read: {why}"
    told = page.metrics
    if "veil_journal_outbox_age_seconds" not in told:
        return "the server keeps no journal"
    now_s = told.get("veil_journal_clock_seconds")
    return JournalHealth(
        float(told["veil_journal_outbox_age_seconds"]),
        float(told["veil_journal_events_lost_total"]),
        None if now_s is None else round(float(now_s) * 1000),
    )


autopilot_app = group("autopilot", no_args_is_help=False)

_EXAMPLES = "Example: veil queue edit orders --tag veil:autopilot=advise && veil autopilot --once"


@autopilot_app.callback(invoke_without_command=True, epilog=_EXAMPLES)
@with_spark
def run(
    ctx: typer.Context,
    spark: SparkSettings,
    once: bool = flag("--once", "Check every queue once, then exit."),
    every: float = how_often("--every", "How often to check the queues. Default: 1m.", 60.0),
    default: str | None = option(
        "--default POLICY",
        "The policy for queues without the tag veil:autopilot: off, advise, or apply with bounds such as least=30s. "
        "Default: the setting autopilot_default.",
    ),
    webhook: str | None = option("--webhook URL", "Post each decision to this URL as JSON."),
    audit: Path | None = option("--audit FILE", "The audit log. Default: the server's, DATA/audit.jsonl."),
    data: DataDirectory = None,
    journal: JournalPlace = None,
    tables: TablesPlace = None,
    endpoint: Endpoint = None,
    region: Region = None,
    as_json: AsJson = False,
    attached: bool = flag("--attached", "", hidden=True),
) -> None:
    """Keep visibility timeouts right on queues whose tag veil:autopilot allows it.

    The tag's value is off, advise or apply, followed by bounds: `apply least=30s greatest=15m step=4 every=6h`.
    Every decision is written to the audit log with its reason. A change that turns out to be wrong is taken back. A timeout
    that a person sets is left alone until `veil autopilot resume QUEUE`. The autopilot runs until it is told to stop.
    """
    if ctx.invoked_subcommand is not None:
        return
    from veil.console.audit import AuditFile
    from veil.pipeline.autopilot.loop import LOCK, Autopilot
    from veil.pipeline.lifecycles.lock import TablesBusy, only_run
    from veil.server.console import AUDIT_FILE, audit_file

    if attached:  # to the server that started it: when that is gone, the input ends
        threading.Thread(target=_leave_with_input, daemon=True).start()
    settings = server_settings({"data": data})
    try:
        policy = read_policy(settings.autopilot_default if default is None else default)
    except PolicyUnreadable as refused:
        raise ArgumentWrong(f"--default {refused}") from None
    journal_place, tables_place = places(data, journal, tables)
    webhook = webhook or settings.autopilot_webhook
    hook = None if webhook is None else Webhook(webhook)
    audit = audit or audit_file(settings) or settings.data / AUDIT_FILE
    with (
        connect(endpoint, region) as client,
        spark_when_needed(spark, "autopilot", quiet=True) as (session, is_chosen),
    ):
        from veil.cli.pipeline.timeouts import SCHEDULES
        from veil.pipeline.lifecycles.generation import BYTES_HERE_MAX
        from veil.pipeline.lifecycles.run import run_lifecycles
        from veil.pipeline.timeouts.run import run_timeouts

        queues = ClientQueues(client)
        here_max = 0 if is_chosen else BYTES_HERE_MAX

        def decided(queue: str, state: PilotedQueue, decision: Decision) -> None:
            undo = queues.undo_command(queue, decision)
            told = _as_json(queue, state, decision, undo)
            line = f"{queue}: {decision.kind.value}: {decision.told}" + (f"; undo: {undo}" if undo else "")
            echo_object(told, line, as_json=as_json)
            if hook is not None:
                hook(told)

        try:
            with only_run(tables_place, LOCK):
                pilot = Autopilot(
                    tables=tables_place,
                    queues=queues,
                    audit=SharedAudit(AuditFile(audit), queues),
                    refresh=lambda: run_lifecycles(
                        session, journal_place, tables_place, bytes_here_max=here_max
                    ),
                    health=lambda: journal_health(client, journal_place),
                    now_ms=lambda: int(time.time() * 1000),
                    default=policy,
                    schedules=SCHEDULES,
                    find_all=lambda goals: run_timeouts(
                        tables_place, policies=SCHEDULES, policy=policy.renewal, goals=goals
                    ),
                    tell=decided,
                )
                if not once:
                    echo_err(
                        f"checking the queues that allow it every {words.length(every)}; stop with Ctrl-C"
                    )
                _turn(pilot, every, once=once)
        except TablesBusy as busy:
            raise CommandFailed(
                f"another autopilot is already running on these tables: {busy.owner}"
            ) from None
        except StateUnreadable as refused:
            raise CommandFailed(str(refused)) from None
        finally:
            if hook is not None:
                hook.finish()


_NONE_ALLOWED: Final = (
    "no queue allows the autopilot; allow it with: veil queue edit QUEUE --tag veil:autopilot=advise"
)


def _turn(pilot: Autopilot, every_s: float, *, once: bool) -> None:
    told: str | None = None
    while True:
        try:
            state = pilot.look_at_all()
            if pilot.has_claimed:  # the next look may change the queue, if nobody else claimed it too
                time.sleep(_SETTLED_S)
                state = pilot.look_at_all()
            problem = state.problem
            if once and not state.queues:
                echo_err(_NONE_ALLOWED)
        except ConnectionError:  # to Spark's process, which is gone: only another autopilot can start one
            raise
        except TOLD as failure:
            if once:  # TablesBusy, which here tells of a run of the tables, not of another autopilot
                raise CommandFailed(in_words(failure)) from failure
            problem = in_words(failure)
        if problem is not None and problem != told:
            echo_err(f"veil: no timeouts are changed for now: {problem}")
        told = problem
        if once:
            return
        time.sleep(every_s)


@autopilot_app.command("status", epilog="Example: veil autopilot status")
@with_tables
def status(tables: Storage, as_json: AsJson = False) -> None:
    """Show each queue's mode, its last decision and why."""
    state = _state(tables)
    if state.problem is not None:
        echo_err(f"no timeouts are changed for now: {state.problem}")
    none = Decision(kind=DecisionKind.NOTHING, code="", reason="not checked yet", at_ms=0)
    queues = sorted(state.queues.items())
    if not queues:
        echo_err(_NONE_ALLOWED)
        return
    if as_json:
        for name, each in queues:
            undo = f"veil autopilot undo {name}" if each.change else None
            echo_json(_as_json(name, each, each.last or none, undo))
        return
    rows = []
    for name, each in queues:
        last = ["", "", ""]
        if each.last is not None:
            when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(each.last.at_ms / 1000))
            last = [each.last.kind.value, when, each.last.reason]
        mode = "silenced" if each.silenced_ms is not None else each.mode
        rows.append([name, mode, words.length(each.seen_s), *last])
    show_table(["queue", "mode", "timeout", "last decision", "when", "why"], rows, right=["timeout"])
    for name, each in queues:
        for sentence in each.advised.values():
            echo_err(f"{name}: {sentence}")


@autopilot_app.command("undo", epilog="Example: veil autopilot undo orders")
@with_client
@with_tables
def undo(client: BlockingClient, tables: Storage, queue: QueueName) -> None:
    """Restore the timeout from before the last change. The autopilot then leaves the queue alone."""
    state = _state(tables)
    try:
        state.expect(client.target.region, client.account(queue))
    except StateUnreadable as refused:
        raise CommandFailed(str(refused)) from None
    known = state.queues.get(queue)
    change = None if known is None else known.change
    if change is None or change.before_s is None:
        raise CommandFailed(f"the autopilot has not changed queue {queue!r}")
    ClientQueues(client).set_timeout(queue, change.before_s)
    resume = f"to let the autopilot manage it again: veil autopilot resume {queue}"
    echo(f"{queue}: {words.exact_length(change.before_s)}; {resume}")


@autopilot_app.command("resume", epilog="Example: veil autopilot resume orders")
@with_client
def resume(client: BlockingClient, queue: QueueName) -> None:
    """Let the autopilot manage a queue again after a person has set its timeout."""
    queues = ClientQueues(client)
    queues.tag(queue, RESUME_TAG, f"{time.time_ns() // 1_000_000} {queues.timeout_s(queue)}")
    echo(f"{queue}: the autopilot manages this queue again")


def _leave_with_input() -> None:
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)  # safe at every step


def _state(tables: Storage) -> AutopilotState:
    otherwise = f"no autopilot has run on {tables.uri} yet; start one with: veil autopilot"
    return read_beside(tables, FILE, decode_state, otherwise)


def _as_json(queue: str, state: PilotedQueue, decision: Decision, undo: str | None) -> dict[str, Any]:
    import msgspec

    told = {"queue": queue, "mode": state.mode, **msgspec.to_builtins(decision)}
    return {**told, "advice": list(state.advised.values()), "undo": undo}
