"""Spark on streams of the store `s3`: what is in objects, and what is only in the log of a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dlog
from dlog.client.sync import SyncClient
from tests.integration.cli.up import Up, up_for_many, wait_until
from tests.integration.spark.lake import Lake
from tests.integration.spark.parts import need_spark
from tests.integration.spark.test_sink import expected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: entries are uploaded once there is so much of them, and not for their age
UPLOADS = "[objects]\nupload_bytes = 65536\nupload_s = 3600.0\n"


@pytest.fixture(scope="module")
def on_objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    need_spark()
    config = tmp_path_factory.mktemp("s3-spark") / "dlog.toml"
    config.write_text(UPLOADS)
    flags = ("--bookies", "0", "--write-proxies", "1", "--read-proxies", "1", "--config", str(config))
    with up_for_many(tmp_path_factory, "s3-up", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def opened(on_objects: Up) -> Iterator[SyncClient]:
    with dlog.connect_sync(on_objects.running.connect) as client:
        yield client


@pytest.fixture(scope="module")
def lake(on_objects: Up, opened: SyncClient, spark: SparkSession) -> Lake:
    return Lake(on_objects, opened, spark)


@pytest.fixture
def options(on_objects: Up) -> dict[str, Any]:
    return {"objects.root": on_objects.running.objects_root, "file.directory": on_objects.running.file_directory}


def test_what_is_in_objects_and_what_is_not_uploaded_are_read(
    lake: Lake, on_objects: Up, options: dict[str, Any]
) -> None:
    name = lake.create(store="s3")
    root = Path(on_objects.running.objects_root.removeprefix("file://"))
    for payload in expected(200, size=1000):
        lake.client.append(name, payload)
    wait_until(lambda: any(path.is_file() for path in root.glob("*/streams/**/*")), "nothing is uploaded")
    lake.client.hand_over(name)
    lake.client.append(name, b"in a segment that is written, and in no object")
    assert {segment.store for segment in lake.client.stat(name).segments} == {"s3"}
    assert len(lake.client.stat(name).segments) == 2
    truth = lake.truth(name)
    assert len(truth) == 201
    assert lake.rows(lake.read(name, **options)) == truth


def test_without_a_root_the_error_says_what_to_set(lake: Lake) -> None:
    name = lake.create(store="s3")
    lake.client.append(name, b"one")
    with pytest.raises(Exception, match=r"objects\.root"):
        lake.rows(lake.read(name))
