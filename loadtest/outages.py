"""Measures what clients see when a write proxy with many streams dies (`heirs`) and while ZooKeeper is away (`away`).

`heirs` starts its own cluster: nothing may restart the dead proxy, and the surviving one needs a metrics port. `away`
freezes the ZooKeeper of a `dlog up`, so that connections hang instead of closing.

Invariants:
- figures are reported only if every append succeeded and every acknowledged record is read back exactly once.

Source of the goals: the reliability notes, "Levels"; without ZooKeeper an owner continues in its present segments.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import dlog
from dlog.cli.discovery import RunningCluster, read_run_file
from dlog.errors import DLogError
from dlog.io.children import die_with_parent, module_environment, python_module
from loadtest.checker import Checker
from loadtest.faults import ACKS_BETWEEN, Goal, Writer, read_back
from loadtest.systems.base import CannotRunError
from loadtest.systems.dlog import Dlog
from loadtest.systems.nodes import HOST, Ports
from loadtest.zookeeper import server_counts

GOALS = {
    "heirs": (Goal("p99_ms", 10_000.0),),
    "away": (Goal("max_ms", 1500.0),),
    "starved": (Goal("max_ms", 10_000.0),),  # loadtest/starved.py
}
NAMES = tuple(GOALS)
STREAMS, AWAY_S = 1000, 60.0
AFTER_S = 15.0  # sessions expire up to ten seconds after ZooKeeper is back; owners then register again
CLIENTS = 4
AT_ONCE = 4  # streams created at once: fewer than concurrent take-overs, so that their peak is after the kill
PATIENCE_S = 600.0
PATIENCE_A_STREAM_S = 0.1
_BEFORE, _AFTER = b"before", b"after"


class Heirs:
    """Two write proxies with streams; one is killed and not restarted. streams: number that the killed one owns.

    waiting: to how many of them a client appends after the kill; None: all. clients: number of clients that append.
    tell: called with progress messages.
    """

    def __init__(
        self,
        streams: int,
        waiting: int | None = None,
        clients: int = CLIENTS,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._streams = streams
        self._waiting = streams if waiting is None else min(waiting, streams)
        self._clients = clients
        self._tell = tell
        self._failed: list[str] = []
        self._waited_ms: list[float] = []

    async def go(self) -> dict[str, Any]:
        """Run; the report. Raises CannotRunError, DLogError, TimeoutError. Stops the cluster in any case."""
        async with asyncio.timeout(PATIENCE_S + self._streams * PATIENCE_A_STREAM_S), AsyncExitStack() as stack:
            room = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dlog-heirs-")))
            (port,) = stack.enter_context(Ports()).take(1)
            config = room / "heir.toml"
            config.write_text(f"[write]\nmetrics_port = {port}\n")
            cluster = Dlog("dlog")
            stack.push_async_callback(cluster.stop)
            await cluster.start(room, {"write-proxies": "1", "read-proxies": "1", "config": str(config)})
            running = read_run_file(room / "cluster")
            assert running is not None, "started"
            dying = await stack.enter_async_context(_write_proxy(running, room / "dying.printed"))
            target = f"{running.connect},{dying.address}"

            async def connect(count: int) -> list[dlog.Client]:
                made = [dlog.connect(target, append_deadline_s=PATIENCE_S) for _ in range(count)]
                return [await stack.enter_async_context(client) for client in made]

            clients = await connect(min(CLIENTS, self._clients))
            inherited, others = await self._make(clients, dying.address)
            self._tell(f"{len(inherited)} streams of the proxy to be killed, {others} of the other")
            clients += await connect(self._clients - len(clients))
            for client in clients:
                await client.reach()
            waited = [inherited[i * len(inherited) // self._waiting] for i in range(self._waiting)]
            figures = await self._kill(clients, waited, dying.process.kill, running.zookeeper, port)
            twice = frozenset(waited)
            await each(
                inherited,
                16,
                lambda stream: self._read_back(clients[0], stream, [_BEFORE, _AFTER] if stream in twice else [_BEFORE]),
            )
        return self._report(figures | {"other_streams": others})

    async def _make(self, clients: Sequence[dlog.Client], address: str) -> tuple[list[str], int]:
        """Create streams until enough are owned at this address; returns those, and the number of others."""
        owned: list[str] = []
        counts = Counter[str]()

        async def make(client: dlog.Client, first: int) -> None:
            number = first
            while len(owned) < self._streams:
                stream = f"heir-{number}"
                number += AT_ONCE
                await client.create(stream)
                await client.append(stream, _BEFORE)
                owner = (await client.owner(stream)).location
                counts[owner] += 1
                if owner == address and len(owned) < self._streams:
                    owned.append(stream)

        async with asyncio.TaskGroup() as group:
            for first in range(AT_ONCE):
                group.create_task(make(clients[first % len(clients)], first))
        return owned, counts.total() - len(owned)

    async def _kill(
        self,
        clients: Sequence[dlog.Client],
        streams: Sequence[str],
        kill: Callable[[], None],
        zookeeper: str,
        port: int,
    ) -> dict[str, Any]:
        """Kill the proxy; wait until an append to each of the streams has succeeded or failed."""
        taken, asked = await _takes(port), (await server_counts(zookeeper)).packets
        kill()
        begin_s = time.monotonic()

        async def append(stream: str, client: dlog.Client) -> None:
            try:
                await client.append(stream, _AFTER)
            except DLogError as error:
                self._failed.append(f"{stream}: {error}")
            else:
                self._waited_ms.append((time.monotonic() - begin_s) * 1000)

        async with asyncio.TaskGroup() as group:
            for number, stream in enumerate(streams):
                group.create_task(append(stream, clients[number % len(clients)]))
        now = await _takes(port)
        return {
            "takes": now["write_takes_total"] - taken["write_takes_total"],
            "takes_peak": now["write_takes_peak"],
            "takes_peak_before": taken["write_takes_peak"],
            "zookeeper_requests": (await server_counts(zookeeper)).packets - asked,
        }

    async def _read_back(self, client: dlog.Client, stream: str, written: list[bytes]) -> None:
        async with aclosing(client.read(stream, start=dlog.START, follow=False)) as records:
            found = [record.payload async for record in records]
        if found != written and len(self._failed) < 1000:
            self._failed.append(f"{stream}: read back {len(found)} records, expected the {len(written)} written")

    def _report(self, figures: dict[str, Any]) -> dict[str, Any]:
        report: dict[str, Any] = {"fault": "heirs", "green": not self._failed, "failed": self._failed[:10]}
        if not self._failed:
            waited = sorted(self._waited_ms)
            report |= figures | {
                "rounds": 1,
                "streams": len(waited),
                "p50_ms": round(statistics.median(waited), 1),
                "p99_ms": round(waited[max(0, -(-len(waited) * 99 // 100) - 1)], 1),
                "max_ms": round(waited[-1], 1),
            }
            report["said"] = (
                f"{len(waited):,} streams: p99 {report['p99_ms']:,.0f} ms, at most {figures['takes_peak']:,} "
                f"concurrent take-overs, {figures['zookeeper_requests']:,} requests to ZooKeeper"
            )
            judge(report)
        return report


class Away:
    """ZooKeeper frozen for `seconds` under writers that await each record."""

    def __init__(
        self,
        running: RunningCluster,
        seconds: float,
        after_s: float = AFTER_S,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._running = running
        self._seconds = seconds
        self._after_s = after_s
        self._tell = tell
        self._checker = Checker()

    async def go(self, stream: str) -> dict[str, Any]:
        """Run; the report. Raises CannotRunError if this `dlog up` uses another ZooKeeper, DLogError, TimeoutError."""
        pid = next((part.pid for part in self._running.parts if part.role == "zookeeper" and part.pid), None)
        if pid is None:
            raise CannotRunError("this `dlog up` uses an external ZooKeeper; use one that starts its own")
        async with AsyncExitStack() as clients:
            client = await clients.enter_async_context(dlog.connect(self._running.connect))
            await client.create(stream)
            writers = []
            for number in range(2):
                own = await clients.enter_async_context(dlog.connect(self._running.connect))
                writers.append(Writer(number, stream, own, self._checker, record_bytes=100))
            async with asyncio.TaskGroup() as group:
                for writer in writers:
                    group.create_task(writer.run(16), name="writer")
                try:
                    silences_ms = await self._freeze(pid, writers)
                finally:
                    for writer in writers:
                        writer.stop()
            await read_back(client, stream, self._checker)
            await client.delete(stream)
        return self._report(silences_ms, [text for writer in writers for text in writer.failed])

    async def _freeze(self, pid: int, writers: Sequence[Writer]) -> dict[str, float]:
        """The longest silence of any writer before, during and after the freeze."""
        for writer in writers:
            await writer.acknowledged(ACKS_BETWEEN)
            writer.mark()
        silences_ms = {}
        for name, seconds in (("before_ms", 2.0), ("away_ms", self._seconds), ("after_ms", self._after_s)):
            if name == "away_ms":
                os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
                for writer in writers:
                    await writer.acknowledged(1)
            finally:
                if name == "away_ms":
                    os.kill(pid, signal.SIGCONT)
            silences_ms[name] = round(max(writer.mark() for writer in writers) * 1000, 1)
            self._tell(f"{name}={silences_ms[name]}")
        return silences_ms

    def _report(self, silences_ms: dict[str, float], failed: list[str]) -> dict[str, Any]:
        verdict = self._checker.finish()
        report: dict[str, Any] = {
            "fault": "away",
            "green": verdict.is_green and not failed,
            "verdict": verdict.as_json(),
            "failed": failed[:10],
        }
        if report["green"]:
            report |= silences_ms | {
                "rounds": 1,
                "seconds": self._seconds,
                "max_ms": max(silences_ms["away_ms"], silences_ms["after_ms"]),
                "said": f"ZooKeeper frozen for {self._seconds:,.0f} s: longest ack gap "
                f"{silences_ms['away_ms']:,.0f} ms meanwhile, {silences_ms['after_ms']:,.0f} ms after",
            }
            judge(report)
        return report


def judge(report: dict[str, Any]) -> None:
    """Add the goals of this outage to its report."""
    report |= {"load_average": round(os.getloadavg()[0], 2), "cpus": os.cpu_count()}
    report["goals"] = {
        goal.figure: {"at_most": goal.at_most, "met": report[goal.figure] <= goal.at_most}
        for goal in GOALS[report["fault"]]
    }


def as_text(report: dict[str, Any]) -> str:
    """As text: the verdict, then each figure beside its goal."""
    if not report["green"]:
        examples = report.get("verdict", {}).get("examples", [])
        return "\n".join(["NOT GREEN, so no figures", *examples, *report["failed"]])
    lines = [f"green: {report['said']}"]
    for figure, goal in report["goals"].items():
        met = "met" if goal["met"] else "MISSED"
        lines.append(f"{report['fault']} {figure}={report[figure]} goal<={goal['at_most']:g} {met}")
    lines.append(" ".join(f"{name}={value}" for name, value in report.items() if isinstance(value, int | float)))
    return "\n".join(lines)


# ---- the parts of a cluster -----------------------------------------------------------------------------------------


class _Proxy:
    """A write proxy without a supervisor."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address


