"""Tests a stream's source with one reader after another: which messages it applies, what it shares, what it drops."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import dlog
from actors.segment_readers import segment_key
from dlog.errors import DamagedError, DLogError, OwnedElsewhereError, Remedy, UnsupportedVersionError
from dlog.io.metadata import SessionState
from dlog.log.seeking import SeekTarget
from dlog.log.source_messages import (
    EntriesGot,
    GetEntries,
    GetStream,
    Locate,
    Located,
    SegmentLacSeen,
    SourceFailed,
    StreamSeen,
    WatchLac,
)
from dlog.machine import Key, Outcome, OutcomeUnknown, Versioned
from dlog.model.ids import EntryId, Epoch, ProxyId, SegmentNumber, StreamName
from dlog.model.segment import Owner, Segment, StreamKey, StreamMetadata, Truncation
from dlog.stores.contract import ReaderClosedError, StoreUnavailableError
from tests.deleting import delete_stream
from tests.integration.proxies.local_proxies import LocalProxies
from tests.integration.proxies.stage import KEY, SHORT, STREAM, Asker, Stage, stage
from tests.memory_store import MemoryReader


async def test_a_stream_made_again_is_told_even_if_it_looks_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage() as on:
        value = StreamMetadata(name=STREAM)
        await on.metadata.compare_and_set(KEY, value, None)
        asker = Asker(on.source)
        before = await asker.look()
        read, may_read = on.metadata.read, asyncio.Event()

        async def late(key: Key) -> Outcome:
            await may_read.wait()
            return await read(key)

        monkeypatch.setattr(on.metadata, "read", late)
        await delete_stream(on.metadata, STREAM, read)
        await on.metadata.compare_and_set(KEY, value, None)
        may_read.set()
        after = (await asker.hear(StreamSeen)).metadata
        assert before == after == value
        assert before is not None
        assert after is not None
        assert before.incarnation != after.incarnation


async def test_a_lac_is_not_believed_for_a_place_that_the_number_had_before() -> None:
    """An empty segment was dropped and its number given to another location, which has another LAC."""
    async with stage() as on:
        old = await on.write(0)
        asker = Asker(on.source)
        await asker.look()
        asker.subscription.ask(WatchLac(old, EntryId(-1)))
        await on.words.asked.wait()
        assert on.words.hear is not None
        read = on.metadata.read
        gate = asyncio.Event()

        async def slowly(key: Any) -> Any:
            await gate.wait()
            return await read(key)

        on.metadata.read = slowly  # type: ignore[method-assign]
        new = await on_new_place(on, read)
        on.words.hear(1, 2, False)
        gate.set()
        told = await asker.hear(SegmentLacSeen)
        assert (told.location, told.lac, told.ended) == (old.location, -1, True)
        asker.subscription.ask(WatchLac(new, EntryId(-1)))
        assert await asker.hear(SegmentLacSeen) == SegmentLacSeen(new.number, new.location, EntryId(2))


async def test_a_lac_of_a_stream_that_was_deleted_is_not_believed_for_one_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Segment numbers are used again, and the old owner's message came before metadata could be read."""
    async with stage() as on:
        old = await on.write(8)
        asker = Asker(on.source)
        await asker.look()
        asker.subscription.ask(WatchLac(old, EntryId(7)))  # the store shows no more of it
        await on.words.asked.wait()
        assert on.words.hear is not None
        read, may_read = on.metadata.read, asyncio.Event()

        async def late(key: Key) -> Outcome:
            await may_read.wait()
            return await read(key)

        with monkeypatch.context() as slowly:
            slowly.setattr(on.metadata, "read", late)
            on.words.hear(1, 7, False)
            on.words.asked.clear()
            await delete_stream(on.metadata, STREAM, read)
            new = await on_new_place(on, read)
            may_read.set()
            told = await asker.hear(SegmentLacSeen)
            assert (told.location, told.lac, told.ended) == (old.location, 7, True)
        asker.subscription.ask(WatchLac(new, EntryId(-1)))
        assert await asker.hear(SegmentLacSeen) == SegmentLacSeen(new.number, new.location, EntryId(2))
        asker.subscription.ask(WatchLac(new, EntryId(2)))
        await on.words.asked.wait()  # the owner is asked again, for this incarnation
        on.words.hear(1, 3, False)
        assert await asker.hear(SegmentLacSeen) == SegmentLacSeen(new.number, new.location, EntryId(3))


