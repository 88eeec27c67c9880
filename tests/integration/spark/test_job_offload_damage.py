"""Tests `offload` with damaged data and with locations that cannot be used; on a directory and a real S3."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dlog
from dlog.errors import ConfigError, DamagedError, InvalidRequestError, StreamNotFoundError
from dlog.log.dedup_trailer import encode_trailer
from dlog.model.ids import EntryId
from dlog.model.quorum import Quorum
from dlog.spark.jobs import offload_settle
from dlog.spark.jobs.frame import Verdict
from dlog.stores.contract import MisconfiguredError
from dlog.wire.entry import CONTROL, RECORD_SET, Record, build_record_set, encode_entry
from tests.integration.cli.up import up, wait_until
from tests.integration.spark.offloading import Yard, yard_of

if TYPE_CHECKING:
    from dlog.spark.cluster_connection import Cluster


# ---- damage is reported ---------------------------------------------------------------------------------------------


def flip(yard: Yard, place: str, needle: bytes) -> None:
    """Flip one byte of an object, behind this text."""
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
    flip(yard, victim.name, first[4][:60])
    report = yard.offload(name, grace_s=0.0)
    assert report.verdict is Verdict.FINDINGS
    (finding,) = report.findings
    assert (finding["kind"], finding["stream"], finding["segment"]) == ("cold", name, victim.number)
    assert "checksum" in finding["text"]
    assert report.counts["segments_taken_back"] == 1
    back = next(s for s in yard.segments(name) if s.number == victim.number)
    assert (back.store, back.name) == ("ledger", hot[int(victim.number)])
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
    flip(yard, victim.name, first[4][:60])
    for part in yard.cluster.running.parts:
        if part.role == "read":  # they may have read it before
            yard.cluster.wait_restarted(yard.cluster.kill_part("read", part.address))
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
    """The damaged entry is as it was stored, and differs from what its producer sent."""
    name = files.written()
    files.client.hand_over(name)
    wait_until(lambda: files.value(name).owner.released, "the stream was handed back")
    victim = files.sealed(name)[1]

    async def write(cluster: Cluster) -> str:
        ledger = await cluster.ledgers.create(Quorum(ensemble=3, write=3, ack=2))
        batch = build_record_set([b"x" * 100] * victim.record_count)
        note = encode_trailer(1, -1, [(b"p" * 16, 0, victim.record_count, 12345, 0)], None)
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
    files.client.hand_over(name)
    wait_until(lambda: files.value(name).owner.released, "the stream was handed back")
    victim = files.sealed(name)[0]
    files.replace_ledger(name, int(victim.number), victim.name, record_count=victim.record_count + 1)
    (finding,) = files.offload(name).findings
    assert "the list and the segment differ in records" in finding["text"]


def test_what_cannot_be_is_refused_before_anything_is_done(files: Yard) -> None:
    with pytest.raises(InvalidRequestError, match="segments cannot be written to this store"):
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


@pytest.fixture
def untold(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Yard]:
    """These proxies do not know how to reach S3."""
    told = yard_of("s3", request)
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for key in [key for key in os.environ if key.startswith("DLOG_COLD_")]:
                patch.delenv(key)
            cluster = stack.enter_context(up(tmp_path / "untold", "--bookies", "3"))
        client = stack.enter_context(dlog.connect_sync(cluster.running.connect))
        yield Yard(cluster, client, told.spark, told.kept)


def test_proxies_that_cannot_read_it_there_are_found_out_with_the_first_segment(untold: Yard) -> None:
    name = untold.written()
    rows, hot = untold.rows(name), untold.hot(name)
    report = untold.offload(name, fails=True)
    assert report.verdict is Verdict.FAILED
    assert all("proxies cannot read the segment in cold storage" in failure["text"] for failure in report.failures)
    assert "Unable to locate credentials" in report.failures[0]["text"]
    assert untold.cold_segments(name) == [] and untold.hot(name) == hot
    assert untold.rows(name) == rows


def test_no_hot_copy_goes_before_a_proxy_was_seen_to_read_from_cold_storage(
    untold: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run changed the streams, and was killed before it checked that a proxy reads them."""

    async def nobody_tries(*_: object) -> str:
        return ""

    name = untold.written()
    rows, hot = untold.rows(name), untold.hot(name)
    with monkeypatch.context() as patch:
        patch.setattr(offload_settle, "_try_out", nobody_tries)
        moved = untold.offload(name)
    assert moved.verdict is Verdict.OK and len(untold.cold_segments(name)) > 1
    report = untold.offload(name, grace_s=0.0, fails=True)
    assert report.verdict is Verdict.FAILED
    assert all("proxies cannot read the segment in cold storage" in failure["text"] for failure in report.failures)
    assert untold.cold_segments(name) == [] and untold.hot(name) == hot
    assert untold.rows(name) == rows