@asynccontextmanager
async def _write_proxy(running: RunningCluster, printed: Path) -> AsyncIterator[_Proxy]:
    environment = {key: value for key, value in module_environment().items() if not key.startswith("DLOG_")}
    flags = ("--zookeeper", running.zookeeper, "--namespace", running.namespace, "--id", "dying")
    with printed.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *python_module("proxies.write", *flags),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent(),
            env=environment,
        )
    try:
        assert process.stdout is not None, "asked for"
        ready = re.match(rb"ready write \S+ (\S+)", await process.stdout.readline())
        if ready is None:
            said = await asyncio.to_thread(printed.read_text)
            raise CannotRunError(f"a write proxy did not start: {said[-500:].strip()}")
        yield _Proxy(process, ready[1].decode())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _takes(port: int) -> dict[str, int]:
    """A write proxy's metrics of take-overs."""

    def scrape() -> str:
        with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=60.0) as answer:
            return str(answer.read().decode())

    told = await asyncio.to_thread(scrape)
    return {name: int(float(value)) for name, value in re.findall(r"^dlog_(write_takes_\w+) (\S+)$", told, re.M)}


async def each(streams: Iterable[str], at_once: int, work: Callable[[str], Awaitable[None]]) -> None:
    """Run `work` for each stream, `at_once` at a time."""
    waiting = iter(streams)

    async def one() -> None:
        for stream in waiting:
            await work(stream)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(one())