@pytest.mark.parametrize("is_claimed", [False, True])
async def test_where_a_claim_was_redirected_to_another_claim_is_not_looked_for(is_claimed: bool) -> None:
    """The proxy that the old owner names may own the earlier incarnation, and report its segment numbers."""
    async with stage() as on:
        segment = await on.write(5)
        listened: list[str] = []

        async def follow(address: str, *_: Any) -> None:
            listened.append(address)
            if len(listened) == 1:
                seen = await on.metadata.read(KEY)
                assert isinstance(seen, Versioned)
                owner = Owner(epoch=Epoch(2), proxy=ProxyId("x"), address="owner:2")
                if is_claimed:
                    await on.metadata.compare_and_set(KEY, replace(seen.value, owner=owner), seen.version)
                raise OwnedElsewhereError("owned elsewhere", location="elsewhere:1")
            on.words.asked.set()
            await asyncio.Event().wait()

        on.words.follow = follow  # type: ignore[method-assign, assignment]  # as far as this test needs
        asker = Asker(on.source)
        await asker.look()
        asker.subscription.ask(WatchLac(segment, EntryId(4)))
        async with asyncio.timeout(90.0):
            await on.words.asked.wait()
        assert listened == ["owner:1", "owner:2" if is_claimed else "elsewhere:1"]


async def test_a_follower_goes_on_at_the_place_that_the_number_of_an_empty_segment_has_now() -> None:
    """The same owner and the same connection, and only metadata reports the change: the location decides."""
    async with stage() as on:
        old = await on.write(0)
        asker = Asker(on.source)
        await asker.look()
        on.words.first = (1, -1, False)
        asker.subscription.ask(WatchLac(old, EntryId(-1)))
        await on.words.asked.wait()
        looking = Asker(on.source)
        await looking.look()  # the message is assigned to its location by now
        new = await on.write(3)
        told = await asker.hear(SegmentLacSeen)
        assert (told.location, told.lac, told.ended) == (old.location, -1, True)
        assert on.words.hear is not None
        asker.subscription.ask(WatchLac(new, EntryId(2)))
        on.words.hear(1, 5, False)
        assert await asker.hear(SegmentLacSeen) == SegmentLacSeen(new.number, new.location, EntryId(5))


async def on_new_place(on: Stage, read: Any) -> Segment:
    reading, on.metadata.read = on.metadata.read, read  # type: ignore[method-assign]
    segment = await on.write(3)
    on.metadata.read = reading  # type: ignore[method-assign]
    return segment


async def test_the_tail_is_the_owners_word_and_without_one_the_stores() -> None:
    async with stage() as on:
        segment = await on.write(5)
        asker = Asker(on.source)
        await asker.look()
        on.words.first = (1, 3, False)
        asker.subscription.ask(WatchLac(segment, EntryId(-2)))
        assert (await asker.hear(SegmentLacSeen)).lac == 3
        on.words.lost.set()
        late = Asker(on.source)
        await late.look()
        late.subscription.ask(WatchLac(segment, EntryId(3)))
        assert (await late.hear(SegmentLacSeen)).lac == 4, "the store knows more than the owner said"


