"""Segments in real cold storage: a directory, an S3 server, an HDFS. Clients and Spark read the same before and after,
under the same DLSNs; nothing that metadata names is deleted, and everything else is."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dlog.client.position import at_txid
from dlog.spark.jobs.frame import Verdict
from tests.integration.cli.up import dlog as run_dlog
from tests.integration.cli.up import wait_until
from tests.integration.spark.offloading import Yard

# ---- there and back -------------------------------------------------------------------------------------------------


def test_what_was_moved_is_read_as_before(yard: Yard) -> None:
    name = yard.written()
    rows, hot = yard.rows(name), yard.hot(name)
    assert len(hot) == 5

    planned = yard.offload(name, dry_run=True)
    assert planned.counts["segments_planned"] == len(hot) - 1, "the newest stays"
    assert yard.objects(name) == [] and yard.cold_segments(name) == [] and yard.znodes(name) == []

    moved = yard.offload(name)
    assert moved.verdict is Verdict.OK, moved.as_json()
    assert moved.counts["segments_offloaded"] == len(hot) - 1
    assert [s.number for s in yard.sealed(name)] == sorted(hot), "the same segments"
    assert [s.number for s in yard.cold_segments(name)] == sorted(hot)[:-1]
    assert all(yard.has_ledger(place) for place in hot.values()), "until the grace period is over"
    assert yard.rows(name) == rows and yard.spark_rows(name) == rows

    assert yard.offload(name).counts["waiting"] == len(hot) - 1
    over = yard.offload(name, grace_s=0.0)
    assert (over.verdict, over.counts["hot_copies_deleted"]) == (Verdict.OK, len(hot) - 1), over.as_json()
    yard.check_over(name, rows, hot)
    assert yard.has_ledger(hot[max(hot)])

    again = yard.offload(name, grace_s=0.0)
    assert (again.verdict, again.items) == (Verdict.OK, []), "nothing is left to be done"


def test_a_moved_stream_goes_on(yard: Yard) -> None:
    """The owner dies, and the next one reads what it needs of the newest segments from cold storage. A reader in the
    middle goes on; tables, seeking and splitting work on cold segments."""
    name = yard.written()
    yard.client.hand_over(name)  # the open segment is completed, so that the last one is in cold storage too
    wait_until(lambda: all(s.completed for s in yard.segments(name)), "the stream was handed back")
    rows = yard.rows(name)
    reading = yard.client.read(name)
    begun = [next(reading) for _ in range(20)]
    yard.offload(name, keep=0)
    yard.offload(name, keep=0, grace_s=0.0)
    assert all(s.store == "cold" for s in yard.segments(name) if s.completed and s.last_entry >= 0)
    rest = [*begun, *reading]
    assert [(*r.dlsn, r.txid, r.payload) for r in rest] == rows

    yard.client.append_batch(name, [b"behind"], txid=rows[-1][3] + 5)
    where = yard.client.owner(name).location
    yard.cluster.wait_restarted(yard.cluster.kill_part("write", where))
    yard.client.append_batch(name, [b"after the owner died"], txid=rows[-1][3] + 9)
    now = yard.rows(name)
    assert now[: len(rows)] == rows and [row[4] for row in now[len(rows) :]] == [b"behind", b"after the owner died"]

    assert yard.spark_rows(name, splitBytes="50k", openCostBytes="1k") == now
    middle = rows[len(rows) // 2]
    assert yard.spark_rows(name, startingTxid=middle[3]) == [row for row in now if row[3] >= middle[3]]
    assert next(iter(yard.client.read(name, at_txid(middle[3])))).txid == middle[3]
    table = yard.frame(name, metadata="segments").collect()
    assert sum(r.records for r in table) == len(now)
    assert {r.store for r in table} == {"cold", "ledger"} and all(r.bytes > 0 for r in table if r.store == "cold")


def test_a_streaming_query_goes_on_over_segments_that_were_moved(files: Yard, tmp_path: Path) -> None:
    """The query's checkpoint names positions in the log, not in a store."""
    name = files.written()
    seen: list[bytes] = []

    def run() -> None:
        options = {"zookeeper": files.zookeeper, "namespace": files.namespace, "stream": name}
        reader = files.spark.readStream.format("dlog").schema("value binary").options(**options)
        reader = reader.option("startingOffsets", "earliest").option("maxSegmentsPerTrigger", 2)
        writer = reader.load().writeStream.foreachBatch(lambda batch, _: seen.extend(r.value for r in batch.collect()))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(200)

    run()
    assert sorted(map(bytes, seen)) == sorted(row[4] for row in files.rows(name))
    files.client.append_batch(name, [b"new %d" % number for number in range(50)], txid=10**6)
    files.client.hand_over(name)
    files.offload(name, keep=0)
    files.offload(name, keep=0, grace_s=0.0)
    files.client.append(name, b"newest", txid=10**7)
    run()
    assert sorted(map(bytes, seen)) == sorted(row[4] for row in files.rows(name))


def test_truncation_and_deletion_take_the_objects_along(yard: Yard) -> None:
    name, other = yard.written(), yard.written()
    hot = yard.hot(name)
    yard.offload(name, other)
    third = yard.cold_segments(name)[2]
    yard.client.truncate(name, third.first_dlsn)
    wait_until(lambda: yard.cold_segments(name)[0].number == third.number, "truncated segments leave the list")
    wait_until(lambda: len(yard.objects(name)) == len(yard.cold_segments(name)), "and their objects go")
    yard.client.delete(other)
    wait_until(lambda: yard.objects(other) == [], "objects of a deleted stream go")
    later = yard.offload()
    assert later.verdict is Verdict.OK, later.as_json()
    assert [n for n in sorted(hot) if yard.has_ledger(hot[n])] == [n for n in sorted(hot) if n >= third.number]
    assert yard.znodes(other) == []
    yard.offload(grace_s=0.0)
    yard.check_over(name, yard.rows(name), hot)


def test_two_runs_at_once_do_it_once(files: Yard) -> None:
    name = files.written()
    rows, hot = files.rows(name), files.hot(name)
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: files.offload(name), range(2)))
    assert [report.verdict for report in reports] == [Verdict.OK, Verdict.OK], [r.as_json() for r in reports]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: files.offload(name, grace_s=0.0), range(2)))
    files.offload(name, grace_s=0.0)
    files.check_over(name, rows, hot)


def test_the_command_does_the_same_and_says_so(files: Yard, tmp_path: Path) -> None:
    name = files.written()
    told = tmp_path / "report.json"
    directory = Path(files.cluster.running.directory)
    flags = ("--stream", name, "--to", files.kept.root, "--older-than", "0s", "--master", "local[1]")
    code, out, err = run_dlog("pipeline", "offload", *flags, "--report", str(told), directory=directory)
    assert code == 0, err
    report = json.loads(told.read_text())
    assert report["counts"]["segments_offloaded"] == len(files.cold_segments(name)) > 0
    assert f"offloaded {report['counts']['segments_offloaded']} segments".encode() in out
    code, _, err = run_dlog("pipeline", "offload", "--to", "hdfs://nn:8020/x", directory=directory)
    assert code == 1 and "webhdfs://host:9870/path" in err
