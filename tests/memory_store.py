"""A segment store in memory that keeps the whole contract, for tests and for processes that need no disk.

Invariants:
- a `MemoryStoreState` is the "disk": several stores may share one, and it decides fencing, sealing and recovery;
- `MemoryStoreState.remove` plays the retention of a store that removes entries by itself;
- an entry is stored one event loop iteration after it was appended and confirmed one iteration later, so that
  "submitted", "stored" and "confirmed" are different moments here too.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial

from dlog.model.ids import NO_ENTRY, EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.segment import StoreSettings
from dlog.options import MiB
from dlog.stores.contract import (
    STAGE,
    AppendSink,
    Buffer,
    Capabilities,
    EntryTooLargeError,
    RecoveredSegment,
    SegmentCorruptError,
    SegmentFencedError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentSealedError,
    SegmentStat,
    SegmentTruncatedError,
    StoreError,
    StoreUnavailableError,
    Verification,
)
from dlog.stores.settings import SettingsSchema

ENTRY_BYTES_MAX = 1 * MiB


class _Segment:
    """State of one segment."""

    def __init__(self, stage_of: StreamName | None) -> None:
        self.stage_of = stage_of
        self.entries: list[bytes] = []
        self.sums: list[int] = []
        self.lac = NO_ENTRY
        self.end: EntryId | None = None
        self.fenced = False  # by a recovery or deletion: the writer must stop
        self.is_removed = False  # by the store itself: no entry can be read
        self.moved = asyncio.Event()  # replaced each time it is set

    def store(self, payload: bytes) -> None:
        self.entries.append(payload)
        self.sums.append(zlib.crc32(payload))

    def tell(self) -> None:
        """Wake all tasks that wait for the LAC or the end."""
        moved, self.moved = self.moved, asyncio.Event()
        moved.set()


class MemoryStoreState:
    """The "disk": outlives its stores, and may be shared by several."""

    def __init__(self) -> None:
        self.segments: dict[str, _Segment] = {}
        self._created = 0

    def new_name(self) -> str:
        """Return a location that was never used before."""
        self._created += 1
        return f"region/{self._created}-é %;:@+7."

    def find(self, name: str, *, or_removed: bool = False) -> _Segment:
        """Return the segment at a location. Raises SegmentNotFoundError; SegmentTruncatedError, unless `or_removed`."""
        segment = self.segments.get(name)
        if segment is None:
            raise SegmentNotFoundError(f"no such segment: store=memory location={name}")
        if segment.is_removed and not or_removed:
            raise SegmentTruncatedError(f"the store has removed the segment by itself: store=memory location={name}")
        return segment

    def remove(self, name: str) -> None:
        """Remove a segment's entries as retention does: without its stream, and without fencing its writer."""
        segment = self.find(name)
        segment.is_removed = True
        segment.tell()