async def test_an_owner_that_answers_and_has_not_taken_the_stream_yet_has_said_nothing() -> None:
    """The owner answers pings while it takes the stream over, and sends its first LAC afterwards. Until then its
    silence is no LAC, and the store's last answer is outdated."""
    async with stage() as on:
        segment = await on.write(1)
        early = Asker(on.source)
        await early.look()
        early.subscription.ask(WatchLac(segment, EntryId(-2)))
        assert (await early.hear(SegmentLacSeen)).lac == 0, "the store's word, for the owner says nothing"
        await on.more(1, 4)
        late = Asker(on.source)
        await late.look()
        late.subscription.ask(WatchLac(segment, EntryId(-2)))
        assert (await late.hear(SegmentLacSeen)).lac == 3
        on.source._owner._wait_s = 10.0
        last = Asker(on.source)
        await last.look()
        last.subscription.ask(WatchLac(segment, EntryId(-2)))
        assert on.words.hear is not None
        on.words.hear(1, 9, False)  # as soon as it serves
        assert (await last.hear(SegmentLacSeen)).lac == 9


async def test_a_failed_fetch_is_told_to_those_who_asked_and_asked_again(monkeypatch: Any) -> None:
    async with stage() as on:
        segment = await on.write(5, owned=False)
        real, fail = MemoryReader.read, True

        async def read(self: MemoryReader, first: Any, last: Any, max_bytes: int) -> list[bytes]:
            if fail:
                raise StoreUnavailableError("not now")
            return await real(self, first, last, max_bytes)

        monkeypatch.setattr(MemoryReader, "read", read)
        one, two = Asker(on.source), Asker(on.source)
        question = GetEntries(segment, EntryId(0), EntryId(4), 1000)
        for asker in (one, two):
            await asker.look()
            asker.subscription.ask(question)
        for asker in (one, two):
            failed = await asker.hear(SourceFailed)
            assert isinstance(failed.error, StoreUnavailableError)
        fail = False
        for asker in (one, two):
            asker.subscription.ask(question)
            assert (await asker.hear(EntriesGot)).payloads == (b"0", b"1", b"2", b"3", b"4")


async def test_a_reader_of_the_store_that_broke_is_replaced(monkeypatch: Any) -> None:
    """An error of the broken reader says nothing about the segment."""
    async with stage() as on:
        segment = await on.write(5, owned=False)
        real, broken = MemoryReader.read, list[MemoryReader]()

        async def read(self: MemoryReader, first: Any, last: Any, max_bytes: int) -> list[bytes]:
            broken.extend([self] if not broken else [])
            if self in broken:
                raise ReaderClosedError("its machine broke")
            return await real(self, first, last, max_bytes)

        monkeypatch.setattr(MemoryReader, "read", read)
        asker = Asker(on.source)
        await asker.look()
        question = GetEntries(segment, EntryId(0), EntryId(4), 1000)
        asker.subscription.ask(question)
        assert (await asker.hear(SourceFailed)).error.remedy is Remedy.RETRY
        asker.subscription.ask(question)
        assert len((await asker.hear(EntriesGot)).payloads) == 5


async def test_a_search_is_narrowed_by_the_store_or_its_failure_is_told(monkeypatch: Any) -> None:
    async with stage() as on:
        segment = await on.write(5, owned=False)
        errors: list[Exception] = [ReaderClosedError("its machine broke"), StoreUnavailableError("not now")]
        asked: list[Any] = []

        async def locate(self: MemoryReader, *args: Any, by_time: bool) -> tuple[EntryId, EntryId]:
            asked.append((self, *args, by_time))
            if errors:
                raise errors.pop(0)
            return EntryId(2), EntryId(3)

        monkeypatch.setattr(MemoryReader, "locate", locate)
        asker = Asker(on.source)
        await asker.look()
        question = Locate(segment, SeekTarget(True, 77), EntryId(1), EntryId(4))
        for _ in range(2):
            asker.subscription.ask(question)
            assert (await asker.hear(SourceFailed)).question == question
        asker.subscription.ask(question)
        assert await asker.hear(Located) == Located(question, EntryId(2), EntryId(3))
        (broken, *_), *others = asked
        assert [one[1:] for one in others] == [(1, 4, 77, True)] * 2
        assert all(one[0] is not broken for one in others)


