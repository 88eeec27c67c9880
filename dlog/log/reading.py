"""Reads a stream: one state machine per reader, from a position across segments up to the tail, and following it.

Invariants:
- a reader gets a contiguous run of confirmed entries, or an event with the reason why not;
- no entry above a segment's LAC is requested; the LAC comes from the source. For a completed segment it is the end in
  its store, which the list may show wrongly (a fenced Java writer completes its segment at the last entry that it knew
  to be acknowledged);
- a segment that was moved to another store is read there from the same position;
- a reader ends with a typed event (end of stream, truncation, damage, deletion, a position beyond the end), never
  silently;
- that the stream is another incarnation than the position's, or ends before the position, is reported only from a list
  and a LAC that were read after the reader was opened;
- damage is reported only if a list that was read after the store's error still has the segment at that location.

Facts: Received(READER, proxy.Read | Credit | Cancel), Received(SOURCE, ...) (dlog/log/source_messages.py),
PeerLost(SOURCE), TimerFired. Sends requests to SOURCE, proxy.Entries and ReaderEvent to READER. Once `has_ended`, it
can be discarded.

Source: DistributedLog's readers; positions by txid and time are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dlog.errors import DamagedError, DLogError, MetadataWentBackError, Remedy, StreamNotFoundError
from dlog.log.contents import EntryContents, read_contents
from dlog.log.seeking import BinarySearch, SeekTarget
from dlog.log.source_messages import (
    READER,
    SOURCE,
    EntriesGot,
    GetEntries,
    GetStream,
    SegmentLacSeen,
    SourceFailed,
    SourceQuestion,
    StreamSeen,
    WatchLac,
)
from dlog.machine import CancelTimer, Effect, Fact, PeerLost, Received, Send, SetTimer, TimerFired
from dlog.model.dlsn import DLSN, of
from dlog.model.ids import NO_ENTRY, EntryId
from dlog.model.segment import Segment, StreamMetadata, Truncation
from dlog.options import KiB, option
from dlog.wire.proxy import Cancel, Credit, Entries, Read, ReaderEvent, ReaderEventKind, Start

Buffer = bytes | bytearray | memoryview

RETRY_TIMER = ("retry",)
_LAC_UNKNOWN = EntryId(-2)
_GONE_MAX = 3  # a segment's store must answer that often that it is gone before its entries count as lost


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """Options of one reader."""

    chunk_bytes: int = option(512 * KiB, sim=(1, 4 * KiB))  # of entries in one request
    retry_after_s: float = option(0.1, sim=(0.001, 0.2))  # after a failed request


def _may_pass(error: DLogError) -> bool:
    return error.remedy is Remedy.RETRY


class StreamReaderMachine:
    """Reads one stream for one reader.

    position: the next DLSN to read. Bytes delivered exceed the credit by at most one entry.
    """

    def __init__(self, options: ReadingOptions | None = None) -> None:
        self.has_ended = False
        self._options = options or ReadingOptions()
        self._read: Read | None = None
        self._credit = 0
        self._stream: StreamMetadata | None = None
        self._number = 0  # of the current segment; 0: the first that appears
        self._segment: Segment | None = None  # None: it is not listed yet
        self._entry = 0
        self._slot = 0
        self._lac = int(_LAC_UNKNOWN)
        self._lac_is_final = False  # it is the segment's last entry
        self._has_taken = False  # entries of the current segment were received from its current location
        self._is_void = False  # the segment ended empty: its number will be reused at another location
        self._is_placed = False  # the start position is decided, STARTED was sent
        self._seek_target: SeekTarget | None = None  # drop records until one matches
        self._halving: BinarySearch | None = None
        self._from_tail = False
        self._stop: tuple[int, int] | None = None  # segment and entry after which a reader that does not follow ends
        self._stop_segment = 0
        self._is_sure = False  # a list has come that was read after the reader was opened
        self._wanted: DLSN | None = None  # start position, until it is known that the stream reaches that far
        self._is_looking = False  # a request for a fresh list is in flight
        self._caught_up = False
        self._asked: GetEntries | None = None  # in flight
        self._watched: WatchLac | None = None  # in flight
        self._gone = 0  # consecutive errors for listed entries that are gone, each after a newer list
        self._denial: DLogError | None = None  # the last of these errors
        self._looks = 0  # requests for fresh lists in flight
        self._looks_old = 0  # of these: sent before the last error
        self._has_looked = False  # a fresh list came that was requested after the last error
        self._retrying = False
        self._out: list[Effect] = []

    @property
    def position(self) -> DLSN:
        return of(self._number, self._entry, self._slot)

    # ---- facts ------------------------------------------------------------------------------------------------------

    def handle(self, fact: Fact) -> list[Effect]:
        self._out = []
        if self.has_ended:
            return []
        match fact:
            case Received(_, EntriesGot() as got):
                self._note_entries(got)
            case Received(_, SegmentLacSeen() as seen):
                self._note_lac(seen)
            case Received(_, Credit(_, more)):
                self._credit += more
            case Received(_, Read() as read):
                self._open(read)
            case Received(_, Cancel()):
                self._end()
            case Received(_, StreamSeen(stream, fresh)):
                self._note_stream(stream, fresh)
            case Received(_, SourceFailed(question, error)):
                self._note_failed(question, error)
            case PeerLost(peer) if peer == READER:
                self._end()
            case PeerLost():
                self._asked = self._watched = None
                self._is_looking = False
                self._looks = self._looks_old = 0
                self._retry_later()
            case TimerFired():
                self._retrying = self._is_looking = False
                self._look_again()
            case _:
                raise AssertionError(f"not a fact of this machine: {fact}")
        self._settle()
        return self._out

    def _open(self, read: Read) -> None:
        assert self._read is None, "a reader is opened once"
        self._read = read
        self._credit = read.credit
        if read.start in (Start.TXID, Start.TIME):
            self._seek_target = SeekTarget(read.start is Start.TIME, int(read.value))
        self._out.append(Send(SOURCE, GetStream()))

    # ---- metadata ---------------------------------------------------------------------------------------------------

    def _note_stream(self, stream: StreamMetadata | None, fresh: bool) -> None:
        if stream is None:
            self._end_deleted()
            return
        if self._is_another(stream):
            if self._stream is not None or fresh:
                self._end_deleted(life=stream.incarnation)
            else:
                self._look_again()  # the remembered copy may be of the deleted incarnation
            return
        is_first, self._stream = self._stream is None, stream
        if is_first:
            self._choose_segment(stream)
        self._is_looking = self._is_looking and not fresh
        if fresh:
            self._note_look()
        if fresh and not self._is_sure:
            self._is_sure = True
            self._stop_segment = stream.segments[-1].number if stream.segments else 0
        if self._wanted is not None and not is_first:
            self._begin_again_at(stream, self._wanted)
        if not self.has_ended:
            self._follow_segment(stream)
        if not self.has_ended:
            self._judge_denial(stream)

    def _is_another(self, stream: StreamMetadata) -> bool:
        """Whether this is another incarnation than the one being read, or than the position's."""
        assert self._read is not None
        ours = self._stream.incarnation if self._stream is not None else self._read.incarnation
        return bool(ours) and stream.incarnation != ours

    def _choose_segment(self, stream: StreamMetadata) -> None:
        """Find the segment of the start position; the position within it may need its LAC and its entries."""
        assert self._read is not None
        segments = stream.segments
        self._stop_segment = segments[-1].number if segments else 0
        match self._read.start:
            case Start.START:
                self._begin_at_first(stream)
            case Start.TAIL:
                self._from_tail = bool(segments)
                self._number = segments[-1].number if segments else 0
            case Start.DLSN:
                self._begin_at(stream, of(*self._read.value))
            case _:
                assert self._seek_target is not None
                found = self._seek_target.segment_of(stream)
                if found is not None:
                    self._number, self._entry, self._slot = found.first_dlsn
                elif segments:
                    self._number = segments[-1].number + 1

    def _begin_at_first(self, stream: StreamMetadata) -> None:
        if stream.segments:
            self._number, self._entry, self._slot = stream.first_dlsn

    def _begin_at(self, stream: StreamMetadata, dlsn: DLSN) -> None:
        first = stream.first_dlsn
        if dlsn < first:
            if first <= of(1, 0, 0):
                self._begin_at_first(stream)  # nothing is truncated
            else:
                self._end_truncated(first)
            return
        self._wanted = dlsn
        last = stream.segments[-1] if stream.segments else None
        if last is not None and dlsn.segment > last.number and not last.completed:
            self._from_tail = True  # the tail of the last segment decides whether the stream reaches that far
            self._number = last.number
            return
        self._number, self._entry, self._slot = dlsn.segment, max(0, dlsn.entry), max(0, dlsn.slot)
        segment = stream.segment(dlsn.segment)
        if segment is not None and segment.completed and dlsn.entry == segment.last_entry and dlsn > segment.last_dlsn:
            self._entry, self._slot = self._entry + 1, 0

    def _begin_again_at(self, stream: StreamMetadata, dlsn: DLSN) -> None:
        """Look for the position again in a newer list; the known LAC may be as old as the previous list.

        The store's errors for the segment still count, unless the position is now in another segment.
        """
        number = self._number
        self._asked = self._watched = None
        self._lac, self._lac_is_final = int(_LAC_UNKNOWN), False
        self._wanted, self._from_tail = None, False
        self._begin_at(stream, dlsn)
        if self._number != number:
            self._segment = None

    def _follow_segment(self, stream: StreamMetadata) -> None:
        """Update the current segment from the list: it may have started, ended, been replaced, moved or truncated."""
        if self._number == 0 and stream.segments:
            self._begin_at_first(stream)
        segment = stream.segment(self._number)
        if segment is None and self._segment is not None and self._is_read:
            self._next_segment()
            segment = stream.segment(self._number)
        if segment is None and self._has_no_position and stream.has_lost(self._number):
            # the segment that was the last when this reader began is truncated: everything that is left was written
            # after it began
            self._number, self._from_tail, self._segment = 0, False, None
            self._begin_at_first(stream)
            segment = stream.segment(self._number)
        if segment is None:
            # an empty list does not show whether an in-progress segment was truncated or was empty: a Java writer drops
            # all empty ones, and reuses the first of their numbers
            is_told_later = not stream.segments and self._segment is not None and not self._segment.completed
            if self._number > 0 and stream.has_lost(self._number) and not (is_told_later and self._is_untouched):
                self._end_truncated(stream.first_dlsn)
            elif self._segment is not None and self._is_untouched:
                self._segment = None  # it was empty and is gone; its number is reused
                self._asked = self._watched = None
            return
        if self._is_cut_off(segment):
            return
        known = self._segment
        if known is None or known.location != segment.location:
            if known is not None and not self._is_untouched and not segment.is_move_of(known):
                self._end_damaged(DamagedError(f"segment {segment.number} was replaced by another while it was read"))
                return
            self._lac, self._lac_is_final, self._is_void = int(_LAC_UNKNOWN), False, False
            self._asked = self._watched = None
            self._gone = 0
        elif known.completed:
            return  # of a completed segment only truncation can change what matters here
        elif segment.completed:
            self._watched, self._is_void = None, False  # request its end again, also if it ended empty
        self._segment = segment

    @property
    def _is_untouched(self) -> bool:
        """Whether no entry was received from the current location. The position does not show it: a reader may start
        within a segment."""
        return not self._has_taken

    @property
    def _has_no_position(self) -> bool:
        """Whether this reader starts at the tail and has not sent STARTED."""
        assert self._read is not None
        return self._read.start is Start.TAIL and not self._is_placed

    @property
    def _is_read(self) -> bool:
        """Whether the current segment is delivered to its end."""
        return self._lac_is_final and self._entry > self._lac

    def _is_cut_off(self, segment: Segment) -> bool:
        """Whether the truncation point has passed this reader's position; if so, the reader ends. A reader that starts
        at the tail has no position before it knows the LAC: it is moved to the first record that is left."""
        assert self._stream is not None
        if self._from_tail or self.position >= segment.first_dlsn or self._is_read:
            return False
        if self._has_no_position:
            self._begin_at_first(self._stream)
            return False
        self._end_truncated(self._stream.first_dlsn)
        return True

    # ---- messages from the source -----------------------------------------------------------------------------------

    def _note_lac(self, seen: SegmentLacSeen) -> None:
        segment = self._segment
        if segment is None or (seen.number, seen.location) != (segment.number, segment.location):
            return
        self._watched = None
        if self._lac_is_final:
            return
        self._lac = max(self._lac, seen.lac)
        self._is_void = seen.ended and self._lac == NO_ENTRY and not segment.completed
        self._lac_is_final = seen.ended and not self._is_void

    def _note_entries(self, got: EntriesGot) -> None:
        asked = self._asked
        if asked is None or got.first != asked.first:
            return
        if (got.number, got.location) != (asked.segment.number, asked.segment.location):
            return
        self._asked = None
        self._gone = 0
        self._has_taken = True
        try:
            if self._halving is not None:
                self._halving.hear(self._contents(got.payloads[0]))
            else:
                self._deliver(got)
        except DamagedError as error:
            self._end_damaged(error)

    def _note_failed(self, question: SourceQuestion, error: DLogError) -> None:
        if isinstance(error, StreamNotFoundError):
            self._note_stream(None, True)
        elif isinstance(error, MetadataWentBackError) or (isinstance(question, GetStream) and not _may_pass(error)):
            self._end_damaged(error)
        elif isinstance(question, GetEntries) and question == self._asked:
            self._asked = None
            if error.remedy is not Remedy.RETRY:
                self._note_denial(error)
            self._retry_later()
        elif isinstance(question, WatchLac) and question == self._watched:
            self._watched = None
            if question.segment.completed and error.remedy is not Remedy.RETRY:
                self._note_denial(error)
            self._retry_later()
        elif isinstance(question, GetStream):
            self._is_looking = False
            self._looks, self._looks_old = max(0, self._looks - 1), max(0, self._looks_old - 1)
            self._retry_later()

    def _note_denial(self, error: DLogError) -> None:
        """Entries are missing or damaged. Most likely they are truncated, which a list that is read now will show."""
        if self._has_looked or not self._gone:
            self._gone = self._gone + 1 if error.remedy is Remedy.STOP else _GONE_MAX
            self._denial = error
            self._looks_old = self._looks
            self._has_looked = False

    def _note_look(self) -> None:
        """A fresh list has come; replies come in the order of the requests."""
        self._looks = max(0, self._looks - 1)
        if self._looks_old:
            self._looks_old -= 1
        else:
            self._has_looked = True

    def _judge_denial(self, stream: StreamMetadata) -> None:
        """End the reader as damaged if the list still has the segment whose entries are missing or damaged."""
        if self._gone < _GONE_MAX or not self._has_looked or self._segment is None:
            return
        named = stream.segment(self._number)
        if named is not None and named.location == self._segment.location:
            assert self._denial is not None
            self._end_damaged(self._denial)

    def _look_again(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._looks += 1
            self._out.append(Send(SOURCE, GetStream(fresh=True)))

    def _retry_later(self) -> None:
        if not self._retrying:
            self._retrying = True
            self._out.append(SetTimer(RETRY_TIMER, self._options.retry_after_s))

    # ---- settle -----------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Take steps until a reply must be awaited."""
        while not self.has_ended and self._stream is not None and not self._retrying and self._asked is None:
            segment = self._segment
            if segment is None:
                if not self._at_missing_segment(self._stream):
                    return
            elif self._lac == _LAC_UNKNOWN or (segment.completed and not self._lac_is_final):
                self._watch(segment)
                return
            elif self._wanted is not None:
                if not self._is_reached(self._stream, self._wanted):
                    return
            elif not self._is_placed and self._is_beyond_its_end():
                self._next_segment()
                self._follow_segment(self._stream)
            elif not self._is_placed:
                self._place(segment)
            elif (self._lac_is_final or self._number > self._stop_segment) and self._is_stop_in_doubt():
                self._look_again()
                return
            elif self._is_past_stop():
                self._end_caught_up()
            elif self._entry <= self._lac:
                self._ask(segment)
                return
            elif self._lac_is_final:
                if self._is_last_of_sealed(segment):
                    self._end_of_stream()
                    return
                self._next_segment()
                self._follow_segment(self._stream)
            else:
                self._tell_caught_up()
                self._watch(segment)
                return

    def _at_missing_segment(self, stream: StreamMetadata) -> bool:
        """The current segment is not listed (yet). Returns whether there is more to do now."""
        if self._wanted is not None and not self._is_reached(stream, self._wanted):
            return False
        if stream.is_sealed and (not stream.segments or self._number > stream.segments[-1].number):
            self._end_of_stream()
            return False
        if self._is_stop_in_doubt():
            self._look_again()
            return False
        if not self._is_placed:
            self._started()
        self._tell_caught_up()
        return False

    def _is_reached(self, stream: StreamMetadata, wanted: DLSN) -> bool:
        """Whether the stream reaches as far as the position. If not, and that is certain, the reader ends."""
        end = self._end_before(stream, wanted)
        if end is None or wanted <= end:
            self._wanted = None
            return True
        if self._is_sure:
            self._say(ReaderEventKind.BEYOND_END, end=list(end))
            self._end()
        else:
            self._look_again()
        return False

    def _end_before(self, stream: StreamMetadata, wanted: DLSN) -> DLSN | None:
        """The DLSN after the stream's last record, if that may be before this position; None: later segments follow."""
        if not stream.segments:
            return of(stream.max_segment + 1, 0, 0)
        last = stream.segments[-1].number
        if wanted.segment < last:
            return None
        is_at_its_end = wanted.segment > last and (self._number > last or self._lac_is_final)
        return of(last + 1, 0, 0) if is_at_its_end else of(last, self._lac + 1, 0)

    def _is_beyond_its_end(self) -> bool:
        """Whether the requested DLSN is after the last entry of its segment, which has ended."""
        assert self._read is not None
        return self._read.start is Start.DLSN and self._is_read

    def _place(self, segment: Segment) -> None:
        """Decide where in its segment the reader starts, now that the LAC is known."""
        if self._from_tail:
            self._from_tail = False
            self._entry, self._slot = self._lac + 1, 0
            if self.position < segment.first_dlsn:  # the LAC is older than the truncation
                self._number, self._entry, self._slot = segment.first_dlsn
        elif self._seek_target is not None:
            if self._halving is None:
                low = segment.min_entry if segment.truncation is Truncation.PARTIAL else 0
                self._halving = BinarySearch(self._seek_target, low, self._lac)
            if not self._halving.is_done:
                middle = EntryId(self._halving.middle)
                self._asked = GetEntries(segment, middle, middle, 1)
                self._out.append(Send(SOURCE, self._asked))
                return
            if self._halving.low > self._entry:
                self._entry, self._slot = self._halving.low, 0
            self._halving = None
            if self._entry <= self._lac:
                self._is_placed = True  # STARTED is sent when the record is found
                return
        self._started()

    def _started(self) -> None:
        """The start position is decided: report it, or later if a txid or time is sought that is not written yet."""
        self._is_placed = True
        if self._seek_target is None:
            self._say(ReaderEventKind.STARTED, dlsn=list(self.position), life=self._incarnation)

    @property
    def _incarnation(self) -> str:
        return self._stream.incarnation if self._stream is not None else ""

    def _is_stop_in_doubt(self) -> bool:
        """Whether a reader that does not follow would stop by a list that may be older than its opening.

        Segments with acknowledged records may have followed before it was opened: a fresh list is needed first.
        """
        assert self._read is not None
        is_there = self._stop is None and self._number >= self._stop_segment
        return is_there and not self._read.follow and not self._is_sure

    def _is_past_stop(self) -> bool:
        """Whether a reader that does not follow has passed the tail, as it was when it reached the last segment."""
        assert self._read is not None
        if self._read.follow:
            return False
        if self._stop is None and self._number >= self._stop_segment:
            self._stop = (self._number, self._lac if self._number == self._stop_segment else int(NO_ENTRY))
        return self._stop is not None and (self._number, self._entry) > self._stop and not self._is_sealed_end()

    def _is_sealed_end(self) -> bool:
        return self._segment is not None and self._lac_is_final and self._is_last_of_sealed(self._segment)

    def _is_last_of_sealed(self, segment: Segment) -> bool:
        stream = self._stream
        return stream is not None and stream.is_sealed and segment.number == stream.segments[-1].number

    def _watch(self, segment: Segment) -> None:
        if self._watched is None and not self._is_void:
            self._watched = WatchLac(segment, EntryId(self._lac))
            self._out.append(Send(SOURCE, self._watched))

    def _ask(self, segment: Segment) -> None:
        if self._credit > 0:
            room = min(self._credit, self._options.chunk_bytes)
            self._asked = GetEntries(segment, EntryId(self._entry), EntryId(self._lac), room)
            self._out.append(Send(SOURCE, self._asked))

    def _next_segment(self) -> None:
        self._number += 1
        self._has_taken = False
        self._gone = 0
        self._entry = self._slot = 0
        self._segment = None
        self._lac, self._lac_is_final, self._is_void = int(_LAC_UNKNOWN), False, False
        self._watched = None

    # ---- delivering -------------------------------------------------------------------------------------------------

    def _deliver(self, got: EntriesGot) -> None:
        first = self._entry
        for payload in got.payloads:
            if self._seek_target is None:
                break
            slot = self._seek_target.slot_in(self._contents(payload))
            if slot is not None:
                self._seek_target = None
                self._slot = max(slot, self._slot if self._entry == first else 0)
                self._started()
                break
            self._entry, self._slot = self._entry + 1, 0
        rest = got.without(self._entry - first)
        if rest.payloads:
            self._push(rest)

    def _push(self, got: EntriesGot) -> None:
        payloads = got.payloads
        assert self._read is not None and self._entry + len(payloads) - 1 <= self._lac, "never past the LAC"
        if not all(map(self._is_control_only, payloads)):
            lengths, body = got.joined()
            self._credit -= len(body)
            message = Entries(self._read.request, self._number, self._entry, lengths, self._slot, body)
            self._tell_if_behind(self._entry + len(payloads))
            self._out.append(Send(READER, message))
        self._entry, self._slot = self._entry + len(payloads), 0

    def _is_control_only(self, payload: Buffer) -> bool:
        """Whether an entry has nothing for a reader. Usually cheap: the flags of its first record show that it has."""
        assert self._segment is not None
        is_plain = self._segment.version >= 4 and len(payload) > 20 and not payload[4] & 3
        if is_plain and not payload[20] & 1:  # low byte of the first record's flags
            return False
        return self._contents(payload).is_control_only

    def _contents(self, payload: Buffer) -> EntryContents:
        assert self._segment is not None
        return read_contents(payload, enveloped=self._segment.version >= 4)

    # ---- events -----------------------------------------------------------------------------------------------------

    def _tell_if_behind(self, following: int) -> None:
        """Before entries are sent that do not reach the tail, as far as it is known: say how much follows them, and
        report the tail again when it is reached. A reader at the tail gets no such event. following: the entry after
        them."""
        assert self._stream is not None
        segments = max(0, self._stream.segments[-1].number - self._number) if self._stream.segments else 0
        entries = self._lac + 1 - following
        if segments or entries:
            self._caught_up = False
            self._say(ReaderEventKind.BEHIND, segments=segments, entries=None if segments else entries)

    def _tell_caught_up(self) -> None:
        assert self._read is not None
        if not self._read.follow:
            self._end_caught_up()
        elif not self._caught_up:
            self._caught_up = True
            self._say(ReaderEventKind.CAUGHT_UP, life=self._incarnation)

    def _end_caught_up(self) -> None:
        self._say(ReaderEventKind.CAUGHT_UP, life=self._incarnation)
        self._end()

    def _end_of_stream(self) -> None:
        if not self._is_placed or self._seek_target is not None:
            self._seek_target = None
            self._started()
        self._say(ReaderEventKind.END_OF_STREAM)
        self._end()

    def _end_deleted(self, **now: Any) -> None:
        """now: `incarnation` of the incarnation that has the name now, if there is one."""
        self._say(ReaderEventKind.DELETED, **now)
        self._end()

    def _end_truncated(self, first: DLSN) -> None:
        self._say(ReaderEventKind.TRUNCATED, first=list(first))
        self._end()

    def _end_damaged(self, error: DLogError) -> None:
        self._say(ReaderEventKind.DAMAGED, dlsn=list(self.position), message=error.message)
        self._end()

    def _say(self, kind: ReaderEventKind, **detail: Any) -> None:
        assert self._read is not None
        self._out.append(Send(READER, ReaderEvent(self._read.request, kind, detail)))

    def _end(self) -> None:
        self.has_ended = True
        self._out.append(CancelTimer(RETRY_TIMER))
