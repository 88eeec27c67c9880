"""Write and read proxies as processes on a cluster of bookies, which tests may kill or freeze."""

from __future__ import annotations

from pathlib import Path

from tests.integration.cluster import BookieCluster, ServerProcess

PRODUCERS_MAX = 1000  # that each write proxy remembers of a stream: low, so that a test may exceed it


class ProxyCluster:
    """Two of each role; each listens on a port of the kernel's choice."""

    def __init__(self, bookies: BookieCluster, namespace: str, directory: Path) -> None:
        self.bookies = bookies
        self.namespace = namespace
        self._directory = directory
        self.writers = [self._make("write", number) for number in range(2)]
        self.readers = [self._make("read", number) for number in range(2)]

    @property
    def target(self) -> str:
        """The address that a client connects to."""
        return "dlog://" + ",".join(process.address for process in (*self.writers, *self.readers))

    def start(self) -> None:
        for process in (*self.writers, *self.readers):
            process.spawn()
        for process in (*self.writers, *self.readers):
            process.wait_ready()

    def close(self) -> None:
        for process in (*self.writers, *self.readers):
            process.kill()

    def extra(self, role: str, *flags: str) -> ServerProcess:
        """One more proxy of a role, which is not started and not ended with the cluster."""
        return self._make(role, 9, *flags)

    def writer_at(self, address: str) -> ServerProcess:
        """The write proxy that listens there."""
        return next(process for process in self.writers if process.address == address)

    def other_writer(self, process: ServerProcess) -> ServerProcess:
        return next(other for other in self.writers if other is not process)

    def _make(self, role: str, number: int, *more: str) -> ServerProcess:
        if role == "write":
            more = ("--producers-max", str(PRODUCERS_MAX), *more)
        flags = ("--zookeeper", self.bookies.hosts, "--namespace", self.namespace, *more)
        return ServerProcess(f"proxies.{role}", self._directory / f"{role}-{number}", *flags)
