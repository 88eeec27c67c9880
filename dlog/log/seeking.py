"""Finds the first record at or after a txid or a time, by binary search. Pure functions of segments and entries.

Segments have the txid and the time of their end, entries those of their records. An entry without a time (a control
record alone) counts as late enough: the search then ends a little early, and the reader drops entries until one
matches.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog.log.contents import EntryContents
from dlog.model.segment import Segment, StreamMetadata


@dataclass(frozen=True, slots=True)
class SeekTarget:
    """Search target: the first record whose txid, or time of writing (unix milliseconds), is at least `least`."""

    by_time: bool
    least: int

    def segment_of(self, stream: StreamMetadata) -> Segment | None:
        """The first readable segment that may hold the record; None: it is not written yet."""
        return stream.first_reaching(self.least, by_time=self.by_time)

    def is_before(self, contents: EntryContents) -> bool:
        """Whether every record of this entry is certainly too early."""
        if not self.by_time:
            return contents.last_txid < self.least
        if contents.note is not None:
            return contents.note.unix_ms < self.least
        return bool(contents.txids) and contents.txids[-1] < self.least

    def slot_in(self, contents: EntryContents) -> int | None:
        """Slot of the first record of this entry that matches; None if there is none."""
        if self.by_time and contents.note is not None:
            late = contents.note.unix_ms >= self.least
            return contents.first_slots[0] if late and contents.first_slots else None
        return contents.slot_of_txid(self.least)


class BinarySearch:
    """Binary search for the first entry of low..high that is not before the goal: read `middle`, `handle` it."""

    def __init__(self, goal: SeekTarget, low: int, high: int) -> None:
        self._goal = goal
        self.low = low  # once `is_done`: the entry found, or high + 1
        self._end = high + 1

    @property
    def is_done(self) -> bool:
        return self.low >= self._end

    @property
    def middle(self) -> int:
        return (self.low + self._end) // 2

    def handle(self, contents: EntryContents) -> None:
        """Take the contents of the entry at `middle`."""
        if self._goal.is_before(contents):
            self.low = self.middle + 1
        else:
            self._end = self.middle
