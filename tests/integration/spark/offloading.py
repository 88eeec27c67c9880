"""Moves segments of streams to cold storage and back, and shows their state in metadata, ZooKeeper, bookies, the
storage, a client and Spark."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from dlog.client.sync import SyncClient
from dlog.errors import LedgerNotFoundError
from dlog.io.settings import load
from dlog.io.stores import StoresOptions
from dlog.io.zookeeper_protocol import NoNodeError
from dlog.model.ids import LedgerId, stream_name
from dlog.model.segment import Segment, StreamKey, StreamMetadata
from dlog.spark.cluster_connection import Cluster, reach
from dlog.spark.jobs.frame import Report, Selection
from dlog.spark.jobs.offload import offload
from dlog.spark.jobs.offload_copy import cold_store
from dlog.spark.jobs.offload_records import OffloadRecords, StoredRecord
from dlog.spark.jobs.offload_work import OffloadOptions, read_stream
from dlog.stores.cold.options import ColdOptions
from dlog.stores.object_storage.locations import parse_root
from tests.integration.cli.up import Up
from tests.integration.storage import Storage, need_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[int, int, int, int, bytes]  # DLSN, txid, payload
HOUR_S = 3600.0


class Yard:
    """A cluster, and one kind of cold storage that its proxies reach."""

    def __init__(self, cluster: Up, client: SyncClient, spark: SparkSession, kept: Storage) -> None:
        self.cluster = cluster
        self.client = client
        self.spark = spark
        self.kept = kept
        self.zookeeper = cluster.running.zookeeper
        self.namespace = cluster.running.namespace
        self.cold = load(ColdOptions, "cold", None, {}, environ=kept.environment)
        self._reach = reach(self.zookeeper, self.namespace, StoresOptions(cold=self.cold))

    def ask(self, work: Callable[[Cluster], Any]) -> Any:
        return self._reach.ask(work)

    # ---- actions ----------------------------------------------------------------------------------------------------

    def written(self, segments: int = 5) -> str:
        """A stream with this many completed segments, and an open one."""
        rng = random.Random(segments)
        name = f"o-{uuid.uuid4().hex[:10]}"
        self.client.create(name)
        txid = 0
        for segment in range(segments + 1):
            for size in (0, 1, 5000, 20, 200, rng.choice((0, 20, 900))):
                txid += rng.choice((1, 10))
                count = rng.choice((1, 3, 40))
                batch = [b"%d.%06d|" % (segment, txid) + rng.randbytes(size) for _ in range(count)]
                self.client.append_batch(name, batch, txid=txid)
            if segment < segments:
                self.client.hand_over(name)  # its next owner begins another one
        assert [s.completed for s in self.segments(name)] == [True] * segments + [False]
        return name

    def options(self, **changes: Any) -> OffloadOptions:
        return OffloadOptions(**{"to": self.kept.root, "older_than_s": 0.0, "grace_s": HOUR_S, **changes})

    def offload(self, *streams: str, pattern: str = "", fails: bool = False, **changes: Any) -> Report:
        place = Selection(zookeeper=self.zookeeper, namespace=self.namespace, streams=streams, pattern=pattern)
        report = offload(self.spark, place, self.options(**changes))
        assert json.loads(report.as_json())["verdict"] == report.verdict.name.lower()
        assert bool(report.failures) == fails, report.failures
        return report

    # ---- views ------------------------------------------------------------------------------------------------------

    def value(self, stream: str) -> StreamMetadata:
        found = self.ask(partial(read_stream, name=stream))
        assert isinstance(found, StreamMetadata)
        return found

    def segments(self, stream: str) -> list[Segment]:
        return list(self.value(stream).segments)

    def sealed(self, stream: str) -> list[Segment]:
        return [segment for segment in self.segments(stream) if segment.completed]

    def cold_segments(self, stream: str) -> list[Segment]:
        return [segment for segment in self.segments(stream) if segment.store == "cold"]

    def has_ledger(self, place: str) -> bool:
        async def look(cluster: Cluster) -> bool:
            try:
                await cluster.ledgers.metadata_of(LedgerId(int(place)))
            except LedgerNotFoundError:
                return False
            return True

        return bool(self.ask(look))

    def records(self, stream: str) -> list[StoredRecord]:
        """Records of segments on their way."""

        async def look(cluster: Cluster) -> list[StoredRecord]:
            return await OffloadRecords(cluster, self.namespace).of(stream)

        found: list[StoredRecord] = self.ask(look)
        return found

    def znodes(self, stream: str) -> list[str]:
        """Every remaining znode of it, with marks of sweeping."""

        async def look(cluster: Cluster) -> list[str]:
            path = f"{self.namespace}/.offloaded/{stream}"
            try:
                return (await cluster.metadata.zookeeper.children(path, fresh=True))[0]
            except NoNodeError:
                return []

        found: list[str] = self.ask(look)
        return found

    def objects(self, stream: str) -> list[str]:
        """Paths of the objects of a stream that exist."""

        async def look(cluster: Cluster) -> list[str]:
            found = cold_store(cluster).objects.list(parse_root(self.kept.root))
            return sorted([one.location async for one in found if f"/{stream}/" in one.location])

        found: list[str] = self.ask(look)
        return found

    def unfinished(self, stream: str) -> list[str]:
        async def look(cluster: Cluster) -> list[str]:
            found = cold_store(cluster).objects.unfinished(parse_root(self.kept.root))
            return [one.location async for one in found if f"/{stream}/" in one.location]

        found: list[str] = self.ask(look)
        return found

    def rows(self, stream: str) -> list[Row]:
        """Rows that dlog's own reader reads."""
        return [(*record.dlsn, record.txid, record.payload) for record in self.client.read(stream)]

    def frame(self, stream: str, **options: Any) -> DataFrame:
        reader = self.spark.read.format("dlog").options(zookeeper=self.zookeeper, namespace=self.namespace)
        for key, value in self.kept.environment.items():
            reader = reader.option(f"cold.{key.removeprefix('DLOG_COLD_').lower()}", value)
        return reader.option("stream", stream).options(**options).load()

    def spark_rows(self, stream: str, **options: Any) -> list[Row]:
        frame = self.frame(stream, **options).select("segment", "entry", "slot", "txid", "value")
        return sorted((r.segment, r.entry, r.slot, r.txid, bytes(r.value)) for r in frame.collect())

    # ---- checks -----------------------------------------------------------------------------------------------------

    def check_over(self, stream: str, rows: list[Row], hot: dict[int, str]) -> None:
        """Check that an offload is complete: every segment but the newest is in its one object, no ledger of theirs and
        no record is left, and all readers read the same as before. hot: their former ledgers, by segment."""
        moved = self.cold_segments(stream)
        assert [s.number for s in moved] == [s.number for s in self.sealed(stream)][: len(moved)]
        assert self.objects(stream) == sorted(segment.name for segment in moved), "not one more, not one less"
        assert self.unfinished(stream) == []
        assert [number for number in (s.number for s in moved) if self.has_ledger(hot[number])] == []
        assert self.znodes(stream) == []
        assert self.rows(stream) == rows
        assert self.spark_rows(stream) == rows

    def hot(self, stream: str) -> dict[int, str]:
        """Ledgers of completed segments, by number."""
        return {int(segment.number): segment.name for segment in self.sealed(stream) if segment.store == "ledger"}

    def replace_ledger(self, stream: str, number: int, place: str, **changes: Any) -> None:
        """Let metadata name another ledger, which no owner would do. The stream must have no owner."""
        from dataclasses import replace

        async def change(cluster: Cluster) -> None:
            key = StreamKey(stream_name(stream))
            seen: Any = await cluster.metadata.read(key)
            segment = next(s for s in seen.value.segments if s.number == number)
            value = seen.value.with_segment(replace(segment, name=place, **changes))
            outcome = await cluster.metadata.compare_and_set(key, value, seen.version)
            assert type(outcome).__name__ == "Versioned", outcome

        self.ask(change)


def yard_of(kind: str, request: pytest.FixtureRequest) -> Yard:
    """Skips, or fails in CI, where this kind of storage cannot be started."""
    need_storage(kind)
    cluster, client, spark, storages = map(
        request.getfixturevalue, ("cold_cluster", "cold_client", "spark", "storages")
    )
    return Yard(cluster, client, spark, storages[kind])
