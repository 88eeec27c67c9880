"""Tests the sink on a real cluster and a real Spark: records are written once, in order, whatever is repeated."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dlog.client.stream_info import SegmentInfo
from dlog.errors import LedgerNotFoundError, ProducerUnknownError
from dlog.log.options import OwnerOptions
from dlog.log.staging import StagedSet
from dlog.model.sink import SinkBatch
from dlog.wire.entry import build_record_set
from dlog.wire.proxy import Failed
from tests.integration.proxies.raw import Raw, RawProducer, write_from_many
from tests.integration.spark.lake import Lake
from tests.integration.spark.test_streaming import PATIENCE_S, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def write(lake: Lake, frame: DataFrame, stream: str | None, **options: Any) -> None:
    writer = frame.write.format("dlog").mode("append").option("zookeeper", lake.zookeeper)
    writer = writer.option("namespace", lake.namespace)
    for key, value in {**({} if stream is None else {"stream": stream}), **options}.items():
        writer = writer.option(key, value)
    writer.save()


def rows(lake: Lake, count: int, partitions: int, size: int = 10, first: int = 0) -> DataFrame:
    ids = lake.spark.range(first, first + count, numPartitions=partitions)
    return ids.selectExpr(f"lpad(cast(id as string), {size}, '0') as value")


def values(lake: Lake, stream: str) -> list[bytes]:
    return [record.payload for record in lake.client.read(stream, follow=False)]


def expected(count: int, size: int = 10, first: int = 0) -> list[bytes]:
    return [str(number).zfill(size).encode() for number in range(first, first + count)]


def segments(lake: Lake, stream: str) -> tuple[SegmentInfo, ...]:
    return lake.client.stat(stream).segments


def stages(lake: Lake, *streams: str) -> list[str]:
    """Ledgers of stages for these streams that are in no list."""
    from dlog.spark.cluster_connection import Cluster, reach
    from dlog.spark.stages import stream_of

    async def look(cluster: Cluster) -> list[str]:
        taken = {s.name for stream in streams for s in (await stream_of(cluster, stream)).segments}
        found = []
        async for ledger in cluster.ledgers.list():
            try:
                custom = dict((await cluster.ledgers.metadata_of(ledger)).custom)
            except LedgerNotFoundError:
                continue  # deleted since it was listed
            ahead = custom.get("dlog.segment") == b"0" and custom["dlog.stream"].decode() in streams
            if ahead and str(ledger) not in taken:
                found.append(str(ledger))
        return found

    return reach(lake.zookeeper, lake.namespace).ask(look)


def test_few_rows_are_appended_and_many_become_segments(lake: Lake) -> None:
    name = lake.create()
    write(lake, rows(lake, 100, 3), name)
    assert values(lake, name) == expected(100), "in the order of partitions"
    assert len(segments(lake, name)) == 1
    write(lake, rows(lake, 4000, 4, size=1000, first=100), name)
    assert values(lake, name)[100:] == expected(4000, 1000, 100)
    taken = [s for s in segments(lake, name) if s.is_completed]
    assert len(taken) == 5, "one that was appended to, and one of each partition"
    assert lake.truth(name) == lake.rows(lake.read(name)), "Spark reads what it wrote"
    assert [txid for *_, txid, _ in lake.truth(name)] == sorted(txid for *_, txid, _ in lake.truth(name))
    lake.client.append(name, b"and on")
    assert values(lake, name)[-1] == b"and on"
    assert stages(lake, name) == []


def test_a_numbered_write_is_done_once(lake: Lake) -> None:
    name = lake.create()
    for number in (0, 0, 1, 0, 1):
        write(lake, rows(lake, 50, 2, first=50 * number), name, sinkId=f"job-{name}", batchId=number)
    assert values(lake, name) == expected(100)
    for _ in range(2):
        write(lake, rows(lake, 1000, 2, size=1000, first=100), name, sinkId=f"job-{name}", batchId=2)
    assert len(values(lake, name)) == 1100
    assert stages(lake, name) == [], "what was staged for nothing is swept"


def test_what_a_query_may_still_have_taken_in_is_not_swept_however_old(lake: Lake) -> None:
    """The stage of an old query stays until its stream knows a later program, and from then on refuses the old one."""
    from dlog.spark.cluster_connection import Cluster, reach
    from dlog.spark.stages import Staged, Stager

    name, other, sink = lake.create(), lake.create(), f"old-{uuid.uuid4().hex[:8]}"
    old = SinkBatch(sink, 0, "old", 3)

    async def stage(cluster: Cluster) -> list[Staged]:
        stager = Stager(cluster, lake.namespace, old)
        await stager.entry(name, [StagedSet(0, 1, build_record_set([b"late"]))], has_own_txids=False)
        return await stager.finish()

    (staged,) = reach(lake.zookeeper, lake.namespace).ask(stage)
    numbered = {"sinkId": sink, "stageKeep": "0s", "appendBytes": 1}
    write(lake, rows(lake, 10, 1), other, batchId=0, **numbered)
    assert stages(lake, name, other) == [staged.name], "its query may live"
    write(lake, rows(lake, 10, 1), name, batchId=1, sinkEpoch=1, **numbered)
    assert stages(lake, name, other) == []
    assert values(lake, name) == values(lake, other) == expected(10)


def test_rows_may_name_their_streams_and_bring_their_txids(lake: Lake) -> None:
    one, two = lake.create(), lake.create()
    frame = rows(lake, 40, 2).selectExpr(
        "value", f"if(cast(value as int) % 2 = 0, '{one}', '{two}') as stream", "cast(value as bigint) * 10 as txid"
    )
    write(lake, frame, None)
    assert [(r.txid, r.payload) for r in lake.client.read(one, follow=False)] == [
        (int(value) * 10, value) for value in expected(40)[::2]
    ]
    assert values(lake, two) == expected(40)[1::2]
    with pytest.raises(Exception, match="txids may not decrease"):
        write(lake, frame, None)


def test_others_who_write_meanwhile_move_the_txids_and_lose_nothing(lake: Lake) -> None:
    """Stages whose txids are below those that other producers have written are written again."""
    name = lake.create()
    ahead = 4_000_000_000_000  # unix milliseconds of a later century
    lake.client.append(name, b"first", txid=ahead)
    write(lake, rows(lake, 1000, 2, size=1000), name)
    assert values(lake, name) == [b"first", *expected(1000, 1000)]
    assert all(txid >= ahead for *_, txid, _ in lake.truth(name))
    assert stages(lake, name) == []


class Copy:
    """A query that copies a stream into another, restarted any number of times on the same checkpoint."""

    def __init__(self, lake: Lake, source: str, to: str, directory: Path, **options: Any) -> None:
        self.lake, self.source, self.to, self.directory = lake, source, to, directory
        self.options = {"sinkId": f"copy-{to}", **options}
        self.limit = 0

    def start(self, **trigger: Any) -> StreamingQuery:
        reader = self.lake.spark.readStream.format("dlog").schema("value binary")
        reader = reader.option("zookeeper", self.lake.zookeeper).option("namespace", self.lake.namespace)
        reader = reader.option("stream", self.source).option("startingOffsets", "earliest")
        if self.limit:
            reader = reader.option("maxOffsetsPerTrigger", self.limit)
        writer = reader.load().writeStream.format("dlog").option("checkpointLocation", str(self.directory))
        writer = writer.option("zookeeper", self.lake.zookeeper).option("namespace", self.lake.namespace)
        for key, value in {"stream": self.to, **self.options}.items():
            writer = writer.option(key, value)
        return writer.trigger(**trigger).start()

    def run(self) -> None:
        assert self.start(availableNow=True).awaitTermination(PATIENCE_S)


def test_a_query_writes_each_batch_once(lake: Lake, tmp_path: Path) -> None:
    source, to = lake.create(), lake.create()
    copy = Copy(lake, source, to, tmp_path)
    copy.limit = 10
    written = fill(lake, source, 0, 30)
    copy.run()
    written += fill(lake, source, 30, 15)
    copy.run()
    assert values(lake, to) == written
    copy.options["appendBytes"] = "1"  # everything is staged
    written += fill(lake, source, 45, 15)
    copy.run()
    assert values(lake, to) == written
    assert stages(lake, to) == []


def test_a_batch_whose_driver_died_behind_the_publish_is_dropped_when_it_comes_again(
    lake: Lake, tmp_path: Path
) -> None:
    """Spark repeats the batch after a kill between the publication and its own commit log."""
    source, to = lake.create(), lake.create()
    written = fill(lake, source, 0, 20)
    for staged in ("1", "256k"):
        copy = Copy(lake, source, to, tmp_path / staged, appendBytes=staged, sinkId=f"copy-{to}-{staged}")
        copy.run()
        commits = tmp_path / staged / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for path in (commits / str(last), commits / f".{last}.crc"):
            path.unlink(missing_ok=True)
        copy.run()
    assert values(lake, to) == written * 2, "each of the two sinks wrote it once"
    assert stages(lake, to) == []


def test_a_new_checkpoint_is_refused_until_a_person_says_that_it_counts_anew(lake: Lake, tmp_path: Path) -> None:
    """Trap 39: batches that begin at 0 again would be taken for repetitions, and dropped without an error."""
    source, to = lake.create(), lake.create()
    written = fill(lake, source, 0, 5)
    Copy(lake, source, to, tmp_path / "one").run()
    with pytest.raises(Exception, match="another program writes under the name of this sink"):
        Copy(lake, source, to, tmp_path / "two").run()
    assert values(lake, to) == written
    Copy(lake, source, to, tmp_path / "two", sinkEpoch=1).run()
    assert values(lake, to) == written * 2
    fill(lake, source, 5, 1)
    with pytest.raises(Exception, match="this sink was taken over by another program"):
        Copy(lake, source, to, tmp_path / "one").run()


def test_what_the_owner_has_forgotten_is_read_in_the_log(lake: Lake, tmp_path: Path) -> None:
    """Only the beginning of the batch is known: it was appended, and its owner's memory of it is gone."""
    from dlog.spark.cluster_connection import reach
    from dlog.spark.publishing import TaskOutput, publish
    from dlog.spark.sink_options import parse_sink
    from dlog.spark.sink_rows import Row

    to = lake.create()
    options = parse_sink({"zookeeper": lake.zookeeper, "namespace": lake.namespace, "sinkId": "s"}, streaming=True)
    batch = SinkBatch("s", 0, "q", 0)
    piece = TaskOutput(0, batch, inline={to: [Row(None, b"once")]})
    of_cluster = reach(lake.zookeeper, lake.namespace)
    for number in range(3):
        if number == 2:
            forget_producers(lake, to, batch.producer)
        told = of_cluster.ask(lambda cluster: publish(cluster, options, [piece], once=True))
        assert told == {to: 0 if number else 1}
    assert [v for v in values(lake, to) if v == b"once"] == [b"once"]
    later = TaskOutput(0, SinkBatch("s", 0, "q", 1), inline={to: [Row(None, b"later")]})
    assert of_cluster.ask(lambda cluster: publish(cluster, options, [later], once=True)) == {to: 1}


