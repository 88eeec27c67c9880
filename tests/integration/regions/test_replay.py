"""Replay of a region on three real brokers, by its command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlog.client.regions import Regions
from tests.integration.cli.up import dlog
from tests.integration.regions.kafka_cluster import KafkaCluster
from tests.integration.spark.parts import need_spark

pytestmark = [pytest.mark.peers, pytest.mark.long]


async def test_the_tables_are_those_that_a_reader_finds(brokers: KafkaCluster, tmp_path: Path) -> None:
    need_spark()
    import pyarrow.parquet as pq

    expected: dict[int, list[tuple[int, int, bytes]]] = {}
    for owner in range(2):
        async with Regions(brokers.address, "replay", clean_every_s=None) as regions:
            region = await regions.open("orders", create=True)
            for n in range(60):
                entries = [(table, b"%d/%d/" % (owner, n) + b"x" * 2000) for table in (1, 2, 2, 3 + n % 5)]
                await region.write_many(entries)
            await region.mark_deleted(2, 50)
            if owner:
                async for entry in region.read():
                    expected.setdefault(entry.table, []).append((entry.offset, entry.sequence, entry.payload))
    to = tmp_path / "to"
    command = ("pipeline", "replay", "--region", f"{brokers.address}/replay/orders", "--to", str(to), "--json")
    code, out, told = dlog(*command, "--master", "local[2]", "--piece-bytes", "100000", directory=tmp_path)
    assert code == 0, told
    report = json.loads(out)
    assert report["counts"]["pieces"] >= 3
    found = {}
    for path in to.glob("region=orders/table=*/_manifest.json"):
        manifest = json.loads(path.read_bytes())
        found[manifest["table"]] = [
            (row["entry"], row["sequence"], row["payload"])
            for file in manifest["files"]
            for row in pq.ParquetFile(path.parent / file["file"]).read().to_pylist()
        ]
    assert found == expected and set(found) == set(range(1, 8))
    assert expected[2][0][1] == 50
