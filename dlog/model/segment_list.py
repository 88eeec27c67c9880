"""An immutable list of a stream's segments, with lookup by number, location and end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlog.model.segment import Location, Segment

_BLOCK = 256  # segments that `differences` compares at once
_SCANNED = 32  # up to this length a list is scanned for segments in progress each time, a longer one once
_OPEN = 1 << 63  # the end of a segment in progress: above every txid and time
_LOCATIONS_SPARE = 1000  # a table is handed on while it has at most twice as many locations as the list, plus this

Locations = dict["Location", tuple[int, ...]]  # numbers of segments that have or had the location


class SegmentList(tuple["Segment", ...]):
    """A tuple of segments, ordered by number, each number once.

    A search looks at O(log n) segments. A changed copy looks at the changed ones and copies the references to the
    others, at some 2 ns each.

    Lookup by location or by end uses a table that is built at the first such lookup, by looking at every segment. A
    changed copy takes the table over, with the changes; the parts of a split list share its table.
    """

    _in_progress: tuple[Segment, ...]
    _part_of: tuple[SegmentList, int]  # the list that this one was split from, and its first index there
    _by_location: Locations

    @property
    def in_progress(self) -> tuple[Segment, ...]:
        """Segments that are not completed. A long list made from another one does not look at every segment."""
        if len(self) <= _SCANNED:
            return tuple(s for s in self if not s.completed)
        found: tuple[Segment, ...] | None = self.__dict__.get("_in_progress")
        if found is None:
            found = self._in_progress = tuple(s for s in self if not s.completed)
        return found

    def index_of(self, number: int) -> int:
        """Index of the first segment with this number or a higher one."""
        return bisect_left(self, number, key=_number_of)

    def find(self, number: int) -> Segment | None:
        """The segment with this number; None if the list has none."""
        at = self.index_of(number)
        return self[at] if at < len(self) and self[at].number == number else None

    def find_location(self, location: Location) -> Segment | None:
        """The segment that has this location, or had it before it was moved from a ledger; None if there is none."""
        for number in self._locations().get(location, ()):
            segment = self.find(number)
            if segment is not None and location in segment.locations:
                return segment
        return None

    def first_reaching(self, least: int, *, by_time: bool) -> Segment | None:
        """The first segment that is in progress or ends with a txid (by_time: at a time) of at least `least`.

        Ends may decrease from one segment to the next: a writer's clock was behind, or a segment has no record. So the
        search uses the highest end of all segments up to each.
        """
        known, offset = self._highest_ends(by_time)
        at = bisect_left(known, least, offset, offset + len(self)) - offset
        return self[at] if at < len(self) else None

    def updated(self, changes: Mapping[int, Segment | None]) -> SegmentList:
        """A copy with these segments added, replacing those with the same numbers; None removes a number."""
        items: list[Segment] = []
        done = 0
        for number in sorted(changes):
            at = self.index_of(number)
            items += self[done:at]
            segment = changes[number]
            if segment is not None:
                items.append(segment)
            done = at + (at < len(self) and self[at].number == number)
        items += self[done:]
        made = SegmentList(items)
        left = [s for s in self.in_progress if s.number not in changes]
        made._remember(left + [s for s in changes.values() if s is not None and not s.completed])
        if changes:
            self._hand_tables_on(made, min(changes), changes.values())
        return made

    def split(self, at: int) -> tuple[SegmentList, SegmentList]:
        """The first `at` segments, and the rest."""
        if at <= 0 or not self:
            return EMPTY, self
        before, after = SegmentList(self[:at]), SegmentList(self[at:])
        bound = after[0].number if after else before[-1].number + 1
        before._remember(s for s in self.in_progress if s.number < bound)
        after._remember(s for s in self.in_progress if s.number >= bound)
        whole, offset = self.__dict__.get("_part_of", (self, 0))
        before._part_of, after._part_of = (whole, offset), (whole, offset + len(before))
        return before, after

    def joined(self, after: SegmentList) -> SegmentList:
        """This list followed by another one with higher numbers."""
        if not self or not after:
            return self or after
        made = SegmentList((*self, *after))
        made._remember((*self.in_progress, *after.in_progress))
        return made

    # ---- tables ------------------------------------------------------------------------------------------------------

    def _locations(self) -> Locations:
        """Locations of this list and of lists that share its table, so the caller checks what it finds. No location of
        this list is missing."""
        if not self:
            return {}
        whole: SegmentList = self.__dict__.get("_part_of", (self, 0))[0]
        locations: Locations | None = self.__dict__.get("_by_location") or whole.__dict__.get("_by_location")
        if locations is None:
            locations = whole._by_location = {}
            _add_locations(locations, whole)
        return locations

    def _highest_ends(self, by_time: bool) -> tuple[list[int], int]:
        """For each segment the highest end up to it, and the index at which this list begins there."""
        whole, offset = self.__dict__.get("_part_of", (self, 0))
        known: list[int] = whole._ends(by_time)
        if offset and self and known[offset - 1] > _end_of(self[0], by_time):
            return self._ends(by_time), 0  # an end before this part is higher, and must not count here
        return known, offset

    def _ends(self, by_time: bool) -> list[int]:
        known: list[int] = self.__dict__.setdefault("_ends_by_time" if by_time else "_ends_by_txid", [])
        highest = known[-1] if known else -_OPEN
        for at in range(len(known), len(self)):
            highest = max(highest, _end_of(self[at], by_time))
            known.append(highest)
        return known

    def _hand_tables_on(self, made: SegmentList, first: int, changed: Iterable[Segment | None]) -> None:
        """Hand the tables to a copy that differs from segment number `first` on."""
        whole: SegmentList = self.__dict__.get("_part_of", (self, 0))[0]
        locations: Locations | None = self.__dict__.get("_by_location") or whole.__dict__.get("_by_location")
        if locations is not None and len(locations) <= 2 * len(made) + _LOCATIONS_SPARE:
            _add_locations(locations, changed)
            made._by_location = locations
        at = self.index_of(first)
        for by_time, name in ((False, "_ends_by_txid"), (True, "_ends_by_time")):
            if name in whole.__dict__ or name in self.__dict__:
                known, begin = self._highest_ends(by_time)
                made.__dict__[name] = known[begin : begin + at]

    def __reduce__(self) -> tuple[type[SegmentList], tuple[tuple[Segment, ...]]]:
        """Pickle the segments only, without the tables."""
        return SegmentList, (tuple(self),)

    def _remember(self, in_progress: Iterable[Segment]) -> None:
        if len(self) > _SCANNED:
            self._in_progress = tuple(sorted(in_progress, key=_number_of))


EMPTY = SegmentList()


def differences(before: SegmentList, after: SegmentList) -> Iterator[tuple[Segment | None, Segment | None]]:
    """Pairs (before, after) of segments that differ, by number; None: that list has none with this number.

    Shared segments are compared by reference, a block at a time: for lists made from one another that takes O(n / 256 +
    differences) steps, and the interpreter's comparison of n references.
    """
    old = new = 0
    while old < len(before) and new < len(after):
        if before[old : old + _BLOCK] == after[new : new + _BLOCK]:
            old, new = old + _BLOCK, new + _BLOCK
            continue
        until = old + _BLOCK
        while old < until and old < len(before) and new < len(after):
            was, now = before[old], after[new]
            if was.number == now.number:
                if was is not now and was != now:
                    yield was, now
                old, new = old + 1, new + 1
            elif was.number < now.number:
                yield was, None
                old += 1
            else:
                yield None, now
                new += 1
    yield from ((was, None) for was in before[old:])
    yield from ((None, now) for now in after[new:])


def _end_of(segment: Segment, by_time: bool) -> int:
    if not segment.completed:
        return _OPEN
    return segment.completed_unix_ms if by_time else segment.last_txid


def _add_locations(locations: Locations, segments: Iterable[Segment | None]) -> None:
    for segment in segments:
        for where in segment.locations if segment is not None else ():
            numbers = locations.get(where, ())
            if segment is not None and segment.number not in numbers:
                locations[where] = (*numbers, segment.number)


def _number_of(segment: Segment) -> int:
    return segment.number
