"""Replay on a real cluster and a real Spark gives the same as a replay record by record."""

from __future__ import annotations

import json
import random
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dlog.client.sync import SyncClient
from tests.integration.cli.up import Up, dlog
from tests.integration.spark.drivers import driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dlog.spark.jobs.frame import Report, Selection

Rows = list[tuple[str, int, bytes]]  # DLSN, sequence, payload

HOT, BROKEN = 7, 13
SIZES = {"piece_bytes": 200_000, "run_bytes": 60_000, "part_bytes": 150_000}


class Region:
    """A stream with records of many tables: one with most of them, and one with a gap."""

    def __init__(self, client: SyncClient) -> None:
        from dlog.spark.jobs.wal import encode

        rng = random.Random(11)
        self.name = f"region-{uuid.uuid4().hex[:8]}"
        client.create(self.name, segment_bytes=400_000)
        following = dict.fromkeys([HOT, BROKEN, *range(100, 120)], 1)
        for _ in range(60):
            batch = []
            for _ in range(120):
                table = HOT if rng.random() < 0.9 else rng.choice(list(following))
                if table == BROKEN and following[table] == 20:
                    following[table] += 1  # never written
                batch.append(encode(table, following[table], rng.randbytes(rng.choice((0, 20, 200, 700)))))
                following[table] += 1
            client.append_batch(self.name, batch)
        self.following = following
        self.marks = {str(t): rng.randrange(following[t]) for t in rng.sample(range(100, 120), 8)}
        self.marks[str(HOT)] = following[HOT] // 10
        self.tables = self._oracle(client)

    def _oracle(self, client: SyncClient) -> dict[int, Rows]:
        """Replay what dlog's own reader reads, record by record, without the table that breaks."""
        found: dict[int, Rows] = {}
        for record in client.read(self.name):
            table, sequence = (int.from_bytes(record.payload[at : at + 8], "little") for at in (4, 12))
            if sequence > self.marks.get(str(table), 0) and table != BROKEN:
                found.setdefault(table, []).append((str(record.dlsn), sequence, record.payload[20:]))
        return found


@pytest.fixture(scope="module")
def region(cluster: Up, client: SyncClient, spark: SparkSession) -> Region:
    return Region(client)


@pytest.fixture(scope="module")
def place(cluster: Up, region: Region) -> Selection:
    from dlog.spark.jobs.frame import Selection

    running = cluster.running
    return Selection(zookeeper=running.zookeeper, namespace=running.namespace, streams=(region.name,))


def options(region: Region, **given: Any) -> Any:
    from dlog.spark.jobs.flushed_sequences import Marks
    from dlog.spark.jobs.replay import ReplayOptions

    return ReplayOptions(**{"marks": Marks.of(region.marks), **SIZES, **given})


def rows_of(to: Path, region: Region) -> dict[int, Rows]:
    """The rows in the files, by their manifests."""
    import pyarrow.parquet as pq

    found: dict[int, Rows] = {}
    for path in to.glob(f"region={region.name}/table=*/_manifest.json"):
        told = json.loads(path.read_bytes())
        rows: Rows = []
        for file in told["files"]:
            for r in pq.ParquetFile(path.parent / file["file"]).read().to_pylist():
                rows.append((f"{r['segment']}:{r['entry']}:{r['slot']}", r["sequence"], r["payload"]))
        assert (told["first_dlsn"], told["last_dlsn"], told["records"]) == (rows[0][0], rows[-1][0], len(rows))
        found[told["table"]] = rows
    return found


def check_gap(failures: list[dict[str, Any]]) -> None:
    (failure,) = failures
    assert (failure["table"], failure["error"]) == (BROKEN, "sequence gap")
    assert (failure["expected"], failure["found"]) == (20, 21)


def check_all(report: Report, to: Path, region: Region) -> None:
    assert rows_of(to, region) == region.tables
    check_gap(report.failures)
    assert int(report.verdict) == 3