async def test_entries_held_back_come_when_they_are_wanted_again() -> None:
    async with stage() as on:
        segment = await on.write(5, owned=False)
        slow, quick = Asker(on.source), Asker(on.source)
        question = GetEntries(segment, EntryId(1), EntryId(4), 1000)
        for asker in (slow, quick):
            await asker.look()
        slow.subscription.ask(question)
        slow.subscription.hold(True)  # while its entries are on their way
        quick.subscription.ask(question)
        assert (await quick.hear(EntriesGot)).payloads == (b"1", b"2", b"3", b"4")
        assert slow.is_quiet
        slow.subscription.hold(False)
        assert (await slow.hear(EntriesGot)).payloads == (b"1", b"2", b"3", b"4")
        slow.subscription.close()
        slow.subscription.ask(question)
        assert slow.is_quiet


async def test_out_of_reach_of_metadata_nobody_is_told_of_a_tail_that_may_have_moved() -> None:
    """The owner is gone and metadata cannot be read: this proxy cannot know the present tail."""
    async with stage() as on:
        segment = await on.write(5)
        first = Asker(on.source)
        await first.look()
        on.words.lost.set()
        on.metadata.state = SessionState.SUSPENDED
        on.metadata.read = unreachable  # type: ignore[method-assign]
        late = Asker(on.source)
        assert await late.look() is not None
        late.subscription.ask(WatchLac(segment, EntryId(-2)))
        failed = await late.hear(SourceFailed)
        assert failed.error.code == 505


async def at_the_tail(on: Stage, segment: Segment, lac: int) -> Asker:
    """A reader that was sent this LAC and waits for more, so the source is subscribed to the owner."""
    on.words.first = (1, lac, False)
    asker = Asker(on.source)
    await asker.look()
    asker.subscription.ask(WatchLac(segment, EntryId(-2)))
    assert (await asker.hear(SegmentLacSeen)).lac == lac
    asker.subscription.ask(WatchLac(segment, EntryId(lac)))
    return asker


async def test_an_owner_that_was_deposed_while_we_were_frozen_does_not_tell_the_tail() -> None:
    """The deposed owner answers, because it does not know; and the first read of metadata fails, because the session
    has expired."""
    async with stage() as on:
        segment = await on.write(5)
        await at_the_tail(on, segment, 3)
        read, failed = on.metadata.read, asyncio.Event()

        async def once(key: Any) -> Any:
            if not failed.is_set():
                on.metadata.state = SessionState.SUSPENDED
                failed.set()
                return await unreachable(key)
            on.metadata.state = SessionState.CONNECTED
            return await read(key)

        on.source._metadata_wait_s = 30.0
        on.words.first = None  # the new owner has not taken the stream yet
        on.metadata.read = once  # type: ignore[method-assign]
        late = Asker(on.source)
        late.subscription.ask(GetStream())
        await failed.wait()
        seen = await read(KEY)
        assert isinstance(seen, Versioned)
        claim = Owner(epoch=Epoch(2), proxy=ProxyId("w"), address="owner:1")
        await on.metadata.compare_and_set(KEY, replace(seen.value, owner=claim), seen.version)
        assert (await late.hear(StreamSeen)).fresh
        late.subscription.ask(WatchLac(segment, EntryId(-2)))
        assert (await late.hear(SegmentLacSeen)).lac == 4, "the store's word"


async def test_nothing_is_asked_for_a_reader_that_left_before_its_first_look() -> None:
    async with stage() as on:
        await on.write(5)
        await Asker(on.source).look()
        hasty = Asker(on.source)
        hasty.subscription.ask(GetStream())
        (errand,) = on.source._errands
        hasty.subscription.close()
        async with asyncio.timeout(20.0):
            await asyncio.wait((errand,))
        assert hasty.is_quiet


async def unreachable(key: Any) -> Any:
    await asyncio.sleep(0)
    return OutcomeUnknown("no ZooKeeper")


