"""Replay of a region in topics on a real Spark gives what `dlog region read` prints. No cluster is needed."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dlog.client.regions import Regions
from tests.integration.cli.up import dlog
from tests.integration.spark.drivers import driver
from tests.integration.spark.parts import need_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Printed = dict[int, list[tuple[int, str]]]  # by table: sequence and payload

HOT = 7


async def write(topics: str) -> None:
    """Three owners write many tables, and mark some of it."""
    rng = random.Random(3)
    async with Regions(topics, "app", clean_every_s=None) as first:
        await first.open("orders", create=True)
    for owner in range(3):
        async with Regions(topics, "app", clean_every_s=None) as regions:
            region = await regions.open("orders")
            for _ in range(100):
                tables = [HOT if rng.random() < 0.8 else rng.randrange(100, 120) for _ in range(30)]
                await region.write_many(
                    (table, rng.randbytes(rng.choice((4, 30, 200))).hex().encode()) for table in tables
                )
            await region.mark_deleted(HOT, 100 * (owner + 1))
            if owner == 1:
                await region.drop_table(101)


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> str:
    need_spark()
    address = f"file://{tmp_path_factory.mktemp('regions')}/topics"
    asyncio.run(write(address))
    return address


def printed(topics: str, directory: Path) -> Printed:
    """What `dlog region read` prints."""
    code, out, told = dlog("region", "read", "app/orders", "--topics", topics, directory=directory)
    assert code == 0, told
    found: Printed = {}
    for line in out.decode().splitlines():
        table, sequence, payload = line.split("\t")
        found.setdefault(int(table), []).append((int(sequence), payload))
    return found


def replayed(to: Path) -> Printed:
    import pyarrow.parquet as pq

    found: Printed = {}
    for path in to.glob("region=orders/table=*/_manifest.json"):
        told = json.loads(path.read_bytes())
        found[told["table"]] = [
            (row["sequence"], row["payload"].decode())
            for file in told["files"]
            for row in pq.ParquetFile(path.parent / file["file"]).read().to_pylist()
        ]
    return found


def test_the_tables_are_those_that_the_command_prints(spark: SparkSession, topics: str, tmp_path: Path) -> None:
    from dlog.spark.jobs.flushed_sequences import Marks
    from dlog.spark.jobs.replay import ReplayOptions, replay
    from dlog.spark.jobs.wal_region import RegionWal

    options = ReplayOptions(to=str(tmp_path / "to"), piece_bytes=200_000, run_bytes=60_000, part_bytes=150_000)
    report = replay(spark, None, options, wal=RegionWal(f"{topics}/app/orders"))
    expected = printed(topics, tmp_path)
    assert expected[HOT][0][0] == 300 and expected[101][0][0] > 1, "what was marked is not read"
    assert report.verdict == 0 and report.counts["pieces"] >= 5
    assert replayed(tmp_path / "to") == expected
    one = ReplayOptions(to=str(tmp_path / "one"), tables=(110,), marks=Marks.of({"110": 2}), piece_bytes=200_000)
    assert replay(spark, None, one, wal=RegionWal(f"{topics}/app/orders")).verdict == 0
    assert replayed(tmp_path / "one") == {110: expected[110][2:]}


def test_killed_twice_and_begun_again_it_does_what_is_left(topics: str, tmp_path: Path) -> None:
    """The whole process group gets SIGKILL: once while pieces are split, once while tables are merged."""
    expected, to = printed(topics, tmp_path), tmp_path / "to"
    command = [
        *("pipeline", "replay", "--region", f"{topics}/app/orders", "--to", str(to), "--json", "--master", "local[2]"),
        *("--piece-bytes", "50000", "--run-bytes", "30000", "--part-bytes", "40000"),
    ]
    work = to / "_replay"
    with driver(*command, directory=tmp_path, room=tmp_path) as running:
        running.wait(lambda: len(list(work.glob("runs/*.index"))) >= 2, "no piece is split")
    pieces = len(json.loads((work / "plan.json").read_bytes())["pieces"])
    assert 2 <= len(list(work.glob("runs/*.index"))) < pieces and not list(to.glob("region=*"))
    write = ("region", "write", "app/orders", "--table", "9", "--topics", topics)
    code, _, told = dlog(*write, given=b"later\n", directory=tmp_path)
    assert code == 0, told
    with driver(*command, directory=tmp_path, room=tmp_path) as running:
        running.wait(lambda: len(list(work.glob("notes/*.json"))) >= 2, "no table is merged")
    code, out, told = dlog(*command, directory=tmp_path)
    assert code == 0, told
    report = json.loads(out)
    assert report["counts"]["pieces_kept"] == pieces and 0 < report["counts"]["parts_kept"] < report["counts"]["parts"]
    assert replayed(to) == expected, "the plan of the first run, without what was written since"
