"""`veil queue`: create, list, show, edit, pause, purge and remove queues."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from veil import words
from veil.cli.app import group
from veil.cli.failures import CommandFailed, confirm, in_words
from veil.cli.options import (
    AsJson,
    DryRun,
    QueueName,
    Yes,
    argument,
    complete_queue,
    flag,
    length,
    option,
    shared,
    whole_number,
    widened,
    with_client,
    wrong,
)
from veil.cli.output import echo, echo_err, echo_json, echo_object, show_list
from veil.client.api import ApiError, plain
from veil.core import limits
from veil.core.errors import NameRefused
from veil.core.queue import check_name

if TYPE_CHECKING:
    from veil.client.blocking import BlockingClient

queue_app = group("queue", "Create, list, edit, empty and remove queues.")

# ---- settings: an option of `create` and `edit`, an attribute of SQS's, a line of `show`


class Setting(NamedTuple):
    """One setting of a queue: its attribute, its name and value for people, and its option where it has one of its own."""

    attribute: str
    label: str
    readable: Callable[[str], str] = str
    option: tuple[Any, ...] = ()  # type, flags, help, parser


def _length(seconds: str) -> str:
    return words.exact_length(int(seconds))


def _dead_letters(text: str) -> str:
    name, receives = read_redrive({"RedrivePolicy": text}) or ("", 0)
    return f"{name} after {receives} receives"


_UNIQUE: Final = "For FIFO queues: treat messages with the same body within five minutes as duplicates."
SETTINGS: Final = {
    setting.attribute: setting
    for setting in (
        Setting("VisibilityTimeout", "visibility timeout", _length,
                (int, "--visibility-timeout LENGTH",
                 "How long a received message stays invisible; new queues: 30s.", length(0, limits.VISIBILITY_MAX_S))),
        Setting("DelaySeconds", "delay", _length,
                (int, "--delay LENGTH",
                 "How long a new message waits before it becomes visible; new queues: 0.", length(0, limits.DELAY_MAX_S))),
        Setting("MessageRetentionPeriod", "retention", _length,
                (int, "--retention LENGTH", "How long a message is kept; new queues: 4d.",
                 length(limits.RETENTION_MIN_S, limits.RETENTION_MAX_S))),
        Setting("MaximumMessageSize", "maximum message size", "{} bytes".format,
                (int, "--max-message-bytes N",
                 "The largest accepted message; new queues: 1 MiB.",
                 whole_number(limits.MESSAGE_SIZE_MIN, limits.BODY_BYTES_MAX))),
        Setting("ReceiveMessageWaitTimeSeconds", "wait", _length,
                (int, "--wait LENGTH", "How long a receive waits for a message; new queues: 0.", length(0, limits.WAIT_MAX_S))),
        Setting("ContentBasedDeduplication", "content deduplication", str,
                (bool, "--content-deduplication/--no-content-deduplication", _UNIQUE)),
        Setting("RedrivePolicy", "dead letters", _dead_letters),
        Setting("FifoQueue", "FIFO"),
        Setting("DeduplicationScope", "deduplication scope"),
        Setting("FifoThroughputLimit", "throughput limit"),
        Setting("RedriveAllowPolicy", "may be dead letters of"),
        Setting("Policy", "policy"),
    )
}  # fmt: skip


def with_attributes(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of all settings; its `attributes` are those that were given, as SQS writes them."""
    options = {name: each.option for name, each in SETTINGS.items() if each.option}
    added = {name: Annotated[kind | None, shared(*spec)] for name, (kind, *spec) in options.items()}

    def call(given: dict[str, Any]) -> None:
        values = {name: given.pop(name) for name in options}
        attributes = {name: str(value).lower() for name, value in values.items() if value is not None}
        if "ContentBasedDeduplication" in attributes and not given["name"].endswith(".fifo"):
            expected = f"{given['name']!r} is a standard queue: expected a name that ends in .fifo"
            raise wrong("--content-deduplication", expected)
        command(attributes=attributes, **given)

    return widened(command, ["attributes"], added, call, first=True)


DeadLetter = Annotated[
    str | None,
    shared(
        "--dead-letter QUEUE",
        "The dead-letter queue, for messages that were received too often; needs --max-receives.",
        autocompletion=complete_queue,
    ),
]
MaxReceives = Annotated[
    int | None,
    shared(
        "--max-receives N",
        "How often a message may be received before it goes to the dead-letter queue.",
        whole_number(1, limits.RECEIVES_MAX_MAX),
    ),
]
Tags = Annotated[list[str] | None, shared("--tag KEY=VALUE", "Set a tag. Can be repeated.")]


