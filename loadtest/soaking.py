"""A soak: a steady load on streams with retention, while other streams and readers come and go.

    writers      `streams` streams with retention, each followed by one reader from its start to the end of the soak
    visitors     a reader starts at a stream's tail, reads some batches, and stops
    guests       a stream is created, written, read from its start, and deleted
    truncation   the first stream is also truncated every few seconds

Disk and memory of every process are sampled meanwhile. At least one reader passes each record to the checker.

Invariants:
- A process restart, or a reader that falls behind the retention, fails the soak.
- Memory at the end is the median of the last twelfth of the time; it is compared with the median of the twelfth that
  begins after a sixth of the time.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path

import dlog
from dlog.cli.discovery import RunningCluster, RunningPart
from dlog.errors import DLogError
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from loadtest.checker import Checker
from loadtest.judge import Verdict
from loadtest.payload import PayloadMaker, read
from loadtest.processes import usage
from loadtest.systems.base import CannotRunError
from loadtest.waiting import until
from loadtest.writer import read_back

MB = 1e6
BATCH_S = 0.1  # between two batches of a writer
BATCH_RECORDS_MAX = 64
VISIT_S, VISIT_BATCHES = 2.0, 5
GUEST_S, GUEST_RECORDS = 1.0, 20
TRUNCATE_S = 5.0
KEEP_S = 8.0  # a truncation keeps the records that were acknowledged in the last KEEP_S
LOOK_S = 5.0
LOOKS_MIN = 24  # samples of a short soak
FAILED_MAX = 100
DRAIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load of a soak. bytes_per_s: of payloads, all streams together."""

    seconds: float
    streams: int = 4
    bytes_per_s: int = 3_000_000
    record_bytes: int = 10_000
    retention_s: float = 10.0

    @property
    def settings(self) -> dlog.SettingsChanges:
        """Settings of each stream."""
        return {"retention_s": self.retention_s, "segment_age_s": max(1.0, self.retention_s / 2)}


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample. rss, used: bytes, by process and by bookie. live: bytes of payload in the streams."""

    at_s: float
    rss: Mapping[str, int]
    used: Mapping[str, int]
    live: int


@dataclass(slots=True)
class Soaked:
    """Result of a soak."""

    samples: list[Sample]
    verdict: Verdict
    read_only: int  # bookies that are read-only at the end
    failed: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Disk usage of the fullest bookie in MB, and the largest growth in memory of a process (`rss_ratios`)."""
        samples = self.samples
        used = [max(sample.used.values()) for sample in samples]
        last = samples[-1]
        return {
            "used_max_mb": max(used) / MB,
            "used_end_mb": used[-1] / MB,
            "live_max_mb": max(sample.live for sample in samples) / MB,
            "disk_over_live": used[-1] / max(1, last.live),
            "beyond_3x_live_mb": max(u - 3 * sample.live for u, sample in zip(used, samples, strict=True)) / MB,
            "read_only": float(self.read_only),
            "rss_ratio": max(self.rss_ratios().values()),
        }

    def rss_ratios(self) -> dict[str, float]:
        """Memory of each process at the end over that after a sixth of the time."""
        end_s = self.samples[-1].at_s
        early = [sample.rss for sample in self.samples if end_s / 6 <= sample.at_s <= end_s / 4] or [
            self.samples[0].rss
        ]
        late = [sample.rss for sample in self.samples if sample.at_s >= end_s * 11 / 12]
        return {name: _median(late, name) / max(1.0, _median(early, name)) for name in self.samples[-1].rss}


def _median(looks: Sequence[Mapping[str, int]], name: str) -> float:
    """Median memory of a process; 0 if never sampled."""
    return float(statistics.median([rss[name] for rss in looks if name in rss] or [0]))