async def test_what_is_truncated_while_it_is_fetched_is_not_kept(monkeypatch: Any) -> None:
    async with stage() as on:
        segment = await on.write(5, owned=False)
        asker = Asker(on.source)
        await asker.look()
        real, asked, gate = MemoryReader.read, asyncio.Event(), asyncio.Event()

        async def read(self: MemoryReader, first: Any, last: Any, max_bytes: int) -> list[bytes]:
            asked.set()
            await gate.wait()
            return await real(self, first, last, max_bytes)

        monkeypatch.setattr(MemoryReader, "read", read)
        asker.subscription.ask(GetEntries(segment, EntryId(0), EntryId(4), 1000))
        await asked.wait()
        await on.change(replace(ended(segment, 4), truncation=Truncation.PARTIAL, min_entry=EntryId(3)))
        await asker.hear(StreamSeen)
        gate.set()
        assert (await asker.hear(EntriesGot)).payloads == (b"0", b"1", b"2", b"3", b"4"), "it had asked before"
        key = segment_key(segment)
        assert [on.cache.holds(key, entry) for entry in range(5)] == [False, False, False, True, True]


async def test_a_segment_that_ended_and_was_truncated_in_one_look_loses_its_beginning() -> None:
    async with stage() as on:
        segment = await on.write(5, owned=False)
        asker = Asker(on.source)
        await asker.look()
        asker.subscription.ask(GetEntries(segment, EntryId(0), EntryId(4), 1000))
        await asker.hear(EntriesGot)
        await on.change(replace(ended(segment, 4), truncation=Truncation.PARTIAL, min_entry=EntryId(3)))
        await asker.hear(StreamSeen)
        key = segment_key(segment)
        assert [on.cache.holds(key, entry) for entry in range(5)] == [False, False, False, True, True]


async def test_what_a_silent_owner_said_before_is_not_taken_for_the_tail() -> None:
    """The link is open and the owner frozen: the store has more entries than it had reported."""
    async with stage() as on:
        segment = await on.write(5)
        await at_the_tail(on, segment, 1)
        on.words.frozen = True
        late = Asker(on.source)
        await late.look()
        late.subscription.ask(WatchLac(segment, EntryId(-2)))
        assert (await late.hear(SegmentLacSeen)).lac == 4


def ended(segment: Segment, last: int) -> Segment:
    return replace(segment, completed=True, last_entry=EntryId(last), last_slot=0, record_count=last + 1)


async def test_a_source_that_is_told_to_end_does_so_while_a_reader_waits_for_the_tail() -> None:
    """Otherwise the next user of the stream would wait for the end of this source, for ever."""
    on = Stage()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(on.source.run())
        segment = await on.write(1, owned=False)
        asker = Asker(on.source)
        await asker.look()
        asked = asyncio.Event()

        async def never(key: Any) -> Any:
            asked.set()
            await asyncio.Event().wait()

        on.metadata.read = never  # type: ignore[method-assign]
        asker.subscription.ask(WatchLac(segment, EntryId(-2)))
        await asked.wait()
        asker.subscription.close()
        on.source.stop()
        async with asyncio.timeout(90.0):
            await running


async def test_readers_at_the_tail_are_told_in_their_turn_and_of_an_end_at_once() -> None:
    """Entries confirmed meanwhile go to them in one piece; a reader that has just come does not wait for their turn."""
    async with stage(replace(SHORT, owner_wait_s=60.0, notify_pause_s=3600.0, notify_pause_max_s=3600.0)) as on:
        segment = await on.write(8)
        askers = [Asker(on.source) for _ in range(2)]
        on.words.first = (1, 0, False)
        for asker in askers:
            await asker.look()
            asker.subscription.ask(WatchLac(segment, EntryId(-2)))
            assert (await asker.hear(SegmentLacSeen)).lac == 0
            asker.subscription.ask(WatchLac(segment, EntryId(0)))
        assert on.words.hear is not None
        on.words.hear(1, 1, False)
        for asker in askers:
            assert (await asker.hear(SegmentLacSeen)).lac == 1
        askers[0].subscription.ask(WatchLac(segment, EntryId(1)))
        for lac in range(2, 5):
            on.words.hear(1, lac, False)
            assert askers[0].is_quiet, "told a moment ago"
        askers[1].subscription.ask(WatchLac(segment, EntryId(1)))
        assert askers[1].is_quiet, "and one who comes back waits with the others"
        newcomer = Asker(on.source)
        await newcomer.look()
        newcomer.subscription.ask(WatchLac(segment, EntryId(-2)))
        assert (await newcomer.hear(SegmentLacSeen)).lac == 4
        on.words.hear(1, 5, True)
        for asker in askers:
            assert (await asker.hear(SegmentLacSeen)) == SegmentLacSeen(
                segment.number, segment.location, EntryId(5), True
            )


