"""`veil queue`: create, look at, edit, empty and remove queues."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from veil.cli.app import Commands
from veil.cli.client import Client
from veil.cli.failures import CommandFailed, NotVeil, ServiceError, confirm, plainly
from veil.cli.options import (
    AsJson,
    Endpoint,
    QueueName,
    Region,
    Yes,
    complete_queue,
    connect,
    length,
    whole_number,
)
from veil.cli.output import inert, say, say_json, seconds, show_table, talk
from veil.cli.queue_settings import (
    SHOWN,
    Change,
    changes,
    given_attributes,
    label,
    read_redrive,
    read_tags,
    readable,
    redrive_policy,
    summary,
    tag_changes,
)
from veil.core.errors import NameRefused
from veil.core.queue import check_name

queue_app = Commands("Create, look at, edit, empty and remove queues.")

Visibility = Annotated[
    int | None,
    typer.Option(
        "--visibility-timeout",
        metavar="LENGTH",
        parser=length(0, 43_200),
        help="How long a received message stays invisible (30s).",
    ),
]
Delay = Annotated[
    int | None,
    typer.Option(
        "--delay",
        metavar="LENGTH",
        parser=length(0, 900),
        help="How long a new message waits until it is visible (0).",
    ),
]
Retention = Annotated[
    int | None,
    typer.Option(
        "--retention",
        metavar="LENGTH",
        parser=length(60, 1_209_600),
        help="How long a message is kept (4d).",
    ),
]
MaxBytes = Annotated[
    int | None,
    typer.Option(
        "--max-message-bytes",
        metavar="N",
        parser=whole_number(1024, 1_048_576),
        help="The largest message (1 MiB).",
    ),
]
Wait = Annotated[
    int | None,
    typer.Option(
        "--wait", metavar="LENGTH", parser=length(0, 20), help="How long a receive waits for a message (0)."
    ),
]
DeadLetter = Annotated[
    str | None,
    typer.Option(
        "--dead-letter",
        metavar="QUEUE",
        autocompletion=complete_queue,
        help="The queue for messages that were received too often; with --max-receives.",
    ),
]
MaxReceives = Annotated[
    int | None,
    typer.Option(
        "--max-receives",
        metavar="N",
        parser=whole_number(1, 1000),
        help="After how many receives a message goes to the dead letters.",
    ),
]
ContentDeduplication = Annotated[
    bool | None,
    typer.Option(
        "--content-deduplication/--no-content-deduplication",
        help="For FIFO queues: equal bodies within five minutes are one message.",
    ),
]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="A tag; may be repeated.")]


@queue_app.command("ls", epilog="Example: veil queue ls --json | jq -r .name")
@plainly
def ls(
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only queues whose names begin with this.")
    ] = "",
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    region: Region = None,
) -> None:
    """List queues with their exact counts and whether they are paused.

    Of the messages in flight, those that wait for a retry after a failed attempt are counted apart.
    """
    rows = []
    with connect(endpoint, region) as client:
        described = _described(client, prefix)
        for name in list(client.queue_names(prefix)):
            try:
                queue = summary(name, client.queue_url(name), client.attributes(name))
            except ServiceError as error:
                if error.is_missing_queue:  # removed since it was listed
                    continue
                raise
            about = described.get(name, {})
            waiting, paused = about.get("WaitingForRetry", 0), about.get("Paused", False)
            if as_json:
                say_json({**queue, "waiting_for_retry": waiting, "paused": paused})
                continue
            in_progress = max(0, queue["in_flight"] - waiting)
            counts = [str(count) for count in (queue["visible"], in_progress, waiting, queue["delayed"])]
            shown = f"{name} (paused)" if paused else name
            rows.append(
                [shown, *counts, seconds(queue["visibility_timeout_s"]), queue["dead_letters"] or "-"]
            )
    if rows:
        columns = ["queue", "visible", "in progress", "retrying", "delayed", "visibility", "dead letters"]
        show_table(columns, rows, right=columns[1:6])
    elif not as_json:
        talk(
            f"no queue's name begins with {prefix!r}"
            if prefix
            else "there are no queues; create one with: veil queue create NAME"
        )


def _described(client: Client, prefix: str) -> dict[str, Any]:
    """What Veil says of its queues beyond SQS, by name; nothing on another SQS."""
    try:
        return {queue["QueueName"]: queue for queue in client.descriptions(prefix)}
    except NotVeil:
        return {}


@queue_app.command(
    "create",
    epilog="Example: veil queue create orders --visibility-timeout 60 "
    "--dead-letter orders-dead --max-receives 5",
)
@plainly
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The queue's name: 1 to 80 of A-Z a-z 0-9 _ -")],
    visibility_timeout: Visibility = None,
    dead_letter: DeadLetter = None,
    max_receives: MaxReceives = None,
    fifo: Annotated[
        bool, typer.Option("--fifo", help="Keep the order within each group; the name must end in .fifo.")
    ] = False,
    delay: Delay = None,
    retention: Retention = None,
    max_message_bytes: MaxBytes = None,
    wait: Wait = None,
    content_deduplication: ContentDeduplication = None,
    tag: Tags = None,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    region: Region = None,
) -> None:
    """Create a queue and print its URL.

    To create it again with the same settings is no error.
    """
    if fifo and not name.endswith(".fifo"):
        raise typer.BadParameter(f"{name!r}: expected a name that ends in .fifo", param_hint="NAME")
    try:
        check_name(name, fifo=name.endswith(".fifo"))
    except NameRefused as refusal:
        raise typer.BadParameter(f"{name!r}: expected {refusal.expected}", param_hint="NAME") from None
    if (dead_letter is None) != (max_receives is None):
        raise typer.BadParameter("expected both or neither", param_hint="--dead-letter, --max-receives")
    attributes = given_attributes(
        visibility_timeout=visibility_timeout,
        delay=delay,
        retention=retention,
        max_message_bytes=max_message_bytes,
        wait=wait,
        content_deduplication=content_deduplication,
    )
    tags = read_tags(tag or [])
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    with connect(endpoint, region) as client:
        if dead_letter is not None and max_receives is not None:
            attributes["RedrivePolicy"] = redrive_policy(client, dead_letter, max_receives)
        answer = client.call("CreateQueue", {"QueueName": name, "Attributes": attributes, "tags": tags})
    url = str(answer["QueueUrl"])
    if as_json:
        say_json({"name": name, "url": url})
    else:
        say(url)


@queue_app.command("show", epilog="Example: veil queue show orders --json | jq .in_flight")
@plainly
def show(name: QueueName, as_json: AsJson = False, endpoint: Endpoint = None, region: Region = None) -> None:
    """Show a queue's counts, settings and tags."""
    with connect(endpoint, region) as client:
        attributes = client.attributes(name)
        tags = client.on_queue("ListQueueTags", name).get("Tags", {})
        about = _described(client, name).get(name, {})
        is_paused = about.get("Paused", False)
        queue = {**summary(name, client.queue_url(name), attributes), "paused": is_paused, "tags": tags}
        queue["waiting_for_retry"] = about.get("WaitingForRetry", 0)
    if as_json:
        say_json(queue)
        return
    lines = [("queue", name), ("url", queue["url"]), ("arn", queue["arn"])]
    lines += [("deliveries", "paused")] if is_paused else []
    counts = ("visible", "in_flight", "waiting_for_retry", "delayed")
    lines += [(count.replace("_", " "), str(queue[count])) for count in counts]
    lines += [(label(key), readable(key, attributes[key]) or "-") for key in SHOWN if key in attributes]
    lines += [(f"tag {key}", value) for key, value in tags.items()]
    width = max(len(key) for key, _ in lines)
    for key, value in lines:
        say(f"{inert(key, keep='').ljust(width)}  {inert(value, keep='')}")


