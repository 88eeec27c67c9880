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
- damage is reported only if a list that was read after the store's error still has the segment at that location;
- a segment that its store has removed by itself (SegmentTruncatedError) is reported as truncated, with the start of the
  next segment as the first position, and only once the list has it as completed: from then on no record is written
  before that position. A reader that starts at the tail goes on there.

Facts: Received(READER, proxy.Read | Credit | Cancel), Received(SOURCE, ...) (dlog/log/source_messages.py),
PeerLost(SOURCE), TimerFired. Sends requests to SOURCE, proxy.Entries and ReaderEvent to READER. Once `has_ended`, it
can be discarded.

Stages of one reader, each with its state: dlog/log/start_position.py, dlog/log/segment_cursor.py (of each segment),
dlog/log/stop_position.py.

Source: DistributedLog's readers; positions by txid and time are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dlog.errors import DamagedError, DLogError, MetadataWentBackError, Remedy, StreamNotFoundError
from dlog.log.list_requests import ListRequests
from dlog.log.reader_output import ReaderOutput
from dlog.log.seeking import SeekTarget
from dlog.log.segment_cursor import SegmentCursor
from dlog.log.source_messages import (
    READER,
    EntriesGot,
    GetStream,
    Located,
    SegmentLacSeen,
    SourceFailed,
    SourceQuestion,
    StreamSeen,
)
from dlog.log.start_position import StartPosition
from dlog.log.stop_position import StopPosition
from dlog.machine import CancelTimer, Effect, Fact, PeerLost, Received, SetTimer, TimerFired
from dlog.model.dlsn import of
from dlog.model.ids import EntryId, SegmentNumber
from dlog.model.segment import Segment, StreamMetadata
from dlog.options import KiB, option
from dlog.stores.contract import SegmentTruncatedError
from dlog.wire.proxy import Cancel, Credit, Read, ReaderEventKind, Start

