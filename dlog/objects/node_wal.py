"""A node's write-ahead log: a row of segments of another store, appended to by group commit.

Appends of all streams wait in one queue. While fewer WAL entries than allowed are in flight, what waits is put into the
next one. A segment rolls at a size: the next one is created and registered while the old one is still appended to; then
the old one is drained, and appending goes on in the next one.

Invariants:
- A segment is registered with the controller before its first entry is appended.
- No entry is appended to a segment before all entries of the one before are confirmed; so the entries of all segments,
  one after another, are a prefix of what was submitted, whatever is lost at the end.
- Appends are confirmed in the order in which they were submitted.
- After the first failed append nothing is confirmed: `over` is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dlog.errors import DLogError
from dlog.model.ids import Epoch
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectStreamId, WalPosition, WalSegment
from dlog.objects.node_messages import (
    AppendWalEntry,
    CreateWalSegment,
    DeleteWalSegment,
    SealWalSegment,
    WalLocation,
)
from dlog.objects.node_options import NodeOptions
from dlog.objects.operations import BeginWalSegment, WalDeleted
from dlog.objects.outbox import Outbox, Service
from dlog.wire.node_wal import FRAME_BYTES, FRAMES_MAX, HEAD_BYTES, StreamEntry, WalEntry, WalFrame, encode_wal_entry


@dataclass(slots=True)
class PendingAppend:
    """Entries first, first + 1, ... of a stream, from one caller's request. bytes: what they count."""

    ticket: int
    stream: ObjectStreamId
    epoch: Epoch
    first: int
    entries: tuple[StreamEntry, ...]
    bytes: int

    @property
    def end(self) -> int:
        return self.first + len(self.entries)


@dataclass(slots=True)
class _InFlight:
    """A WAL entry that is not confirmed, or one before it is not. position: behind it."""

    position: WalPosition
    frames: tuple[WalFrame, ...]
    appends: list[PendingAppend]
    is_confirmed: bool = False


@dataclass(slots=True)
class _Active:
    """The segment that is appended to. bytes: appended to it."""

    segment: WalSegment
    next_entry: int = 0
    bytes: int = 0


