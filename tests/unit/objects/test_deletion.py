"""Tests the deletion of a chain by its transcripts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dlog.objects.chain import ChunkPut, CreateChunk, GivenUp, Put
from dlog.objects.deletion import (
    AllListed,
    ChainDeletion,
    ChunksDeleted,
    DeleteChunks,
    DeletionFact,
    Ending,
    EndingTried,
    EndSegment,
    KindsRead,
    ListAll,
    ReadKinds,
    SegmentDeleted,
)
from dlog.wire.chunk import ChunkKind

BEGIN, DATA, SEAL, FENCE = ChunkKind.BEGIN, ChunkKind.DATA, ChunkKind.SEAL, ChunkKind.FENCE


class Deleting:
    """A deletion with at most two chunks in flight; what it does is returned by each call."""

    def __init__(self) -> None:
        self.machine, effects = ChainDeletion(2).begin()
        assert effects == [EndSegment()]

    def after(self, fact: DeletionFact) -> object:
        self.machine, [effect] = self.machine.after(fact)
        return effect


def listed(*numbers: int, without_body: Sequence[int] = ()) -> AllListed:
    return AllListed(numbers, frozenset(without_body))


@pytest.mark.parametrize(("end", "last"), [(FENCE, (2,)), (SEAL, (3,))])
def test_begin_is_deleted_first_and_a_fence_stays(end: ChunkKind, last: tuple[int, ...]) -> None:
    deleting = Deleting()
    assert deleting.after(EndingTried(Ending.ENDED)) == DeleteChunks((0,))
    assert deleting.after(ChunksDeleted()) == ListAll()
    assert deleting.after(listed(1, 2, 3, without_body=[3])) == ReadKinds((1, 2, 3))
    assert deleting.after(KindsRead((DATA, DATA, end))) == DeleteChunks(tuple({1, 2} - set(last)))
    assert deleting.after(ChunksDeleted()) == DeleteChunks(last)
    assert deleting.after(ChunksDeleted()) == SegmentDeleted()


@pytest.mark.parametrize("ending", [Ending.DAMAGED, Ending.MISSING])
def test_without_an_end_every_number_that_the_writer_may_need_is_taken(ending: Ending) -> None:
    deleting = Deleting()
    assert deleting.after(EndingTried(ending)) == ListAll()
    fences: list[int] = []
    for number in (7, 6, 4):
        assert deleting.after(listed(1, 2, 3, 5, *fences, without_body=fences)) == ReadKinds(tuple(fences))
        assert deleting.after(KindsRead((FENCE,) * len(fences))) == CreateChunk(number, FENCE, 0, 0, 0)
        fences.append(number)
        assert deleting.after(ChunkPut(number, Put.EXISTS if number == 6 else Put.MADE)) == ListAll()
        if ending is Ending.MISSING and number == 6:
            break
    all_listed = listed(1, 2, 3, 5, *fences, without_body=fences)
    deleting.after(all_listed)
    assert deleting.after(KindsRead((FENCE,) * len(fences))) == DeleteChunks((0,))
    assert deleting.after(ChunksDeleted()) == ListAll()
    assert deleting.after(all_listed) == ReadKinds((1, 2, 3, 5, *fences))
    kinds = [DATA, DATA, DATA, None, *[FENCE] * len(fences)]
    assert deleting.after(KindsRead(tuple(kinds))) == DeleteChunks((1, 2)), "5 may be a FENCE"
    assert deleting.after(ChunksDeleted()) == DeleteChunks((3,))
    assert deleting.after(ChunksDeleted()) == SegmentDeleted()


@pytest.mark.parametrize("end", [SEAL, FENCE])
def test_an_interrupted_deletion_creates_no_further_fence(end: ChunkKind) -> None:
    deleting = Deleting()
    deleting.after(EndingTried(Ending.MISSING))
    assert deleting.after(listed(8, 9, without_body=[9])) == ReadKinds((9,))
    assert deleting.after(KindsRead((end,))) == DeleteChunks((0,))


def test_of_nothing_nothing_is_deleted() -> None:
    deleting = Deleting()
    deleting.after(EndingTried(Ending.MISSING))
    deleting.after(listed())
    assert deleting.after(KindsRead(())) == DeleteChunks((0,))
    deleting.after(ChunksDeleted())
    deleting.after(listed())
    assert deleting.after(KindsRead(())) == DeleteChunks(())
    assert deleting.after(ChunksDeleted()) == SegmentDeleted()


def test_a_fence_that_is_unclear_is_told() -> None:
    deleting = Deleting()
    deleting.after(EndingTried(Ending.DAMAGED))
    deleting.after(listed(0, 1))
    deleting.after(KindsRead(()))
    assert deleting.after(ChunkPut(3, Put.UNKNOWN)) == GivenUp()
