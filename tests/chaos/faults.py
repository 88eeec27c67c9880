"""The kinds of faults on the cluster, and how each is healed.

Invariants:
- A fault that has begun is healed, also when the run ends in the middle of it.
- A target such as the owner of a stream is resolved when the fault begins; if no proxy can name it, a write proxy drawn
  from the plan's seed is the target.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import time
from dataclasses import dataclass

import dlog
from dlog.cli.parts import State
from dlog.errors import DLogError
from tests.chaos.cluster import Cluster, HeldPart
from tests.chaos.links import LinkConditions
from tests.chaos.plan import WRITERS, Fault
from tests.chaos.zookeeper import expire

_OWNER_S = 1.5
_READY_S = 300.0
_AGAIN_S = 1.0


@dataclass(slots=True)
class Done:
    """A fault as it happened. Times in ns of the monotonic clock; streams: the affected ones, empty for all."""

    fault: Fault
    began: int
    healed: int = 0
    target: str = ""  # the resolved target
    left_out: str = ""  # why it was not done

    @property
    def blinds_readers(self) -> bool:
        """Whether a read proxy may be cut off from ZooKeeper or from bookies meanwhile."""
        if self.fault.kind == "storage":
            return True
        left, _, right = self.fault.target.partition(">")
        if not right:
            everyone = ("zookeeper", "everything", "bookies", "versitygw", "owner:_dlog.objects")
            return self.fault.kind == "isolate" or left in everyone
        if right == "owner:_dlog.objects":
            return True
        is_asked = right in ("zookeeper", "versitygw") or right.startswith("bookie")
        return (left == "*" or left.startswith("read")) and is_asked


class Faults:
    """Applies faults to one cluster."""

    def __init__(self, cluster: Cluster, client: dlog.Client, seed: int) -> None:
        self.done: list[Done] = []
        self.unhealed: list[str] = []  # faults whose part did not come back
        self._cluster = cluster
        self._client = client
        self._rng = random.Random(seed)
        self._lost: set[str] = set()  # bookies whose directory is gone, and which ledgers still name
        self._busy: dict[str, asyncio.Lock] = {name: asyncio.Lock() for name in cluster.parts}

    async def do(self, fault: Fault) -> None:
        """Apply the fault and heal it; noted in `done`."""
        done = Done(fault, time.monotonic_ns(), target=fault.target)
        self.done.append(done)
        try:
            await self._do(fault, done)
        except TimeoutError:
            self.unhealed.append(f"{done.target} after {fault}, for {_READY_S:g} s")
        done.healed = time.monotonic_ns()

    async def _do(self, fault: Fault, done: Done) -> None:
        match fault.kind:
            case "kill":
                await self._kill(done, signal.SIGKILL)
            case "restart":
                await self._kill(done, signal.SIGTERM)
            case "pause":
                await self._pause(done)
            case "cut" | "cut-requests" | "cut-replies" | "slow" | "isolate":
                await self._cut(done)
            case "reset":
                await self._reset(done)
            case "fill":
                await self._fill(done)
            case "unplug":
                await self._unplug(done)
            case "lose":
                await self._lose(done)
            case "storage":
                assert self._cluster.storage is not None
                await self._cluster.storage.disturb(fault.target, fault.amount, fault.for_s)
            case "expire":
                await self._expire(done)
            case "release":
                await self._release(done)
            case kind:
                raise ValueError(f"no such fault: kind={kind}")

    # ---- kinds ------------------------------------------------------------------------------------------------------

    async def _kill(self, done: Done, number: signal.Signals) -> None:
        names = list(self._cluster.parts) if done.fault.target == "everything" else [await self._name(done)]
        pids = {name: self._cluster.signal(name, number) for name in names}
        for name, pid in pids.items():
            await self._until_another(name, pid)

    async def _until_another(self, name: str, pid: int | None) -> None:
        part = self._cluster.parts[name]
        async with asyncio.timeout(_READY_S):
            while part.pid == pid or part.state is not State.READY:  # noqa: ASYNC110 - looked at, as `dlog up` does
                await asyncio.sleep(0.05)

    async def _pause(self, done: Done) -> None:
        name = await self._name(done)
        pid = self._cluster.signal(name, signal.SIGSTOP)
        try:
            await asyncio.sleep(done.fault.for_s)
        finally:
            if pid is not None and self._cluster.parts[name].pid == pid:
                self._cluster.signal(name, signal.SIGCONT)

    async def _cut(self, done: Done) -> None:
        of_links = await self._conditions(done)
        kind = done.fault.kind
        for conditions in of_links:
            conditions.hold_requests += kind in ("cut", "cut-requests", "isolate")
            conditions.hold_replies += kind in ("cut", "cut-replies", "isolate")
            if kind == "slow":
                conditions.bytes_per_s = max(1000, done.fault.amount)
        try:
            await asyncio.sleep(done.fault.for_s)
        finally:
            for conditions in of_links:
                conditions.hold_requests -= conditions.hold_requests > 0 and kind in ("cut", "cut-requests", "isolate")
                conditions.hold_replies -= conditions.hold_replies > 0 and kind in ("cut", "cut-replies", "isolate")
                if kind == "slow":
                    conditions.bytes_per_s = 0
            self._cluster.links.changed()

    async def _reset(self, done: Done) -> None:
        for conditions in await self._conditions(done):
            conditions.reset_after = done.fault.amount

    async def _fill(self, done: Done) -> None:
        name = await self._name(done)
        disk = self._cluster.disks.get(name)
        if disk is None:
            done.left_out = "bookies have no disks of their own here"
            return
        async with self._busy[name]:
            leave = done.fault.amount if done.fault.amount % 2 else 0
            await asyncio.to_thread(disk.fill, leave)
            try:
                await asyncio.sleep(done.fault.for_s)
            finally:
                await asyncio.to_thread(disk.make_room)
            await self._cluster.wait_ready([name])

    async def _unplug(self, done: Done) -> None:
        """Cut the power of these bookies: what was not synced is gone, and so is the process."""
        cluster = self._cluster
        everyone = done.fault.target == "bookies"
        names = [n for n in cluster.parts if n.startswith("bookie")] if everyone else [await self._name(done)]
        if any(name not in cluster.disks for name in names):
            done.left_out = "bookies have no disks of their own here"
            return
        async with contextlib.AsyncExitStack() as stack:
            for name in sorted(names):
                await stack.enter_async_context(self._busy[name])
            names = [name for name in names if name not in self._lost]
            pids: dict[str, int | None] = {}
            for name in names:
                part = cluster.parts[name]
                assert isinstance(part, HeldPart)
                part.gate.clear()
            try:
                for name in names:
                    cluster.disks[name].unplug()
                    pids[name] = cluster.signal(name, signal.SIGKILL)
                for name in names:
                    disk = cluster.disks[name]
                    await asyncio.to_thread(disk.unmount)
                    await asyncio.to_thread(disk.mount)
            finally:
                for name in names:
                    part = cluster.parts[name]
                    assert isinstance(part, HeldPart)
                    part.gate.set()
            for name in names:
                await self._until_another(name, pids[name])

    async def _lose(self, done: Done) -> None:
        """Delete a bookie's directory for good. As an operator would, take the bookie out of the cluster, which ends
        when recovery processes have made its copies again, and start an empty one at its address."""
        name = await self._name(done)
        part = self._cluster.parts[name]
        assert isinstance(part, HeldPart)
        async with self._busy[name]:
            self._lost.add(name)
            part.gate.clear()
            pid = self._cluster.signal(name, signal.SIGKILL)
            while part.pid is not None and part.pid == pid:  # noqa: ASYNC110 - looked at, as `dlog up` does
                await asyncio.sleep(0.05)
            await asyncio.to_thread(shutil.rmtree, self._cluster.directory / name / "data")
        async with asyncio.timeout(_READY_S):
            while True:
                try:
                    await self._cluster.run_dlog("bookie", "decommission", self._cluster.addresses[name], "--json")
                    break
                except RuntimeError:  # it is registered for some seconds more, or ZooKeeper is out of reach
                    await asyncio.sleep(_AGAIN_S)
        self._lost.discard(name)
        part.gate.set()
        await self._until_another(name, pid)

    async def _expire(self, done: Done) -> None:
        name = await self._name(done)
        session = self._cluster.sessions.get(name)
        if session is None:
            done.left_out = "no session was seen"
            return
        try:
            async with asyncio.timeout(5.0):
                known = await expire(self._cluster.zookeeper_port, session)
        except (OSError, EOFError) as error:  # a timeout is an OSError too
            done.left_out = f"ZooKeeper does not answer: {type(error).__name__}"
            return
        if not known:
            done.left_out = "the session had expired by itself"

    async def _release(self, done: Done) -> None:
        stream = done.fault.target.partition(":")[2]
        try:
            async with asyncio.timeout(5.0):
                await self._client.hand_over(stream)
        except (DLogError, TimeoutError) as error:
            done.left_out = f"nobody could be asked: {type(error).__name__}"

    # ---- targets ----------------------------------------------------------------------------------------------------

    async def _name(self, done: Done) -> str:
        done.target = await self._part(done.fault.target)
        return done.target

    async def _part(self, target: str) -> str:
        role, _, stream = target.partition(":")
        if role != "owner":
            return target
        with contextlib.suppress(DLogError, TimeoutError):
            async with asyncio.timeout(_OWNER_S):
                location = (await self._client.owner(stream)).location
            for name, address in self._cluster.addresses.items():
                if address == location:
                    return name
        return f"write-{self._rng.randint(1, WRITERS)}"

    async def _conditions(self, done: Done) -> list[LinkConditions]:
        """The link conditions of every pair that the fault targets."""
        left, _, right = done.fault.target.partition(">")
        if done.fault.kind == "isolate":
            links, every = self._cluster.links, [*self._cluster.parts, *self._cluster.clients]
            inside = {name for name in self._cluster.parts if self._cluster.rack_of(name) == left}
            pairs = ((a, b) for a in every for b in self._cluster.parts if (a in inside) != (b in inside))
            return [links.conditions(a, b) for a, b in pairs]
        sources = [*self._cluster.parts, *self._cluster.clients] if left == "*" else [await self._part(left)]
        targets = list(self._cluster.parts) if right == "*" else [await self._part(right)]
        done.target = f"{sources[0] if left != '*' else left}>{targets[0] if right != '*' else right}"
        return [self._cluster.links.conditions(a, b) for a in sources for b in targets if a != b]
