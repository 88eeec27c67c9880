"""Streams as Delta tables: tests for the PySpark for which Delta Lake is made. Not collected by name;
test_other_releases.py runs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from loadtest.systems.java import DELTA
from tests.integration.cli.up import dlog
from tests.integration.spark.desk import Desk, Rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.jars": ",".join(map(str, sorted(DELTA.directory.glob("*.jar")))),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from dlog import spark as room

    plain = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "2"}
    place = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = room.session("tests", **{"spark.master": "local[2]", **plain, **place, **SETTINGS})
    yield session
    session.stop()


def rows(desk: Desk) -> Rows:
    frame = desk.spark.read.format("delta").load(str(desk.to)).orderBy("segment", "entry", "slot")
    return [(r.segment, r.entry, r.slot, r.txid, bytes(r.value)) for r in frame.collect()]


def test_a_delta_table_is_what_a_reader_reads_and_a_second_run_adds_what_came(desk: Desk) -> None:
    stream = desk.stream()
    desk.append(stream, 80)
    first = desk.run(stream, format="delta", partition_by="stream")
    truth = desk.truth(stream)
    assert len({row[0] for row in truth}) > 1, "several segments, else this shows little"
    assert rows(desk) == truth
    assert (first.counts["records"], first.counts["behind_records"], int(first.verdict)) == (len(truth), 0, 0)
    files = set(desk.to.rglob("*.parquet"))
    desk.append(stream, 10)
    more = desk.run(stream, format="delta", partition_by="stream")
    assert more.counts["records"] == 30 and files < set(desk.to.rglob("*.parquet"))
    assert rows(desk) == desk.truth(stream)


def test_killed_in_the_middle_and_run_again_a_delta_table_has_each_row_once(desk: Desk) -> None:
    """The whole process group gets SIGKILL as soon as Delta's log names the second batch. The checkpoint may not know
    the batch yet: then it is made again, and Delta recognises it."""
    stream = desk.stream()
    desk.append(stream, 14)
    bound = ["--format", "delta", "--source", "maxOffsetsPerTrigger=6"]
    for key, value in SETTINGS.items():
        bound += ["--conf", f"{key}={value}"]
    with desk.driver(stream, *bound) as running:
        running.wait((desk.to / "_delta_log" / f"{1:020}.json").exists, "no second batch is in the table")
    truth = desk.truth(stream)
    assert 0 < len(rows(desk)) < len(truth)
    code, out, told = dlog(*desk.command(stream, *bound), directory=desk.cluster.directory)
    assert code == 0, told
    assert rows(desk) == truth
    assert 0 < json.loads(out)["counts"]["records"] < len(truth), "it went on where it was"
