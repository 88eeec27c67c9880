"""Finds the state of a region: the newest snapshot that verifies, and the data topic behind it.

A snapshot is one of the meta topic or, if none of those can be used, a check-point in the data topic: the owner writes
one before it deletes the front of the topic.

Invariants:
- A snapshot is used only if the data topic still has everything from its offset on.
- Without one, the topic must begin at offset 0 or hold a check-point; else sequences could be given out twice, so the
  region is not opened.
"""

from __future__ import annotations

from collections.abc import Callable

from dlog.errors import DamagedError, DLogError, UnsupportedVersionError
from dlog.region.counting import Checkpoint, Placed, PlainEntry
from dlog.region.items import ItemReader, decode_stored, describe_passed_over
from dlog.region.messages import AskOffsets, OffsetsFound, Question, ReadRecords, RecordsRead, Reply, Topic
from dlog.region.state import RegionState
from dlog.region.topics import Stored
from dlog.wire.region import RecordKind, RegionSnapshot, decode_snapshot

Asking = tuple[Topic, Question]
Errors = tuple[type[DLogError], ...]

UNUSABLE: Errors = (DamagedError, UnsupportedVersionError)  # all records that cannot be decoded


class RegionFrontLostError(DamagedError):
    """Another program deleted the front of the data topic, and no snapshot holds the state of the tables at the first
    offset that is left, `first`."""

    def __init__(self, message: str, first: int = 0) -> None:
        super().__init__(message)
        self.first = first


class RegionLoader:
    """Asks one question after another. After the last one, `state` is the region's state as of `next`.

    number: gives a new number for each question. skipped: errors of records that are left out, instead of raised.
    problems: what was left out, one line each. snapshots: offsets in the meta topic of those that verify.
    """

    def __init__(self, region: int, number: Callable[[], int], *, map_every: int, skipped: Errors = ()) -> None:
        self.state: RegionState | None = None
        self.problems: list[str] = []
        self.snapshots: list[int] = []
        self.first = self.next = 0  # of the data topic
        self.scanned_bytes = 0
        self._region = region
        self._number = number
        self._map_every = map_every
        self._skipped = skipped
        self._topic = Topic.META
        self._end = 0  # of the meta topic
        self._best: RegionSnapshot | None = None
        self._reader = ItemReader(region, 0)

    def begin(self) -> Asking:
        """The first question."""
        return Topic.META, AskOffsets(self._number())

    def handle(self, reply: Reply) -> Asking | None:
        """The answer to the last question came. Returns the next one, None at the end.

        Raises DamagedError, UnsupportedVersionError.
        """
        match reply:
            case OffsetsFound(_, first, next) if self._topic is Topic.META:
                self._end = next
                return self._read_meta(first)
            case OffsetsFound(_, first, next):
                self.first, self.next = first, next
                return self._begin_scan()
            case RecordsRead(_, records) if self._topic is Topic.META:
                for stored in records:
                    self._take_snapshot(stored)
                return self._read_meta(records[-1].offset + 1 if records else self._end)
            case RecordsRead(_, records):
                return self._scan(records)
        raise AssertionError(f"not an answer to a loader's question: {reply}")

    # ---- the meta topic ----------------------------------------------------------------------------------------------

    def _read_meta(self, offset: int) -> Asking:
        if offset < self._end:
            return Topic.META, ReadRecords(self._number(), offset)
        self._topic = Topic.DATA
        return Topic.DATA, AskOffsets(self._number())

    def _take_snapshot(self, stored: Stored) -> None:
        """Note a record of the meta topic. One that does not verify is left out: another one, or the scan, will do."""
        try:
            record = decode_stored(self._region, stored)
            if record.kind is not RecordKind.CHECKPOINT:
                raise DamagedError(f"not a snapshot: offset={stored.offset}")
            found = decode_snapshot(record.payload)
        except (DamagedError, UnsupportedVersionError) as error:
            self.problems.append(f"meta topic: {error.message}")
            return
        self.snapshots.append(stored.offset)
        if self._best is None or found.offset >= self._best.offset:
            self._best = found

    # ---- the data topic ----------------------------------------------------------------------------------------------

    def _begin_scan(self) -> Asking | None:
        best = self._best
        if best is not None and best.offset > self.next:
            raise DamagedError(
                f"the data topic ends before its newest snapshot, so records are lost: restore it, or drop the region: "
                f"end={self.next} snapshot={best.offset}"
            )
        if best is not None and best.offset >= self.first:
            self.state = RegionState.restored(best, map_every=self._map_every)
        elif self.first == 0:
            self.state = RegionState(map_every=self._map_every)
        return self._scan_from(self.state.offset if self.state is not None else self.first)

    def _scan_from(self, offset: int) -> Asking | None:
        self._reader = ItemReader(self._region, offset, self.next)
        return self._go_on(offset)

    def _go_on(self, offset: int) -> Asking | None:
        if offset < self.next:
            return Topic.DATA, ReadRecords(self._number(), offset)
        if self.state is None:
            raise RegionFrontLostError(
                f"the front of the data topic was deleted by another program, and no snapshot is left, so the numbers "
                f"of the tables are not known: first={self.first} next={self.next}",
                self.first,
            )
        self.state.offset = max(self.state.offset, offset)
        return None

    def _scan(self, records: tuple[Stored, ...]) -> Asking | None:
        self.scanned_bytes += sum([len(key) + len(value) for _, key, value in records])
        for found in self._reader.feed(records):
            if isinstance(found, DLogError):
                if not isinstance(found, self._skipped):
                    raise found
                self.problems.append(f"data topic: {found.message}")
            elif self.state is not None:
                self._apply(self.state, found)
            elif (snapshot := self._checkpoint(found)) is not None:
                self.state = RegionState.restored(snapshot, map_every=self._map_every)
                return self._scan_from(snapshot.offset)
        return self._go_on(min(records[-1].offset + 1, self.next) if records else self.next)

    def _apply(self, state: RegionState, placed: Placed) -> None:
        item, rule = placed[1], state.rule
        following = state.meta.next_seq_num(item.entry.table) if isinstance(item, PlainEntry) else 0
        if not state.apply(placed) and (reason := describe_passed_over(placed, rule, following)) is not None:
            self.problems.append(f"data topic: {reason}")

    def _checkpoint(self, placed: Placed) -> RegionSnapshot | None:
        """The snapshot of a check-point, if everything from its offset on is still there."""
        if not isinstance(placed[1], Checkpoint):
            return None
        found = decode_snapshot(placed[1].snapshot)
        return found if found.offset >= self.first else None
