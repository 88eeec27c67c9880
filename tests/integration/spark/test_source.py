"""Tests the batch source on a real cluster and a real Spark: it reads what a reader of the stream reads."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dlog.model.dlsn import of
from tests.integration.cli.up import Up
from tests.integration.spark.archive import java_options
from tests.integration.spark.lake import Lake

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceReader, InputPartition
    from pyspark.sql.types import StructType


@pytest.fixture(scope="module")
def written(lake: Lake) -> str:
    """A stream of several segments, the last one open, with records of very different sizes."""
    rng = random.Random(7)
    name = lake.create(segment_bytes=200_000)
    txid = 0
    for number in range(300):
        size = rng.choice((0, 1, 20, 200, 5000))
        count = rng.choice((1, 1, 3, 40))
        txid += rng.choice((1, 10))
        lake.client.append_batch(name, [b"%06d|" % number + rng.randbytes(size) for _ in range(count)], txid=txid)
    return name


def test_what_spark_reads_is_what_a_reader_reads(lake: Lake, written: str) -> None:
    truth = lake.truth(written)
    assert len({row[0] for row in truth}) > 2, "several segments, else this shows little"
    assert lake.rows(lake.read(written)) == truth
    small = lake.read(written, splitBytes="50k", openCostBytes="1k")
    assert small.rdd.getNumPartitions() > 4
    assert lake.rows(small) == truth
    assert lake.rows(lake.read(written, minPartitions="9")) == truth
    assert lake.rows(lake.read(written, verify="full")) == truth


def test_the_schema_asked_for_is_the_projection(lake: Lake, written: str) -> None:
    """Trap 7."""
    frame = lake.read(written, "value binary, txid bigint")
    assert frame.columns == ["value", "txid"]
    assert sorted((r.txid, bytes(r.value)) for r in frame.collect()) == sorted(r[3:] for r in lake.truth(written))
    with pytest.raises(Exception, match="no such column, choose from stream, segment"):
        lake.read(written, "vlaue binary").collect()
    with pytest.raises(Exception, match="wrong type of a column: column=txid expected=bigint given=string"):
        lake.read(written, "txid string").collect()


def test_bounds_are_those_of_the_log(lake: Lake, written: str) -> None:
    truth = lake.truth(written)
    rng = random.Random(5)
    for _ in range(3):
        first, last = sorted(rng.sample(range(len(truth)), 2))
        start, end = truth[first][:2], truth[last][:2]
        got = lake.rows(
            lake.read(
                written,
                startingOffsets=f'{{"{written}":[{start[0]},{start[1]}]}}',
                endingOffsets=f'{{"{written}":[{end[0]},{end[1]}]}}',
            )
        )
        assert got == [row for row in truth if start <= row[:2] < end]
        low, high = truth[first][3], truth[last][3]
        got = lake.rows(lake.read(written, startingTxid=low, endingTxid=high))
        assert got == [row for row in truth if low <= row[3] < high]


def test_a_time_is_found(lake: Lake) -> None:
    name = lake.create()
    lake.client.append(name, b"early")
    middle = next(iter(lake.client.read(name, follow=False))).unix_ms + 1
    while True:
        at = lake.client.append(name, b"late")
        late = next(r for r in lake.client.read(name, follow=False) if r.dlsn == at)
        if late.unix_ms >= middle:
            break
    got = lake.rows(lake.read(name, startingTimestamp=middle))
    assert [row[4] for row in got] == [b"late"]
    assert lake.rows(lake.read(name, startingTimestamp=late.unix_ms + 10**9, startingStrategy="latest")) == []
    with pytest.raises(Exception, match="no record is as late as the requested start"):
        lake.read(name, startingTimestamp=late.unix_ms + 10**9).collect()


def test_what_is_acknowledged_is_in_the_next_plan_and_a_plan_stays_what_it_is(lake: Lake) -> None:
    """Trap 8."""
    name = lake.create()
    lake.client.append(name, b"1")
    frame = lake.read(name)
    assert frame.count() == 1
    for number in range(2, 6):
        lake.client.append(name, b"%d" % number)
        assert lake.read(name).count() == number, "acknowledged, so it is there"


def test_an_empty_stream_has_no_rows(lake: Lake) -> None:
    """Trap 2: an empty plan is one task without anything."""
    assert lake.read(lake.create()).collect() == []


def test_several_streams_and_patterns(lake: Lake) -> None:
    names = [lake.create() for _ in range(3)]
    for name in names:
        lake.client.append(name, name.encode())
    got = lake.read(None, streams=",".join(names[:2])).select("stream", "value").collect()
    assert sorted((r.stream, bytes(r.value).decode()) for r in got) == sorted((n, n) for n in names[:2])
    pattern = "|".join(names)
    assert {r.stream for r in lake.read(None, streamsPattern=pattern).collect()} == set(names)
    with pytest.raises(Exception, match="no such stream: stream=s-none"):
        lake.read("s-none").collect()
    with pytest.raises(Exception, match="no stream matches"):
        lake.read(None, streamsPattern="none-.*").collect()


def test_truncated_records_are_gone_and_told_of(lake: Lake) -> None:
    name = lake.create()
    places = [lake.client.append(name, b"%d" % number) for number in range(15)]
    lake.client.hand_over(name)  # its next owner begins another segment, and this one may be truncated in part
    places += [lake.client.append(name, b"%d" % number) for number in range(15, 20)]
    assert places[-1].segment > places[0].segment
    lake.client.truncate(name, places[12])
    assert lake.rows(lake.read(name)) == list(lake.truth(name))
    first = lake.truth(name)[0]
    assert of(*first[:3]) == places[12]
    asked = f'{{"{name}":[{places[3].segment},{places[3].entry}]}}'
    with pytest.raises(Exception, match="records were truncated before they were read"):
        lake.read(name, startingOffsets=asked).collect()
    assert lake.rows(lake.read(name, startingOffsets=asked, failOnDataLoss="false")) == lake.truth(name)


@pytest.mark.parametrize("pushdown", ["false", "once"])
def test_filters_give_the_same_rows_pushed_or_not(lake: Lake, written: str, pushdown: str) -> None:
    """Traps 5 and 6: rows that are pruned never pass the filter."""
    truth = lake.truth(written)
    middle = truth[len(truth) // 2]
    for where, keep in (
        (f"txid >= {middle[3]}", lambda r: r[3] >= middle[3]),
        (f"txid = {middle[3]}", lambda r: r[3] == middle[3]),
        (f"segment = {middle[0]} and entry < {middle[1]}", lambda r: r[0] == middle[0] and r[1] < middle[1]),
        (f"segment in (1, {middle[0]}) or slot = 0", lambda r: r[0] in (1, middle[0]) or r[2] == 0),
        (f"stream = '{written}' and txid < {middle[3]}", lambda r: r[3] < middle[3]),
        ("stream = 'another'", lambda r: False),
        ("value is null", lambda r: False),
    ):
        frame = lake.read(written, pushdown=pushdown, splitBytes="50k")
        assert lake.rows(frame.where(where)) == [row for row in truth if keep(row)], where


def test_spark_still_remembers_what_one_query_left_out(lake: Lake) -> None:
    """The reason why pushdown=true is refused. When this fails, Spark was fixed, and it may be allowed."""
    name = lake.create()
    lake.client.append(name, b"early", txid=1)
    lake.client.hand_over(name)
    lake.client.append(name, b"late", txid=2)
    frame = lake.read(name, pushdown="once")
    assert frame.where("txid >= 2").count() == 1
    assert frame.count() == 1, "there are two"
    assert lake.read(name).count() == 2
    with pytest.raises(Exception, match="Spark would give wrong rows to the second query"):
        lake.read(name, pushdown="true").count()


def test_tables_of_metadata(lake: Lake, written: str) -> None:
    truth = lake.truth(written)
    segments = lake.read(written, metadata="segments").orderBy("segment").collect()
    assert [r.segment for r in segments if r.records] == sorted({row[0] for row in truth})
    assert sum(r.records for r in segments) == len(truth)
    assert {r.state for r in segments[:-1]} == {"completed"} and segments[-1].state == "in progress"
    entries = lake.read(written, metadata="entries").where("records > 0").orderBy("segment", "entry").collect()
    assert [(r.segment, r.entry) for r in entries] == sorted({row[:2] for row in truth})
    assert sum(r.records for r in entries) == len(truth)
    (stream,) = lake.read(written, metadata="streams").collect()
    assert (stream.stream, stream.segments, stream.records) == (written, len(segments), len(truth))
    (lag,) = lake.read(written, metadata="lag").collect()
    assert (lag.segment, lag.entry) > truth[-1][:2]


def test_a_wrong_option_fails_before_anything_is_read(lake: Lake, written: str) -> None:
    with pytest.raises(Exception, match="did you mean splitBytes"):
        lake.read(written, spiltBytes="1m").collect()
    with pytest.raises(Exception, match="exactly one of stream, streams, streamsPattern"):
        lake.read(None).collect()


def test_sql_with_options_reads_too(lake: Lake, written: str) -> None:
    """Trap 9: with these options, and not as a table of the catalog."""
    lake.spark.sql(
        f"create or replace temp view v using dlog options (zookeeper '{lake.zookeeper}', "
        f"namespace '{lake.namespace}', stream '{written}')"
    )
    (row,) = lake.spark.sql("select count(*) as n, count(distinct segment) as s from v").collect()
    assert row.n == len(lake.truth(written))


def test_a_reader_that_stops_early_leaves_nothing_running(lake: Lake, written: str) -> None:
    """Trap 13."""
    for _ in range(5):
        assert len(lake.read(written).limit(3).collect()) == 3
    assert lake.read(written).count() == len(lake.truth(written))


def test_filters_need_the_consent_of_the_session(lake: Lake, written: str) -> None:
    """Trap 5: where Spark does not allow pushing filters, reading works without it."""
    key = "spark.sql.python.filterPushdown.enabled"
    lake.spark.conf.set(key, "false")
    try:
        assert lake.read(written).where("txid >= 0").count() == len(lake.truth(written))
        with pytest.raises(Exception, match="filterPushdown"):
            lake.read(written, pushdown="once").where("txid >= 0").count()
    finally:
        lake.spark.conf.set(key, "true")


def test_a_worker_that_is_killed_amid_a_scan_costs_no_record_and_repeats_none(lake: Lake, tmp_path: Path) -> None:
    """In each partition the first attempt is killed after it returned some rows; Spark repeats the task."""
    from dlog.spark.source import DlogDataSource, StreamsReader

    class Dying(StreamsReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(super().read(partition)):
                yield batch
                of = batch.column("segment")[0].as_py(), batch.column("entry")[0].as_py()
                mark = tmp_path / "-".join(map(str, of))
                if number == 0 and not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

    class DyingSource(DlogDataSource):
        @classmethod
        def name(cls) -> str:
            return "dlog-dying-scan"

        def reader(self, schema: StructType) -> DataSourceReader:
            whole = super().reader(schema)
            assert isinstance(whole, StreamsReader)
            return Dying(whole._options, whole._schema)

    name = lake.create(segment_bytes=1_000_000)
    for first in range(0, 100_000, 1000):
        lake.client.append_batch(name, [b"%024d" % number for number in range(first, first + 1000)])
    lake.spark.dataSource.register(DyingSource)
    options = {"zookeeper": lake.zookeeper, "namespace": lake.namespace, "stream": name, "minPartitions": "3"}
    frame = lake.spark.read.format("dlog-dying-scan").schema("segment bigint, entry bigint, value binary")
    rows = frame.options(**options).load().collect()
    killed = len(list(tmp_path.iterdir()))
    assert killed >= 3, "each partition was to lose its worker"
    assert sorted(bytes(row.value) for row in rows) == [b"%024d" % number for number in range(100_000)]


def test_executors_that_are_processes_of_their_own(cluster: Up, lake: Lake, written: str) -> None:
    """Two executors beside the driver read the same. Trap 14: with bounded memory, because no file is mapped and little
    is prefetched."""
    script = f"""
import hashlib
from dlog import spark as room
spark = room.session("apart", **{{"spark.master": "local-cluster[2,1,1024]", "spark.ui.enabled": "false",
                                  "spark.log.level": "ERROR", "spark.executor.pyspark.memory": "1g",
                                  "spark.executor.extraJavaOptions": {java_options()!r}}})
frame = (spark.read.format("dlog").option("zookeeper", {lake.zookeeper!r}).option("namespace", {lake.namespace!r})
         .option("stream", {written!r}).option("splitBytes", "50k").option("openCostBytes", "1k").load())
got = sorted((r.segment, r.entry, r.slot, r.txid, bytes(r.value).hex()) for r in frame.collect())
print("rows", hashlib.sha256(repr(got).encode()).hexdigest())
spark.stop()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = next(line for line in done.stdout.splitlines() if line.startswith("rows "))
    truth = sorted((*row[:4], row[4].hex()) for row in lake.truth(written))
    assert told.split()[1] == hashlib.sha256(repr(truth).encode()).hexdigest()
