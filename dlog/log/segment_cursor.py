"""A reader's state of one segment at one location: its LAC, the requests in flight, and the errors of its store."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.errors import DLogError, Remedy
from dlog.log.contents import EntryContents, read_contents
from dlog.log.list_requests import ListRequests
from dlog.log.reader_output import ReaderOutput
from dlog.log.seeking import SeekTarget
from dlog.log.source_messages import (
    EntriesGot,
    GetEntries,
    Locate,
    Located,
    SegmentLacSeen,
    SourceQuestion,
    WatchLac,
)
from dlog.model.dlsn import DLSN
from dlog.model.ids import NO_ENTRY, EntryId
from dlog.model.segment import Segment
from dlog.stores.contract import SegmentCorruptError

Buffer = bytes | bytearray | memoryview

_LAC_UNKNOWN = -2
_GONE_MAX = 3  # a segment's store must answer that often that it is gone before its entries count as lost


@dataclass(frozen=True, slots=True)
class Denial:
    """The store's last error that listed entries are missing or damaged, and the number of lists requested before it.

    count: consecutive such errors, each after a newer list.
    """

    error: DLogError
    lists_sent: int
    count: int


class SegmentCursor:
    """Reads one segment at one location; the next segment, and the segment at its next location, get another cursor.

    has_taken: entries of the segment were received; the position does not show it, since a reader may start within a
    segment. lac_is_final: `lac` is the segment's last entry. is_void: the segment ended empty, its number will be
    reused at another location.
    """

    def __init__(self, segment: Segment, *, has_taken: bool) -> None:
        self.segment = segment
        self.has_taken = has_taken
        self.lac = _LAC_UNKNOWN
        self.lac_is_final = False
        self.is_void = False
        self._asked: GetEntries | Locate | None = None  # in flight
        self._watched: WatchLac | None = None  # in flight
        self._denial: Denial | None = None  # None: entries came since

    @property
    def is_asking(self) -> bool:
        """Whether a request for entries, or to locate one, is in flight."""
        return self._asked is not None

    @property
    def is_lac_known(self) -> bool:
        """Whether entries may be requested; a completed segment is read to its end in its store."""
        return self.lac != _LAC_UNKNOWN and (self.lac_is_final or not self.segment.completed)

    def is_read_at(self, position: DLSN) -> bool:
        """Whether the segment is delivered to its end by a reader at this position."""
        return self.lac_is_final and position.entry > self.lac

    def update(self, listed: Segment) -> None:
        """Take the segment from a newer list that has it at the same location."""
        if self.segment.completed:
            return  # of a completed segment only truncation can change what matters here
        if listed.completed:
            self._watched, self.is_void = None, False  # request its end again, also if it ended empty
        self.segment = listed

    def request_entries(self, first: EntryId, last: EntryId, max_bytes: int, out: ReaderOutput) -> None:
        self._asked = GetEntries(self.segment, first, last, max_bytes)
        out.ask(self._asked)

    def request_location(self, target: SeekTarget, first: EntryId, last: EntryId, out: ReaderOutput) -> None:
        self._asked = Locate(self.segment, target, first, last)
        out.ask(self._asked)

    def request_lac(self, out: ReaderOutput) -> None:
        if self._watched is None and not self.is_void:
            self._watched = WatchLac(self.segment, EntryId(self.lac))
            out.ask(self._watched)

    def drop_requests(self) -> None:
        self._asked = self._watched = None

    def forget_lac(self) -> None:
        """The known LAC may be too old. The store's errors still count."""
        self.drop_requests()
        self.lac, self.lac_is_final = _LAC_UNKNOWN, False

    def note_lac(self, seen: SegmentLacSeen) -> None:
        if (seen.number, seen.location) != (self.segment.number, self.segment.location):
            return
        self._watched = None
        if self.lac_is_final:
            return
        self.lac = max(self.lac, seen.lac)
        self.is_void = seen.ended and self.lac == NO_ENTRY and not self.segment.completed
        self.lac_is_final = seen.ended and not self.is_void

    def take(self, got: EntriesGot) -> bool:
        """Whether these entries answer the request in flight; then it is over."""
        asked = self._asked
        if not isinstance(asked, GetEntries) or got.first != asked.first:
            return False
        if (got.number, got.location) != (asked.segment.number, asked.segment.location):
            return False
        self._asked = self._denial = None
        self.has_taken = True
        return True

    def take_location(self, located: Located) -> bool:
        """Whether this answers the request in flight; then it is over."""
        if located.question != self._asked:
            return False
        self._asked = None
        return True

    def note_failed(self, question: SourceQuestion, error: DLogError, lists: ListRequests) -> bool:
        """Record that a request failed. Returns whether it was the one in flight, which is to be repeated then. While a
        segment is in progress its store may not know it yet, or not any more: of failed LAC requests for such a segment
        only damage is held against it."""
        if question == self._asked:
            self._asked, is_of_store = None, True
        elif isinstance(question, WatchLac) and question == self._watched:
            is_damage = isinstance(error, SegmentCorruptError)
            self._watched, is_of_store = None, question.segment.completed or is_damage
        else:
            return False
        if is_of_store and error.remedy is not Remedy.RETRY:
            self._note_denial(error, lists)
        return True

    def _note_denial(self, error: DLogError, lists: ListRequests) -> None:
        """Entries are missing or damaged. Most likely they are truncated, which a list that is read now will show."""
        last = self._denial
        if last is None or lists.newest > last.lists_sent:
            count = 1 if last is None else last.count + 1
            self._denial = Denial(error, lists.sent, count if error.remedy is Remedy.STOP else _GONE_MAX)

    def damage(self, lists: ListRequests) -> DLogError | None:
        """Why entries are lost, if they are: the newest list, which has the segment here, is newer than the error.
        SegmentTruncatedError: they are not damaged, their store has removed them."""
        denial = self._denial
        if denial is None or denial.count < _GONE_MAX or lists.newest <= denial.lists_sent:
            return None
        return denial.error

    def contents(self, payload: Buffer) -> EntryContents:
        return read_contents(payload, enveloped=self.segment.version >= 4)

    def is_control_only(self, payload: Buffer) -> bool:
        """Whether an entry has nothing for a reader. Usually cheap: the flags of its first record show that it has."""
        is_plain = self.segment.version >= 4 and len(payload) > 20 and not payload[4] & 3
        if is_plain and not payload[20] & 1:  # low byte of the first record's flags
            return False
        return self.contents(payload).is_control_only
