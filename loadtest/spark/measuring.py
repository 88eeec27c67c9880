"""Measurements in Spark: scans into the `noop` sink, and micro-batches. The only file of this package that uses Spark.

Invariants:
- a figure names the number of its records, counted in the same pass;
- before that, every record of each source is verified.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, cast

from loadtest.spark.filling import RECORD_BYTES
from loadtest.systems.base import CannotRunError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCANNED, SMALL = "w18", "w18-small"
_METRICS_S = 10.0  # timeout for Spark's metrics of a query
BATCHES_FIRST = 5  # warm-up micro-batches, not counted
#: options of Spark's Kafka source for large fetches; the defaults are 1 MiB and 500 records
LARGE_FETCHES = {
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.max.poll.records": "10000",
}


class WrongRecordsError(CannotRunError):
    """A source returned other records than were written: it has no figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Locations of the records. connect: of the proxies. bootstrap: of Kafka, or "". room: a directory for files.
    region_bytes: payloads of the region in Kafka."""

    connect: str
    zookeeper: str
    namespace: str
    bootstrap: str
    jars: tuple[Path, ...]
    room: Path
    records: int
    region_bytes: int = 0
    cores: int = 2


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement. value: MB/s of payloads, or ms."""

    value: float
    records: int
    more: Mapping[str, Any] = field(default_factory=dict)