@queue_app.command("edit", epilog="Example: veil queue edit orders --visibility-timeout 120 --dry-run")
@plainly
def edit(
    name: QueueName,
    visibility_timeout: Visibility = None,
    dead_letter: DeadLetter = None,
    max_receives: MaxReceives = None,
    no_dead_letter: Annotated[
        bool, typer.Option("--no-dead-letter", help="Messages are never dead-lettered any more.")
    ] = False,
    delay: Delay = None,
    retention: Retention = None,
    max_message_bytes: MaxBytes = None,
    wait: Wait = None,
    content_deduplication: ContentDeduplication = None,
    tag: Tags = None,
    untag: Annotated[
        list[str] | None, typer.Option("--untag", metavar="KEY", help="Remove a tag; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the difference, change nothing.")] = False,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    region: Region = None,
) -> None:
    """Change a queue's settings and show the difference. Messages already in flight keep their deadlines."""
    wanted = given_attributes(
        visibility_timeout=visibility_timeout,
        delay=delay,
        retention=retention,
        max_message_bytes=max_message_bytes,
        wait=wait,
        content_deduplication=content_deduplication,
    )
    added = read_tags(tag or [])
    if no_dead_letter and (dead_letter or max_receives):
        raise typer.BadParameter("not together with --dead-letter", param_hint="--no-dead-letter")
    with connect(endpoint, region) as client:
        before = client.attributes(name)
        if dead_letter is not None or max_receives is not None:
            wanted["RedrivePolicy"] = _edited_redrive(client, before, dead_letter, max_receives)
        elif no_dead_letter:
            wanted["RedrivePolicy"] = ""
        tags = client.on_queue("ListQueueTags", name).get("Tags", {}) if added or untag else {}
        found = changes(before, wanted)
        found_tags = tag_changes(tags, added, untag or [])
        _show_difference(name, [*found, *found_tags], as_json=as_json)
        if dry_run:
            talk("dry run: nothing changed")
            return
        if found:
            client.on_queue("SetQueueAttributes", name, {"Attributes": wanted})
        if found_tags and added:
            client.on_queue("TagQueue", name, {"Tags": added})
        if found_tags and untag:
            client.on_queue("UntagQueue", name, {"TagKeys": untag})


