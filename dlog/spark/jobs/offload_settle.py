"""Completes moves to cold storage: continues earlier runs, or publishes new copies.

Invariants:
- before a copy is deleted the deletion is announced in the record, then metadata is read, and what it names stays;
- no run deletes the hot copy (ledger) of a segment that is not truncated before it saw a proxy read from cold storage;
- a record is deleted last;
- a request to a stream's owner names the incarnation in the record, so it never moves a segment of the next stream of
  the name. Records made by earlier versions have none.

dlog/model/offloading.py says why two runs, and late effects of a third one, cannot undo each other.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from dlog.client.client import Client
from dlog.errors import DLogError, InvalidRequestError, StreamNotFoundError, TruncatedError
from dlog.io.clock import unix_ms
from dlog.io.zookeeper_protocol import BadVersionError, NodeExistsError, NoNodeError
from dlog.model.dlsn import of
from dlog.model.offloading import Record, Step, decide
from dlog.options import SECONDS_MAX
from dlog.spark.cluster_connection import Cluster
from dlog.spark.jobs.frame import scatter
from dlog.spark.jobs.offload_copy import CheckTask, Copied, check_objects, cold_store
from dlog.spark.jobs.offload_plan import named, packed
from dlog.spark.jobs.offload_records import StoredRecord
from dlog.spark.jobs.offload_work import Job, StreamNow, read_stream, ref_of
from dlog.stores.cold import store as cold
from dlog.stores.cold.locations import payload_bytes
from dlog.stores.contract import SegmentCorruptError, SegmentNotFoundError

TRY_AFTER_S = 0.1

_WOULD = {
    Step.REQUEST_MOVE: "would request the move",
    Step.NOTE: "would begin the grace period",
    Step.RETIRE: "would delete the hot copy",
    Step.TAKE_BACK: "would take it back",
    Step.DROP: "would delete the hot copy",
    Step.CLEAR: "would delete all of it",
}


@dataclass(slots=True)
class ExpiredRecord:
    """A record after its grace period. lies_at: the object that metadata names."""

    kept: StoredRecord
    lies_at: str


async def settle(cluster: Cluster, *, job: Job) -> list[ExpiredRecord]:
    """Continue with every record; returns those whose grace period is over."""
    retiring: list[ExpiredRecord] = []
    being_moved = [(stream, kept) for stream in job.streams for kept in stream.kept]
    if not being_moved:
        return retiring
    async with await job.client(cluster) as client:

        async def one(item: tuple[StreamNow, StoredRecord]) -> None:
            stream, kept = item
            decision = decide(kept.record, stream.value, now_unix_ms=unix_ms(), grace_s=job.options.grace_s)
            if decision.step is Step.WAIT:
                job.report.add("waiting")
                return
            if job.options.dry_run:
                job.item(kept.record, _WOULD[decision.step])
                return
            match decision.step:
                case Step.REQUEST_MOVE:
                    await _move_again(cluster, client, job, stream, kept)
                case Step.NOTE:
                    await _note(cluster, job, kept)
                case Step.RETIRE:
                    retiring.append(ExpiredRecord(kept, decision.lies_at))
                case Step.TAKE_BACK:
                    await _move_back(client, job, kept.record, decision.lies_at)
                case Step.DROP | Step.CLEAR:
                    await _delete(cluster, job, kept, decision.lies_at)

        await job.each(being_moved, one, "go on")
    return retiring


async def _move_again(cluster: Cluster, client: Client, job: Job, stream: StreamNow, kept: StoredRecord) -> None:
    """Repeat what a killed run left undone; copy again if the object is unusable."""
    if not kept.record.needs_copy and await _is_there(cluster, kept.record):
        await _move_to_object(cluster, client, job, kept)
    else:
        stream.recopy[kept.record.number] = kept


async def _is_there(cluster: Cluster, record: Record) -> bool:
    """Whether the object can be opened. It was read back completely before it was recorded."""
    try:
        reader = await cold_store(cluster).open_reader(ref_of(record.stream, record.number, record.object))
    except (SegmentCorruptError, SegmentNotFoundError):
        return False
    await reader.close()
    return True


async def _move_to_object(cluster: Cluster, client: Client, job: Job, kept: StoredRecord) -> None:
    """Move the segment to its object. Raises MisconfiguredError if proxies cannot read it there."""
    if not job.trial.is_over:
        async with job.trial.turn:
            if not job.trial.is_over:
                await _move_first(cluster, client, job, kept)
                return
    job.trial.check()
    if await _move_segment(cluster, client, job, kept):
        await _moved(cluster, job, kept)


async def _move_first(cluster: Cluster, client: Client, job: Job, kept: StoredRecord) -> None:
    """Move the first segment of a run, and try whether a proxy reads it there; if not, move it back."""
    if not await _move_segment(cluster, client, job, kept):
        return
    await _try(client, job, kept.record)
    if job.trial.refusal:
        await _go_back(cluster, client, job, kept, kept.record.object, is_damaged=False)
    job.trial.check()
    await _moved(cluster, job, kept)


async def _try(client: Client, job: Job, record: Record) -> None:
    job.trial.refusal = await _try_out(client, record)
    job.trial.is_over = True


async def _try_out(client: Client, record: Record) -> str:
    """Why a reader of the segment gets an error; empty if it gets none."""
    await asyncio.sleep(TRY_AFTER_S)  # until read proxies know the new location
    try:
        async with aclosing(client.read(record.stream, of(record.number, 0, 0), limit=1)) as reading:
            async for _ in reading:
                break
    except (TruncatedError, StreamNotFoundError):
        return ""  # nothing to read any more, in either location
    except DLogError as error:
        return error.message
    return ""


async def _move_segment(cluster: Cluster, client: Client, job: Job, kept: StoredRecord) -> bool:
    """Request the move from the stream's owner; False: the segment does not exist any more."""
    record = kept.record
    try:
        await client.move_segment(
            record.stream,
            record.number,
            store=record.store,
            location=record.name,
            to_store=cold.NAME,
            to_location=record.object,
            incarnation=record.incarnation or None,
        )
    except (TruncatedError, StreamNotFoundError):
        job.report.add("truncated_meanwhile")  # a later run deletes the rest
        return False
    except InvalidRequestError:
        value = await read_stream(cluster, record.stream)
        if not decide(record, value, now_unix_ms=0, grace_s=SECONDS_MAX).lies_at:
            raise
    return True


