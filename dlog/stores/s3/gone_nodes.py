"""Takes over nodes that are gone for good, so that what they left is uploaded and their logs are deleted.

A stream that a node has open is taken over by its next owner, and the node with it. A node without open streams, or one
whose failover ended before its uploads, is found here. This runs in the process that has the controller. A failover is
never wrong, only needless: a node that is well after all begins again under its next epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from dlog.errors import DLogError
from dlog.model.object_streams import NodeEpoch, NodeId, WalPosition
from dlog.objects.image import Image
from dlog.stores.s3.failovers import Failovers
from dlog.stores.s3.metadata import MetadataView
from dlog.stores.s3.ports import Processes


class Progress(NamedTuple):
    """How far a node is: two that are equal mean that it did nothing between them. wal: number of segments."""

    node_epoch: NodeEpoch
    flush_point: WalPosition
    wal: int


def find_idle(image: Image, live: Collection[NodeId]) -> dict[NodeId, Progress]:
    """The nodes that somebody must take over if they make no progress, and how far each is. live: nodes of processes
    that run. Of a node that was taken over already only the log counts: without one everything is uploaded."""
    return {
        node: Progress(its.node_epoch, its.flush_point, len(its.wal))
        for node, its in image.nodes.items()
        if (its.wal if its.is_failover else node not in live)
    }


class GoneNodes:
    """See the module. node: of this process, which is never taken over here."""

    def __init__(self, node: NodeId | None, metadata: MetadataView, failovers: Failovers, processes: Processes) -> None:
        self._node = node
        self._metadata = metadata
        self._failovers = failovers
        self._processes = processes
        self._idle: dict[NodeId, Progress] = {}  # at the last look

    async def run(self, every_s: float) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            with suppress(DLogError):  # no controller, or no storage: the next look tries again
                await self.look()

    async def look(self) -> list[NodeId]:
        """Take over the nodes that are idle since the last look; returns them. Raises DLogError."""
        before, self._idle, taken = self._idle, {}, list[NodeId]()
        if not self._processes.has_controller:
            return taken
        live = await self._processes.live_nodes()
        self._idle = find_idle(await self._metadata.fresh(), live)
        for node, progress in self._idle.items():
            if before.get(node) == progress and node != self._node:
                with suppress(DLogError):  # one that cannot be recovered must not keep the others waiting
                    await self._failovers.take_over(node, progress.node_epoch)
                    taken.append(node)
        return taken
