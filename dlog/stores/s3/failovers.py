"""Takes over the work of nodes that do not answer, so that segments that they have open get an end.

A failover fences a whole node: it closes all its streams, and uploads what is only in its log. A process runs one of
each node. When another process is at it already, that one is given some time first: each failover fences the one
before.

Invariants:
- A failover goes on to its end, whether somebody waits for it or not.
- A caller that waits gets an error after a time, with the reason for the delay: its streams have no owner until then.
- What is kept of a node that was taken over, for the new owners of its streams, takes at most half of the cache.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, NamedTuple

from dlog.errors import DLogError
from dlog.events import Event
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectStreamId
from dlog.objects.failover import FailoverWorker
from dlog.objects.image import Image
from dlog.objects.node_cache import NodeCache
from dlog.objects.node_messages import AwaitUploaded, RecoverNode
from dlog.objects.node_options import NodeOptions
from dlog.options import MiB
from dlog.stores.contract import StoreUnavailableError
from dlog.stores.object_storage.async_lru_cache import AsyncLruCache
from dlog.stores.s3.errors import store_error
from dlog.stores.s3.metadata import MetadataView
from dlog.stores.s3.node_services import NodeServices
from dlog.stores.s3.object_writes import ObjectWrites
from dlog.stores.s3.own_node import NONCE_BYTES
from dlog.stores.s3.ports import MachineActor, StartMachine
from dlog.stores.s3.tasks import Tasks
from dlog.stores.s3.wal_segments import WalSegments
from dlog.values import value

Ends = tuple[tuple[ObjectStreamId, int], ...]  # of streams that were closed

LAST_PAYLOADS = 3  # entries of a stream that its new owner may need at once
LAST_BYTES_MAX = MiB  # of them


@value
class LastPayloads:
    """The payloads of the last entries of a stream, in the cache."""

    payloads: tuple[bytes, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.payloads)) + 200


class _Failover(NamedTuple):
    """A failover that runs: its machine, the actor of that, and the logs that it reads. recovered: the answer to
    RecoverNode, which all who wait share; nobody cancels it."""

    worker: FailoverWorker
    actor: MachineActor
    wal: WalSegments
    recovered: asyncio.Future[Ends]


class Failovers:
    """The failovers of one process. new_wal, new_writes: make what a machine needs. cache: gets the last entries of the
    streams that were closed. other_s: how long another process's failover may take before this one begins its own."""

    def __init__(
        self,
        metadata: MetadataView,
        new_wal: Callable[[], WalSegments],
        new_writes: Callable[[NodeId], ObjectWrites],
        options: NodeOptions,
        cache: AsyncLruCache[Any, Any],
        start: StartMachine,
        tasks: Tasks,
        rng: Random,
        on_event: Callable[[Event], None],
        *,
        other_s: float,
    ) -> None:
        self._metadata = metadata
        self._new_wal = new_wal
        self._new_writes = new_writes
        self._options = options
        self._cache = cache
        self._start = start
        self._tasks = tasks
        self._rng = rng
        self._on_event = on_event
        self._other_s = other_s
        self._turns: defaultdict[NodeId, asyncio.Lock] = defaultdict(asyncio.Lock)  # for one failover of each node
        self._running: dict[NodeId, _Failover] = {}

    @property
    def running(self) -> dict[NodeId, NodeEpoch]:
        """The nodes that this process fails over now, and the node epochs of the failovers."""
        return {node: one.worker.node_epoch for node, one in self._running.items()}

    async def close_streams(self, node: NodeId, is_closed: Callable[[Image], bool], timeout_s: float) -> None:
        """Have the streams of a node closed. is_closed: whether the one of interest is. timeout_s: to wait for it; the
        failover goes on, and the next call waits for the same one. Raises StoreError; also if another failover was
        faster, then look again. Only a failover to be begun needs a new image."""
        async with self._turns[node]:
            image = await self._metadata.read()
            if is_closed(image):
                return
            failover = self._current(node, image.nodes[node].node_epoch)
            if failover is None:
                image = await self._metadata.fresh()
                if is_closed(image):
                    return
                known = image.nodes[node]
                if known.is_failover and await self._other_closes(known.node_epoch, node, is_closed):
                    return
                failover = self._begin(node, NodeEpoch(known.node_epoch + 1))
        done, _ = await asyncio.wait((failover.recovered,), timeout=timeout_s)
        if not done:
            trouble = failover.worker.trouble
            why = "it is read" if trouble is None else trouble.message
            text = f"the log of a node that is taken over is not recovered yet: node={node} why={why}"
            raise StoreUnavailableError(text) from trouble
        try:
            failover.recovered.result()
        except DLogError as error:
            raise store_error(error) from error

    async def take_over(self, node: NodeId, node_epoch: NodeEpoch) -> None:
        """Begin to take over a node, if it has this epoch still. Raises StoreError."""
        async with self._turns[node]:
            image = await self._metadata.fresh()
            if image.nodes[node].node_epoch == node_epoch and self._current(node, node_epoch) is None:
                self._begin(node, NodeEpoch(node_epoch + 1))

    async def _other_closes(self, epoch: NodeEpoch, node: NodeId, is_closed: Callable[[Image], bool]) -> bool:
        """Wait for another process's failover; whether the stream is closed."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._other_s * self._rng.uniform(0.5, 1.5)
        while (left_s := end_s - loop.time()) > 0:
            await self._metadata.wait_newer(min(left_s, 0.5))
            image = await self._metadata.read()
            if is_closed(image):
                return True
            if image.nodes[node].node_epoch != epoch:
                break
        return is_closed(await self._metadata.fresh())

    def _current(self, node: NodeId, epoch: NodeEpoch) -> _Failover | None:
        """The failover that runs here, unless the node has a greater epoch by now: then it was fenced."""
        failover = self._running.get(node)
        return None if failover is None or failover.worker.node_epoch < epoch else failover

    def _begin(self, node: NodeId, epoch: NodeEpoch) -> _Failover:
        """Raises ReaderClosedError."""
        self._tasks.check_open()
        former = self._running.pop(node, None)
        if former is not None:  # it was fenced meanwhile, and may not notice while it waits for the storage
            former.actor.stop()
        worker = FailoverWorker(node, epoch, self._rng.randbytes(NONCE_BYTES), self._options)
        wal = self._new_wal()
        services = NodeServices(self._metadata.port, wal, self._new_writes(node), self._tasks)
        services.actor = actor = self._start(
            f"failover of {node} epoch {epoch}",
            worker,
            send=services.send,
            on_event=self._on_event,
            on_end=lambda: None,
        )
        failover = self._running[node] = _Failover(worker, actor, wal, actor.ask(RecoverNode()))
        failover.recovered.add_done_callback(partial(self._keep_last, worker.cache))
        self._tasks.start(partial(self._finish, node, failover), f"failover of {node} epoch {epoch}")
        return failover

    def _keep_last(self, found: NodeCache, recovered: asyncio.Future[Ends]) -> None:
        """Keep the last entries of the streams that a failover closed, as far as it had to read them: their new owners
        need them next."""
        if recovered.cancelled() or recovered.exception() is not None:
            return
        left = self._cache.bytes_max // 2
        for stream, end in recovered.result():
            entries = found.read_last(stream, end, LAST_PAYLOADS, min(left, LAST_BYTES_MAX))
            if entries:
                last = LastPayloads(tuple(bytes(entry.payload) for entry in entries))
                self._cache.keep(_last_key(stream, end), last)
                left -= last.size
                if left <= 0:
                    return

    def last_payloads(self, stream: ObjectStreamId, end: int) -> tuple[bytes, ...]:
        """Of the last entries of a stream that a failover here closed at this end; perhaps none."""
        last: LastPayloads | None = self._cache.find(_last_key(stream, end))
        return () if last is None else last.payloads

    async def _finish(self, node: NodeId, failover: _Failover) -> None:
        """Let the failover go on to its end. If it fails, or this process ends, the node itself does the rest when it
        starts again, or the next failover."""
        try:
            await asyncio.wait((failover.recovered,))
            failover.recovered.result()
            await failover.actor.ask(AwaitUploaded())
        finally:
            if self._running.get(node) is failover:
                del self._running[node]
            failover.actor.stop()
            await failover.wal.close()


def _last_key(stream: ObjectStreamId, end: int) -> tuple[str, ObjectStreamId, int]:
    return ("last", stream, end)
