"""One run: start, load, faults by the plan, heal, read everything, check. It leaves no process, mount or file
behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dlog
from dlog.io.children import die_with_parent
from tests.chaos.cluster import ROOT, Cluster
from tests.chaos.faults import Faults
from tests.chaos.plan import CLIENTS, RACKS, STREAMS, Plan
from tests.chaos.report import Report, claims_in, counted, gaps, owners_in
from tests.chaos.storage import check as check_objects
from tests.history import History, Verdict, check
from tests.history.tape import play

_ALIVE_S = 300.0
_STOP_S = 300.0
_READ_S = 900.0
_SESSION_NS = 15_000_000_000  # until a read proxy has contact again, after its link is free
_NAMES = list(STREAMS)
_TAKEOVERS_MIN = 1
# one client gives appends up, outcome unknown, and goes on
_IMPATIENT, _IMPATIENT_S, _PATIENT_S = "client-2", 2.0, 30.0

Say = Callable[[str], None]


class StoppedError(Exception):
    """The run was stopped by a signal."""


def jobs_of(rate: int) -> list[list[dict[str, Any]]]:
    """The job of each client process. rate: records a second of all together, about."""
    bulk, rolls, singles, numbered = range(4)
    share = max(1, rate // 10)
    write, few = "write_batches", {"numbered": False}
    return [
        [
            {"do": write, "stream": bulk, "producer": 1, "rate": share * 4, "batch": 500, **few},
            {"do": write, "stream": rolls, "producer": 2, "rate": share, "batch": 100, **few},
            {"do": "seek", "stream": bulk, "every_s": 0.5},
        ],
        [
            {"do": write, "stream": bulk, "producer": 3, "rate": share * 3, "batch": 250, **few},
            {"do": write, "stream": rolls, "producer": 4, "rate": share // 2 + 1, "batch": 20, **few},
            {"do": write, "stream": numbered, "producer": 5, "rate": share, "batch": 50, "numbered": True},
            {"do": "truncate", "stream": numbered, "every_s": 7.0},
            {"do": "seek", "stream": numbered, "every_s": 0.5},
            {"do": "write_singles", "stream": singles, "producer": 6, "count": 4},
        ],
        [
            {"do": "write_singles", "stream": singles, "producer": 7, "count": 8},
            *({"do": "tail", "stream": stream} for stream in (bulk, rolls, singles, numbered)),
            {"do": "catch_up", "stream": rolls, "every_s": 5.0},
            {"do": "seek", "stream": rolls, "every_s": 0.7},
            {"do": "seek", "stream": singles, "every_s": 0.7},
        ],
    ]


class _Client:
    """A client process."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.tape = directory / f"{name}.tape"
        self._log = directory / f"{name}.log"
        self.process: asyncio.subprocess.Process

    async def start(self, target: str, seed: int, jobs: list[dict[str, Any]]) -> int:
        told = {"target": target, "tape": str(self.tape), "streams": _NAMES, "seed": seed, "jobs": jobs}
        told["append_deadline_s"] = _IMPATIENT_S if self.name == _IMPATIENT else _PATIENT_S
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.chaos.client", json.dumps(told)),
                cwd=ROOT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        return self.process.pid

    def stop(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)

    async def end(self, within_s: float) -> tuple[dict[str, int], str | None]:
        """End the process. Returns its count of errors, and what is wrong with its end, if anything."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(within_s):
                said = await self.process.stdout.read()
                code = await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            return {}, f"{self.name} did not end within {within_s:g} s"
        if code:
            return {}, f"{self.name} ended with {code}: {self._log.read_text(errors='replace')[-2000:]}"
        errors: dict[str, int] = json.loads(said or b"{}")
        return errors, None

    def kill(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()


async def run(plan: Plan, directory: Path, *, mounts: bool, rate: int, say: Say) -> Report:
    """Run the plan in an empty directory; the caller keeps or removes it. Raises StoppedError on a signal."""
    async with _until_signalled(), asyncio.TaskGroup() as tasks:
        wal = plan.wal if plan.store != "ledger" else ""
        cluster = Cluster(directory, tasks, mounts=mounts, wal=wal, racks=RACKS)
        clients: list[_Client] = []
        try:
            return await _run(plan, cluster, clients, rate, say)
        finally:
            for client in clients:
                client.kill()
            await cluster.close()


async def _run(plan: Plan, cluster: Cluster, clients: list[_Client], rate: int, say: Say) -> Report:
    await cluster.start()
    say(f"the cluster is up: {cluster.target}")
    unhealed: list[str] = []
    errors: Counter[str] = Counter()
    async with dlog.connect(cluster.target) as control:
        for name, settings in plan.streams.items():
            await control.create(name, **settings)
        jobs = jobs_of(rate)
        for number in range(CLIENTS):
            client = _Client(f"client-{number + 1}", cluster.directory)
            cluster.clients[client.name] = await client.start(cluster.target, plan.seed + number, jobs[number])
            clients.append(client)
        faults = Faults(cluster, control, plan.seed)
        begun_s = time.monotonic()
        await _do(plan, faults, begun_s, say)
        unhealed += faults.unhealed
        cluster.heal()
        try:
            await cluster.wait_ready()
        except TimeoutError:
            unhealed += [f"{n}: {part.state.value}" for n, part in cluster.parts.items() if part.pid is None]
        seconds = time.monotonic() - begun_s
        say("all is healed; the clients end")
        for client in clients:
            client.stop()
        for client in clients:
            told, wrong = await client.end(_STOP_S)
            errors.update(told)
            unhealed += [wrong] if wrong else []
        say("every stream is to take a record, and is read")
        for name, act, within_s in (("probe", _probes(), _ALIVE_S), ("judge", _reads(), _READ_S)):
            client = _Client(name, cluster.directory)
            clients.append(client)
            await client.start(cluster.target, plan.seed, act)
            told, wrong = await client.end(within_s)
            errors.update(told)
            unhealed += [wrong] if wrong else []
        places = {name: _places(await control.stat(name)) for name in _NAMES}
    fsck: dict[str, Any] = {}
    if cluster.storage is not None:
        say("the objects are compared with the metadata")
        fsck, wrong_objects = await check_objects(cluster.run_dlog, _NAMES)
        unhealed += wrong_objects
    say("judging")
    histories = {name: History(name) for name in _NAMES}
    for client in clients:
        await asyncio.to_thread(play, client.tape, dict(enumerate(histories.values())))
    logs = sorted(cluster.logs.glob("write-*.log"))
    verdict = Verdict()
    for name, history in histories.items():
        for done in faults.done:
            if done.blinds_readers:
                history.cut_off(done.began, done.healed + _SESSION_NS)
        for segment, epoch in owners_in(logs, name, places[name]):
            history.owner(segment, epoch)
        verdict.add(await asyncio.to_thread(check, history))
    claims, takeovers = claims_in(logs)
    did, left = counted(faults.done)
    too_little = [] if verdict.acknowledged else ["nothing was acknowledged"]
    too_little += [] if takeovers >= _TAKEOVERS_MIN else ["no stream was taken over"]
    return Report(
        seed=plan.seed,
        seconds=seconds,
        verdict=verdict,
        takeovers=takeovers,
        claims=claims,
        faults=did,
        left_out=left,
        gaps_ms=gaps(histories, faults.done),
        restarts={name: part.restarts for name, part in cluster.parts.items()},
        client_errors=dict(errors),
        unhealed=unhealed,
        too_little=too_little,
        objects=fsck,
        directory=str(cluster.directory),
    )


async def _do(plan: Plan, faults: Faults, begun_s: float, say: Say) -> None:
    """Apply every fault at its time, also several at once; return when the last one is healed and the time is over."""
    async with asyncio.TaskGroup() as tasks:
        for fault in plan.faults:
            await asyncio.sleep(max(0.0, begun_s + fault.at_s - time.monotonic()))
            say(f"{time.monotonic() - begun_s:6.1f} s  {fault}")
            tasks.create_task(faults.do(fault), name=str(fault))
        await asyncio.sleep(max(0.0, begun_s + plan.seconds - time.monotonic()))


def _probes() -> list[dict[str, Any]]:
    return [{"do": "probe", "stream": n, "producer": 100 + n} for n in range(len(_NAMES))]


def _reads() -> list[dict[str, Any]]:
    return [{"do": "read_all", "stream": n} for n in range(len(_NAMES))] * 2


def _places(stream: dlog.StreamInfo) -> dict[int, str]:
    return {segment.number: segment.location for segment in stream.segments}


@asynccontextmanager
async def _until_signalled() -> AsyncIterator[None]:
    """Cancel the body on SIGINT, SIGTERM and SIGHUP, which lets it clean up, and raise StoppedError."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    signals: list[int] = []

    def on_signal(number: int) -> None:
        if not signals:
            signals.append(number)
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    except asyncio.CancelledError:
        if not signals:
            raise
        raise StoppedError(signal.Signals(signals[0]).name) from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)


def remove(directory: Path) -> None:
    """Remove the directory of a run, with its content."""
    shutil.rmtree(directory, ignore_errors=True)