class Bench:
    """A session on local[cores] and its sources."""

    def __init__(self, where: Where) -> None:
        from dlog import spark as room

        self.where = where
        self.written = ""  # the stream that the next offload reads
        self._number = 0
        self.spark: SparkSession = room.session(
            "W18",
            **{
                "spark.master": f"local[{where.cores}]",
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.log.level": "ERROR",
                "spark.driver.memory": "3g",
                "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",  # for every source
                "spark.jars": ",".join(map(str, where.jars)),
            },
        )

    def close(self) -> None:
        self.spark.stop()

    def next_number(self) -> int:
        self._number += 1
        return self._number

    # ---- sources ----------------------------------------------------------------------------------------------------

    def dlog(self, columns: str = "") -> DataFrame:
        reader = self.spark.read.format("dlog").options(**self._dlog_options(SCANNED))
        if columns:
            reader = reader.schema(f"{columns} binary")
        return reader.load()

    def kafka(self, columns: str = "", *, tuned: bool = False) -> DataFrame:
        pieces = max(
            2 * self.where.cores, self.where.records * RECORD_BYTES >> 27
        )  # as many tasks as the dlog source has
        reader = self.spark.read.format("kafka").options(**self._kafka_options(SCANNED), minPartitions=pieces)
        frame = reader.options(**LARGE_FETCHES if tuned else {}).load()
        return frame.select(columns) if columns else frame

    def topic(self, name: str) -> DataFrame:
        """All rows of a topic of Kafka, with large fetches, in as many tasks as cores."""
        reader = self.spark.read.format("kafka").options(**self._kafka_options(name), minPartitions=self.where.cores)
        return reader.options(**LARGE_FETCHES).load()

    def parquet(self, columns: str = "") -> DataFrame:
        frame = self.spark.read.parquet(str(self.where.room / "parquet"))
        return frame.select(columns) if columns else frame

    def write_parquet(self) -> None:
        """Write the stream's rows, all columns, uncompressed."""
        self.dlog().write.option("compression", "none").parquet(str(self.where.room / "parquet"))

    def warm(self, stream: str) -> None:
        """Read a stream once, so that it is in the page cache."""
        reader = self.spark.read.format("dlog").options(**self._dlog_options(stream))
        reader.load().write.format("noop").mode("overwrite").save()

    def _dlog_options(self, stream: str) -> dict[str, str]:
        where = self.where
        return {"zookeeper": where.zookeeper, "namespace": where.namespace, "stream": stream}

    def _kafka_options(self, topic: str) -> dict[str, str]:
        if not self.where.bootstrap:
            raise CannotRunError("Kafka was not started")
        return {"kafka.bootstrap.servers": self.where.bootstrap, "subscribe": topic}

    # ---- verification -----------------------------------------------------------------------------------------------

    def verify(self, name: str, source: Callable[[str], DataFrame]) -> None:
        """Check the CRC of each record, and that each is there once. Raises WrongRecordsError."""
        row = (
            source("value")
            .selectExpr(
                "crc32(concat(substring(value, 25), substring(value, 5, 20))) = "
                "cast(conv(hex(substring(value, 1, 4)), 16, 10) as bigint) as good",
                "cast(conv(hex(substring(value, 9, 8)), 16, 10) as bigint) as sequence",
            )
            .selectExpr(
                "count(*) as n",
                "count_if(good) as good",
                "count(distinct sequence) as apart",
                "min(sequence) as first",
                "max(sequence) as last",
            )
            .collect()[0]
            .asDict()
        )
        n = self.where.records
        if row != {"n": n, "good": n, "apart": n, "first": 0, "last": n - 1}:
            raise WrongRecordsError(f"{name} returned other records than were written: records={n} found={row}")

    # ---- figures ----------------------------------------------------------------------------------------------------

    def scan(self, frame: DataFrame) -> Figure:
        """Read every row into the noop sink. Raises WrongRecordsError."""
        took_s, records = self.timed(frame)
        if records != self.where.records:
            raise WrongRecordsError(f"a scan returned {records} records of {self.where.records}")
        return Figure(records * RECORD_BYTES / took_s / 1e6, records)

    def timed(self, frame: DataFrame, to: Path | None = None) -> tuple[float, int]:
        """Read every row into the noop sink, or into Parquet files at `to`; seconds, and the number of rows."""
        before = self._last_execution()
        begun_s = time.perf_counter()
        if to is None:
            frame.write.format("noop").mode("overwrite").save()
        else:
            frame.write.parquet(str(to))
        took_s = time.perf_counter() - begun_s
        return took_s, self._rows_since(before)

    def _store(self) -> Any:
        return cast(Any, self.spark)._jsparkSession.sharedState().statusStore()

    def _last_execution(self) -> int:
        """Id of the last execution; -1 if none."""
        executions = self._store().executionsList()
        return int(executions.last().executionId()) if executions.size() else -1

    def _rows_since(self, before: int) -> int:
        """Output rows of the last query's scan, from Spark's metrics: counting them would cost time. A query may be
        several executions, of which one scans."""
        store, end_s = self._store(), time.monotonic() + _METRICS_S
        while time.monotonic() < end_s:
            counts: list[int] = []
            executions = store.executionsList()  # Spark keeps the newest
            for directory in range(executions.size() - 1, -1, -1):
                one = executions.apply(directory)
                if one.executionId() <= before:
                    return max(counts, default=0)
                if not one.completionTime().isDefined() or one.metricValues() is None:
                    break
                values = store.executionMetrics(one.executionId())
                metrics = [one.metrics().apply(i) for i in range(one.metrics().size())]
                found = [values.get(m.accumulatorId()) for m in metrics if m.name() == "number of output rows"]
                counts += [int(rows.get().replace(",", "")) for rows in found if rows.isDefined()]
            else:
                return max(counts, default=0)
            time.sleep(0.02)
        raise CannotRunError("Spark reported no row count for a query")

    def micro_batches(self, source: str) -> Figure:
        """Median duration of a trigger with one record. Raises WrongRecordsError."""
        options = self._dlog_options(SMALL) if source == "dlog" else self._kafka_options(SMALL)
        query = (
            self.spark.readStream.format(source)
            .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger=1)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(self.where.room / f"checkpoint-{self.next_number()}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        reports = [json.loads(progress.json) for progress in query.recentProgress]
        full = [one for one in reports if one["numInputRows"]]
        records = sum(one["numInputRows"] for one in full)
        if len(full) <= BATCHES_FIRST:
            raise WrongRecordsError(f"too few micro-batches: source={source} batches={len(full)}")
        counted = full[BATCHES_FIRST:]
        parts = {part for one in counted for part in one["durationMs"]}
        more = {part: median(one["durationMs"].get(part, 0) for one in counted) for part in sorted(parts)}
        return Figure(float(more["triggerExecution"]), records, more)
