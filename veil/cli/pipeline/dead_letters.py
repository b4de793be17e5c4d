"""`veil pipeline dead-letters`: what rests among the dead letters, and why, without receiving any of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from veil.cli.failures import CommandFailed, ServiceError
from veil.cli.options import AsJson, Endpoint, Region, argument, complete_queue, connect, option, whole_number
from veil.cli.output import one_line, say_json, show_table, talk
from veil.cli.pipeline import pipeline_app
from veil.cli.pipeline.options import Conf, Data, Master, TablesPlace, places, spark_session
from veil.cli.queue_settings import dead_letter_queues

if TYPE_CHECKING:
    from veil.pipeline.dead_letters.analysis import DeadLetterGroup


_COLUMNS = (
    "group", "messages", "source", "type", "error", "what", "first seen", "last seen", "receives", "leases",
)  # fmt: skip
_RIGHT = ("messages", "receives")
_WHAT_CHARS, _NAME_CHARS = 80, 48


@pipeline_app.command("dead-letters", epilog="Example: veil pipeline dead-letters orders-dead --top 10")
def dead_letters(
    queues: Annotated[
        list[str] | None,
        argument(
            "[QUEUE]...",
            "Queues of dead letters; else all that are dead letters of others.",
            autocompletion=complete_queue,
        ),
    ] = None,
    top: Annotated[int, option("--top N", "Groups to print, the largest.", whole_number(1))] = 30,
    type_attribute: Annotated[
        list[str] | None,
        option(
            "--type-attribute NAME",
            "The message attribute that tells the type; may be repeated, the first that a message has counts.",
        ),
    ] = None,
    data: Data = None,
    tables: TablesPlace = None,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    region: Region = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Group dead letters by source, type and error, and tell since when, how often received, how their leases ended.

    Nothing is received. The groups are left as the table dead_letters.parquet beside the other tables; --json prints all
    of them. The group's id selects its messages: veil pipeline redrive QUEUE --where "group_id = '…'".
    """
    _, place = places(data, None, tables)
    names = list(dict.fromkeys(queues or _all_dead_letter_queues(endpoint, region)))
    if not names:
        talk("no queue has dead letters; see: veil queue create --help")
        return
    from veil.pipeline.dead_letters.analysis import analyse, read_groups
    from veil.pipeline.dead_letters.queue import opened
    from veil.pipeline.queues import QueueAddress
    from veil.pipeline.sql import TYPE_ATTRIBUTES

    for name in names:  # before Spark is started for nothing
        where = QueueAddress(name, *found_queues(endpoint, region, {"QUEUE": name}))
        opened(where, name).close()
    with spark_session(master, conf, "dead letters", quiet=as_json, brief=True) as spark:
        analyse(spark, where, names, place, type_attributes=type_attribute or TYPE_ATTRIBUTES)
    groups = read_groups(place)
    if as_json:
        for group in groups:
            say_json(_as_object(group))
        return
    _show(groups, names, top)
    talk(f"the table is {place.uri}/dead_letters.parquet")


def _all_dead_letter_queues(endpoint: str | None, region: str | None) -> list[str]:
    with connect(endpoint, region) as client:
        return sorted(set(dead_letter_queues(client)) & set(client.queue_names()))


def found_queues(endpoint: str | None, region: str | None, queues: Mapping[str, str]) -> tuple[str, str]:
    """The service's address and region, once it has said that it has the queues, given by what each is for."""
    with connect(endpoint, region) as client:
        for what, name in queues.items():
            try:
                client.queue_url(name)
            except ServiceError as error:
                if not error.is_missing_queue:
                    raise
                raise CommandFailed(
                    f"{what} {name!r}: expected a queue at {client.target.endpoint}"
                ) from None
        return client.target.endpoint, client.target.region


def _show(groups: Sequence[DeadLetterGroup], queues: Sequence[str], top: int) -> None:
    if not groups:
        talk(f"no dead letters in {', '.join(queues)}")
        return
    several = len({group.queue for group in groups}) > 1
    rows = [_row(group, several=several) for group in groups[:top]]
    columns = (*_COLUMNS[:2], *(("queue",) if several else ()), *_COLUMNS[2:])
    show_table(columns, rows, right=_RIGHT)
    messages = sum(group.messages for group in groups)
    before = sum(group.redriven_before for group in groups)
    told = f"{messages:,} dead letters in {len(groups):,} groups"
    if len(groups) > top:
        told += f", of which the {top} largest are shown; see --top and --json"
    talk(told + (f"; {before:,} were redriven before" if before else ""))


def _row(group: DeadLetterGroup, *, several: bool) -> list[str]:
    return [
        group.group_id,
        f"{group.messages:,}",
        *([group.queue] if several else []),
        group.source or "-",
        one_line(group.message_type or "-", _NAME_CHARS),
        one_line(" at ".join(filter(None, (group.error_type, group.place))) or "-", _NAME_CHARS),
        one_line(group.fingerprint or "no reason was recorded", _WHAT_CHARS),
        _instant(group.first_seen),
        _instant(group.last_seen),
        _range(group.receive_count_min, group.receive_count_median, group.receive_count_max),
        group.leases[0].leases if group.leases else "-",
    ]


def _range(low: int | None, middle: int | None, high: int | None) -> str:
    if low is None or low == high:
        return "-" if low is None else str(low)
    return f"{low}–{high} ({middle})"


def _instant(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M}"


def _as_object(group: DeadLetterGroup) -> dict[str, Any]:
    told = msgspec.to_builtins(group)
    del told["analysed_at"]
    counts = {name: told.pop(f"receive_count_{name}") for name in ("min", "median", "max")}
    return {"group": told.pop("group_id"), **told, "receive_count": counts}
