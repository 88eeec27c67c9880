"""What `offload` makes besides objects, and what killed runs of it leave: Parquet files, and objects that no metadata
names."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dlog.io.zookeeper_protocol import ANY_VERSION
from dlog.model.dlsn import of
from dlog.model.offloading import Record as Moving
from dlog.spark.jobs.frame import Verdict
from dlog.spark.jobs.offload_copy import cold_store
from dlog.spark.jobs.offload_records import OffloadRecords, SweptError
from dlog.stores.cold.locations import ObjectName
from dlog.stores.object_storage.locations import parse_root
from dlog.stores.object_storage.port import ObjectWriter
from tests.integration.spark.offloading import HOUR_S, Yard, yard_of

if TYPE_CHECKING:
    from dlog.spark.cluster_connection import Cluster


# ---- Parquet --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_parquet_holds_the_same_records_with_their_places(kind: str, request: pytest.FixtureRequest) -> None:
    yard = yard_of(kind, request)
    name = yard.written()
    every = yard.rows(name)
    cut = next(i for i, row in enumerate(every) if row[2] > 2 and row[1] > 1)
    yard.client.truncate(name, of(*every[cut][:3]))  # in the middle of an entry
    rows = yard.rows(name)
    assert rows == every[cut:]
    yard.offload(name)
    assert yard.rows(name) == rows
    root = f"{yard.kept.root.rpartition('/')[0]}/parquet"
    base = yard.kept.files
    assert base is not None
    report = yard.offload(name, parquet=root)
    moved = yard.cold_segments(name)
    assert report.verdict is Verdict.OK, report.as_json()
    assert report.counts["parquet_files"] == len(moved)
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = sorted((base.parent / "parquet").rglob(f"*/{name}/*.parquet"))
    tables = [pq.read_table(path) for path in paths]
    whole = pa.concat_tables(tables).to_pylist()
    numbers = {segment.number for segment in moved}
    got = [(r["segment"], r["entry"], r["slot"], r["txid"], r["value"]) for r in whole]
    assert got == [row for row in rows if row[0] in numbers]
    assert {r["stream"] for r in whole} == {name} and all(r["timestamp"] is not None for r in whole)
    assert [r["sequence_id"] for r in whole] == list(range(cut, cut + len(whole)))
    for path, segment in zip(paths, moved, strict=True):
        footer = pq.ParquetFile(path).metadata
        told = {key.decode(): value.decode() for key, value in footer.metadata.items() if key.startswith(b"dlog.")}
        here = [row for row in rows if row[0] == segment.number]
        assert (told["dlog.stream"], told["dlog.segment"]) == (name, str(segment.number))
        assert told["dlog.records"] == str(len(here)) == str(footer.num_rows)
        assert told["dlog.first_dlsn"] == ":".join(map(str, here[0][:3]))
        assert told["dlog.last_dlsn"] == ":".join(map(str, here[-1][:3]))
        assert (told["dlog.first_txid"], told["dlog.last_txid"]) == (str(here[0][3]), str(here[-1][3]))
        statistics = footer.row_group(0).column(4).statistics
        assert (statistics.min, statistics.max) == (here[0][3], here[-1][3])
    if kind == "file":
        frame = yard.spark.read.option("recursiveFileLookup", "true").parquet(f"{base.parent}/parquet")
        found = frame.where(f"stream = '{name}'").select("segment", "entry", "slot", "txid", "value").collect()
        assert sorted((r.segment, r.entry, r.slot, r.txid, bytes(r.value)) for r in found) == got
    again = yard.offload(name, parquet=root)
    assert again.counts.get("parquet_files", 0) == 0, "each file once"


# ---- files of killed runs -------------------------------------------------------------------------------------------


def test_what_nobody_names_is_swept_and_what_is_named_is_not(yard: Yard) -> None:
    name = yard.written()
    rows = yard.rows(name)
    yard.offload(name)
    folder = parse_root(yard.objects(name)[0]).parent
    orphan = folder.below(str(ObjectName(1, os.urandom(8).hex(), 7)))
    strange = folder.below("notes.txt")
    forgotten = folder.parent.below(f"{name}-gone", str(ObjectName(3, os.urandom(8).hex(), 7)))

    async def leave(cluster: Cluster) -> None:
        objects = cold_store(cluster).objects
        for place in (orphan, strange, forgotten):
            writer = await objects.create(place)
            await writer.write((b"x" * 100,))
            await writer.finish()
        half = await objects.create(folder.below(str(ObjectName(2, os.urandom(8).hex(), 7))))
        await half.write((b"y" * (17 << 20),))
        halves.append(half)

    async def let_go(cluster: Cluster) -> None:
        await halves.pop().abort()

    halves: list[ObjectWriter] = []
    yard.ask(leave)
    named = {segment.name for segment in yard.cold_segments(name)}
    young = yard.offload(name)
    assert str(orphan) in yard.objects(name) and young.counts.get("objects_swept", 0) == 0, "it may be somebody's"
    swept = yard.offload(name, orphan_age_s=0.0)
    assert (swept.verdict, swept.counts["objects_swept"], swept.counts["unfinished_swept"]) == (Verdict.OK, 1, 1)
    assert set(yard.objects(name)) == {*named, str(strange)}, "only what is ours by its name"
    assert yard.objects(f"{name}-gone") == [str(forgotten)], "nothing was said of that one"
    assert yard.offload(pattern=f"{name}.*", orphan_age_s=0.0).counts["objects_swept"] == 1
    assert yard.objects(f"{name}-gone") == [] and yard.znodes(f"{name}-gone") == []
    assert yard.rows(name) == rows
    yard.ask(let_go)


def test_objects_of_a_stream_that_cannot_be_read_are_nobodys_to_sweep(files: Yard) -> None:
    name = files.written()
    files.offload(name)
    held, number = files.objects(name), files.cold_segments(name)[0].number
    paths: list[str] = []

    async def damage(cluster: Cluster) -> None:
        folder = f"{files.namespace}/{name}/<default>/ledgers"
        zookeeper = cluster.metadata.zookeeper
        names, _ = await zookeeper.children(folder)
        paths.append(f"{folder}/{sorted(names)[number - 1]}")
        await zookeeper.set(paths[0], b"no segment", ANY_VERSION)

    files.ask(damage)
    report = files.offload(pattern=f"{name}.*", orphan_age_s=0.0, dry_run=True)
    assert (report.verdict, report.items) == (Verdict.FINDINGS, [])
    assert files.offload(pattern=f"{name}.*", orphan_age_s=0.0).counts.get("objects_swept", 0) == 0
    assert files.objects(name) == held


def test_an_object_is_either_swept_or_remembered(files: Yard) -> None:
    """The first one shuts the other out, also if it is a run that was paused between copying and changing the
    stream."""
    name = files.written()
    place = f"{files.kept.root}/c/dlog/{name}/000000000000000001-{'0' * 16}-5.seg"
    record = Moving(stream=name, number=1, store="ledger", name="1", objects=(place,))

    async def contend(cluster: Cluster) -> None:
        records = OffloadRecords(cluster, files.namespace)
        await records.claim(name, place)
        with pytest.raises(SweptError):
            await records.begin(record)
        assert await records.swept(name) == [place]
        await records.unmark_swept(name, place)
        kept = await records.begin(record)
        assert [one.record for one in await records.of(name)] == [record]
        later = await records.change(kept, replace(kept.record, moved_unix_ms=7))
        assert (await records.of(name))[0].record.moved_unix_ms == 7
        await records.forget(later)
        await records.forget(later)

    files.ask(contend)
    assert files.znodes(name) == []


def test_the_grace_period_of_an_hour_is_the_default(files: Yard) -> None:
    assert (files.options().grace_s, type(files.options())(to=files.kept.root).grace_s) == (HOUR_S, HOUR_S)
