"""`veil timeouts`: show and apply the timeouts that `veil pipeline timeouts` recommends. Needs no Spark."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from veil import words
from veil.cli.app import group
from veil.cli.failures import CommandFailed, confirm
from veil.cli.options import AsJson, DryRun, Yes, argument, complete_queue, with_client
from veil.cli.output import drawn_width, echo, echo_err, echo_json, is_terminal, show_table
from veil.cli.pipeline.options import read_beside, with_tables
from veil.cli.queue import set_timeout_command, visibility_timeout_s
from veil.client.api import ApiError, Failure, plain
from veil.core.findings import (
    FILE,
    NO_RENEWAL,
    Finding,
    Findings,
    WithPolicy,
    after_losses,
    decode,
)

if TYPE_CHECKING:
    from veil.client.blocking import BlockingClient
    from veil.journal.storage import Storage


class Planned(NamedTuple):
    """One queue: its timeout now (None: unknown) and the one to set; or why it is left alone, and whether that is an error."""

    queue: str
    certainty: str
    before_s: int | None
    after_s: int | None
    refused: str | None
    failed: bool = False


def plan(findings: Findings, client: BlockingClient, queues: Sequence[str]) -> list[Planned]:
    """Compare the findings about whole queues with the queues of the client's region; all queues unless some are named."""
    return [
        _planned(finding, client)
        for finding in findings.findings
        if finding.message_type is None and (not queues or finding.queue in queues)
    ]


def _planned(finding: Finding, client: BlockingClient) -> Planned:
    before_s, after_s = None, finding.recommended_timeout_s
    refused = finding.why_not(after_s)  # whatever the queue has now
    if refused is None and finding.region != client.target.region:
        refused = f"it is in {finding.region}: use --region {finding.region}"
    if refused is None:
        try:
            before_s = visibility_timeout_s(client, finding.queue)
        except ApiError as error:
            return Planned(finding.queue, finding.certainty, None, after_s, _refusal(error), failed=True)
        refused = finding.why_not(before_s)
    if refused is None and finding.account != client.account(finding.queue):
        refused = f"it is about a queue of that name in the account {finding.account}"
    return Planned(finding.queue, finding.certainty, before_s, after_s, refused)


def _refusal(error: ApiError) -> str:
    """Why the service refuses this queue; raises the error if it would refuse every other queue too."""
    if error.failure is Failure.REFUSED or error.is_missing_queue or plain(error.code) == "AccessDenied":
        return str(error)
    raise error


def show_findings(findings: Findings, *, as_json: bool = False) -> None:
    """A line for each queue and message type, with as many columns as the terminal has room for, and all of them into a pipe;
    all that is known of each as JSON."""
    if as_json:
        for finding in findings.findings:
            echo_json(msgspec.to_builtins(finding))
    elif findings.findings:
        width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
        columns, rows = headline(findings, width)
        show_table(columns, rows, right=_ALIGNED_RIGHT)


COLUMNS: Final = (
    "queue", "type", "leases", "present", "recommended", "verdict", "certainty", "duplicates", "hidden", "p50", "p99",
)  # fmt: skip
_ALIGNED_RIGHT: Final = ("leases", "present", "recommended", "duplicates", "hidden", "p50", "p99")

# What is left out first where the terminal is narrow.
_SPARED: Final = ("certainty", "type", "p50", "leases", "p99", "hidden", "verdict")


class Headline(NamedTuple):
    """The table of the findings."""

    columns: list[str]
    rows: list[list[str]]


def headline(findings: Findings, width: int | None = None) -> Headline:
    """The table, with as many columns as fit into the width (all of them without one)."""
    names = findings.names()
    cells = [
        _cells(each, names[each.key], is_type=each is not whole)
        for whole, types in findings.by_cost()
        for each in (whole, *types)
    ]
    columns = [name for name in COLUMNS if name != "type" or any(cell["type"] for cell in cells)]

    def too_wide() -> int:
        drawn = drawn_width(columns, [[cell[name] for name in columns] for cell in cells])
        return 0 if width is None else max(0, drawn - width)

    for spared in _SPARED:
        if spared in columns and too_wide():
            columns.remove(spared)
            if spared == "type":  # it names the row of a type, so it then stands behind the queue instead
                for cell in cells:
                    cell["queue"] = f"{cell['queue']} {cell['type']}".rstrip()
    if excess := too_wide():
        longest = max(len(cell["queue"]) for cell in cells)
        for cell in cells:
            cell["queue"] = _shortened(cell["queue"], max(12, longest - excess))
    return Headline(columns, [[cell[name] for name in columns] for cell in cells])


