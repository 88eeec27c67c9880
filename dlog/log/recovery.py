"""Recovery of a stream: ends the segments that former writers left open, and reads the producer table back.

Invariants:
- *every* segment in progress is fenced and ended by its store before anything is concluded (a writer may still append
  to the last but one while the last one is being opened);
- only final entries are read: per ended segment its last ones, unless its store returned them with the end (record
  count, last txid, last slot, newest trailer), and the producer table from its newest snapshot on. That is at most two
  reads after one another, each repeated while it returns a part, and one for each segment that was imported or
  written by another implementation;
- the store decides where a segment ends, also one listed as completed: a fenced Java writer may have completed it at
  the last entry that it knew to be acknowledged. The store is asked about the last completed segment, which the next
  one follows, if such programs write to it; and about those with entries of ours in flight that another writer
  recovered and completed.

A segment with entries but no dedup trailer in its last few was written by another implementation: it has no producers
in the table, so the table is looked for one segment further back. If `recover_segments_max` segments have none, the
table starts empty, with its horizon above all that is written. Imported segments (dlog/log/segment_import.py) are
marked in their trailers and do not count.

Segments that their store has removed by itself (SegmentTruncatedError):
- the search for the table ends at such a segment, because an older table lacks the batches that were written in it: the
  table starts empty, with its horizon above all that is written, and repeated batches have an unknown outcome;
- one in progress ends at the last entry that its store names, at entry 0 if it names none. It is never taken for an
  empty one: the number of an empty segment is reused, and readers may have seen entries of this one;
- a completed one stays as it is listed;
- with entries of ours in flight it ends the claim: their outcome is unknown, so they are not written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from dlog.errors import ClaimLostError, DamagedError, DLogError, Remedy
from dlog.log.changes import SegmentEnd
from dlog.log.contents import EntryContents, read_contents
from dlog.log.dedup_trailer import DedupTrailer
from dlog.log.messages import (
    STORE,
    EntriesRead,
    ReadEntries,
    RecoverSegment,
    SegmentRecovered,
    StoreFailed,
    StoreQuestion,
)
from dlog.log.options import OwnerOptions
from dlog.log.producer_table import ProducerTable
from dlog.machine import Effect, Send, SetTimer
from dlog.model.ids import NO_ENTRY, EntryId, SegmentNumber, Txid
from dlog.model.segment import Location, Segment, StreamMetadata
from dlog.stores.contract import UNKNOWN_STORE, Capabilities, SegmentTruncatedError

TIMER = ("recovery",)
_ANY_ENTRY = 2**63 - 1  # above every entry of its segment
_LOOK_BACK = 6  # entries without a trailer that may follow the last one with it: LAC, end of stream, control records


@dataclass(slots=True)
class _Ending:
    """A segment whose end is requested from its store. last_entry: None until the store has answered. payloads: of its
    entries from `first` on, as far as they are read. Once `end` is known the last entry is among them, or the list had
    the same end and none was needed, or the store has removed the segment.
    """

    segment: Segment
    last_entry: EntryId | None = None
    end: SegmentEnd | None = None
    first: int = 0
    payloads: tuple[bytes, ...] = ()

    @property
    def next(self) -> EntryId:
        """The entry to read next."""
        return EntryId(self.first + len(self.payloads))

    @property
    def has_trailer(self) -> bool:
        """Whether one of the entries read has a dedup trailer."""
        return any(_contents(self.segment, payload).note is not None for payload in self.payloads)

    @property
    def is_empty(self) -> bool:
        return self.last_entry == NO_ENTRY

    @property
    def is_as_listed(self) -> bool:
        """Whether the list has the segment completed at this end; true for an empty one that is completed."""
        return self.segment.completed and (self.is_empty or self.last_entry == self.segment.last_entry)


class StreamRecovery:
    """Recovers one stream, after a take-over or after the owner's own segment failed.

    stores: capabilities by name. under_way: location, by number, of the segments with unconfirmed entries of this
    owner.

    `is_done`: `ends` has the end of each segment in progress and of the completed ones asked about (None: empty), and
    `table`, if given, is as in the log, or refuses all that it does not know. `removed`: the segments asked about that
    their stores have removed. `error`: why it cannot be done.
    """

    def __init__(
        self,
        value: StreamMetadata,
        options: OwnerOptions,
        stores: Mapping[str, Capabilities],
        table: ProducerTable | None,
        under_way: Mapping[int, Location] | None = None,
    ) -> None:
        self.is_done = False
        self.error: DLogError | None = None
        self.removed: dict[SegmentNumber, Segment] = {}  # by number
        self.unix_ms = 0  # the latest time found in trailers
        self._options = options
        self._stores = stores
        self._table = table
        self._retry_after_s = options.retry_after_s
        self._under_way = under_way or {}
        self._endings: dict[int, _Ending] = {s.number: _Ending(s) for s in self._to_recover(value)}
        self._value = value
        self._failed: list[StoreQuestion] = []
        self._search: Iterator[Segment] = iter(())  # segments to search for the table, newest first
        self._candidate: Segment | None = None  # the next of them
        self._budget = options.recover_segments_max  # how many of them may still be searched
        self._sees_all = False  # the list goes back to the stream's beginning
        self._replaying: Segment | None = None
        self._newest_note: DedupTrailer | None = None  # of that segment
        self._replay_from = -1  # the next entry to replay into the table; -1: the snapshot is not found yet

    @property
    def ends(self) -> dict[int, SegmentEnd | None]:
        return {number: ending.end for number, ending in self._endings.items()}

    @property
    def recovered(self) -> int:
        """How many segments were in progress."""
        return sum(not e.segment.completed for e in self._endings.values())

    @property
    def misstated(self) -> list[SegmentNumber]:
        """Segments without an end, or with another end, in the list."""
        return [e.segment.number for e in self._endings.values() if not e.is_as_listed]

    def locations(self) -> dict[int, Location]:
        """Of the segments in `ends`."""
        return {number: e.segment.location for number, e in self._endings.items()}

    @property
    def are_ends_known(self) -> bool:
        return all(e.end is not None or e.is_empty for e in self._endings.values())

    @property
    def next_number(self) -> SegmentNumber:
        """The number of the next segment: numbers are dense, that of an empty segment is reused."""
        assert self.are_ends_known
        return self._value.next_number({number for number, end in self.ends.items() if end is None})

    def begin(self) -> list[Effect]:
        effects: list[Effect] = [Send(STORE, RecoverSegment(e.segment)) for e in self._endings.values()]
        return effects or self._learn()

    def handle(self, message: SegmentRecovered | EntriesRead | StoreFailed) -> list[Effect]:
        """Take a reply of the store; ignored if no request waits for it."""
        try:
            match message:
                case SegmentRecovered():
                    return self._recovered(message)
                case EntriesRead(number, location, first, payloads):
                    return self._entries_read(number, location, first, payloads)
                case StoreFailed(question, error):
                    return self._store_failed(question, error)
        except DamagedError as error:
            self.error = error
            return []

    def retry(self) -> list[Effect]:
        """The timer fired: repeat the failed requests."""
        failed, self._failed = self._failed, []
        return [Send(STORE, question) for question in failed]

    def _to_recover(self, value: StreamMetadata) -> list[Segment]:
        found: dict[int, Segment] = {s.number: s for s in value.in_progress}
        last = value.last_completed
        if last is not None and self._stores.get(last.store, UNKNOWN_STORE).has_foreign_writers:
            found[last.number] = last
        for number, location in self._under_way.items():
            segment = value.segment(number)
            if segment is not None and segment.location == location:
                found[number] = segment
        return [found[number] for number in sorted(found)]

    # ---- ending segments --------------------------------------------------------------------------------------------

    def _recovered(self, found: SegmentRecovered) -> list[Effect]:
        ending = self._endings.get(found.number)
        if ending is None or ending.segment.location != found.location or ending.last_entry is not None:
            return []
        ending.last_entry, ending.payloads = found.last_entry, found.last_payloads
        ending.first = found.last_entry + 1 - len(found.last_payloads)
        segment, effects = ending.segment, list[Effect]()
        if ending.is_empty:
            pass
        elif ending.is_as_listed:
            ending.end = _listed_end(segment)
        elif ending.payloads:
            self._ended(ending)
        else:
            ending.first = max(0, found.last_entry - _LOOK_BACK)
            effects.append(Send(STORE, ReadEntries(segment, ending.next, found.last_entry)))
        return effects + self._learn()

    def _end_read(self, ending: _Ending, first: int, payloads: tuple[bytes, ...]) -> list[Effect]:
        """Take some of the last entries of a segment."""
        assert ending.last_entry is not None
        if first != ending.next:
            return []
        ending.payloads += payloads
        if ending.next <= ending.last_entry:
            return [Send(STORE, ReadEntries(ending.segment, ending.next, ending.last_entry))]
        self._ended(ending)
        return self._learn()

    def _ended(self, ending: _Ending) -> None:
        assert ending.last_entry is not None
        contents = _contents(ending.segment, ending.payloads[-1])
        ending.end = SegmentEnd(ending.last_entry, contents.last_slot, Txid(contents.last_txid), contents.position)

    # ---- reading the producer table back ----------------------------------------------------------------------------

    def _learn(self) -> list[Effect]:
        """Once every end is known, read the producer table back."""
        if self.is_done or not self.are_ends_known:
            return []
        if self._table is None:
            self.is_done = True
            return []
        if self._replaying is None:
            self._search = (s for s in map(self._as_ended, reversed(self._value.segments)) if s is not None)
            self._candidate = next(self._search, None)
            self._sees_all = self._reaches_back()
            return self._look_into_next()
        return []

    def _as_ended(self, segment: Segment) -> Segment | None:
        """The segment with its end set; None if it is empty."""
        ending = self._endings.get(segment.number)
        if ending is None:
            return segment if segment.last_entry != NO_ENTRY else None
        if ending.is_empty and segment.number not in self.removed:
            return None
        assert ending.last_entry is not None
        return replace(segment, last_entry=ending.last_entry)

    def _reaches_back(self) -> bool:
        """Whether the list goes back to the stream's beginning: nothing is truncated."""
        return self._value.first_number == 1 if self._value.segments else self._value.next_number() <= 1

    def _look_into_next(self) -> list[Effect]:
        assert self._table is not None
        segment = self._candidate
        if segment is None and self._sees_all:  # no producer has written
            self.is_done = True
            return []
        if segment is None or not self._budget or segment.number in self.removed:
            return self._end_without_table()
        self._replaying, self._candidate = segment, next(self._search, None)
        self._budget -= 1
        self._replay_from, self._newest_note = -1, None
        ending = self._endings.get(segment.number)
        if ending is not None and ending.has_trailer:
            return self._read_on(segment, ending.first)
        return self._read_on(segment, max(0, segment.last_entry - _LOOK_BACK))

    def _end_without_table(self) -> list[Effect]:
        """The table cannot be read back: refuse every producer that may have written."""
        assert self._table is not None
        self._table.forget_all((self.next_number - 1, _ANY_ENTRY))
        self.is_done = True
        return []

    def _read_on(self, segment: Segment, first: int) -> list[Effect]:
        """Pass the entries from `first` on to `_replay`: read, unless they were read with the segment's end."""
        ending = self._endings.get(segment.number)
        if ending is not None and ending.payloads and first >= ending.first:
            return self._replay(segment, first, ending.payloads[first - ending.first :])
        return [Send(STORE, ReadEntries(segment, EntryId(first), segment.last_entry))]

    def _entries_read(
        self, number: int, location: Location, first: EntryId, payloads: tuple[bytes, ...]
    ) -> list[Effect]:
        ending = self._endings.get(number)
        if ending is not None and ending.end is None and ending.last_entry is not None and not ending.is_empty:
            return self._end_read(ending, first, payloads) if ending.segment.location == location else []
        segment = self._replaying
        if segment is None or segment.number != number or segment.location != location or self.is_done:
            return []
        return self._replay(segment, first, payloads)

    def _replay(self, segment: Segment, first: int, payloads: tuple[bytes, ...]) -> list[Effect]:
        assert self._table is not None
        last = first + len(payloads) - 1
        if self._replay_from < 0:  # still looking for a trailer that names the snapshot's entry
            notes = [c.note for c in (_contents(segment, p) for p in payloads) if c.note is not None]
            self._newest_note = notes[-1] if notes else self._newest_note
            if last < segment.last_entry:
                return self._read_on(segment, last + 1)
            return self._replay_since(self._newest_note) if self._newest_note else self._look_into_next()
        if first != self._replay_from:
            return []
        for entry, payload in enumerate(payloads, first):
            self._learn_entry(segment, entry, _contents(segment, payload))
        self._replay_from = last + 1
        if last < segment.last_entry:
            return self._read_on(segment, last + 1)
        self.is_done = True
        return []

    def _replay_since(self, note: DedupTrailer) -> list[Effect]:
        """Read from the snapshot that a trailer names to the segment's end; skip an imported segment."""
        assert self._replaying is not None
        if note.snapshot_entry == NO_ENTRY:
            self._budget += 1
            return self._look_into_next()
        self._replay_from = note.snapshot_entry
        self.unix_ms = max(self.unix_ms, note.unix_ms)
        return self._read_on(self._replaying, note.snapshot_entry)

    def _learn_entry(self, segment: Segment, entry: int, contents: EntryContents) -> None:
        assert self._table is not None
        note = contents.note
        if note is None:
            return
        self.unix_ms = max(self.unix_ms, note.unix_ms)
        if note.snapshot is not None and note.snapshot_entry == entry:
            self._table.restore(note.snapshot, (segment.number, entry))
        if len(note.batches) != len(contents.txids):
            raise DamagedError(f"a dedup trailer does not match its entry: segment={segment.number} entry={entry}")
        for noted, txid in zip(note.batches, contents.txids, strict=True):
            self._table.replay(noted, segment.number, entry, txid)

    # ---- failures ---------------------------------------------------------------------------------------------------

    def _store_failed(self, question: StoreQuestion, error: DLogError) -> list[Effect]:
        if not isinstance(question, RecoverSegment | ReadEntries):
            return []
        if isinstance(error, SegmentTruncatedError):
            return self._removed(question.segment)
        if error.remedy in (Remedy.RETRY, Remedy.REOPEN):
            self._failed.append(question)
            delay = self._retry_after_s
            self._retry_after_s = min(delay * 2, self._options.retry_after_max_s)
            return [SetTimer(TIMER, delay)] if len(self._failed) == 1 else []
        self.error = error
        return []

    def _removed(self, segment: Segment) -> list[Effect]:
        """The store has removed this segment: end it, or do without the table that was looked for in it."""
        ending, replaying = self._endings.get(segment.number), self._replaying
        if replaying is not None:
            if self.is_done or replaying.location != segment.location:
                return []
            self.removed[segment.number] = segment
            return self._end_without_table()
        if ending is None or ending.segment.location != segment.location or ending.end is not None or ending.is_empty:
            return []  # no request waits for it
        self.removed[segment.number] = segment
        if self._under_way.get(segment.number) == segment.location:
            what = f"its store removed the segment while entries were in flight: segment={segment.number}"
            self.error = ClaimLostError(what)
            return []
        last_entry = EntryId(0) if ending.last_entry is None else ending.last_entry
        ending.end = _listed_end(segment) if segment.completed else SegmentEnd(last_entry, 0, segment.first_txid, 0)
        ending.last_entry = ending.end.last_entry
        return self._learn()


def _listed_end(segment: Segment) -> SegmentEnd:
    return SegmentEnd(segment.last_entry, segment.last_slot, segment.last_txid, segment.record_count)


def _contents(segment: Segment, payload: bytes) -> EntryContents:
    return read_contents(payload, enveloped=segment.version >= 4)
