"""What is known of the tables of a region: RegionMeta and TableMeta of the design it follows (HoraeDB's WAL on Kafka).

Invariants:
- sequences of a table are dense, from 1 on;
- a mapping is a floor: the record of a sequence lies at the offset that `floor` returns or behind it;
- no record at or above the mark of its table lies below `safe_offset`, nor does the record that began it, as long as
  nothing of the table is deleted: a reader of its first entry starts at that record.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from dlog.errors import DamagedError, InvalidRequestError
from dlog.wire.region import RegionSnapshot, TableSnapshot

MAP_EVERY = 64  # records from one mapped sequence to the next,
MAP_EVERY_BYTES = 256 * 1024  # or bytes, whatever is reached first; and behind a gap


@dataclass(slots=True)
class TableMeta:
    """One table. next_seq_num: of its next record. latest_marked_deleted: every sequence below may be deleted.
    current_high_watermark: the offset behind its last record. seq_offset_mapping: some sequences at or above the mark,
    and the last mapped one below it, unless the mark itself is mapped; ascending. payload_bytes: of all its entries
    that ever counted. begin: the offset of the record that began it, 0 if none did."""

    next_seq_num: int = 1
    latest_marked_deleted: int = 0
    current_high_watermark: int = 0
    seq_offset_mapping: dict[int, int] = field(default_factory=dict)
    payload_bytes: int = 0
    begin: int = 0
    _bytes: int = 0  # since the last mapped record

    @property
    def is_all_deleted(self) -> bool:
        """Whether every record is marked as deleted, or there never was one."""
        return self.latest_marked_deleted == self.next_seq_num or self.next_seq_num == 1

    @property
    def first_needed(self) -> int | None:
        """The first offset that must be kept for it; None: it needs none."""
        if self.begin and self.latest_marked_deleted <= 1:
            return self.begin
        return None if self.is_all_deleted else self.floor(max(1, self.latest_marked_deleted))

    @property
    def end(self) -> int:
        """The offset behind all its records."""
        return max(self.current_high_watermark, self.begin + 1 if self.begin else 0)

    def floor(self, sequence: int) -> int:
        """An offset at or before the record of this sequence, which must not be below the mark; 0 if none is known."""
        found = self.floor_entry(sequence)
        return 0 if found is None else found[1]

    def floor_entry(self, sequence: int, first: int = 0) -> tuple[int, int] | None:
        """The last mapped sequence at or below this one, and its offset; or the next mapped one that lies at `first` or
        behind it. None if there is none."""
        sequences = list(self.seq_offset_mapping)
        index = max(0, bisect_right(sequences, sequence) - 1)
        if not first and (not sequences or sequences[0] > sequence):
            return None
        return next(((one, at) for one in sequences[index:] if (at := self.seq_offset_mapping[one]) >= first), None)

    def add(
        self, sequence: int, offset: int, size: int, *, map_every: int = MAP_EVERY, map_gap: int | None = None
    ) -> None:
        """Note a record of `size` bytes that counts. map_gap: it is mapped if so many records of other tables lie
        before it. Raises DamagedError if it is not the next one."""
        if sequence != self.next_seq_num or offset < self.current_high_watermark:
            raise DamagedError(
                f"the records of a table are not in order: sequence={sequence} expected={self.next_seq_num} "
                f"offset={offset} behind={self.current_high_watermark}"
            )
        mapping = self.seq_offset_mapping
        last = next(reversed(mapping), None)
        self._bytes += size
        is_behind_gap = map_gap is not None and offset - self.current_high_watermark >= map_gap
        if last is None or sequence - last >= map_every or self._bytes >= MAP_EVERY_BYTES or is_behind_gap:
            mapping[sequence] = offset
            self._bytes = 0
        self.payload_bytes += size
        self.next_seq_num = sequence + 1
        self.current_high_watermark = offset + 1

    def mark_deleted(self, below: int) -> None:
        """Mark everything below this sequence as deletable. Raises InvalidRequestError: beyond the next record, or
        below an earlier mark."""
        if not self.latest_marked_deleted <= below <= self.next_seq_num:
            raise InvalidRequestError(
                f"a mark lies between the last mark and the next record: below={below} "
                f"last_mark={self.latest_marked_deleted} next={self.next_seq_num}"
            )
        self.latest_marked_deleted = below
        if self.is_all_deleted:
            self.seq_offset_mapping.clear()
            return
        sequences = list(self.seq_offset_mapping)
        for sequence in sequences[: max(0, bisect_right(sequences, below) - 1)]:
            del self.seq_offset_mapping[sequence]


class RegionMeta:
    """The tables of one region, by id. dropped_end: the offset behind all records of tables that were dropped since
    this was made; a snapshot does not have it."""

    def __init__(self, *, map_every: int = MAP_EVERY) -> None:
        self.tables: dict[int, TableMeta] = {}
        self.dropped_end = 0
        self._map_every = map_every

    def add(self, table: int, sequence: int, offset: int, size: int) -> None:
        """See TableMeta.add. A sequence of 0 begins the table.

        A gap is `map_every` times as long as those of tables that take turns. So all gaps that are mapped are at most
        one in `map_every` records of the region.
        """
        found = self.tables.get(table)
        if found is None:
            found = self.tables[table] = TableMeta()
        if sequence == 0:
            found.begin = offset
            return
        found.add(sequence, offset, size, map_every=self._map_every, map_gap=self._map_every * len(self.tables))

    def drop(self, table: int) -> None:
        """Forget a table that nobody needs."""
        dropped = self.tables.pop(table, None)
        if dropped is not None:
            self.dropped_end = max(self.dropped_end, dropped.end)

    def known(self, table: int) -> TableMeta:
        """A table that has or had records. Raises InvalidRequestError."""
        found = self.tables.get(table)
        if found is None:
            raise InvalidRequestError(f"no record of this table was ever written: table={table}")
        return found

    def next_seq_num(self, table: int) -> int:
        """The sequence of the table's next record."""
        found = self.tables.get(table)
        return 1 if found is None else found.next_seq_num

    @property
    def safe_offset(self) -> int:
        """Everything below this offset may be deleted: the least first offset that some table needs; if none needs any,
        the offset behind the last record of all tables."""
        needed = [offset for t in self.tables.values() if (offset := t.first_needed) is not None]
        return min(needed) if needed else max([self.dropped_end, *(t.end for t in self.tables.values())])

    def table_snapshots(self) -> tuple[TableSnapshot, ...]:
        """The tables as a snapshot has them."""
        return tuple(
            TableSnapshot(
                table,
                meta.next_seq_num,
                meta.latest_marked_deleted,
                meta.current_high_watermark,
                tuple(meta.seq_offset_mapping.items()),
                meta.payload_bytes,
                meta.begin,
            )
            for table, meta in self.tables.items()
        )

    @classmethod
    def restored(cls, snapshot: RegionSnapshot, *, map_every: int = MAP_EVERY) -> RegionMeta:
        """The tables as they were when the snapshot was made."""
        made = cls(map_every=map_every)
        for t in snapshot.tables:
            made.tables[t.table] = TableMeta(
                t.next_seq_num,
                t.latest_marked_deleted,
                t.current_high_watermark,
                dict(t.mapping),
                t.payload_bytes,
                t.begin,
            )
        return made
