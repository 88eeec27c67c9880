"""Deletes the chunks of a segment, so that its writer confirms nothing from then on, and no reader sees a part of it.

The segment is ended first, by a recovery. If that finds the chain damaged, the end is of no interest any more: FENCEs
are created at all numbers that the writer may use next. Then BEGIN is deleted, on its own: a segment without it does
not exist. The other chunks follow, but for the FENCEs.

Invariants:
- a chunk of the writer is confirmed only if it counted before the deletion, also if the writer was frozen meanwhile:
  the number that it needs next is taken, and stays so. It is less than `in_flight_max` below the writer's last chunk,
  which is at most `AHEAD + 1` times as far below the last chunk of all that is not certainly a FENCE: this one may be a
  FENCE that cannot be read, ahead of the writer. The numbers above are taken as well, in case that the last chunks are
  missing;
- a chunk without a readable head near the last chunk is kept: it may be a FENCE;
- a deletion that was interrupted is finished by a repetition.

The class is a value: `after(fact)` returns the next state and the effects.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass, replace

from dlog.objects.chain import AHEAD, IN_FLIGHT_MAX, ChunkPut, CreateChunk, GivenUp, Put
from dlog.values import value
from dlog.wire.chunk import ChunkKind


class Ending(enum.Enum):
    """Result of the recovery that a deletion begins with."""

    ENDED = "ended"
    DAMAGED = "damaged"  # no end was found
    MISSING = "missing"  # there is no BEGIN: a deletion was interrupted, or another program has removed it


# ---- facts and effects ----------------------------------------------------------------------------------------------


@value
class EndingTried:
    """Fact: the answer to EndSegment."""

    result: Ending


@value
class AllListed:
    """Fact: the answer to ListAll. without_body: those of the numbers whose chunk is as long as a head, as is each
    FENCE and SEAL."""

    numbers: tuple[int, ...]
    without_body: frozenset[int]


@value
class KindsRead:
    """Fact: the answer to ReadKinds, in the order of the numbers. None: the head cannot be read, or is none."""

    kinds: tuple[ChunkKind | None, ...]


@value
class ChunksDeleted:
    """Fact: DeleteChunks is done."""


@value
class EndSegment:
    """Effect: run a recovery, if there is a BEGIN."""


@value
class ListAll:
    """Effect: list all chunks of the segment."""


@value
class ReadKinds:
    """Effect: read the heads of these chunks."""

    numbers: tuple[int, ...]


@value
class DeleteChunks:
    """Effect: delete these chunks, in any order."""

    numbers: tuple[int, ...]


@value
class SegmentDeleted:
    """Effect: the deletion is complete."""


DeletionFact = EndingTried | AllListed | KindsRead | ChunksDeleted | ChunkPut
DeletionEffect = EndSegment | ListAll | ReadKinds | DeleteChunks | CreateChunk | SegmentDeleted | GivenUp


# ---- the machine ----------------------------------------------------------------------------------------------------


class Step(enum.Enum):
    """State of a deletion."""

    ENDING = "ending"
    FENCING = "fencing"  # the chain is damaged: numbers are taken one after another
    DELETING_BEGIN = "deleting begin"
    LISTING = "listing"  # and reading heads
    DELETING_CHUNKS = "deleting chunks"
    DELETING_LAST = "deleting last"


@dataclass(frozen=True, slots=True)
class ChainDeletion:
    """Deletes the chunks of a segment.

    ending: of the recovery. numbers: all that were listed; read: those whose heads are being read; fences: those that
    are known to be FENCEs; last: to be deleted last.
    """

    in_flight_max: int = IN_FLIGHT_MAX
    step: Step = Step.ENDING
    ending: Ending = Ending.ENDED
    numbers: tuple[int, ...] = ()
    read: tuple[int, ...] = ()
    fences: frozenset[int] = frozenset()
    last: tuple[int, ...] = ()

    def begin(self) -> tuple[ChainDeletion, list[DeletionEffect]]:
        return self, [EndSegment()]

    def after(self, fact: DeletionFact) -> tuple[ChainDeletion, list[DeletionEffect]]:
        match fact:
            case EndingTried(Ending.ENDED):
                return self._delete_begin()
            case EndingTried(result):
                return replace(self, step=Step.FENCING, ending=result), [ListAll()]
            case AllListed(numbers, without_body):
                near = self._near(set(numbers) - without_body) if self.step is Step.LISTING else ()
                read = tuple(number for number in numbers if number in without_body or number in near)
                return replace(self, numbers=numbers, read=read), [ReadKinds(read)]
            case KindsRead(kinds) if self.step is Step.FENCING:
                return self._fence(dict(zip(self.read, kinds, strict=True)))
            case KindsRead(kinds):
                return self._delete_chunks(dict(zip(self.read, kinds, strict=True)))
            case ChunkPut(_, Put.UNKNOWN):
                return self, [GivenUp()]
            case ChunkPut():
                return self, [ListAll()]
            case ChunksDeleted() if self.step is Step.DELETING_BEGIN:
                return replace(self, step=Step.LISTING), [ListAll()]
            case ChunksDeleted() if self.step is Step.DELETING_CHUNKS and self.last:
                return replace(self, step=Step.DELETING_LAST), [DeleteChunks(self.last)]
            case ChunksDeleted():
                return self, [SegmentDeleted()]

    def _fence(self, kinds: dict[int, ChunkKind | None]) -> tuple[ChainDeletion, list[DeletionEffect]]:
        """Create a FENCE at the highest free number near the last chunk of the writer, which cannot pass it."""
        fences = frozenset(number for number, kind in kinds.items() if kind is ChunkKind.FENCE)
        deletion = replace(self, fences=fences)
        top = deletion._top(self.numbers)
        free = set(deletion._near(self.numbers)).difference(self.numbers)
        ends = [number for number, kind in kinds.items() if kind is not None and kind.is_end]
        if not free or (self.ending is Ending.MISSING and min(ends, default=top + 2) <= top + 1):
            return deletion._delete_begin()
        return deletion, [CreateChunk(max(free), ChunkKind.FENCE, 0, 0, 0)]

    def _near(self, numbers: Collection[int]) -> range:
        """The numbers that the writer may need next, and some above."""
        top = self._top(numbers)
        return range(max(1, top - (AHEAD + 2) * self.in_flight_max + 1), top + self.in_flight_max + 1)

    def _top(self, numbers: Collection[int]) -> int:
        return max(set(numbers) - self.fences, default=-self.in_flight_max)

    def _delete_begin(self) -> tuple[ChainDeletion, list[DeletionEffect]]:
        return replace(self, step=Step.DELETING_BEGIN), [DeleteChunks((0,))]

    def _delete_chunks(self, kinds: dict[int, ChunkKind | None]) -> tuple[ChainDeletion, list[DeletionEffect]]:
        """The last chunk and a SEAL follow at the end: an interrupted deletion is known by its end next to them."""
        kept = self.fences.union(number for number, kind in kinds.items() if kind in (ChunkKind.FENCE, None))
        deleted = [number for number in self.numbers if number not in kept]
        last = {number for number, kind in kinds.items() if kind is ChunkKind.SEAL}.union(deleted[-1:])
        chunks = tuple(number for number in deleted if number not in last)
        return replace(self, step=Step.DELETING_CHUNKS, last=tuple(sorted(last))), [DeleteChunks(chunks)]
