"""Compacts objects in the background: plans of dlog/objects/compaction.py, one at a time.

Each process compacts the objects of its own node. The one that has the controller also compacts those of nodes whose
work another process took over, until they come back. While the controller moves, two processes may compact the same
objects: then one of the two commits is refused, since its sources are gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from dlog.errors import DLogError, Remedy
from dlog.events import CompactionFailed, Event, ObjectsCompacted
from dlog.model.object_streams import NO_OBJECT, NodeEpoch, NodeId, ObjectId, ObjectStreamId
from dlog.objects.compaction import (
    STEP,
    CompactionOptions,
    CompactionPlan,
    Steps,
    gather_set_objects,
    gather_stream_objects,
    gather_streams,
    plan_gathered,
    plan_gathered_stream,
    taken_over_nodes,
)
from dlog.objects.compaction_run import (
    BytesRead,
    CommitRefused,
    CommitUnclear,
    CompactionAbandoned,
    CompactionDone,
    CompactionEffect,
    CompactionFact,
    CompactionRun,
    PartWritten,
    ReadBytes,
    StorageFailed,
    WritePart,
)
from dlog.objects.operations import CommitCompaction, Done, ObjectsArePrepared, PrepareObjects
from dlog.stores.contract import StoreError
from dlog.stores.object_storage.port import Objects, ObjectWriter
from dlog.stores.s3.metadata import MetadataView
from dlog.stores.s3.object_reads import ObjectReads, object_name
from dlog.stores.s3.object_writes import ObjectWrites
from dlog.stores.s3.own_node import OwnNode
from dlog.stores.s3.places import marker_of, object_location
from dlog.stores.s3.ports import FindObjects, Processes
from dlog.wire.stream_object import ObjectIndex

MAJOR_EVERY = 6  # rounds: one of them also makes the rare, large merges
T = TypeVar("T")
COMMITS_UNCLEAR_MAX = 10  # then the run is given up


class Compactions:
    """See the module. The own node's objects are compacted only while it serves, under its epoch."""

    def __init__(
        self,
        node: OwnNode,
        metadata: MetadataView,
        objects: Objects,
        find_objects: FindObjects,
        new_writes: Callable[[NodeId], ObjectWrites],
        reads: ObjectReads,
        processes: Processes | None,
        options: CompactionOptions,
        on_event: Callable[[Event], None],
    ) -> None:
        self._node = node
        self._metadata = metadata
        self._objects = objects
        self._find_objects = find_objects
        self._reads = reads
        self._processes = processes
        self._options = options
        self._on_event = on_event
        self._new_writes = new_writes

    async def run(self, every_s: float) -> None:
        """Compact until cancelled."""
        rounds = 0
        while True:
            await asyncio.sleep(every_s)
            rounds += 1
            try:
                await self.round(is_major=rounds % MAJOR_EVERY == 0)
            except DLogError as error:
                self._on_event(CompactionFailed(self._node.node, error.message))

    async def round(self, *, is_major: bool) -> int:
        """Make plans and run them; returns how many were carried out. Raises StoreError if there are no metadata."""
        running, nodes, done = self._node.current, list[tuple[NodeId, NodeEpoch]](), 0
        if running is not None:
            nodes.append((self._node.node, running.node_epoch))
        if self._processes is not None and self._processes.has_controller:
            nodes += taken_over_nodes(await self._metadata.read())
        for node, epoch in nodes:
            try:
                done += await self._compact(node, epoch, is_major=is_major)
            except DLogError as error:
                self._on_event(CompactionFailed(node, error.message))
        return done

    async def _compact(self, node: NodeId, epoch: NodeEpoch, *, is_major: bool) -> int:
        """Compact the objects of one node. Raises StoreError."""
        sources = await _in_steps(gather_set_objects(await self._metadata.read(), node, self._options))
        indexes: dict[ObjectId, ObjectIndex] = {}
        for source in sources:
            if source.slices:
                with suppress(StoreError):  # a damaged one is left alone
                    name = object_name(await self._metadata.read(), source.object)
                    indexes[source.object] = await self._reads.index(name)
        now_ms = await self._objects.now_unix_ms(await self._find_objects())
        done = 0
        for plan in await asyncio.to_thread(plan_gathered, node, sources, now_ms, indexes, self._options):
            done += await self._run(plan, epoch, indexes)
        for stream in await _in_steps(gather_streams(await self._metadata.read(), node)):
            done += await self._compact_stream(stream, node, epoch, is_major=is_major)
        return done

    async def _compact_stream(self, stream: ObjectStreamId, node: NodeId, epoch: NodeEpoch, *, is_major: bool) -> int:
        """Compact the stream objects of one stream. Raises StoreError."""
        sources = await _in_steps(gather_stream_objects(await self._metadata.read(), stream))
        plan_these = partial(plan_gathered_stream, node, sources, self._options, is_major=is_major)
        done = 0
        for plan in plan_these() if len(sources) < STEP else await asyncio.to_thread(plan_these):
            done += await self._run(plan, epoch, {})
        return done

    async def _run(self, plan: CompactionPlan, epoch: NodeEpoch, indexes: dict[ObjectId, ObjectIndex]) -> bool:
        """Run a plan; whether it is recorded."""
        machine = CompactionRun(plan, epoch, await self._metadata.read(), indexes=indexes)
        performer = _Performer(self, plan.node, epoch)
        effects = deque[CompactionEffect](machine.begin())
        try:
            while effects:
                effect = effects.popleft()
                match effect:
                    case CompactionDone(bytes_read, bytes_written):
                        sources, made = len(plan.sources), len(plan.new_objects)
                        self._on_event(
                            ObjectsCompacted(plan.node, plan.kind.value, sources, made, bytes_read, bytes_written)
                        )
                        return True
                    case CompactionAbandoned(reason, error):
                        if error is not None:
                            self._on_event(CompactionFailed(plan.node, reason))
                        return False
                effects.extend(machine.handle(await performer.perform(effect)))
        finally:
            await performer.close()
        return False


