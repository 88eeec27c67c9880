"""Bookies as processes, on a cluster of their own in the ZooKeeper of this test run."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.zookeeper import ZooKeeper
from dlog.io.zookeeper_cluster import cluster_init
from tests.integration.bookie.process import BookieProcess
from tests.integration.bookie.raw import Raw

Make = Callable[..., BookieProcess]


def new_cluster(zookeeper: EmbeddedZooKeeper) -> str:
    """`host:port/chroot` of a new cluster."""

    async def make() -> str:
        chroot = f"/{uuid.uuid4().hex}"
        async with await ZooKeeper.connect(zookeeper.hosts) as client:
            await client.create(chroot)
        await cluster_init(zookeeper.hosts + chroot, "/dlog")
        return zookeeper.hosts + chroot

    return asyncio.run(make())


@pytest.fixture(scope="module")
def cluster(zookeeper: EmbeddedZooKeeper) -> str:
    return new_cluster(zookeeper)


@pytest.fixture
def make_bookie(cluster: str, tmp_path: Path) -> Iterator[Make]:
    """Makes bookies that are not started yet; all are killed at the end."""
    made: list[BookieProcess] = []

    def make(name: str = "bookie", zookeeper: str = cluster, **options: Any) -> BookieProcess:
        made.append(BookieProcess(tmp_path / name, zookeeper, **options))
        return made[-1]

    yield make
    for bookie in made:
        bookie.kill()


@pytest.fixture(scope="module")
def bookie(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookieProcess]:
    """One bookie that serves all tests of a module; each uses ledgers of its own."""
    process = BookieProcess(tmp_path_factory.mktemp("served") / "bookie", cluster).start()
    yield process
    process.kill()


@pytest.fixture
def raw(bookie: BookieProcess) -> Iterator[Raw]:
    with bookie.connect() as client:
        yield client