class Soak:
    """One soak of a `dlog up`. running: returns the present processes. on_progress: called for each twelfth of
    the time."""

    def __init__(
        self, running: Callable[[], RunningCluster], load: Load, on_progress: Callable[[str], None] = lambda _: None
    ) -> None:
        self._running = running
        self._load = load
        self._on_progress = on_progress
        self._verdict = Verdict()
        self._failed: list[str] = []
        self._samples: list[Sample] = []
        self._streams = [SoakStream(f"soak-{number}", load) for number in range(load.streams)]
        self._over = asyncio.Event()

    async def run(self) -> Soaked:
        """Raises DLogError, CannotRunError, TimeoutError if the cluster does not recover."""
        async with AsyncExitStack() as stack:
            connect = self._running().connect
            writer = await stack.enter_async_context(dlog.connect(connect))
            reader = await stack.enter_async_context(dlog.connect(connect))
            begun = {part.id: part.pid for part in self._running().parts}
            for stream in self._streams:
                await writer.create(stream.name, **self._load.settings)
            async with asyncio.TaskGroup() as followers:
                following = [
                    followers.create_task(self._follow(reader, stream), name=f"follow {stream.name}")
                    for stream in self._streams
                ]
                async with asyncio.TaskGroup() as group:
                    for stream in self._streams:
                        group.create_task(self._write(writer, stream), name=f"write {stream.name}")
                    group.create_task(self._visit(reader), name="visitors")
                    group.create_task(self._host(writer), name="guests")
                    group.create_task(self._truncate(writer), name="truncation")
                    await self._look(writer)
                    self._over.set()
                await self._drain()
                for task in following:
                    task.cancel()
            for stream in self._streams:
                await read_back(reader, stream.name, stream.checker)
                self._verdict.add(await asyncio.to_thread(stream.checker.finish))
        for part in self._running().parts:
            if part.pid != begun[part.id]:
                self._fail(f"{_name(part)} was restarted")
        return Soaked(self._samples, self._verdict, await self._read_only(), self._failed)

    # ---- writers, readers, truncation -------------------------------------------------------------------------------

    async def _write(self, client: dlog.Client, stream: SoakStream) -> None:
        """Append batches at a steady rate, each awaited."""
        load = self._load
        rate = load.bytes_per_s / load.streams / load.record_bytes
        begin_s = time.monotonic()
        while not await self._rests(BATCH_S):
            due = int((time.monotonic() - begin_s) * rate) - stream.sent
            count = min(due, BATCH_RECORDS_MAX)
            if count < 1:
                continue
            batch = stream.next_batch(count)
            try:
                result = await client.append_batch(stream.name, batch)
            except DLogError as error:
                self._fail(f"{stream.name}: {error}")
                continue
            stream.acknowledged(result, time.monotonic())

    async def _follow(self, client: dlog.Client, stream: SoakStream) -> None:
        """Read everything from the start on, until cancelled."""
        try:
            async with aclosing(client.read_batches(stream.name, start=dlog.START, follow=True)) as batches:
                async for batch in batches:
                    stream.followed(batch)
        except DLogError as error:
            self._fail(f"the follower of {stream.name}: {error}")
            stream.has_lost_its_reader = True

    async def _visit(self, client: dlog.Client) -> None:
        for number in itertools.count():
            if await self._rests(VISIT_S):
                return
            stream, visitor = self._streams[number % len(self._streams)], f"visitor-{number}"
            left = VISIT_BATCHES
            try:
                async with (
                    asyncio.timeout(DRAIN_S),
                    aclosing(client.read_batches(stream.name, start=dlog.TAIL, follow=True)) as batches,
                ):
                    async for batch in batches:
                        stream.checker.given(visitor, batch.dlsn, batch.payloads)
                        left -= 1
                        if not left or self._over.is_set():
                            break
            except (DLogError, TimeoutError) as error:
                if not self._over.is_set():
                    self._fail(f"{visitor} of {stream.name}: {error!r}")
            stream.checker.left(visitor)

    async def _host(self, client: dlog.Client) -> None:
        for number in itertools.count():
            if await self._rests(GUEST_S):
                return
            guest = SoakStream(f"soak-guest-{number}", self._load)
            try:
                await client.create(guest.name, **self._load.settings)
                result = await client.append_batch(guest.name, guest.next_batch(GUEST_RECORDS))
                guest.acknowledged(result, 0.0)
                await read_back(client, guest.name, guest.checker)
                await client.delete(guest.name)
            except DLogError as error:
                self._fail(f"{guest.name}: {error}")
            self._verdict.add(guest.checker.finish())

    async def _truncate(self, client: dlog.Client) -> None:
        stream = self._streams[0]
        while not await self._rests(TRUNCATE_S):
            dlsn = stream.dlsn_before(time.monotonic() - KEEP_S)
            if dlsn is not None:
                try:
                    await client.truncate(stream.name, dlsn)
                except DLogError as error:
                    self._fail(f"truncation of {stream.name} to {dlsn}: {error}")

    async def _rests(self, seconds: float) -> bool:
        """Wait `seconds`; whether the soak is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return False
        return True

    # ---- sampling ---------------------------------------------------------------------------------------------------

    async def _look(self, client: dlog.Client) -> None:
        """Sample until the end."""
        load, begin_s = self._load, time.monotonic()
        step_s = min(LOOK_S, load.seconds / LOOKS_MIN)
        reported = 0
        while (at_s := time.monotonic() - begin_s) < load.seconds:
            await asyncio.sleep(min(step_s, load.seconds - at_s))
            running = self._running()
            for stream in self._streams:
                first = (await client.stat(stream.name)).first_dlsn
                if first is not None:
                    stream.truncated_before(first)
            sample = Sample(
                time.monotonic() - begin_s,
                _rss(running),
                await asyncio.to_thread(_used, running),
                sum(stream.live_bytes for stream in self._streams),
            )
            self._samples.append(sample)
            if sample.at_s * 12 / load.seconds >= reported + 1:
                reported = int(sample.at_s * 12 / load.seconds)
                rss = " ".join(f"{name}={size / MB:.0f}" for name, size in sample.rss.items())
                used = " ".join(f"{name}={size / MB:.0f}" for name, size in sample.used.items())
                self._on_progress(
                    f"soak {sample.at_s:,.0f} s: live MB {sample.live / MB:.0f}; used MB {used}; RSS MB {rss}"
                )

    async def _drain(self) -> None:
        """Wait until the followers have all acknowledged records; one that misses some within DRAIN_S fails."""

        async def all_have_all() -> bool:
            return all(stream.is_followed() for stream in self._streams)

        try:
            await until(all_have_all, DRAIN_S, "followers did not receive all records")
        except CannotRunError as error:
            self._fail(str(error))

    async def _read_only(self) -> int:
        running = self._running()
        async with await ZooKeeperMetadata.connect(running.zookeeper, running.namespace) as metadata:
            return len((await metadata.members()).readonly)

    def _fail(self, text: str) -> None:
        if len(self._failed) < FAILED_MAX:
            self._failed.append(text)


class SoakStream:
    """One stream of a soak and the state of its records, all of producer 0."""

    def __init__(self, name: str, load: Load) -> None:
        self.name = name
        self.checker = Checker()
        self.sent = 0
        self.live_bytes = 0
        self.has_lost_its_reader = False
        self._record_bytes = load.record_bytes
        self._maker = PayloadMaker(0, load.record_bytes)
        self._live: deque[tuple[dlog.DLSN, int, float]] = deque()  # last DLSN, bytes, time of acknowledgement
        self._newest = self._seen = -1  # last sequence acknowledged, last sequence received by the follower

    def next_batch(self, count: int) -> list[bytes]:
        self.checker.sent(0, self.sent, count)
        batch = self._maker.make(self.sent, count, 0)
        self.sent += count
        return batch

    def acknowledged(self, result: dlog.BatchResult, now_s: float) -> None:
        """The last batch is acknowledged; a stream has one pending batch at a time."""
        self.checker.acknowledged(0, self.sent - result.count, result.count, result.first)
        self._newest = self.sent - 1
        size = result.count * self._record_bytes
        self._live.append((result.last, size, now_s))
        self.live_bytes += size

    def followed(self, batch: dlog.RecordBatch) -> None:
        self.checker.given("follower", batch.dlsn, batch.payloads)
        claim = read(batch.payloads[-1])
        self._seen = claim.sequence if claim is not None else self._seen

    def is_followed(self) -> bool:
        """Whether the follower has all acknowledged records, or has ended with an error."""
        return self.has_lost_its_reader or self._seen >= self._newest

    def truncated_before(self, first: dlog.DLSN) -> None:
        while self._live and self._live[0][0] < first:
            self.live_bytes -= self._live.popleft()[1]

    def dlsn_before(self, instant_s: float) -> dlog.DLSN | None:
        """The last DLSN, not truncated yet, that was acknowledged at that instant or before."""
        return next((dlsn for dlsn, _, at_s in reversed(self._live) if at_s <= instant_s), None)


def _name(part: RunningPart) -> str:
    """Name of a process in reports: a proxy's id; role and address of others."""
    return part.id if part.id.startswith(part.role) else f"{part.role} {part.id}"


def _rss(running: RunningCluster) -> dict[str, int]:
    """Memory of every process of a `dlog up`."""
    found = {_name(part): part.pid for part in running.parts}
    used = {name: usage(pid) for name, pid in found.items() if pid} | {"dlog up": usage(running.pid)}
    return {name: seen.rss_bytes for name, seen in used.items() if seen is not None}


def _used(running: RunningCluster) -> dict[str, int]:
    """Disk usage of each bookie's directory. Raises CannotRunError if there is none."""
    found = {folder.name: bytes_on_disk(folder) for folder in sorted(Path(running.directory).glob("bookie-*"))}
    if not found:
        raise CannotRunError(f"no directory bookie-* in {running.directory}: disk usage cannot be measured")
    return found


def bytes_on_disk(directory: Path) -> int:
    """Allocated blocks of all files in a directory tree; files may disappear meanwhile."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total
