"""Divides a region into pieces that are read independently of each other, in any order.

The counting rule is a function of everything before an offset. So a piece begins with the item of a record that is
known to count, one of a table's mapping: the item's own first record has the rule that is in force there. Which tables
have ended is known from the state of the region: nothing of a table counts behind its high watermark.

Entries in version 0 count by the sequences before them, so all of them are in one piece.

Invariants:
- What the pieces have of the wanted tables, one piece after another, is what `EntryScan` has of them; each entry is in
  one piece.
- An item is in one piece, unless the front of the topic was deleted within it.
- A piece is read only in the region that it was planned for: its first record has the nonce of an owner.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dlog.errors import DamagedError, DLogError
from dlog.region.counting import CountingRule, Entry, Placed, record_count
from dlog.region.items import ItemReader, decode_stored, rule_at
from dlog.region.reading import PlainSequences, RegionEntry
from dlog.region.sizes import SEEK_BYTES, SEEK_TABLES_MAX, Sizes
from dlog.region.state import RegionState
from dlog.region.tables import TableMeta
from dlog.region.topics import Stored
from dlog.values import Columns
from dlog.wire.region import RecordKind, RegionRecord

Seek = tuple[int, int, int]  # a table, a sequence, and the offset of its record


@dataclass(frozen=True, slots=True)
class WantedTable:
    """first: the sequence that is wanted first. next: that of the table's next record. end: the offset behind its last
    one."""

    first: int
    next: int
    end: int


@dataclass(frozen=True, slots=True)
class CutPoint:
    """A record that counts, where a piece may begin. bytes: of the records up to the next point, about."""

    offset: int
    table: int
    sequence: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Offsets `begin` <= offset < `end`. epoch, nonce, number: of the rule in force at `begin`. starts: tables whose
    next sequence at `begin` is known. seeks: where a reader of few tables may go on, once it wants this sequence.
    floors: of wanted tables, a record that counts: table, offset, sequence; only where entries in version 0 count."""

    begin: int
    end: int
    epoch: int
    nonce: bytes
    number: int
    starts: tuple[tuple[int, int], ...] = ()
    seeks: tuple[Seek, ...] = ()
    floors: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Cut:
    """The beginning of a piece: the item of a point, and the rule in force there."""

    point: CutPoint
    begin: int
    epoch: int
    nonce: bytes
    number: int

    def may_follow(self, other: Cut) -> bool:
        """Whether a piece may begin here, behind one that begins at the other cut."""
        return self.begin > other.begin and bool(self.nonce)


class PiecePlan:
    """Finds where pieces of a region may begin. The caller reads the record of each point that it chooses.

    wanted: by table, the sequence that is wanted first. first: the first offset that the data topic has. points: in
    their order, none if nothing is wanted. end: behind the last record that is wanted.
    """

    def __init__(
        self, region: int, state: RegionState, wanted: Mapping[int, int], first: int, *, seek_bytes: int = SEEK_BYTES
    ) -> None:
        self._region = region
        self._first = first
        self._seek_bytes = seek_bytes
        self._tables = state.meta.tables
        self._live = {
            number: _LiveTable(self._tables[number], sequence)
            for number, sequence in wanted.items()
            if sequence < self._tables[number].next_seq_num
        }
        self._sizes = Sizes(self._tables.values())
        self.end = max((table.meta.current_high_watermark for table in self._live.values()), default=0)
        self.points = self._find_points() if self._live else ()

    def cut(self, point: CutPoint, stored: Stored) -> Cut:
        """The beginning of a piece at a point. stored: the record of the point.

        Raises DamagedError, UnsupportedVersionError: the record cannot be used, so no piece begins there.
        """
        record = decode_stored(self._region, stored)
        found = (stored.offset, record.kind, record.table, record.sequence)
        if found != (point.offset, RecordKind.ENTRY, point.table, point.sequence):
            raise DamagedError(
                f"the record is not the one that the region's state names: table={point.table} "
                f"sequence={point.sequence} offset={point.offset}"
            )
        begin = max(self._first, point.offset - record.position)
        rule = rule_at(record)
        return Cut(point, begin, rule.epoch, rule.nonce, rule.number)

    def piece(self, cut: Cut, end: int) -> Piece:
        """The piece from a cut on, up to the next one, or to the end."""
        point = cut.point
        few = self._live if len(self._live) <= SEEK_TABLES_MAX else {}
        starts = {point.table: point.sequence} if point.table in few else {}
        seeks: list[Seek] = []
        for number, table in few.items():
            if table.floor > point.offset:
                starts[number] = table.floor_sequence
                seeks.append((number, table.floor_sequence, table.floor))
            seeks += (
                (number, *there)
                for here, there in table.steps(point.offset, end)
                if self._sizes.between(max(point.offset, here), there[1]) >= self._seek_bytes
            )
        return Piece(
            begin=cut.begin,
            end=end,
            epoch=cut.epoch,
            nonce=cut.nonce,
            number=cut.number,
            starts=tuple(starts.items()),
            seeks=tuple(dict.fromkeys(seeks)),
            floors=() if cut.nonce else self._floors(cut.begin),
        )

    def _floors(self, begin: int) -> tuple[tuple[int, int, int], ...]:
        found = {number: table.meta.floor_entry(table.first, begin) for number, table in self._live.items()}
        return tuple((number, entry[1], entry[0]) for number, entry in found.items() if entry is not None)

    def _find_points(self) -> tuple[CutPoint, ...]:
        begin = max(self._first, min(table.floor for table in self._live.values()))
        known = _by_offset({number: self._tables[number] for number in self._live})
        if begin not in known:  # the front was deleted by another program: begin at the first record that counts
            known |= _by_offset(self._tables)
            begin = min((at for at in known if at >= begin), default=self.end)
        offsets = sorted(at for at in known if begin <= at < self.end)
        return tuple(
            CutPoint(at, *known[at], self._sizes.between(at, following))
            for at, following in pairwise([*offsets, self.end])
        )


