"""Runs the peers: three servers on loopback, records appended and read back, one server killed in between.

No speed is checked. The answers of each peer are checked by the same checker as those of dlog.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loadtest.generators import Generator
from loadtest.history import notes
from loadtest.judge import Verdict, judge
from loadtest.systems.base import Flavour, System
from loadtest.systems.java import BOOKKEEPER, KAFKA, Jars
from loadtest.systems.nats import SERVER
from loadtest.systems.nodes import ServerSystem
from loadtest.systems.peers import VARIANTS
from tests.parts import need

pytestmark = [pytest.mark.peers, pytest.mark.slow]
RECORDS = 200
PATIENCE_S = 180.0
LOAD_S = 60.0  # the load ends much earlier, by the number of its records


def need_jars(jars: Jars) -> None:
    need(shutil.which("javac") is not None, "a JDK", "apt-get install openjdk-17-jdk-headless")
    how = f"python -m loadtest peers install {jars.peer} (needs Maven: apt-get install maven)"
    need(jars.are_here(), f"the jars of {jars.peer}", how)


@asynccontextmanager
async def running(name: str, room: Path) -> AsyncIterator[ServerSystem]:
    """A running peer, all of whose processes have ended afterwards."""
    variant = VARIANTS[name]
    system = variant.make(name)
    assert isinstance(system, ServerSystem)
    seen: set[int] = set()
    try:
        await system.start(room, variant.preset)
        seen.update(pid for pids in system.processes().values() for pid in pids)
        yield system
        seen.update(pid for pids in system.processes().values() for pid in pids)
    finally:
        await system.stop()
    assert len(seen) >= 3
    assert [pid for pid in sorted(seen) if is_alive(pid)] == []


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Load:
    """Generators on one log, and their notes."""

    def __init__(self, system: System, log: str, room: Path, flavour: Flavour) -> None:
        self.system = system
        self.log = log
        self.room = room
        self.flavour = flavour
        self.producers: list[Path] = []
        self.readers: list[tuple[str, Path]] = []

    async def produce(self, **more: Any) -> dict[str, Any]:
        """Run another producer and return its result."""
        async with self.producing(**more) as generator:
            return await generator.result(2 * PATIENCE_S)

    @asynccontextmanager
    async def producing(self, **more: Any) -> AsyncIterator[Generator]:
        """Start another producer; returns when it has begun."""
        number = len(self.producers)
        name = f"{self.log}-producer-{number}"
        self.producers.append(self.room / name)
        job = {"kind": "produce", "producer": number, "mode": "window", "window": 50, "records": RECORDS, **more}
        async with self._running(name, job) as generator:
            yield generator

    async def read_back(self) -> dict[str, Any]:
        """A reader from the start to the end."""
        name = f"{self.log}-read-back"
        self.readers.append((name, self.room / name))
        job = {"kind": "read", "start": "start", "follow": False, "copies": 1}
        async with self._running(name, job) as generator:
            return await generator.result(2 * PATIENCE_S)

    def judged(self) -> Verdict:
        return judge([self.log], map(notes, self.producers), [(name, notes(path)) for name, path in self.readers])

    @asynccontextmanager
    async def _running(self, name: str, job: Mapping[str, Any]) -> AsyncIterator[Generator]:
        common = {"address": self.system.address(), "options": {}, "logs": [self.log], "record_bytes": 100, "seed": 7}
        times = {"seconds": LOAD_S, "warmup_s": 0.0, "patience_s": PATIENCE_S}
        load = {"batch_records": 1, "tasks": 8, "rate": 0, "zipf": 0.0}
        whole = {**common, **times, **load, "reader": name, "history": str(self.room / name), **job}
        command, more = self.system.generator(whole, self.flavour)
        generator = Generator(name)
        try:
            await generator.start(command, {**whole, **more}, self.room / f"{name}.stderr")
            if job.get("goes", True):
                generator.go(time.monotonic_ns())
            yield generator
        finally:
            await generator.end()


async def test_bookkeeper_keeps_what_its_java_client_wrote_while_a_bookie_dies(tmp_path: Path) -> None:
    need_jars(BOOKKEEPER)
    async with running("bookkeeper", tmp_path / "servers") as system:
        await system.create("log")
        load = Load(system, "log", tmp_path, "fast")
        told = [await load.produce()]
        async with load.producing(mode="open", rate=50) as writing:
            await writing.acknowledged(1, 0, PATIENCE_S)
            await system.kill(system.nodes()[0].name)
            told.append(await writing.result(2 * PATIENCE_S))
        await system.revive(system.nodes()[0].name)
        await system.whole()
        told.append(await load.produce(batch_records=10))
        flood = await load.produce(mode="open", rate=10_000_000, records=0, seconds=0.05)
        the_first = 1  # of each log, before the load
        async with load.producing(goes=False) as resting:  # as W19 keeps logs open
            resting.stop()
            told.append(await resting.result(2 * PATIENCE_S))
        assert told[-1]["sent"] == the_first
        assert flood["behind"] > 0 and flood["sent"] - the_first + flood["behind"] == 500_000, flood
        assert flood["errors"] == [], "whatever was not sent is no record without an answer"
        await all_is_there(load, [*told, flood])


async def test_kafka_keeps_what_was_written_when_the_leader_dies(tmp_path: Path) -> None:
    need_jars(KAFKA)
    async with running("kafka", tmp_path / "servers") as system:
        await the_leader_dies(system, tmp_path)
        await a_python_program_writes_and_reads(system, tmp_path)


async def test_nats_keeps_what_was_written_when_the_leader_dies(tmp_path: Path) -> None:
    need(SERVER.exists(), "nats-server", "python -m loadtest peers install nats (needs Go: apt-get install golang-go)")
    async with running("nats", tmp_path / "servers") as system:
        await the_leader_dies(system, tmp_path)
        await a_python_program_writes_and_reads(system, tmp_path)
        before = await system.owner("log")
        await system.hand_over("log")
        assert await system.owner("log") != before


async def the_leader_dies(system: ServerSystem, room: Path) -> None:
    """Write records before and after the death of a log's leader, and read all of them back."""
    await system.create("log")
    load = Load(system, "log", room, "fast")
    told = [await load.produce()]
    leader = await system.owner("log")
    await system.kill(leader)
    async with asyncio.timeout(PATIENCE_S):
        while await system.owner("log") == leader:  # noqa: ASYNC110 - another program elects
            await asyncio.sleep(0.1)
    told.append(await load.produce())
    await system.revive(leader)
    await system.whole()
    await all_is_there(load, told)


async def a_python_program_writes_and_reads(system: ServerSystem, room: Path) -> None:
    """Use the client as a Python program would: pipelined, then each append awaited."""
    await system.create("another")
    load = Load(system, "another", room, "user")
    await all_is_there(load, [await load.produce(), await load.produce(mode="await", records=0, seconds=1.0)])


async def all_is_there(load: Load, told: list[dict[str, Any]]) -> None:
    """Check that every record was acknowledged, and is read back as acknowledged."""
    back = await load.read_back()
    verdict = load.judged()
    sent = sum(one["sent"] for one in told)
    assert all(one["acked"] == one["sent"] > 0 for one in told), told
    assert back["ended"] and verdict.is_green, (verdict, back)
    assert verdict.read == verdict.acknowledged == sent