async def _go_back(
    cluster: Cluster, client: Client, job: Job, kept: StoredRecord, lies_at: str, *, is_damaged: bool
) -> None:
    """Record the move back, then move the segment, unless the deletion of its hot copy was announced."""
    record = kept.record.returning(lies_at, is_damaged=is_damaged)
    if record is None:
        where = f"{kept.record.store}:{kept.record.name}"
        text = f"it cannot be moved back, a run has begun to delete its hot copy, which may still exist: {where}"
        job.find("cold", kept.record.stream, kept.record.number, text)
        return
    try:
        await job.records(cluster).change(kept, record)
    except BadVersionError:
        job.report.add("done_by_another_run")
        return
    await _move_back(client, job, record, lies_at)


async def _move_back(client: Client, job: Job, record: Record, lies_at: str) -> None:
    """Move the segment back to its hot copy, if it still exists."""
    try:
        await client.move_segment(
            record.stream,
            record.number,
            store=cold.NAME,
            location=lies_at,
            to_store=record.store,
            to_location=record.name,
            incarnation=record.incarnation or None,
        )
    except (TruncatedError, StreamNotFoundError):
        return  # a later run deletes the rest
    job.report.add("segments_taken_back")
    job.item(record, "taken back")


async def _moved(cluster: Cluster, job: Job, kept: StoredRecord) -> None:
    """Report the move, and begin the grace period."""
    record = kept.record
    job.report.add("segments_offloaded")
    job.report.add("bytes_offloaded", payload_bytes(record.object))
    job.item(record, "offloaded")
    await _note(cluster, job, kept)


async def _note(cluster: Cluster, job: Job, kept: StoredRecord) -> None:
    """Record the beginning of the grace period."""
    try:
        await job.records(cluster).change(kept, replace(kept.record, moved_unix_ms=unix_ms()))
    except BadVersionError:
        return  # another run recorded it


async def _delete(cluster: Cluster, job: Job, kept: StoredRecord, lies_at: str) -> None:
    """Announce the deletion, then delete every copy but the object `lies_at`, if any."""
    try:
        kept = await job.records(cluster).change(kept, kept.record.deleting())
    except (BadVersionError, NoNodeError):
        job.report.add("done_by_another_run")
        return
    await _forget(cluster, job, kept, lies_at)


