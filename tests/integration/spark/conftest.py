"""A cluster of ours and a Spark session beside it, both real."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import dlog
from dlog.client.sync import SyncClient
from tests.integration.cli.up import Up, up
from tests.integration.spark.parts import need_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    need_spark()
    with up(tmp_path_factory.mktemp("up") / "cluster") as running:
        yield running


@pytest.fixture(scope="session")
def client(cluster: Up) -> Iterator[SyncClient]:
    with dlog.connect_sync(cluster.running.connect) as opened:
        yield opened


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    need_spark()
    from dlog import spark as room

    session = room.session(
        "tests",
        **{
            "spark.master": "local[2,4]",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.log.level": "ERROR",
        },
    )
    yield session
    session.stop()