def test_every_table_is_what_a_reader_finds_and_the_hot_one_is_many_tasks(
    spark: SparkSession, place: Selection, region: Region, tmp_path: Path
) -> None:
    from dlog.spark.jobs.replay import replay

    dry = replay(spark, place, options(region, to=str(tmp_path / "dry"), dry_run=True))
    assert not (tmp_path / "dry").exists()
    report = replay(spark, place, options(region, to=str(tmp_path)))
    check_all(report, tmp_path, region)
    assert len({row[0].split(":")[0] for row in region.tables[HOT]}) > 2, "several segments, else this shows little"
    hot = next(item for item in report.items if item["table"] == HOT)
    assert hot["parts"] >= 8 and max(file["bytes"] for file in hot["files"]) < hot["bytes"] / 4
    assert dry.failures == report.failures
    for name in ("table", "records", "bytes", "parts", "first_dlsn", "last_sequence"):
        assert [item[name] for item in dry.items] == [item[name] for item in report.items]
    frame = spark.read.parquet(str(tmp_path))
    assert {row["table"]: row["count"] for row in frame.groupBy("table").count().collect()} == {
        table: len(rows) for table, rows in region.tables.items()
    }, "manifests and what is on its way are no rows"


def test_a_function_gets_every_table_in_order(
    spark: SparkSession, place: Selection, region: Region, tmp_path: Path
) -> None:
    from dlog.spark.jobs.replay import replay

    module = tmp_path / f"applied_{uuid.uuid4().hex[:8]}.py"
    module.write_text(
        f"""
def apply(part, batches):
    if part.table == 101:
        raise RuntimeError("no such table here")
    with open({str(tmp_path)!r} + f"/{{part.table}}.rows", "a") as file:
        for batch in batches:
            for sequence, payload in zip(batch.column("sequence").to_pylist(), batch.column("payload").to_pylist()):
                print(part.number, sequence, payload.hex(), file=file)
"""
    )
    spark.sparkContext.addPyFile(str(module))
    report = replay(spark, place, options(region, function=f"{module.stem}:apply", work=str(tmp_path / "work")))
    assert {f["table"]: f["error"] for f in report.failures} == {
        BROKEN: "sequence gap",
        101: "RuntimeError: no such table here",
    }
    for table, rows in region.tables.items():
        if table == 101:
            assert not (tmp_path / "101.rows").exists()
            continue
        got = [line.split(" ") for line in (tmp_path / f"{table}.rows").read_text().splitlines()]
        assert [(int(sequence), bytes.fromhex(payload)) for _, sequence, payload in got] == [row[1:] for row in rows]
    assert len({line.split(" ")[0] for line in (tmp_path / f"{HOT}.rows").read_text().splitlines()}) >= 8


def test_a_region_that_cannot_be_read_fails_and_no_other_one(
    spark: SparkSession, place: Selection, region: Region, client: SyncClient, tmp_path: Path
) -> None:
    from dataclasses import replace

    from dlog.spark.jobs.replay import replay

    other = f"region-{uuid.uuid4().hex[:8]}"
    client.create(other)
    client.append(other, b"a line of text")
    report = replay(spark, replace(place, streams=(region.name, other)), options(region, to=str(tmp_path)))
    assert rows_of(tmp_path, region) == region.tables
    failure = next(f for f in report.failures if f["region"] == other)
    assert "not a record of a region" in failure["error"] and "segment=1 entry=0 slot=0" in failure["error"]


def test_killed_twice_and_begun_again_it_does_what_is_left(
    cluster: Up, place: Selection, region: Region, tmp_path: Path
) -> None:
    """The whole process group gets SIGKILL: once while pieces are split, once while tables are merged."""
    marks, to = tmp_path / "marks.json", tmp_path / "to"
    marks.write_text(json.dumps(region.marks))
    command = [
        *("pipeline", "replay", "--stream", region.name, "--marks", str(marks), "--to", str(to), "--json"),
        *("--master", "local[2]", "--piece-bytes", "100000", "--run-bytes", "30000", "--part-bytes", "90000"),
    ]
    work = to / "_replay"
    with driver(*command, directory=cluster.directory, room=tmp_path) as running:
        running.wait(lambda: len(list(work.glob("runs/*.index"))) >= 2, "no piece is split")
    pieces = len(json.loads((work / "plan.json").read_bytes())["pieces"])
    done = len(list(work.glob("runs/*.index")))
    assert 2 <= done < pieces and not list(to.glob("region=*"))
    with driver(*command, directory=cluster.directory, room=tmp_path) as running:
        running.wait(lambda: len(list(work.glob("notes/*.json"))) >= 2, "no table is merged")
    notes = len(list(work.glob("notes/*.json")))
    code, out, told = dlog(*command, directory=cluster.directory)
    assert code == 3, told
    report = json.loads(out)
    check_gap(report["failures"])
    assert report["counts"]["pieces_kept"] == pieces and report["counts"]["parts_kept"] >= notes - 2
    assert report["counts"]["parts_kept"] < report["counts"]["parts"]
    assert rows_of(to, region) == region.tables