@dataclass(slots=True)
class WalWriter:
    """Appends to the log. confirmed: gets the frames of a WAL entry, the position behind it, and its appends. rolled:
    gets a segment that is not appended to any more, and the number of the next one. See the module."""

    node: NodeId
    node_epoch: NodeEpoch
    options: NodeOptions
    outbox: Outbox
    ready: Callable[[WalSegment], None]
    confirmed: Callable[[tuple[WalFrame, ...], WalPosition, list[PendingAppend]], None]
    rolled: Callable[[WalSegment, int], None]
    over: Callable[[DLogError], None]
    _active: _Active | None = None
    _next: WalSegment | None = None  # registered
    _is_creating: bool = False
    _pending: deque[PendingAppend] = field(default_factory=deque)
    _in_flight: deque[_InFlight] = field(default_factory=deque)

    def begin(self, number: int) -> None:
        """Create and register the first segment; `ready` is called then."""
        self._create(number)

    def append(self, append: PendingAppend) -> None:
        self._pending.append(append)
        self._advance()

    def is_too_large(self, append_bytes: int) -> bool:
        return HEAD_BYTES + FRAME_BYTES + append_bytes > self.options.wal_entry_bytes_max

    def take_unsent(self, stream: ObjectStreamId) -> list[PendingAppend]:
        """Take the appends of a stream that are not on their way out of the queue."""
        taken = [append for append in self._pending if append.stream == stream]
        if taken:
            self._pending = deque(append for append in self._pending if append.stream != stream)
        return taken

    def take_all(self) -> tuple[list[PendingAppend], list[PendingAppend]]:
        """Take all appends: those that may be in the log, and those that are not."""
        unknown = [append for entry in self._in_flight for append in entry.appends]
        unsent = list(self._pending)
        self._in_flight.clear()
        self._pending.clear()
        return unknown, unsent

    # ---- segments ---------------------------------------------------------------------------------------------------

    def _create(self, number: int) -> None:
        """Create a segment and register it; a store that cannot create one now is asked until it can."""
        self._is_creating = True
        request = CreateWalSegment(number, self.node_epoch)
        self.outbox.repeat(Service.WAL, request, lambda location: self._register(number, location))

    def _register(self, number: int, location: WalLocation) -> None:
        segment = WalSegment(number, self.node_epoch, location.store, location.name)
        request = BeginWalSegment(self.node, self.node_epoch, segment)
        self.outbox.repeat(Service.CONTROLLER, request, lambda _: self._registered(segment), self.over)

    def _registered(self, segment: WalSegment) -> None:
        self._is_creating = False
        self._next = segment
        self._advance()

    def _switch(self, segment: WalSegment) -> None:
        former, self._active, self._next = self._active, _Active(segment), None
        if former is None:
            self.ready(segment)
        else:
            self.outbox.ask(Service.WAL, SealWalSegment(former.segment), lambda _: None, lambda _: None)
            self.rolled(former.segment, segment.number)

    # ---- appends ----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Switch to the next segment if it is time, then append what waits. The only place that does either."""
        if self.outbox.is_closed:
            return
        if self._next is not None and not self._in_flight:
            self._switch(self._next)
        active = self._active
        if active is None:
            return
        while self._pending and self._next is None and len(self._in_flight) < self.options.wal_entries_in_flight:
            self._submit(active)
        if active.bytes >= self.options.wal_segment_bytes and self._next is None and not self._is_creating:
            self._create(active.segment.number + 1)

    def _submit(self, active: _Active) -> None:
        """Append one WAL entry with as much as it may have of what waits."""
        appends = list[PendingAppend]()
        gathered: dict[tuple[ObjectStreamId, Epoch], list[PendingAppend]] = {}
        size = HEAD_BYTES
        while self._pending and len(gathered) < FRAMES_MAX:
            append = self._pending[0]
            size += append.bytes + FRAME_BYTES
            if appends and size > self.options.wal_entry_bytes_max:
                break
            appends.append(self._pending.popleft())
            gathered.setdefault((append.stream, append.epoch), []).append(append)
        frames = tuple(
            WalFrame(stream, epoch, parts[0].first, tuple(entry for part in parts for entry in part.entries))
            for (stream, epoch), parts in gathered.items()
        )
        segment, entry = active.segment, active.next_entry
        one = _InFlight(WalPosition(segment.number, entry + 1), frames, appends)
        self._in_flight.append(one)
        active.next_entry += 1
        active.bytes += size
        parts = tuple(encode_wal_entry(WalEntry(self.node_epoch, frames)))
        self.outbox.ask(Service.WAL, AppendWalEntry(segment, entry, parts), lambda _: self._confirm(one), self.over)

    def _confirm(self, entry: _InFlight) -> None:
        entry.is_confirmed = True
        while self._in_flight and self._in_flight[0].is_confirmed:
            first = self._in_flight.popleft()
            self.confirmed(first.frames, first.position, first.appends)
        self._advance()


class WalCleaner:
    """Deletes segments of a node's log that lie wholly below a flush point, and records that they are gone.

    Invariants:
    - `flushed` is called only with flush points of commits that the controller has confirmed.
    - A segment below the number of the flush point's segment is not appended to any more, and has nothing that is not
      committed.
    - A deletion is recorded once the store has deleted all segments below a number.
    """

    def __init__(
        self, node: NodeId, node_epoch: NodeEpoch, outbox: Outbox, *, over: Callable[[DLogError], None]
    ) -> None:
        self._node = node
        self._node_epoch = node_epoch
        self._outbox = outbox
        self._over = over
        self._segments: deque[WalSegment] = deque()  # in order of their numbers
        self._below = 0
        self._is_busy = False
        self._waiting: list[Callable[[], None]] = []

    def add(self, segment: WalSegment) -> None:
        """A segment that is not appended to any more."""
        self._segments.append(segment)
        self._advance()

    def flushed(self, position: WalPosition) -> None:
        """This flush point is recorded."""
        self._below = max(self._below, position.segment)
        self._advance()

    def when_clean(self, do: Callable[[], None]) -> None:
        """Call `do` once no segment is left."""
        self._waiting.append(do)
        self._advance()

    def _advance(self) -> None:
        if self._is_busy or self._outbox.is_closed:
            return
        if self._segments and self._segments[0].number < self._below:
            self._is_busy = True
            self._outbox.repeat(Service.WAL, DeleteWalSegment(self._segments[0]), lambda _: self._deleted())
        elif not self._segments:
            waiting, self._waiting = self._waiting, []
            for do in waiting:
                do()

    def _deleted(self) -> None:
        number = self._segments[0].number + 1
        request = WalDeleted(self._node, self._node_epoch, number)
        self._outbox.repeat(Service.CONTROLLER, request, lambda _: self._recorded(), self._over)

    def _recorded(self) -> None:
        self._segments.popleft()
        self._is_busy = False
        self._advance()
