"""A cluster of dlog and a Spark session beside it, both real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dlog
from dlog.client.sync import SyncClient
from tests.integration.cli.up import Up, up_for_many
from tests.integration.spark.desk import Desk
from tests.integration.spark.lake import Lake
from tests.integration.spark.offloading import Yard, yard_of
from tests.integration.spark.parts import need_spark
from tests.integration.storage import Storage, is_startable, storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    need_spark()
    with up_for_many(tmp_path_factory, "up") as running:
        yield running


@pytest.fixture(scope="session")
def client(cluster: Up) -> Iterator[SyncClient]:
    with dlog.connect_sync(cluster.running.connect) as opened:
        yield opened


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
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


@pytest.fixture(scope="module")
def spark(started: SparkSession) -> SparkSession:
    """Set the active session again: if a test has started a process from a thread with a preexec function, the child
    shuts down this thread's connection to the JVM, and the next connection is another thread's there."""
    from dlog import spark as room

    room.register(started)
    return started


@pytest.fixture(scope="session")
def storages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Storage]]:
    """Cold storage of each kind that can be started here."""
    with ExitStack() as stack:
        kinds = [kind for kind in ("file", "s3", "webhdfs") if is_startable(kind)]
        yield {kind: stack.enter_context(storage(kind, tmp_path_factory.mktemp(kind))) for kind in kinds}


@pytest.fixture(scope="session")
def cold_cluster(storages: dict[str, Storage], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A cluster whose proxies know how to reach all of them, by environment variables as an operator sets them. This
    process has them too."""
    need_spark()
    with pytest.MonkeyPatch.context() as patch:
        for kept in storages.values():
            for key, value in kept.environment.items():
                patch.setenv(key, value)
        with up_for_many(tmp_path_factory, "cold-up") as running:
            yield running


@pytest.fixture(scope="session")
def cold_client(cold_cluster: Up) -> Iterator[SyncClient]:
    with dlog.connect_sync(cold_cluster.running.connect) as opened:
        yield opened


@pytest.fixture(scope="module")
def lake(cluster: Up, client: SyncClient, spark: SparkSession) -> Lake:
    return Lake(cluster, client, spark)


@pytest.fixture
def desk(cluster: Up, client: SyncClient, spark: SparkSession, tmp_path: Path) -> Desk:
    return Desk(cluster, client, spark, tmp_path)


@pytest.fixture(params=["file", "s3", "webhdfs"])
def yard(request: pytest.FixtureRequest) -> Yard:
    """A `Yard` with each kind of cold storage."""
    return yard_of(request.param, request)


@pytest.fixture
def files(request: pytest.FixtureRequest) -> Yard:
    """A `Yard` with a directory."""
    return yard_of("file", request)