RETRY_TIMER = ("retry",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """Options of one reader."""

    chunk_bytes: int = option(512 * KiB, sim=(1, 4 * KiB))  # of entries in one request
    retry_after_s: float = option(0.1, sim=(0.001, 0.2))  # after a failed request


class StreamReaderMachine:
    """Reads one stream for one reader.

    position: the next DLSN to read; in segment 0 as long as the list has had no segment.
    """

    def __init__(self, options: ReadingOptions | None = None) -> None:
        self.has_ended = False
        self.position = of(0, 0, 0)
        self._options = options or ReadingOptions()
        self._output = ReaderOutput()
        self._lists = ListRequests()
        self._stream: StreamMetadata | None = None
        self._incarnation = ""  # incarnation that is read; empty: any
        self._start: StartPosition | None = None  # until the position is decided
        self._seek_target: SeekTarget | None = None  # drop records until one matches; STARTED is sent then
        self._cursor: SegmentCursor | None = None  # of the position's segment; None: it is not listed yet
        self._stop: StopPosition | None = None  # None: this reader follows
        self._is_retrying = False

    # ---- facts ------------------------------------------------------------------------------------------------------

    def handle(self, fact: Fact) -> list[Effect]:
        if self.has_ended:
            return []
        self._output.effects = []
        match fact:
            case Received(_, EntriesGot() as got):
                self._note_entries(got)
            case Received(_, Located() as located):
                if self._start is not None and self._cursor is not None and self._cursor.take_location(located):
                    self._start.narrow(located.first, located.last)
            case Received(_, SegmentLacSeen() as seen):
                if self._cursor is not None:
                    self._cursor.note_lac(seen)
            case Received(_, Credit(_, more)):
                self._output.credit += more
            case Received(_, Read() as read):
                self._open(read)
            case Received(_, Cancel()):
                self._close()
            case Received(_, StreamSeen(stream, fresh)):
                self._note_stream(stream, fresh)
            case Received(_, SourceFailed(question, error)):
                self._note_failed(question, error)
            case PeerLost(peer) if peer == READER:
                self._close()
            case PeerLost():
                if self._cursor is not None:
                    self._cursor.drop_requests()
                self._lists.note_source_lost()
                self._retry_later()
            case TimerFired():
                self._is_retrying = self._lists.is_awaited = False
                self._look_again()
            case _:
                raise AssertionError(f"not a fact of this machine: {fact}")
        self._settle()
        return self._output.effects

    def _open(self, read: Read) -> None:
        assert self._start is None and self._stream is None, "a reader is opened once"
        if read.start in (Start.TXID, Start.TIME):
            self._seek_target = SeekTarget(read.start is Start.TIME, int(read.value))
        self._start = StartPosition(read, self._seek_target)
        self._stop = None if read.follow else StopPosition()
        self._incarnation = read.incarnation or ""
        self._output.open(read)
        self._output.ask(GetStream())

    # ---- metadata ---------------------------------------------------------------------------------------------------

    def _note_stream(self, stream: StreamMetadata | None, fresh: bool) -> None:
        if stream is None:
            self._end(ReaderEventKind.DELETED)
            return
        # another incarnation than the one being read, or than the position's
        if self._incarnation and stream.incarnation != self._incarnation:
            if self._stream is not None or fresh:
                self._end(ReaderEventKind.DELETED, incarnation=stream.incarnation)
            else:
                self._look_again()  # the remembered copy may be of the deleted incarnation
            return
        is_first, self._stream, self._incarnation = self._stream is None, stream, stream.incarnation
        if self._stop is not None and (is_first or (fresh and not self._lists.has_fresh)):
            self._stop.note_list(stream)
        if fresh:
            self._lists.note_list()
        if self._start is not None and (is_first or self._start.wanted is not None):
            self._choose_segment(stream, self._start)
        if not self.has_ended:
            self._follow_segment(stream)

    def _choose_segment(self, stream: StreamMetadata, start: StartPosition) -> None:
        """Find the segment of the start position, again in each newer list until the stream is known to reach it.

        The store's errors for the segment still count, unless the position is now in another segment.
        """
        position = start.choose(stream, self.position)
        if position is None:
            self._end_truncated(stream)
            return
        if position.segment != self.position.segment:
            self._cursor = None
        elif self._cursor is not None:
            self._cursor.forget_lac()  # it may be as old as the previous list
        self.position = position

    def _follow_segment(self, stream: StreamMetadata) -> None:
        """Update the current segment from the list: it may have started, ended, been replaced, moved or truncated."""
        start = self._start
        if self._has_read_segment and stream.segment(self.position.segment) is None:
            self._next_segment()
        is_lost = stream.segment(self.position.segment) is None and stream.has_lost(self.position.segment)
        if is_lost and start is not None and start.is_of_tail:
            # the segment that was the last when this reader began is truncated: everything that is left was written
            # after it began
            self.position, self._cursor = self.position._replace(segment=SegmentNumber(0)), None
            start.is_after_lac = False
        if self.position.segment == 0 and stream.segments:
            self.position = stream.first_dlsn
        listed, known = stream.segment(self.position.segment), self._cursor
        if listed is None:
            self._note_unlisted(stream)
        elif self._is_cut_off(stream, listed):
            self._end_truncated(stream)
        elif known is not None and known.segment.location == listed.location:
            known.update(listed)
            lost = known.damage(self._lists)
            if isinstance(lost, SegmentTruncatedError):
                self._note_removed(stream, listed)
            elif lost is not None:
                self._end_damaged(lost)
        elif known is not None and known.has_taken and not listed.is_move_of(known.segment):
            self._end_damaged(DamagedError(f"segment {listed.number} was replaced by another while it was read"))
        else:
            self._cursor = SegmentCursor(listed, has_taken=known is not None and known.has_taken)

    def _note_removed(self, stream: StreamMetadata, listed: Segment) -> None:
        """The store has removed the current segment. One in progress is waited for: its owner, or the next, ends it."""
        if not listed.completed:
            return
        if self._start is None or not self._start.is_of_tail:
            self._end(ReaderEventKind.TRUNCATED, first=list(of(listed.number + 1, 0, 0)))
            return
        self._start.is_after_lac = False
        self._next_segment()
        self._follow_segment(stream)

    def _note_unlisted(self, stream: StreamMetadata) -> None:
        """The current segment is not in the list: it may be truncated, it may have been empty, or it is still to come.

        An empty list may not show whether a segment was truncated or was empty. One that is known to have entries was
        truncated.
        """
        cursor, number = self._cursor, self.position.segment
        has_entries = cursor is not None and (cursor.has_taken or cursor.segment.completed)
        if number > 0 and stream.has_lost(number) and (has_entries or stream.is_number_final(number)):
            self._end_truncated(stream)
        elif cursor is not None and not cursor.has_taken:
            self._cursor = None  # it was empty and is gone; its number is reused

    @property
    def _has_read_segment(self) -> bool:
        """Whether the current segment is delivered to its end."""
        return self._cursor is not None and self._cursor.is_read_at(self.position)

    def _is_cut_off(self, stream: StreamMetadata, listed: Segment) -> bool:
        """Whether the truncation point has passed this reader's position. A reader that starts at the tail has no
        position before it knows the LAC: it is moved to the first record that is left."""
        start = self._start
        if self.position >= listed.first_dlsn or self._has_read_segment or (start is not None and start.is_after_lac):
            return False
        if start is not None and start.is_of_tail:
            self.position = stream.first_dlsn
            return False
        return True

    # ---- messages from the source -----------------------------------------------------------------------------------

    def _note_entries(self, got: EntriesGot) -> None:
        cursor = self._cursor
        if cursor is None or not cursor.take(got):
            return
        try:
            if self._start is not None:
                self._start.handle(cursor.contents(got.payloads[0]))
                return
            if self._seek_target is not None:
                got = self._skip_to(self._seek_target, cursor, got)
            if got.payloads:
                self._push(cursor, got)
        except DamagedError as error:
            self._end_damaged(error)

    def _note_failed(self, question: SourceQuestion, error: DLogError) -> None:
        is_of_list = isinstance(question, GetStream)
        if isinstance(error, StreamNotFoundError):
            self._note_stream(None, True)
        elif isinstance(error, MetadataWentBackError) or (is_of_list and error.remedy is not Remedy.RETRY):
            self._end_damaged(error)
        elif is_of_list:
            self._lists.note_answered()
            self._retry_later()
        elif self._cursor is not None and self._cursor.note_failed(question, error, self._lists):
            self._retry_later()

    def _look_again(self) -> None:
        if not self._lists.is_awaited:
            self._lists.note_sent()
            self._output.ask(GetStream(fresh=True))

    def _retry_later(self) -> None:
        if not self._is_retrying:
            self._is_retrying = True
            self._output.effects.append(SetTimer(RETRY_TIMER, self._options.retry_after_s))

    # ---- settle -----------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Take steps until a reply must be awaited."""
        while not self.has_ended and self._stream is not None and not self._is_retrying:
            if not self._step(self._stream):
                return

    def _step(self, stream: StreamMetadata) -> bool:
        """Take the next step: find the start, read the segment, and stop, go on to the next segment, or wait at the
        tail. Returns whether there may be more to do now."""
        cursor, stop, number = self._cursor, self._stop, self.position.segment
        if cursor is None:
            self._wait_for_segment(stream)
        elif cursor.is_asking:
            pass
        elif not cursor.is_lac_known:
            cursor.request_lac(self._output)
        elif self._start is not None:
            return self._step_to_start(stream, cursor, self._start)
        elif stop is not None and (cursor.lac_is_final or number > stop.last_segment) and self._is_stop_in_doubt():
            self._look_again()
        elif stop is not None and stop.is_passed(self.position, cursor.lac) and not self._is_at_end(stream, cursor):
            self._report_caught_up()
        elif self.position.entry <= cursor.lac:
            self._read_on(cursor)
        elif self._is_at_end(stream, cursor):
            self._end_of_stream()
        elif cursor.lac_is_final:
            self._next_segment()
            self._follow_segment(stream)
            return True
        else:
            self._report_caught_up()
            cursor.request_lac(self._output)
        return False

    def _wait_for_segment(self, stream: StreamMetadata) -> None:
        """The current segment is not listed (yet)."""
        if self._start is not None and not self._is_reached(stream, self._start):
            return
        if stream.is_sealed and (not stream.segments or self.position.segment > stream.segments[-1].number):
            self._end_of_stream()
        elif self._is_stop_in_doubt():
            self._look_again()
        else:
            if self._start is not None:
                self._started()
            self._report_caught_up()

    def _step_to_start(self, stream: StreamMetadata, cursor: SegmentCursor, start: StartPosition) -> bool:
        """Find out where in its segment the reader starts, now that the LAC is known; returns as `_step`."""
        if not self._is_reached(stream, start):
            return False
        if start.is_after(cursor, self.position):
            self._next_segment()
            self._follow_segment(stream)
            return True
        if start.continue_search(cursor, self._output):
            return False
        self.position = start.decide(cursor, self.position)
        self._started()
        return True

    def _is_reached(self, stream: StreamMetadata, start: StartPosition) -> bool:
        """Whether the stream reaches as far as the position. If not, and that is certain, the reader ends."""
        end = start.end_if_beyond(stream, self._cursor)
        if end is None:
            start.wanted = None
            return True
        if self._lists.has_fresh:
            self._end(ReaderEventKind.BEYOND_END, end=list(end))
        else:
            self._look_again()
        return False

    def _started(self) -> None:
        """The start position is decided: report it, or later if a txid or time is sought that is not written yet."""
        self._start = None
        if self._seek_target is None:
            self._output.report(ReaderEventKind.STARTED, dlsn=list(self.position), incarnation=self._incarnation)

    def _is_stop_in_doubt(self) -> bool:
        """Whether a reader that does not follow would stop by a list that may be older than its opening.

        Segments with acknowledged records may have followed before it was opened: a fresh list is needed first.
        """
        return self._stop is not None and self._stop.is_due(self.position.segment) and not self._lists.has_fresh

    def _is_at_end(self, stream: StreamMetadata, cursor: SegmentCursor) -> bool:
        """Whether no segment follows this one, and its last entry is known."""
        is_last = not stream.segments or cursor.segment.number == stream.segments[-1].number
        return cursor.lac_is_final and stream.is_sealed and is_last

    def _read_on(self, cursor: SegmentCursor) -> None:
        if self._output.credit > 0:
            room = min(self._output.credit, self._options.chunk_bytes)
            cursor.request_entries(self.position.entry, EntryId(cursor.lac), room, self._output)

    def _next_segment(self) -> None:
        self.position, self._cursor = of(self.position.segment + 1, 0, 0), None

    # ---- delivering -------------------------------------------------------------------------------------------------

    def _skip_to(self, target: SeekTarget, cursor: SegmentCursor, got: EntriesGot) -> EntriesGot:
        """Skip the records before the target; returns the entries that are left."""
        first = self.position.entry
        for payload in got.payloads:
            slot = target.slot_in(cursor.contents(payload))
            if slot is not None:
                self._seek_target = None
                self.position = self.position._replace(slot=max(slot, self.position.slot))
                self._started()
                break
            self.position = of(self.position.segment, self.position.entry + 1, 0)
        return got.without(self.position.entry - first)

    def _push(self, cursor: SegmentCursor, got: EntriesGot) -> None:
        assert self._stream is not None
        following = self.position.entry + len(got.payloads)
        assert following - 1 <= cursor.lac, "never past the LAC"
        if not all(map(cursor.is_control_only, got.payloads)):
            segments = self._stream.segments
            segments_after = max(0, segments[-1].number - self.position.segment) if segments else 0
            self._output.send(got, self.position, segments_after, cursor.lac + 1 - following)
        self.position = of(self.position.segment, following, 0)

    # ---- ending -----------------------------------------------------------------------------------------------------

    def _report_caught_up(self) -> None:
        if self._stop is None:
            self._output.report_caught_up(self._incarnation)
        else:
            self._end(ReaderEventKind.CAUGHT_UP, incarnation=self._incarnation)

    def _end_of_stream(self) -> None:
        if self._start is not None or self._seek_target is not None:
            self._seek_target = None
            self._started()
        self._end(ReaderEventKind.END_OF_STREAM)

    def _end_truncated(self, stream: StreamMetadata) -> None:
        self._end(ReaderEventKind.TRUNCATED, first=list(stream.first_dlsn))

    def _end_damaged(self, error: DLogError) -> None:
        self._end(ReaderEventKind.DAMAGED, dlsn=list(self.position), message=error.message)

    def _end(self, kind: ReaderEventKind, **detail: Any) -> None:
        self._output.report(kind, **detail)
        self._close()

    def _close(self) -> None:
        self.has_ended = True
        self._output.effects.append(CancelTimer(RETRY_TIMER))
