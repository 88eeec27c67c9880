"""A subscriber to streams and a client that claims them: checks that the last change of each is reported (M4).

Contact is lost while streams change, for as long as a session lasts or longer, and again while streams that may have
changed are being checked. Several streams are checked with each packet.

Invariants:
- The subscriber reads a stream only because its watch fired; a read that fails is tried again. So its state shows what
  watches reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dlog.errors import MetadataUnavailableError
from dlog.io.zookeeper_layout import StreamPaths
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.machine import Versioned
from dlog.model.ids import Epoch, ProxyId, StreamName
from dlog.model.segment import Owner, StreamKey, StreamMetadata
from dlog.wire.stream_metadata import decode_owner
from tests.simulation.kernel import Violation
from tests.simulation.service.loop import Process
from tests.simulation.service.nodes import ZOOKEEPER
from tests.stream_settings import SETTINGS

if TYPE_CHECKING:
    from tests.simulation.service.nodes import WorkNode
    from tests.simulation.service.world import World

NAMESPACE = "/watched"
WATCHER, CHANGER = "stream-watcher", "stream-changer"
TOLD_S = 30.0  # after healing, until a subscriber is up to date
AGAIN_S = 0.2
CHANGES_A_S = 4.0


class WatchingStreams:
    """The work of the subscriber and of the claiming client, and the check of the result. Does nothing without
    `watched_streams` in the plan, and where events are lost."""

    def __init__(self, world: World) -> None:
        config = world.plan.config
        self._world = world
        count = 0 if config.get("events_lost") else int(config.get("watched_streams", 0))
        self._keys = [StreamKey(StreamName(f"s{n}")) for n in range(count)]
        self._session_s = float(config.get("stream_session_s", 10.0))
        self._known: dict[StreamKey, Epoch] = {}  # which the subscriber read last
        self.is_over = not self._keys  # the last change was made

    @property
    def works(self) -> dict[str, Callable[[Process], Awaitable[None]]]:
        """The work of each machine, by machine name."""
        return {WATCHER: self._watch, CHANGER: self._change} if self._keys else {}

    def judge(self) -> None:
        """Check M4. Raises Violation."""
        if self._keys and not self._world.loop.run(until_s=self._world.loop.now_s + TOLD_S, until=self.knows_all):
            raise Violation("M4", f"streams not told of by their watches: {self._unknown()}")

    def knows_all(self) -> bool:
        """Whether the subscriber has read the present epoch of every stream."""
        return self.is_over is self._world.over and not self._unknown()

    def _unknown(self) -> list[str]:
        return [key.stream for key in self._keys if self._known.get(key) != self._epoch(key)]

    def _epoch(self, key: StreamKey) -> Epoch | None:
        """The epoch in the ensemble's tree."""
        node = self._world.zookeeper.ensemble.tree.nodes.get(f"{StreamPaths(NAMESPACE).root(key.stream)}/owner")
        return Epoch(-1) if node is None else decode_owner(node.data or b"").epoch

    async def _watch(self, process: Process) -> None:
        hints: asyncio.Queue[StreamKey] = asyncio.Queue()
        async with await self._connect(process, self._session_s) as metadata, asyncio.TaskGroup() as tasks:
            for key in self._keys:
                metadata.watch(key, lambda key=key: hints.put_nowait(key))  # type: ignore[misc]  # no type of a default
                hints.put_nowait(key)
            reading = tasks.create_task(self._read(metadata, hints), name="read what was told")
            await self._stopping(WATCHER)
            reading.cancel()

    async def _read(self, metadata: ZooKeeperMetadata, hints: asyncio.Queue[StreamKey]) -> None:
        while True:
            key = await hints.get()
            found = await metadata.read(key)
            if isinstance(found, Versioned):
                self._known[key] = found.value.owner.epoch
            else:
                await asyncio.sleep(AGAIN_S)
                hints.put_nowait(key)

    async def _change(self, process: Process) -> None:
        """Create the streams; then claim them at random, and the last of them once more after all faults."""
        rng = process.rng("change")
        async with await self._connect(process, 10.0) as metadata:
            for key in self._keys:
                await self._claim_at_last(metadata, key)
            while not self._world.over:
                await asyncio.sleep(rng.expovariate(CHANGES_A_S))
                await self._claim(metadata, rng.choice(self._keys))
                self._world.reach("watched.claimed")
            await asyncio.sleep(1.0)
            await self._claim_at_last(metadata, self._keys[-1])
            self.is_over = True
            await self._stopping(CHANGER)

    async def _claim_at_last(self, metadata: ZooKeeperMetadata, key: StreamKey) -> None:
        while not await self._claim(metadata, key):  # noqa: ASYNC110 - asked again, not looked at
            await asyncio.sleep(AGAIN_S)

    @staticmethod
    async def _claim(metadata: ZooKeeperMetadata, key: StreamKey) -> bool:
        """Claim the stream, or create it. False: it is not known to have happened."""
        try:
            found = await metadata.read(key)
            if not isinstance(found, Versioned):
                value, version = StreamMetadata(name=key.stream, owner=_owner(1), settings=SETTINGS), None
            else:
                value, version = replace(found.value, owner=_owner(found.value.owner.epoch + 1)), found.version
            return isinstance(await metadata.compare_and_set(key, value, version), Versioned)
        except MetadataUnavailableError:
            return False

    async def _stopping(self, name: str) -> None:
        node: WorkNode = self._world.nodes[name]  # type: ignore[assignment]  # it is one of ours
        assert node.stopping is not None
        await node.stopping.wait()

    @staticmethod
    async def _connect(process: Process, session_s: float) -> ZooKeeperMetadata:
        return await ZooKeeperMetadata.connect(
            ZOOKEEPER, NAMESPACE, session_timeout_s=session_s, connect_timeout_s=60.0, rng=process.rng("session")
        )


def _owner(epoch: int) -> Owner:
    return Owner(epoch=Epoch(epoch), proxy=ProxyId("p"), address="p:1", claim=f"c{epoch}")