async def _forget(cluster: Cluster, job: Job, kept: StoredRecord, lies_at: str) -> None:
    """Delete the hot copy, objects but `lies_at`, and the record, unless metadata names the hot copy; keep named
    objects."""
    record = kept.record
    still = named(await read_stream(cluster, record.stream))
    if (record.store, record.name) in still:
        return
    await cluster.stores[record.store].delete(ref_of(record.stream, record.number, record.name))
    for location in record.objects:
        if location != lies_at and (cold.NAME, location) not in still:
            await cold_store(cluster).delete(ref_of(record.stream, record.number, location))
    await job.records(cluster).forget(kept)
    job.report.add("hot_copies_deleted")
    job.item(record, "hot copy deleted")


# ---- new copies -----------------------------------------------------------------------------------------------------


async def publish(cluster: Cluster, *, job: Job, done: Sequence[tuple[Copied, Record, StoredRecord | None]]) -> None:
    """Record both locations of each, and request its move. Third element: its earlier record."""
    async with await job.client(cluster) as client:

        async def one(item: tuple[Copied, Record, StoredRecord | None]) -> None:
            copied, record, was = item
            if job.trial.refusal:
                await cold_store(cluster).delete(ref_of(record.stream, record.number, copied.object))
                job.trial.check()
            updated = (record if was is None else was.record).with_object(copied.object)
            kept = None if updated is None else await _begin(cluster, job, updated, was)
            if kept is None:
                await cold_store(cluster).delete(ref_of(record.stream, record.number, copied.object))
                job.report.add("done_by_another_run")
                return
            if await _is_there(cluster, kept.record):
                await _move_to_object(cluster, client, job, kept)
            else:
                job.fail("copy", "the object does not exist any more", stream=record.stream, segment=record.number)

        await job.each(done, one, "request the move")


async def _begin(cluster: Cluster, job: Job, record: Record, was: StoredRecord | None) -> StoredRecord | None:
    """Create the record; None: another run changed it meanwhile."""
    try:
        return await job.records(cluster).begin(record, was)
    except (NodeExistsError, BadVersionError):
        return None


# ---- the end of the grace period ------------------------------------------------------------------------------------


def retire(job: Job, retiring: Sequence[ExpiredRecord]) -> None:
    """Read the objects completely, in tasks; then delete the hot copies, or move back to them."""
    errands = [
        CheckTask(
            zookeeper=job.selection.zookeeper,
            namespace=job.selection.namespace,
            stores=job.settings,
            objects=tuple((one.kept.record.stream, one.kept.record.number, one.lies_at) for one in task),
        )
        for task in packed(retiring, lambda one: payload_bytes(one.lies_at))
    ]
    done = scatter(job.spark, errands, check_objects, what="check", progress=job.progress)
    sound, damaged = [], []
    for one, checked in zip(retiring, itertools.chain.from_iterable(done), strict=True):
        if checked.failure:
            job.fail("check", checked.failure, stream=checked.stream, segment=checked.number)
        elif checked.finding:
            job.find("cold", checked.stream, checked.number, checked.finding)
            damaged.append(one)
        else:
            sound.append(one)
    if sound or damaged:
        job.ask(partial(_finish, job=job, sound=sound, damaged=damaged))


async def _finish(
    cluster: Cluster, *, job: Job, sound: Sequence[ExpiredRecord], damaged: Sequence[ExpiredRecord]
) -> None:
    async with await job.client(cluster) as client:

        async def delete(one: ExpiredRecord) -> None:
            async with job.trial.turn:  # the run that requested the move may have been killed before it tried
                if not job.trial.is_over:
                    await _try(client, job, one.kept.record)
            if job.trial.refusal:
                await _go_back(cluster, client, job, one.kept, one.lies_at, is_damaged=False)
            job.trial.check()
            await _delete(cluster, job, one.kept, one.lies_at)

        async def go_back(one: ExpiredRecord) -> None:
            await _go_back(cluster, client, job, one.kept, one.lies_at, is_damaged=True)

        await job.each(sound, delete, "delete the hot copy")
        await job.each(damaged, go_back, "take back")
