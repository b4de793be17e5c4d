"""`veil timeouts`: look at the timeouts that `veil pipeline timeouts` found, and set them. Needs no Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from veil.cli.confirm import confirm
from veil.cli.failures import CommandFailed, plainly
from veil.cli.options import AsJson, Endpoint, Region, Yes, complete_queue, connect
from veil.cli.output import inert, say, say_json, talk
from veil.cli.output import seconds as length
from veil.cli.pipeline_options import Data, TablesPlace, places
from veil.cli.timeouts_plan import Planned, plan
from veil.cli.timeouts_text import show_findings, tell
from veil.core.findings import FILE, NO_RENEWAL, Findings, FindingsUnreadable, decode

timeouts_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at the timeouts that were found, and set them."
)
_OLD_DAYS = 30


@timeouts_app.command("show", epilog="Example: veil timeouts show orders")
@plainly
def show(
    queue: Annotated[
        str | None, typer.Argument(metavar="[QUEUE]", help="One queue, with all that each timeout means.")
    ] = None,
    data: Data = None,
    tables: TablesPlace = None,
    as_json: AsJson = False,
) -> None:
    """Show what was found: a line per queue, or one queue's candidates and reasons in words."""
    findings = _load(data, tables)
    if queue is None:
        show_findings(findings, as_json=as_json)
        return
    of_queue = [each for each in findings.findings if each.queue == queue]
    if not of_queue:
        raise CommandFailed(f"nothing was found about queue {queue!r}: expected {_known(findings)}")
    if as_json:
        for finding in of_queue:
            say_json(_built(finding))
        return
    for number, finding in enumerate(of_queue):
        if number:
            say()
        tell(finding)


@timeouts_app.command("apply", epilog="Example: veil timeouts apply orders --dry-run")
@plainly
def apply(
    queue: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUEUE]...", help="Only these queues; all unless given.", autocompletion=complete_queue
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the difference, change nothing.")] = False,
    yes: Yes = False,
    data: Data = None,
    tables: TablesPlace = None,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    region: Region = None,
) -> None:
    """Set the recommended timeouts, after showing what would change.

    Left alone are queues without enough evidence and queues whose timeout is not the one that was analysed. Messages
    already in flight keep their deadlines.
    """
    findings = _load(data, tables)
    unknown = sorted(set(queue or ()) - {each.queue for each in findings.findings})
    if unknown:
        raise CommandFailed(f"nothing was found about queue {unknown[0]!r}: expected {_known(findings)}")
    with connect(endpoint, region) as client:
        planned = plan(findings, client, queue or ())
        changes = [each for each in planned if each.refused is None and each.before_s != each.after_s]
        _show_plan(findings, planned)
        if not changes:
            talk("nothing to change")
        elif dry_run:
            talk("dry run: nothing changed")
        else:
            _agree(findings, len(changes), yes=yes)
        for each in changes:
            if not dry_run:
                client.on_queue(
                    "SetQueueAttributes", each.queue, {"Attributes": {"VisibilityTimeout": str(each.after_s)}}
                )
            _tell_change(each, as_json=as_json, changed=not dry_run)
    if queue and any(each.refused is not None for each in planned):
        raise CommandFailed("not all of the queues that were named could be changed")


def _show_plan(findings: Findings, planned: list[Planned]) -> None:
    if findings.policy != NO_RENEWAL:
        talk(f"these timeouts are for consumers that renew: {findings.policy}")
    for each in planned:
        name = inert(each.queue, keep="")
        if each.refused is not None:
            talk(f"{name}: left alone, {inert(each.refused, keep='')}")
        elif each.before_s == each.after_s:
            talk(f"{name}: already {length(each.after_s)}")
        else:
            talk(f"{name} ({each.certainty})")
            talk(f"- visibility timeout  {length(each.before_s)}")
            talk(f"+ visibility timeout  {length(each.after_s)}")


def _agree(findings: Findings, count: int, *, yes: bool) -> None:
    queues = f"{count} queue{'' if count == 1 else 's'}"
    days = (datetime.now(UTC) - datetime.fromisoformat(findings.made_at)).days
    if days >= _OLD_DAYS:
        confirm(f"These findings are {days} days old, and work changes. Set {queues} all the same?", yes=yes)
    else:
        confirm(f"Set the timeout of {queues}?", yes=yes)


def _tell_change(change: Planned, *, as_json: bool, changed: bool) -> None:
    undo = f"veil queue edit {change.queue} --visibility-timeout {change.before_s}"
    if as_json:
        say_json(
            {
                "queue": change.queue,
                "before_s": change.before_s,
                "after_s": change.after_s,
                "changed": changed,
                "undo": undo,
            }
        )
    elif changed:
        say(f"{change.queue}: {length(change.before_s)} -> {length(change.after_s)}; undo: {undo}")


def _load(data: str | None, tables: str | None) -> Findings:
    _, place = places(data, None, tables)
    try:
        return decode(place.read(FILE))
    except FileNotFoundError:
        raise CommandFailed(
            f"no {FILE} in {place.uri}; find the timeouts with: veil pipeline timeouts"
        ) from None
    except FindingsUnreadable as refused:
        raise CommandFailed(f"{place.uri}: {refused}") from None


def _known(findings: Findings) -> str:
    names = sorted({each.queue for each in findings.findings})
    return (
        f"one of {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
        if names
        else "nothing, for it is empty"
    )


def _built(finding: object) -> dict[str, object]:
    import msgspec

    built: dict[str, object] = msgspec.to_builtins(finding)
    return built


def register(app: typer.Typer) -> None:
    """Add `veil timeouts` to the command."""
    app.add_typer(timeouts_app, name="timeouts")
