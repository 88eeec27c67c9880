"""Which segments `offload` copies, and what becomes of those that are on their way: arithmetic over what is known.

The law of this file: nothing is opened here and nothing decided twice. A segment that metadata names lies where that
says; what a record remembers beside it may be deleted only if metadata names another place, or no such segment.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dlog.model.segment import Segment, StreamMetadata, Truncation
from dlog.spark.jobs.offload_copy import Source
from dlog.spark.jobs.offload_records import Kept
from dlog.stores.cold import store as cold
from dlog.stores.cold.format import Head
from dlog.stores.cold.places import Location

TASK_BYTES = 64 << 20  # small segments share a task up to here
TASK_SEGMENTS = 64
_VERSION_ENVELOPED = 4

T = TypeVar("T")


class Step(enum.Enum):
    """What is to be done with a segment on its way."""

    TELL = "tell"  # its stream was not told, or not that we know: look at the object and tell it
    NOTE = "note"  # it lies in its object, since some moment: the grace period begins now
    WAIT = "wait"  # the grace period is not over, or its stream is about to delete and forget the segment
    RETIRE = "retire"  # read the object whole; then delete what lies where it lay
    DROP = "drop"  # it was truncated: delete what lies where it lay, its stream deletes the object
    CLEAR = "clear"  # nobody names any of it: delete all of it


@dataclass(frozen=True, slots=True)
class Decision:
    """A step, and the object in which the segment lies by now, if it does."""

    step: Step
    lies_at: str = ""


def decide(kept: Kept, value: StreamMetadata | None, *, now_unix_ms: int, grace_s: float) -> Decision:
    """What follows for a record. value: its stream's metadata, as it stands; None: there is no such stream."""
    record = kept.record
    segment = value.segment(record.number) if value is not None else None
    if segment is not None and (segment.store, segment.place) == (record.store, record.place):
        return Decision(Step.WAIT if segment.truncation is Truncation.TRUNCATED else Step.TELL)
    if segment is not None and segment.store == cold.NAME and segment.place in record.objects:
        if segment.truncation is Truncation.TRUNCATED:
            return Decision(Step.DROP, segment.place)
        if record.is_damaged and segment.place == record.object:
            return Decision(Step.RETIRE, segment.place)  # it was to be taken back
        if not record.moved_unix_ms:
            return Decision(Step.NOTE, segment.place)
        is_over = now_unix_ms - record.moved_unix_ms >= grace_s * 1000
        return Decision(Step.RETIRE if is_over else Step.WAIT, segment.place)
    return Decision(Step.CLEAR)


def named(value: StreamMetadata | None) -> set[tuple[str, str]]:
    """Store and place of every segment that a stream has."""
    return {(segment.store, segment.place) for segment in value.segments} if value is not None else set()


def candidates(
    value: StreamMetadata,
    on_their_way: Collection[int],
    *,
    now_unix_ms: int,
    older_than_s: float,
    keep: int,
) -> list[Segment]:
    """Completed segments that are old enough, not among the newest, and not on their way already; and those that lie in
    cold storage."""
    sealed = [s for s in value.segments if s.completed and s.truncation is not Truncation.TRUNCATED]
    before_unix_ms = now_unix_ms - older_than_s * 1000
    return [
        s
        for s in sealed[: max(0, len(sealed) - keep)]
        if s.last_entry >= 0
        and s.completed_unix_ms <= before_unix_ms
        and (s.store == cold.NAME or s.number not in on_their_way)
    ]


def source_of(
    value: StreamMetadata, segment: Segment, *, folder: str, payload_bytes: int, parquet: str, compression: str
) -> Source:
    """What a task is told of a segment. folder: empty for one that lies in cold storage already."""
    head = Head(
        stream=value.name,
        life=value.life,
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
        source_place=segment.place,
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


def parquet_place(folder: Location, life: str, number: int) -> str:
    """Where the Parquet file of a segment goes: the same for each attempt, since each writes the same rows."""
    return str(folder.below(f"{life or 'java'}-{number:018d}.parquet"))


def packed(things: Sequence[T], size: Callable[[T], int]) -> list[tuple[T, ...]]:
    """For tasks: neighbours together while they are small."""
    tasks: list[list[T]] = []
    weight = 0
    for thing in things:
        if not tasks or weight + size(thing) > TASK_BYTES or len(tasks[-1]) >= TASK_SEGMENTS:
            tasks.append([])
            weight = 0
        tasks[-1].append(thing)
        weight += size(thing)
    return [tuple(task) for task in tasks]
