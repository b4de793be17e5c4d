"""`veil pipeline route`: its rules, why a class is routed where it is, and the counts of each route."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from veil import words
from veil.cli import output
from veil.cli.failures import ArgumentWrong, in_words
from veil.cli.options import (
    AsJson,
    DataDirectory,
    Endpoint,
    Region,
    flag,
    how_often,
    length,
    option,
    whole_number,
    wrong,
)
from veil.cli.output import echo_err, echo_json, echo_object
from veil.cli.pipeline import pipeline_app
from veil.cli.pipeline.options import (
    TablesPlace,
    place_of,
    places,
    service_of,
    spark_session,
    with_spark,
)
from veil.cli.pipeline.timeouts import read_date, read_share

if TYPE_CHECKING:
    from collections.abc import Callable

    from veil.pipeline.routing.router import BandVerdict, Prepared, Routed
    from veil.pipeline.routing.rules import Band, RouteTable
    from veil.pipeline.spark.session import SparkSettings


def show_verdicts(verdicts: Sequence[BandVerdict], *, as_json: bool) -> None:
    """Each class with its band and the reason."""
    for each in verdicts:
        data = {
            "class": each.message_class,
            "band": each.band.name,
            "moved_from": None if each.moved_from is None else each.moved_from.name,
            "observed": each.observed,
            "quantile_s": each.quantile_s,
            "reason": each.reason,
        }
        moved = "" if each.moved_from is None else f", moved from {each.moved_from.name}"
        text = f"class {each.message_class or '(none)'}: {each.band.name}{moved}; {each.reason}"
        echo_object(data, text, as_json=as_json, err=True)


def show_table(table: RouteTable, *, as_json: bool) -> None:
    """The rules in their order, the default last."""
    timeouts = {target.queue: target.timeout_s for target in table.targets}
    for when, queue in [
        *((str(rule), rule.queue) for rule in table.rules),
        ("everything else", table.default),
    ]:
        timeout_s = timeouts[queue]
        shown = "" if timeout_s is None else f" ({words.exact_length(timeout_s)})"
        data = {"rule": when, "queue": queue, "timeout_s": timeout_s}
        echo_object(data, f"rule: {when} -> {queue}{shown}", as_json=as_json, err=True)


def show_prepared(prepared: Sequence[Prepared]) -> None:
    """Which queues were created, and which have another timeout than the rules mean."""
    for each in prepared:
        queue, meant_s, timeout = each.target.queue, each.target.timeout_s, words.exact_length(each.timeout_s)
        if each.created:
            dead = f", dead letters in {each.dead_letters}" if each.dead_letters else ""
            echo_err(f"created {queue} with a timeout of {timeout}{dead}")
        elif meant_s is not None and meant_s != each.timeout_s:
            change = f"change it with: veil queue edit {queue} --visibility-timeout {meant_s}"
            echo_err(f"{queue} has a timeout of {timeout}, not {words.exact_length(meant_s)}; {change}")


class RouteCounts:
    """Messages by route, told as they go."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._total: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._batches = 0

    def add(self, routed: Routed) -> None:
        self._batches += 1
        self._total.update(routed.counts)
        self._refused.update(routed.refused)
        again = ", done again" if routed.again else ""
        shown = ", ".join(f"{count:,} to {queue}" for queue, count in routed.counts.items() if count)
        data = {
            "batch": routed.batch,
            "again": routed.again,
            "routed": routed.counts,
            "refused": routed.refused,
        }
        text = f"batch {routed.batch}{again}: {shown or 'nothing'}{_not_taken(routed.refused)}"
        echo_object(data, text, as_json=self._as_json, err=True)

    def show(self) -> None:
        if self._as_json:
            echo_json({"batches": self._batches, "total": dict(self._total), "refused": dict(self._refused)})
            return
        if rows := [[queue, f"{count:,}"] for queue, count in self._total.items() if count]:
            output.show_table(["queue", "messages"], rows, right=["messages"])
        if self._refused:
            refused = _not_taken(self._refused).removeprefix("; ")
            echo_err(f"veil: the error path keeps the messages that were not routed: {refused}")


def _not_taken(refused: Mapping[str, int]) -> str:
    return "".join(f"; {count:,} refused by {queue}" for queue, count in refused.items() if count)


