"""Replay of a region from Kafka, beside Spark's Kafka source over the same topic.

Both read every record of the topic on the same cores. Once they only count: the replay splits records by table in the
memory of its tasks. Once they write Parquet: the replay one directory for each table, its records in order; the source
its rows as they come.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dlog.client.regions import Regions
from dlog.io.kafka_settings import KafkaTopicsOptions
from dlog.region.messages import Topic
from dlog.region.names import topic_names
from loadtest.payload import PayloadMaker
from loadtest.spark.measuring import Figure, WrongRecordsError

if TYPE_CHECKING:
    from dlog.spark.jobs.frame import Report
    from loadtest.spark.measuring import Bench

RECORD_BYTES = 1024
TABLES = 16
_NAMESPACE, _REGION = "w18", "region"
_BATCH = 240  # records, some 256 KiB
_OTHERS_MAX = 100  # of the topic: fences and check-points
#: the only broker of this measurement
_KAFKA = KafkaTopicsOptions(replication_factor=1, min_insync_replicas=1, flush=False)


async def fill_region(bootstrap: str, size: int) -> None:
    """Write `size` bytes of payloads to a new region, in turn to each table. Raises DLogError."""
    maker, records = PayloadMaker(7, RECORD_BYTES), size // RECORD_BYTES
    async with Regions(f"kafka://{bootstrap}", _NAMESPACE, kafka=_KAFKA, clean_every_s=None) as regions:
        region = await regions.open(_REGION, create=True)
        for first in range(0, records, _BATCH):
            payloads = maker.make(first, min(_BATCH, records - first), 0)
            await region.write_many([((first + i) % TABLES, payload) for i, payload in enumerate(payloads)])


def replay_counted(bench: Bench) -> Figure:
    """Replay all tables without writing files."""
    return _figure(bench, _replay(bench, None))


def replay_to_parquet(bench: Bench) -> Figure:
    """Replay all tables into Parquet files."""
    return _figure(bench, _replay(bench, bench.where.room / f"replayed-{bench.next_number()}"))


def source_counted(bench: Bench) -> Figure:
    """Read the region's topic with Spark's Kafka source."""
    return _read(bench, None)


def source_to_parquet(bench: Bench) -> Figure:
    """Read the region's topic with Spark's Kafka source, and write all rows as Parquet files."""
    return _read(bench, bench.where.room / f"copied-{bench.next_number()}")


def _read(bench: Bench, to: Path | None) -> Figure:
    """Raises WrongRecordsError."""
    records = bench.where.region_bytes // RECORD_BYTES
    took_s, rows = bench.timed(bench.topic(topic_names(_NAMESPACE, _REGION)[Topic.DATA]), to)
    if not records <= rows <= records + _OTHERS_MAX:
        raise WrongRecordsError(f"Kafka's source returned {rows} rows of {records} records")
    return Figure(records * RECORD_BYTES / took_s / 1e6, records)


def _replay(bench: Bench, to: Path | None) -> Report:
    from dlog.spark.jobs.replay import ReplayOptions, replay
    from dlog.spark.jobs.wal_region import RegionWal

    wal = RegionWal(f"kafka://{bench.where.bootstrap}/{_NAMESPACE}/{_REGION}", kafka=_KAFKA)
    options = ReplayOptions(dry_run=True) if to is None else ReplayOptions(to=str(to))
    return replay(bench.spark, None, options, wal=wal)


def _figure(bench: Bench, report: Report) -> Figure:
    """Raises WrongRecordsError."""
    records = bench.where.region_bytes // RECORD_BYTES
    tables = {item["table"]: item["records"] for item in report.items}
    if report.failures or report.findings or len(tables) != min(TABLES, records) or sum(tables.values()) != records:
        wrong = [*report.failures, *report.findings][:1]
        raise WrongRecordsError(f"a replay returned other records than were written: {tables} of {records}, {wrong}")
    return Figure(records * RECORD_BYTES / report.took_s / 1e6, records)
