"""Messages between a reader's state machine (dlog/log/reading.py) and the source of its stream.

The source is a peer like any other: it stands for the stream's metadata, a cache of entries and the segment stores
(actors), or for a model of them (simulation). Its duties:

- it answers every request once, with a reply that names the request; a lost source is `PeerLost(SOURCE)`;
- after the first `GetStream` it sends a `StreamSeen`, not fresh, whenever the stream's metadata changed;
- messages arrive in the order in which it sent them, and no segment list is older than an earlier one;
- it may send `SegmentLacSeen` without a request when the LAC of a segment moved or a segment ended;
- entries up to `lac` are durable for good; an entry above it may still vanish and is never requested.

The other peer, READER, is the client: it sends dlog.wire.proxy.Read, then Credit and Cancel, and receives Entries and
ReaderEvent; all of these are the wire values themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dlog.errors import DLogError
from dlog.log.seeking import SeekTarget
from dlog.model.ids import EntryId, SegmentNumber
from dlog.model.segment import Location, Segment, StreamMetadata
from dlog.values import value

Buffer = bytes | bytearray | memoryview

SOURCE = "source"
READER = "reader"


# ---- requests to the source -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GetStream:
    """Ask for the stream's metadata; answered by StreamSeen. fresh: read it now, do not use the watched copy."""

    fresh: bool = False


@value
class GetEntries:
    """Ask for entries `first`..`last` of a segment, not above its LAC; answered by EntriesGot or SourceFailed.

    max_bytes: stop once the payloads reach it; the first entry is sent whatever its size.
    """

    segment: Segment
    first: EntryId
    last: EntryId
    max_bytes: int


@value
class Locate:
    """Ask the store which of the entries first..last, not above the LAC, a search for the target must look at; answered
    by Located or SourceFailed. See SegmentReader.locate."""

    segment: Segment
    target: SeekTarget
    first: EntryId
    last: EntryId


@value
class WatchLac:
    """Ask for a SegmentLacSeen once the LAC of this segment is above `known`, or the segment ended.

    For a completed segment: its end as its store knows it, whatever the list shows.
    """

    segment: Segment
    known: EntryId


# ---- messages from the source ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamSeen:
    """The stream's current metadata; None: there is no such stream (any more).

    fresh: it was read after the request that this answers. False if it was sent without a request, or is a remembered
    copy because metadata cannot be reached.
    """

    metadata: StreamMetadata | None
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class EntriesGot:
    """At least one entry, contiguous from `first`; may be fewer than requested. Payloads are as stored (enveloped).

    Many readers may get the same object: the bytes to send are joined once, by the first of them.
    """

    number: SegmentNumber
    location: Location
    first: EntryId
    payloads: tuple[Buffer, ...]
    _made: list[tuple[tuple[int, ...], Buffer]] = field(default_factory=list, repr=False, compare=False)

    def joined(self) -> tuple[tuple[int, ...], Buffer]:
        """The payloads' lengths, and the payloads joined."""
        if not self._made:
            payloads = self.payloads
            body = payloads[0] if len(payloads) == 1 else b"".join(payloads)
            self._made.append((tuple(map(len, payloads)), body))
        return self._made[0]

    def without(self, count: int) -> EntriesGot:
        """The rest after the first `count` entries; may be empty."""
        if not count:
            return self
        return EntriesGot(self.number, self.location, EntryId(self.first + count), self.payloads[count:])


@value
class Located:
    """The entries that are left, perhaps none: a binary search among first..last finds the target."""

    question: Locate
    first: EntryId
    last: EntryId


@value
class SegmentLacSeen:
    """Segment `number` at `location` is confirmed up to `lac`; ended: that is its last entry."""

    number: SegmentNumber
    location: Location
    lac: EntryId
    ended: bool = False


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """The request failed. The reader repeats it, or ends with an event if that cannot help."""

    question: SourceQuestion
    error: DLogError


SourceQuestion = GetStream | GetEntries | Locate | WatchLac
SourceReply = StreamSeen | EntriesGot | Located | SegmentLacSeen | SourceFailed
