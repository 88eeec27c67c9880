"""A small cluster that all tests with bad input share: it must survive all of them."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.client.client import Client, connect
from dlog.client.stream_info import SettingsChanges
from dlog.io.zookeeper_cluster import cluster_init
from tests.integration.cluster import BookieCluster, ServerProcess, bookies

__all__ = ["bookies"]

#: stream settings for a cluster of three bookies that no test kills
SETTINGS: SettingsChanges = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}


class SmallCluster:
    """One write and one read proxy on shared bookies, in a namespace of their own."""

    def __init__(self, bookies: BookieCluster, directory: Path, *flags: str) -> None:
        self.bookies = bookies
        self.namespace = f"/messaging/{uuid.uuid4().hex}"
        both = ("--zookeeper", bookies.hosts, "--namespace", self.namespace, *flags)
        self.writer = ServerProcess("proxies.write", directory / "write", *both)
        self.reader = ServerProcess("proxies.read", directory / "read", *both)

    @property
    def target(self) -> str:
        return f"dlog://{self.writer.address},{self.reader.address}"

    def proxy(self, role: str) -> ServerProcess:
        return self.writer if role == "write" else self.reader

    def start(self) -> None:
        asyncio.run(cluster_init(self.bookies.hosts, self.namespace))
        for process in (self.writer, self.reader):
            process.spawn()
        for process in (self.writer, self.reader):
            process.wait_ready()

    def close(self) -> None:
        for process in (self.writer, self.reader):
            process.kill()


def small_cluster(bookies: BookieCluster, directory: Path, *flags: str) -> Iterator[SmallCluster]:
    """Start a cluster, and end it with the scope; its processes must still be those that were started."""
    cluster = SmallCluster(bookies, directory, *flags)
    try:
        cluster.start()
        pids = (cluster.writer.pid, cluster.reader.pid)
        yield cluster
        assert all(process.is_running for process in (cluster.writer, cluster.reader)), "a proxy has died"
        assert pids == (cluster.writer.pid, cluster.reader.pid)
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def cluster(bookies: BookieCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCluster]:
    """One for a whole module."""
    yield from small_cluster(bookies, tmp_path_factory.mktemp("proxies"))


class Bystander:
    """A correct client beside the hostile ones: what it appends is read back, all of it, once, in order."""

    def __init__(self, target: str, stream: str) -> None:
        self._target = target
        self.stream = stream
        self._written: list[bytes] = []

    def client(self) -> Client:
        return connect(self._target)

    async def create(self) -> None:
        async with self.client() as client:
            await client.create(self.stream, **SETTINGS)

    async def work(self, records: int = 3) -> None:
        """Append some more, and check that everything ever appended is there."""
        async with asyncio.timeout(60), self.client() as client:
            fresh = [b"%d %s" % (len(self._written) + n, os.urandom(4).hex().encode()) for n in range(records)]
            for record in fresh:
                await client.append(self.stream, record)
            self._written += fresh
            assert [record.payload async for record in client.read(self.stream)] == self._written


@pytest.fixture(scope="module")
def bystander(cluster: SmallCluster) -> Bystander:
    one = Bystander(cluster.target, "bystander")
    asyncio.run(one.create())
    return one


def resident_mib(pid: int) -> float:
    """Resident memory of a process, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024
