"""A cluster of real bookie processes on a real ZooKeeper, which tests may kill, freeze or empty.

`bookies` is one cluster of three for all tests of a pytest process that leave it as it is; `own_bookies` starts one for
a test that kills, freezes or empties. The kernel chooses ports; every process dies with the test that started it, and
with pytest itself.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from dlog.io.bookie_client import BookieClient, BookieClientOptions
from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.ledgers import Ledgers, LedgersOptions, resolver
from dlog.io.zookeeper import ZooKeeper
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from tests.integration.leftovers import JOURNAL_FILE_BYTES, remove_data

NAMESPACE = "/messaging/dlog"
READY_S = END_S = 180.0
ROOT = Path(__file__).parents[2]
_PR_SET_PDEATHSIG = 1


class ServerProcess:
    """One `python -m MODULE` over a directory, for any number of starts; its log is `directory/log`."""

    def __init__(self, module: str, directory: Path, *flags: str) -> None:
        self.module = module
        self.directory = directory
        self.flags = flags
        self.role = self.id = self.address = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        """Start, without waiting until it serves."""
        assert self._process is None, "running already"
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.module, *self.flags],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=_die_with_parent(),
            )

    def wait_ready(self) -> None:
        """Wait until it prints `ready ROLE ID ADDRESS`; fails the test with its log if it does not."""
        assert self._process is not None and self._process.stdout is not None
        line = _read_line(self._process.stdout.fileno(), time.monotonic() + READY_S).decode()
        words = line.split()
        if len(words) != 4 or words[0] != "ready":
            self.kill()
            pytest.fail(f"{self.module} did not get ready, it said {line!r} and logged:\n{self.log()[-3000:]}")
        _, self.role, self.id, self.address = words

    def start(self) -> None:
        self.spawn()
        self.wait_ready()

    def kill(self) -> None:
        """Send SIGKILL, also when frozen; `start` restarts it on its data."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Send SIGTERM, which drains it; returns the exit code."""
        return self._end(signal.SIGTERM)

    def terminate(self) -> None:
        """Send SIGTERM, without a wait for the end."""
        os.kill(self.pid, signal.SIGTERM)

    def freeze(self) -> None:
        """Send SIGSTOP: alive, silent."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            code = process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        assert process.stdout is not None
        process.stdout.close()
        return code


class BookieCluster:
    """Bookies on one ZooKeeper chroot of their own."""

    def __init__(self, directory: Path, hosts: str, count: int, flags: tuple[str, ...]) -> None:
        self.hosts = hosts
        self.namespace = NAMESPACE
        self.directory = directory
        self._flags = flags
        self.bookies: list[ServerProcess] = [self._make(number) for number in range(count)]

    def start(self) -> None:
        """Create the cluster's znodes, then start all bookies at the same time."""
        asyncio.run(self._init())
        for bookie in self.bookies:
            bookie.spawn()
        for bookie in self.bookies:
            bookie.wait_ready()

    def add(self) -> ServerProcess:
        """Start one more bookie."""
        bookie = self._make(len(self.bookies))
        self.bookies.append(bookie)
        bookie.start()
        return bookie

    def named(self, name: str) -> ServerProcess:
        """The bookie of this id."""
        return next(bookie for bookie in self.bookies if bookie.id == name)

    def close(self) -> None:
        for bookie in self.bookies:
            bookie.kill()

    @asynccontextmanager
    async def ledgers(
        self,
        options: LedgersOptions | None = None,
        transport: BookieClientOptions | None = None,
        seed: int | None = None,
    ) -> AsyncIterator[Ledgers]:
        """A ledger client on this cluster, as one process has it; its session is closed at the end."""
        rng = random.Random(seed)
        async with AsyncExitStack() as stack:
            metadata = await stack.enter_async_context(await ZooKeeperMetadata.connect(self.hosts, self.namespace))
            bookies = await stack.enter_async_context(BookieClient(resolver(metadata), rng=rng, options=transport))
            yield await stack.enter_async_context(Ledgers(metadata, bookies, rng=rng, options=options))

    async def _init(self) -> None:
        hosts, _, chroot = self.hosts.partition("/")
        async with await ZooKeeper.connect(hosts) as client:
            await client.create(f"/{chroot}")
        await cluster_init(self.hosts, self.namespace)

    def _make(self, number: int) -> ServerProcess:
        directory = self.directory / f"bookie-{number}"
        flags = ("--zookeeper", self.hosts, "--namespace", self.namespace, "--port", "0", "--dir", str(directory))
        small = ("--journal-file-bytes", str(JOURNAL_FILE_BYTES))
        return ServerProcess("actors.bookie", directory, *flags, *small, *self._flags)


def start_bookies(zookeeper: EmbeddedZooKeeper, directory: Path, count: int = 3, *flags: str) -> BookieCluster:
    """A running cluster under a fresh chroot; close it."""
    cluster = BookieCluster(directory, f"{zookeeper.hosts}/{uuid.uuid4().hex}", count, flags)
    try:
        cluster.start()
    except BaseException:
        cluster.close()
        raise
    return cluster


@pytest.fixture(scope="session")
def bookies(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookieCluster]:
    """Three bookies shared by tests that leave them as they are."""
    cluster = start_bookies(zookeeper, tmp_path_factory.mktemp("bookies"))
    yield cluster
    cluster.close()
    remove_data(cluster.directory)


@pytest.fixture
def own_bookies(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[BookieCluster]:
    """Three bookies of one test, which may kill, freeze or empty them."""
    cluster = start_bookies(zookeeper, tmp_path / "bookies")
    yield cluster
    cluster.close()


def _read_line(descriptor: int, deadline_s: float) -> bytes:
    """One line from a pipe, or the bytes until its end or the deadline."""
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline_s - time.monotonic())):
                break
            byte = os.read(descriptor, 1)
            if not byte:
                break
            line += byte
    return line


def _die_with_parent() -> Callable[[], None] | None:
    """Let the kernel kill the child when pytest ends in any way (Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return before_exec
