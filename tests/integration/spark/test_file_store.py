"""Spark on streams whose segments are in files, in a cluster without bookies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dlog
from dlog.client.sync import SyncClient
from tests.integration.cli.up import Up, up_for_many
from tests.integration.cli.up import dlog as run_dlog
from tests.integration.spark.lake import Lake
from tests.integration.spark.parts import need_spark
from tests.integration.spark.test_sink import expected, rows, values, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def without_bookies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    need_spark()
    flags = ("--bookies", "0", "--write-proxies", "1", "--read-proxies", "1")
    with up_for_many(tmp_path_factory, "files-up", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def opened(without_bookies: Up) -> Iterator[SyncClient]:
    with dlog.connect_sync(without_bookies.running.connect) as client:
        yield client


@pytest.fixture(scope="module")
def lake(without_bookies: Up, opened: SyncClient, spark: SparkSession) -> Lake:
    return Lake(without_bookies, opened, spark)


@pytest.fixture
def file_options(without_bookies: Up) -> dict[str, Any]:
    return {"file.directory": without_bookies.running.file_directory}


@pytest.fixture
def directory(file_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of segments, which jobs find in the environment."""
    monkeypatch.setenv("DLOG_FILE_DIRECTORY", file_options["file.directory"])
    return Path(file_options["file.directory"])


def two_segments(lake: Lake) -> str:
    """A stream with a completed segment and an open one."""
    name = lake.create()
    for payload in expected(100):
        lake.client.append(name, payload)
    lake.client.hand_over(name)
    for payload in expected(50, first=100):
        lake.client.append(name, payload)
    return name


def stored(lake: Lake, directory: str, name: str) -> tuple[set[str], set[str]]:
    """Locations of the stream's segments, and of all segments of the store."""
    listed = lake.client.stat(name).segments
    assert {segment.store for segment in listed} == {"file"}
    return {segment.location for segment in listed}, {path.stem for path in Path(directory).glob("*/*.entries")}


def test_completed_and_open_segments_are_read_and_batches_become_segments(
    lake: Lake, file_options: dict[str, Any], tmp_path: Path
) -> None:
    name, copy = two_segments(lake), lake.create()
    assert lake.rows(lake.read(name, **file_options)) == lake.truth(name)
    write(lake, rows(lake, 4000, 2, size=1000, first=150), name, **file_options)
    assert values(lake, name)[150:] == expected(4000, 1000, 150)
    listed, _ = stored(lake, file_options["file.directory"], name)
    assert len(listed) == 5, "two, a stage for each partition, and the open one"
    reader = lake.spark.readStream.format("dlog").schema("value binary").option("stream", name)
    reader = reader.option("startingOffsets", "earliest").option("zookeeper", lake.zookeeper)
    writer = reader.option("file.directory", file_options["file.directory"]).load().writeStream.format("dlog")
    writer = writer.option("zookeeper", lake.zookeeper).option("file.directory", file_options["file.directory"])
    writer = writer.option("stream", copy).option("sinkId", "copy").option("checkpointLocation", str(tmp_path))
    for _ in range(2):
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(180)
    assert values(lake, copy) == values(lake, name)
    listed |= stored(lake, file_options["file.directory"], copy)[0]
    assert stored(lake, file_options["file.directory"], name)[1] == listed, "no stage is left"
    with pytest.raises(Exception, match=r"set file\.directory"):
        lake.read(name).count()


def test_an_audit_proves_files_and_a_damaged_one_is_not_moved(lake: Lake, directory: Path, tmp_path: Path) -> None:
    from dlog.spark.jobs.audit import AuditOptions, audit
    from dlog.spark.jobs.frame import Selection
    from dlog.spark.jobs.offload import OffloadOptions, offload

    name = two_segments(lake)
    whole, stream = Selection(zookeeper=lake.zookeeper), Selection(zookeeper=lake.zookeeper, streams=(name,))
    options = AuditOptions(orphan_age_s=0.0, patience_s=0.5)
    proved = audit(lake.spark, whole, options)
    assert (proved.findings, proved.failures) == ([], [])
    of_stream = [item for item in proved.items if item["stream"] == name]
    assert [(item["records"], item["store"], item["replicas"]) for item in of_stream] == [
        (100, "file", 1),
        (50, "file", 1),
    ]
    place = of_stream[0]["location"]
    sound = directory / place[:2] / f"{place}.entries"
    orphan = directory / "00" / f"{'0' * 32}.entries"
    orphan.parent.mkdir(exist_ok=True)
    data = sound.read_bytes()
    orphan.write_bytes(data)
    sound.write_bytes(data.replace(expected(100)[50], b"damaged..."))
    told = audit(lake.spark, whole, options)
    assert {(f["stream"], f["segment"], f["kind"]) for f in told.findings} == {
        (name, 1, "digest"),
        (name, 1, "orphan_file"),
    }
    assert told.counts["files"] == proved.counts["files"] + 1
    orphan.unlink()
    report = offload(lake.spark, stream, OffloadOptions(to=f"file://{tmp_path}", older_than_s=0.0, keep=0))
    assert report.counts.get("segments_offloaded", 0) == 0 and report.failures == []
    assert [(f["stream"], f["segment"]) for f in report.findings] == [(name, 1)]
    assert stored(lake, str(directory), name)[0] >= {place}
    lake.client.append(name, b"and on")


def test_segments_move_from_files_to_cold_storage_and_are_read_as_before(
    without_bookies: Up, lake: Lake, file_options: dict[str, Any], tmp_path: Path
) -> None:
    """By the command, which finds the directory of segments as that of a running `dlog up`."""
    name = two_segments(lake)
    truth = lake.truth(name)
    listed = lake.client.stat(name).segments[0].location
    files = f"{listed[:2]}/{listed}.*"
    directory = Path(file_options["file.directory"])

    def offload(grace: str) -> dict[str, int]:
        flags = ("--stream", name, "--to", f"file://{tmp_path}", "--older-than", "0s", "--keep", "0", "--grace", grace)
        of_cluster = Path(without_bookies.running.directory)
        code, out, err = run_dlog("pipeline", "offload", *flags, "--master", "local[1]", "--json", directory=of_cluster)
        assert code == 0, err
        counts: dict[str, int] = json.loads(out)["counts"]
        return counts

    moved = offload("1h")
    (copy,) = tmp_path.rglob("*.seg")
    assert moved["segments_offloaded"] == 1 and 0 < moved["bytes_offloaded"] < copy.stat().st_size
    assert [segment.store for segment in lake.client.stat(name).segments] == ["cold", "file"]
    assert lake.rows(lake.read(name, **file_options)) == truth == lake.truth(name)
    assert list(directory.glob(files)), "within the grace period"
    assert offload("0s")["hot_copies_deleted"] == 1
    assert not list(directory.glob(files))
    assert lake.rows(lake.read(name, **file_options)) == truth == lake.truth(name)
    lake.client.delete(name)
    assert not list(tmp_path.rglob("*.seg")), "the stream's segments are deleted wherever they are"
