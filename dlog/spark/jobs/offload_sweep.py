"""What killed attempts of `offload` left behind: objects that nobody names, and files that were never finished.

The law of this file: an object is deleted only after it was made certain that no record of it can be made any more, and
after records and metadata, read in this order, did not name it. Age decides nothing but when to look.
"""

from __future__ import annotations

from functools import partial

from dlog.io.clock import unix_ms
from dlog.spark.jobs.offload_copy import cold_store
from dlog.spark.jobs.offload_plan import named
from dlog.spark.jobs.offload_records import named_objects
from dlog.spark.jobs.offload_work import Job, StreamNow, read_stream, ref_of
from dlog.spark.reach import Cluster
from dlog.stores.cold import store as cold
from dlog.stores.cold.objects import Found
from dlog.stores.cold.places import parse_object


async def sweep(cluster: Cluster, *, job: Job) -> None:
    """Of the streams that are meant."""
    before_unix_ms = unix_ms() - job.options.orphan_age_s * 1000
    await job.each(job.streams, partial(_sweep, cluster, job, before_unix_ms), "sweep")


async def _sweep(cluster: Cluster, job: Job, before_unix_ms: float, stream: StreamNow) -> None:
    objects, records = cold_store(cluster).objects, job.records(cluster)
    places = await records.swept(stream.name)  # of a run that was killed at it
    known = named_objects(stream.kept) | {place for _, place in named(stream.value)}
    async for found in objects.list(job.folder(stream.name)):
        if found.modified_unix_ms < before_unix_ms and found.place not in known and parse_object(found.place):
            places.append(found.place)
    for place in dict.fromkeys(places):
        if job.options.dry_run:
            job.report.items.append({"stream": stream.name, "did": "would sweep", "to": place})
        else:
            await _sweep_object(cluster, job, stream.name, place)
    roots = [job.options.to, *([job.options.parquet] if job.options.parquet else [])]
    for root in dict.fromkeys(roots):
        async for left in objects.unfinished(job.folder(stream.name, root=root)):
            if left.modified_unix_ms < before_unix_ms:
                await _discard(cluster, job, stream.name, left)


async def _sweep_object(cluster: Cluster, job: Job, stream: str, place: str) -> None:
    """A record of it that is made from now on is refused; one that was made before is seen."""
    records = job.records(cluster)
    await records.claim(stream, place)
    kept = await records.of(stream)
    is_named = place in named_objects(kept) or (cold.NAME, place) in named(await read_stream(cluster, stream))
    told = parse_object(place)
    if not is_named and told is not None:
        await cold_store(cluster).delete(ref_of(stream, told[1].number, place))
        job.report.add("objects_swept")
        job.report.items.append({"stream": stream, "did": "swept", "to": place})
    await records.unclaim(stream, place)


async def _discard(cluster: Cluster, job: Job, stream: str, left: Found) -> None:
    if job.options.dry_run:
        job.report.items.append({"stream": stream, "did": "would sweep", "to": left.place})
        return
    await cold_store(cluster).objects.discard(left)
    job.report.add("unfinished_swept")
    job.report.items.append({"stream": stream, "did": "swept", "to": left.place})