async def test_who_waits_for_its_turn_is_told_when_it_comes() -> None:
    async with stage(replace(SHORT, notify_pause_s=0.01)) as on:
        segment = await on.write(8)
        asker = Asker(on.source)
        await asker.look()
        on.words.first = (1, 0, False)
        asker.subscription.ask(WatchLac(segment, EntryId(-2)))
        assert (await asker.hear(SegmentLacSeen)).lac == 0
        assert on.words.hear is not None
        for lac in range(4):
            asker.subscription.ask(WatchLac(segment, EntryId(lac)))
            on.words.hear(1, lac + 1, False)
            assert (await asker.hear(SegmentLacSeen)).lac == lac + 1


BLOCKS_OF_TWO = replace(SHORT, owner_wait_s=60.0, fetch_bytes=2)


async def in_blocks_of_two(on: Stage, count: int) -> tuple[Segment, Asker]:
    """A segment of this many short entries, fetched in blocks of two bytes, and a reader that knows where it ends."""
    segment = await on.write(count)
    asker = Asker(on.source)
    await asker.look()
    on.words.first = (1, count - 1, False)
    asker.subscription.ask(WatchLac(segment, EntryId(-2)))
    assert (await asker.hear(SegmentLacSeen)).lac == count - 1
    return segment, asker


