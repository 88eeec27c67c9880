"""Finds where a reader starts: the segment from the list, the position within it from its LAC or by a search.

The store narrows the search first, as far as its index says; a binary search reads entries among those that are left.
"""

from __future__ import annotations

from dlog.log.contents import EntryContents
from dlog.log.reader_output import ReaderOutput
from dlog.log.seeking import BinarySearch, SeekTarget
from dlog.log.segment_cursor import SegmentCursor
from dlog.model.dlsn import DLSN, of
from dlog.model.ids import EntryId
from dlog.model.segment import StreamMetadata, Truncation
from dlog.wire.proxy import Read, Start


class StartPosition:
    """The start of a reader, until its position is decided. The record of a txid or time is found in that entry later.

    wanted: the requested DLSN, until it is known that the stream reaches that far. is_after_lac: the position is after
    the LAC of its segment, which is not known yet.
    """

    def __init__(self, read: Read, target: SeekTarget | None) -> None:
        self.wanted: DLSN | None = None
        self.is_after_lac = False
        self._read = read
        self._target = target
        self._search: BinarySearch | None = None

    @property
    def is_of_tail(self) -> bool:
        """Whether the tail was requested: the reader has no position before it knows the LAC."""
        return self._read.start is Start.TAIL

    def choose(self, stream: StreamMetadata, position: DLSN) -> DLSN | None:
        """The position as far as the list shows it; it may need the LAC and entries. `position` if there is no segment
        yet; None if it is truncated."""
        segments = stream.segments
        match self._read.start:
            case Start.START:
                return stream.first_dlsn if segments else position
            case Start.TAIL:
                self.is_after_lac = bool(segments)
                return of(segments[-1].number, 0, 0) if segments else position
            case Start.DLSN:
                return self._choose_dlsn(stream, position)
        assert self._target is not None
        found = self._target.segment_of(stream)
        if found is not None:
            return found.first_dlsn
        return of(segments[-1].number + 1, 0, 0) if segments else position

    def _choose_dlsn(self, stream: StreamMetadata, position: DLSN) -> DLSN | None:
        dlsn, first = of(*self._read.value), stream.first_dlsn
        self.wanted, self.is_after_lac = None, False
        if dlsn < first == of(1, 0, 0):
            return first if stream.segments else position  # nothing is truncated
        if dlsn < first and (stream.is_sealed or stream.is_number_final(dlsn.segment)):
            return None
        self.wanted = dlsn
        last = stream.segments[-1] if stream.segments else None
        if last is not None and dlsn.segment > last.number and not last.completed:
            self.is_after_lac = True  # the tail of the last segment decides whether the stream reaches that far
            return position._replace(segment=last.number)
        entry, slot = max(0, dlsn.entry), max(0, dlsn.slot)
        segment = stream.segment(dlsn.segment)
        if segment is not None and segment.completed and dlsn.entry == segment.last_entry and dlsn > segment.last_dlsn:
            entry, slot = entry + 1, 0
        return of(dlsn.segment, entry, slot)

    def end_if_beyond(self, stream: StreamMetadata, cursor: SegmentCursor | None) -> DLSN | None:
        """The end of the stream (the DLSN after its last record) if the requested DLSN is beyond it, else None.

        cursor: of the segment of the position; None if the position is after the last that is listed.
        """
        if self.wanted is None:
            return None
        if not stream.segments:
            end = of(stream.max_segment + 1, 0, 0)
        elif self.wanted.segment < stream.segments[-1].number:
            return None  # later segments follow
        elif cursor is None or (self.wanted.segment > cursor.segment.number and cursor.lac_is_final):
            end = of(stream.segments[-1].number + 1, 0, 0)
        else:
            end = of(cursor.segment.number, cursor.lac + 1, 0)
        return end if self.wanted > end else None

    def is_after(self, cursor: SegmentCursor, position: DLSN) -> bool:
        """Whether the requested DLSN is after the last entry of its segment, which has ended."""
        return self._read.start is Start.DLSN and cursor.is_read_at(position)

    def continue_search(self, cursor: SegmentCursor, out: ReaderOutput) -> bool:
        """Send the next request of the search, for `narrow` or `handle`; False: it is done, or none is needed."""
        if self._target is None:
            return False
        if self._search is None:
            segment = cursor.segment
            low = EntryId(segment.min_entry if segment.truncation is Truncation.PARTIAL else 0)
            if low <= cursor.lac:
                cursor.request_location(self._target, low, EntryId(cursor.lac), out)
                return True
            self.narrow(low, EntryId(cursor.lac))
        assert self._search is not None
        if self._search.is_done:
            return False
        middle = EntryId(self._search.middle)
        cursor.request_entries(middle, middle, 1, out)
        return True

    def narrow(self, first: EntryId, last: EntryId) -> None:
        """Search among these entries only: those that the store has left."""
        assert self._target is not None
        self._search = BinarySearch(self._target, first, last)

    def handle(self, contents: EntryContents) -> None:
        assert self._search is not None
        self._search.handle(contents)

    def decide(self, cursor: SegmentCursor, position: DLSN) -> DLSN:
        """The position, now that the LAC is known and the search is done."""
        if self.is_after_lac:  # the LAC may be older than the truncation
            return max(of(position.segment, cursor.lac + 1, 0), cursor.segment.first_dlsn)
        if self._search is not None and self._search.low > position.entry:
            return of(position.segment, self._search.low, 0)
        return position
