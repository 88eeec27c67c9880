"""Actor of the controller of streams in objects: drives dlog/objects/controller.py for an owner of the metadata stream.

Invariants:
- It belongs to exactly one owner actor. It reads the metadata stream to its end after that owner began to serve, and
  everything it records is appended through that owner, in order, one entry a batch, by a producer of its own.
- Once an append fails it is over: what is not confirmed is answered ControllerLostError.
- Requests are bounded; answers to its own effects are never refused.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from dlog.errors import DamagedError, DLogError, OverCapacityError, Remedy, StreamUnavailableError, to_raise
from dlog.events import Event
from dlog.io.clock import unix_ms
from dlog.io.driver import Sink
from dlog.io.metadata_stream import FindRoot, MetadataReplay, RecordPositions, ReplayPoint
from dlog.log.messages import BatchWritten, TruncateBefore, WriteBatch
from dlog.machine import Answer, Emit, Ticket
from dlog.model.ids import Epoch
from dlog.objects.controller import (
    AppendEntry,
    AppendFailed,
    Controller,
    ControllerEffect,
    ControllerFact,
    DeleteObjects,
    DeleteSnapshots,
    DeletionFailed,
    Deposed,
    EntryConfirmed,
    ObjectsDeleted,
    Requested,
    SnapshotFailed,
    SnapshotStored,
    Ticked,
    TruncateMetadata,
    WriteSnapshot,
)
from dlog.objects.errors import ControllerLostError
from dlog.objects.image import Image
from dlog.objects.keys import parse_snapshot_key
from dlog.objects.operations import Operation, Result
from dlog.objects.options import ControllerOptions
from dlog.objects.went_back import Place, is_later, places_of_later
from dlog.options import check_positive, option
from dlog.stores.object_storage.locations import MARKER, Location
from dlog.stores.object_storage.port import Creation, Objects
from dlog.wire.digest import crc32c
from dlog.wire.entry import build_record_set
from dlog.wire.object_snapshot import SnapshotContents, encode_snapshot

SNAPSHOT_HEAD_BYTES = 1024  # of a snapshot: with the checksum of all behind it
SNAPSHOTS_DELETED_MAX = 1000  # at once


class MetadataOwner(Protocol):
    """The owner of the metadata stream, as the controller uses it; see StreamOwnerActor."""

    @property
    def incarnation(self) -> str | None: ...

    def submit(self, request: Any, sink: Sink) -> None:
        """Send a request; the sink gets the result. Raises ClosedError, OverCapacityError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectControllerOptions:
    """Options of the actor, and those of its machine."""

    requests_max: int = option(1000)  # operations that wait, also while the stream is read
    tick_s: float = option(10.0)  # between two looks at what has expired
    replay_wait_s: float = option(5.0)  # for a change of metadata while the stream is read
    controller: ControllerOptions = field(default_factory=ControllerOptions)

    def __post_init__(self) -> None:
        check_positive(self, "requests_max", "tick_s", "replay_wait_s")


