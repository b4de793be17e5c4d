"""`veil queue`: create, look at, edit, empty and remove queues."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from veil.cli.app import group
from veil.cli.client import Client
from veil.cli.failures import CommandFailed, NotVeil, confirm
from veil.cli.options import (
    AsJson,
    QueueName,
    Yes,
    argument,
    complete_queue,
    length,
    option,
    whole_number,
    with_client,
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

queue_app = group("queue", "Create, look at, edit, empty and remove queues.")

Visibility = Annotated[
    int | None,
    option(
        "--visibility-timeout LENGTH", "How long a received message stays invisible (30s).", length(0, 43_200)
    ),
]
Delay = Annotated[
    int | None,
    option("--delay LENGTH", "How long a new message waits until it is visible (0).", length(0, 900)),
]
Retention = Annotated[
    int | None, option("--retention LENGTH", "How long a message is kept (4d).", length(60, 1_209_600))
]
MaxBytes = Annotated[
    int | None, option("--max-message-bytes N", "The largest message (1 MiB).", whole_number(1024, 1_048_576))
]
Wait = Annotated[
    int | None, option("--wait LENGTH", "How long a receive waits for a message (0).", length(0, 20))
]
DeadLetter = Annotated[
    str | None,
    option(
        "--dead-letter QUEUE",
        "The queue for messages that were received too often; with --max-receives.",
        autocompletion=complete_queue,
    ),
]
MaxReceives = Annotated[
    int | None,
    option(
        "--max-receives N",
        "After how many receives a message goes to the dead letters.",
        whole_number(1, 1000),
    ),
]
ContentDeduplication = Annotated[
    bool | None,
    option(
        "--content-deduplication/--no-content-deduplication",
        "For FIFO queues: equal bodies within five minutes are one message.",
    ),
]
Tags = Annotated[list[str] | None, option("--tag KEY=VALUE", "A tag; may be repeated.")]


@queue_app.command("ls", epilog="Example: veil queue ls --json | jq -r .name")
@with_client
def ls(
    client: Client,
    prefix: Annotated[str, argument("PREFIX", "Only queues whose names begin with this.")] = "",
    as_json: AsJson = False,
) -> None:
    """List queues with their exact counts and whether they are paused.

    Of the messages in flight, those that wait for a retry after a failed attempt are counted apart.
    """
    rows = []
    described = _described(client, prefix)
    for name, attributes in client.each_queue(prefix):
        queue = summary(name, client.queue_url(name), attributes)
        about = described.get(name, {})
        waiting, paused = about.get("WaitingForRetry", 0), about.get("Paused", False)
        if as_json:
            say_json({**queue, "waiting_for_retry": waiting, "paused": paused})
            continue
        in_progress = max(0, queue["in_flight"] - waiting)
        counts = [str(count) for count in (queue["visible"], in_progress, waiting, queue["delayed"])]
        shown = f"{name} (paused)" if paused else name
        rows.append([shown, *counts, seconds(queue["visibility_timeout_s"]), queue["dead_letters"] or "-"])
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
@with_client
def create(
    client: Client,
    name: Annotated[str, argument("NAME", "The queue's name: 1 to 80 of A-Z a-z 0-9 _ -")],
    visibility_timeout: Visibility = None,
    dead_letter: DeadLetter = None,
    max_receives: MaxReceives = None,
    fifo: Annotated[
        bool, option("--fifo", "Keep the order within each group; the name must end in .fifo.")
    ] = False,
    delay: Delay = None,
    retention: Retention = None,
    max_message_bytes: MaxBytes = None,
    wait: Wait = None,
    content_deduplication: ContentDeduplication = None,
    tag: Tags = None,
    as_json: AsJson = False,
) -> None:
    """Create a queue and print its URL.

    Creating it again with the same settings is not an error.
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
        VisibilityTimeout=visibility_timeout,
        DelaySeconds=delay,
        MessageRetentionPeriod=retention,
        MaximumMessageSize=max_message_bytes,
        ReceiveMessageWaitTimeSeconds=wait,
        ContentBasedDeduplication=content_deduplication,
    )
    tags = read_tags(tag or [])
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    if dead_letter is not None and max_receives is not None:
        attributes["RedrivePolicy"] = redrive_policy(client, dead_letter, max_receives)
    answer = client.call("CreateQueue", {"QueueName": name, "Attributes": attributes, "tags": tags})
    url = str(answer["QueueUrl"])
    if as_json:
        say_json({"name": name, "url": url})
    else:
        say(url)


@queue_app.command("show", epilog="Example: veil queue show orders --json | jq .in_flight")
@with_client
def show(client: Client, name: QueueName, as_json: AsJson = False) -> None:
    """Show a queue's counts, settings and tags."""
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
@with_client
def edit(
    client: Client,
    name: QueueName,
    visibility_timeout: Visibility = None,
    dead_letter: DeadLetter = None,
    max_receives: MaxReceives = None,
    no_dead_letter: Annotated[
        bool, option("--no-dead-letter", "Messages are never dead-lettered any more.")
    ] = False,
    delay: Delay = None,
    retention: Retention = None,
    max_message_bytes: MaxBytes = None,
    wait: Wait = None,
    content_deduplication: ContentDeduplication = None,
    tag: Tags = None,
    untag: Annotated[list[str] | None, option("--untag KEY", "Remove a tag; may be repeated.")] = None,
    dry_run: Annotated[bool, option("--dry-run", "Show the difference, change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Change a queue's settings and show the difference. Messages already in flight keep their deadlines."""
    wanted = given_attributes(
        VisibilityTimeout=visibility_timeout,
        DelaySeconds=delay,
        MessageRetentionPeriod=retention,
        MaximumMessageSize=max_message_bytes,
        ReceiveMessageWaitTimeSeconds=wait,
        ContentBasedDeduplication=content_deduplication,
    )
    added = read_tags(tag or [])
    if no_dead_letter and (dead_letter or max_receives):
        raise typer.BadParameter("not together with --dead-letter", param_hint="--no-dead-letter")
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
@with_client
def rm(client: Client, name: QueueName, yes: Yes = False) -> None:
    """Remove a queue and every message in it."""
    confirm(f"Remove queue {name} with {_content(client, name)}?", yes=yes)
    client.on_queue("DeleteQueue", name)
    talk(f"removed {name}")


@queue_app.command("purge", epilog="Example: veil queue purge orders --yes")
@with_client
def purge(client: Client, name: QueueName, yes: Yes = False) -> None:
    """Delete every message of a queue, also those in flight and delayed."""
    content = _content(client, name)
    confirm(f"Purge {content} from queue {name}?", yes=yes)
    client.on_queue("PurgeQueue", name)
    talk(f"purged {name}")


@queue_app.command("pause", epilog="Example: veil queue pause orders")
@with_client
def pause(client: Client, name: QueueName) -> None:
    """Pause deliveries: receives get nothing and long polls wait. Sends and open leases go on."""
    client.veils_own("PauseQueue", name)
    talk(f"paused {name}; resume with: veil queue resume {name}")


@queue_app.command("resume", epilog="Example: veil queue resume orders")
@with_client
def resume(client: Client, name: QueueName) -> None:
    """Deliver messages again; receivers that wait get them at once."""
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
