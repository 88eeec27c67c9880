"""Job `offload`: moves completed segments that are old enough to cold storage.

    copy (a task each) --> read back --> record both locations --> request the move --> after a grace period,
    in a later run: read the whole object once more --> delete the ledger --> delete the record

Invariants:
- metadata names no object before it was read back completely;
- a copy that metadata does not name is on record until it is deleted, so a run may be killed anywhere, and run beside
  another one;
- the driver decides; no byte of a segment passes through it;
- a segment with a fault stays where it is, and is reported;
- only ledgers are moved: the segment list can name no other former location, by which a late import is recognised.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from dlog.errors import ConfigError, StreamNotFoundError
from dlog.io.clock import unix_ms
from dlog.io.stores import load_stores
from dlog.model.ids import StreamName, is_reserved, stream_name
from dlog.model.offloading import Record
from dlog.model.segment import Segment
from dlog.spark.cluster_connection import Cluster, reach
from dlog.spark.jobs.frame import Progress, Report, Selection, reporting, scatter
from dlog.spark.jobs.offload_copy import Copied, CopyTask, Source, cold_store, copy_segments
from dlog.spark.jobs.offload_plan import candidates, packed, parquet_location, source_of
from dlog.spark.jobs.offload_records import StoredRecord
from dlog.spark.jobs.offload_settle import publish, retire, settle
from dlog.spark.jobs.offload_sweep import sweep
from dlog.spark.jobs.offload_work import Job, OffloadOptions, StreamNow, read_stream
from dlog.stores.cold import store as cold
from dlog.stores.contract import SegmentRef
from dlog.stores.object_storage.locations import parse_root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["OffloadOptions", "offload"]

_TASKS_A_WAVE = 8  # for each core; the moves of a wave are requested before the next one begins


def offload(
    spark: SparkSession, selection: Selection, options: OffloadOptions, *, progress: Progress | None = None
) -> Report:
    """Move segments of the streams of `selection`, and finish what earlier runs began.

    items: a row for each action on a segment. findings: damaged segments, which stay where they are, and damaged
    objects. failures: what could not be done now. Raises StreamNotFoundError for a named stream that does not exist,
    ConfigError, MisconfiguredError for a location that cannot be used, MetadataUnavailableError.
    """
    settings = load_stores(None)
    to, roots = parse_root(options.to), settings.cold.allowed()
    if roots and not any(root.holds(to) for root in roots):
        raise ConfigError(f"the location is below none of the allowed roots (DLOG_COLD_ROOTS): to={to}")
    of_cluster = reach(selection.zookeeper, selection.namespace, settings)
    with reporting("offload", dry_run=options.dry_run) as report:
        job = Job(spark, of_cluster, settings, selection, options, report, progress)
        job.ask(partial(_look, job=job))
        retire(job, job.ask(partial(settle, job=job)))
        _copy(job, job.ask(partial(_plan, job=job)))
        job.ask(partial(sweep, job=job))
    return report


async def _look(cluster: Cluster, *, job: Job) -> None:
    """Read the selected streams, including deleted ones that left records or objects."""
    job.cluster_id = await cluster.metadata.instance_id()
    for root in filter(None, (job.options.to, job.options.parquet)):
        async for _ in cold_store(cluster).objects.list(job.folder("probe", root=root)):
            break  # checks that the storage replies
    records = job.records(cluster)
    there = {*await cluster.metadata.streams(), *await records.streams()}
    if missing := sorted({stream_name(name) for name in job.selection.streams} - there):
        raise StreamNotFoundError(f"no such stream: stream={missing[0]} namespace={job.selection.namespace}")
    chosen = sorted(name for name in there if job.is_meant(name) and not is_reserved(name))
    if not chosen and job.selection.pattern:
        raise ConfigError(f"no stream matches; `dlog ls` lists streams: pattern={job.selection.pattern[:60]!r}")

    async def look(name: StreamName) -> StreamNow:
        kept = await records.of(name)  # before metadata: a copy that is in neither then is in use nowhere
        return StreamNow(name, await read_stream(cluster, name), kept)

    job.streams = [stream for stream in await job.each(chosen, look, "look") if stream is not None]
    job.unread = frozenset(chosen) - {stream.name for stream in job.streams}


# ---- copying --------------------------------------------------------------------------------------------------------


async def _plan(cluster: Cluster, *, job: Job) -> list[Source]:
    """The segments to copy, in the order of each stream."""
    streams = [stream for stream in job.streams if stream.value is not None]
    planned = await job.each(streams, partial(_plan_stream, cluster, job), "plan")
    return [source for sources in planned for source in sources or ()]


async def _plan_stream(cluster: Cluster, job: Job, stream: StreamNow) -> list[Source]:
    options, value = job.options, stream.value
    assert value is not None
    being_moved = {kept.record.number for kept in stream.kept} - stream.recopy.keys()
    now_unix_ms = unix_ms()
    found: list[Source] = []
    written: set[str] = set()
    if options.parquet:
        folder = job.folder(stream.name, root=options.parquet)
        written = {file.location async for file in cold_store(cluster).objects.list(folder)}
    for segment in candidates(
        value, being_moved, now_unix_ms=now_unix_ms, older_than_s=options.older_than_s, keep=options.keep
    ):
        parquet = ""
        if options.parquet:
            parquet = parquet_location(job.folder(stream.name, root=options.parquet), value.incarnation, segment.number)
        is_cold = segment.store == cold.NAME
        if is_cold and (not parquet or parquet in written):
            continue
        found.append(
            source_of(
                value,
                segment,
                folder="" if is_cold else str(job.folder(stream.name)),
                payload_bytes=await _bytes_of(cluster, stream.name, segment),
                parquet=parquet,
                compression=options.parquet_compression,
            )
        )
    return found


async def _bytes_of(cluster: Cluster, stream: StreamName, segment: Segment) -> int:
    """Bytes of its entries' payloads, according to its store."""
    ref = SegmentRef(stream, segment.number, segment.name)
    return (await cluster.store(segment.store).stat(ref, sealed_at=segment.last_entry)).payload_bytes


