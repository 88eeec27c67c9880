"""Performs the questions of a machine of a node: to the controller, to the store of the log, to the object storage."""

from __future__ import annotations

from functools import partial
from typing import Any

from dlog.errors import DLogError
from dlog.machine import Received
from dlog.objects.node_messages import (
    AppendWalEntry,
    CreateWalSegment,
    DeleteWalSegment,
    ReadWalEntries,
    RecoverWalSegment,
    SealWalSegment,
    WriteObject,
)
from dlog.objects.outbox import Question, Reply, Service
from dlog.stores.s3.object_writes import ObjectWrites
from dlog.stores.s3.ports import MachineActor, ObjectMetadata
from dlog.stores.s3.tasks import Tasks
from dlog.stores.s3.wal_segments import WalSegments


class NodeServices:
    """The peers of one machine. actor: that runs it, set before its first effect.

    Appends to the log are submitted in the order of the questions; everything else is a task of its own.
    """

    def __init__(self, metadata: ObjectMetadata, wal: WalSegments, writes: ObjectWrites, tasks: Tasks) -> None:
        self.actor: MachineActor | None = None
        self.wal = wal
        self._metadata = metadata
        self._writes = writes
        self._tasks = tasks

    def send(self, peer: Any, message: Any) -> None:
        """Perform a question. Raises ReaderClosedError if the store is closed."""
        assert isinstance(message, Question)
        match message.request:
            case AppendWalEntry(segment, entry, parts):
                self.wal.append(segment, entry, parts, partial(self._reply, peer, message.number))
            case request:
                name = f"{peer} {type(request).__name__} {message.number}"
                self._tasks.start(partial(self._perform, peer, message), name)

    def _reply(self, peer: Any, number: int, result: Any) -> None:
        if self.actor is not None:
            self.actor.post(Received(peer, Reply(number, result)))

    async def _perform(self, peer: Any, question: Question) -> None:
        try:
            result = await self._ask(peer, question.request)
        except DLogError as error:
            result = error
        self._reply(peer, question.number, result)

    async def _ask(self, peer: Any, request: Any) -> Any:
        if peer is Service.CONTROLLER:
            return await self._metadata.ask(request)
        match request:
            case CreateWalSegment(number, node_epoch):
                return await self.wal.create(number, node_epoch)
            case SealWalSegment(segment):
                return await self.wal.seal(segment)
            case RecoverWalSegment(segment):
                return await self.wal.recover(segment)
            case ReadWalEntries(segment, first, end):
                return await self.wal.read(segment, first, end)
            case DeleteWalSegment(segment):
                return await self.wal.delete(segment)
            case WriteObject():
                return await self._writes.write(request)
        raise AssertionError(f"no service for a question: {request}")