def readable(attribute: str, value: str | None) -> str | None:
    """The attribute's value for people; None when it has none."""
    return SETTINGS[attribute].readable(value) if value else None


def redrive_policy(client: BlockingClient, dead_letter: str, max_receives: int) -> str:
    """The redrive policy that names a dead-letter queue, by name or ARN."""
    try:
        arn = dead_letter if dead_letter.startswith("arn:") else client.arn(dead_letter)
    except ApiError as error:
        if not error.is_missing_queue:
            raise
        raise CommandFailed(f"--dead-letter: {in_words(error)}") from None
    return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": max_receives})


def set_timeout_command(client: BlockingClient, queue: str, timeout_s: int | None) -> str:
    """The command that gives the queue this timeout, wherever it is run."""
    where = f"--endpoint {client.target.endpoint} --region {client.target.region}"
    return f"veil queue edit {queue} --visibility-timeout {timeout_s}s {where}"


def visibility_timeout_s(client: BlockingClient, name: str) -> int | None:
    """The queue's visibility timeout; None where there is no such queue."""
    try:
        return int(client.attributes(name, "VisibilityTimeout")["VisibilityTimeout"])
    except ApiError as error:
        if not error.is_missing_queue:
            raise
        return None


def read_redrive(attributes: Mapping[str, str]) -> tuple[str, int] | None:
    """The dead-letter queue's name and the maximum of receives, or None."""
    text = attributes.get("RedrivePolicy")
    if not text:
        return None
    policy = json.loads(text)
    return str(policy["deadLetterTargetArn"]).rpartition(":")[2], int(policy["maxReceiveCount"])


def dead_letter_queues(client: BlockingClient) -> dict[str, list[str]]:
    """The queues that are named as dead letters, each with those that name it."""
    sources: dict[str, list[str]] = {}
    for name, attributes in client.each_queue():
        if (redrive := read_redrive(attributes)) is not None:
            sources.setdefault(redrive[0], []).append(name)
    return dict(sorted(sources.items()))


def read_tags(options: Sequence[str] | None) -> dict[str, str]:
    tags: dict[str, str] = {}
    for text in options or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise wrong("--tag", f"{text!r}: expected KEY=VALUE")
        tags[key] = value
    return tags


# The names of a queue's object for scripts, and the attributes of which they are the numbers.
_NUMBERS: Final = {
    "visible": "ApproximateNumberOfMessages",
    "in_flight": "ApproximateNumberOfMessagesNotVisible",
    "delayed": "ApproximateNumberOfMessagesDelayed",
    "visibility_timeout_s": "VisibilityTimeout",
    "delay_s": "DelaySeconds",
    "retention_s": "MessageRetentionPeriod",
    "wait_s": "ReceiveMessageWaitTimeSeconds",
    "max_message_bytes": "MaximumMessageSize",
}


_STATES: Final = ("visible", "in_flight", "delayed")
COUNTED: Final = ("queue", "visible", "in progress", "retrying", "delayed")


def summary(name: str, url: str, attributes: Mapping[str, str], about: Mapping[str, Any]) -> dict[str, Any]:
    """One queue as an object for scripts: plain names, numbers as numbers; `about` is what only Veil says of it."""
    dead_letters, max_receives = read_redrive(attributes) or (None, None)
    return {
        "name": name,
        "url": url,
        **{key: int(attributes[attribute]) for key, attribute in _NUMBERS.items()},
        "fifo": attributes.get("FifoQueue") == "true",
        "content_deduplication": attributes.get("ContentBasedDeduplication") == "true",
        "dead_letters": dead_letters,
        "max_receives": max_receives,
        "arn": attributes["QueueArn"],
        "waiting_for_retry": about.get("WaitingForRetry", 0),
        "paused": about.get("Paused", False),
    }


# ---- the commands


@queue_app.command("ls", epilog="Example: veil queue ls --json | jq -r .name")
@with_client
def ls(
    client: BlockingClient,
    prefix: str = argument("[PREFIX]", "Only show queues whose names begin with this.", default=""),
    as_json: AsJson = False,
) -> None:
    """List queues with their exact counts and whether they are paused.

    Messages in flight that wait for a retry after a failed attempt are counted separately.
    """
    described = _described(client, prefix)
    queues = [
        summary(name, client.queue_url(name), attributes, described.get(name, {}))
        for name, attributes in client.each_queue(prefix)
    ]
    columns = [*COUNTED, "visibility", "dead letters"]
    # With the region: it may come from a profile that was made for something else.
    otherwise = f"there are no queues in {client.target.region}; create one with: veil queue create NAME"
    if prefix:
        otherwise = f"no queue's name begins with {prefix!r} in {client.target.region}"
    show_list(queues, columns, _row, as_json=as_json, right=columns[1:6], otherwise=otherwise)


