"""Measures what clients see of outages that the workloads lack (`heirs`, `away`, `starved`).

`heirs`: a write proxy with many streams dies. It starts its own cluster: nothing may restart the dead proxy, and the
surviving one needs a metrics port. `away`: the ZooKeeper of a `dlog up` is frozen, so that connections hang instead of
closing. `starved`: each process of a `dlog up` gets a few percent of a CPU (loadtest/throttle.py).

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
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import dlog
from dlog.cli.discovery import RunningCluster, read_run_file
from dlog.errors import DLogError
from dlog.io.children import die_with_parent, module_environment, python_module
from loadtest.checker import Checker
from loadtest.systems.base import CannotRunError
from loadtest.systems.dlog import Dlog
from loadtest.systems.nodes import HOST, Ports
from loadtest.throttle import SHARE, throttled
from loadtest.writer import ACKS_BETWEEN, Writer, read_back
from loadtest.zookeeper import server_counts

GOALS = {"heirs": {"p99_ms": 10_000.0}, "away": {"max_ms": 1500.0}, "starved": {"max_ms": 10_000.0}}  # at most
STREAMS, AWAY_S = 1000, 60.0
AFTER_S = 15.0  # sessions expire up to ten seconds after ZooKeeper is back; owners then register again
CLIENTS = 4
WRITERS = 2
DEADLINE_S = 600.0  # of an append while processes starve: long, so that a silence is measured and fails no append
AT_ONCE = 4  # streams created at once: fewer than concurrent take-overs, so that their peak is after the kill
PATIENCE_S = 600.0
PATIENCE_A_STREAM_S = 0.1
_BEFORE, _AFTER = b"before", b"after"


class Heirs:
    """Two write proxies with streams; one is killed and not restarted. streams: number that the killed one owns.

    waiting: to how many of them a client appends after the kill; None: all. clients: number of clients that append.
    on_progress: called with progress messages.
    """

    def __init__(
        self,
        streams: int,
        waiting: int | None = None,
        clients: int = CLIENTS,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._streams = streams
        self._waiting = streams if waiting is None else min(waiting, streams)
        self._clients = clients
        self._on_progress = on_progress
        self._failed: list[str] = []
        self._waited_ms: list[float] = []

    async def go(self) -> dict[str, Any]:
        """Run; the report. Raises CannotRunError, DLogError, TimeoutError. Stops the cluster in any case."""
        async with asyncio.timeout(PATIENCE_S + self._streams * PATIENCE_A_STREAM_S), AsyncExitStack() as stack:
            room = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dlog-heirs-")))
            (port,) = stack.enter_context(Ports()).take(1)
            config = room / "heir.toml"
            config.write_text(f"[write]\nhttp_port = {port}\n")
            cluster = Dlog("dlog")
            stack.push_async_callback(cluster.stop)
            await cluster.start(room, {"write-proxies": "1", "read-proxies": "1", "config": str(config)})
            running = read_run_file(room / "cluster")
            assert running is not None, "started"
            dying = await stack.enter_async_context(write_proxy(running, room / "dying.printed", "dying"))
            target = f"{running.connect},{dying.address}"

            async def connect(count: int) -> list[dlog.Client]:
                made = [dlog.connect(target, append_deadline_s=PATIENCE_S) for _ in range(count)]
                return [await stack.enter_async_context(client) for client in made]

            clients = await connect(min(CLIENTS, self._clients))
            inherited, others = await self._make(clients, dying.address)
            self._on_progress(f"{len(inherited)} streams of the proxy to be killed, {others} of the other")
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
            return judged(report, GOALS["heirs"])
        return report


async def away(
    running: RunningCluster,
    seconds: float,
    after_s: float = AFTER_S,
    on_progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """ZooKeeper frozen for `seconds`; the report. Raises CannotRunError if this `dlog up` uses another ZooKeeper,
    DLogError, TimeoutError."""
    pid = next((part.pid for part in running.parts if part.role == "zookeeper" and part.pid), None)
    if pid is None:
        raise CannotRunError("this `dlog up` uses an external ZooKeeper; use one that starts its own")

    async def freeze(writers: Sequence[Writer], _: Callable[[], Awaitable[int]]) -> dict[str, Any]:
        """The longest silence of any writer before, during and after the freeze."""
        silences_ms = {}
        for name, length_s in (("before_ms", 2.0), ("away_ms", seconds), ("after_ms", after_s)):
            if name == "away_ms":
                os.kill(pid, signal.SIGSTOP)
            try:
                silences_ms[name] = await _silence_ms(writers, length_s)
            finally:
                if name == "away_ms":
                    os.kill(pid, signal.SIGCONT)
            on_progress(f"{name}={silences_ms[name]}")
        return silences_ms | {
            "seconds": seconds,
            "max_ms": max(silences_ms["away_ms"], silences_ms["after_ms"]),
            "said": f"ZooKeeper frozen for {seconds:,.0f} s: longest ack gap "
            f"{silences_ms['away_ms']:,.0f} ms meanwhile, {silences_ms['after_ms']:,.0f} ms after",
        }

    return await _under_load("away", running, 16, freeze)


async def starved(
    running: RunningCluster, seconds: float, on_progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Each process gets throttle.SHARE of a CPU for `seconds`; the report. Raises DLogError, TimeoutError; processes
    run freely afterwards in any case."""

    async def starve(writers: Sequence[Writer], claims: Callable[[], Awaitable[int]]) -> dict[str, Any]:
        epoch, acks = await claims(), sum(writer.acks for writer in writers)
        async with throttled([part.pid for part in running.parts if part.pid]):
            longest_ms = await _silence_ms(writers, seconds)
        acks = sum(writer.acks for writer in writers) - acks
        on_progress(f"longest_ms={longest_ms} acks={acks}")
        takes = await claims() - epoch
        return {
            "seconds": seconds,
            "max_ms": longest_ms,
            "acks": acks,
            "takes": takes,
            "said": f"{SHARE:.0%} of a CPU for each process, {seconds:,.0f} s: {acks:,} acknowledged, "
            f"{takes} changes of owner",
        }

    return await _under_load("starved", running, 4, starve, append_deadline_s=DEADLINE_S, request_deadline_s=DEADLINE_S)


