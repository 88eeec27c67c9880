"""Confirmed entries of all streams of a node, in memory: for its upload, and for readers at the tail.

Entries are in blocks: one gathers; the others are cut, and on their way to the object storage or there. Of a block that
is uploaded nobody but readers needs the entries, so the oldest of these are evicted first.

Invariants:
- an entry that is not uploaded is never evicted;
- with everything uploaded, or with appends bounded by `has_room`, at most bytes_max and one WAL entry are in memory;
- what is read is contiguous, confirmed, and of one stream.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable

from dlog.model.ids import Epoch
from dlog.model.object_streams import ObjectStreamId
from dlog.wire.node_wal import ENTRY_BYTES_MAX, StreamEntry, WalFrame


class Run:
    """Entries first, first + 1, ... of one stream under one epoch, in one block."""

    __slots__ = ("bytes", "entries", "epoch", "first", "stream")

    def __init__(self, stream: ObjectStreamId, epoch: Epoch, first: int) -> None:
        self.stream = stream
        self.epoch = epoch
        self.first = first
        self.entries: list[StreamEntry] = []
        self.bytes = 0

    @property
    def end(self) -> int:
        return self.first + len(self.entries)


class Block:
    """What was cut together. runs: by stream and epoch. bytes, entries: of all runs."""

    __slots__ = ("bytes", "entries", "is_uploaded", "runs")

    def __init__(self) -> None:
        self.runs: dict[tuple[ObjectStreamId, Epoch], Run] = {}
        self.bytes = 0
        self.entries = 0
        self.is_uploaded = False


def entry_bytes(entries: Iterable[StreamEntry]) -> int:
    """What entries count in memory and in a WAL entry."""
    return sum(len(entry.payload) + ENTRY_BYTES_MAX for entry in entries)


class NodeCache:
    """The blocks of one node. bytes, unuploaded_bytes: of all blocks, and of those that are not uploaded.

    added_entries, uploaded_entries: numbers of all that were added and uploaded so far.
    """

    def __init__(self, bytes_max: int) -> None:
        self.gathering = Block()
        self.bytes = 0
        self.unuploaded_bytes = 0
        self.added_entries = 0
        self.uploaded_entries = 0
        self._bytes_max = bytes_max
        self._cut: deque[Block] = deque()  # in order of cutting
        self._runs: dict[ObjectStreamId, list[Run]] = {}  # in order of offsets

    def has_room(self, reserved_bytes: int) -> bool:
        """Whether so many bytes may be appended, those on their way to the WAL included."""
        return self.unuploaded_bytes + reserved_bytes <= self._bytes_max

    def add(self, frame: WalFrame) -> None:
        """Add confirmed entries to what gathers."""
        key = (frame.stream, frame.epoch)
        run = self.gathering.runs.get(key)
        if run is None:
            run = self.gathering.runs[key] = Run(frame.stream, frame.epoch, frame.first)
            self._runs.setdefault(frame.stream, []).append(run)
        assert run.end == frame.first, "the entries of a stream are confirmed in order"
        run.entries += frame.entries
        size = entry_bytes(frame.entries)
        run.bytes += size
        self.gathering.bytes += size
        self.gathering.entries += len(frame.entries)
        self.added_entries += len(frame.entries)
        self.bytes += size
        self.unuploaded_bytes += size
        self._evict()

    def cut(self) -> Block:
        """End the block that gathers and begin another."""
        block, self.gathering = self.gathering, Block()
        self._cut.append(block)
        return block

    def uploaded(self, block: Block) -> None:
        """A block is in committed objects."""
        block.is_uploaded = True
        self.unuploaded_bytes -= block.bytes
        self.uploaded_entries += block.entries
        self._evict()

    def read(self, stream: ObjectStreamId, start: int, end: int, bytes_max: int) -> list[StreamEntry]:
        """Entries start..end-1, perhaps fewer, as far as they are in memory without a gap; at most about bytes_max of
        payload, but at least one. None are returned if `start` is not in memory."""
        runs = self._runs.get(stream, [])
        found = list[StreamEntry]()
        at = bisect_right(runs, start, key=lambda run: run.first) - 1
        size = 0
        while 0 <= at < len(runs) and start < end and runs[at].first <= start < runs[at].end:
            run = runs[at]
            for entry in run.entries[start - run.first : end - run.first]:
                size += len(entry.payload)
                if found and size > bytes_max:
                    return found
                found.append(entry)
                start += 1
            at += 1
        return found

    def read_last(self, stream: ObjectStreamId, end: int, count: int, bytes_max: int) -> list[StreamEntry]:
        """The last entries below `end`, at most `count`, as far as they are in memory without a gap and have at most
        bytes_max of payload; perhaps none."""
        for start in range(max(0, end - count), end):
            found = self.read(stream, start, end, bytes_max)
            if len(found) == end - start and sum(len(entry.payload) for entry in found) <= bytes_max:
                return found
        return []

    def _evict(self) -> None:
        while self.bytes > self._bytes_max and self._cut and self._cut[0].is_uploaded:
            block = self._cut.popleft()
            self.bytes -= block.bytes
            for run in block.runs.values():
                runs = self._runs[run.stream]
                runs.remove(run)
                if not runs:
                    del self._runs[run.stream]