async def _in_steps(steps: Steps[T]) -> T:
    """Do work in steps, and others' between them."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            await asyncio.sleep(0)


class _Performer:
    """Performs the effects of one run, for a node under an epoch."""

    def __init__(self, owner: Compactions, node: NodeId, epoch: NodeEpoch) -> None:
        self._owner = owner
        self._node = node
        self._epoch = epoch
        self._writes = owner._new_writes(node)
        self._writers: dict[ObjectId, ObjectWriter] = {}
        self._unclear = 0

    async def perform(self, effect: CompactionEffect) -> CompactionFact:
        owner = self._owner
        match effect:
            case ReadBytes(object, position, size):
                try:
                    return BytesRead(object, position, await self._read(object, position, size))
                except DLogError as error:
                    return StorageFailed(object, error)
            case WritePart(object, number):
                try:
                    await self._write(effect)
                except DLogError as error:
                    return StorageFailed(object, error)
                return PartWritten(object, number)
            case PrepareObjects():
                try:
                    prepared = await owner._metadata.ask(effect)
                except DLogError as error:
                    return StorageFailed(NO_OBJECT, error)
                assert isinstance(prepared, ObjectsArePrepared)
                return prepared
            case CommitCompaction():
                return await self._commit(effect)
        raise AssertionError(f"no effect of a compaction: {effect}")

    async def close(self) -> None:
        for writer in self._writers.values():
            await writer.abort()

    async def _read(self, object: ObjectId, position: int, size: int) -> bytes:
        name = object_name(await self._owner._metadata.read(), object)
        folder = await self._owner._find_objects()
        return await self._owner._objects.read(
            object_location(folder, object, name.node, name.node_epoch), position, size
        )

    async def _write(self, part: WritePart) -> None:
        owner = self._owner
        folder = await owner._find_objects()
        location = object_location(folder, part.object, self._node, self._epoch)
        if part.number == 0 and part.is_last:
            await self._writes.create(folder, part.object, location, part.data)
            return
        writer = self._writers.get(part.object)
        if writer is None:
            writer = self._writers[part.object] = await owner._objects.create(location, marker=marker_of(folder))
        await writer.write(part.data)
        if part.is_last:
            await writer.finish()
            del self._writers[part.object]

    async def _commit(self, operation: CommitCompaction) -> CompactionFact:
        try:
            done = await self._owner._metadata.port.ask(operation)
        except DLogError as error:
            if error.remedy is Remedy.RETRY or error.outcome_unknown:
                self._unclear += 1
                if self._unclear < COMMITS_UNCLEAR_MAX:
                    return CommitUnclear()
            return CommitRefused(error.message)
        assert isinstance(done, Done)
        return done
