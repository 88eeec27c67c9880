"""What `offload` does with what is damaged, with leavings, and with Parquet; on a directory and a real S3."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import dlog
from dlog.errors import ConfigError, DamagedError, InvalidRequestError, StreamNotFoundError
from dlog.log.note import encode_note
from dlog.model.ids import EntryId
from dlog.model.quorum import Quorum
from dlog.spark.jobs.frame import Verdict
from dlog.spark.jobs.offload_copy import cold_store
from dlog.spark.jobs.offload_records import Record as Moving
from dlog.spark.jobs.offload_records import Records, SweptError
from dlog.stores.cold.objects import ObjectWriter
from dlog.stores.cold.places import ObjectName, parse_root
from dlog.stores.contract import MisconfiguredError
from dlog.wire.entry import CONTROL, RECORD_SET, Record, build_record_set, encode_entry
from tests.integration.cli.up import wait_until
from tests.integration.spark.offloading import HOUR_S, Yard, yard_of

if TYPE_CHECKING:
    from dlog.spark.reach import Cluster


@pytest.fixture(params=["file", "s3", "webhdfs"])
def yard(request: pytest.FixtureRequest) -> Yard:
    return yard_of(request.param, request)


@pytest.fixture
def files(request: pytest.FixtureRequest) -> Yard:
    return yard_of("file", request)


# ---- what is wrong is told ------------------------------------------------------------------------------------------


def flip(yard: Yard, place: str, needle: bytes) -> None:
    """One byte of an object, behind this text."""
    file = yard.kept.file_of(place)
    data = bytearray(file.read_bytes())
    data[data.index(needle) + len(needle)] ^= 0x40
    file.write_bytes(data)


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_an_object_that_is_damaged_within_the_grace_period_is_left_for_the_ledger(
    kind: str, request: pytest.FixtureRequest
) -> None:
    yard = yard_of(kind, request)
    name = yard.written()
    rows, hot = yard.rows(name), yard.hot(name)
    yard.offload(name)
    victim = yard.cold_segments(name)[1]
    first = next(row for row in rows if row[0] == victim.number and len(row[4]) > 100)
    flip(yard, victim.place, first[4][:60])
    report = yard.offload(name, grace_s=0.0)
    assert report.verdict is Verdict.FINDINGS
    (finding,) = report.findings
    assert (finding["kind"], finding["stream"], finding["segment"]) == ("cold", name, victim.number)
    assert "checksum" in finding["text"]
    assert report.counts["segments_taken_back"] == 1
    back = next(s for s in yard.segments(name) if s.number == victim.number)
    assert (back.store, back.place) == ("ledger", hot[int(victim.number)])
    assert yard.rows(name) == rows
    assert yard.offload(name).verdict is Verdict.OK, "copied anew"
    assert yard.offload(name, grace_s=0.0).verdict is Verdict.OK
    yard.check_over(name, rows, hot)


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_an_object_that_is_damaged_later_is_an_error_for_every_reader(
    kind: str, request: pytest.FixtureRequest
) -> None:
    yard = yard_of(kind, request)
    name = yard.written()
    rows = yard.rows(name)
    yard.offload(name)
    yard.offload(name, grace_s=0.0)
    victim = yard.cold_segments(name)[1]
    first = next(row for row in rows if row[0] == victim.number and len(row[4]) > 100)
    flip(yard, victim.place, first[4][:60])
    yard.client.release(name)
    seen = []
    with dlog.connect_sync(yard.cluster.running.connect) as fresh, pytest.raises(DamagedError):
        for record in fresh.read(name):
            seen.append((*record.dlsn, record.txid, record.payload))
    assert seen == rows[: len(seen)] and len(seen) <= rows.index(first)
    with pytest.raises(Exception, match="checksum does not match"):
        yard.spark_rows(name)
    left = yard.spark_rows(name, onCorruption="skip-entry")
    assert left == [row for row in rows if row[:2] != first[:2]], "one entry less"


def test_a_segment_that_is_damaged_stays_where_it_is_and_the_others_go(files: Yard) -> None:
    """Its entry is what was written, and not what its producer sent."""
    name = files.written()
    files.client.release(name)
    wait_until(lambda: files.value(name).owner.released, "the stream was handed back")
    victim = files.sealed(name)[1]

    async def write(cluster: Cluster) -> str:
        ledger = await cluster.ledgers.create(Quorum(ensemble=3, write=3, ack=2))
        batch = build_record_set([b"x" * 100] * victim.record_count)
        note = encode_note(1, -1, [(b"p" * 16, 0, victim.record_count, 12345, 0)], None)
        records = [
            Record(RECORD_SET, 1, victim.last_txid, batch),
            Record(CONTROL, victim.record_count, victim.last_txid, note),
        ]
        await ledger.append(encode_entry(records))
        await ledger.close()
        return str(ledger.ledger_id)

    files.replace_ledger(name, int(victim.number), files.ask(write), last_entry=EntryId(0))
    report = files.offload(name)
    assert report.verdict is Verdict.FINDINGS, report.as_json()
    (finding,) = report.findings
    assert (finding["kind"], finding["segment"]) == ("source", victim.number)
    assert "the producer's checksum does not match" in finding["text"] and "entry=0" in finding["text"]
    cold = {s.number for s in files.cold_segments(name)}
    assert victim.number not in cold and len(cold) == len(files.sealed(name)) - 2
    assert files.unfinished(name) == [] and len(files.objects(name)) == len(cold)


def test_a_list_that_counts_other_records_is_told(files: Yard) -> None:
    name = files.written()
    files.client.release(name)
    wait_until(lambda: files.value(name).owner.released, "the stream was handed back")
    victim = files.sealed(name)[0]
    files.replace_ledger(name, int(victim.number), victim.place, record_count=victim.record_count + 1)
    (finding,) = files.offload(name).findings
    assert "counts other records than there are" in finding["text"]


def test_what_cannot_be_is_refused_before_anything_is_done(files: Yard) -> None:
    with pytest.raises(InvalidRequestError, match="segments are moved there"):
        files.client.create("straight-to-cold", store="cold")
    with pytest.raises(StreamNotFoundError):
        files.offload("no-such-stream")
    with pytest.raises(ConfigError, match="NameNode's HTTP address"):
        files.options(to="hdfs://nn:8020/cold")
    with pytest.raises(ConfigError, match="parquet_compression"):
        files.options(parquet=files.kept.root, parquet_compression="rar")


def test_a_place_that_cannot_be_used_ends_the_job_at_once(request: pytest.FixtureRequest) -> None:
    yard = yard_of("s3", request)
    name = yard.written()
    with pytest.raises(MisconfiguredError, match="NoSuchBucket"):
        yard.offload(name, to="s3://no-such-bucket/x")
    assert yard.znodes(name) == []


# ---- Parquet --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_parquet_holds_the_same_records_with_their_places(kind: str, request: pytest.FixtureRequest) -> None:
    yard = yard_of(kind, request)
    name = yard.written()
    rows = yard.rows(name)
    yard.offload(name)
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
    assert [r["sequence_id"] for r in whole] == list(range(len(whole)))
    for path, segment in zip(paths, moved, strict=True):
        footer = pq.ParquetFile(path).metadata
        told = {key.decode(): value.decode() for key, value in footer.metadata.items() if key.startswith(b"dlog.")}
        of = [row for row in rows if row[0] == segment.number]
        assert (told["dlog.stream"], told["dlog.segment"]) == (name, str(segment.number))
        assert told["dlog.records"] == str(len(of)) == str(footer.num_rows)
        assert told["dlog.first_dlsn"] == ":".join(map(str, of[0][:3]))
        assert told["dlog.last_dlsn"] == ":".join(map(str, of[-1][:3]))
        assert (told["dlog.first_txid"], told["dlog.last_txid"]) == (str(of[0][3]), str(of[-1][3]))
        statistics = footer.row_group(0).column(4).statistics
        assert (statistics.min, statistics.max) == (of[0][3], of[-1][3])
    if kind == "file":
        frame = yard.spark.read.option("recursiveFileLookup", "true").parquet(f"{base.parent}/parquet")
        here = frame.where(f"stream = '{name}'").select("segment", "entry", "slot", "txid", "value").collect()
        assert sorted((r.segment, r.entry, r.slot, r.txid, bytes(r.value)) for r in here) == got
    again = yard.offload(name, parquet=root)
    assert again.counts.get("parquet_files", 0) == 0, "each file once"


# ---- what is left behind --------------------------------------------------------------------------------------------


def test_what_nobody_names_is_swept_and_what_is_named_is_not(yard: Yard) -> None:
    name = yard.written()
    rows = yard.rows(name)
    yard.offload(name)
    folder = parse_root(yard.objects(name)[0]).parent
    orphan = folder.below(str(ObjectName(1, os.urandom(8).hex(), 7)))
    strange = folder.below("notes.txt")

    async def leave(cluster: Cluster) -> None:
        objects = cold_store(cluster).objects
        for place in (orphan, strange):
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
    named = {segment.place for segment in yard.cold_segments(name)}
    young = yard.offload(name)
    assert str(orphan) in yard.objects(name) and young.counts.get("objects_swept", 0) == 0, "it may be somebody's"
    swept = yard.offload(name, orphan_age_s=0.0)
    assert (swept.verdict, swept.counts["objects_swept"], swept.counts["unfinished_swept"]) == (Verdict.OK, 1, 1)
    assert set(yard.objects(name)) == {*named, str(strange)}, "only what is ours by its name"
    assert yard.rows(name) == rows
    yard.ask(let_go)


def test_an_object_is_either_swept_or_remembered(files: Yard) -> None:
    """Whoever is first, shuts the other out: also a run that slept between copying and telling."""
    name = files.written()
    place = f"{files.kept.root}/c/dlog/{name}/000000000000000001-{'0' * 16}-5.seg"
    record = Moving(stream=name, number=1, store="ledger", place="1", objects=(place,))

    async def contend(cluster: Cluster) -> None:
        records = Records(cluster, files.namespace)
        await records.claim(name, place)
        with pytest.raises(SweptError):
            await records.begin(record)
        assert await records.swept(name) == [place]
        await records.unclaim(name, place)
        kept = await records.begin(record)
        assert [one.record for one in await records.of(name)] == [record]
        later = await records.note(kept, moved_unix_ms=7)
        assert (await records.of(name))[0].record.moved_unix_ms == 7
        await records.forget(later)
        await records.forget(later)

    files.ask(contend)
    assert files.znodes(name) == []


def test_the_grace_period_of_an_hour_is_the_default(files: Yard) -> None:
    assert (files.options().grace_s, type(files.options())(to=files.kept.root).grace_s) == (HOUR_S, HOUR_S)
