"""Job `report`: sizes and growth of streams, the proxies that own them, and how far their readers are behind.

Invariants:
- no record is read: everything comes from metadata, and for a segment in progress from estimates by a few entries;
- the page and the JSON report are made of the same rows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlog.errors import ConfigError, DLogError
from dlog.io.clock import SYSTEM_CLOCK
from dlog.io.metadata import Members
from dlog.spark.cluster_connection import Cluster, ClusterConnection, reach
from dlog.spark.jobs.frame import Progress, Report, Selection, Silent, reporting
from dlog.spark.jobs.report_page import page
from dlog.spark.losses import is_another, lost
from dlog.spark.offsets import StreamOffset, StreamPosition
from dlog.spark.options import SourceOptions, parse
from dlog.spark.planning import StreamView, amount, span
from dlog.spark.plans import check_named
from dlog.spark.readers import Reader, find, names
from dlog.spark.views import Seen, StreamViewer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMS_AT_ONCE = 16
STREAMS_A_LOOK = 256  # streams read in one request to the event loop
LOOK_TIMEOUT_S = 600.0
POINTS_MAX = 200  # of a stream's growth curve

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """out: file for the page, replaced as a whole. retries: of requests to the cluster."""

    out: str = "dlog-report.html"
    retries: int = 3
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ConfigError(f"retries must be 0 or more: value={self.retries}")
        directory = Path(self.out).absolute().parent
        if not directory.is_dir():
            raise ConfigError(f"out: no such directory, create it first: value={str(directory)[:200]!r}")


def report(
    spark: SparkSession, selection: Selection, options: ReportOptions, *, progress: Progress | None = None
) -> Report:
    """Report on the streams of `selection` and their readers, and write the page.

    items: rows of streams, readers and proxies, distinguished by `what`. A stream that cannot be read is a failure, the
    others are reported nevertheless. Spark runs no task. Raises StreamNotFoundError for a named stream that does not
    exist, ConfigError for a pattern that matches nothing or a page that cannot be written, MetadataUnavailableError,
    TimeoutError.
    """
    progress = progress or Silent()
    chosen = parse(selection.options(), streaming=False)
    is_whole = not selection.streams and not selection.pattern
    of_cluster = reach(chosen.zookeeper, chosen.namespace, chosen.stores)
    with reporting("report", dry_run=options.dry_run) as result:
        seen = _look(result, of_cluster, chosen, is_whole, options, progress)
        now_ms = SYSTEM_CLOCK.unix_ms()
        members = of_cluster.ask(lambda cluster: cluster.metadata.members(), retries=options.retries)
        kept = _readers(result, of_cluster, chosen, options)
        streams = [stream_row(one, now_ms) for one in seen.values()]
        readers = [row for reader in kept for row in reader_rows(reader, seen, chosen, is_whole)]
        result.items = [*streams, *readers, *proxy_rows(members, streams)]
        result.counts = {
            "streams": len(streams),
            "segments": sum(row["segments"] for row in streams),
            "entries": sum(row["entries"] for row in streams),
            "records": sum(row["records"] for row in streams),
            "bytes": sum(row["bytes"] for row in streams),
            "growth_bytes_a_day": sum(row["growth_bytes_a_day"] or 0 for row in streams),
            "readers": len({row["reader"] for row in readers}),
            "behind_records_max": max((row["behind_records"] or 0 for row in readers), default=0),
            "write_proxies": len(members.write_proxies),
        }
        if not options.dry_run:
            _write(options.out, page(result.counts, result.items, result.failures, chosen.namespace, now_ms))
    return result


# ---- reading metadata -----------------------------------------------------------------------------------------------


def _look(
    result: Report,
    of_cluster: ClusterConnection,
    chosen: SourceOptions,
    is_whole: bool,
    options: ReportOptions,
    progress: Progress,
) -> dict[str, Seen]:
    """Read the selected streams, each by itself: a failure of one does not affect the others."""
    found: Sequence[str] = chosen.streams
    if not found:
        there = of_cluster.ask(lambda cluster: cluster.metadata.streams(), retries=options.retries)
        found = sorted(name for name in there if chosen.selects(name))
        if not found and not is_whole:
            raise ConfigError(f"no stream matches; `dlog ls` lists streams: pattern={chosen.pattern[:60]!r}")
    views = StreamViewer()
    seen: dict[str, Seen] = {}
    failed: list[str] = []
    done = 0

    def on_done() -> None:
        nonlocal done
        done += 1
        progress.step("report", done, len(found))

    for at in range(0, len(found), STREAMS_A_LOOK):
        work = partial(_look_at, views=views, chosen=chosen, found=found[at : at + STREAMS_A_LOOK], on_done=on_done)
        for name, outcome in of_cluster.ask(work, timeout_s=LOOK_TIMEOUT_S):
            if isinstance(outcome, Seen):
                seen[name] = outcome
            elif outcome is not None:
                failed.append(name)
                result.failures.append({"stream": name, "reader": None, "error": f"{outcome}; run the report again"})
    check_named(chosen, [*seen, *failed])
    return seen


async def _look_at(
    cluster: Cluster, *, views: StreamViewer, chosen: SourceOptions, found: Sequence[str], on_done: Callable[[], None]
) -> list[tuple[str, Seen | DLogError | None]]:
    turns = asyncio.Semaphore(STREAMS_AT_ONCE)

    async def one(name: str) -> tuple[str, Seen | DLogError | None]:
        async with turns:
            try:
                return name, (await views.look(cluster, replace(chosen, streams=(name,), pattern=""))).get(name)
            except DLogError as error:
                return name, error
            finally:
                on_done()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(name), name=f"report {name}") for name in found]
    return [task.result() for task in tasks]


def _readers(
    result: Report, of_cluster: ClusterConnection, chosen: SourceOptions, options: ReportOptions
) -> list[Reader]:
    """All readers with stored state; one that cannot be read is a failure."""

    async def work(cluster: Cluster) -> list[tuple[str, Reader | DLogError | None]]:
        found: list[tuple[str, Reader | DLogError | None]] = []
        for name in await names(cluster, chosen.namespace):
            try:
                found.append((name, await find(cluster, chosen.namespace, name)))
            except DLogError as error:
                found.append((name, error))
        return found

    kept = []
    for name, outcome in of_cluster.ask(work, retries=options.retries):
        if isinstance(outcome, Reader):
            kept.append(outcome)
        elif outcome is not None:
            result.failures.append({"stream": None, "reader": name, "error": str(outcome)})
    return kept


# ---- rows -----------------------------------------------------------------------------------------------------------


def stream_row(seen: Seen, now_ms: int) -> Row:
    """The row of a stream. growth: [unix ms, bytes] at the end of each existing segment, and now."""
    value, view = seen.value, seen.view
    segments = view.segments
    points: list[list[int]] = []
    size = 0
    for segment in segments:
        size += segment.bytes
        if segment.completed_unix_ms and segment.is_completed:
            points.append([max(segment.completed_unix_ms, points[-1][0] if points else 0), size])
    per_day = _per_day(points, size, now_ms)
    if points or size:
        points.append([max(now_ms, points[-1][0] if points else 0), size])
    numbers = [segment.number for segment in segments]
    return {
        "what": "stream",
        "stream": view.name,
        "owner": None if value.owner.released else value.owner.address or None,
        "epoch": int(value.owner.epoch),
        "sealed": value.is_sealed,
        "store": value.settings.store,
        "segments": len(segments),
        "segments_in_progress": sum(not segment.is_completed for segment in segments),
        "first_segment": min(numbers, default=None),
        "last_segment": max(numbers, default=None),
        "entries": sum(segment.entries for segment in segments),
        "records": sum(segment.records for segment in segments),
        "bytes": size,
        "retention_s": value.settings.retention_s,
        "growth_bytes_a_day": per_day,
        "growth": thinned(points),
    }


def _per_day(points: Sequence[Sequence[int]], size: int, now_ms: int) -> int | None:
    """Bytes a day since the first existing segment was completed; None if none was."""
    if not points or now_ms <= points[0][0]:
        return None
    return round((size - points[0][1]) * 86_400_000 / (now_ms - points[0][0]))


def thinned(points: list[list[int]]) -> list[list[int]]:
    """At most POINTS_MAX points, including the first and the last."""
    if len(points) <= POINTS_MAX:
        return points
    step = (len(points) - 1) / (POINTS_MAX - 1)
    return [points[round(i * step)] for i in range(POINTS_MAX)]


def reader_rows(reader: Reader, seen: dict[str, Seen], chosen: SourceOptions, is_whole: bool) -> list[Row]:
    """How far a reader is behind, a row for each reported stream.

    state: `reads`; `begun`: it has not reported any progress; `truncated`: its next records are gone; `beyond`: the
    stream was created again, or is shorter than what was read; `gone`: the stream does not exist.
    """
    rows = []
    for stream, position in sorted(reader.positions.items()):
        one = seen.get(stream)
        if one is None and not (is_whole or stream in chosen.streams):
            continue
        rows.append(_reader_row(reader, stream, position, one))
    return rows


def _reader_row(reader: Reader, stream: str, position: StreamPosition, seen: Seen | None) -> Row:
    row: Row = {
        "what": "reader",
        "reader": reader.name,
        "stream": stream,
        "state": "gone",
        "position": position.as_json(),
        "behind_entries": None,
        "behind_records": None,
        "behind_bytes": None,
        "told_unix_ms": reader.told_unix_ms,
    }
    if seen is None:
        return row
    view = seen.view
    begun = view.earliest if view.earliest > position else position
    behind = amount(view, begun, view.latest)
    row["behind_entries"] = sum(part.entries for part in span(view, begun, view.latest))
    row["behind_records"], row["behind_bytes"] = behind.records, behind.bytes
    row["state"] = _state(view, reader.marks.get(stream, StreamOffset(position)), has_reported=stream in reader.done)
    return row


def _state(view: StreamView, mark: StreamOffset, *, has_reported: bool) -> str:
    if mark.position > view.latest or is_another(view, mark):
        return "beyond"
    if lost(view, mark).most != 0:
        return "truncated"
    return "reads" if has_reported else "begun"


def proxy_rows(members: Members, streams: Sequence[Row]) -> list[Row]:
    """A row for each write proxy that is registered or owns a stream; its streams, largest first."""
    owned: dict[str, list[Row]] = {info.address: [] for info in members.write_proxies.values()}
    registered = set(owned)
    for row in streams:
        if row["owner"]:
            owned.setdefault(row["owner"], []).append(row)
    return [
        {
            "what": "proxy",
            "address": address,
            "registered": address in registered,
            "streams": [row["stream"] for row in sorted(rows, key=lambda row: (-row["bytes"], row["stream"]))],
            "bytes": sum(row["bytes"] for row in rows),
            "growth_bytes_a_day": sum(row["growth_bytes_a_day"] or 0 for row in rows),
        }
        for address, rows in sorted(owned.items())
    ]


# ---- output ---------------------------------------------------------------------------------------------------------


def _write(out: str, text: str) -> None:
    """Replace the page as a whole. Raises ConfigError."""
    path = Path(out)
    fresh = path.absolute().with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise ConfigError(f"out: the page cannot be written: {error.strerror}: value={out[:200]!r}") from None
