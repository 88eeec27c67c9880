"""Proxies under test: in the test's process on memory (`local`), or as processes on real bookies (`cluster`)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dlog.io.zookeeper_cluster import cluster_init
from tests.integration.cluster import BookieCluster, bookies, own_bookies
from tests.integration.proxies.local_proxies import LocalProxies
from tests.integration.proxies.local_proxies import local as open_local_proxies
from tests.integration.proxies.processes import ProxyCluster

__all__ = ["bookies", "own_bookies"]


@pytest.fixture
async def local() -> AsyncIterator[LocalProxies]:
    """Shared metadata and segments in memory; start proxies on it."""
    async with open_local_proxies() as built:
        yield built


@pytest.fixture
def cluster(bookies: BookieCluster, tmp_path: Path) -> Iterator[ProxyCluster]:
    """Two write and two read proxies of the test's own, on shared bookies, in a namespace that no other test uses."""
    yield from _started(bookies, tmp_path)


@pytest.fixture
def own_cluster(own_bookies: BookieCluster, tmp_path: Path) -> Iterator[ProxyCluster]:
    """The same on bookies that the test may kill or freeze."""
    yield from _started(own_bookies, tmp_path)


@pytest.fixture
def cluster_with_objects(
    bookies: BookieCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProxyCluster]:
    """As `cluster`, with objects in a directory, so that streams may be in the stores `s3` and `s3-direct`."""
    monkeypatch.setenv("DLOG_OBJECTS_ROOT", f"file://{tmp_path / 'objects'}")
    yield from _started(bookies, tmp_path)


def _started(bookies: BookieCluster, directory: Path) -> Iterator[ProxyCluster]:
    namespace = f"/messaging/{uuid.uuid4().hex}"
    asyncio.run(cluster_init(bookies.hosts, namespace))
    cluster = ProxyCluster(bookies, namespace, directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
