"""dlog as a system: a `dlog up` with three bookies, two write and two read proxies and a ZooKeeper.

`dlog up` restarts processes that die, so `revive` only waits.

Invariants:
- of dlog's servers nothing is imported: only the public client, discovery of a `dlog up` and small helpers.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import dlog
from dlog.cli.discovery import RunningCluster, RunningPart, read_run_file
from dlog.client.background_tasks import BackgroundTasks
from dlog.client.pipeline import Pipeline
from dlog.errors import DLogError
from dlog.hostport import split_host_port
from dlog.io.children import die_with_parent, module_environment, python_module
from dlog.options import MiB
from loadtest.processes import usage
from loadtest.soaking import Load, Soak, Soaked
from loadtest.systems import versitygw
from loadtest.systems.base import (
    Acked,
    CannotRunError,
    Client,
    Durability,
    Flavour,
    Node,
    OnAnswer,
    Position,
    Refused,
    System,
    Variant,
    Writer,
)

PATIENCE_S = 90.0
STEP_S = 0.02  # interval of polling the run file
WATCH_S = 0.25  # between two looks for failed appends
_UP = {"bookies": "3", "write-proxies": "2", "read-proxies": "2"}
_OPTIONS = (*_UP, "config", "objects")
_CONFIGS = {
    name: Path(__file__).with_name(f"{name}.toml") for name in ("small-disk", "fast-stream", "recovery")
}  # of `config`
_ORDER = ("bookie", "write", "read")


class Dlog(System):
    """A `dlog up` in a directory of the run."""

    name = "dlog"
    owner_role = "write"
    storage_role = "bookie"
    start_s = 4.0
    durability = Durability("F", "fdatasync on 2 of 3 bookies (E3/Qw3/Qa2) before the acknowledgement")

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._room = Path()
        self._up: asyncio.subprocess.Process | None = None
        self._flags: list[str] = []
        self._options: dict[str, str] = {}
        self.environment: dict[str, str] = {}  # added to that of the cluster's processes
        self._client: dlog.Client | None = None

    async def start(self, room: Path, options: Mapping[str, str]) -> None:
        unknown = sorted(key for key in options if key not in _OPTIONS and not key.startswith("client."))
        if unknown:
            raise ValueError(f"no such option of dlog; choose from {', '.join(_OPTIONS)}, client.KEY: {unknown[0]}")
        self._options = {**_UP, **options}
        for key in _UP:
            if not self._options[key].isdecimal():
                raise ValueError(f"not a whole number: dlog.{key}={self._options[key]}")
        self._room = room / "cluster"
        flags = {key: self._options[key] for key in _OPTIONS if key in self._options}
        if flags.get("config") in _CONFIGS:
            flags["config"] = str(_CONFIGS[flags["config"]])
        self._flags = [f"--{key}={value}" for key, value in flags.items()]
        await self._start_up()
        await self._whole_up()

    async def _start_up(self) -> None:
        environment = {key: value for key, value in module_environment().items() if not key.startswith("DLOG_")}
        log = self._room.with_suffix(".printed").open("ab")
        with log:
            self._up = await asyncio.create_subprocess_exec(
                *python_module("dlog", "up", "--dir", str(self._room), *self._flags),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(),
                env={**environment, **self.environment},
            )

    async def _whole_up(self) -> None:
        """Wait until `dlog up` is up. Raises CannotRunError with its output."""
        await self._until(lambda: read_run_file(self._room) is not None, "the cluster did not start")
        self._client = self._client or await dlog.connect(self.running().connect).__aenter__()

    async def stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close(orderly=False)
        up, self._up = self._up, None
        if up is None:
            return
        if up.returncode is None:
            up.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await up.wait()
            except TimeoutError:
                up.kill()
        await up.wait()

    def processes(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        running = read_run_file(self._room)
        for part in running.parts if running else ():
            if part.pid:
                found.setdefault(part.role, []).append(part.pid)
        if running:
            found["supervisor"] = [running.pid]
        return found

    def versions(self) -> Mapping[str, str]:
        return {
            "dlog": metadata.version("dlogd"),
            "python": sys.version.split()[0],
            "uvloop": metadata.version("uvloop"),
            "Apache ZooKeeper": next(map(zookeeper_version, self.processes().get("zookeeper", ())), "unknown"),
        }

    def configuration(self) -> Mapping[str, Any]:
        return {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2, "journal": "fdatasync", **self._options}

    async def create(self, log: str) -> None:
        assert self._client is not None, "started"
        await self._client.create(log, ensemble=3, write_quorum=3, ack_quorum=2)

    def address(self) -> dict[str, Any]:
        return {"connect": self.running().connect}

    def client(self, flavour: Flavour) -> str:
        return "loadtest.systems.dlog:DlogClient"

    # ---- faults -----------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        running = read_run_file(self._room)
        parts = [part for part in running.parts if part.role in _ORDER] if running else []
        parts.sort(key=lambda part: _ORDER.index(part.role))
        return [Node(part.id, part.role, part.pid) for part in parts]

    async def owner(self, log: str) -> str:
        assert self._client is not None, "started"
        async with asyncio.timeout(PATIENCE_S):
            location = (await self._client.owner(log)).location
        return next(p.id for p in self.running().parts if p.role == "write" and p.address == location)

    async def kill(self, node: str) -> None:
        os.kill(self._part(node).pid, signal.SIGKILL)

    async def revive(self, node: str) -> None:
        await self.whole()

    async def pause(self, node: str) -> None:
        os.kill(self._part(node).pid, signal.SIGSTOP)

    async def resume(self, node: str) -> None:
        os.kill(self._part(node).pid, signal.SIGCONT)

    async def restart(self, node: str) -> None:
        was = self._part(node)
        os.kill(was.pid, signal.SIGTERM)
        await self._until(lambda: self._part(node).pid not in (0, was.pid), f"{node} was not restarted")
        await self.whole()

    async def whole(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if await self._all_greet():
                    return
                await asyncio.sleep(STEP_S)

    async def kill_all(self) -> None:
        pids = [pid for pids in self.processes().values() for pid in pids]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)  # so that none reacts to the death of another
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert self._up is not None, "started"
        await self._up.wait()
        await self._until(lambda: not any(map(usage, pids)), "killed processes still run", needs_up=False)

    async def start_all(self) -> None:
        await self._start_up()

    async def hand_over(self, log: str) -> None:
        assert self._client is not None, "started"
        await self._client.hand_over(log)

    async def soak(self, load: Load) -> Soaked:
        return await Soak(self.running, load).run()

    # ---- state of the cluster ---------------------------------------------------------------------------------------

    def running(self) -> RunningCluster:
        """The present contents of the run file. Raises CannotRunError."""
        running = read_run_file(self._room)
        if running is None:
            raise CannotRunError(f"the `dlog up` has ended: {self._printed()}")
        return running

    def _part(self, node: str) -> RunningPart:
        return next(part for part in self.running().parts if part.id == node)

    async def _all_greet(self) -> bool:
        """Whether every process runs and accepts connections."""
        running = read_run_file(self._room)
        return running is not None and all([part.pid and await _greets(part) for part in running.parts])

    async def _until(self, condition: Callable[[], bool], otherwise: str, *, needs_up: bool = True) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            is_over = needs_up and (self._up is None or self._up.returncode is not None)
            if is_over or time.monotonic() > end_s:
                raise CannotRunError(f"dlog: {otherwise}: {self._printed()}")
            await asyncio.sleep(STEP_S)

    def _printed(self) -> str:
        try:
            return self._room.with_suffix(".printed").read_text()[-500:].strip()
        except OSError:
            return ""


def zookeeper_version(pid: int) -> str:
    """The version in the name of its jar."""
    try:
        command = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return "unknown"
    found = re.search(r"zookeeper-(\d[\w.]*?)\.jar", command)
    return found[1] if found else "unknown"


async def _greets(part: RunningPart) -> bool:
    if part.role == "recovery":
        return True  # it accepts no connections
    host, port = split_host_port(part.address)
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


# ---- in a generator process -----------------------------------------------------------------------------------------


class DlogClient(Client):
    """The public client, as a program would use it."""

    def __init__(self, client: dlog.Client, tasks: BackgroundTasks) -> None:
        self._client = client
        self._tasks = tasks
        self._unanswered: dict[DlogWriter, None] = {}
        tasks.spawn(self._watch(), "failed appends")

    @classmethod
    async def connect(cls, address: Mapping[str, Any], options: Mapping[str, str]) -> DlogClient:
        changes: dict[str, Any] = {"append_deadline_s": 120.0, "read_deadline_s": 120.0}
        for key, value in options.items():
            if key.startswith("client."):
                changes[key.removeprefix("client.")] = float(value) if "." in value else int(value)
        client = await dlog.connect(str(address["connect"]), **changes).__aenter__()
        await client.reach(PATIENCE_S)
        tasks = BackgroundTasks("loadtest writers", lambda error: print(f"generator: {error!r}", file=sys.stderr))
        await tasks.start()
        return cls(client, tasks)

    async def close(self) -> None:
        await self._tasks.stop()
        await self._client.close(orderly=False)

    async def writer(self, log: str, on_answer: OnAnswer) -> DlogWriter:
        return DlogWriter(self._client, self._unanswered, log, on_answer)

    async def _watch(self) -> None:
        """Have failures reported also when nothing more is handed over."""
        while True:
            await asyncio.sleep(WATCH_S)
            for writer in tuple(self._unanswered):
                await writer.report_failure()

    async def read(
        self, log: str, *, tail: bool, follow: bool
    ) -> AsyncGenerator[tuple[Position, Sequence[bytes]], None]:
        batches = self._client.read_batches(log, dlog.TAIL if tail else dlog.START, follow=follow)
        try:
            async for batch in batches:
                yield tuple(batch.dlsn), batch.payloads
        finally:
            await batches.aclose()


class DlogWriter(Writer):
    """One stream, through the client's pipeline: one call per record, one answer for many.

    A failure ends a pipeline; a new one follows. unanswered: this writer is in it while a record has no answer.
    """

    def __init__(self, client: dlog.Client, unanswered: dict[DlogWriter, None], log: str, on_answer: OnAnswer) -> None:
        self._client = client
        self._unanswered = unanswered
        self._log = log
        self._on_answer = on_answer
        self._index = 0  # index of the next record given to this writer
        self._taken = 0  # records given to the pipeline
        self._answered = 0  # of those, records answered
        self._shifts: deque[tuple[int, int]] = deque()  # (record of the pipeline, offset from here on to its index)
        self._all_answered = asyncio.Event()
        self._pipeline = self._begin()

    async def hand_over(self, records: Sequence[bytes]) -> None:
        append = self._pipeline.append_nowait
        for i, record in enumerate(records):
            try:
                while not append(record):
                    await self._pipeline.room()
            except DLogError as error:
                self._took(len(records) - i)
                self._failed(error)
                return
            self._took(1)

    async def hand_over_batch(self, records: Sequence[bytes]) -> None:
        self._took(len(records))
        try:
            await self._pipeline.put(records)
        except DLogError as error:
            self._failed(error)

    async def append(self, record: bytes) -> Position | None:
        self._index += 1
        shift = (self._taken, self._index - self._taken)
        if self._shifts[-1][0] == self._taken:
            self._shifts[-1] = shift
        else:
            self._shifts.append(shift)
        dlsn = await self._client.append(self._log, record)
        return tuple(dlsn) if dlsn.slot >= 0 else None

    async def flush(self) -> None:
        while self._answered < self._taken:
            self._all_answered.clear()
            await self._all_answered.wait()

    async def close(self) -> None:
        pass  # closing the client ends pending appends

    def _took(self, count: int) -> None:
        self._index += count
        self._taken += count
        self._unanswered[self] = None

    def _begin(self) -> Pipeline:
        self._taken = self._answered = 0
        self._shifts = deque([(0, self._index)])
        return self._client.pipeline(self._log, self._written)

    def _written(self, row: dlog.BatchResult) -> None:
        self._answered = row.index + row.count
        self._on_answer(Acked(self._index_of(row.index), row.count, tuple(row.first) if row.first.slot >= 0 else None))
        if self._answered == self._taken:
            self._has_answers()

    def _index_of(self, taken: int) -> int:
        """The index of a record of the pipeline; call in order."""
        while len(self._shifts) > 1 and self._shifts[1][0] <= taken:
            self._shifts.popleft()
        return taken + self._shifts[0][1]

    def _has_answers(self) -> None:
        self._unanswered.pop(self, None)
        self._all_answered.set()

    async def report_failure(self) -> None:
        """If the pipeline has failed, report the fates of its records."""
        pipeline = self._pipeline
        try:
            await pipeline.room()
        except DLogError as error:
            if pipeline is self._pipeline:
                self._failed(error)

    def _failed(self, error: DLogError) -> None:
        """Refuse all unanswered records and begin another pipeline."""
        while self._answered < self._taken:
            first = self._index_of(self._answered)
            end = self._shifts[1][0] if len(self._shifts) > 1 else self._taken
            self._on_answer(Refused(first, end - self._answered, str(error), error.outcome_unknown))
            self._answered = end
        self._pipeline = self._begin()
        self._has_answers()


def _on_kafka(variant: str) -> System:
    from loadtest.systems.dlog_kafka import DlogKafka  # it imports this module

    return DlogKafka(variant)


def _on_s3(variant: str) -> System:
    from loadtest.systems import dlog_metadata, dlog_s3  # the latter imports this module

    return dlog_metadata.DlogMetadata(variant) if variant == "dlog-metadata" else dlog_s3.DlogS3(variant)


def _by_bookies(variant: str) -> System:
    from loadtest.systems import dlog_bookies, dlog_ledger_client  # they import this module

    if variant == "dlog-ledger-client":
        return dlog_ledger_client.DlogLedgerClient(variant)
    return dlog_bookies.DlogBookie(variant)


def _of_regions(variant: str) -> System:
    from loadtest.systems import dlog_regions, kafka  # the first imports Kafka's module, which dlog alone does not need

    if variant == "dlog-region":
        system = dlog_regions.KafkaRegions(variant)
        system._choose(kafka.VARIANTS["kafka-aiokafka"].preset)
        return system
    return (
        dlog_regions.TopicsInDirectory(variant)
        if variant == "dlog-directory"
        else dlog_regions.DirectoryRegions(variant)
    )


FAST_STREAM = {"config": "fast-stream", "client.buffer_bytes_max": str(80 * MiB)}

VARIANTS: Mapping[str, Variant] = {
    "dlog": Variant(Dlog, {}, "dlog with 3 bookies, 2 write and 2 read proxies"),
    "dlog-small-disk": Variant(Dlog, {"config": "small-disk"}, "dlog with bookies configured for small disks"),
    "dlog-kafka": Variant(_on_kafka, {}, "dlog with 2 write and 2 read proxies, its streams in topics of 3 brokers"),
    "dlog-kafka-default": Variant(_on_kafka, {}, "dlog-kafka with topics whose records are not synced"),
    "dlog-region": Variant(
        _of_regions, {"shared": "true", "aiokafka": "true"}, "dlog's client of regions alone, in topics of 3 brokers"
    ),
    "dlog-directory-region": Variant(_of_regions, {}, "dlog's client of regions alone, in topics of a directory"),
    "dlog-directory": Variant(_of_regions, {}, "dlog's topics in a directory, without regions"),
    "dlog-s3-direct": Variant(_on_s3, {}, "dlog with 2 write and 2 read proxies, its streams as chains of objects"),
    "dlog-s3-direct-delayed": Variant(
        _on_s3, versitygw.DELAYED, "dlog-s3-direct with 100 ms added to a PUT and 30 ms to a GET of the object storage"
    ),
    "dlog-s3-direct-fast": Variant(_on_s3, FAST_STREAM, "dlog-s3-direct that takes 80 MiB of one stream at once"),
    "dlog-s3-direct-fast-delayed": Variant(
        _on_s3,
        {**FAST_STREAM, **versitygw.DELAYED},
        "dlog-s3-direct-fast with 100 ms added to a PUT and 30 ms to a GET",
    ),
    "dlog-s3": Variant(_on_s3, {}, "dlog with streams in the store s3, its write-ahead log on 3 bookies"),
    "dlog-s3-delayed": Variant(_on_s3, versitygw.DELAYED, "dlog-s3 with 100 ms added to a PUT and 30 ms to a GET"),
    "dlog-ledger": Variant(Dlog, {}, "dlog with streams on 3 bookies, for comparison with dlog-s3"),
    "dlog-metadata": Variant(_on_s3, {}, "dlog's metadata of streams in objects alone, in one process"),
    "dlog-recovery": Variant(
        _by_bookies, {"config": "recovery"}, "dlog with a fourth bookie that is lost, and one recovery process"
    ),
    "dlog-bookie": Variant(
        _by_bookies,
        {"bookies": "0", "write-proxies": "1", "read-proxies": "1"},
        "one bookie of dlog, with idle proxies",
    ),
    "dlog-ledger-client": Variant(
        _by_bookies,
        {"write-proxies": "1", "read-proxies": "1"},
        "dlog's ledger client on three bookies, E3/Qw3/Qa2, with idle proxies",
    ),
    "dlog-spare": Variant(Dlog, {"bookies": "4"}, "dlog with a fourth bookie to replace a lost one"),
}