async def test_the_next_blocks_are_fetched_while_the_one_before_is_on_its_way(monkeypatch: Any) -> None:
    """Two blocks ahead of a reader that continues, none behind the last one, and none for a reader of a single
    entry."""
    async with stage(BLOCKS_OF_TWO) as on:
        asked: list[int] = []
        read = MemoryReader.read

        async def noted(reader: MemoryReader, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
            asked.append(first)
            return await read(reader, first, last, max_bytes)

        monkeypatch.setattr(MemoryReader, "read", noted)
        segment, asker = await in_blocks_of_two(on, 11)

        async def fetched(first: int, last: int) -> list[int]:
            """The first entries of the blocks that were requested from the store, once a reader was given its entry."""
            asker.subscription.ask(GetEntries(segment, EntryId(first), EntryId(last), 1))
            assert (await asker.hear(EntriesGot)).payloads == (b"%d" % first,)
            while on.source._errands:
                await asyncio.wait(tuple(on.source._errands), timeout=90.0)
            return asked

        assert await fetched(0, 0) == [0], "a look at one entry"
        assert await fetched(2, 10) == [0, 2, 4, 6], "who goes on finds the next blocks there"
        assert await fetched(3, 10) == [0, 2, 4, 6], "two ahead, no more"
        assert await fetched(4, 10) == [0, 2, 4, 6, 8], "until somebody comes to one"
        assert await fetched(8, 10) == [0, 2, 4, 6, 8, 10], "who leaps over one has what lies before him read on"


async def test_blocks_ahead_are_on_their_way_at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source requests several blocks at once when it knows how many entries fill a block. If entries are larger,
    fewer arrive, and it requests the rest again."""
    async with stage(BLOCKS_OF_TWO) as on:
        asked: list[tuple[int, int]] = []
        both, may_go = asyncio.Event(), asyncio.Event()
        read = MemoryReader.read

        async def noted(reader: MemoryReader, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
            asked.append((first, last))
            if len(asked) == 3:
                both.set()
            if len(asked) > 1:
                await may_go.wait()
            found = await read(reader, first, last, max_bytes)
            return found[:1] if first == 2 else found

        monkeypatch.setattr(MemoryReader, "read", noted)
        segment, asker = await in_blocks_of_two(on, 10)
        asker.subscription.ask(GetEntries(segment, EntryId(0), EntryId(9), 2))
        assert (await asker.hear(EntriesGot)).payloads == (b"0", b"1")
        async with asyncio.timeout(90.0):
            await both.wait()
        assert asked == [(0, 9), (2, 3), (4, 5)], "the second begins where the first is to end"
        for first in (2, 3):
            asker.subscription.ask(GetEntries(segment, EntryId(first), EntryId(9), 1))
        may_go.set()
        assert (await asker.hear(EntriesGot)).payloads == (b"2",)
        assert (await asker.hear(EntriesGot)).payloads == (b"3",)
        assert asked.count((3, 3)) == 1, "asked for again, and no further than it is known who has the rest"


async def test_what_an_owner_sends_along_is_served_unless_it_is_truncated_by_then(monkeypatch: Any) -> None:
    """An entry that the owner sends with its LAC serves the next request without the store; entries of a segment that
    has left the list are dropped."""

    async def never(*_: Any) -> list[bytes]:
        raise AssertionError("the store is not asked")

    async with stage() as on:
        segment = await on.write(3)
        asker = await at_the_tail(on, segment, 0)
        monkeypatch.setattr(MemoryReader, "read", never)
        assert on.words.hear is not None
        on.words.hear.entries(1, 1, [b"1", b"2"])
        on.words.hear(1, 2, False)
        assert (await asker.hear(SegmentLacSeen)).lac == 2
        asker.subscription.ask(GetEntries(segment, EntryId(1), EntryId(2), 1000))
        assert (await asker.hear(EntriesGot)).payloads == (b"1", b"2")
        await on.change(replace(segment, number=SegmentNumber(2), name="next"))
        await asker.hear(StreamSeen)
        await on.change(ended(segment, 2))
        await asker.hear(StreamSeen)
        await on.truncate(2)
        await asker.hear(StreamSeen)
        on.words.hear.entries(1, 1, [b"1", b"2"])
        assert len(on.cache) == 0


@pytest.mark.parametrize("error", [DamagedError("no owner"), UnsupportedVersionError("of 2031"), UnicodeError("label")])
async def test_metadata_that_cannot_be_read_is_an_error_of_its_stream_until_it_is_mended(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async with stage() as on:
        await on.write(1)
        read = on.metadata.read
        failing = [error] * 3
        mended = asyncio.Event()

        async def badly(key: Key) -> Outcome:
            if failing:
                raise failing.pop()
            asyncio.get_running_loop().call_soon(mended.set)
            return await read(key)

        monkeypatch.setattr(on.metadata, "read", badly)
        asker = Asker(on.source)
        asker.subscription.ask(GetStream())
        told = (await asker.hear(SourceFailed)).error
        assert told.remedy is not Remedy.RETRY and told.message
        await mended.wait()
        assert (await Asker(on.source).look()) is not None


async def test_a_stream_whose_metadata_is_damaged_ends_its_readers_and_no_proxy(
    local: LocalProxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with dlog.connect(f"dlog://{writer.address},{reader.address}") as client:
        for name in ("good", "bad"):
            await client.create(name, store="memory")
            await client.append(name, b"1")
        read = local.metadata.read

        async def badly(key: Key) -> Outcome:
            if key == StreamKey(StreamName("bad")):
                raise ValueError("nobody foresaw this")
            return await read(key)

        monkeypatch.setattr(local.metadata, "read", badly)
        for _ in range(12):
            with pytest.raises(DamagedError):
                _ = [r async for r in client.read("bad")]
            with pytest.raises(DLogError):
                await client.stat("bad")
        assert [r.payload async for r in client.read("good")] == [b"1"]
        await client.append("good", b"2")
    assert not reader.task.done() and not writer.task.done()
