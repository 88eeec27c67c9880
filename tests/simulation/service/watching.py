"""A subscriber to znodes and a client that changes them: checks that each watch reports what it must (M4).

In some plans each watch has a packet of its own when all are set again, and the subscriber's ZooKeeper has a name with
two addresses, one of which does not answer.

Invariants:
- The subscriber reads a znode only because its watch fired; a read that fails is tried again. So its state shows what
  watches reported.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING
from unittest import mock

from aiozk import protocol
from aiozk.protocol.acl import ACL

from dlog.errors import MetadataUnavailableError
from dlog.io import zookeeper_watches
from dlog.io.zookeeper import ZooKeeper
from dlog.io.zookeeper_protocol import decode_stat
from tests.simulation.kernel import Violation
from tests.simulation.plan import Plan
from tests.simulation.service.loop import Process
from tests.simulation.service.nodes import ZOOKEEPER

if TYPE_CHECKING:
    from tests.simulation.service.nodes import WorkNode
    from tests.simulation.service.world import World

MUTE = "nowhere"
TOLD_S = 30.0  # after healing, until a subscriber is up to date
SESSION_S = 10.0
AGAIN_S = 0.2
_OPEN, _UNREADABLE = 31, 30  # permissions of every client


@contextlib.contextmanager
def few_a_packet(plan: Plan) -> Iterator[None]:
    """Put one watch into each packet when watches are set again, while this is entered and if the plan has any."""
    with mock.patch.object(zookeeper_watches, "CHUNK_BYTES_MAX", 1) if _count(plan) else contextlib.nullcontext():
        yield


class Watching:
    """The work of the subscriber and of the changing client, and the check of the result."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._paths = [f"/watched-{number}" for number in range(_count(world.plan))]
        self.is_over = not self._paths  # the last change was made
        self._known: dict[str, int] = {}  # mzxid of what the subscriber read last
        self._hosts = ZOOKEEPER
        if world.plan.config.get("mute_address"):
            self._hosts = "zk:2181"
            world.network.names["zk"] = (MUTE, "zookeeper")
            world.network.is_down.add(MUTE)

    @property
    def works(self) -> dict[str, Callable[[Process], Awaitable[None]]]:
        """The work of each machine, by machine name."""
        return {"watcher": self._watch, "changer": self._change} if self._paths else {}

    def judge(self) -> None:
        """Check M4. Raises Violation."""
        if self._paths and not self._world.loop.run(until_s=self._world.loop.now_s + TOLD_S, until=self.knows_all):
            raise Violation("M4", f"not told of by its watch: {self._unknown()}")

    def knows_all(self) -> bool:
        """Whether the subscriber has read the present version of every znode."""
        return self.is_over is self._world.over and not self._unknown()

    def _unknown(self) -> list[str]:
        nodes = self._world.zookeeper.ensemble.tree.nodes
        return [path for path in self._paths if path not in nodes or self._known.get(path) != nodes[path].mzxid]

    async def _watch(self, process: Process) -> None:
        hints: asyncio.Queue[str] = asyncio.Queue()
        async with await _connect(self._hosts, process) as zk, asyncio.TaskGroup() as tasks:
            for path in self._paths:
                zk.watch_data(path, lambda path=path: hints.put_nowait(path))  # type: ignore[misc]  # no type of a default
                hints.put_nowait(path)
            reading = tasks.create_task(self._read(zk, hints), name="read what was told")
            await self._node("watcher").stopping.wait()  # type: ignore[union-attr]  # it is up
            reading.cancel()

    async def _read(self, zk: ZooKeeper, hints: asyncio.Queue[str]) -> None:
        while True:
            path = await hints.get()
            try:
                stat = await zk.exists(path)
            except MetadataUnavailableError:
                await asyncio.sleep(AGAIN_S)
                hints.put_nowait(path)
            else:
                self._known[path] = 0 if stat is None else stat.mzxid

    async def _change(self, process: Process) -> None:
        """Create the znodes; then change them at random, and the last of them once more after all faults."""
        rng = process.rng("change")
        stopping = self._node("changer").stopping
        assert stopping is not None
        async with await _connect(ZOOKEEPER, process) as zk:
            for path in self._paths:
                await self._try(zk.create(path))
            while not self._world.over:
                await asyncio.sleep(rng.expovariate(8.0))
                path = rng.choice(self._paths)
                if rng.random() < 0.2:
                    await self._keep_secret(zk, path, rng.random())
                else:
                    await self._try(zk.set(path, b"", -1))
                self._world.reach("watched.changed")
            await self._keep_secret(zk, self._paths[-1], 1.0)
            await asyncio.sleep(1.0)
            await self._try(zk.set(self._paths[-1], b"", -1))
            self.is_over = True
            await stopping.wait()

    async def _keep_secret(self, zk: ZooKeeper, path: str, seconds: float) -> None:
        """Change a znode and forbid reading it, back to back, before its watch is set again; then allow it again.

        There is no change in between: a server would use up the watch, and sends no event to a client that may not
        read.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._try(zk.set(path, b"", -1)), name="change")
            tasks.create_task(self._try(self._allow(zk, path, _UNREADABLE)), name="forbid")
        await asyncio.sleep(seconds)
        while not await self._try(self._allow(zk, path, _OPEN)):  # noqa: ASYNC110 - asked again, not looked at
            await asyncio.sleep(AGAIN_S)
        self._world.reach("watched.secret")

    @staticmethod
    async def _allow(zk: ZooKeeper, path: str, perms: int) -> None:
        acl = [ACL(perms=perms, id=protocol.UNRESTRICTED_ACCESS.id)]
        await zk._call(protocol.SetACLRequest(path=path, acl=acl, version=-1), decode_stat, path)

    @staticmethod
    async def _try(asked: Awaitable[object]) -> bool:
        try:
            await asked
        except MetadataUnavailableError:
            return False
        return True

    def _node(self, name: str) -> WorkNode:
        return self._world.nodes[name]  # type: ignore[return-value]


def _count(plan: Plan) -> int:
    return 0 if plan.config.get("events_lost") else int(plan.config.get("watched", 0))


async def _connect(hosts: str, process: Process) -> ZooKeeper:
    return await ZooKeeper.connect(
        hosts, session_timeout_s=SESSION_S, connect_timeout_s=60.0, rng=process.rng("session")
    )
