"""Packs producers' batches into entries, and makes the entries that carry no batch.

Invariants:
- a batch is one record of an entry; its body is not opened or copied;
- an entry with batches ends with a control record that holds the dedup trailer (note.py);
- a batch of n records takes n slots of its entry, the control record one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlog.log.dedup_trailer import ProducerTableSnapshot, encode_trailer, pack_snapshot
from dlog.log.options import OwnerOptions
from dlog.log.producer_table import Batch, ProducerTable
from dlog.model.ids import TXID_END_OF_STREAM
from dlog.model.segment import Location
from dlog.wire.entry import (
    CONTROL,
    ENTRY_BYTES_MAX,
    RECORD_OVERHEAD,
    RECORD_SET,
    Record,
    control_record,
    encode_entry,
    end_of_stream_record,
)

Buffer = bytes | bytearray | memoryview

_NOTED_BYTES = 64  # upper bound for one batch in the trailer
_NOTE_BYTES = 64  # upper bound for a trailer without batches and snapshot
_SNAPSHOT_BYTES_MAX = ENTRY_BYTES_MAX // 2


@dataclass(slots=True)
class OpenSegment:
    """A segment being appended to: entries below `next_entry` are appended, those up to `lac` confirmed."""

    number: int
    location: Location
    txid: int  # last user txid, of this segment or an earlier one
    visible_is_final: bool
    entries_in_flight: int  # see Capabilities
    next_entry: int = 0
    lac: int = -1
    carried: int = -1  # the highest LAC that an appended entry carries
    data_entry: int = -1  # the last entry with user records or the end of stream
    records: int = 0
    last_slot: int = -1
    bytes: int = 0
    end_of_stream: bool = False
    is_seal_asked: bool = False  # the store was asked to seal it
    snapshot_entry: int = -1
    snapshot_bytes: int = 0  # size of the last snapshot
    since_snapshot: int = 0  # bytes appended since

    @property
    def is_drained(self) -> bool:
        return self.lac == self.next_entry - 1

    @property
    def last_txid(self) -> int:
        return TXID_END_OF_STREAM if self.end_of_stream else self.txid

    @property
    def lac_is_carried(self) -> bool:
        """Whether a reader of the store alone can learn that the last confirmed data is confirmed."""
        return self.visible_is_final or min(self.lac, self.data_entry) <= self.carried


class PendingEntry:
    """An entry that is appended and not yet confirmed. parts: its payload."""

    __slots__ = ("batches", "entry", "location", "parts", "segment")

    def __init__(
        self,
        segment: int,
        location: Location,
        entry: int,
        batches: Sequence[Batch],
        parts: tuple[Buffer, ...],
    ) -> None:
        self.segment = segment
        self.location = location  # of the segment, since a number may be reused at another location
        self.entry = entry
        self.batches = batches
        self.parts = parts


class Packer:
    """Makes entries. unix_ms: time in the next trailer; never decreases."""

    __slots__ = ("_options", "table", "unix_ms")

    def __init__(self, table: ProducerTable, options: OwnerOptions) -> None:
        self.table = table
        self.unix_ms = 0
        self._options = options

    def saw_time(self, unix_ms: int) -> None:
        self.unix_ms = max(self.unix_ms, unix_ms)

    def cut(self, waiting: list[Batch], segment: OpenSegment) -> PendingEntry:
        """Pack batches from the head of `waiting` into the segment's next entry."""
        entry = segment.next_entry
        snapshot = self._snapshot_if_due(segment)
        room = self._options.cut_bytes - (0 if snapshot is None else len(snapshot))
        batches: list[Batch] = []
        noted: list[tuple[bytes, int, int, int, int]] = []
        records: list[Record] = []
        table, number = self.table, segment.number
        slot, position, size = 0, segment.records + 1, 0
        for batch in waiting:
            request = batch.request
            size += len(request.body) + RECORD_OVERHEAD + _NOTED_BYTES
            if size > room and (batches or not self._fits(size, snapshot)):
                break
            table.cut(batch, number, entry, slot)
            batches.append(batch)
            noted.append((request.producer, request.sequence, request.count, request.crc, slot))
            records.append(Record(RECORD_SET, position, batch.txid, request.body))
            slot += request.count
            position += request.count
        del waiting[: len(batches)]
        if batches:
            segment.txid = batches[-1].txid
            segment.records = position - 1
            segment.data_entry = entry
        if snapshot is not None:
            segment.snapshot_entry, segment.snapshot_bytes, segment.since_snapshot = entry, len(snapshot), 0
        note = encode_trailer(self.unix_ms, segment.snapshot_entry, noted, snapshot)
        records.append(Record(CONTROL, segment.records, segment.txid, note))
        return self._append(segment, records, slot, batches)

    def control(self, segment: OpenSegment) -> PendingEntry:
        """Make an entry that only carries the LAC."""
        return self._append(segment, (control_record(segment.records, segment.last_txid),), 0, ())

    def end_of_stream(self, segment: OpenSegment) -> PendingEntry:
        """Make the stream's last entry."""
        segment.end_of_stream = True
        segment.data_entry = segment.next_entry
        return self._append(segment, (end_of_stream_record(segment.records),), 0, ())

    def _append(
        self,
        segment: OpenSegment,
        records: Sequence[Record],
        last_slot: int,
        batches: Sequence[Batch],
    ) -> PendingEntry:
        parts = encode_entry(records)
        size = sum(map(len, parts))
        pending = PendingEntry(segment.number, segment.location, segment.next_entry, batches, parts)
        segment.next_entry += 1
        segment.carried = segment.lac
        segment.last_slot = last_slot
        segment.bytes += size
        segment.since_snapshot += size
        return pending

    def _snapshot_if_due(self, segment: OpenSegment) -> bytes | None:
        options = self._options
        due = max(options.snapshot_bytes, segment.snapshot_bytes * options.snapshot_ratio)
        if segment.next_entry > 0 and segment.since_snapshot < due:
            return None
        snapshot = self.table.snapshot()
        packed = pack_snapshot(snapshot)
        positions_max = max((len(p.positions) for p in snapshot.producers), default=0)
        while len(packed) > _SNAPSHOT_BYTES_MAX and positions_max:
            positions_max //= 2
            packed = pack_snapshot(_thinned(snapshot, positions_max))
        return packed

    def _fits(self, size: int, snapshot: bytes | None) -> bool:
        """Whether a batch larger than `cut_bytes` fits into one entry with the snapshot; if not, the snapshot gets an
        entry of its own, before it."""
        return snapshot is None or size + len(snapshot) + _NOTE_BYTES <= ENTRY_BYTES_MAX


def _thinned(snapshot: ProducerTableSnapshot, positions_max: int) -> ProducerTableSnapshot:
    return ProducerTableSnapshot(
        snapshot.horizon,
        tuple(
            p._replace(positions=p.positions[len(p.positions) - min(positions_max, len(p.positions)) :])
            for p in snapshot.producers
        ),
        snapshot.window,
    )
