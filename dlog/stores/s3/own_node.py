"""The node of this process: started at first use, and again under the next node epoch whenever it ended.

Invariants:
- A machine gets a node epoch that no machine of this process had before, and above that of the image.
- What a node that ended had open stays with it: writers on it fail, and their owners recover the segments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

from dlog.errors import DLogError
from dlog.events import Event, NodeEnded, ObjectsUploaded, UploadStalled
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectStreamId
from dlog.objects.node import ObjectNode
from dlog.objects.node_messages import StartNode
from dlog.objects.node_options import NodeOptions
from dlog.stores.contract import SegmentFencedError, StoreError, StoreUnavailableError
from dlog.stores.s3.errors import store_error
from dlog.stores.s3.metadata import MetadataView
from dlog.stores.s3.node_figures import NodeFigures
from dlog.stores.s3.node_services import NodeServices
from dlog.stores.s3.object_writes import ObjectWrites
from dlog.stores.s3.ports import MachineActor, StartMachine
from dlog.stores.s3.tasks import Tasks
from dlog.stores.s3.wal_segments import WalSegments
from dlog.wire.node_wal import StreamEntry

NONCE_BYTES = 16
LOOK_S = 2.0  # between two looks whether another process took over, and two samples of figures
_RESTART_FIRST_S, _RESTART_MAX_S = 0.05, 5.0


class RunningNode:
    """A node under one epoch. over: set once it acknowledges nothing more."""

    def __init__(self, machine: ObjectNode, actor: MachineActor, wal: WalSegments, over: asyncio.Event) -> None:
        self.machine = machine
        self.actor = actor
        self.over = over
        self.is_fenced = False  # the image has a greater node epoch
        self._wal = wal

    @property
    def node_epoch(self) -> NodeEpoch:
        return self.machine.node_epoch

    def error(self, otherwise: DLogError) -> StoreError:
        """Why requests to this node fail. otherwise: the error of the request, used if the node has not ended."""
        if self.is_fenced:  # whatever ended it then, such as its log that is closed
            text = f"another process took over the work of this node: node_epoch={self.node_epoch}"
            return SegmentFencedError(text, outcome_unknown=otherwise.outcome_unknown)
        return store_error(self.machine.error or otherwise)

    async def stop(self) -> None:
        self.over.set()
        self.actor.stop()
        await self._wal.close()
        await self.actor.wait_ended()


class OwnNode:
    """See the module. new_wal: makes the log of a machine. on_event: gets the machine's events."""

    def __init__(
        self,
        node: NodeId,
        metadata: MetadataView,
        new_wal: Callable[[], WalSegments],
        writes: ObjectWrites,
        options: NodeOptions,
        start: StartMachine,
        tasks: Tasks,
        rng: Random,
        on_event: Callable[[Event], None],
    ) -> None:
        self.node = node
        self.figures = NodeFigures()
        self.upload_obstacle = ""  # why the last upload failed, which is retried; empty: one succeeded since
        self._metadata = metadata
        self._new_wal = new_wal
        self._writes = writes
        self._options = options
        self._start = start
        self._tasks = tasks
        self._rng = rng
        self._on_event = on_event
        self._epoch = 0  # of the last machine
        self._running: RunningNode | None = None  # the last machine, perhaps over
        self._serving: RunningNode | None = None
        self._changed = asyncio.Event()  # replaced each time it is set
        self._keeping: asyncio.Task[None] | None = None
        self._last_error: DLogError | None = None

    @property
    def current(self) -> RunningNode | None:
        """The node that serves now; None: there is none. One that another process took over is over, also if it was
        idle and has not noticed."""
        serving = self._serving
        if serving is None or serving.over.is_set():
            return None
        if self._metadata.node_epoch(self.node) > serving.node_epoch:
            serving.is_fenced = True
            serving.over.set()
            return None
        return serving

    def begin(self) -> None:
        """Start the node, for one who will need it soon. Idempotent. Raises ReaderClosedError."""
        if self._keeping is None:
            self._keeping = self._tasks.start(self._keep, f"node {self.node}")

    async def serving(self, timeout_s: float) -> RunningNode:
        """The node, started if need be. Raises StoreUnavailableError."""
        self.begin()
        try:
            async with asyncio.timeout(timeout_s):
                while (current := self.current) is None:
                    await self._changed.wait()
                return current
        except TimeoutError:
            trouble = self._running.machine.trouble if self._running is not None else None
            trouble = trouble or self._last_error
            why = trouble.message if trouble is not None else "it recovers what it left"
            raise StoreUnavailableError(
                f"the node for streams in objects does not serve yet: node={self.node} why={why}"
            ) from trouble

    def cached(self, stream: ObjectStreamId, start: int, end: int, bytes_max: int) -> list[StreamEntry]:
        """Confirmed entries from `start` on in the memory of this process's node, without a gap; perhaps none."""
        running = self._running
        return [] if running is None else running.machine.read(stream, start, end, bytes_max)

    def confirmed_end(self, stream: ObjectStreamId) -> int | None:
        """The end of what is confirmed of a stream that is open here; None: it is not."""
        current = self.current
        return None if current is None else current.machine.confirmed_end(stream)

    async def close(self) -> None:
        """Stop. What is not uploaded stays in the log, for the next process of this node."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait((self._keeping,))
        running, self._running, self._serving = self._running, None, None
        if running is not None:
            await running.stop()

    # ---- internal ---------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Keep a node running until cancelled."""
        failures = 0
        while True:
            try:
                running = await self._begin()
                await running.actor.ask(StartNode())
            except DLogError as error:
                self._last_error = error
            else:
                failures = 0
                self._serving = running
                self._change()
                await self._wait_over(running)
            if self._running is not None:
                await self._running.stop()
            self._serving = None
            pause_s = min(_RESTART_FIRST_S * 2.0**failures, _RESTART_MAX_S)
            failures += 1
            await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.0))

    async def _wait_over(self, running: RunningNode) -> None:
        """Wait until a node is over; from time to time the image is looked at, and figures are taken."""
        loop = asyncio.get_running_loop()
        while self.current is running:
            with suppress(DLogError):
                self.figures.note(loop.time(), running.machine.cache, self._metadata.port.image, self.node)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await running.over.wait()

    async def _begin(self) -> RunningNode:
        """A machine under the next epoch, started."""
        image = await self._metadata.fresh()
        known = image.nodes.get(self.node)
        self._epoch = max(self._epoch, 0 if known is None else known.node_epoch) + 1
        machine = ObjectNode(self.node, NodeEpoch(self._epoch), self._rng.randbytes(NONCE_BYTES), self._options)
        wal, over = self._new_wal(), asyncio.Event()
        services = NodeServices(self._metadata.port, wal, self._writes, self._tasks)
        services.actor = actor = self._start(
            f"node {self.node} epoch {self._epoch}",
            machine,
            send=services.send,
            on_event=partial(self._on_node_event, over),
            on_end=over.set,
        )
        self._running = RunningNode(machine, actor, wal, over)
        return self._running

    def _on_node_event(self, over: asyncio.Event, event: Event) -> None:
        if isinstance(event, NodeEnded):
            over.set()
        elif isinstance(event, UploadStalled):
            self.upload_obstacle = event.reason
        elif isinstance(event, ObjectsUploaded):
            self.upload_obstacle = ""
        self._on_event(event)

    def _change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