class _LiveTable:
    """A table that is wanted from the sequence `first` on. floor: offset of the last mapped record at or before that
    one; floor_sequence: its sequence."""

    def __init__(self, meta: TableMeta, first: int) -> None:
        self.meta = meta
        self.first = first
        self._sequences = list(meta.seq_offset_mapping)
        self._offsets = list(meta.seq_offset_mapping.values())
        at = bisect_right(self._sequences, first) - 1
        self.floor, self.floor_sequence = (self._offsets[at], self._sequences[at]) if at >= 0 else (0, 0)

    def steps(self, begin: int, end: int) -> Iterable[tuple[int, tuple[int, int]]]:
        """For each mapped record from the last one before `begin` up to `end`: its offset, and the sequence and offset
        of the next one."""
        low, high = bisect_right(self._offsets, begin) - 1, bisect_left(self._offsets, end)
        for at in range(max(0, low), min(high, len(self._offsets) - 1)):
            yield self._offsets[at], (self._sequences[at + 1], self._offsets[at + 1])


def _by_offset(tables: Mapping[int, TableMeta]) -> dict[int, tuple[int, int]]:
    """The mapped records of tables: a table and a sequence by offset."""
    return {
        at: (number, sequence) for number, meta in tables.items() for sequence, at in meta.seq_offset_mapping.items()
    }


_Found = tuple[list[Any], ...]  # the fields of RegionEntry, as columns


class PieceScan:
    """Picks the wanted entries out of the records of a piece, which are fed from `offset` on.

    skips: leave out records that cannot be decoded, instead of raising. problems: what was left out, one line each.
    """

    def __init__(self, region: int, piece: Piece, wanted: Mapping[int, WantedTable], *, skips: bool = False) -> None:
        self.problems: list[str] = []
        self.is_done = False
        self._region = region
        self._piece = piece
        self._wanted = wanted
        self._skips = skips
        self._reader = ItemReader(region, piece.begin, piece.end)
        self._rule = CountingRule(piece.epoch, piece.nonce, piece.number)
        self._plain = PlainSequences(piece.floors)
        self._is_at_begin = True
        self._is_behind_seek = False
        self._next = dict(piece.starts)
        self._seeks = {(table, sequence): at for table, sequence, at in piece.seeks}

    @property
    def offset(self) -> int:
        """Of the record that is wanted next."""
        return self._reader.offset

    def feed(self, records: Sequence[Stored]) -> Columns[RegionEntry]:
        """Take the next records, at least one. Raises DamagedError, UnsupportedVersionError."""
        found: _Found = ([], [], [], [])
        for one in self._reader.feed(records):
            if self._reader.first is not None:
                self._begin(self._reader.first)
            if not isinstance(one, DLogError):
                self._take(one, found)
            elif self._skips:
                self._is_at_begin = False
                self.problems.append(f"data topic: {one.message}")
            else:
                raise one
        if self.offset >= self._piece.end and not self._reader.is_within_batch:  # the last one may end within a batch
            self.is_done = True
        else:
            self._seek()
        return Columns(RegionEntry, found)

    def _begin(self, first: RegionRecord) -> None:
        """Take the rule of the first record of the piece, or behind a seek, unless that was done."""
        if self._is_at_begin:
            self._is_at_begin = False
            if rule_at(first) != self._rule:
                raise DamagedError(
                    f"another region has been created under this name, plan again: offset={self._piece.begin}"
                )
        if self._is_behind_seek:
            self._is_behind_seek = False
            self._rule = rule_at(first)

    def _take(self, placed: Placed, found: _Found) -> None:
        """Add the wanted entries of an item."""
        self._plain.at(placed)
        rule = self._rule
        self._rule, entries = rule.after(placed[1], self._plain.following)
        if not entries:
            return
        offsets: Sequence[int] = range(placed[0], placed[0] + len(entries))
        if len(entries) < record_count(placed[1]):  # some tables have ended
            offsets = [offset for offset, _ in rule.after_placed(placed)[1]]
        self._plain.counted(placed)
        columns = (*Columns.of(Entry, entries).columns, offsets)
        kept = []
        wanted_of, following = self._wanted.get, self._next
        for at, (table, sequence, _, offset) in enumerate(zip(*columns, strict=True)):
            wanted = wanted_of(table)
            if wanted is None or offset >= wanted.end or not sequence:
                continue  # behind the end of its table, or dropped, or not wanted
            if sequence >= following.get(table, 0):
                following[table] = sequence + 1
            if sequence >= wanted.first:
                kept.append(at)
        for into, column in zip(found, columns, strict=True):
            into += column if len(kept) == len(column) else [column[at] for at in kept]

    def _seek(self) -> None:
        """Go on behind records of which none is wanted, if the mapping shows where."""
        if self._skips or len(self._wanted) > SEEK_TABLES_MAX or self._reader.is_within_batch:
            return  # a batch counts when it is complete
        end = self._piece.end
        lowest = min((self._lower_bound(table, wanted) for table, wanted in self._wanted.items()), default=end)
        if lowest >= end:
            self.is_done = True
        elif lowest > self.offset:
            self._reader = ItemReader(self._region, lowest, end)
            self._is_behind_seek = True

    def _lower_bound(self, table: int, wanted: WantedTable) -> int:
        """An offset at or before the next record of a table that is wanted."""
        following = self._next.get(table)
        if wanted.end <= self.offset or (following is not None and following >= wanted.next):
            return self._piece.end
        return self.offset if following is None else self._seeks.get((table, following), self.offset)
