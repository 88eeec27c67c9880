"""The metadata of streams in objects inside one process: a controller, its entries in a list, and followers of them.

Stands for the metadata stream and its owner, for tests of the store `s3`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dlog.errors import DLogError
from dlog.machine import Answer
from dlog.objects.controller import (
    AppendEntry,
    Controller,
    ControllerEffect,
    ControllerFact,
    DeleteObjects,
    EntryConfirmed,
    ObjectsDeleted,
    Requested,
    SnapshotFailed,
    Ticked,
    WriteSnapshot,
)
from dlog.objects.errors import ControllerLostError
from dlog.objects.follower import EntryRead, Follower
from dlog.objects.image import Image
from dlog.objects.operations import Operation, Result
from dlog.objects.options import ControllerOptions
from dlog.stores.contract import StoreUnavailableError
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.port import Objects

TRIES = 50  # of a question, until the port gives up


class MemoryController:
    """The controller of a cluster. objects: where it deletes objects. lost: answers to be lost, after the operation was
    recorded. is_away: it answers nothing."""

    def __init__(self, objects: Objects, folder: Location, options: ControllerOptions | None = None) -> None:
        self.entries: list[bytes] = []
        self.version = 0
        self.changed = asyncio.Event()  # replaced each time it is set
        self.lost = 0
        self.is_away = False
        self.operations: list[Operation] = []
        self.now_ms = 1_700_000_000_000
        self._objects = objects
        self._folder = folder
        self._options = options or ControllerOptions()
        self._answers: dict[int, Result | DLogError] = {}
        self._tickets = 0
        self._starts = 0
        self.machine = self._new_machine(Image())

    def restart(self) -> None:
        """Another controller takes over: it replays the entries."""
        follower = Follower()
        for entry in self.entries:
            follower.handle(EntryRead(entry))
        self.machine = self._new_machine(follower.image or Image())

    def _new_machine(self, image: Image) -> Controller:
        self._starts += 1
        machine = Controller(image, self._folder.path, f"c{self._starts}", self.now_ms, self._options)
        machine.begin()
        return machine

    async def ask(self, operation: Operation) -> Result:
        """One attempt. Raises the refusal, ControllerLostError."""
        await asyncio.sleep(0)
        if self.is_away:
            raise ControllerLostError("the controller is away", outcome_unknown=False)
        self.operations.append(operation)
        self._tickets += 1
        await self.handle(Requested(self._tickets, operation))
        result = self._answers.pop(self._tickets)
        if self.lost:
            self.lost -= 1
            raise ControllerLostError("the answer was lost")
        if isinstance(result, DLogError):
            raise result
        return result

    async def tick(self, passed_ms: int) -> None:
        """Time passes by the clock of the object storage."""
        self.now_ms += passed_ms
        await self.handle(Ticked(self.now_ms))

    async def handle(self, fact: ControllerFact) -> None:
        """Hand the machine a fact and perform its effects."""
        effects = deque[ControllerEffect](self.machine.handle(fact))
        while effects:
            match effects.popleft():
                case AppendEntry(number, version, _, data):
                    self.entries.append(data)
                    self.version = version
                    changed, self.changed = self.changed, asyncio.Event()
                    changed.set()
                    effects.extend(self.machine.handle(EntryConfirmed(number)))
                case Answer(ticket, result):
                    self._answers[ticket] = result
                case DeleteObjects(keys):
                    folder = self._folder
                    await self._objects.delete_many([Location(folder.scheme, folder.authority, key) for key in keys])
                    effects.extend(self.machine.handle(ObjectsDeleted()))
                case WriteSnapshot():
                    effects.extend(self.machine.handle(SnapshotFailed("no snapshots here")))


class MemoryMetadata:
    """An ObjectMetadata: the image of one process. is_lagging: it follows only when somebody waits for a version, and
    then only so far; the process that asks does not know better."""

    def __init__(self, controller: MemoryController, *, is_lagging: bool = False) -> None:
        self.is_lagging = is_lagging
        self._controller = controller
        self._follower = Follower()
        self._read = 0  # entries
        self._image = Image()

    @property
    def image(self) -> Image:
        if not self.is_lagging:
            self._catch_up(self._controller.version)
        return self._image

    async def ask(self, operation: Operation) -> Result:
        for _ in range(TRIES):
            try:
                return await self._controller.ask(operation)
            except ControllerLostError as error:
                last = error
            await asyncio.sleep(0.001)
        raise StoreUnavailableError(last.message, outcome_unknown=last.outcome_unknown)

    async def wait_version(self, version: int, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while self._controller.version < version:
                    await self._controller.changed.wait()
        except TimeoutError:
            return False
        self._catch_up(version)
        return self._image.version >= version

    def _catch_up(self, version: int) -> None:
        while self._image.version < version and self._read < len(self._controller.entries):
            self._follower.handle(EntryRead(self._controller.entries[self._read]))
            self._read += 1
            assert self._follower.image is not None
            self._image = self._follower.image


@asynccontextmanager
async def away(controller: MemoryController) -> AsyncIterator[None]:
    """The controller answers nothing in this scope."""
    controller.is_away = True
    try:
        yield
    finally:
        controller.is_away = False
