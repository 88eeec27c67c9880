"""Index search: which objects have the entries of an interval of one object stream. A pure function of the image.

The steps, from the seed's system: (1) the stream's own objects, from the one that has the wanted offset, as long as
they go on without a gap; (2) where they stop, a binary search in the ranges gives the node that wrote on; (3) its
stream-set objects, as long as their slices go on; (4) where these stop, again from (1). Each entry point is found by a
binary search, so the cost grows with the objects and ranges that the result covers, and with the logarithm of all
others.

A result without all that was asked for is *partial*: the metadata may lag, or the entries are not uploaded yet. That is
never the end of the stream. The caller waits for an image with a greater version, or reads the write-ahead log of the
node that has the stream open.

Source: AutoMQ 1.1.0, S3StreamsMetadataImage.getObjects.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from dlog.errors import TruncatedError
from dlog.model.object_streams import ObjectId, ObjectRef, ObjectStreamId, SearchResult
from dlog.objects.image import Image, SliceTable, StreamImage


def find_objects(image: Image, stream: ObjectStreamId, start: int, end: int, limit: int) -> SearchResult:
    """The first objects, at most `limit`, with the entries start..end-1 of the stream, without a gap.

    Raises TruncatedError: the entry `start` is gone for good: it is below the stream's start, its range was moved to
    another store, or the stream was deleted.
    """
    assert 0 <= start <= end and limit >= 1, f"start={start} end={end} limit={limit}"
    its = image.streams.get(stream)
    if its is None:
        if stream < image.next_stream:
            raise TruncatedError(f"the object stream was deleted: stream={stream}")
        return SearchResult((), start, image.version)
    if start < its.start:
        raise TruncatedError(f"the entry is below the stream's start: stream={stream} entry={start} start={its.start}")
    if start == end:
        return SearchResult((), start, image.version)
    return _Search(image, stream, its, end, limit).run(start)


class _Search:
    """One search. next: all entries from the asked start up to it are found. range: index of the first range."""

    __slots__ = ("end", "found", "image", "its", "limit", "next", "range", "stream")

    def __init__(self, image: Image, stream: ObjectStreamId, its: StreamImage, end: int, limit: int) -> None:
        self.image = image
        self.stream = stream
        self.its = its
        self.end = end
        self.limit = limit
        self.next = self.range = -1
        self.found: list[ObjectRef] = []

    def run(self, start: int) -> SearchResult:
        self.next, self.range = start, max(0, self.its.range_index(start))
        turns = own = in_set = 0
        set_table: SliceTable | None = None
        while not self._is_satisfied:
            turns += 1
            assert turns <= self.limit, f"a search makes no progress: stream={self.stream} at={self.next}"
            before = self.next
            own = self._take(self.its.objects, own, False)
            if not self._is_satisfied and (table := self._set_slices()) is not None:
                if table is not set_table:
                    set_table, in_set = table, 0
                in_set = self._take(table, in_set, True)
            if self.next == before:
                break
        return self._result(start)

    @property
    def _is_satisfied(self) -> bool:
        return self.next >= self.end or len(self.found) >= self.limit

    def _set_slices(self) -> SliceTable | None:
        """The slices in stream-set objects of the node that wrote the next entry."""
        ranges, at = self.its.ranges, self.range
        while at < len(ranges) and (end := ranges[at].end) is not None and end <= self.next:
            at += 1
        if at == len(ranges) or ranges[at].start > self.next:
            return None
        node = self.image.nodes.get(ranges[at].node)
        return None if node is None else node.slices.get(self.stream)

    def _take(self, table: SliceTable, low: int, is_set_object: bool) -> int:
        """Take the slices of a table from the next entry on, until one begins beyond it: the index of that one.

        low: all slices below this index are searched.
        """
        starts, ends = table.starts, table.ends
        if low and (low == len(starts) or starts[low] > self.next):
            return low
        at = bisect_right(starts, self.next, low) - 1
        if at < 0 or ends[at] <= self.next:
            return at + 1
        while True:
            first, last = starts[at], ends[at]
            assert first <= self.next < last, f"a slice is out of order: stream={self.stream} start={first} end={last}"
            self.found.append(ObjectRef(ObjectId(table.objects[at]), first, last, is_set_object))
            self.next = last
            at += 1
            if self._is_satisfied or at == len(starts) or starts[at] > self.next:
                return at

    def _result(self, start: int) -> SearchResult:
        """The result, up to the first range that was dropped: an object may have its entries still."""
        covered, ranges, version = min(self.next, self.end), self.its.ranges, self.image.version
        for at in range(self.range, len(ranges)):
            its = ranges[at]
            if its.start >= max(covered, start + 1):
                break
            if its.is_dropped and its.end is not None and its.end > start:
                if its.start <= start:
                    raise TruncatedError(f"the entry was moved to another store: stream={self.stream} entry={start}")
                covered = its.start
                break
        found = self.found
        while found and found[-1].start >= covered:
            found.pop()
        for one, following in pairwise(found):
            assert following.start <= one.end < following.end, f"a result has a gap: {one} {following}"
        return SearchResult(tuple(found), covered, version)