@pipeline_app.command(
    "route", epilog="Example: veil pipeline route --from orders --learn --create-queues --once"
)
@with_spark
def route(
    spark: SparkSettings,
    intake: str = option("--from QUEUE", "The intake queue.", default=...),
    rules: Path | None = option("--rules FILE", "A TOML file with the rules."),
    learn: bool = flag(
        "--learn", "Learn the rules from the tables, by how long each class of messages took."
    ),
    class_by: str = option(
        "--class-by WHAT",
        "What makes the class of a message: type, group, size or json:$.FIELD.",
        default="type",
    ),
    type_attribute: list[str] | None = option(
        "--type-attribute NAME", "The message attribute that holds the type. Can be repeated."
    ),
    bands: str = option(
        "--bands NAME=TIMEOUT,…", "The timeouts to choose from.", default="short=30s,medium=5min,long=1h"
    ),
    default: str | None = option("--default BAND", "The band for unknown classes. Default: the longest."),
    target_name: str | None = option(
        "--target-name TEXT", "How the queue of a band is named. Default: {intake}-{band}."
    ),
    quantile: float = option(
        "--quantile SHARE",
        "The share of the work that must fit into the timeout.",
        read_share(0.5, 0.9999, "99% or 0.99"),
        default="99%",
    ),
    learn_from: list[str] | None = option(
        "--learn-from QUEUE", "Learn from this queue's past. Default: the intake and target queues."
    ),
    since: date | None = option(
        "--since DATE", "Only learn from messages sent on this day (UTC) or later.", read_date
    ),
    relearn: int = option(
        "--relearn LENGTH",
        "How often to learn again. Default: 1h.",
        length(1, 86_400),
        default=3600,
        show_default=False,
    ),
    create_queues: bool = flag("--create-queues", "Create missing target queues, with their timeouts."),
    once: bool = flag("--once", "Route the messages that are there now, then exit."),
    every: float = how_often("--every", "How often to look for messages. Default: 1s.", default=1.0),
    max_messages: int = option(
        "--max-messages N", "How many messages a batch may have.", whole_number(1, 120_000), default=10_000
    ),
    parts: int = option(
        "--parts N", "How many Spark tasks a batch is split into.", whole_number(1, 10_000), default=2
    ),
    state: str | None = option(
        "--state PLACE", "Where the router keeps its state. Default: DATA/routing/QUEUE."
    ),
    error_path: str | None = option(
        "--error-path PLACE", "Where to put messages that no target queue accepts. Default: the router stops."
    ),
    dry_run: bool = flag("--dry-run", "Show the rules, then exit."),
    endpoint: Endpoint = None,
    region: Region = None,
    data: DataDirectory = None,
    tables: TablesPlace = None,
    as_json: AsJson = False,
) -> None:
    """Route messages from an intake queue to the queue with the right timeout.

    The rules come from a file or are learned: each class of messages goes to the band that its work fits into, and changes
    its band only when the evidence is clear. A message is deleted from the intake queue once it is stored in its target
    queue; its id is kept in the attribute Veil.RoutedFrom. The rules and the counts of each route are printed on stderr, or
    on stdout with --json.
    """
    if learn == (rules is not None):
        raise wrong("--rules", "expected either --rules FILE or --learn")
    from veil.pipeline.lifecycles.lock import only_run
    from veil.pipeline.queues import QueueAddress, QueueClient
    from veil.pipeline.routing.router import LearnedRules, Router, RouterState, prepare_targets
    from veil.pipeline.routing.rules import (
        RouteRefused,
        band_named,
        check_class_by,
        read_bands,
        read_rule_file,
    )
    from veil.pipeline.sql import TYPE_ATTRIBUTES

    try:
        written = None if rules is None else read_rule_file(rules)
        found_bands = read_bands(bands)
        fallback = found_bands[-1] if default is None else band_named(found_bands, default)
        name_of, class_by = _namer(intake, target_name), check_class_by(class_by)
    except RouteRefused as refused:
        raise ArgumentWrong(str(refused)) from None
    _, tables_place = places(data, None, tables)
    if error_path is not None:
        place_of("--error-path", error_path)
    state_place = place_of("state", state or _beside_tables(data, intake))
    router_state = RouterState(state_place)
    place = QueueAddress(intake, *service_of([intake], endpoint, region))
    with QueueClient(place, user_agent="pipeline route") as client:
        router_state.belongs_to(client.url)
        learned = LearnedRules(
            tables=tables_place,
            state=router_state,
            bands=found_bands,
            default=fallback,
            queue_of=name_of,
            queues=learn_from or [_name(intake), *map(name_of, found_bands)],
            owner=client.owner,
            class_by=class_by,
            type_attributes=tuple(type_attribute or TYPE_ATTRIBUTES),
            quantile=quantile,
            since=since,
            look_every_s=float(relearn),
            tell=lambda verdicts: show_verdicts(verdicts, as_json=as_json),
            on_problem=lambda problem: echo_err(f"veil: the rules stay as they are: {in_words(problem)}"),
        )
        current = learned.table if written is None else lambda: written
        table = current()
        show_table(table, as_json=as_json)
        if dry_run:
            return
        if not create_queues:  # where one is missing, nothing is left behind
            prepare_targets(client, table, create=False)
        with only_run(state_place), ExitStack() as stack:
            router_state.keep()
            show_prepared(prepare_targets(client, table, create=create_queues))
            session = stack.enter_context(spark_session(spark, "pipeline route", quiet=as_json))
            counts = RouteCounts(as_json)
            router = Router(
                session, place, router_state, current, counts.add, error_path, max_messages, parts
            )
            query = router.start(once=once, every_s=every)
            if not once:
                echo_err("routing; stop with Ctrl-C")
            try:
                query.awaitTermination()
            except KeyboardInterrupt:
                pass
            finally:
                query.stop()
                counts.show()


def _name(queue: str) -> str:
    return queue.rpartition("/")[2].rpartition(":")[2]


def _beside_tables(data: str | None, intake: str) -> str:
    return str(Path(places(data, None, None)[1].uri).parent / "routing" / _name(intake))


def _namer(intake: str, pattern: str | None) -> Callable[[Band], str]:
    """The queue of a band; targets of a FIFO intake are FIFO queues too, unless they are named otherwise."""
    name = _name(intake)
    ending = ".fifo" if name.endswith(".fifo") else ""
    given = pattern if pattern is not None else "{intake}-{band}" + ending
    if "{band}" not in given:
        raise ArgumentWrong(f"target name {given!r}: expected {{band}} in it")
    plain = name.removesuffix(".fifo")
    return lambda band: given.replace("{intake}", plain).replace("{band}", band.name)
