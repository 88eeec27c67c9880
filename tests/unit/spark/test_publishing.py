"""Tests what a sink reads from the log (whether a batch is in it, in any store), in which store it stages, and what the
error of a partly written batch says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dlog.errors import (
    DLogError,
    EndOfStreamError,
    InvalidRequestError,
    MetadataUnavailableError,
    ProducerUnknownError,
    RequestTimeoutError,
)
from dlog.log.staging import StagedSet, StagePacker
from dlog.machine import Versioned
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName, Txid
from dlog.model.segment import Segment, StoreSettings, StreamKey, StreamMetadata, StreamSettings
from dlog.model.sink import SinkBatch, SinkRecord
from dlog.spark import publishing
from dlog.spark.cluster_connection import Cluster
from dlog.spark.publishing import TaskOutput, _Publishing
from dlog.spark.sink_rows import Row
from dlog.spark.stages import Staged, Stager
from dlog.stores.contract import MisconfiguredError, SegmentRef
from dlog.wire.entry import build_record_set
from tests.memory_store import MemoryStore

NAME = StreamName("s")
BATCH = SinkBatch("sink", 0, "q", 4)


class Log:
    """A stream of one completed segment, on bookies or in cold storage; its entries are those of `batch`."""

    def __init__(self) -> None:
        self.hot, self.cold = MemoryStore(), MemoryStore()
        self.value = StreamMetadata(name=NAME)
        self.on_read: Callable[[], None] = lambda: None

    async def write(self, store: MemoryStore, batch: SinkBatch) -> str:
        packer = StagePacker(batch.producer)
        writer = await store.create(NAME, SegmentNumber(1), Epoch(0), ())
        for number in range(3):
            parts = packer.entry([StagedSet(number, 1, build_record_set([b"x"]))], 1)
            await writer.append(EntryId(number), parts)
        await writer.seal()
        return writer.name

    def list(self, store: str, place: str) -> None:
        segment = Segment(
            number=SegmentNumber(1),
            name=place,
            store=store,
            first_txid=Txid(0),
            completed=True,
            last_entry=EntryId(2),
        )
        self.value = self.value.with_segment(segment).with_sink(SinkRecord(BATCH, (1, 0)))

    async def read(self, key: StreamKey) -> Versioned:
        value = self.value
        self.on_read()
        return Versioned(value, 1)

    async def is_in_log(self) -> bool:
        cluster = Cluster(cast(Any, self), cast(Any, None), {"ledger": self.hot, "cold": self.cold})
        publishing = _Publishing(cluster, cast(Any, None), cast(Any, None), NAME, BATCH, BATCH)
        return await publishing._is_in_log(ProducerUnknownError("forgotten", since=(2, 0)))


async def test_a_batch_is_found_in_segments_that_went_cold() -> None:
    for batch in (BATCH, replace(BATCH, batch=3)):
        log = Log()
        log.list("cold", await log.write(log.cold, batch))
        assert await log.is_in_log() is (batch == BATCH)


async def test_a_batch_is_found_in_a_segment_that_is_moved_while_it_is_looked_for() -> None:
    log = Log()
    place = await log.write(log.hot, BATCH)
    log.list("ledger", place)
    cold = await log.write(log.cold, BATCH)
    await log.hot.delete(SegmentRef(NAME, SegmentNumber(1), place))
    log.on_read = lambda: log.list("cold", cold)
    assert await log.is_in_log()


class Registry:
    """Metadata of one stream that writes to the store `first`, and the registrations of its stages."""

    def __init__(self) -> None:
        self.zookeeper = self
        self.registered: dict[str, Any] = {}

    async def read(self, key: StreamKey) -> Versioned:
        return Versioned(StreamMetadata(name=key.stream, settings=StreamSettings(store="first")), 1)

    async def create(self, path: str, data: bytes, *, parents: bool) -> None:
        self.registered[path] = json.loads(data)


class _Full(MemoryStore):
    """A store without room for another segment."""

    def check_capacity(self, settings: StoreSettings) -> None:
        raise InvalidRequestError("not enough bookies")


async def test_a_stage_is_not_put_where_there_is_no_room() -> None:
    first, second, third = MemoryStore(), _Full(), MemoryStore()
    first.capabilities = replace(first.capabilities, takes_stages=False)
    cluster = Cluster(cast(Any, None), cast(Any, None), {"first": first, "second": second, "third": third})
    assert cluster.store_for_stages("first") is third
    del cast(dict[str, Any], cluster.stores)["third"]
    with pytest.raises(MisconfiguredError, match=r"none of the stores takes stages.*\(not enough bookies\)"):
        cluster.store_for_stages("first")
    with pytest.raises(MisconfiguredError, match="DLOG_KAFKA_TOPICS"):
        cluster.store_for_stages("kafka")


async def _stage(*takes_stages: bool) -> tuple[Staged, Registry, list[MemoryStore]]:
    registry, stores = Registry(), [MemoryStore() for _ in takes_stages]
    for store, name, takes in zip(stores, ("first", "second", "third"), takes_stages, strict=False):
        store.name = name
        store.capabilities = replace(store.capabilities, takes_stages=takes)
    cluster = Cluster(cast(Any, registry), cast(Any, None), {store.name: cast(Any, store) for store in stores})
    stager = Stager(cluster, "/ns", BATCH)
    await stager.entry(NAME, [StagedSet(0, 1, build_record_set([b"row"]))], has_own_txids=False)
    (staged,) = await stager.finish()
    return staged, registry, stores


async def test_stages_lie_in_the_first_store_that_takes_them() -> None:
    for takes_stages, store in (((True, True), 0), ((False, True, True), 1), ((False, False, True), 2)):
        staged, registry, stores = await _stage(*takes_stages)
        assert staged.store == stores[store].name
        assert [len(one.state.segments) for one in stores] == [int(one is stores[store]) for one in stores]
        assert [told["store"] for told in registry.registered.values()] == [staged.store]


async def test_a_sink_needs_a_store_that_takes_stages() -> None:
    with pytest.raises(MisconfiguredError, match=r"none of the stores takes stages.*stores=first, second"):
        await _stage(False, False)


class Streams:
    """Clients of streams that take every batch, except those in `refusing`."""

    def __init__(self, refusing: dict[str, DLogError]) -> None:
        self.refusing = refusing
        self.written: list[str] = []
        self.sweeps = 0

    async def __aenter__(self) -> Streams:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def incarnation(self, stream: str) -> str:
        return "i"

    async def append_batch(self, stream: str, values: list[bytes], *args: object, **kw: object) -> Any:
        if stream in self.refusing:
            raise self.refusing[stream]
        self.written.append(stream)
        return SimpleNamespace(count=len(values), duplicate=False)

    append_once = append_batch

    async def publish(self, monkeypatch: pytest.MonkeyPatch, *, once: bool) -> dict[str, int]:
        """Publish one row for each of the streams a, b and c. The metadata is not reachable for sweeps."""

        async def proxies_of(*_: object) -> Streams:
            return self

        async def sweep(*_: object) -> None:
            self.sweeps += 1
            raise MetadataUnavailableError("no ZooKeeper")

        monkeypatch.setattr(publishing, "proxies_of", proxies_of)
        monkeypatch.setattr(publishing, "sweep", sweep)
        options = SimpleNamespace(fetch_timeout_s=1.0, append_bytes=1000, namespace="/n", stage_keep_s=1.0)
        task = TaskOutput(0, BATCH, inline={name: [Row(None, b"1")] for name in "abc"})
        return await publishing.publish(cast(Any, None), cast(Any, options), [task], once=once)


@pytest.mark.parametrize(
    ("refusal", "once", "step"),
    [
        (EndOfStreamError("sealed"), False, "write only the rows of the other streams again"),
        (RequestTimeoutError("no reply"), False, "check whether the failed stream has its rows"),
        (EndOfStreamError("sealed"), True, "write it again with the same number"),
    ],
)
async def test_an_error_behind_the_first_stream_names_those_that_are_written(
    monkeypatch: pytest.MonkeyPatch, refusal: DLogError, once: bool, step: str
) -> None:
    streams = Streams({"b": refusal})
    with pytest.raises(type(refusal)) as caught:
        await streams.publish(monkeypatch, once=once)
    assert streams.written == ["a"]
    assert caught.value.outcome_unknown and step in caught.value.message
    assert f"written=a failed=b not_tried=c: {refusal.message}" in str(caught.value)
    assert streams.sweeps == (not once and not refusal.outcome_unknown)


async def test_an_error_of_the_first_stream_says_that_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams({"a": EndOfStreamError("sealed")})
    with pytest.raises(EndOfStreamError, match=r"\Asealed\Z") as caught:
        await streams.publish(monkeypatch, once=False)
    assert streams.written == [] and not caught.value.outcome_unknown
