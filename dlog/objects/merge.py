"""Merges the chunks of a segment that has ended into one object, and deletes them later.

The chunks with entries are copied to a data object with a name of its own, which is then read and checked. The index
names the data object, and is created only if there is none: its existence is the switch. Once it is older than the
grace period the chunks are deleted. BEGIN and the chunk that ended the segment stay, so existence, fencing and deletion
of the segment are as before.

Invariants:
- a chunk is deleted only after the index exists, and the data that it names were read and cover all entries that count:
  a reader that misses a chunk finds the index;
- the data object that an index may name is not deleted while there is a BEGIN: a merge deletes its own only if another
  index certainly exists;
- the grace period only spares readers a second request: no result depends on a clock.

The class is a value: `after(fact)` returns the next state and the effects.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlog.errors import DamagedError
from dlog.objects.chain import Put, TailFound
from dlog.values import value
from dlog.wire.chunk import ChunkHead, ChunkKind

MERGED_MIN = 2  # chunks with entries; fewer are not merged


class Merged(enum.Enum):
    """Result of a merge."""

    NOT_NEEDED = "not needed"  # the segment has not ended, or is short
    MERGED = "merged"  # there is an index, perhaps another merge's; the chunks are still there
    CLEANED = "cleaned"  # and the chunks are deleted
    DELETED = "deleted"  # the segment was deleted meanwhile
    UNKNOWN = "unknown"  # it is unknown whether the index was created: merge again


# ---- facts and effects ----------------------------------------------------------------------------------------------


@value
class IndexSought:
    """Fact: the answer to SeekIndex. end_number: of the index, None if there is none. is_due: it is older than the
    grace period."""

    end_number: int | None
    is_due: bool = False


@value
class EndSought:
    """Fact: the answer to SeekEnd."""

    tail: TailFound


@value
class ChunksCopied:
    """Fact: the data object exists. heads: of the chunks, which were checked, in order."""

    heads: tuple[ChunkHead, ...]


@value
class CopyRead:
    """Fact: the data object was read and checked. heads: of the chunks in it."""

    heads: tuple[ChunkHead, ...]


@value
class IndexPut:
    """Fact: the answer to CreateIndex."""

    result: Put


@value
class BeginSought:
    """Fact: the answer to SeekBegin."""

    exists: bool


@value
class Removed:
    """Fact: the objects are deleted."""


@value
class SeekIndex:
    """Effect: read the index."""


@value
class SeekEnd:
    """Effect: find the tail."""


@value
class CopyChunks:
    """Effect: copy the chunks first to end - 1 to a data object of this merge, each checked."""

    first: int
    end: int


@value
class ReadCopy:
    """Effect: read the data object, and check each chunk in it."""


@value
class CreateIndex:
    """Effect: create the index, which names the data object, unless there is one."""

    heads: tuple[ChunkHead, ...]


@value
class SeekBegin:
    """Effect: see whether there is a BEGIN."""


@value
class DeleteCopy:
    """Effect: delete this merge's data object. with_index: its index before."""

    with_index: bool


@value
class DeleteMerged:
    """Effect: delete the chunks first to end - 1, in their order, and the data objects that the index does not name."""

    first: int
    end: int


@value
class MergeOver:
    """Effect: the merge has ended."""

    result: Merged


MergeFact = IndexSought | EndSought | ChunksCopied | CopyRead | IndexPut | BeginSought | Removed
MergeEffect = (
    SeekIndex | SeekEnd | CopyChunks | ReadCopy | CreateIndex | SeekBegin | DeleteCopy | DeleteMerged | MergeOver
)


# ---- the machine ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentMerge:
    """Merges a segment, or deletes the chunks of one that is merged. tail: of the segment. heads: of the copy. result:
    of the merge once what is being deleted is deleted."""

    tail: TailFound | None = None
    heads: tuple[ChunkHead, ...] = ()
    result: Merged = Merged.NOT_NEEDED

    def begin(self) -> tuple[SegmentMerge, list[MergeEffect]]:
        return self, [SeekIndex()]

    def after(self, fact: MergeFact) -> tuple[SegmentMerge, list[MergeEffect]]:
        match fact:
            case IndexSought(None):
                return self, [SeekEnd()]
            case IndexSought(_, False):
                return self, [MergeOver(Merged.MERGED)]
            case IndexSought(end_number):
                assert end_number is not None
                return replace(self, result=Merged.CLEANED), [DeleteMerged(1, end_number)]
            case EndSought(tail):
                if not tail.is_ended or tail.next_number - 1 < MERGED_MIN:
                    return self, [MergeOver(Merged.NOT_NEEDED)]
                return replace(self, tail=tail), [CopyChunks(1, tail.next_number)]
            case ChunksCopied(heads):
                assert self.tail is not None
                check_coverage(heads, self.tail)
                return replace(self, heads=heads), [ReadCopy()]
            case CopyRead(heads):
                if heads != self.heads:
                    raise DamagedError(f"the copy of a segment's chunks differs: chunks={len(self.heads)}")
                return self, [CreateIndex(heads)]
            case IndexPut(Put.MADE):
                return self, [SeekBegin()]
            case IndexPut(Put.EXISTS):
                return replace(self, result=Merged.MERGED), [DeleteCopy(False)]
            case IndexPut():
                return self, [MergeOver(Merged.UNKNOWN)]
            case BeginSought(True):
                return self, [MergeOver(Merged.MERGED)]
            case BeginSought():
                return replace(self, result=Merged.DELETED), [DeleteCopy(True)]
            case Removed():
                return self, [MergeOver(self.result)]


def check_coverage(heads: Sequence[ChunkHead], tail: TailFound) -> None:
    """Raise DamagedError unless these chunks have all entries of the segment, once and in order."""
    entries = size = 0
    for number, head in enumerate(heads, 1):
        is_next = (head.number, head.first, head.bytes_before) == (number, entries, size)
        if head.kind is not ChunkKind.DATA or not is_next:
            raise DamagedError(f"a chunk to be merged does not continue the one before: number={head.number}")
        entries, size = head.end, size + head.payload_bytes
    if (len(heads) + 1, entries, size) != (tail.next_number, tail.end, tail.payload_bytes):
        raise DamagedError(f"chunks to be merged are not all of the segment: chunks={len(heads)} entries={entries}")