class MemoryStore:
    """A SegmentStore on a MemoryStoreState. Visible entries are final: the LAC is known exactly."""

    name = "memory"
    settings = SettingsSchema(name)

    def __init__(self, state: MemoryStoreState | None = None, *, entry_bytes_max: int = ENTRY_BYTES_MAX) -> None:
        self.state = state or MemoryStoreState()
        self.capabilities = Capabilities(visible_is_final=True, entry_bytes_max=entry_bytes_max)
        self._writers: list[MemoryWriter] = []
        self._open = True

    def check_capacity(self, settings: StoreSettings) -> None:
        """Does nothing: a segment needs no members."""

    async def create(
        self, stream: StreamName, number: SegmentNumber, epoch: Epoch, settings: StoreSettings
    ) -> MemoryWriter:
        self._check_open()
        self.settings.complete(dict(settings))
        name = self.state.new_name()
        segment = self.state.segments[name] = _Segment(stream if number == STAGE else None)
        writer = MemoryWriter(name, segment, self.capabilities.entry_bytes_max)
        self._writers = [w for w in self._writers if not w.is_dead] + [writer]
        return writer

    async def recover(self, ref: SegmentRef) -> RecoveredSegment:
        """See SegmentStore.recover. Keeps all stored entries, confirmed or not."""
        self._check_open()
        segment = self.state.find(ref.name, or_removed=True)
        segment.fenced = True
        await asyncio.sleep(0)  # as on any store, the end is decided after fencing
        self.state.find(ref.name)
        if segment.end is None:
            segment.end = segment.lac = EntryId(len(segment.entries) - 1)
            segment.tell()
        return RecoveredSegment(segment.end, tuple(segment.entries[max(0, segment.end - 2) : segment.end + 1]))

    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> MemoryReader:
        self._check_open()
        self.state.find(ref.name)
        return MemoryReader(self.state, ref.name, sealed_at)

    async def stat(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> SegmentStat:
        self._check_open()
        segment = self.state.find(ref.name)
        end = (await self.recover(ref)).end if segment.end is None and sealed_at is not None else segment.end
        return SegmentStat() if end is None else SegmentStat(end, sum(map(len, segment.entries)))

    async def stage_of(self, name: str) -> StreamName | None:
        self._check_open()
        return self.state.find(name, or_removed=True).stage_of

    async def find_tail(self, ref: SegmentRef) -> EntryId:
        self._check_open()
        return self.state.find(ref.name).lac

    async def delete(self, ref: SegmentRef) -> None:
        self._check_open()
        segment = self.state.segments.pop(ref.name, None)
        if segment is not None:
            segment.fenced = True
            segment.tell()

    async def list(self) -> AsyncIterator[str]:
        self._check_open()
        for name in tuple(self.state.segments):
            yield name

    async def verify(self, ref: SegmentRef) -> Verification:
        self._check_open()
        segment = self.state.find(ref.name)
        pairs = zip(segment.entries, segment.sums, strict=True)
        damaged = [EntryId(e) for e, (payload, expected) in enumerate(pairs) if zlib.crc32(payload) != expected]
        return Verification(len(segment.entries), tuple((entry, "checksum does not match") for entry in damaged))

    async def close(self) -> None:
        """Abandon every open writer; the state remains."""
        self._open = False
        for writer in self._writers:
            await writer.abandon()

    def _check_open(self) -> None:
        if not self._open:
            raise StoreUnavailableError("the store is closed, open another one: store=memory")


class MemoryWriter:
    """A SegmentWriter. An entry that is too large is refused; the writer goes on."""

    def __init__(self, name: str, segment: _Segment, entry_bytes_max: int) -> None:
        self.name = name
        self._segment = segment
        self._entry_bytes_max = entry_bytes_max
        self._last_confirmed = NO_ENTRY
        self._submitted = 0
        self._to_store: deque[tuple[bytes, asyncio.Future[None]]] = deque()
        self._to_confirm: deque[asyncio.Future[None]] = deque()
        self._turn_due = False
        self._error: StoreError | None = None
        self._sealing = False
        self._drained = asyncio.Event()

    @property
    def last_confirmed(self) -> EntryId:
        return self._last_confirmed

    @property
    def is_dead(self) -> bool:
        return self._error is not None

    def append(self, entry_id: EntryId, payload: Sequence[Buffer]) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        size = sum(map(len, payload))
        if self._error is not None or self._sealing:
            _fail(future, self._error or SegmentSealedError(f"the segment is being sealed: location={self.name}"))
        elif size > self._entry_bytes_max:
            _fail(
                future,
                EntryTooLargeError(
                    f"the entry is too large, write smaller batches: bytes={size} max={self._entry_bytes_max}"
                ),
            )
        else:
            assert entry_id == self._submitted, f"entry ids are dense: expected={self._submitted} got={entry_id}"
            self._submitted += 1
            self._to_store.append((b"".join(payload), future))
            self._take_a_turn(loop)
        return future

    def submit(self, entry_id: EntryId, payload: Sequence[Buffer], sink: AppendSink) -> None:
        self.append(entry_id, payload).add_done_callback(partial(_hear, sink))

    async def seal(self) -> EntryId:
        if not self._sealing and self._error is None:
            self._sealing = True
            self._take_a_turn(asyncio.get_running_loop())
        while self._sealing and self._error is None:
            await self._drained.wait()
        if isinstance(self._error, SegmentSealedError):
            assert self._segment.end is not None
            return self._segment.end
        assert self._error is not None
        raise self._error

    async def abandon(self) -> None:
        self._die(StoreUnavailableError(f"the writer was abandoned: location={self.name}", outcome_unknown=True))

    def _take_a_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._turn_due:
            self._turn_due = True
            loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Confirm entries stored in the last iteration and store waiting ones, or stop if the segment was fenced."""
        self._turn_due = False
        segment = self._segment
        if self._error is not None:
            return
        if segment.fenced:
            self._die(SegmentFencedError(f"another process recovered the segment: location={self.name}"))
            return
        if self._to_confirm:
            while self._to_confirm:
                self._last_confirmed = EntryId(self._last_confirmed + 1)
                future = self._to_confirm.popleft()
                if not future.done():
                    future.set_result(None)
            segment.lac = self._last_confirmed
            segment.tell()
        while self._to_store:
            payload, future = self._to_store.popleft()
            segment.store(payload)
            self._to_confirm.append(future)
        if self._to_confirm:
            self._take_a_turn(asyncio.get_running_loop())
        elif self._sealing:
            segment.end = self._last_confirmed
            segment.tell()
            self._die(SegmentSealedError(f"the segment is sealed: location={self.name}"))

    def _die(self, error: StoreError) -> None:
        if self._error is None:
            self._error = error
            for future in (*self._to_confirm, *(future for _, future in self._to_store)):
                _fail(future, error)
            self._to_confirm.clear()
            self._to_store.clear()
            self._drained.set()


class MemoryReader:
    """A SegmentReader that sees every change of the LAC at once."""

    def __init__(self, state: MemoryStoreState, name: str, sealed_at: EntryId | None) -> None:
        self._state = state
        self._name = name
        self._sealed_at = sealed_at

    @property
    def last_confirmed(self) -> EntryId:
        end = self.end
        return self._state.find(self._name).lac if end is None else end

    @property
    def end(self) -> EntryId | None:
        end = self._state.find(self._name).end
        return self._sealed_at if end is None else end

    async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
        segment = self._state.find(self._name)
        lac = self.last_confirmed
        assert 0 <= first <= lac, f"read above the LAC: first={first} lac={lac}"
        found: list[bytes] = []
        room = max_bytes
        for entry in range(first, min(last, lac) + 1):
            payload = segment.entries[entry]
            if found and len(payload) > room:
                break
            if zlib.crc32(payload) != segment.sums[entry]:
                if found:
                    break
                raise SegmentCorruptError(f"the entry does not verify: location={self._name} entry={entry}")
            found.append(payload)
            room -= len(payload)
        return found

    async def read_views(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
        return await self.read(first, last, max_bytes)

    async def locate(self, first: EntryId, last: EntryId, least: int, *, by_time: bool) -> tuple[EntryId, EntryId]:
        """Narrow nothing: there is no index of txids and times."""
        return first, last

    async def wait_lac(self, known: EntryId, timeout_s: float) -> EntryId:
        try:
            async with asyncio.timeout(timeout_s):
                while self.last_confirmed <= known and self.end is None:
                    await self._state.find(self._name).moved.wait()
        except TimeoutError:
            pass
        return self.last_confirmed

    def learn_lac(self, lac: EntryId) -> None:
        """Does nothing: this reader sees the LAC itself."""

    async def close(self) -> None:
        """Does nothing: no resources are held."""


def _hear(sink: AppendSink, appended: asyncio.Future[None]) -> None:
    error = appended.exception()
    assert error is None or isinstance(error, StoreError), "the writer fails with store errors only"
    sink(error)


def _fail(future: asyncio.Future[None], error: StoreError) -> None:
    """Fail the future with a copy of the error; a failure that no caller awaits is not logged."""
    if not future.done():
        future.set_exception(type(error)(error.message, outcome_unknown=error.outcome_unknown))
        future.exception()