def _row(queue: Mapping[str, Any]) -> list[str]:
    visibility = words.exact_length(queue["visibility_timeout_s"])
    return [*name_and_counts(queue), visibility, queue["dead_letters"] or "-"]


def name_and_counts(queue: Mapping[str, Any]) -> list[str]:
    """The cells under COUNTED of a queue's object."""
    waiting = queue["waiting_for_retry"]
    counts = (queue["visible"], max(0, queue["in_flight"] - waiting), waiting, queue["delayed"])
    return [f"{queue['name']} (paused)" if queue["paused"] else queue["name"], *map("{:,}".format, counts)]


def _described(client: BlockingClient, prefix: str) -> dict[str, Any]:
    """What Veil says of its queues beyond SQS, by name; nothing on another SQS."""
    try:
        return {queue["QueueName"]: queue for queue in client.descriptions(prefix)}
    except ApiError as error:
        if not error.is_unknown_action:
            raise
        return {}


@queue_app.command(
    "create",
    epilog="Example: veil queue create orders --visibility-timeout 60 "
    "--dead-letter orders-dead --max-receives 5",
)
@with_client
@with_attributes
def create(
    client: BlockingClient,
    attributes: dict[str, str],
    name: str = argument("NAME", "The queue's name: 1 to 80 characters out of A-Z, a-z, 0-9, _ and -"),
    fifo: bool = flag(
        "--fifo",
        "Make a FIFO queue, which keeps the order within each message group. Its name must end in .fifo.",
    ),
    dead_letter: DeadLetter = None,
    max_receives: MaxReceives = None,
    tag: Tags = None,
    as_json: AsJson = False,
) -> None:
    """Create a queue and print its URL.

    Creating it again with the same settings is not an error.
    """
    if fifo and not name.endswith(".fifo"):
        raise wrong("NAME", f"{name!r}: expected a name that ends in .fifo")
    try:
        check_name(name, fifo=name.endswith(".fifo"))
    except NameRefused as refusal:
        raise wrong("NAME", f"{name!r}: expected {refusal.expected}") from None
    if (dead_letter is None) != (max_receives is None):
        raise wrong("--dead-letter, --max-receives", "expected both or neither")
    tags = read_tags(tag)
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    if dead_letter is not None and max_receives is not None:
        attributes["RedrivePolicy"] = redrive_policy(client, dead_letter, max_receives)
    asked = {"QueueName": name, "Attributes": attributes, "tags": tags}
    try:
        answer = client.call("CreateQueue", asked, queue=name)
    except ApiError as error:
        if plain(error.code) not in ("QueueNameExists", "QueueAlreadyExists"):
            raise
        raise CommandFailed(f"{in_words(error)}; to change it: veil queue edit {name}") from None
    url = str(answer["QueueUrl"])
    echo_object({"name": name, "url": url}, url, as_json=as_json)


@queue_app.command("show", epilog="Example: veil queue show orders --json | jq .in_flight")
@with_client
def show(client: BlockingClient, name: QueueName, as_json: AsJson = False) -> None:
    """Show a queue's counts, settings and tags."""
    attributes = client.attributes(name)
    tags = client.on_queue("ListQueueTags", name).get("Tags", {})
    about = _described(client, name).get(name, {})
    queue = {**summary(name, client.queue_url(name), attributes, about), "tags": tags}
    if as_json:
        echo_json(queue)
        return
    lines = [("queue", name), ("url", queue["url"]), ("arn", queue["arn"])]
    lines += [("deliveries", "paused")] if queue["paused"] else []
    counts = ("visible", "in_flight", "waiting_for_retry", "delayed")
    lines += [(count.replace("_", " "), str(queue[count])) for count in counts]
    lines += [
        (each.label, readable(key, attributes[key]) or "-")
        for key, each in SETTINGS.items()
        if key in attributes
    ]
    lines += [(f"tag {key}", value) for key, value in tags.items()]
    width = max(len(key) for key, _ in lines)
    for key, value in lines:
        echo(f"{key.ljust(width)}  {value}")


class SettingChange(NamedTuple):
    """One setting before and after, as people read it; None where it was or will be absent."""

    setting: str
    before: str | None
    after: str | None


