"""Streams that Spark reads and writes."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from dlog.client.sync import SyncClient
from tests.integration.cli.up import Up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[int, int, int, int, bytes]


class Lake:
    """Streams of the cluster, written by the client and read by Spark."""

    def __init__(self, cluster: Up, client: SyncClient, spark: SparkSession) -> None:
        self.client = client
        self.spark = spark
        self.zookeeper = cluster.running.zookeeper
        self.namespace = cluster.running.namespace

    def create(self, **settings: Any) -> str:
        name = f"s-{uuid.uuid4().hex[:10]}"
        self.client.create(name, **settings)
        return name

    def read(self, stream: str | None, schema: str = "", **options: Any) -> DataFrame:
        reader = self.spark.read.format("dlog").option("zookeeper", self.zookeeper).option("namespace", self.namespace)
        if stream is not None:
            reader = reader.option("stream", stream)
        for key, value in options.items():
            reader = reader.option(key, value)
        return (reader.schema(schema) if schema else reader).load()

    def rows(self, frame: DataFrame) -> list[Row]:
        """Rows in the order of the log."""
        got = frame.select("segment", "entry", "slot", "txid", "value").orderBy("segment", "entry", "slot").collect()
        return [(r.segment, r.entry, r.slot, r.txid, bytes(r.value)) for r in got]

    def truth(self, stream: str) -> list[Row]:
        """The records that dlog's own reader reads."""
        return [(*record.dlsn, record.txid, record.payload) for record in self.client.read(stream, follow=False)]
