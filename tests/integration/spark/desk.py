"""Tables of streams."""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlog.client.sync import SyncClient
from tests.integration.cli.up import Up
from tests.integration.spark.drivers import Driver, driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dlog.spark.jobs.frame import Selection

Rows = list[tuple[int, int, int, int, bytes]]


class Desk:
    """Streams of the cluster, and tables of them in a directory of the test's own."""

    def __init__(self, cluster: Up, client: SyncClient, spark: SparkSession, room: Path) -> None:
        self.cluster = cluster
        self.client = client
        self.spark = spark
        self.room = room
        self.to, self.checkpoint = room / "table", room / "checkpoint"

    def stream(self) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.client.create(name, segment_bytes=70_000)
        return name

    def append(self, stream: str, count: int) -> None:
        for number in range(count):
            self.client.append_batch(stream, [b"%05d|%d" % (number, part) + b"x" * 400 for part in range(3)])

    def truth(self, stream: str) -> Rows:
        return [(*record.dlsn, record.txid, record.payload) for record in self.client.read(stream)]

    def rows(self, to: Path | None = None) -> Rows:
        frame = self.spark.read.parquet(str(to or self.to)).orderBy("segment", "entry", "slot")
        return [(r.segment, r.entry, r.slot, r.txid, bytes(r.value)) for r in frame.collect()]

    def selection(self, stream: str) -> Selection:
        from dlog.spark.jobs.frame import Selection

        running = self.cluster.running
        return Selection(zookeeper=running.zookeeper, namespace=running.namespace, streams=(stream,))

    def options(self, **given: Any) -> Any:
        from dlog.spark.jobs.table import TableOptions

        return TableOptions(**{"to": str(self.to), "checkpoint": str(self.checkpoint), **given})

    def run(self, stream: str, **given: Any) -> Any:
        from dlog.spark.jobs.table import table

        return table(self.spark, self.selection(stream), self.options(**given))

    def command(self, stream: str, *more: str) -> list[str]:
        paths = ["--to", str(self.to), "--checkpoint", str(self.checkpoint)]
        return ["pipeline", "table", "--stream", stream, *paths, "--master", "local[2]", "--json", *more]

    def driver(self, stream: str, *more: str) -> AbstractContextManager[Driver]:
        return driver(*self.command(stream, *more), directory=self.cluster.directory, room=self.room)