@queue_app.command("edit", epilog="Example: veil queue edit orders --visibility-timeout 120 --dry-run")
@with_client
@with_attributes
def edit(
    client: BlockingClient,
    attributes: dict[str, str],
    name: QueueName,
    dead_letter: DeadLetter = None,
    max_receives: MaxReceives = None,
    no_dead_letter: bool = flag("--no-dead-letter", "Stop moving messages to a dead-letter queue."),
    tag: Tags = None,
    untag: list[str] | None = option("--untag KEY", "Remove a tag. Can be repeated."),
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Change a queue's settings and show the difference. Messages already in flight keep their deadlines."""
    added = read_tags(tag)
    if no_dead_letter and (dead_letter or max_receives):
        raise wrong("--no-dead-letter", "not together with --dead-letter")
    before = client.attributes(name)
    if dead_letter is not None or max_receives is not None:
        attributes["RedrivePolicy"] = _edited_redrive(client, name, before, dead_letter, max_receives)
    elif no_dead_letter:
        attributes["RedrivePolicy"] = ""
    found = [
        SettingChange(SETTINGS[key].label, old, new)
        for key, value in attributes.items()
        if (old := readable(key, before.get(key))) != (new := readable(key, value))
    ]
    tags = client.on_queue("ListQueueTags", name).get("Tags", {}) if added or untag else {}
    kept = {key: value for key, value in {**tags, **added}.items() if key not in (untag or ())}
    found_tags = [
        SettingChange(f"tag {key}", tags.get(key), kept.get(key))
        for key in {**tags, **kept}
        if tags.get(key) != kept.get(key)
    ]
    _show_difference(name, [*found, *found_tags], as_json=as_json)
    if dry_run:
        echo_err("dry run: nothing changed")
        return
    if found:
        client.on_queue("SetQueueAttributes", name, {"Attributes": attributes})
    if found_tags and added:
        client.on_queue("TagQueue", name, {"Tags": added})
    if found_tags and untag:
        client.on_queue("UntagQueue", name, {"TagKeys": untag})


def _edited_redrive(
    client: BlockingClient,
    name: str,
    before: dict[str, str],
    dead_letter: str | None,
    max_receives: int | None,
) -> str:
    present = read_redrive(before)
    if present is None and (dead_letter is None or max_receives is None):
        why = "expected both, since the queue has no dead-letter queue yet"
        raise wrong("--dead-letter, --max-receives", why)
    target, receives = present or ("", 0)
    if dead_letter is not None and client.queue_url(dead_letter) == client.queue_url(name):
        raise wrong("--dead-letter", f"{dead_letter!r}: a queue cannot be its own dead-letter queue")
    return redrive_policy(client, dead_letter or target, max_receives or receives)


def _show_difference(name: str, found: list[SettingChange], *, as_json: bool) -> None:
    if as_json:
        for change in found:
            echo_json({"queue": name, **change._asdict()})
    if not found:
        echo_err(f"{name}: nothing to change")
        return
    echo_err(name)
    width = max(len(change.setting) for change in found)
    for change in found:
        for sign, value in (("-", change.before), ("+", change.after)):
            if value is not None:
                echo_err(f"{sign} {change.setting.ljust(width)}  {value}")


@queue_app.command("rm", epilog="Example: veil queue rm orders --yes")
@with_client
def rm(client: BlockingClient, name: QueueName, yes: Yes = False) -> None:
    """Remove a queue and every message in it."""
    confirm(f"Remove queue {name} with {_content(client, name)}?", yes=yes)
    client.on_queue("DeleteQueue", name)
    echo_err(f"removed {name}")


@queue_app.command("purge", epilog="Example: veil queue purge orders --yes")
@with_client
def purge(client: BlockingClient, name: QueueName, yes: Yes = False) -> None:
    """Delete every message in a queue, including those that are in flight or delayed."""
    confirm(f"Purge {_content(client, name)} from queue {name}?", yes=yes)
    client.on_queue("PurgeQueue", name)
    echo_err(f"purged {name}")


@queue_app.command("pause", epilog="Example: veil queue pause orders")
@with_client
def pause(client: BlockingClient, name: QueueName) -> None:
    """Pause deliveries: receives return nothing and long polls wait. Sends and open leases are not affected."""
    client.on_queue("PauseQueue", name)
    echo_err(f"paused {name}; resume with: veil queue resume {name}")


@queue_app.command("resume", epilog="Example: veil queue resume orders")
@with_client
def resume(client: BlockingClient, name: QueueName) -> None:
    """Resume deliveries. Receivers that are waiting get messages at once."""
    client.on_queue("ResumeQueue", name)
    echo_err(f"resumed {name}")


def _content(client: BlockingClient, name: str) -> str:
    attributes = client.attributes(name)
    return words.plural(sum(int(attributes[_NUMBERS[state]]) for state in _STATES), "message")