class ObjectControllerActor:
    """The controller while it has the metadata stream: from `run` until it is deposed or stopped.

    epoch: of the owner's claim. replay: of the metadata stream, not begun yet. point: from where it may go on, as this
    process follows the stream anyway.
    on_end: called once, with whether the owner must claim the stream again: something may have been appended whose
    outcome is unknown.
    """

    def __init__(
        self,
        owner: MetadataOwner,
        epoch: Epoch,
        *,
        replay: MetadataReplay,
        point: Callable[[], ReplayPoint | None] = lambda: None,
        objects: Objects,
        find_root: FindRoot,
        options: ObjectControllerOptions,
        on_event: Callable[[Event], None],
        on_end: Callable[[ObjectControllerActor, bool], None],
    ) -> None:
        self._nonce = os.urandom(12)
        self.name = f"object_controller {self._nonce.hex()}"
        self.has_ended = False
        self._owner = owner
        self._epoch = epoch
        self._since = (1, 0)  # this producer has written nothing before this segment and entry
        self._replay = replay
        self._point = point
        self._objects = objects
        self._find_root = find_root
        self._options = options
        self._on_event = on_event
        self._on_end = on_end
        self._machine: Controller | None = None  # None: the stream is being read
        self._positions = RecordPositions()
        self._mailbox: deque[ControllerFact] = deque()
        self._news = asyncio.Event()
        self._stopping = False
        self._error: DLogError | None = None  # why it ended
        self._asked: dict[Ticket, asyncio.Future[Result]] = {}
        self._ticket = 0
        self._on_way: deque[AppendEntry] = deque()
        self._sequence = 0
        self._tasks: asyncio.TaskGroup
        self._errands: set[asyncio.Task[None]] = set()
        self._root: Location
        self._folder = ""

    async def ask(self, operation: Operation) -> Result:
        """Have the machine decide an operation. Cancelling stops the wait only.

        Raises its refusals; ControllerLostError (outcome_unknown as it is), OverCapacityError, and what the metadata
        stream could not be read for.
        """
        if self.has_ended or self._stopping:
            raise ControllerLostError("this controller is over, ask again", outcome_unknown=False)
        if len(self._asked) >= self._options.requests_max:
            raise OverCapacityError(f"too many operations on metadata wait, retry: count={len(self._asked)}")
        self._ticket += 1
        ticket = self._ticket
        answered: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._asked[ticket] = answered
        self._post(Requested(ticket, operation))
        return await answered

    def stop(self) -> None:
        """Take no more operations, and end once all that is on its way is confirmed."""
        self._stopping = True
        self._news.set()

    def abort(self) -> None:
        """The owner is over: end now."""
        if self._machine is not None and not self._machine.is_over:
            self._post(AppendFailed(StreamUnavailableError("the owner of the metadata stream has ended")))
        self.stop()

    async def run(self) -> None:
        """Run until the end. A second call returns at once: another owner gets another controller."""
        if self.has_ended:
            return
        is_deposed = False
        try:
            machine = self._machine = await self._begin()
            is_deposed = await self._serve(machine)
        except DLogError as error:
            self._error = error
            if error.remedy in (Remedy.RETRY, Remedy.FOLLOW, Remedy.REOPEN):
                text = f"no controller can begin now, ask again: {error.message}"
                self._error = ControllerLostError(text, outcome_unknown=False)
        except BaseException as error:
            self._error = ControllerLostError(f"the controller failed unexpectedly: {error!r}", outcome_unknown=True)
            is_deposed = self._machine is not None
            raise
        finally:
            self.has_ended = True
            self._fail_all()
            self._on_end(self, is_deposed or bool(self._on_way))

    # ---- from begin to end -------------------------------------------------------------------------------------------

    async def _begin(self) -> Controller:
        """Read the metadata stream to its end, and make the machine."""
        replay = self._replay
        point = self._point()
        if point is not None:
            await replay.go_on_from(point)
        try:
            image = await replay.read_to_end(self._options.replay_wait_s, lambda: self._stopping)
            value = replay.reader.value
        finally:
            await replay.reader.close()
        if self._stopping or value is None or value.owner.epoch != self._epoch:
            raise ControllerLostError("the metadata stream has another owner, ask that", outcome_unknown=False)
        self._root = await self._find_root()
        self._folder = value.incarnation
        self._positions = replay.positions
        self._since = (value.last_completed.number + 1 if value.last_completed is not None else 1, 0)
        now_ms, later = await self._now_ms(), await self._find_later(image)
        return Controller(image, self._folder, self._nonce.hex(), now_ms, self._options.controller, later=later)

    async def _find_later(self, image: Image) -> str:
        """The key of an object that the image should know and does not; empty: none was found."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._first_key(place), name=f"look behind {place.behind}")
                for place in places_of_later(self._folder, image)
            ]
        later = ""
        for task in tasks:
            found = task.result()
            if isinstance(found, DLogError):
                raise found
            later = later or (found if is_later(self._folder, image, found) else "")
        return later

    async def _first_key(self, place: Place) -> str | DLogError:
        """The first key of this place; empty: there is none. An error is returned."""
        above = f"{self._root}/"
        behind = self._root.below(place.behind)
        try:
            async for found in self._objects.list(self._root.below(place.folder), behind=behind, limit=1):
                return found.location.removeprefix(above)
        except DLogError as error:
            return error
        return ""

    async def _serve(self, machine: Controller) -> bool:
        """Handle facts until the end; whether the machine was deposed."""
        async with asyncio.TaskGroup() as self._tasks:
            ticking = self._tasks.create_task(self._tick(), name="ticks of the controller")
            try:
                self._perform(machine.begin())
                while not machine.is_over and not (self._stopping and not self._asked and not self._on_way):
                    self._news.clear()
                    while self._mailbox:
                        self._perform(machine.handle(self._mailbox.popleft()))
                    if not machine.is_over and not (self._stopping and not self._asked and not self._on_way):
                        await self._news.wait()
            finally:
                for task in (ticking, *self._errands):
                    task.cancel()
        return machine.is_over

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._options.tick_s)
            with suppress(DLogError):  # the storage does not answer: nothing can be deleted now either
                self._post(Ticked(await self._now_ms()))

    async def _now_ms(self) -> int:
        return await self._objects.now_unix_ms(self._root)

    def _post(self, fact: ControllerFact) -> None:
        self._mailbox.append(fact)
        self._news.set()

    def _fail_all(self) -> None:
        """Answer what is left: it was not recorded, unless an entry is on its way."""
        asked, self._asked = self._asked, {}
        unknown = bool(self._on_way)
        error = self._error or ControllerLostError("this controller is over, ask again", outcome_unknown=unknown)
        for future in asked.values():
            if not future.done():
                future.set_exception(to_raise(error))
                future.exception()  # asyncio logs an error that no caller retrieves

    # ---- effects -----------------------------------------------------------------------------------------------------

    def _perform(self, effects: list[ControllerEffect]) -> None:
        for effect in effects:
            match effect:
                case AppendEntry():
                    self._append(effect)
                case Answer(ticket, result):
                    self._answer(ticket, result)
                case Emit(event):
                    self._on_event(event)
                case DeleteObjects(keys):
                    self._run_errand(self._delete(keys), "delete objects")
                case WriteSnapshot(key, contents):
                    self._run_errand(self._write_snapshot(key, contents), "write a snapshot of metadata")
                case DeleteSnapshots(applied):
                    self._run_errand(self._delete_snapshots(applied), "delete old snapshots of metadata")
                case TruncateMetadata(version):
                    self._truncate(version)
                case Deposed():
                    pass  # `_serve` ends

    def _answer(self, ticket: Ticket, result: Any) -> None:
        future = self._asked.pop(ticket, None)
        if future is None or future.done():
            return
        if isinstance(result, DLogError):
            future.set_exception(result)
            future.exception()
        else:
            future.set_result(result)

    def _append(self, effect: AppendEntry) -> None:
        """Append an entry as a batch. The machine has fewer on their way than the window of any producer."""
        body = build_record_set([effect.data])
        batch = WriteBatch(
            body,
            1,
            None,
            self._nonce + bytes(4),
            self._sequence,
            crc32c(body),
            False,
            unix_ms(),
            self._since,
            incarnation=self._owner.incarnation,
        )
        self._sequence += 1
        self._on_way.append(effect)
        try:
            self._owner.submit(batch, partial(self._appended, effect))
        except DLogError as error:
            self._appended(effect, error)

    def _appended(self, effect: AppendEntry, result: BatchWritten | DLogError) -> None:
        if not self._on_way or self._on_way[0] is not effect or isinstance(result, DLogError):
            reason = result if isinstance(result, DLogError) else StreamUnavailableError("confirmed out of order")
            self._post(AppendFailed(reason))
            return
        self._on_way.popleft()
        self._positions.add(effect.version - len(effect.records), result.dlsn)
        self._post(EntryConfirmed(effect.number))

    def _truncate(self, version: int) -> None:
        """Best effort: the next snapshot's truncation covers it."""
        position = self._positions.floor(version)
        if position is not None:
            with suppress(DLogError):
                self._owner.submit(TruncateBefore(position, self._owner.incarnation), _ignore)

    def _run_errand(self, errand: Coroutine[Any, Any, None], name: str) -> None:
        task = self._tasks.create_task(errand, name=name)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _delete(self, keys: tuple[str, ...]) -> None:
        try:
            await self._objects.delete_many([self._root.below(key) for key in keys])
        except DLogError as error:
            self._post(DeletionFailed(error.message))
        else:
            self._post(ObjectsDeleted())

    async def _write_snapshot(self, key: str, contents: SnapshotContents) -> None:
        try:
            data = await asyncio.to_thread(encode_snapshot, contents)
            crc = await asyncio.to_thread(crc32c, data)
            head = min(len(data), SNAPSHOT_HEAD_BYTES)
            made = await self._objects.create_if_absent(
                self._root.below(key), [data], head_bytes=head, marker=self._root.parent.below(MARKER)
            )
            if made is Creation.EXISTS:
                raise DamagedError(f"another snapshot has this key, though no key is used twice: key={key}")
        except DLogError as error:
            self._post(SnapshotFailed(error.message))
        else:
            self._post(SnapshotStored(len(data), crc))

    async def _delete_snapshots(self, applied: int) -> None:
        """Best effort: the next snapshot has them deleted."""
        with suppress(DLogError):
            prefix = len(str(self._root)) + 1
            old: list[Location] = []
            async for found in self._objects.list(self._root.below(self._folder, "snapshots")):
                key = found.location[prefix:]
                number = parse_snapshot_key(self._folder, key)
                if number is None or number >= applied:
                    break  # they are listed by number
                old.append(self._root.below(key))
                if len(old) >= SNAPSHOTS_DELETED_MAX:
                    break
            if old:
                await self._objects.delete_many(old)


def _ignore(_: Any) -> None:
    """Drop the result."""