def _edited_redrive(
    client: Client, before: dict[str, str], dead_letter: str | None, max_receives: int | None
) -> str:
    present = read_redrive(before)
    if present is None and (dead_letter is None or max_receives is None):
        raise typer.BadParameter(
            "expected both, for the queue has no dead letters yet", param_hint="--dead-letter, --max-receives"
        )
    target, receives = present or ("", 0)
    return redrive_policy(client, dead_letter or target, max_receives or receives)


def _show_difference(name: str, found: list[Change], *, as_json: bool) -> None:
    if as_json:
        for change in found:
            say_json({"queue": name, **change._asdict()})
    if not found:
        talk(f"{name}: nothing to change")
        return
    talk(name)
    width = max(len(change.setting) for change in found)
    for change in found:
        setting = inert(change.setting, keep="").ljust(width)
        if change.before is not None:
            talk(f"- {setting}  {inert(change.before, keep='')}")
        if change.after is not None:
            talk(f"+ {setting}  {inert(change.after, keep='')}")


@queue_app.command("rm", epilog="Example: veil queue rm orders --yes")
@plainly
def rm(name: QueueName, yes: Yes = False, endpoint: Endpoint = None, region: Region = None) -> None:
    """Remove a queue and every message in it."""
    with connect(endpoint, region) as client:
        confirm(f"Remove queue {name} with {_content(client, name)}?", yes=yes)
        client.on_queue("DeleteQueue", name)
    talk(f"removed {name}")


@queue_app.command("purge", epilog="Example: veil queue purge orders --yes")
@plainly
def purge(name: QueueName, yes: Yes = False, endpoint: Endpoint = None, region: Region = None) -> None:
    """Delete every message of a queue, also those in flight and delayed."""
    with connect(endpoint, region) as client:
        content = _content(client, name)
        confirm(f"Purge {content} from queue {name}?", yes=yes)
        client.on_queue("PurgeQueue", name)
    talk(f"purged {name}")


@queue_app.command("pause", epilog="Example: veil queue pause orders")
@plainly
def pause(name: QueueName, endpoint: Endpoint = None, region: Region = None) -> None:
    """Pause deliveries: receives get nothing and long polls wait. Sends and open leases go on."""
    with connect(endpoint, region) as client:
        client.veils_own("PauseQueue", name)
    talk(f"paused {name}; resume with: veil queue resume {name}")


@queue_app.command("resume", epilog="Example: veil queue resume orders")
@plainly
def resume(name: QueueName, endpoint: Endpoint = None, region: Region = None) -> None:
    """Deliver messages again; receivers that wait get them at once."""
    with connect(endpoint, region) as client:
        client.veils_own("ResumeQueue", name)
    talk(f"resumed {name}")


def _content(client: Client, name: str) -> str:
    counts = client.attributes(
        name,
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    )
    if len(counts) != 3:
        raise CommandFailed(f"the server did not tell the counts of {name}")
    total = sum(int(count) for count in counts.values())
    return f"{total:,} message{'' if total == 1 else 's'}"


def register(app: typer.Typer) -> None:
    """Add `veil queue` to the command."""
    app.add_typer(queue_app, name="queue")
