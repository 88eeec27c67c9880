"""Tests the merge of a segment's chunks by its transcripts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.errors import DamagedError
from dlog.objects.chain import Put, TailFound
from dlog.objects.merge import (
    BeginSought,
    ChunksCopied,
    CopyChunks,
    CopyRead,
    CreateIndex,
    DeleteCopy,
    DeleteMerged,
    EndSought,
    IndexPut,
    IndexSought,
    Merged,
    MergeFact,
    MergeOver,
    ReadCopy,
    Removed,
    SeekBegin,
    SeekEnd,
    SeekIndex,
    SegmentMerge,
)
from dlog.wire.chunk import ChunkKind
from tests.unit.wire.test_chunk_index import head

HEADS = (head(1), head(2), head(3))
TAIL = TailFound(6, 4, 300, True)


class Merging:
    def __init__(self) -> None:
        self.machine, effects = SegmentMerge().begin()
        assert effects == [SeekIndex()]

    def after(self, *facts: MergeFact) -> object:
        """What the last of these facts leads to."""
        for fact in facts:
            self.machine, effects = self.machine.after(fact)
        [effect] = effects
        return effect


TO_INDEX = (IndexSought(None), EndSought(TAIL), ChunksCopied(HEADS), CopyRead(HEADS))


def test_chunks_are_copied_and_checked_before_the_index_is_created() -> None:
    merging = Merging()
    assert merging.after(IndexSought(None)) == SeekEnd()
    assert merging.after(EndSought(TAIL)) == CopyChunks(1, 4)
    assert merging.after(ChunksCopied(HEADS)) == ReadCopy()
    assert merging.after(CopyRead(HEADS)) == CreateIndex(HEADS)
    assert merging.after(IndexPut(Put.MADE)) == SeekBegin()
    assert merging.after(BeginSought(True)) == MergeOver(Merged.MERGED)


def test_chunks_are_deleted_once_the_index_is_old() -> None:
    assert Merging().after(IndexSought(4, False)) == MergeOver(Merged.MERGED)
    merging = Merging()
    assert merging.after(IndexSought(4, True)) == DeleteMerged(1, 4), "not the one that ended the segment"
    assert merging.after(Removed()) == MergeOver(Merged.CLEANED)


@pytest.mark.parametrize("tail", [replace(TAIL, is_ended=False), TailFound(2, 2, 100, True), TailFound(0, 1, 0, True)])
def test_what_has_not_ended_or_is_short_is_not_merged(tail: TailFound) -> None:
    assert Merging().after(IndexSought(None), EndSought(tail)) == MergeOver(Merged.NOT_NEEDED)


def test_of_two_merges_one_deletes_its_copy() -> None:
    merging = Merging()
    assert merging.after(*TO_INDEX, IndexPut(Put.EXISTS)) == DeleteCopy(with_index=False)
    assert merging.after(Removed()) == MergeOver(Merged.MERGED)


def test_a_copy_that_an_index_may_name_stays() -> None:
    assert Merging().after(*TO_INDEX, IndexPut(Put.UNKNOWN)) == MergeOver(Merged.UNKNOWN)


def test_of_a_segment_that_was_deleted_meanwhile_nothing_is_left() -> None:
    merging = Merging()
    assert merging.after(*TO_INDEX, IndexPut(Put.MADE), BeginSought(False)) == DeleteCopy(with_index=True)
    assert merging.after(Removed()) == MergeOver(Merged.DELETED)


@pytest.mark.parametrize(
    "heads",
    [
        HEADS[:2],
        HEADS[1:],
        (HEADS[0], HEADS[2]),
        (*HEADS, head(4)),
        (HEADS[0], HEADS[0], HEADS[2]),
        (*HEADS[:2], replace(HEADS[2], kind=ChunkKind.SEAL)),
        (*HEADS[:2], replace(HEADS[2], bytes_before=7)),
        (*HEADS[:2], replace(HEADS[2], first=5)),
    ],
)
def test_chunks_that_are_not_all_of_the_segment_are_not_merged(heads: tuple[object, ...]) -> None:
    merging = Merging()
    with pytest.raises(DamagedError, match="merged"):
        merging.after(IndexSought(None), EndSought(TAIL), ChunksCopied(heads))  # type: ignore[arg-type]


def test_a_copy_that_differs_is_not_used() -> None:
    with pytest.raises(DamagedError, match="differs"):
        Merging().after(*TO_INDEX[:3], CopyRead((*HEADS[:2], replace(HEADS[2], body_crc=1))))