def _shortened(name: str, to: int) -> str:
    """The name cut in the middle: queues' names differ at both ends."""
    half = (to - 1) // 2
    return name if len(name) <= to else f"{name[: to - 1 - half]}…{name[len(name) - half :]}"


def _cells(finding: Finding, name: str, *, is_type: bool) -> dict[str, str]:
    recommended = words.length(finding.recommended_timeout_s)
    if finding.recommended_timeout_s is not None and finding.policy != NO_RENEWAL:
        recommended += f" ({finding.policy})"
    return {
        "queue": name,
        "type": finding.message_type or ("" if not is_type else words.NOTHING),
        "leases": words.count(finding.leases),
        "present": words.length(finding.present_timeout_s),
        "recommended": recommended,
        "verdict": finding.verdict(),
        "certainty": finding.certainty,
        "duplicates": words.count(finding.duplicates),
        "hidden": words.hours(finding.hidden_hours),
        "p50": words.length(finding.p50_s),
        "p99": words.length(finding.p99_s),
    }


def show_finding(finding: Finding, name: str) -> None:
    """One queue or type in words, and what each timeout that it could have would mean."""
    for line in _words(finding, name):
        echo(line)
    echo()
    policies = [each.policy for each in finding.candidates[0].policies] if finding.candidates else []
    columns = ["timeout", "duplicates", "at most", "after a crash", *policies[1:]]
    rows = []
    for candidate in finding.worth_showing():
        none, *renewed = candidate.policies
        mark = " *" if candidate.timeout_s == finding.recommended_timeout_s else ""
        chances = (words.chance(none.duplicate_chance), words.chance(none.duplicate_chance_high))
        timeout, recovery = words.length(candidate.timeout_s) + mark, words.length(none.recovery_s)
        rows.append([timeout, *chances, recovery, *map(_renewed, renewed)])
    show_table(columns, rows, right=columns)
    echo_err("* recommended; with renewal: chance of a duplicate · wait after a crash · calls per message")


def _renewed(means: WithPolicy) -> str:
    return f"{words.chance(means.duplicate_chance)} · {words.length(means.recovery_s)} · {means.calls_per_message:.2g}×"


def _days(finding: Finding) -> str:
    """The days that were looked at, as the tables have them: whole ones, in UTC."""
    since, until = (str(at)[:10] for at in (finding.since, finding.until))
    return f"on {since} (UTC)" if since == until else f"from {since} to {until} (UTC)"


def _words(finding: Finding, name: str) -> Sequence[str]:
    if finding.message_type is not None:
        name += f", type {finding.message_type or '(none)'}"
    timeout_s = finding.recommended_timeout_s
    recommended = "no recommendation" if timeout_s is None else words.length(timeout_s)
    lines = [f"{name}: {recommended} ({finding.certainty})", f"  {finding.reason}."]
    if finding.missing is not None:
        lines.append(f"  {finding.missing}.")
    lines.append(
        f"  analysed: {words.plural(finding.leases, 'lease')} {_days(finding)}; {finding.completed:,} completed, "
        f"{finding.censored:,} censored, {words.plural(finding.duplicates, 'duplicate')}, {finding.crashes:,} crashed, "
        f"{finding.unknown:,} lapsed for unknown reasons."
    )
    if finding.failed:
        each = finding.failed / finding.messages_completed if finding.messages_completed else None
        per = "" if each is None else f", {each:.2g} for each message that was completed"
        lines.append(
            f"  failed: {words.plural(finding.failed, 'attempt')} "
            f"({words.chance(finding.failed / max(finding.leases, 1))}){per}; they took "
            f"{words.hours(finding.failed_s / 3600)} of work."
        )
    quantiles = [("half", finding.p50_s), ("99 %", finding.p99_s), ("99.9 %", finding.p999_s)]
    known = ", ".join(f"{of} within {words.length(at_s)}" for of, at_s in quantiles if at_s is not None)
    if known:
        lines.append(
            f"  the work: {known}; the mean of the completed work is {words.length(finding.mean_s)}, which is misleading."
        )
    if finding.replay is not None:
        replay = finding.replay
        lines.append(
            f"  in the past, the recommended timeout would have meant {replay.duplicates_with_recommended:,.0f} instead of "
            f"{words.plural(replay.duplicates_then, 'duplicate')}, and {words.hours(replay.hidden_hours_with_recommended)} "
            f"instead of {words.hours(replay.hidden_hours_then)} hidden {after_losses([finding])}."
        )
    return lines


