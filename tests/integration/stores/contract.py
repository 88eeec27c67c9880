"""The one suite that every segment store passes. A store's test module subclasses `StoreContract`.

`stores` gives a store that a test may use as one process would; called twice it gives two processes on the same
storage. Kill points are chosen by what has been submitted and acknowledged, never by time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest

from dlog.errors import InvalidRequestError
from dlog.model.ids import NO_ENTRY, EntryId, Epoch, SegmentNumber, StreamName, is_location_name
from dlog.stores.contract import (
    STAGE,
    EntryTooLargeError,
    SegmentFencedError,
    SegmentNotFoundError,
    SegmentReader,
    SegmentRef,
    SegmentSealedError,
    SegmentStat,
    SegmentStore,
    SegmentTruncatedError,
    SegmentWriter,
    StoreError,
)
from tests.integration.stores.checker import History, check
from tests.integration.stores.seeking import check_locate, draw_entries

OpenStore = Callable[[], Awaitable[SegmentStore]]

STREAM = StreamName("contract")
LONG_S = 90.0  # the limit of a wait for an event
_numbers = itertools.count(1)


def payload(entry: int, size: int = 20) -> bytes:
    """A payload that contains the entry id."""
    return (b"entry %d " % entry).ljust(size, b".")


def _note(heard: list[tuple[int, StoreError | None]], entry: int, error: StoreError | None) -> None:
    heard.append((entry, error))


class Run:
    """One segment in a test: a writer, and a history of all operations."""

    def __init__(self, writer: SegmentWriter, number: SegmentNumber) -> None:
        self.writer = writer
        self.ref = SegmentRef(STREAM, number, writer.name)
        self.history = History()
        self.errors: list[StoreError] = []
        self.fenced = False  # a recovery has returned: no entry appended from here on may be acknowledged
        self._open: list[asyncio.Future[None]] = []

    def append(self, size: int = 20) -> asyncio.Future[None]:
        """Append the next entry and note the result."""
        entry = len(self.history.submitted)
        body = payload(entry, size)
        self.history.submitted.append(body)
        late = self.fenced
        future = self.writer.append(EntryId(entry), (body[:5], memoryview(body)[5:]))

        def note(done: asyncio.Future[None]) -> None:
            if done.cancelled():
                return
            error = done.exception()
            if error is None:
                (self.history.acked_after_fence if late else self.history.acked).append(entry)
            else:
                assert isinstance(error, StoreError), error
                self.errors.append(error)

        future.add_done_callback(note)
        self._open.append(future)
        return future

    async def settled(self) -> None:
        """Wait until every append so far has an answer."""
        await asyncio.wait(self._open)
        await asyncio.sleep(0)

    async def acked(self, count: int) -> None:
        """Wait until this many entries are acknowledged."""
        for future in self._open[:count]:
            await future
        await asyncio.sleep(0)

    async def recover(self, store: SegmentStore) -> EntryId:
        found = await store.recover(self.ref)
        self.fenced = True
        end = found.end
        if count := len(found.last_payloads):
            self.history.read(f"recovery {len(self.history.recovered)}", end + 1 - count, list(found.last_payloads))
        self.history.recovered.append(end)
        return end

    async def follow(self, store: SegmentStore, name: str, *, patient: bool = True) -> None:
        """Read at the tail until the end, and note everything. Impatient: at every turn of the loop."""
        reader = await store.open_reader(self.ref)
        position = 0
        try:
            while reader.end is None or position <= reader.end:
                lac = await reader.wait_lac(EntryId(position - 1), LONG_S if patient else 0.0)
                self.history.lacs.append((name, lac))
                if lac >= position:
                    found = await reader.read(EntryId(position), lac, 64)
                    self.history.read(name, position, found)
                    position += len(found)
                elif not patient:
                    await asyncio.sleep(0)
            self.history.ends.append((name, reader.end))
        finally:
            await reader.close()

    async def conclude(self, store: SegmentStore) -> None:
        """Read the rest and let the checker check the history."""
        reader = await store.open_reader(self.ref)
        try:
            assert reader.end is not None, "the segment has an end by now"
            self.history.ends.append(("last", reader.end))
            self.history.final = await read_all(reader, reader.end)
        finally:
            await reader.close()
        assert check(self.history) == []


async def read_all(reader: SegmentReader, last: EntryId) -> list[bytes]:
    """Read entries 0..last, in as many reads as needed."""
    found: list[bytes] = []
    while len(found) <= last:
        more = await reader.read(EntryId(len(found)), last, 1 << 20)
        assert more, "at least one entry"
        found += more
    return found


class StoreContract:
    """Tests of the promises in dlog/stores/contract.py."""

    @pytest.fixture
    def stores(self) -> OpenStore:
        raise NotImplementedError("a store's test module says how it is opened")

    @asynccontextmanager
    async def _limit(self) -> AsyncIterator[None]:
        async with asyncio.timeout(120):
            yield

    async def _run(self, store: SegmentStore, epoch: int = 1) -> Run:
        number = SegmentNumber(next(_numbers))
        return Run(await store.create(STREAM, number, Epoch(epoch), ()), number)

    # ---- settings ---------------------------------------------------------------------------------------------------

    async def test_a_setting_of_another_store_is_refused_with_the_names_of_its_own(self, stores: OpenStore) -> None:
        store = await stores()
        settings = store.settings.complete({})
        assert (store.settings.store, list(dict(settings))) == (store.name, list(store.settings.numbers))
        store.check_capacity(settings)
        with pytest.raises(InvalidRequestError, match=", ".join(store.settings.numbers) or "none"):
            await store.create(STREAM, SegmentNumber(1), Epoch(1), (("partitions", 3),))
        for name in store.settings.numbers:
            for value in (0, 2**31, True, "3", 1.0):
                with pytest.raises(InvalidRequestError, match=name):
                    store.settings.complete({name: value})

    # ---- writing and reading ----------------------------------------------------------------------------------------

    async def test_appends_resolve_in_order_and_are_read_back(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        for _ in range(200):
            run.append()
        await run.settled()
        assert run.writer.last_confirmed == 199
        assert await run.writer.seal() == 199
        await run.conclude(await stores())
        assert run.history.final == run.history.submitted

    async def test_a_sink_hears_of_each_entry_once_and_in_order(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        heard: list[tuple[int, StoreError | None]] = []
        for entry in range(20):
            body = payload(entry)
            run.history.submitted.append(body)
            run.writer.submit(EntryId(entry), (body[:5], memoryview(body)[5:]), partial(_note, heard, entry))
        assert await run.writer.seal() == 19
        assert heard == [(entry, None) for entry in range(20)]
        ended = asyncio.Event()

        def late(error: StoreError | None) -> None:
            heard.append((20, error))
            ended.set()

        run.writer.submit(EntryId(20), (b"late",), late)
        async with asyncio.timeout(LONG_S):
            await ended.wait()
        assert len(heard) == 21 and isinstance(heard[-1][1], SegmentSealedError)
        run.history.acked += range(20)
        run.history.sealed.append(19)
        await run.conclude(store)

    async def test_places_are_never_given_out_twice(self, stores: OpenStore) -> None:
        one, two = await stores(), await stores()
        runs = [await self._run(store) for store in (one, two, one, two)]
        assert len({run.ref.name for run in runs}) == 4
        assert all(is_location_name(run.ref.name) for run in runs)
        listed = [place async for place in one.list()]
        assert {run.ref.name for run in runs} <= set(listed)
        assert len(listed) == len(set(listed))

    async def test_seal_is_idempotent_and_final(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        for _ in range(5):
            run.append()
        assert await run.writer.seal() == 4  # behind everything appended
        assert await run.writer.seal() == 4
        with pytest.raises(SegmentSealedError):
            await run.writer.append(EntryId(5), (b"late",))
        assert await run.recover(store) == 4
        assert await store.find_tail(run.ref) == 4
        run.history.sealed.append(4)
        await run.conclude(store)

    async def test_an_empty_segment_has_an_end_too(self, stores: OpenStore) -> None:
        store = await stores()
        sealed, recovered = await self._run(store), await self._run(store)
        assert await sealed.writer.seal() == NO_ENTRY
        assert await recovered.recover(await stores()) == NO_ENTRY
        for run in (sealed, recovered):
            reader = await store.open_reader(run.ref)
            assert await reader.wait_lac(NO_ENTRY, LONG_S) == NO_ENTRY
            assert reader.end == NO_ENTRY
            await reader.close()

    async def test_an_entry_too_large_is_refused_and_nothing_is_taken(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        limit = store.capabilities.entry_bytes_max
        with pytest.raises(EntryTooLargeError) as caught:
            await run.writer.append(EntryId(0), (b"x" * limit, b"y"))
        assert not caught.value.outcome_unknown
        run.append(size=limit)
        run.append()
        await run.settled()
        assert await run.writer.seal() == 1
        await run.conclude(store)

    async def test_reads_are_contiguous_and_bounded(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        for _ in range(30):
            run.append(size=1000)
        await run.writer.seal()
        reader = await store.open_reader(run.ref)
        assert await reader.read(EntryId(3), EntryId(3), 1) == [payload(3, 1000)]  # at least one
        some = await reader.read(EntryId(10), EntryId(29), 5_500)
        assert 1 <= len(some) <= 6
        assert some == [payload(10 + i, 1000) for i in range(len(some))]
        beyond = await reader.read(EntryId(29), EntryId(500), 1 << 20)
        assert beyond == [payload(29, 1000)]
        await reader.close()

    async def test_views_are_what_is_read(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        for size in (1, 0, 1000, 3000, 70_000, 2):
            run.append(size=size)
        await run.writer.seal()
        reader = await store.open_reader(run.ref)
        for first, last, max_bytes in ((0, 5, 1 << 20), (2, 2, 1), (1, 500, 4500)):
            views = await reader.read_views(EntryId(first), EntryId(last), max_bytes)
            assert list(map(bytes, views)) == await reader.read(EntryId(first), EntryId(last), max_bytes)
        await reader.close()

    @pytest.mark.parametrize("seed", range(3))
    async def test_locate_leaves_the_first_entry_that_a_search_must_find(self, stores: OpenStore, seed: int) -> None:
        rng, writing, reading = random.Random(seed), await stores(), await stores()
        run = await self._run(writing)
        payloads = draw_entries(rng, 40)
        for entry, body in enumerate(payloads):
            await run.writer.append(EntryId(entry), [body])
            if entry in (20, 39):
                for store in (writing, reading):
                    reader = await store.open_reader(run.ref)
                    reader.learn_lac(EntryId(entry))
                    await check_locate(reader, payloads[: entry + 1], rng)
                    await reader.close()
        end = await run.writer.seal()
        for store in (reading, writing):
            reader = await store.open_reader(run.ref, sealed_at=end)
            assert await read_all(reader, end) == payloads
            await check_locate(reader, payloads, rng)
            await reader.close()

    async def test_the_end_may_be_told_instead_of_asked(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        for _ in range(4):
            run.append()
        await run.writer.seal()
        reader = await (await stores()).open_reader(run.ref, sealed_at=EntryId(3))
        assert (reader.end, reader.last_confirmed) == (3, 3)
        assert await read_all(reader, EntryId(3)) == run.history.submitted
        await reader.close()

    async def test_the_end_that_is_told_gives_way_to_the_one_that_was_decided(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        for _ in range(4):
            run.append()
        await run.writer.seal()
        for told in (NO_ENTRY, 1, 7):
            reader = await (await stores()).open_reader(run.ref, sealed_at=EntryId(told))
            assert (reader.end, reader.last_confirmed) == (3, 3)
            assert await read_all(reader, EntryId(3)) == run.history.submitted
            await reader.close()

    # ---- the LAC ----------------------------------------------------------------------------------------------------

    async def test_wait_lac_returns_what_stands_after_its_time(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        reader = await store.open_reader(run.ref)
        async with self._limit():
            assert await reader.wait_lac(NO_ENTRY, 0.0) == NO_ENTRY
        await run.append()
        await run.append()
        async with self._limit():
            assert await reader.wait_lac(NO_ENTRY, LONG_S) >= 0
            known = reader.last_confirmed
            assert await reader.wait_lac(EntryId(1), 0.01) in (known, 1)
        await reader.close()

    async def test_wait_lac_wakes_on_a_move_and_on_the_end(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        reader = await (await stores()).open_reader(run.ref)
        async with self._limit(), asyncio.TaskGroup() as group:
            waiting = group.create_task(reader.wait_lac(NO_ENTRY, LONG_S), name="waits for a move")
            await asyncio.sleep(0)
            await run.append()
            await run.append()
        assert waiting.result() >= 0
        async with self._limit(), asyncio.TaskGroup() as group:
            waiting = group.create_task(reader.wait_lac(EntryId(1), LONG_S), name="waits for the end")
            await asyncio.sleep(0)
            await run.writer.seal()
        assert waiting.result() == 1
        assert reader.end == 1
        await reader.close()

    async def test_what_the_owner_tells_may_be_read_at_once(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        for _ in range(3):
            run.append()
        await run.settled()
        reader = await (await stores()).open_reader(run.ref)
        reader.learn_lac(run.writer.last_confirmed)
        assert reader.last_confirmed == 2
        assert await read_all(reader, EntryId(2)) == run.history.submitted
        reader.learn_lac(EntryId(0))  # an old hint does not lower it
        assert reader.last_confirmed == 2
        assert reader.end is None
        await reader.close()

    async def test_the_tail_is_found_beside_a_writer_and_disturbs_nobody(self, stores: OpenStore) -> None:
        store, others = await stores(), await stores()
        run = await self._run(store)
        assert await others.find_tail(run.ref) == NO_ENTRY
        for _ in range(5):
            await run.append()
        assert await others.find_tail(run.ref) == 4, "also the newest, which only its writer knows to be confirmed"
        await run.append()
        assert await others.find_tail(run.ref) == 5
        assert await run.writer.seal() == 5

    async def test_the_tail_is_found_when_no_writer_is_left(self, stores: OpenStore) -> None:
        store, others = await stores(), await stores()
        run = await self._run(store)
        for _ in range(7):
            run.append()
        await run.settled()
        await run.writer.abandon()
        tail = await others.find_tail(run.ref)
        assert tail >= 6
        reader = await others.open_reader(run.ref)
        reader.learn_lac(tail)
        assert await read_all(reader, tail) == run.history.submitted[: tail + 1]
        assert await others.find_tail(run.ref) == tail
        assert await run.recover(await stores()) >= tail
        await reader.close()

    # ---- recovery ---------------------------------------------------------------------------------------------------

    async def test_a_fenced_writer_gets_nothing_acknowledged(self, stores: OpenStore) -> None:
        old, new = await stores(), await stores()
        run = await self._run(old)
        for _ in range(5):
            run.append()
        await run.settled()
        await run.recover(new)
        for _ in range(5):
            run.append()
        await run.settled()
        assert [type(error) for error in run.errors] == [SegmentFencedError] * 5
        with pytest.raises(SegmentFencedError):
            await run.writer.seal()
        await run.conclude(new)

    async def test_recovery_is_repeatable(self, stores: OpenStore) -> None:
        old, new = await stores(), await stores()
        run = await self._run(old)
        for _ in range(7):
            run.append()
        await run.acked(3)
        for store in (old, new, old):
            await run.recover(store)
        await run.settled()
        await run.conclude(old)

    @pytest.mark.parametrize("recoverers", [2, 4])
    async def test_concurrent_recoveries_agree(self, stores: OpenStore, recoverers: int) -> None:
        old, new, other = await stores(), await stores(), await stores()
        run = await self._run(old)
        for _ in range(20):
            run.append()
        await run.acked(5)
        async with self._limit(), asyncio.TaskGroup() as group:
            for number in range(recoverers):
                group.create_task(run.recover((new, other)[number % 2]), name=f"recovery {number}")
            for _ in range(20):
                run.append()
                await asyncio.sleep(0)
        await run.settled()
        await run.conclude(new)

    @pytest.mark.parametrize("submitted, acknowledged", [(1, 0), (1, 1), (6, 0), (6, 3), (6, 6), (40, 17)])
    async def test_a_writer_that_dies_at_a_kill_point(
        self, stores: OpenStore, submitted: int, acknowledged: int
    ) -> None:
        old, new = await stores(), await stores()
        run = await self._run(old)
        for _ in range(acknowledged):
            run.append()
        await run.acked(acknowledged)
        for _ in range(submitted - acknowledged):
            run.append()
        await asyncio.sleep(0)
        await run.writer.abandon()
        await run.settled()
        assert all(error.outcome_unknown for error in run.errors)
        await run.recover(new)
        await run.conclude(new)

    async def test_a_cancelled_append_keeps_its_place(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        futures = [run.append() for _ in range(10)]
        futures[4].cancel()
        futures[7].cancel()
        await run.settled()
        assert run.writer.last_confirmed == 9
        assert await run.writer.seal() == 9
        run.history.acked = list(range(10))  # the two are in it, only their appends were not awaited
        await run.conclude(store)

    @pytest.mark.parametrize("seed", range(6))
    async def test_readers_see_one_prefix_through_a_takeover(self, stores: OpenStore, seed: int) -> None:
        rng = random.Random(seed)
        old, new = await stores(), await stores()
        run = await self._run(old)
        async with self._limit(), asyncio.TaskGroup() as group:
            for number in range(3):
                following = run.follow((old, new)[number % 2], f"reader {number}", patient=number != 1)
                group.create_task(following, name=f"reader {number}")
            for _ in range(rng.randint(1, 12)):
                for _ in range(rng.randint(1, 20)):
                    run.append(size=rng.choice((20, 400)))
                for _ in range(rng.randint(0, 6)):
                    await asyncio.sleep(0)
            if rng.random() < 0.5:
                await run.acked(len(run.history.submitted) // 2)
            if rng.random() < 0.3:
                await run.writer.abandon()
            recovering = group.create_task(run.recover(new), name="recovery")
            while not recovering.done() and len(run.history.submitted) < 2_000:
                run.append()
                await asyncio.sleep(0)
        await run.settled()
        await run.conclude(new)

    # ---- deleting, verifying ----------------------------------------------------------------------------------------

    async def test_delete_is_idempotent_and_certain(self, stores: OpenStore) -> None:
        store = await stores()
        run, kept = await self._run(store), await self._run(store)
        run.append()
        await run.writer.seal()
        await store.delete(run.ref)
        await store.delete(run.ref)
        places = [place async for place in (await stores()).list()]
        assert run.ref.name not in places and kept.ref.name in places
        with pytest.raises(SegmentNotFoundError):
            await store.recover(run.ref)

    async def test_a_stage_says_for_which_stream_it_was_written(self, stores: OpenStore) -> None:
        store = await stores()
        if not store.capabilities.takes_stages:
            with pytest.raises(InvalidRequestError, match="stage"):
                await store.create(STREAM, STAGE, Epoch(0), ())
            return
        stage = await store.create(STREAM, STAGE, Epoch(0), ())
        await stage.append(EntryId(0), [b"x"])
        assert await stage.seal() == 0
        segment = await store.create(STREAM, SegmentNumber(1), Epoch(1), ())
        other = await stores()
        assert await other.stage_of(stage.name) == STREAM
        assert await other.stage_of(segment.name) is None
        with pytest.raises(SegmentNotFoundError):
            await other.stage_of("987654321")
        assert (await other.recover(SegmentRef(STREAM, STAGE, stage.name))).end == 0
        await segment.abandon()

    async def test_what_never_was_is_not_found(self, stores: OpenStore) -> None:
        store = await stores()
        nowhere = SegmentRef(STREAM, SegmentNumber(1), "987654321")
        for call in (store.open_reader, store.find_tail, store.verify):
            with pytest.raises(SegmentNotFoundError):
                await call(nowhere)
        with pytest.raises(SegmentNotFoundError):
            await store.recover(nowhere)
        await store.delete(nowhere)

    async def test_stat_tells_the_end_and_the_size_once_the_end_is_decided(self, stores: OpenStore) -> None:
        store, others = await stores(), await stores()
        run, empty = await self._run(store), await self._run(store)
        for size in (20, 5000, 300):
            await run.append(size)
            assert await others.stat(run.ref) == SegmentStat()
        await run.writer.seal()
        await empty.writer.seal()
        for one in (store, others):
            assert await one.stat(run.ref) == SegmentStat(EntryId(2), 5320)
            assert await one.stat(run.ref, sealed_at=EntryId(2)) == SegmentStat(EntryId(2), 5320)
            assert await one.stat(empty.ref) == SegmentStat(NO_ENTRY, 0)
        await store.delete(run.ref)
        with pytest.raises(SegmentNotFoundError):
            await others.stat(run.ref)

    async def test_stat_of_a_segment_that_is_completed_in_the_list_decides_its_end(self, stores: OpenStore) -> None:
        """As a Java writer leaves it that is fenced before it closes its ledger."""
        store, others = await stores(), await stores()
        run = await self._run(store)
        for _ in range(3):
            await run.append()
        stat = await others.stat(run.ref, sealed_at=EntryId(2))
        assert stat == SegmentStat(EntryId(2), 60)
        run.append()
        await run.settled()
        assert run.errors, "its writer is fenced"
        assert (await others.recover(run.ref)).end == 2

    async def test_verify_counts_what_is_sound(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        for _ in range(50):
            run.append()
        await run.settled()
        await run.writer.seal()
        verification = await (await stores()).verify(run.ref)
        assert (verification.entries, verification.damaged) == (50, ())

    async def test_an_abandoned_writer_takes_nothing_more(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        await run.append()
        await run.writer.abandon()
        with pytest.raises(StoreError) as caught:
            await run.writer.append(EntryId(1), (b"late",))
        assert not isinstance(caught.value, SegmentSealedError)
        assert await run.recover(store) == 0


class RemovalContract(StoreContract):
    """Tests of a store that removes segments by itself, beside those of every store."""

    async def remove(self, store: SegmentStore, ref: SegmentRef) -> None:
        """Have the store remove all entries of a segment, as its retention does."""
        raise NotImplementedError("a store's test module says how its retention is made to act")

    async def test_what_the_store_removed_is_truncated_for_every_process_and_that_segment_only(
        self, stores: OpenStore
    ) -> None:
        store, others = await stores(), await stores()
        removed, kept = await self._run(store), await self._run(store)
        for run in (removed, kept):
            for _ in range(3):
                run.append()
            await run.writer.seal()
        reader = await store.open_reader(removed.ref)
        await self.remove(store, removed.ref)
        with pytest.raises(SegmentTruncatedError):
            await reader.read(EntryId(0), EntryId(2), 1 << 20)
        await reader.close()
        for one in (store, others):
            with pytest.raises(SegmentTruncatedError):
                again = await one.open_reader(removed.ref, sealed_at=EntryId(2))
                await again.read(EntryId(0), EntryId(2), 1 << 20)
            with pytest.raises(SegmentTruncatedError):
                await one.verify(removed.ref)
            assert await _end_if_known(one, removed.ref) in (None, 2), "it is not empty"
            with suppress(SegmentTruncatedError):
                assert await one.find_tail(removed.ref) == 2
            with suppress(SegmentTruncatedError):
                assert (await one.stat(removed.ref)).end == 2
        await kept.conclude(others)

    async def test_a_recovery_of_a_removed_segment_has_fenced_its_writer(self, stores: OpenStore) -> None:
        store, others = await stores(), await stores()
        run = await self._run(store)
        for _ in range(3):
            await run.append()
        await self.remove(others, run.ref)
        assert await _end_if_known(others, run.ref) in (None, 2), "it is not empty"
        run.fenced = True
        run.append()
        await run.settled()
        assert run.history.acked_after_fence == []
        assert [type(error) for error in run.errors] == [SegmentFencedError]

    async def test_a_removed_segment_can_be_deleted_and_is_not_found_then(self, stores: OpenStore) -> None:
        store = await stores()
        run = await self._run(store)
        await run.append()
        await run.writer.seal()
        await self.remove(store, run.ref)
        await store.delete(run.ref)
        with pytest.raises(SegmentNotFoundError):
            await store.recover(run.ref)


async def _end_if_known(store: SegmentStore, ref: SegmentRef) -> EntryId | None:
    """Recover a removed segment; returns its end, None if the store does not know it any more."""
    try:
        return (await store.recover(ref)).end
    except SegmentTruncatedError:
        return None
