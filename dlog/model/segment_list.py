"""The segments of a stream as an immutable list that is indexed by number."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlog.model.segment import Segment

_BLOCK = 256  # segments that `differences` compares at once
_SCANNED = 32  # a list of so many is looked through for segments in progress each time, a longer one once


class SegmentList(tuple["Segment", ...]):
    """Segments in the order of their numbers, each number once. A tuple of them in every other respect.

    A search looks at O(log n) segments. A changed copy looks at the changed ones and copies the references to the
    others, which the interpreter does at some 2 ns each.
    """

    @property
    def in_progress(self) -> tuple[Segment, ...]:
        """Segments that are not completed. Looks at every segment only for a list that was not made from another."""
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

    def updated(self, changes: Mapping[int, Segment | None]) -> SegmentList:
        """With these segments put in, in the place of those with their numbers; None takes a number out."""
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
        return made

    def split(self, at: int) -> tuple[SegmentList, SegmentList]:
        """The first `at` segments, and the others."""
        if at <= 0 or not self:
            return EMPTY, self
        before, after = SegmentList(self[:at]), SegmentList(self[at:])
        bound = after[0].number if after else before[-1].number + 1
        before._remember(s for s in self.in_progress if s.number < bound)
        after._remember(s for s in self.in_progress if s.number >= bound)
        return before, after

    def joined(self, after: SegmentList) -> SegmentList:
        """This list and, behind it, another one with higher numbers."""
        if not self or not after:
            return self or after
        made = SegmentList((*self, *after))
        made._remember((*self.in_progress, *after.in_progress))
        return made

    def _remember(self, in_progress: Iterable[Segment]) -> None:
        if len(self) > _SCANNED:
            self._in_progress = tuple(sorted(in_progress, key=_number_of))


EMPTY = SegmentList()


def differences(before: SegmentList, after: SegmentList) -> Iterator[tuple[Segment | None, Segment | None]]:
    """Pairs (before, after) of what differs, by number; None: the list has no segment of that number.

    Segments that both lists share are compared by reference, a block at a time: lists made from one another cost
    O(n / 256 + differences) steps, and the interpreter's comparison of n references.
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


def _number_of(segment: Segment) -> int:
    return segment.number
