"""Subscriptions of read proxies to the LACs of streams owned by this proxy.

Before a LAC the subscriber may get the entries that it confirms, if they are few and the subscriber is fast enough:
tail readers then need no bookie. Any entries may be left out. If many bytes are confirmed at a time, a read from a
bookie is cheap in comparison, and sending them would take the owner's time for writes.

Invariants:
- a subscriber gets the newest LAC of every segment that changed, at most once per turn, and whether it ended;
- an unsent LAC is replaced, not queued, so that a slow subscriber costs one number per segment;
- "ended empty" is never replaced: the number may be reused at another location, and the subscriber must learn that the
  old location is empty before it gets the number again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dlog.errors import DLogError
from dlog.events import LacMoved
from dlog.model.ids import NO_ENTRY
from dlog.wire.proxy import Entries, Lac

SEGMENTS_KEPT = 3  # segments whose LAC a new subscriber gets: the last, and those it may not know to have ended
ENTRIES_BYTES_MAX = 64 * 1024  # of entries sent with a LAC


class LacSubscriber(Protocol):
    """The session of a subscriber."""

    @property
    def keeps_up(self) -> bool:
        """Whether the subscriber reads without delay."""
        ...

    def lac_moved(self, tail: LacSubscription) -> None:
        """`tail.take()` has something to send."""
        ...

    def tail_ended(self, tail: LacSubscription, error: DLogError) -> None:
        """The subscription ends: the stream is not owned here any more, or deleted."""
        ...


class LacSubscription:
    """One subscription; `request` is its request number on the connection."""

    __slots__ = ("_empty", "_entries", "_moved", "listener", "request", "stream")

    def __init__(self, listener: LacSubscriber, request: int, stream: str) -> None:
        self.listener = listener
        self.request = request
        self.stream = stream
        self._moved: dict[int, LacMoved] = {}
        self._empty: dict[int, LacMoved] = {}  # of segments that ended empty; sent first
        self._entries: ConsecutiveEntries | None = None  # confirmed since the last `take`, of one segment

    def note(self, event: LacMoved, run: ConsecutiveEntries | None = None) -> None:
        """Keep the newest LAC of each segment. run: the entries confirmed with it, if they may be sent."""
        if _ended_empty(event):
            self._moved.pop(event.segment, None)
            self._empty[event.segment] = event
        else:
            self._moved[event.segment] = event
        if run is not None:
            self._entries = run if self._entries is None else self._entries.followed_by(run)

    def take(self) -> list[Lac | Entries]:
        """The changed LACs since the last call, by segment, after the entries that they confirm."""
        empty, self._empty = self._empty, {}
        moved, self._moved = self._moved, {}
        run, self._entries = self._entries, None
        messages: list[Lac | Entries] = [self._lac(event) for _, event in sorted(empty.items())]
        if run is not None and run.payloads:
            lengths = tuple(map(len, run.payloads))
            messages.append(Entries(self.request, run.segment, run.first, lengths, 0, b"".join(run.payloads)))
        messages.extend(self._lac(event) for _, event in sorted(moved.items()))
        return messages

    def _lac(self, event: LacMoved) -> Lac:
        return Lac(self.request, event.segment, event.lac, event.ended)


class ConsecutiveEntries:
    """Consecutive entries of a segment from `first` on; without payloads if they are too large to be sent. Shared by
    subscribers, so never changed."""

    __slots__ = ("bytes", "first", "payloads", "segment")

    def __init__(self, segment: int, first: int, payloads: tuple[bytes, ...], size: int) -> None:
        self.segment = segment
        self.first = first
        self.payloads = payloads
        self.bytes = size

    def followed_by(self, other: ConsecutiveEntries) -> ConsecutiveEntries:
        """Both as one, or the later one alone if they are not adjacent."""
        size = self.bytes + other.bytes
        if self.segment == other.segment and size > ENTRIES_BYTES_MAX:
            return ConsecutiveEntries(self.segment, self.first, (), size)
        if (self.segment, self.first + len(self.payloads)) != (other.segment, other.first):
            return other
        return ConsecutiveEntries(self.segment, self.first, self.payloads + other.payloads, size)


def _run_of(event: LacMoved) -> ConsecutiveEntries | None:
    """The entries confirmed with a LAC; None if it has none."""
    entries = event.entries
    if not entries:
        return None
    size = sum(len(part) for parts in entries for part in parts)
    payloads = () if size > ENTRIES_BYTES_MAX else tuple(b"".join(parts) for parts in entries)
    return ConsecutiveEntries(event.segment, event.lac + 1 - len(entries), payloads, size)


class LacSubscriptions:
    """All subscriptions of this process, by stream, and the newest LAC of each stream owned here."""

    def __init__(self) -> None:
        self._tails: dict[str, dict[LacSubscription, None]] = {}  # in order of subscription
        self._newest: dict[str, tuple[LacMoved, ...]] = {}  # of the last segments; mostly one, so a tuple saves memory

    def __len__(self) -> int:
        return sum(len(tails) for tails in self._tails.values())

    def moved(self, event: LacMoved) -> None:
        """A stream's owner moved the LAC of a segment; -1 for one it has just begun."""
        bare = LacMoved(event.stream, event.segment, event.lac, event.ended) if event.entries else event
        newest = [known for known in self._newest.get(event.stream, ()) if known.segment != event.segment]
        if not _ended_empty(event):  # nothing to send until the number is reused
            newest.append(bare)
        if len(newest) > SEGMENTS_KEPT:
            newest.remove(min(newest, key=_segment))
        self._newest[event.stream] = tuple(newest)
        tails = self._tails.get(event.stream)
        if tails:
            run = _run_of(event)
            for tail in tails:
                tail.note(bare, run if tail.listener.keeps_up else None)
                tail.listener.lac_moved(tail)

    def add(self, tail: LacSubscription) -> None:
        """Add a subscription, which first gets the present LACs."""
        self._tails.setdefault(tail.stream, {})[tail] = None
        for event in self._newest.get(tail.stream, ()):
            tail.note(event)
            tail.listener.lac_moved(tail)

    def has(self, stream: str) -> bool:
        """Whether the stream has subscribers."""
        return stream in self._tails

    def next_position(self, stream: str) -> tuple[int, int, int] | None:
        """The first position of a stream that is not confirmed yet; None if it is not served here."""
        newest = self._newest.get(stream)
        if not newest:
            return None
        last = max(newest, key=_segment)
        return last.segment, last.lac + 1, 0

    def remove(self, tail: LacSubscription) -> None:
        tails = self._tails.get(tail.stream)
        if tails is not None:
            tails.pop(tail, None)
            if not tails:
                del self._tails[tail.stream]

    def end(self, stream: str, error: Callable[[], DLogError]) -> None:
        """The stream is not owned here any more: end its subscriptions with `error`."""
        self._newest.pop(stream, None)
        for tail in self._tails.pop(stream, ()):
            tail.listener.tail_ended(tail, error())


def _segment(event: LacMoved) -> int:
    return event.segment


def _ended_empty(event: LacMoved) -> bool:
    """Whether the segment's location is and stays empty."""
    return event.ended and event.lac == NO_ENTRY
