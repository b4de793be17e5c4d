"""`veil journal`: which segments there are, whether they are whole, and the export of what still waits."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Annotated

from veil.cli.app import group
from veil.cli.failures import CommandFailed
from veil.cli.options import AsJson, DataDirectory, option, server_settings
from veil.cli.output import inert, progress_bar, say, say_json, show_table, talk
from veil.cli.pipeline.options import journal_location, place_of
from veil.core.errors import StoreBusy

if TYPE_CHECKING:
    from veil.journal.exporter import ExportStats
    from veil.journal.segments import Segment
    from veil.server.settings import Settings

# pyarrow, the store and the settings are imported when they are used: `--help` needs none of them.

journal_app = group("journal", "Look at the journal, check it, export what waits.")

Where = Annotated[
    str | None, option("--journal PLACE", "The journal: a directory, s3://… or hdfs://…; else the server's.")
]


@journal_app.command("ls", epilog="Example: veil journal ls --data veil-data")
def ls(data: DataDirectory = None, journal: Where = None, as_json: AsJson = False) -> None:
    """List the journal's days: segments, events, bytes, and segments that are broken."""
    place = place_of("journal", journal_location(data, journal))
    from veil.journal.segments import check_segment, event_count, list_segments

    days: defaultdict[str, list[Segment]] = defaultdict(list)
    for segment in list_segments(place):
        days[segment.day].append(segment)
    rows = []
    for day, segments in days.items():
        problems = [found for each in segments if (found := check_segment(place, each))]
        names = {each.name for each in problems}
        events = sum(event_count(place, each) for each in segments if each.name not in names)
        rows.append((day, len(segments), events, sum(each.size for each in segments), problems))
    if as_json:
        for day, count, events, size, problems in rows:
            broken = [each._asdict() for each in problems]
            say_json({"day": day, "segments": count, "events": events, "bytes": size, "broken": broken})
        return
    if not rows:
        talk(f"there are no segments in {place.uri}")
        return
    shown = [(day, f"{n:,}", f"{events:,}", f"{size:,}", str(len(bad))) for day, n, events, size, bad in rows]
    columns = ("day", "segments", "events", "bytes", "broken")
    show_table(columns, shown, right=columns[1:])
    for *_, problems in rows:
        for each in problems:
            say(inert(f"broken: {each.name}: {each.reason}"))


@journal_app.command("verify", epilog="Example: veil journal verify --json")
def verify(data: DataDirectory = None, journal: Where = None, as_json: AsJson = False) -> None:
    """Read the whole journal with its checksums.

    Names segments that are broken and ranges of rows that are missing between segments; exit code 1 if there are any.
    """
    place = place_of("journal", journal_location(data, journal))
    from veil.journal.segments import check_segment, event_count, gaps, list_segments

    segments = list_segments(place)
    problems, events = [], 0
    with progress_bar("segments") as shown:
        for number, segment in enumerate(segments, 1):
            problem = check_segment(place, segment, thorough=True)
            if problem is not None:
                problems.append(problem)
            else:
                events += event_count(place, segment)
            shown(number, len(segments))
    missing = gaps(segments)
    size = sum(each.size for each in segments)
    if as_json:
        for problem in problems:
            say_json({"broken": problem.name, "reason": problem.reason})
        for gap in missing:
            say_json({"missing": gap._asdict()})
        sound = not problems and not missing
        say_json({"sound": sound, "segments": len(segments), "events": events, "bytes": size})
    else:
        for problem in problems:
            say(inert(f"broken: {problem.name}: {problem.reason}"))
        for gap in missing:
            say(f"missing: rows {gap.first} to {gap.last} of journal {inert(gap.journal_id)}")
        say(f"{len(segments):,} segments, {events:,} events, {size:,} bytes read")
    if problems or missing:
        raise CommandFailed(
            f"the journal in {place.uri} is not whole: {len(problems)} broken, {len(missing)} ranges missing"
        )


@journal_app.command("export", epilog="Example: veil journal export --data veil-data")
def export(data: DataDirectory = None, journal: Where = None, as_json: AsJson = False) -> None:
    """Export what waits in the outbox of a stopped server's data.

    A running server exports by itself, every minute and when it stops.
    """
    import asyncio

    where = journal_location(data, journal)
    place = place_of("journal", where)
    stats = asyncio.run(_export(server_settings({"data": data}), where))
    if as_json:
        facts = {"events": stats.events, "segments": stats.segments, "bytes": stats.segment_bytes}
        say_json(facts | {"journal": place.uri})
    else:
        talk(f"{stats.events:,} events exported in {stats.segments:,} segments to {place.uri}")


async def _export(settings: Settings, where: str) -> ExportStats:
    from veil.journal.exporter import Exporter
    from veil.journal.helper_process import HelperProcess
    from veil.server.make_store import is_on_postgres, store_directory
    from veil.server.process import SystemClock
    from veil.stores.sqlite.data_directory import DATABASE
    from veil.stores.sqlite.store import SqliteStore

    directory = store_directory(settings)
    if is_on_postgres(settings):
        raise CommandFailed(
            "the store is a PostgreSQL: its nodes export by themselves, to the location of their --journal"
        )
    if directory is None:
        raise CommandFailed(
            "store=memory: expected a store that outlives its server; there is nothing to export"
        )
    if not (directory / DATABASE).exists():
        raise CommandFailed(f"{directory} holds no data of a server")
    clock = SystemClock()
    store = SqliteStore(directory, clock, journal=True)
    try:
        await store.open()
    except StoreBusy:
        raise CommandFailed(f"a server runs on {directory}: it exports by itself") from None
    helper = HelperProcess(where, store.store_id)
    try:
        exporter = Exporter(store, helper, clock)
        await exporter.export_all()
        return exporter.stats
    finally:
        await helper.close()
        await store.close()
