"""What a sink reads from the log itself: whether a batch is in it, in whatever store its segments are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from dlog.errors import ProducerUnknownError
from dlog.log.staging import StagedSet, StagePacker
from dlog.machine import Versioned
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName, Txid
from dlog.model.segment import Segment, StreamKey, StreamMetadata
from dlog.model.sink import SinkBatch, SinkRecord
from dlog.spark.cluster_connection import Cluster
from dlog.spark.publishing import _Publishing
from dlog.stores.contract import SegmentRef
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
