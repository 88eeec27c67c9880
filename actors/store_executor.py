"""Executes the requests that a stream owner's state machine sends to its peer STORE, and posts the replies.

Invariants:
- every request gets one reply, which names it;
- appends go to their writer in the order they were sent, and are confirmed in that order;
- everything else runs in a named task that ends with the actor;
- a writer that failed is not replaced here: its appends fail, and the state machine decides what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, assert_never

from dlog.errors import DLogError
from dlog.io.clock import SYSTEM_CLOCK, Clock
from dlog.log.messages import (
    STORE,
    AppendEntry,
    CreateSegment,
    DeleteSegment,
    EntriesRead,
    EntryAppended,
    ExamineStage,
    ReadEntries,
    RecoverSegment,
    SealSegment,
    SegmentCreated,
    SegmentDeleted,
    SegmentRecovered,
    SegmentSealed,
    StageExamined,
    StoreFailed,
    StoreQuestion,
    StoreReply,
)
from dlog.machine import Fact, Peer, Received
from dlog.model.ids import NO_ENTRY, EntryId, SegmentNumber, StreamName
from dlog.model.segment import Location, Segment
from dlog.stores.contract import (
    STAGE,
    MisconfiguredError,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentReader,
    SegmentRef,
    SegmentStore,
    SegmentWriter,
    StoreError,
    StoreUnavailableError,
)
from dlog.stores.kinds import not_configured

SlowQuestion = CreateSegment | RecoverSegment | ReadEntries | SealSegment | ExamineStage | DeleteSegment
READ_BYTES_MAX = 4 * 1024 * 1024  # of one read while an owner reads back its predecessor's segment


class Start(Protocol):
    """Starts a task, see `Driver.start`."""

    def __call__(self, work: Coroutine[Any, Any, None], *, name: str) -> None: ...


class _OpenWriter(NamedTuple):
    number: SegmentNumber
    location: Location
    writer: SegmentWriter


class StoreExecutor:
    """Store access of one stream, for the lifetime of one owner's state machine."""

    __slots__ = ("_begin", "_clock", "_post", "_stores", "_stream", "_writers")

    def __init__(
        self,
        stream: StreamName,
        stores: Mapping[str, SegmentStore],
        post: Callable[[Fact], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._stream = stream
        self._stores = stores
        self._post = post
        self._clock = clock
        self._writers: tuple[_OpenWriter, ...] = ()  # one or two
        self._begin: Start | None = None

    def send(self, peer: Peer, question: StoreQuestion) -> None:
        """Take a request of the state machine; the `send` of its Driver."""
        assert peer == STORE, f"an owner sends to its store only: peer={peer}"
        if isinstance(question, AppendEntry):
            self._append(question)
            return
        assert self._begin is not None, "`open` comes before the first `send`"
        self._begin(self._answer(question), name=f"{type(question).__name__} {self._stream}")

    def open(self, start: Start) -> None:
        """Run work in tasks made by `start`; its provider ends them. Must come before the first `send`."""
        self._begin = start

    async def close(self) -> None:
        """Abandon the open writers without sealing their segments. Call it when no task is left."""
        writers, self._writers = self._writers, ()
        for open_writer in writers:
            await open_writer.writer.abandon()

    def let_go(self) -> None:
        """After `close`: break reference cycles, see Driver."""
        self._begin = None
        self._post = _drop

    # ---- appends: no task, strictly in order ------------------------------------------------------------------------

    def _append(self, question: AppendEntry) -> None:
        writer = self._find(question.number)
        if writer is None:
            self._send(
                StoreFailed(
                    question, SegmentNotFoundError(f"the segment is not open for writing: segment={question.number}")
                )
            )
            return
        writer.submit(question.entry, question.parts, partial(self._appended, question))

    def _appended(self, question: AppendEntry, error: StoreError | None) -> None:
        if error is None:
            self._send(EntryAppended(question.number, question.entry))
        else:
            self._send(StoreFailed(question, error))

    # ---- everything else: a task each -------------------------------------------------------------------------------

    async def _answer(self, question: SlowQuestion) -> None:
        try:
            reply = await self._perform(question)
        except DLogError as error:
            reply = StoreFailed(question, error)
        except OSError as error:
            reply = StoreFailed(question, StoreUnavailableError(str(error)))
        self._post(Received(STORE, reply, self._clock.monotonic_s()))

    async def _perform(self, question: SlowQuestion) -> StoreReply:
        match question:
            case CreateSegment(number, epoch, store, settings):
                writer = await self._store(store).create(self._stream, number, epoch, settings)
                former, location = self._find(number), Location(store, writer.name)
                self._writers = (*self._without(former), _OpenWriter(number, location, writer))
                if former is not None:
                    await former.abandon()
                return SegmentCreated(number, location)
            case RecoverSegment(segment):
                found = await self._store(segment.store).recover(self._ref(segment))
                return SegmentRecovered(segment.number, segment.location, found.end, found.last_payloads)
            case ReadEntries():
                return await self._read(question.segment, question)
            case SealSegment(number):
                writer = self._open_writer(number)
                last = await writer.seal()
                self._writers = self._without(writer)
                return SegmentSealed(number, last)
            case ExamineStage(location):
                return await self._examine(location)
            case DeleteSegment(location, number):
                await self._abandon(location)
                await self._store(location.store).delete(SegmentRef(self._stream, number, location.name))
                return SegmentDeleted(location)
        assert_never(question)

    async def _read(self, segment: Segment, question: ReadEntries) -> EntriesRead:
        store = self._store(segment.store)
        reader: SegmentReader = await store.open_reader(self._ref(segment), sealed_at=question.last)
        try:
            if question.first > reader.last_confirmed:
                text = f"the store lacks entries that the list has: segment={segment.number} first={question.first}"
                raise SegmentCorruptError(f"{text} last={reader.last_confirmed}")
            payloads = await reader.read(question.first, question.last, READ_BYTES_MAX)
        finally:
            await reader.close()
        return EntriesRead(segment.number, segment.location, question.first, tuple(payloads))

    async def _examine(self, location: Location) -> StageExamined:
        """Fence a staged segment and read its ends. Raises SegmentNotFoundError if it is not of this stream."""
        store = self._store(location.store)
        if await store.stage_of(location.name) != self._stream:
            text = f"not a staged segment of this stream: stream={self._stream} location={location.name}"
            raise SegmentNotFoundError(text)
        ref = SegmentRef(self._stream, STAGE, location.name)
        last = (await store.recover(ref)).end
        if last == NO_ENTRY:
            return StageExamined(location, last, ())
        reader: SegmentReader = await store.open_reader(ref, sealed_at=last)
        try:
            ends = [(await reader.read(entry, entry, 1))[0] for entry in (EntryId(0), last)]
        finally:
            await reader.close()
        return StageExamined(location, last, tuple(ends))

    async def _abandon(self, location: Location) -> None:
        for known in self._writers:
            if known.location == location:
                self._writers = self._without(known.writer)
                await known.writer.abandon()

    def _find(self, number: SegmentNumber) -> SegmentWriter | None:
        for known in self._writers:
            if known.number == number:
                return known.writer
        return None

    def _without(self, former: SegmentWriter | None) -> tuple[_OpenWriter, ...]:
        return tuple(kept for kept in self._writers if kept.writer is not former)

    def _store(self, name: str) -> SegmentStore:
        store = self._stores.get(name)
        if store is None:
            raise MisconfiguredError(f"{not_configured(name)} known={sorted(self._stores)}")
        return store

    def _ref(self, segment: Segment) -> SegmentRef:
        return SegmentRef(self._stream, segment.number, segment.name)

    def _open_writer(self, number: SegmentNumber) -> SegmentWriter:
        writer = self._find(number)
        if writer is None:
            raise SegmentNotFoundError(f"the segment is not open for writing: segment={number}")
        return writer

    def _send(self, reply: StoreReply) -> None:
        self._post(Received(STORE, reply))


def _drop(_: Fact) -> None:
    """Drop a fact."""
