"""`veil journal`: list and verify the segments, and export the events that still wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from veil.cli.app import group
from veil.cli.failures import CommandFailed
from veil.cli.options import AsJson, DataDirectory, server_settings
from veil.cli.output import echo, echo_object, progress_bar, show_list
from veil.cli.pipeline.options import JournalPlace, journal_location, place_of
from veil.core.errors import StoreBusy
from veil.words import plural

if TYPE_CHECKING:
    from veil.journal.exporter import ExportStats
    from veil.journal.segments import Segment
    from veil.server.settings import Settings

# pyarrow, the store and the settings are imported when they are used: `--help` needs none of them.

journal_app = group("journal", "List, check and export the journal.")


@journal_app.command("ls", epilog="Example: veil journal ls --data veil-data")
def ls(data: DataDirectory = None, journal: JournalPlace = None, as_json: AsJson = False) -> None:
    """List the days of the journal with their segments, events, bytes and broken segments."""
    place = place_of("journal", journal_location(data, journal))
    from msgspec.structs import asdict

    from veil.journal.segments import check_segment, event_count, list_segments

    days: defaultdict[str, list[Segment]] = defaultdict(list)
    for segment in list_segments(place):
        days[segment.day].append(segment)
    found: list[dict[str, Any]] = []
    for day, segments in days.items():
        problems = [problem for each in segments if (problem := check_segment(place, each))]
        broken = {each.name for each in problems}
        found.append(
            {
                "day": day,
                "segments": len(segments),
                "events": sum(event_count(place, each) for each in segments if each.name not in broken),
                "bytes": sum(each.size for each in segments),
                "broken": [asdict(each) for each in problems],
            }
        )
    columns = ("day", "segments", "events", "bytes", "broken")
    otherwise = f"there are no segments in {place.uri}"
    show_list(found, columns, _row, as_json=as_json, right=columns[1:], otherwise=otherwise)
    for each in [] if as_json else [problem for day in found for problem in day["broken"]]:
        echo(f"broken: {each['name']}: {each['reason']}")


def _row(day: Mapping[str, Any]) -> list[str]:
    return [
        day["day"],
        *(f"{day[name]:,}" for name in ("segments", "events", "bytes")),
        str(len(day["broken"])),
    ]


@journal_app.command("verify", epilog="Example: veil journal verify --json")
def verify(data: DataDirectory = None, journal: JournalPlace = None, as_json: AsJson = False) -> None:
    """Read the whole journal and check its checksums.

    Reports broken segments and ranges of rows that are missing between segments. The exit code is 1 if there are any.
    """
    place = place_of("journal", journal_location(data, journal))
    from veil.journal.segments import check_segment, event_count, gaps, list_segments

    segments = list_segments(place)
    if not segments and not place.entries():
        raise CommandFailed(
            f"journal {place.uri}: expected a directory with segments; it is empty or missing (a running server exports what "
            "happened every minute, and when it stops)"
        )
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
    for each in problems:
        told = {"broken": each.name, "reason": each.reason}
        echo_object(told, f"broken: {each.name}: {each.reason}", as_json=as_json)
    for gap in missing:
        text = f"missing: rows {gap.first} to {gap.last} of journal {gap.journal_id}"
        echo_object({"missing": gap._asdict()}, text, as_json=as_json)
    sound = not problems and not missing
    facts = {"sound": sound, "segments": len(segments), "events": events, "bytes": size}
    found = f"{plural(len(segments), 'segment')}, {plural(events, 'event')}, {plural(size, 'byte')} read"
    text = f"{'sound' if sound else 'damaged'}: {found}"
    echo_object(facts, text, as_json=as_json)
    if not sound:
        raise CommandFailed(
            f"the journal in {place.uri} is damaged: {len(problems)} broken, {plural(len(missing), 'range')} missing"
        )


@journal_app.command("export", epilog="Example: veil journal export --data veil-data")
def export(data: DataDirectory = None, journal: JournalPlace = None, as_json: AsJson = False) -> None:
    """Export the events that still wait in the data of a stopped server.

    A running server exports by itself, every minute and when it stops.
    """
    import asyncio

    where = journal_location(data, journal)
    place = place_of("journal", where)
    stats = asyncio.run(_export(server_settings({"data": data}), where))
    counts = {"events": stats.events, "segments": stats.segments, "bytes": stats.segment_bytes}
    text = f"{plural(stats.events, 'event')} exported in {plural(stats.segments, 'segment')} to {place.uri}"
    echo_object(counts | {"journal": place.uri}, text, as_json=as_json, err=True)


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
            "the store is a PostgreSQL database: its nodes export by themselves, to the location of their --journal"
        )
    if directory is None:
        raise CommandFailed(
            "store=memory: there is nothing to export, since this store does not outlive its server"
        )
    if not (directory / DATABASE).exists():
        raise CommandFailed(f"{directory} contains no server data")
    clock = SystemClock()
    store = SqliteStore(directory, clock, journal=True)
    try:
        await store.open()
    except StoreBusy:
        raise CommandFailed(f"a server is running on {directory}: it exports by itself") from None
    helper = HelperProcess(where, store.store_id)
    try:
        exporter = Exporter(store, helper, clock)
        await exporter.export_all()
        return exporter.stats
    finally:
        await helper.close()
        await store.close()
