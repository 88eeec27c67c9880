"""The Java peers (jars by `make peers`) and the real clusters for them: dlog's, Java's and mixed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.zookeeper_cluster import cluster_init
from tests.certificates import Authority
from tests.integration.cluster import BookieCluster, own_bookies, start_bookies
from tests.integration.conftest import zookeeper
from tests.integration.leftovers import remove_data
from tests.integration.proxies.processes import ProxyCluster
from tests.interop.java_bookies import JavaCluster, start_java
from tests.interop.java_peer import JavaLogs, JavaPeer, need_java

__all__ = ["own_bookies", "zookeeper"]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs the certificates of bookies and clients."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def bookies(
    zookeeper: EmbeddedZooKeeper, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BookieCluster]:
    """Three bookies of dlog shared by tests that leave them as they are; they accept START_TLS from clients with a
    certificate."""
    issued = authority.issue("bookie")
    flags = ("--tls-certificate", str(issued.certificate), "--tls-key", str(issued.key))
    directory = tmp_path_factory.mktemp("bookies")
    cluster = start_bookies(zookeeper, directory, 3, *flags, "--tls-client-ca", str(authority.ca))
    yield cluster
    cluster.close()
    remove_data(cluster.directory)


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    """The JVM with the Java clients, one for all tests of this process."""
    need_java()
    peer = JavaPeer.start(tmp_path_factory.mktemp("java"))
    yield peer
    peer.close()


@pytest.fixture(scope="session")
def java_bookies(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaCluster]:
    """Three Java bookies for tests that leave three running."""
    need_java()
    cluster = start_java(zookeeper, tmp_path_factory.mktemp("java-bookies"))
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def proxies(java_bookies: JavaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyCluster]:
    """Two write and two read proxies of dlog over Java bookies, for tests that leave them running."""
    yield from started(java_bookies, tmp_path_factory.mktemp("proxies"))


@pytest.fixture
def own_proxies(java_bookies: JavaCluster, tmp_path: Path) -> Iterator[ProxyCluster]:
    """The same for one test that kills or freezes them."""
    yield from started(java_bookies, tmp_path / "proxies")


def started(cluster: BookieCluster, directory: Path) -> Iterator[ProxyCluster]:
    """Start proxies in a namespace that no other test uses."""
    namespace = f"/messaging/{uuid.uuid4().hex}"
    asyncio.run(cluster_init(cluster.hosts, namespace))
    proxies = ProxyCluster(cluster, namespace, directory)
    try:
        proxies.start()
        yield proxies
    finally:
        proxies.close()


@pytest.fixture
def logs(java: JavaPeer, proxies: ProxyCluster) -> JavaLogs:
    """Java's DistributedLog on the namespace of `proxies`."""
    return JavaLogs(java, proxies.bookies.hosts, proxies.namespace)


@pytest.fixture
def stream() -> str:
    """A name that no other test uses."""
    return f"s-{uuid.uuid4().hex}"
