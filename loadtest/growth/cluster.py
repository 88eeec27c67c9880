"""The cluster of one measurement: a new `dlog up`, and the resource usage of its processes and its ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import dlog
from dlog.cli.discovery import RunningCluster, RunningPart
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from loadtest.checker import Checker
from loadtest.judge import Verdict
from loadtest.outages import each
from loadtest.payload import PayloadMaker, read
from loadtest.processes import cpu_s, usage
from loadtest.systems.base import CannotRunError
from loadtest.systems.dlog import Dlog
from loadtest.writer import read_back
from loadtest.zookeeper import ServerCounts, server_counts

SERVING = ("bookie", "write", "read", "zookeeper")  # roles whose CPU is counted; `dlog up` itself serves nothing
READS_AT_ONCE = 16
RECORD_BYTES = 100


class Cluster:
    """A running `dlog up`; created by `start_cluster`."""

    def __init__(self, system: Dlog) -> None:
        self.system = system

    @property
    def running(self) -> RunningCluster:
        """Raises CannotRunError if the `dlog up` has ended."""
        return self.system.running()

    def connect(self) -> dlog.Client:
        return dlog.connect(self.running.connect)

    async def connect_metadata(self) -> ZooKeeperMetadata:
        """Raises MetadataUnavailableError."""
        return await ZooKeeperMetadata.connect(self.running.zookeeper, self.running.namespace)

    def parts(self, *roles: str) -> list[RunningPart]:
        return [part for part in self.running.parts if part.role in roles and part.pid]

    def part_at(self, role: str, address: str) -> RunningPart:
        """Raises CannotRunError."""
        for part in self.parts(role):
            if part.address == address:
                return part
        raise CannotRunError(f"no such process in the cluster: role={role} address={address}")

    def measure_cpu(self, parts: Iterable[RunningPart] | None = None) -> Callable[[], float]:
        """Start counting; the returned function gives the CPU seconds used since. parts: None: all of SERVING."""
        pids = [part.pid for part in (self.parts(*SERVING) if parts is None else parts)]
        begun = {pid: cpu_s(pid) for pid in pids}

        def spent() -> float:
            total = 0.0
            for pid, before in begun.items():
                now = cpu_s(pid)
                if before is None or now is None:
                    raise CannotRunError(f"a process ended while its CPU time was measured: pid={pid}")
                total += now - before
            return total

        return spent

    def rss_bytes(self) -> dict[str, int]:
        """Resident memory of every process, by its role and id."""
        found = {f"{part.role} {part.id}": usage(part.pid) for part in self.parts(*SERVING)}
        found["supervisor"] = usage(self.running.pid)
        return {name: used.rss_bytes for name, used in found.items() if used is not None}

    async def zookeeper(self, timeout_s: float = 60.0) -> ServerCounts:
        """Raises CannotRunError; OSError while the server is down."""
        return await server_counts(self.running.zookeeper, timeout_s)


@asynccontextmanager
async def start_cluster(
    room: Path, sections: Mapping[str, Mapping[str, object]] | None = None, **options: str
) -> AsyncIterator[Cluster]:
    """Start a cluster; stop it in any case. sections: a configuration file's. options: those of the system `dlog`, with
    _ for -. Raises CannotRunError."""
    chosen = {key.replace("_", "-"): value for key, value in options.items()}
    if sections:
        path = room / "growth.toml"
        path.write_text(
            "".join(
                f"[{section}]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())
                for section, values in sections.items()
            )
        )
        chosen["config"] = str(path)
    system = Dlog("dlog")
    try:
        await system.start(room, chosen)
        yield Cluster(system)
    finally:
        await system.stop()


class Written:
    """Records of many streams, one producer each: appends them, finally reads them back and checks them."""

    def __init__(self, record_bytes: int = RECORD_BYTES) -> None:
        self.failed: list[str] = []
        self._maker = PayloadMaker(0, record_bytes)
        self._streams: dict[str, tuple[Checker, int]] = {}

    async def append(self, client: dlog.Client, stream: str) -> float:
        """Append the stream's next record; the seconds that it took. Raises DLogError."""
        checker, sequence = self._streams.get(stream) or (Checker(), 0)
        self._streams[stream] = checker, sequence + 1
        checker.sent(0, sequence, 1)
        begin_s = time.monotonic()
        dlsn = await client.append(stream, *self._maker.make(sequence, 1, 0))
        took_s = time.monotonic() - begin_s
        checker.acknowledged(0, sequence, 1, dlsn)
        return took_s

    async def finish(self, client: dlog.Client) -> Verdict:
        """Read every stream from its start to its end and check all. Raises DLogError."""
        verdict = Verdict()

        async def judge(stream: str) -> None:
            checker = self._streams[stream][0]
            await read_back(client, stream, checker)
            verdict.add(checker.finish())

        await each(list(self._streams), READS_AT_ONCE, judge)
        return verdict


async def create_streams(client: dlog.Client, streams: Iterable[str], written: Written, at_once: int = 32) -> None:
    """Create each stream and append its first record, so that a proxy owns it."""

    async def make(stream: str) -> None:
        await client.create(stream)
        await written.append(client, stream)

    await each(streams, at_once, make)


async def follow(
    client: dlog.Client, stream: str, name: str, checker: Checker, on_records: Callable[[int, int], None]
) -> None:
    """Read from the tail on and pass everything to the checker, until cancelled.

    on_records: called with the number of new records and the sequence of the last one.
    """
    async with aclosing(client.read_batches(stream, start=dlog.TAIL, follow=True)) as batches:
        async for batch in batches:
            checker.given(name, batch.dlsn, batch.payloads)
            claim = read(batch.payloads[-1])
            on_records(len(batch.payloads), claim.sequence if claim is not None else -1)
