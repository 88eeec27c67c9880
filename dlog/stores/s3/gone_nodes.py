"""Takes over nodes that are gone for good, so that what they left is uploaded and their logs are deleted.

Which ones: dlog/objects/idle_nodes.py. This runs in the process that has the controller.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from dlog.errors import DLogError
from dlog.model.object_streams import NodeId
from dlog.objects.idle_nodes import IdleNodes, Looked
from dlog.stores.s3.failovers import Failovers
from dlog.stores.s3.metadata import MetadataView
from dlog.stores.s3.ports import Processes
from dlog.stores.s3.tasks import Tasks


class GoneNodes:
    """See the module. node: of this process, which is never taken over here."""

    def __init__(
        self, node: NodeId | None, metadata: MetadataView, failovers: Failovers, processes: Processes, tasks: Tasks
    ) -> None:
        self._idle_nodes = IdleNodes(node)
        self._metadata = metadata
        self._failovers = failovers
        self._processes = processes
        self._tasks = tasks

    async def run(self, every_s: float) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            with suppress(DLogError):  # no controller, or no storage: the next look tries again
                await self.look()

    async def look(self) -> list[NodeId]:
        """Begin to take over the nodes that are idle since the last look; returns them. Raises DLogError."""
        if not self._processes.has_controller:
            return []
        live = await self._processes.live_nodes()
        image = await self._metadata.fresh()
        found = self._idle_nodes.handle(Looked(image, live, self._failovers.running))
        for one in found:  # each for itself: one whose log cannot be read must not keep the others waiting
            take_over = partial(self._failovers.take_over, one.node, one.node_epoch)
            self._tasks.start(take_over, f"takes over {one.node} epoch {one.node_epoch}")
        return [one.node for one in found]
