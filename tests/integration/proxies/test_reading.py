"""Readers over real sockets: positions, the tail, credit, and everything that ends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import dlog
from dlog.errors import PositionBeyondEndError, StreamRecreatedError, TruncatedError
from dlog.model.ids import EntryId
from dlog.wire.entry import CONTROL, END_OF_STREAM, decode_entry
from dlog.wire.proxy import (
    Create,
    Credit,
    Delete,
    Entries,
    Failed,
    GetOwner,
    HandOver,
    Read,
    ReaderEvent,
    Seal,
    Start,
    Stat,
    Truncate,
    Written,
)
from dlog.wire.proxy import ReaderEventKind as Kind
from proxies.write.lac_subscriptions import ENTRIES_BYTES_MAX
from tests.integration.proxies.local_proxies import LocalProxies
from tests.integration.proxies.raw import ANYTHING, Raw, RawProducer
from tests.memory_store import MemoryReader

MEMORY = {"store": "memory"}


class Reading:
    """One reader on one connection, which collects records as a client would."""

    def __init__(self, raw: Raw, stream: str, start: Start, value: Any = None, **how: Any) -> None:
        self.raw = raw
        self.request = raw.next_request()
        self.records: list[bytes] = []
        self.places: list[tuple[int, int, int]] = []
        self.bytes = 0
        self._next: tuple[int, int] | None = None
        raw.say(
            Read(
                self.request,
                stream,
                start,
                value,
                how.get("credit", 1 << 30),
                how.get("follow", False),
                how.get("forwarded", False),
            )
        )

    async def event(self) -> ReaderEvent:
        """The next event except BEHIND; entries before it are collected."""
        while True:
            heard = await self.raw.hear(ANYTHING, request=self.request)
            if isinstance(heard, Entries):
                self._take(heard)
            elif getattr(heard, "kind", None) is not Kind.BEHIND:
                assert isinstance(heard, ReaderEvent), heard
                return heard

    async def until(self, count: int) -> None:
        """Collect until there are this many records."""
        while len(self.records) < count:
            self._take(await self.raw.hear(Entries, request=self.request))

    def _take(self, entries: Entries) -> None:
        if self._next is not None and entries.segment == self._next[0]:
            assert entries.first_entry >= self._next[1], "entries come once, in order"
        self._next = (entries.segment, entries.first_entry + len(entries.lengths))
        self.bytes += len(entries.body)
        at = 0
        for i, length in enumerate(entries.lengths):
            for record in decode_entry(entries.body[at : at + length]):
                if not record.flags & (CONTROL | END_OF_STREAM) and (i or record.slot >= entries.skip):
                    self.records.append(bytes(record.payload))
                    self.places.append((entries.segment, entries.first_entry + i, record.slot))
            at += length


async def filled(
    local: LocalProxies, raw: Raw, count: int = 30, *, settings: Mapping[str, object] = MEMORY
) -> RawProducer:
    """Three segments of records "0", "1", ..., one a batch, txid 1000 + n."""
    await raw.ask(Create, "orders", settings)
    producer = RawProducer(raw, "orders")
    for n in range(count):
        if n and n % (count // 3) == 0:
            await raw.ask(HandOver, "orders")
        await producer.write([b"%d" % n], txid=1000 + n)
    return producer


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, end)]


async def test_a_read_begins_where_it_was_asked_to(local: LocalProxies) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with Raw(writer.address) as raw, Raw(reader.address) as rr:
        await filled(local, raw)
        whole = Reading(rr, "orders", Start.START)
        assert (await whole.event()).kind is Kind.STARTED
        assert (await whole.event()).kind is Kind.CAUGHT_UP
        assert whole.records == numbers(0, 30)
        for n in (0, 9, 10, 17, 29):
            positions: list[tuple[Start, Any]] = [(Start.DLSN, whole.places[n]), (Start.TXID, 1000 + n)]
            for start, value in positions:
                some = Reading(rr, "orders", start, value)
                started = await some.event()
                assert tuple(started.detail["dlsn"]) == whole.places[n]
                assert (await some.event()).kind is Kind.CAUGHT_UP
                assert some.records == numbers(n, 30)
        positions = [(Start.TAIL, None), (Start.TXID, 5000), (Start.TIME, 2**62)]
        for start, value in positions:
            none = Reading(rr, "orders", start, value)
            told = [Kind.STARTED] if start is Start.TAIL else []
            assert [(await none.event()).kind for _ in range(len(told) + 1)] == [*told, Kind.CAUGHT_UP]
            assert none.records == []


async def test_a_saved_position_is_read_in_its_own_stream_only(local: LocalProxies) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with dlog.connect(f"dlog://{writer.address},{reader.address}") as client:
        await client.create("orders", store="memory")
        for n in range(4):
            await client.append("orders", b"%d" % n)
        saved = [str(record.position) async for record in client.read("orders")]
        assert [r.payload async for r in client.read("orders", saved[1])] == [b"2", b"3"]
        assert [r.payload async for r in client.read("orders", saved[3])] == []
        with pytest.raises(PositionBeyondEndError) as caught:
            _ = [r async for r in client.read("orders", "99:0:0")]
        last = dlog.at_dlsn(saved[3]).value
        assert caught.value.end == f"{last[0]}:{last[1] + 1}:0"
        await client.delete("orders")
        await client.create("orders", store="memory")
        for n in range(4):
            await client.append("orders", b"new %d" % n)
        with pytest.raises(StreamRecreatedError):
            _ = [r async for r in client.read("orders", saved[1])]


async def test_a_truncation_holds_within_the_open_segment(local: LocalProxies) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with dlog.connect(f"dlog://{writer.address},{reader.address}") as client:
        await client.create("orders", store="memory")
        places = [await client.append("orders", b"%d" % n) for n in range(4)]
        assert await client.truncate("orders", places[2]) == places[2]
        assert [r.payload async for r in client.read("orders")] == [b"2", b"3"]
        assert [r.payload async for r in client.read("orders", places[2])] == [b"2", b"3"]
        with pytest.raises(TruncatedError):
            _ = [r async for r in client.read("orders", places[1])]
        with pytest.raises(PositionBeyondEndError):
            await client.truncate("orders", f"{places[3].segment}:{places[3].entry + 9}:0")
        await client.hand_over("orders")
        await client.append("orders", b"4")
        assert [r.payload async for r in client.read("orders")] == [b"2", b"3", b"4"]


async def test_a_follower_without_a_read_proxy_does_not_cross_into_the_next_stream_of_the_name(
    local: LocalProxies,
) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with dlog.connect(f"dlog://{writer.address},{reader.address}") as client:
        await client.create("orders", store="memory")
        await client.append("orders", b"old")
        following = client.read("orders", follow=True)
        assert (await anext(following)).payload == b"old"
        await reader.drain()
        await client.delete("orders")
        await client.create("orders", store="memory")
        for n in range(3):
            await client.append("orders", b"new %d" % n)
        await local.read_proxy()
        with pytest.raises(StreamRecreatedError):
            await anext(following)


async def test_the_store_is_asked_for_what_is_new_at_the_tail_only_if_it_is_much(
    local: LocalProxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner sends few entries along with its LAC; the first LAC only shows how far the segment is confirmed."""
    asked: list[int] = []
    read = MemoryReader.read

    async def noted(reader: MemoryReader, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
        asked.append(first)
        return await read(reader, first, last, max_bytes)

    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with Raw(writer.address) as raw, Raw(reader.address) as rr:
        await raw.ask(Create, "orders", MEMORY)
        producer = RawProducer(raw, "orders")
        await producer.write([b"before"])
        tail = Reading(rr, "orders", Start.TAIL, follow=True)
        assert [(await tail.event()).kind for _ in range(2)] == [Kind.STARTED, Kind.CAUGHT_UP]
        await producer.write([b"1"])
        await tail.until(1)
        monkeypatch.setattr(MemoryReader, "read", noted)
        for count in range(2, 11):
            await producer.write([b"%d" % count])
            await tail.until(count)
        assert asked == []
        large = bytes(ENTRIES_BYTES_MAX)
        await producer.write([large])
        await tail.until(11)
        assert len(asked) == 1
        assert tail.records == [*numbers(1, 11), large]


async def test_what_was_acknowledged_before_the_open_is_read(local: LocalProxies) -> None:
    """Without follow a read ends at the tail; the owner says where that is, so no acknowledged record is missed."""
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with Raw(writer.address) as raw, Raw(reader.address) as rr:
        await raw.ask(Create, "orders", MEMORY)
        producer = RawProducer(raw, "orders")
        for n in range(60):
            if n % 20 == 19:
                await raw.ask(HandOver, "orders")
            await producer.write([b"%d" % n])
            read = Reading(rr, "orders", Start.START)
            while (await read.event()).kind is not Kind.CAUGHT_UP:
                pass
            assert read.records == numbers(0, n + 1)


async def test_followers_share_one_upstream_and_one_fetch(local: LocalProxies, monkeypatch: Any) -> None:
    fetched: list[int] = []
    real = MemoryReader.read

    async def read(self: MemoryReader, first: Any, last: Any, max_bytes: int) -> list[bytes]:
        payloads = await real(self, first, last, max_bytes)
        fetched.extend(range(first, first + len(payloads)))
        return payloads

    monkeypatch.setattr(MemoryReader, "read", read)
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with Raw(writer.address) as raw, Raw(reader.address) as rr:
        await raw.ask(Create, "orders", MEMORY)
        producer = RawProducer(raw, "orders")
        await producer.write([b"0"])
        followers = [Reading(rr, "orders", Start.START, follow=True) for _ in range(50)]
        for follower in followers:
            await follower.until(1)
        for n in range(1, 20):
            await producer.write([b"%d" % n])
        for follower in followers:
            await follower.until(20)
            assert follower.records == numbers(0, 20)
        assert len(writer.proxy.tails) == 1  # type: ignore[union-attr]
        assert sorted(fetched) == sorted(set(fetched)), "an entry is fetched once"


async def test_a_follower_goes_on_through_hand_overs_kills_and_the_end(local: LocalProxies) -> None:
    one, two = await local.write_proxy(), await local.write_proxy()
    reader = await local.read_proxy()
    async with Raw(reader.address) as rr:
        async with Raw(one.address) as raw:
            await raw.ask(Create, "orders", MEMORY)
            location = (await raw.ask(GetOwner, "orders", None))["location"]  # type: ignore[index]
        owner, other = (one, two) if location == one.address else (two, one)
        follower = Reading(rr, "orders", Start.START, follow=True)
        async with Raw(owner.address) as raw:
            producer = RawProducer(raw, "orders")
            for n in range(10):
                await producer.write([b"%d" % n])
            await follower.until(10)
            await owner.kill()
        async with Raw(other.address) as raw:
            assert await raw.ask(GetOwner, "orders", owner.address)
            producer = RawProducer(raw, "orders")
            for n in range(10, 20):
                await producer.write([b"%d" % n])
            await follower.until(20)
            await raw.ask(HandOver, "orders")
            for n in range(20, 30):
                await producer.write([b"%d" % n])
            await follower.until(30)
            await raw.ask(Seal, "orders")
        while (await follower.event()).kind is not Kind.END_OF_STREAM:
            pass
        assert follower.records == numbers(0, 30)


async def test_nothing_is_sent_beyond_the_credit_but_the_entry_that_exceeds_it(local: LocalProxies) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with Raw(writer.address) as raw, Raw(reader.address) as rr:
        await raw.ask(Create, "orders", MEMORY)
        producer = RawProducer(raw, "orders")
        for _ in range(20):
            await producer.write([b"x" * 1000])
        read = Reading(rr, "orders", Start.START, credit=2500)
        assert (await read.event()).kind is Kind.STARTED
        await read.until(2)
        assert await rr.ask(Stat, "orders")
        assert not [heard for heard in rr.heard if isinstance(heard, Entries)], "the credit is used up"
        assert read.bytes <= 2500 + 1300
        rr.say(Credit(read.request, 1 << 20))
        await read.until(20)


async def test_a_reader_that_does_not_take_its_entries_costs_little(local: LocalProxies) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy(cache_bytes_max=1 << 20)
    async with Raw(writer.address) as raw, Raw(reader.address) as slow, Raw(reader.address) as quick:
        await raw.ask(Create, "orders", MEMORY)
        producer = RawProducer(raw, "orders")
        for _ in range(100):
            await producer.write([b"x" * 500_000])
        assert slow.transport is not None
        slow.transport.pause_reading()
        stuck = [Reading(slow, "orders", Start.START) for _ in range(20)]
        for _ in range(3):
            read = Reading(quick, "orders", Start.START)
            while (await read.event()).kind is not Kind.CAUGHT_UP:
                pass
            assert len(read.records) == 100
        assert reader.proxy.cache.bytes <= 1 << 20  # type: ignore[union-attr]
        unsent = max(connection.unsent_bytes for connection in reader.proxy.listener.connections)
        assert 0 < unsent < 20 * 600_000 + (1 << 20), "at most one answer for each reader that is stuck"
        slow.transport.resume_reading()
        for read in stuck:
            await read.until(100)


async def test_a_truncated_place_says_what_is_left_and_a_deleted_stream_ends_its_readers(local: LocalProxies) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with Raw(writer.address) as raw, Raw(reader.address) as rr:
        await filled(local, raw)
        follower = Reading(rr, "orders", Start.START, follow=True)
        await follower.until(30)
        await raw.ask(Truncate, "orders", (2, 0, 0))
        late = Reading(rr, "orders", Start.DLSN, (1, 3, 0))
        event = await late.event()
        assert (event.kind, event.detail) == (Kind.TRUNCATED, {"first": [2, 0, 0]})
        rest = Reading(rr, "orders", Start.START)
        while (await rest.event()).kind is not Kind.CAUGHT_UP:
            pass
        assert rest.records == numbers(10, 30)
        await raw.ask(Delete, "orders")
        while (event := await follower.event()).kind is not Kind.DELETED:
            assert event.kind in (Kind.STARTED, Kind.CAUGHT_UP)
        gone = Reading(rr, "orders", Start.START)
        assert (await gone.event()).kind is Kind.DELETED
        assert reader.proxy.cache.bytes == 0  # type: ignore[union-attr]


async def test_a_damaged_entry_is_named_and_those_before_it_are_delivered(local: LocalProxies) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with Raw(writer.address) as raw, Raw(reader.address) as rr:
        await filled(local, raw)
        segment = list(local.state.segments.values())[1]
        at = next(i for i, payload in enumerate(segment.entries) if b"13" in payload)
        segment.entries[at] = segment.entries[at][:-1] + b"?"
        read = Reading(rr, "orders", Start.START)
        assert (await read.event()).kind is Kind.STARTED
        event = await read.event()
        assert event.kind is Kind.DAMAGED
        assert event.detail["dlsn"][:2] == [2, at]
        assert read.records == numbers(0, 13)
        after = Reading(rr, "orders", Start.DLSN, (3, 0, 0))
        while (await after.event()).kind is not Kind.CAUGHT_UP:
            pass
        assert after.records == numbers(20, 30)


async def test_a_segment_that_its_store_removed_is_told_as_truncated_and_the_rest_is_read(local: LocalProxies) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with Raw(writer.address) as raw, Raw(reader.address) as rr:
        producer = await filled(local, raw)
        local.state.remove(list(local.state.segments)[1])
        for start, value, before in ((Start.START, None, 10), (Start.DLSN, (1, 8, 0), 2), (Start.TXID, 1012, 0)):
            read = Reading(rr, "orders", start, value)
            while (event := await read.event()).kind is Kind.STARTED:
                pass
            assert (event.kind, event.detail) == (Kind.TRUNCATED, {"first": [3, 0, 0]})
            assert read.records == numbers(10 - before, 10)
        rest = Reading(rr, "orders", Start.DLSN, (3, 0, 0))
        while (await rest.event()).kind is not Kind.CAUGHT_UP:
            pass
        assert rest.records == numbers(20, 30)

        # the segment in progress, with the producer table: the next owner ends it, and goes on
        local.state.remove(list(local.state.segments)[2])
        await writer.kill()
        heir = await local.write_proxy()
        async with Raw(heir.address) as again:
            producer.raw, producer.sequence = again, 29
            refused = await producer.write([b"29"], retry=True)
            assert isinstance(refused, Failed)
            assert (refused.code, refused.outcome_unknown) == (535, True)
            assert isinstance(await RawProducer(again, "orders").write([b"first"]), Failed), "it may have been written"
            fresh = RawProducer(again, "orders")
            fresh.since = (4, 0, 0)
            assert isinstance(await fresh.write([b"next"]), Written)
            last = Reading(rr, "orders", Start.DLSN, (3, 0, 0))
            while (event := await last.event()).kind is Kind.STARTED:
                pass
            assert (event.kind, event.detail) == (Kind.TRUNCATED, {"first": [4, 0, 0]})
            rest = Reading(rr, "orders", Start.DLSN, (4, 0, 0))
            while (await rest.event()).kind is not Kind.CAUGHT_UP:
                pass
            assert rest.records == [b"next"]


async def test_a_stream_is_served_by_one_proxy_unless_its_reader_insists(local: LocalProxies) -> None:
    writer = await local.write_proxy()
    one, two = await local.read_proxy(), await local.read_proxy()
    async with Raw(writer.address) as raw, Raw(one.address) as first, Raw(two.address) as second:
        await filled(local, raw)
        moved: list[str] = []
        for rr in (first, second):
            event = await Reading(rr, "orders", Start.START).event()
            if event.kind is Kind.MOVED:
                moved.append(event.detail["location"])
        assert len(moved) == 1
        assert moved[0] in (one.address, two.address)
        away = first if moved[0] == two.address else second
        read = Reading(away, "orders", Start.START, forwarded=True)
        while (await read.event()).kind is not Kind.CAUGHT_UP:
            pass
        assert read.records == numbers(0, 30)
        other = await Reading(raw, "orders", Start.START).event()
        assert other.detail["location"] == moved[0], "a write proxy knows the way too"


async def test_questions_for_a_write_proxy_are_handed_on_and_batches_sent_there(local: LocalProxies) -> None:
    reader = await local.read_proxy()
    async with Raw(reader.address) as rr:
        nobody = await rr.ask(GetOwner, "orders", None)
        assert isinstance(nobody, Failed)
        assert nobody.code == 515
        writer = await local.write_proxy()
        assert await rr.ask(Create, "orders", MEMORY)
        told = await rr.ask(GetOwner, "orders", None)
        assert isinstance(told, dict)
        assert told["location"] == writer.address
        assert reader.address in told["proxies"]
        refused = await RawProducer(rr, "orders").write([b"x"])
        assert isinstance(refused, Failed)
        assert (refused.code, refused.location) == (302, writer.address)
        exists = await rr.ask(Create, "orders", MEMORY)
        assert isinstance(exists, Failed)
        assert exists.code == 522
        assert await rr.ask(Seal, "orders") == {}


async def test_readers_are_bounded_in_number(local: LocalProxies) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy(readers_per_connection_max=3, readers_max=5)
    async with Raw(writer.address) as raw, Raw(reader.address) as one, Raw(reader.address) as two:
        await filled(local, raw, 3)
        readers = [Reading(one, "orders", Start.START, follow=True) for _ in range(3)]
        for read in readers:
            await read.until(3)
        one.say(Read(9, "orders", Start.START, None, 1, True))
        assert (await one.hear(Failed, request=9)).code == 517
        more = [Reading(two, "orders", Start.START, follow=True) for _ in range(2)]
        for read in more:
            await read.until(3)
        two.say(Read(9, "orders", Start.START, None, 1, True))
        assert (await two.hear(Failed, request=9)).code == 517