timeouts_app = group("timeouts", "Show the recommended timeouts, and apply them.")
_OLD_DAYS = 30


@timeouts_app.command("show", epilog="Example: veil timeouts show orders")
@with_tables
def show(
    tables: Storage,
    queue: str | None = argument("[QUEUE]", "Show this queue in detail: what each timeout would mean."),
    as_json: AsJson = False,
) -> None:
    """Show the recommendations: a line per queue, or one queue's candidates and reasons."""
    findings = read_findings(tables)
    if queue is not None:
        _expect_known(findings, [queue])
        chosen = [each for each in findings.findings if each.queue == queue]
        findings = msgspec.structs.replace(findings, findings=chosen)
    if queue is None or as_json:
        show_findings(findings, as_json=as_json)
        return
    names = findings.names()
    for number, finding in enumerate(findings.findings):
        if number:
            echo()
        show_finding(finding, names[finding.key])


@timeouts_app.command("apply", epilog="Example: veil timeouts apply orders --dry-run")
@with_client
@with_tables
def apply(
    client: BlockingClient,
    tables: Storage,
    queue: list[str] | None = argument(
        "[QUEUE]...", "Only change these queues. Default: all queues.", autocompletion=complete_queue
    ),
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Set the recommended timeouts, after showing what would change.

    Queues without enough evidence are left alone, and so are queues whose timeout is no longer the one that was analysed.
    Messages already in flight keep their deadlines. If the server refuses to change a queue, the command says so, goes on with
    the others, and ends with exit code 1.
    """
    findings = read_findings(tables)
    _expect_known(findings, queue or ())
    planned = plan(findings, client, queue or ())
    changes = [each for each in planned if each.refused is None and each.before_s != each.after_s]
    _show_plan(findings, planned)
    if not changes:
        echo_err("nothing to change")
    elif dry_run:
        echo_err("dry run: nothing changed")
    else:
        days = (datetime.now(UTC) - datetime.fromisoformat(findings.made_at)).days
        question = f"Set the timeout of {words.plural(len(changes), 'queue')}"
        old = f"These recommendations are {days} days old. {question} anyway?"
        confirm(old if days >= _OLD_DAYS else f"{question}?", yes=yes)
    failed = any(each.failed for each in planned)
    for each in changes:
        undo = set_timeout_command(client, each.queue, each.before_s)
        if not dry_run:
            attributes = {"VisibilityTimeout": str(each.after_s)}
            try:
                client.on_queue("SetQueueAttributes", each.queue, {"Attributes": attributes})
            except ApiError as error:
                echo_err(f"{each.queue}: not changed, {_refusal(error)}")
                failed = True
                continue
        if as_json:
            times = {"before_s": each.before_s, "after_s": each.after_s}
            echo_json({"queue": each.queue, **times, "changed": not dry_run, "undo": undo})
        elif not dry_run:
            changed = f"{words.exact_length(each.before_s)} -> {words.exact_length(each.after_s)}"
            echo(f"{each.queue}: {changed}; undo: {undo}")
    # Of queues of one name, the others are another account's.
    if failed or not {each.queue for each in planned if each.refused is None}.issuperset(queue or ()):
        raise CommandFailed("some queues could not be changed")


def _show_plan(findings: Findings, planned: list[Planned]) -> None:
    if findings.policy != NO_RENEWAL:
        echo_err(f"these timeouts assume consumers that renew their leases: {findings.policy}")
    for each in planned:
        if each.refused is not None:
            echo_err(f"{each.queue}: left alone, {each.refused}")
        elif each.before_s == each.after_s:
            echo_err(f"{each.queue}: already {words.exact_length(each.after_s)}")
        else:
            echo_err(f"{each.queue} ({each.certainty})")
            echo_err(f"- visibility timeout  {words.exact_length(each.before_s)}")
            echo_err(f"+ visibility timeout  {words.exact_length(each.after_s)}")


def read_findings(tables: Storage) -> Findings:
    """The findings beside the tables; raises CommandFailed where there are none."""
    otherwise = f"no {FILE} in {tables.uri}; create it with: veil pipeline timeouts"
    return read_beside(tables, FILE, decode, otherwise)


def _expect_known(findings: Findings, queues: Sequence[str]) -> None:
    names = sorted({each.queue for each in findings.findings})
    unknown = sorted(set(queues) - set(names))
    if unknown:
        some = f"one of {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
        expected = some if names else "nothing, since there are none yet"
        raise CommandFailed(f"there are no recommendations for queue {unknown[0]!r}: expected {expected}")
