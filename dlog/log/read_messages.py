"""What a reader's machine (dlog/log/reading.py) says to the source of its stream, and what it hears.

The source is a peer like any other: behind it stand the stream's metadata, a cache of entries and the segment stores
(actors), or a model of them (simulation). Its duties:

- answer every question once, with the answer that names it; a lost source is `PeerLost(SOURCE)`;
- after the first `GetStream` push a new `StreamSeen`, not fresh, whenever the stream's metadata changed;
- what it says is heard in the order it was said, and a list of segments is never older than one before it;
- it may push `LacSeen` unasked, whenever it learns that the LAC of a segment moved or that a segment ended;
- `lac` is what is confirmed for good: an entry above it may still vanish and is never asked for.

The other peer, READER, is whom we read for: it sends dlog.wire.proxy.Read, then Credit and Cancel, and hears Entries
and ReaderEvent, all of them the wire values themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dlog.errors import DLogError
from dlog.model.ids import EntryId, SegmentNumber
from dlog.model.segment import Segment, StreamMetadata
from dlog.values import value

Buffer = bytes | bytearray | memoryview

SOURCE = "source"
READER = "reader"


# ---- questions to the source ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GetStream:
    """The stream's metadata, answered by StreamSeen; fresh: read it anew instead of what a watch keeps current."""

    fresh: bool = False


@value
class GetEntries:
    """Entries `first`..`last` of a segment, all at or below its LAC; answered by EntriesGot or EntriesFailed.

    max_bytes: enough once the payloads sum up to it; the first entry is always wanted, whatever its size.
    """

    segment: Segment
    first: EntryId
    last: EntryId
    max_bytes: int


@value
class WatchLac:
    """Tell me (LacSeen) once the LAC of this segment is above `known`, or it ended.

    Of a completed one the end is told, as its store has it and whatever the list says.
    """

    segment: Segment
    known: EntryId


# ---- what the source says -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamSeen:
    """Metadata as it stands; None: there is no such stream (any more).

    fresh: it was read after the question that this answers. False for what is pushed, and for what is only remembered
    because metadata is out of reach.
    """

    metadata: StreamMetadata | None
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class EntriesGot:
    """At least one entry, contiguous from `first`; may be fewer than asked. Payloads are as stored (enveloped).

    Many readers may hear the same one: what they send on is made once, by the first of them.
    """

    number: SegmentNumber
    place: str
    first: EntryId
    payloads: tuple[Buffer, ...]
    _made: list[tuple[tuple[int, ...], Buffer]] = field(default_factory=list, repr=False, compare=False)

    def joined(self) -> tuple[tuple[int, ...], Buffer]:
        """The payloads' lengths, and all of them in a row."""
        if not self._made:
            payloads = self.payloads
            body = payloads[0] if len(payloads) == 1 else b"".join(payloads)
            self._made.append((tuple(map(len, payloads)), body))
        return self._made[0]

    def without(self, count: int) -> EntriesGot:
        """What is left behind the first `count` entries; may be nothing."""
        if not count:
            return self
        return EntriesGot(self.number, self.place, EntryId(self.first + count), self.payloads[count:])


@value
class LacSeen:
    """Segment `number` at `place` is confirmed up to `lac`; ended: nothing comes after it there."""

    number: SegmentNumber
    place: str
    lac: EntryId
    ended: bool = False


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """The question failed. Retryable errors (Remedy.RETRY) are asked again; others end the reader with an event."""

    question: GetStream | GetEntries | WatchLac
    error: DLogError


SourceQuestion = GetStream | GetEntries | WatchLac
SourceReply = StreamSeen | EntriesGot | LacSeen | SourceFailed
