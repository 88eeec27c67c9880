"""Tests the suite with stores that are wrong in one way each: each must fail one of its tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dlog.model.ids import EntryId
from dlog.stores.contract import RecoveredSegment, SegmentNotFoundError, SegmentRef, SegmentStat
from tests.integration.stores.contract import OpenStore, StoreContract
from tests.memory_store import MemoryReader, MemoryStore, MemoryStoreState, MemoryWriter


class DropsAnAcknowledgedEntry(MemoryStore):
    async def recover(self, ref: SegmentRef) -> RecoveredSegment:
        segment = self.state.find(ref.name)
        if segment.end is None and segment.entries:
            segment.entries.pop()
        return await super().recover(ref)


class DoesNotFence(MemoryStore):
    async def recover(self, ref: SegmentRef) -> RecoveredSegment:
        end = await super().recover(ref)
        self.state.find(ref.name).fenced = False
        return end


class DecidesTheEndEachTime(MemoryStore):
    async def recover(self, ref: SegmentRef) -> RecoveredSegment:
        end = await super().recover(ref)
        segment = self.state.find(ref.name)
        segment.end = None
        segment.fenced = False
        return end


class InventsAnEntry(MemoryStore):
    async def recover(self, ref: SegmentRef) -> RecoveredSegment:
        segment = self.state.find(ref.name)
        if segment.end is None:
            segment.store(b"never submitted")
        return await super().recover(ref)


class SwapsEntries(MemoryStore):
    async def recover(self, ref: SegmentRef) -> RecoveredSegment:
        segment = self.state.find(ref.name)
        segment.entries.reverse()
        segment.sums.reverse()
        return await super().recover(ref)


class ShowsWhatIsNotConfirmed(MemoryStore):
    """Readers see stored entries, and recovery keeps only confirmed ones."""

    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> MemoryReader:
        class Eager(MemoryReader):
            @property
            def last_confirmed(self) -> EntryId:
                segment = self._state.find(self._name)
                return EntryId(len(segment.entries) - 1) if segment.end is None else segment.end

        self.state.find(ref.name)
        return Eager(self.state, ref.name, sealed_at)

    async def recover(self, ref: SegmentRef) -> RecoveredSegment:
        segment = self.state.find(ref.name)
        if segment.end is None:
            del segment.entries[segment.lac + 1 :]
        return await super().recover(ref)


class ForgetsThePlaceOfACancelledAppend(MemoryStore):
    async def create(self, *args: object) -> MemoryWriter:
        writer = await super().create(*args)  # type: ignore[arg-type]
        store = writer._segment.store

        def keep(payload: bytes) -> None:
            if not writer._to_confirm or not writer._to_confirm[-1].cancelled():
                store(payload)

        writer._segment.store = keep  # type: ignore[method-assign]
        return writer


class DeletesOnce(MemoryStore):
    async def delete(self, ref: SegmentRef) -> None:
        self.state.find(ref.name)
        await super().delete(ref)


class ReadsPastTheBound(MemoryStore):
    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> MemoryReader:
        class Greedy(MemoryReader):
            async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
                return await super().read(first, last, 1 << 40)

        return Greedy(self.state, ref.name, sealed_at)


class SealsTwiceWithTwoAnswers(MemoryStore):
    async def create(self, *args: object) -> MemoryWriter:
        writer = await super().create(*args)  # type: ignore[arg-type]
        seal, calls = writer.seal, [0]

        async def lie() -> EntryId:
            calls[0] += 1
            return EntryId(await seal() + calls[0] - 1)

        writer.seal = lie  # type: ignore[method-assign]
        return writer


class TellsTheSizeOfAnOpenSegment(MemoryStore):
    async def stat(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> SegmentStat:
        segment = self.state.find(ref.name)
        return SegmentStat(segment.lac, sum(map(len, segment.entries)))


class LeavesTheEndToItsWriter(MemoryStore):
    async def stat(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> SegmentStat:
        return await super().stat(ref)


suite = StoreContract()
Story = Callable[[OpenStore], Awaitable[None]]

MUTANTS: dict[type[MemoryStore], Story] = {
    DropsAnAcknowledgedEntry: suite.test_a_fenced_writer_gets_nothing_acknowledged,
    DoesNotFence: suite.test_a_fenced_writer_gets_nothing_acknowledged,
    DecidesTheEndEachTime: lambda stores: suite.test_concurrent_recoveries_agree(stores, 4),
    InventsAnEntry: lambda stores: suite.test_a_writer_that_dies_at_a_kill_point(stores, 6, 3),
    SwapsEntries: suite.test_recovery_is_repeatable,
    ShowsWhatIsNotConfirmed: lambda stores: _any_seed(stores),
    ForgetsThePlaceOfACancelledAppend: suite.test_a_cancelled_append_keeps_its_place,
    DeletesOnce: suite.test_delete_is_idempotent_and_certain,
    ReadsPastTheBound: suite.test_reads_are_contiguous_and_bounded,
    SealsTwiceWithTwoAnswers: suite.test_seal_is_idempotent_and_final,
    TellsTheSizeOfAnOpenSegment: suite.test_stat_tells_the_end_and_the_size_once_the_end_is_decided,
    LeavesTheEndToItsWriter: suite.test_stat_of_a_segment_that_is_completed_in_the_list_decides_its_end,
}


async def _any_seed(stores: OpenStore) -> None:
    for seed in range(20):
        await suite.test_readers_see_one_prefix_through_a_takeover(stores, seed)


@pytest.mark.parametrize("mutant", [MemoryStore, *MUTANTS])
async def test_the_suite_catches_each_mutant_and_passes_the_original(mutant: type[MemoryStore]) -> None:
    state = MemoryStoreState()

    async def open_store() -> MemoryStore:
        return mutant(state, entry_bytes_max=100_000)

    if mutant is MemoryStore:
        for story in MUTANTS.values():
            await story(open_store)
        return
    caught: BaseException | None = None
    try:
        async with asyncio.timeout(60):
            await MUTANTS[mutant](open_store)
    except (AssertionError, IndexError, SegmentNotFoundError, ExceptionGroup) as error:
        caught = error
    except pytest.fail.Exception as error:  # "did not raise"
        caught = error
    assert caught is not None, f"the suite let {mutant.__name__} pass"
