"""Segments that move to cold storage and back while they are read: the reader goes on at the same DLSN."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dlog.io.objects import Objects
from dlog.model.ids import EntryId, StreamName
from dlog.model.segment import Segment, StreamKey, StreamMetadata
from dlog.spark.cluster_connection import Cluster
from dlog.spark.options import SourceOptions
from dlog.spark.planning import Range
from dlog.spark.reading import extents
from dlog.stores.cold.locations import ObjectName
from dlog.stores.cold.options import ColdOptions
from dlog.stores.cold.store import ColdStore
from dlog.stores.contract import SegmentNotFoundError, SegmentRef
from dlog.stores.object_storage.locations import folder_of, parse_root
from dlog.wire.proxy import Credit, MoveSegment, Start
from dlog.wire.proxy import ReaderEventKind as Kind
from tests.integration.proxies.local_proxies import LocalProxies
from tests.integration.proxies.local_proxies import local as open_local_proxies
from tests.integration.proxies.raw import Raw
from tests.integration.proxies.test_reading import Reading, filled, numbers
from tests.integration.stores.test_cold import bring
from tests.memory_store import MemoryStore

STREAM = StreamName("orders")


class Mover:
    """Moves segments of one stream between memory and objects in a directory."""

    def __init__(self, on: LocalProxies, raw: Raw, objects: Objects, root: Path) -> None:
        self.on = on
        self.raw = raw
        self.objects = objects
        self.root = parse_root(f"file://{root}")
        self.hot = MemoryStore(on.state)

    async def stream(self) -> StreamMetadata:
        seen: Any = await self.on.metadata.read(StreamKey(STREAM))
        value: StreamMetadata = seen.value
        return value

    async def segment(self, number: int) -> Segment:
        segment = (await self.stream()).segment(number)
        assert segment is not None
        return segment

    async def to_cold(self, number: int) -> Segment:
        """Copy a segment to an object and change its stream; returns the former segment."""
        hot = await self.segment(number)
        reader = await self.hot.open_reader(ref_of(hot), sealed_at=hot.last_entry)
        entries: list[bytes] = []
        while len(entries) <= hot.last_entry:
            entries += await reader.read(EntryId(len(entries)), hot.last_entry, 1 << 20)
        name = ObjectName(number, os.urandom(8).hex(), sum(map(len, entries)))
        place = folder_of(self.root, "cluster", "/dlog", STREAM).below(str(name))
        await bring(self.objects, place, entries, STREAM, number)
        await self.tell(hot, "cold", str(place))
        return hot

    async def tell(self, segment: Segment, store: str, place: str) -> None:
        asked = (STREAM, segment.number, segment.store, segment.name, store, place)
        assert isinstance(await self.raw.ask(MoveSegment, *asked), dict)


def ref_of(segment: Segment) -> SegmentRef:
    return SegmentRef(STREAM, segment.number, segment.name)


#: segments are moved from ledgers, so the memory store has their name here
LEDGERS = {"store": "ledger"}


def with_ledgers(local: LocalProxies, cold: ColdStore) -> None:
    local.other_stores |= {"ledger": MemoryStore(local.state), "cold": cold}


async def test_an_open_reader_goes_on_in_cold_storage_and_back(tmp_path: Path) -> None:
    options = ColdOptions(roots=(f"file://{tmp_path}",))
    async with open_local_proxies() as local, Objects(options) as objects, ColdStore(objects, options) as cold:
        with_ledgers(local, cold)
        writer = await local.write_proxy()
        reader = await local.read_proxy(cache_bytes_max=0, chunk_bytes=1)
        async with Raw(writer.address) as raw, Raw(reader.address) as rr:
            await filled(local, raw, settings=LEDGERS)
            mover = Mover(local, raw, objects, tmp_path)
            reading = Reading(rr, STREAM, Start.START, credit=1)
            assert (await reading.event()).kind is Kind.STARTED
            given = 0

            async def one_more() -> None:
                nonlocal given
                rr.say(Credit(reading.request, reading.bytes - given))
                given = reading.bytes
                await reading.until(len(reading.records) + 1)

            await one_more()
            hot = await mover.to_cold(1)
            await one_more()
            moved = await mover.segment(1)
            assert (hot.store, moved.store) == ("ledger", "cold")
            await mover.tell(moved, hot.store, hot.name)
            await cold.delete(ref_of(moved))
            await one_more()
            await mover.hot.delete(ref_of(await mover.to_cold(1)))
            await mover.hot.delete(ref_of(await mover.to_cold(2)))
            while len(reading.records) < 30:
                await one_more()
            assert reading.records == numbers(0, 30)
            assert reading.places == sorted(reading.places)
            assert (await reading.event()).kind is Kind.CAUGHT_UP


async def test_a_spark_task_reads_a_segment_where_it_was_moved_to_since_it_was_planned(tmp_path: Path) -> None:
    options = ColdOptions(roots=(f"file://{tmp_path}",))
    async with open_local_proxies() as local, Objects(options) as objects, ColdStore(objects, options) as cold:
        with_ledgers(local, cold)
        writer = await local.write_proxy()
        async with Raw(writer.address) as raw:
            await filled(local, raw, settings=LEDGERS)
            mover = Mover(local, raw, objects, tmp_path)
            value = await mover.stream()
            ranges: list[Range] = []
            for segment in value.segments[:2]:
                asked = Range(
                    stream=STREAM,
                    segment=segment.number,
                    name=segment.name,
                    store=segment.store,
                    first=0,
                    last=segment.last_entry,
                    incarnation=value.incarnation,
                )
                ranges.append(asked)
            cluster = Cluster(cast(Any, local.metadata), cast(Any, None), {"ledger": mover.hot, "cold": cold})
            source = SourceOptions(zookeeper="h:1", streams=(STREAM,), fetch_retries=0)
            planned = [payload async for _, _, got in extents(cluster, ranges, source) for payload in got]
            for number in (1, 2):
                await mover.hot.delete(ref_of(await mover.to_cold(number)))
            assert [payload async for _, _, got in extents(cluster, ranges, source) for payload in got] == planned
            other_incarnation = [replace(of, incarnation="another") for of in ranges]
            with pytest.raises(SegmentNotFoundError):
                _ = [payload async for payload in extents(cluster, other_incarnation, source)]
