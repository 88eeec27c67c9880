"""The parts of a cluster as `dlog up` starts and watches them, each behind a link, each bookie on a disk of its own.

Invariants:
- A part that dies is started again by the same code that `dlog up` runs (dlog/cli/parts.py), with the same time limits.
- All addresses that a part is given, and that it gives to others, are addresses of links.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dlog.cli.parts import ProcessPart, State, SupervisedProcess, ZooKeeperPart, last_words
from dlog.io.children import die_with_parent
from tests.chaos.disks import Disk
from tests.chaos.links import Links
from tests.chaos.plan import BOOKIES, READERS, WRITERS
from tests.chaos.storage import Storage
from tests.chaos.storage import command as run_dlog
from tests.chaos.zookeeper import Session, session_in
from tests.ports import free_ports

HOST = "127.0.0.1"
NAMESPACE = "/dlog"
HARNESS = "harness"
READY_S = 300.0
DISK_BYTES = 3 << 30
#: parts of each role
COUNTS: Mapping[str, int] = MappingProxyType({"bookie": BOOKIES, "recovery": 1, "write": WRITERS, "read": READERS})
ROOT = Path(__file__).parents[2]
_MiB = 1 << 20
_BOOKIE_FLAGS = {
    "journal-file-bytes": 16 * _MiB,
    "write-cache-bytes": 16 * _MiB,
    "read-cache-bytes": 8 * _MiB,
    "entry-log-bytes": 64 * _MiB,
    "checkpoint-s": 5,
    "disk-check-s": 0.5,
    "disk-free-min-bytes": 16 * _MiB,
    "disk-free-reserve-bytes": 8 * _MiB,
}


#: so that a lost bookie's copies are made again within seconds
_RECOVERY_FLAGS = {
    "lost-after-s": 2,
    "look-s": 0.5,
    "retry-s": 2,
    "compare-s": 20,
    "open-grace-s": 5,
    "backoff-s": 1,
    "backoff-max-s": 5,
}


class HeldPart(ProcessPart):
    """A part that is not started again while its gate is shut."""

    def __init__(
        self, role: str, name: str, address: str, module: str, flags: list[str], log: Path, more: dict[str, str]
    ) -> None:
        super().__init__(role, name, address, module, flags, log, _ignore, more)
        self.gate = asyncio.Event()
        self.gate.set()

    async def _start(self) -> None:
        await self.gate.wait()
        await super()._start()


class Cluster:
    """directory: empty, for this cluster alone. mounts: each bookie has a filesystem of its own. tasks: in which the
    parts run. wal: with an object storage, and the write-ahead logs of `s3` in this store; empty: without one.
    counts: parts of each role. regions: over which those are spread in turns; 0: they publish none. racks: the same for
    bookies; placement is by rack if there are two."""

    def __init__(
        self,
        directory: Path,
        tasks: asyncio.TaskGroup,
        *,
        mounts: bool,
        wal: str = "",
        counts: Mapping[str, int] = COUNTS,
        regions: int = 0,
        racks: int = 0,
    ) -> None:
        self.directory = directory
        self.logs = directory / "logs"
        self.links = Links(self.pids, tasks)
        self.links.first_reply = self._on_first_reply
        self.parts: dict[str, SupervisedProcess] = {}
        self.disks: dict[str, Disk] = {}
        self.sessions: dict[str, Session] = {}
        self.addresses: dict[str, str] = {}  # name -> address of its link
        self.zookeeper_port = 0
        self.clients: dict[str, int] = {}  # name -> pid
        self.storage: Storage | None = None
        self._wal = wal
        self._counts = counts
        self._regions = regions
        self._racks = racks
        self._tasks = tasks
        self._mounts = mounts
        self._running: list[asyncio.Task[None]] = []

    def pids(self) -> dict[str, int]:
        parts = {name: part.pid for name, part in self.parts.items() if part.pid is not None}
        return {**parts, **self.clients, HARNESS: os.getpid()}

    @property
    def target(self) -> str:
        """The address that a client connects to."""
        return "dlog://" + ",".join(self.addresses[name] for name in self.parts if name.startswith(("write", "read")))

    async def start(self) -> None:
        """Start everything, in the order of `dlog up`."""
        self.logs.mkdir(parents=True)
        names = [f"{role}-{n + 1}" for role, count in self._counts.items() for n in range(count)]
        zookeeper_port, s3_port, *others = free_ports(2 + len(names))
        ports = {"zookeeper": zookeeper_port, **dict(zip(names, others, strict=True))}
        if self._wal:
            await self._start_storage(s3_port)
        for name, port in ports.items():
            self.addresses[name] = f"{HOST}:{await self.links.open(name, port)}"
        self.zookeeper_port = ports["zookeeper"]
        zookeeper = ZooKeeperPart(self.directory / "zookeeper", HOST, self.zookeeper_port, 192, _ignore)
        await self._launch([("zookeeper", zookeeper)])
        await self._init()
        for role in self._counts:
            await self._launch([(name, self._part(role, name, ports[name])) for name in names if name.startswith(role)])

    async def wait_ready(self, names: list[str] | None = None) -> None:
        """Wait until these parts (default: all) serve. Raises TimeoutError."""
        async with asyncio.timeout(READY_S):
            for name in names if names is not None else list(self.parts):
                while self.parts[name].state is not State.READY:  # noqa: ASYNC110 - looked at, as `dlog up` does
                    await asyncio.sleep(0.05)

    def region_of(self, name: str) -> str:
        """The region of a part; empty: it is in none, as ZooKeeper and clients are."""
        role, _, number = name.partition("-")
        return f"region-{(int(number) - 1) % self._regions + 1}" if self._regions and role in self._counts else ""

    def rack_of(self, name: str) -> str:
        """The rack of a bookie; empty: it is in none, or the part is no bookie."""
        role, _, number = name.partition("-")
        return f"rack-{(int(number) - 1) % self._racks + 1}" if self._racks and role == "bookie" else ""

    def signal(self, name: str, number: signal.Signals) -> int | None:
        """Signal the present process of a part. Returns its pid, None if it does not run."""
        pid = self.parts[name].pid
        if pid is None:
            return None
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return None
        return pid

    def heal(self) -> None:
        """Remove all faults of links and of the object storage."""
        self.links.heal()
        if self.storage is not None:
            self.storage.heal()

    async def run_dlog(self, *arguments: str) -> Any:
        """Run a command of `dlog` on this cluster that prints JSON; see `command` of tests/chaos/storage.py."""
        environment = {} if self.storage is None else self.storage.environment
        return await run_dlog(f"{HOST}:{self.zookeeper_port}", NAMESPACE, environment, arguments)

    async def close(self) -> None:
        """End everything at once and remove the mounts."""
        for part in self.parts.values():
            part.kill()
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        for part in self.parts.values():
            await part.wait_killed()
        self.links.close()
        if self.storage is not None:
            await self.storage.faulty.__aexit__(None, None, None)
        for disk in self.disks.values():
            await asyncio.to_thread(disk.close)

    # ---- inside -----------------------------------------------------------------------------------------------------

    async def _start_storage(self, port: int) -> None:
        self.storage = Storage(self.directory, self.logs, port, self._wal, _ignore)
        await self.storage.faulty.__aenter__()
        faulty_port = int(self.storage.faulty.endpoint.rpartition(":")[2])
        self.storage.reach(await self.links.open(self.storage.part.name, faulty_port))
        await self._launch([(self.storage.part.name, self.storage.part)])

    async def _launch(self, parts: list[tuple[str, SupervisedProcess]]) -> None:
        for name, part in parts:
            self.parts[name] = part
            self._running.append(self._tasks.create_task(part.run(), name=name))
        for _, part in parts:
            await part.wait_ready()

    def _part(self, role: str, name: str, port: int) -> SupervisedProcess:
        flags = ["--zookeeper", self.addresses["zookeeper"], "--namespace", NAMESPACE, "--host", HOST]
        flags += ["--port", str(port), "--advertise", self.addresses[name], "--log-format", "json"]
        module, more = f"proxies.{role}", dict[str, str]()
        region = self.region_of(name)
        if role == "bookie":
            module = "actors.bookie"
            directory = self.directory / name
            if self._mounts:
                self.disks[name] = Disk(self.directory / f"{name}.img", directory, DISK_BYTES)
            flags += ["--dir", str(directory / "data")]
            for flag, value in _BOOKIE_FLAGS.items():
                flags += [f"--{flag}", str(value)]
            flags += ["--region", region] if region else []
            flags += ["--rack", self.rack_of(name)] if self._racks else []
        elif role == "recovery":
            module = "actors.recovery"
            flags = [*flags[:4], "--log-format", "json", "--id", name]
            for flag, value in _RECOVERY_FLAGS.items():
                flags += [f"--{flag}", str(value)]
        else:
            flags += ["--id", name]
            if self.storage is not None:
                flags += ["--config", str(self.storage.config)]
                flags += ["--upkeep-s", "5"] if role == "write" else []
                more = self.storage.environment
            if region:
                more = {**more, "DLOG_LEDGER_REGION": region}
        return HeldPart(role, name, self.addresses[name], module, flags, self.logs / f"{name}.log", more)

    async def _init(self) -> None:
        log = self.logs / "cluster-init.log"
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "dlog", "cluster", "init"),
                *("--zookeeper", self.addresses["zookeeper"], "--namespace", NAMESPACE),
                cwd=ROOT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=asyncio.subprocess.STDOUT,
                preexec_fn=die_with_parent(),
            )
            if await process.wait():
                raise RuntimeError(f"the cluster cannot be made: {last_words(log, 0)}")

    def _on_first_reply(self, source: str, target: str, data: bytes) -> None:
        if target == "zookeeper" and source:
            session = session_in(data)
            if session is not None:
                self.sessions[source] = session


_ignore: Callable[[SupervisedProcess], None] = lambda part: None  # noqa: E731 - no output here