def _copy(job: Job, sources: Sequence[Source]) -> None:
    """Copy segments in Spark tasks, wave after wave."""
    job.report.add("segments_planned", len(sources))
    job.report.add("bytes_planned", sum(source.bytes for source in sources))
    if job.options.dry_run:
        for source in sources:
            did = "would offload" if source.folder else "would write Parquet"
            job.item(_record_of(source), did, to=source.folder or source.parquet, bytes=source.bytes)
        return
    recopy = {(s.name, number): kept for s in job.streams for number, kept in s.recopy.items()}
    tasks = packed(sources, lambda source: source.bytes)
    wave = _TASKS_A_WAVE * job.spark.sparkContext.defaultParallelism
    for at in range(0, len(tasks), wave):
        errands = [
            CopyTask(
                zookeeper=job.selection.zookeeper, namespace=job.selection.namespace, stores=job.settings, sources=task
            )
            for task in tasks[at : at + wave]
        ]
        done = scatter(job.spark, errands, copy_segments, what="copy", progress=job.progress)
        copies = [
            (source, copied)
            for errand, results in zip(errands, done, strict=True)
            for source, copied in zip(errand.sources, results, strict=True)
        ]
        _take(job, copies, recopy)


def _take(job: Job, done: Sequence[tuple[Source, Copied]], recopy: dict[tuple[StreamName, int], StoredRecord]) -> None:
    """Report the results of tasks, and publish what was copied."""
    ready: list[tuple[Copied, Record, StoredRecord | None]] = []
    for source, copied in done:
        record = _record_of(source)
        if copied.finding:
            job.find("source" if source.folder else "cold", copied.stream, copied.number, copied.finding)
        elif copied.failure:
            job.fail("copy", copied.failure, stream=copied.stream, segment=copied.number)
        elif copied.is_gone:
            job.report.add("truncated_meanwhile")
        elif source.folder:
            ready.append((copied, record, recopy.get((stream_name(copied.stream), copied.number))))
        if copied.parquet:
            job.report.add("parquet_files")
            job.report.add("parquet_bytes", copied.parquet_bytes)
            job.item(record, "Parquet written", to=copied.parquet)
    if ready:
        job.ask(partial(publish, job=job, done=ready))


def _record_of(source: Source) -> Record:
    """The record of a segment that has no object yet."""
    head = source.head
    return Record(
        stream=head.stream,
        number=head.number,
        store=head.source_store,
        name=head.source_name,
        objects=(),
        incarnation=head.incarnation,
    )
