"""Planted defects of a chain of chunks: a step of its writer, recovery or followers left out or done wrongly."""

from __future__ import annotations

from typing import Any

from dlog.objects.chain import ChainFollower, ChainTail, ChainWriter, TailSearch
from dlog.objects.deletion import ChainDeletion
from dlog.objects.merge import SegmentMerge
from tests.simulation.mutants import edited
from tests.simulation.objects_world import TailProcess
from tests.simulation.worlds import Mutant

Edit = tuple[str, str, str]


def planted(cls: type, *edits: Edit) -> dict[str, Any]:
    return {"planted": ((cls, edited(cls, *edits)),)}


MUTANTS = (
    Mutant(
        name="the chunk that was made last is confirmed",
        invariants=("C1",),
        parts=planted(
            ChainWriter,
            (
                "_advance",
                "while writer.in_flight and writer.in_flight[0][2]:",
                "while any(made for _, _, made in writer.in_flight):",
            ),
        ),
    ),
    Mutant(
        name="a chunk with an unclear answer is confirmed",
        invariants=("C1", "C2"),
        parts=planted(ChainWriter, ("after", "case ChunkPut(_, Put.UNKNOWN):", "case ChunkPut(_, Put.UNKNOWN) if 0:")),
    ),
    Mutant(
        name="a writer goes on behind the chunk of another",
        invariants=("C1", "C2"),
        style="fenced",
        parts=planted(ChainWriter, ("after", "case ChunkPut(_, Put.EXISTS):", "case ChunkPut(_, Put.EXISTS) if 0:")),
    ),
    Mutant(
        name="more chunks are in flight than a recovery looks back",
        invariants=("C2", "C3", "C4"),
        style="fenced",
        parts=planted(ChainWriter, ("_has_chunk_to_cut", "< self.in_flight_max", "< 6 * self.in_flight_max")),
    ),
    Mutant(
        name="a recovery takes the chunk that was faster for the end",
        invariants=("C2",),
        style="fenced",
        parts=planted(
            ChainTail,
            (
                "after",
                "replace(self, is_outrun=True)._stop_ahead()",
                "self, [TailFound(self.end, number, self.payload_bytes, True)]",
            ),
        ),
    ),
    Mutant(
        name="a fence leaves a gap below it",
        invariants=("C2",),
        parts=planted(
            ChainTail, ("_heads_read", "free = self.first + len(counting)", "free = self.first + len(counting) + 1")
        ),
    ),
    Mutant(
        name="a recovery takes a fence with an unclear answer for made",
        invariants=("C2",),
        parts=planted(
            ChainTail,
            ("after", "case Put.UNKNOWN:", "case Put.UNKNOWN if 0:"),
            ("after", "case Put.MADE if number == self.next_number:", "case Put.MADE | Put.UNKNOWN:"),
        ),
    ),
    Mutant(
        name="chunks after a fence count",
        invariants=("C2", "C3"),
        style="fenced",
        parts=planted(ChainTail, ("_heads_read", "heads_that_count(before_gap, self.end)", "tuple(before_gap)")),
    ),
    Mutant(
        name="only the last chunk is examined",
        invariants=("C2", "C3", "C4"),
        style="fenced",
        parts=planted(ChainTail, ("after", "search.low - self.ahead - 1", "search.low - 1")),
    ),
    Mutant(
        name="a search ends at the first empty listing",
        invariants=("C3",),
        style="long",
        parts=planted(TailSearch, ("after", "if listed.numbers or listed.behind <= self.low:", "if True:")),
    ),
    Mutant(
        name="a search walks the whole chain",
        invariants=("C5",),
        style="long",
        seeds=2000,
        parts=planted(TailSearch, ("next_behind", "return self.low + self.step", "return self.low")),
    ),
    Mutant(
        name="a recovery runs after a writer that is faster",
        invariants=("C5",),
        style="long",
        parts=planted(ChainTail, ("after", "self.next_number and not self.has_barrier", "-1")),
    ),
    Mutant(
        name="a fence stops the writer further ahead than a recovery looks back",
        invariants=("C4", "C2", "C3"),
        style="fenced",
        parts=planted(ChainTail, ("_stop_ahead", "self.ahead", "3 * self.ahead")),
    ),
    Mutant(
        name="a follower accepts a chunk after a gap",
        invariants=("C4",),
        parts=planted(
            ChainFollower,
            ("after", "tuple(range(self.next_number, end))", "fact.numbers"),
        ),
    ),
    Mutant(
        name="a follower accepts the chunks after a fence",
        invariants=("C4",),
        style="fenced",
        parts=planted(ChainFollower, ("after", "counting = heads_that_count(heads, self.end)", "counting = heads")),
    ),
    Mutant(
        name="an entry is cut into two chunks",
        invariants=("C6",),
        parts=planted(
            ChainWriter, ("_create", "kind, self.cut, self.appended,", "kind, max(0, self.cut - 1), self.appended,")
        ),
    ),
    Mutant(
        name="a writer announces chunks that are not confirmed",
        invariants=("C4",),
        style="fenced",
        parts=planted(ChainWriter, ("_create", "self.in_flight[0][0] if self.in_flight else ", "")),
    ),
    Mutant(
        name="a recovery takes a missing chunk for the end",
        invariants=("C7",),
        style="lost",
        parts=planted(ChainTail, ("_heads_read", "if any(head.contiguous > free for head in heads):", "if False:")),
    ),
    Mutant(
        name="a chunk does not say what is confirmed",
        invariants=("C7",),
        style="lost",
        parts=planted(ChainWriter, ("_create", "self.in_flight[0][0] if self.in_flight else self.next_number", "0")),
    ),
    Mutant(
        name="a deletion removes the fence",
        invariants=("C8",),
        style="deleted",
        parts=planted(ChainDeletion, ("_delete_chunks", "kind in (ChunkKind.FENCE, None)", "kind is None")),
    ),
    Mutant(
        name="a deletion removes what may be a fence",
        invariants=("C8",),
        style="deleted",
        parts=planted(ChainDeletion, ("_delete_chunks", "kind in (ChunkKind.FENCE, None)", "kind is ChunkKind.FENCE")),
    ),
    Mutant(
        name="a damaged segment is deleted without a fence",
        invariants=("C8",),
        style="deleted",
        parts=planted(
            ChainDeletion, ("after", "EndingTried(Ending.ENDED):", "EndingTried(Ending.ENDED | Ending.DAMAGED):")
        ),
    ),
    Mutant(
        name="a deletion fences only one number of a damaged segment",
        invariants=("C8",),
        style="deleted",
        parts=planted(ChainDeletion, ("_near", "top - (AHEAD + 2) * self.in_flight_max + 1", "top + 1")),
    ),
    Mutant(
        name="a deletion begins with the other chunks",
        invariants=("C9",),
        style="deleted",
        parts=planted(
            ChainDeletion,
            ("_delete_begin", "step=Step.DELETING_BEGIN), [DeleteChunks((0,))]", "step=Step.LISTING), [ListAll()]"),
        ),
    ),
    Mutant(
        name="a search does not notice that there is no segment",
        invariants=("C9",),
        style="deleted",
        seeds=3000,
        parts={"planted": ((TailProcess, edited(TailProcess, ("_read", "not self._is_gone() and ", ""))),)},
    ),
    Mutant(
        name="a deletion skips a chunk",
        invariants=("C10",),
        style="deleted",
        parts=planted(ChainDeletion, ("_delete_chunks", "number not in last)", "number not in last and number % 7)")),
    ),
    Mutant(
        name="a segment that has not ended is merged",
        invariants=("C11", "C12"),
        style="merged",
        parts=planted(SegmentMerge, ("after", "not tail.is_ended or ", "")),
    ),
    Mutant(
        name="a merge deletes the copy that an index may name",
        invariants=("C11",),
        style="merged",
        parts=planted(SegmentMerge, ("after", "IndexPut(Put.EXISTS):", "IndexPut(Put.EXISTS | Put.UNKNOWN):")),
    ),
    Mutant(
        name="chunks are deleted though it is unclear whether there is an index",
        invariants=("C11",),
        style="merged",
        parts=planted(
            SegmentMerge, ("after", "[MergeOver(Merged.UNKNOWN)]", "[DeleteMerged(1, self.tail.next_number)]")
        ),
    ),
    Mutant(
        name="BEGIN is deleted as merged",
        invariants=("C11",),
        style="merged",
        parts=planted(SegmentMerge, ("after", "[DeleteMerged(1, end_number)]", "[DeleteMerged(0, end_number)]")),
    ),
    Mutant(
        name="the fence is deleted as merged",
        invariants=("C1", "C12"),
        style="merged",
        parts=planted(SegmentMerge, ("after", "[DeleteMerged(1, end_number)]", "[DeleteMerged(1, end_number + 1)]")),
    ),
    Mutant(
        name="a search does not look for an index",
        invariants=("C12",),
        style="merged",
        parts={"planted": ((TailProcess, edited(TailProcess, ("_is_merged", "if index is None:", "if True:"))),)},
    ),
    Mutant(
        name="a merge leaves a chunk",
        invariants=("C13",),
        style="merged",
        parts=planted(SegmentMerge, ("after", "[DeleteMerged(1, end_number)]", "[DeleteMerged(2, end_number)]")),
    ),
)