def forget_producers(lake: Lake, stream: str, forgotten: bytes) -> None:
    """Let as many producers write as an owner remembers, so that an earlier one is forgotten."""

    async def write(address: str) -> None:
        async with Raw(address) as raw:
            await write_from_many(raw, stream, OwnerOptions().producers_max + 1)
            answer = await RawProducer(raw, stream, forgotten).write([b"not known any more"])
            assert isinstance(answer, Failed) and answer.code == ProducerUnknownError.code

    (owner,) = (owner for owner in lake.client.owners() if owner.stream == stream)
    asyncio.run(write(owner.location))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sinkid": "x", "batchId": "-1"}, "whole number"),
        ({"sinkID": "no/slash", "batchId": 0}, "a sink's name is letters"),
        ({"batchId": 0}, "set sinkId"),
        ({"deliveryGuarantee": "at-most-once"}, "expected one of exactly-once, at-least-once"),
        ({"deliveryGuarantee": "at-least-once", "sinkId": "x"}, "has no effect"),
        ({"sinkid2": "x"}, "did you mean sinkId"),
        ({"appendBytes": "2m"}, "at most"),
    ],
)
def test_options_are_judged_before_anything_is_written(lake: Lake, options: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        write(lake, rows(lake, 1, 1), "nowhere", **options)


def test_what_cannot_be_written_is_refused_and_says_what_to_do(lake: Lake) -> None:
    name = lake.create()
    frame = rows(lake, 3, 1)
    for wrong, said in (
        (frame.selectExpr("value", "1 as key"), "no such column"),
        (frame.selectExpr("cast(value as int) as value"), "cast it"),
        (frame.selectExpr("value as valu"), "no such column"),
        (frame.selectExpr("if(value > '0', null, value) as value"), "value is null"),
        (frame.selectExpr("value", "cast(3 - cast(value as int) as bigint) as txid"), "sort it by txid"),
        (frame.selectExpr("repeat('x', 1100000) as value"), "at most"),
    ):
        with pytest.raises(Exception, match=said):
            write(lake, wrong, name)
    with pytest.raises(Exception, match="no stream is named"):
        write(lake, frame, None)
    with pytest.raises(Exception, match="no such stream"):
        write(lake, rows(lake, 1000, 1, 1000), "nowhere")
    with pytest.raises(Exception, match="mode overwrite"):
        writer = frame.write.format("dlog").mode("overwrite").option("zookeeper", lake.zookeeper)
        writer.option("stream", name).save()
    assert values(lake, name) == []


def test_no_rows_are_no_batch(lake: Lake) -> None:
    """Trap 37: a task is started all the same, and reports that it has nothing."""
    name = lake.create()
    nothing = rows(lake, 10, 2).where("value < '0'")
    write(lake, nothing, name)
    write(lake, nothing, name, sinkId=f"job-{name}", batchId=0)
    write(lake, rows(lake, 10, 1), name, sinkId=f"job-{name}", batchId=1)
    assert values(lake, name) == expected(10)
    assert stages(lake, name) == []


def test_at_least_once_writes_as_it_goes(lake: Lake, tmp_path: Path) -> None:
    name = lake.create()
    write(lake, rows(lake, 500, 2, 1000), name, deliveryGuarantee="at-least-once")
    assert sorted(values(lake, name)) == expected(500, 1000)
    source = lake.create()
    fill(lake, source, 0, 5)
    copy = Copy(lake, source, name, tmp_path, deliveryGuarantee="at-least-once")
    del copy.options["sinkId"]
    copy.run()
    assert len(values(lake, name)) == 505


def test_order_within_a_partition_is_kept(lake: Lake) -> None:
    name = lake.create()
    frame = rows(lake, 6000, 3, 300).selectExpr("value", "cast(value as bigint) % 7 as shard")
    shuffled = frame.repartition(5, "shard").sortWithinPartitions("value").select("value")
    write(lake, shuffled, name)
    by_shard: dict[int, list[bytes]] = {}
    for value in values(lake, name):
        by_shard.setdefault(int(value) % 7, []).append(value)
    assert sum(map(len, by_shard.values())) == 6000
    assert all(one < two for some in by_shard.values() for one, two in itertools.pairwise(some))
