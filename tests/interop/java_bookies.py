"""Real Java bookies of Apache BookKeeper, alone or beside bookies of dlog, on one ZooKeeper chroot."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.zookeeper import ZooKeeper
from dlog.io.zookeeper_protocol import ANY_VERSION, NoNodeError
from loadtest.systems.java import BOOKKEEPER, Jars
from tests.integration.cluster import BookieCluster, ServerProcess, _die_with_parent
from tests.interop.java_peer import FLAGS

READY_S = 120.0
STARTS = 4  # a port that was free may be taken before the JVM binds it
SESSION_MS = 4000

_CONF = """\
bookiePort={port}
advertisedAddress=127.0.0.1
listeningInterface=lo
allowLoopback=true
metadataServiceUri=zk+hierarchical://{hosts}/ledgers
zkTimeout={session}
journalDirectories={directory}/journal
ledgerDirectories={directory}/ledgers
indexDirectories={directory}/index
journalPreAllocSizeMB=1
entryLogFilePreallocationEnabled=false
skipListSizeLimit=16777216
diskUsageThreshold=0.999
diskUsageWarnThreshold=0.998
minUsableSizeForIndexFileCreation=1048576
httpServerEnabled=false
"""


class JavaBookie:
    """One JVM that is a bookie. A killed one is not started again: its id is bound to its disk and its old session."""

    def __init__(self, directory: Path, hosts: str, jars: Jars) -> None:
        self.id = ""
        self._jars = jars
        self._directory = directory
        self._hosts = hosts
        self._home = directory
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        """Start, without waiting until it serves."""
        port = _free_port()
        self.id = f"127.0.0.1:{port}"
        self._home = self._directory / str(port)
        self._home.mkdir(parents=True)
        conf = self._home / "bookie.conf"
        conf.write_text(_CONF.format(port=port, hosts=self._hosts, session=SESSION_MS, directory=self._home))
        # 4.18 makes a name of the interface's first address, which may be one of IPv6
        command = [
            "java",
            *FLAGS,
            "-XX:MaxDirectMemorySize=256m",
            "-Djava.net.preferIPv4Stack=true",
            "-cp",
            self._jars.class_path(),
        ]
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "org.apache.bookkeeper.server.Main", "--conf", str(conf)],
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent(),
            )

    async def wait_ready(self, zk: ZooKeeper) -> None:
        """Wait until it is registered; a start that failed is repeated with another port."""
        deadline = time.monotonic() + READY_S
        for left in reversed(range(STARTS)):
            while time.monotonic() < deadline:
                if await zk.exists(self._registration) is not None:
                    return
                if self._process is not None and self._process.poll() is not None:
                    break
                await asyncio.sleep(0.1)
            told = self.log()
            self.kill()
            assert left and time.monotonic() < deadline, f"the bookie did not get ready:\n{told}"
            self.spawn()

    def kill(self) -> None:
        """Send SIGKILL: connections are reset, the registration stays until its session ends."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        """Send SIGSTOP: alive, silent."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def log(self) -> str:
        return (self._home / "log").read_text(errors="replace")[-3000:]

    @property
    def _registration(self) -> str:
        return f"/ledgers/available/{self.id}"


class JavaCluster(BookieCluster):
    """Java bookies, and as many of dlog as requested (`bookies`), which one ledger may use together."""

    def __init__(
        self, directory: Path, hosts: str, java: int, ours: int, jars: Jars, flags: tuple[str, ...] = ()
    ) -> None:
        super().__init__(directory, hosts, ours, flags)
        self._jars = jars
        self.java = [self._make_java(number) for number in range(java)]
        self._made = java

    def start(self) -> None:
        """Create the cluster's znodes, then start everything at the same time."""
        asyncio.run(self._init())
        for bookie in self.java:
            bookie.spawn()
        for ours in self.bookies:
            ours.start()
        asyncio.run(self._wait_java(self.java))

    def close(self) -> None:
        super().close()
        for bookie in self.java:
            bookie.kill()

    async def add_java(self) -> JavaBookie:
        """One more Java bookie, registered."""
        bookie = self._make_java(self._made)
        self._made += 1
        self.java.append(bookie)
        bookie.spawn()
        await self._wait_java([bookie])
        return bookie

    async def kill_java(self, name: str) -> JavaBookie:
        """Send SIGKILL to the Java bookie of this id; call `bury` when its death has been tested."""
        bookie = next(bookie for bookie in self.java if bookie.id == name)
        await asyncio.to_thread(bookie.kill)
        self.java.remove(bookie)
        return bookie

    async def bury(self, *dead: JavaBookie | ServerProcess) -> None:
        """Let ZooKeeper forget the killed ones at once instead of when their sessions end."""
        async with await ZooKeeper.connect(self.hosts) as zk:
            for bookie in dead:
                with suppress(NoNodeError):
                    await zk.delete(f"/ledgers/available/{bookie.id}", ANY_VERSION)

    async def _wait_java(self, bookies: list[JavaBookie]) -> None:
        async with await ZooKeeper.connect(self.hosts) as zk:
            for bookie in bookies:
                await bookie.wait_ready(zk)

    def _make_java(self, number: int) -> JavaBookie:
        return JavaBookie(self.directory / f"java-{number}", self.hosts, self._jars)


def start_java(
    zookeeper: EmbeddedZooKeeper,
    directory: Path,
    java: int = 3,
    ours: int = 0,
    jars: Jars = BOOKKEEPER,
    flags: tuple[str, ...] = (),
) -> JavaCluster:
    """A running cluster under a fresh chroot; close it. flags: of the bookies of dlog."""
    cluster = JavaCluster(directory, f"{zookeeper.hosts}/{uuid.uuid4().hex}", java, ours, jars, flags)
    try:
        cluster.start()
    except BaseException:
        cluster.close()
        raise
    return cluster


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
