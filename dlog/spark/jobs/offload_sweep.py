"""Deletes what killed attempts of `offload` left: objects that nothing names, and unfinished files.

Invariants:
- an object is deleted only after a mark makes it impossible to record it, and after records and metadata, read in this
  order, did not name it;
- age decides only when to look.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from functools import partial

from dlog.errors import InvalidStreamNameError
from dlog.io.clock import unix_ms
from dlog.model.ids import StreamName, stream_name
from dlog.spark.cluster_connection import Cluster
from dlog.spark.jobs.offload_copy import cold_store
from dlog.spark.jobs.offload_plan import named
from dlog.spark.jobs.offload_records import named_objects
from dlog.spark.jobs.offload_work import Job, StreamNow, read_stream, ref_of
from dlog.stores.cold import store as cold
from dlog.stores.cold.locations import parse_object
from dlog.stores.object_storage.port import Found


async def sweep(cluster: Cluster, *, job: Job) -> None:
    """Sweep the selected streams, including deleted ones."""
    before_unix_ms = unix_ms() - job.options.orphan_age_s * 1000
    objects, records = cold_store(cluster).objects, job.records(cluster)
    orphans: dict[StreamName, list[str]] = defaultdict(list)
    begun = await job.each(job.streams, lambda stream: records.swept(stream.name), "sweep")  # by runs that were killed
    for stream, names in zip(job.streams, begun, strict=True):
        orphans[stream.name] = names or []
    known = {stream.name: _known(stream) for stream in job.streams}
    async for found in _objects(cluster, job):
        name = _stream_of(found)
        if name is None or name in job.unread or not job.is_meant(name) or found.modified_unix_ms >= before_unix_ms:
            continue
        if found.location not in known.get(name, ()) and parse_object(found.location) is not None:
            orphans[name].append(found.location)
    await job.each(list(orphans.items()), partial(_sweep, cluster, job), "sweep")
    roots = dict.fromkeys((job.options.to, job.options.parquet or job.options.to))
    left = [one for root in roots async for one in objects.unfinished(job.folder(root=root))]
    old = [one for one in left if one.modified_unix_ms < before_unix_ms and job.is_meant(_stream_of(one) or "")]
    await job.each(old, partial(_discard, cluster, job), "sweep")


def _known(stream: StreamNow) -> set[str]:
    return named_objects(stream.kept) | {name for store, name in named(stream.value) if store == cold.NAME}


async def _objects(cluster: Cluster, job: Job) -> AsyncIterator[Found]:
    """Objects of the named streams, or of the whole namespace."""
    for folder in [job.folder(name) for name in job.selection.streams] or [job.folder()]:
        async for found in cold_store(cluster).objects.list(folder):
            yield found


def _stream_of(found: Found) -> StreamName | None:
    """The stream of an object, from its folder."""
    try:
        return stream_name(found.location.rsplit("/", 2)[1])
    except InvalidStreamNameError:
        return None


async def _sweep(cluster: Cluster, job: Job, item: tuple[StreamName, list[str]]) -> None:
    stream, names = item
    for name in dict.fromkeys(names):
        if job.options.dry_run:
            job.report.items.append({"stream": stream, "did": "would sweep", "to": name})
        else:
            await _sweep_object(cluster, job, stream, name)
    if not job.options.dry_run and await read_stream(cluster, stream) is None:
        await job.records(cluster).forget_stream(stream)


async def _sweep_object(cluster: Cluster, job: Job, stream: StreamName, name: str) -> None:
    """Delete an object unless it is named. From `claim` on it cannot be recorded; an earlier record is seen here."""
    records = job.records(cluster)
    await records.claim(stream, name)
    kept = await records.of(stream)
    is_named = name in named_objects(kept) or (cold.NAME, name) in named(await read_stream(cluster, stream))
    parsed = parse_object(name)
    if not is_named and parsed is not None:
        await cold_store(cluster).delete(ref_of(stream, parsed[1].number, name))
        job.report.add("objects_swept")
        job.report.items.append({"stream": stream, "did": "swept", "to": name})
    await records.unmark_swept(stream, name)


async def _discard(cluster: Cluster, job: Job, left: Found) -> None:
    did = {"stream": _stream_of(left), "to": left.location}
    if job.options.dry_run:
        job.report.items.append({**did, "did": "would sweep"})
        return
    await cold_store(cluster).objects.discard(left)
    job.report.add("unfinished_swept")
    job.report.items.append({**did, "did": "swept"})
