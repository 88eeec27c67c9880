"""Who listens, on this proxy, to how far a stream is confirmed: read proxies, one subscription each.

The law of this room: a listener hears the newest LAC of every segment that moved, at most once a turn, and whether the
segment ended. What it has not taken yet is replaced, not queued, so a slow listener costs one number per segment. Only
that a segment ended empty is never replaced: its number may come again at another place, and whoever took the number
for the place must hear so before it hears the number again.

Before the LAC a listener is sent the entries that it confirms, where they are few and it keeps up: whoever reads at the
tail has them without asking a bookie. They are a courtesy, and any may be left out. Where many bytes are confirmed at a
time, asking for them costs little, and sending them would cost the owner the time in which it writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dlog.errors import DLogError
from dlog.events import LacMoved
from dlog.model.ids import NO_ENTRY
from dlog.wire.proxy import Entries, Lac

SEGMENTS_KEPT = 3  # whose LAC a new listener is told: the last, and those it may not know to be ended
ENTRIES_BYTES_MAX = 64 * 1024  # of entries that are sent with a LAC


class Listener(Protocol):
    """A session that relays to its connection."""

    @property
    def keeps_up(self) -> bool:
        """Whether it takes what is said as soon as it is said."""
        ...

    def lac_moved(self, tail: Tail) -> None:
        """Something is in `tail.take()`."""
        ...

    def tail_ended(self, tail: Tail, error: DLogError) -> None:
        """Nothing more comes: the stream is not ours (any more), or gone."""
        ...


class Tail:
    """One subscription; `request` is its number on its connection."""

    __slots__ = ("_empty", "_entries", "_moved", "listener", "request", "stream")

    def __init__(self, listener: Listener, request: int, stream: str) -> None:
        self.listener = listener
        self.request = request
        self.stream = stream
        self._moved: dict[int, LacMoved] = {}
        self._empty: dict[int, LacMoved] = {}  # of segments that ended empty; told before what moved
        self._entries: Run | None = None  # that were confirmed since the last call of take, in one segment

    def note(self, event: LacMoved, run: Run | None = None) -> None:
        """Keep the newest of each segment. run: the entries that were confirmed with it, if they may be sent."""
        if _ended_empty(event):
            self._moved.pop(event.segment, None)
            self._empty[event.segment] = event
        else:
            self._moved[event.segment] = event
        if run is not None:
            self._entries = run if self._entries is None else self._entries.followed_by(run)

    def take(self) -> list[Lac | Entries]:
        """What moved since the last call, in the order of segments; before it the entries that it confirms."""
        empty, self._empty = self._empty, {}
        moved, self._moved = self._moved, {}
        run, self._entries = self._entries, None
        told: list[Lac | Entries] = [self._lac(event) for _, event in sorted(empty.items())]
        if run is not None and run.payloads:
            lengths = tuple(map(len, run.payloads))
            told.append(Entries(self.request, run.segment, run.first, lengths, 0, b"".join(run.payloads)))
        told.extend(self._lac(event) for _, event in sorted(moved.items()))
        return told

    def _lac(self, event: LacMoved) -> Lac:
        return Lac(self.request, event.segment, event.lac, event.ended)


class Run:
    """Consecutive entries of a segment from `first` on; without payloads if they are too many to be sent. Shared by
    those who are told, so never changed."""

    __slots__ = ("bytes", "first", "payloads", "segment")

    def __init__(self, segment: int, first: int, payloads: tuple[bytes, ...], size: int) -> None:
        self.segment = segment
        self.first = first
        self.payloads = payloads
        self.bytes = size

    def followed_by(self, other: Run) -> Run:
        """Both as one, or the later one alone if they do not touch."""
        size = self.bytes + other.bytes
        if self.segment == other.segment and size > ENTRIES_BYTES_MAX:
            return Run(self.segment, self.first, (), size)
        if (self.segment, self.first + len(self.payloads)) != (other.segment, other.first):
            return other
        return Run(self.segment, self.first, self.payloads + other.payloads, size)


def _run_of(event: LacMoved) -> Run | None:
    """The entries that were confirmed with a LAC; None if it came without."""
    entries = event.entries
    if not entries:
        return None
    size = sum(len(part) for parts in entries for part in parts)
    payloads = () if size > ENTRIES_BYTES_MAX else tuple(b"".join(parts) for parts in entries)
    return Run(event.segment, event.lac + 1 - len(entries), payloads, size)


class Tails:
    """All subscriptions of this process, by stream, and the newest LAC of each stream owned here."""

    def __init__(self) -> None:
        self._tails: dict[str, dict[Tail, None]] = {}  # in the order they came
        self._newest: dict[str, tuple[LacMoved, ...]] = {}  # of the last segments; of one, mostly, which weighs less so

    def __len__(self) -> int:
        return sum(len(tails) for tails in self._tails.values())

    def moved(self, event: LacMoved) -> None:
        """The owner of a stream says how far it is confirmed; of a segment it has just begun, -1."""
        bare = LacMoved(event.stream, event.segment, event.lac, event.ended) if event.entries else event
        newest = [told for told in self._newest.get(event.stream, ()) if told.segment != event.segment]
        if not _ended_empty(event):  # until the number comes again there is nothing to say of it
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

    def add(self, tail: Tail) -> None:
        """Begin with where the stream stands."""
        self._tails.setdefault(tail.stream, {})[tail] = None
        for event in self._newest.get(tail.stream, ()):
            tail.note(event)
            tail.listener.lac_moved(tail)

    def has(self, stream: str) -> bool:
        """Whether somebody listens to this stream."""
        return stream in self._tails

    def place(self, stream: str) -> tuple[int, int, int] | None:
        """The first place of a stream owned here that is not confirmed; None if it is not served."""
        newest = self._newest.get(stream)
        if not newest:
            return None
        last = max(newest, key=_segment)
        return last.segment, last.lac + 1, 0

    def remove(self, tail: Tail) -> None:
        tails = self._tails.get(tail.stream)
        if tails is not None:
            tails.pop(tail, None)
            if not tails:
                del self._tails[tail.stream]

    def end(self, stream: str, error: Callable[[], DLogError]) -> None:
        """The stream is not owned here any more: its listeners look elsewhere."""
        self._newest.pop(stream, None)
        for tail in self._tails.pop(stream, ()):
            tail.listener.tail_ended(tail, error())


def _segment(event: LacMoved) -> int:
    return event.segment


def _ended_empty(event: LacMoved) -> bool:
    """Whether there is nothing where the segment lay, and never will be."""
    return event.ended and event.lac == NO_ENTRY
