"""Selects the segments that `offload` copies. Pure computation.

Segments that are being moved already are decided by dlog/model/offloading.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from dlog.model.segment import Segment, StreamMetadata
from dlog.spark.jobs.offload_copy import Source
from dlog.stores.cold import store as cold
from dlog.stores.cold.format import Head
from dlog.stores.object_storage.locations import Location

TASK_BYTES = 64 << 20  # small segments share a task up to here
TASK_SEGMENTS = 64
_VERSION_ENVELOPED = 4

T = TypeVar("T")


def named(value: StreamMetadata | None) -> set[tuple[str, str]]:
    """Store and location of every segment of a stream."""
    return {(segment.store, segment.name) for segment in value.listed} if value is not None else set()


def candidates(
    value: StreamMetadata,
    being_moved: Collection[int],
    *,
    now_unix_ms: int,
    older_than_s: float,
    keep: int,
) -> list[Segment]:
    """Completed segments that are old enough, not among the newest `keep`, and not being moved already; and those that
    are in cold storage."""
    sealed = [s for s in value.segments if s.completed]
    before_unix_ms = now_unix_ms - older_than_s * 1000
    return [
        s
        for s in sealed[: max(0, len(sealed) - keep)]
        if s.last_entry >= 0
        and s.completed_unix_ms <= before_unix_ms
        and (s.store == cold.NAME or s.number not in being_moved)
    ]


def source_of(
    value: StreamMetadata, segment: Segment, *, folder: str, payload_bytes: int, parquet: str, compression: str
) -> Source:
    """The description of a segment for a task. folder: empty for a segment that is in cold storage already."""
    head = Head(
        stream=value.name,
        incarnation=value.incarnation,
        number=int(segment.number),
        last_entry=int(segment.last_entry),
        last_slot=segment.last_slot,
        first_txid=int(segment.first_txid),
        last_txid=int(segment.last_txid),
        records=segment.record_count,
        completed_unix_ms=segment.completed_unix_ms,
        start_sequence_id=segment.start_sequence_id,
        is_enveloped=segment.version >= _VERSION_ENVELOPED,
        source_store=segment.store,
        source_name=segment.name,
    )
    return Source(
        head=head,
        folder=folder,
        bytes=payload_bytes,
        parquet=parquet,
        compression=compression,
        first_entry=int(segment.min_entry),
        first_slot=segment.min_slot,
    )


def parquet_location(folder: Location, incarnation: str, number: int) -> str:
    """Location of a segment's Parquet file: the same for each attempt, since each writes the same rows."""
    return str(folder.below(f"{incarnation or 'java'}-{number:018d}.parquet"))


def packed(things: Sequence[T], size: Callable[[T], int]) -> list[tuple[T, ...]]:
    """Group into tasks: small neighbours share one."""
    tasks: list[list[T]] = []
    weight = 0
    for thing in things:
        if not tasks or weight + size(thing) > TASK_BYTES or len(tasks[-1]) >= TASK_SEGMENTS:
            tasks.append([])
            weight = 0
        tasks[-1].append(thing)
        weight += size(thing)
    return [tuple(task) for task in tasks]