async def _under_load(
    name: str,
    running: RunningCluster,
    tasks: int,
    disturb: Callable[[Sequence[Writer], Callable[[], Awaitable[int]]], Awaitable[dict[str, Any]]],
    **deadlines: Any,
) -> dict[str, Any]:
    """The report of an outage under two writers, each of whose `tasks` await every record.

    disturb: gets the writers, and a function that returns the epoch of the stream; returns the figures.
    """
    stream, checker = f"loadtest-{uuid.uuid4().hex[:8]}", Checker()
    async with AsyncExitStack() as clients:
        client, *own = [
            await clients.enter_async_context(dlog.connect(running.connect, **deadlines)) for _ in range(1 + WRITERS)
        ]
        await client.create(stream)
        writers = [Writer(number, stream, one, checker) for number, one in enumerate(own)]

        async def claims() -> int:
            return (await client.owner(stream)).epoch

        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.run(tasks), name="writer")
            try:
                for writer in writers:
                    await writer.acknowledged(ACKS_BETWEEN)
                    writer.mark()
                figures = await disturb(writers, claims)
            finally:
                for writer in writers:
                    writer.stop()
        await read_back(client, stream, checker)
        await client.delete(stream)
    failed, verdict = [text for writer in writers for text in writer.failed], checker.finish()
    is_green = verdict.is_green and not failed
    report = {"fault": name, "green": is_green, "verdict": verdict.as_json(), "failed": failed[:10]}
    return judged(report | {"rounds": 1} | figures, GOALS[name]) if is_green else report


async def _silence_ms(writers: Sequence[Writer], seconds: float) -> float:
    """The longest time without an acknowledgement to one writer, over all writers, in the next `seconds`."""
    await asyncio.sleep(seconds)
    for writer in writers:
        await writer.acknowledged(1)
    return round(max(writer.mark() for writer in writers) * 1000, 1)


def judged(report: dict[str, Any], goals: Mapping[str, float]) -> dict[str, Any]:
    """A report with its goals, each the most that a figure may be, and the state of the machine."""
    met = {name: {"at_most": most, "met": report[name] <= most} for name, most in goals.items()}
    return report | {"load_average": round(os.getloadavg()[0], 2), "cpus": os.cpu_count(), "goals": met}


def as_text(report: dict[str, Any]) -> str:
    """As text: the verdict, then each figure beside its goal."""
    if not report["green"]:
        examples = report.get("verdict", {}).get("examples", [])
        return "\n".join(["NOT GREEN, so no figures", *examples, *report["failed"]])
    lines = [f"green: {report.get('said', report['fault'])}"]
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
async def write_proxy(
    running: RunningCluster, printed: Path, name: str, more: Mapping[str, str] | None = None
) -> AsyncIterator[_Proxy]:
    """Run one. more: added to its environment. Raises CannotRunError with what it printed."""
    environment = {key: value for key, value in module_environment().items() if not key.startswith("DLOG_")}
    environment |= more or {}
    flags = ("--zookeeper", running.zookeeper, "--namespace", running.namespace, "--id", name)
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
            output = await asyncio.to_thread(printed.read_text)
            raise CannotRunError(f"a write proxy did not start: {output[-500:].strip()}")
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

    metrics = await asyncio.to_thread(scrape)
    return {name: int(float(value)) for name, value in re.findall(r"^dlog_(write_takes_\w+) (\S+)$", metrics, re.M)}


async def each(streams: Iterable[str], at_once: int, work: Callable[[str], Awaitable[None]]) -> None:
    """Run `work` for each stream, `at_once` at a time."""
    waiting = iter(streams)

    async def one() -> None:
        for stream in waiting:
            await work(stream)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(one())
