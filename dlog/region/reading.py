"""Reads the entries of a region that count, in order, from some offset to another.

The counting rule is a function of everything before an offset, and what lies before may be deleted. So a reader begins
at a record that is known to count (one of a table's mapping), and takes the rule in force from that record.

Invariants:
- Of each table the entries come in order. If the next one is missing, because the front of the topic was deleted by
  another program, this is reported before the table goes on.
- A reader of few tables passes over records of others only if the mapping shows where each table goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from dlog.errors import DLogError, InvalidRequestError
from dlog.region.counting import CountingRule, Placed, PlainEntry
from dlog.region.items import ItemReader, describe_passed_over, rule_at
from dlog.region.messages import FindStart, LostEntries, ReadingStart
from dlog.region.sizes import SEEK_BYTES, SEEK_TABLES_MAX, Sizes
from dlog.region.state import RegionState
from dlog.region.topics import Stored

NOTHING_COUNTS = CountingRule(nonce=b"unknown")  # up to the next fence: no batch has this nonce


class RegionEntry(NamedTuple):
    """An entry of a table. offset: in the data topic."""

    table: int
    sequence: int
    payload: bytes
    offset: int


def find_start(state: RegionState, first: int, request: FindStart, *, seek_bytes: int = SEEK_BYTES) -> ReadingStart:
    """Where a reader begins. first: the first offset that the data topic still has. seek_bytes: that it passes over at
    once, at least. Raises InvalidRequestError."""
    first = max(first, request.first)
    tables = state.meta.tables
    starts = tuple((number, 0) for number in tables) if request.starts is None else request.starts
    ends: dict[int, tuple[int, int, int]] = {}
    lost: list[LostEntries] = []
    for number, sequence in starts:
        table = state.meta.known(number)
        mark = max(1, table.latest_marked_deleted)
        if sequence > table.next_seq_num:
            raise InvalidRequestError(
                f"the sequence is beyond the next one: table={number} sequence={sequence} next={table.next_seq_num}"
            )
        if 0 < sequence < mark:
            lost.append(LostEntries(number, sequence, mark))
        ends[number] = (max(mark, sequence), table.next_seq_num, table.current_high_watermark)
    floors = [tables[number].floor(wanted) for number, (wanted, next, _) in ends.items() if wanted < next]
    end = state.offset
    begin = min(floors, default=end)
    if begin < first:  # the front was deleted by another program: begin at the first record behind it that counts
        known = [at for table in tables.values() for at in table.seq_offset_mapping.values() if at >= first]
        begin = min(known, default=end)
    found = {number: tables[number].floor_entry(wanted, begin) for number, (wanted, _, _) in ends.items()}
    return ReadingStart(
        begin,
        end,
        ends,
        tuple(lost),
        state.rule,
        tuple((number, entry[1], entry[0]) for number, entry in found.items() if entry is not None),
        () if state.rule.nonce else tuple((number, table.next_seq_num) for number, table in tables.items()),
        find_seeks(state, ends, seek_bytes) if request.starts is not None and len(ends) <= SEEK_TABLES_MAX else None,
    )


def find_seeks(
    state: RegionState, wanted: Collection[int], seek_bytes: int = SEEK_BYTES
) -> tuple[tuple[int, int, int], ...]:
    """Where a reader of few tables may go on: `seeks` of a ReadingStart."""
    tables = state.meta.tables
    sizes = Sizes(tables.values())
    return tuple(
        (number, sequence, there)
        for number in wanted
        for (_, here), (sequence, there) in pairwise(tables[number].seq_offset_mapping.items())
        if sizes.between(here, there) >= seek_bytes
    )


class PlainSequences:
    """The next sequence of each table, for entries in version 0, as far as a reader can know them. floors: by table,
    the offset and the sequence of a record that counts. known: at the reader's begin."""

    def __init__(
        self, floors: Iterable[tuple[int, int, int]] = (), known: Iterable[tuple[int, int]] = (), *, others: int = -1
    ) -> None:
        self._floors = {table: (offset, sequence) for table, offset, sequence in floors}
        self._next = dict(known)
        self._others = others

    def following(self, table: int) -> int:
        """The next sequence; `others` if it is not known. No entry has the sequence -1."""
        return self._next.get(table, self._others)

    def at(self, placed: Placed) -> None:
        """The reader comes to an item."""
        offset, item = placed
        floor = self._floors.get(item.entry.table) if isinstance(item, PlainEntry) else None
        if floor is not None and offset >= floor[0]:
            assert isinstance(item, PlainEntry)
            del self._floors[item.entry.table]
            self._next[item.entry.table] = floor[1]

    def counted(self, placed: Placed) -> None:
        """The item counts."""
        if isinstance(placed[1], PlainEntry):
            entry = placed[1].entry
            self._next[entry.table] = entry.sequence + 1


class EntryScan:
    """Picks the entries out of the records of the data topic, which are fed in order, from `start.begin` on.

    skips: leave out records that cannot be decoded, instead of raising; those that the scan seeks over are not looked
    at. problems: what was left out, one line each. next: by table, the sequence that is wanted next. beside: tables
    whose entries are returned too if the scan comes by them, each with the offset behind its last record that counts;
    set by the caller, also between two calls of `feed`.
    """

    def __init__(self, region: int, start: ReadingStart, *, skips: bool = False) -> None:
        self.problems: list[str] = []
        self.beside: Mapping[int, int] = {}
        self._region = region
        self._start = start
        self._lost = start.lost
        self._skips = skips
        self._reader = ItemReader(region, start.begin, start.end)
        self._rule: CountingRule | None = None
        self._plain = PlainSequences(start.floors)
        self._seeks = {(table, sequence): at for table, sequence, at in start.seeks or ()}
        self.next = {table: wanted for table, (wanted, _, _) in start.ends.items()}

    @property
    def offset(self) -> int:
        """Of the record that is wanted next."""
        return self._reader.offset

    @property
    def is_done(self) -> bool:
        """Whether everything up to the end was fed."""
        return self._reader.offset >= self._start.end

    def feed(self, records: Sequence[Stored]) -> Iterator[RegionEntry | LostEntries]:
        """Take the next records; none: the topic has no more. Raises DamagedError, UnsupportedVersionError."""
        lost, self._lost = self._lost, ()
        yield from lost
        if not records:
            self._reader.offset = self._start.end
        for found in self._reader.feed(records):
            if self._rule is None:
                first = self._reader.first
                self._rule = NOTHING_COUNTS if first is None else rule_at(first)  # without the record that counts
            if not isinstance(found, DLogError):
                yield from self._take(found)
            elif self._skips:
                self.problems.append(f"data topic: {found.message}")
            else:
                raise found
        self._seek()
        if self.is_done:
            for table, (_, end, _) in self._start.ends.items():
                if self.next[table] < end:
                    yield LostEntries(table, self.next[table], end)
                    self.next[table] = end

    def _seek(self) -> None:
        """Go on behind records of which none is wanted, as a reader that begins there. None of a batch that is not
        complete is wanted either: what is wanted next lies at a mapped offset, which is not reached yet."""
        is_fenced = self._rule is not None and bool(self._rule.nonce)  # version 0 counts by the sequences before
        if self._start.seeks is None or not is_fenced:
            return
        ends, end = self._start.ends, self._start.end
        at = min(
            (
                self._seeks.get((table, wanted), self.offset) if wanted < ends[table][1] else end
                for table, wanted in self.next.items()
            ),
            default=end,
        )
        if at > self.offset:
            self._reader = ItemReader(self._region, at, end)
            self._rule = None

    def _take(self, placed: Placed) -> Iterator[RegionEntry | LostEntries]:
        """The wanted entries of an item."""
        rule = self._rule
        assert rule is not None, "a record was taken"
        self._plain.at(placed)
        self._rule, counting = rule.after_placed(placed, self._plain.following)
        if isinstance(placed[1], PlainEntry):
            self._take_plain(placed, rule, is_counting=bool(counting))
        ends, following = self._start.ends, self.next
        for offset, entry in counting:
            table, sequence = entry.table, entry.sequence
            wanted = ends.get(table)
            if wanted is None:
                if sequence and offset < self.beside.get(table, 0):
                    yield RegionEntry(table, sequence, entry.payload, offset)
                continue
            _, end, watermark = wanted
            expected = following[table]
            if offset >= watermark or not expected <= sequence < end:
                continue  # behind the end of its table, or not wanted
            if sequence > expected:
                yield LostEntries(table, expected, sequence)
            following[table] = sequence + 1
            yield RegionEntry(table, sequence, entry.payload, offset)

    def _take_plain(self, placed: Placed, rule: CountingRule, *, is_counting: bool) -> None:
        """Note an entry in version 0, or why it is passed over."""
        assert isinstance(placed[1], PlainEntry), "the caller looked"
        following = self._plain.following(placed[1].entry.table)
        if is_counting:
            self._plain.counted(placed)
        elif (following >= 0 or rule.nonce) and (reason := describe_passed_over(placed, rule, following)) is not None:
            self.problems.append(f"data topic: {reason}")


class TailScan:
    """Picks out the entries that begin to count at or behind `start.end`. An entry that is visible is final.

    tables: those that are wanted; None: all.
    """

    def __init__(self, region: int, start: ReadingStart, tables: frozenset[int] | None, *, skips: bool = False) -> None:
        self._tables = tables
        self._rule = start.rule
        self._plain = PlainSequences(known=start.following, others=1)
        self._reader = ItemReader(region, start.end)
        self._skips = skips

    @property
    def offset(self) -> int:
        """Of the record that is wanted next."""
        return self._reader.offset

    def feed(self, records: Sequence[Stored]) -> Iterator[RegionEntry]:
        """Take the next records. Raises DamagedError, UnsupportedVersionError."""
        for found in self._reader.feed(records):
            if isinstance(found, DLogError):
                if not self._skips:
                    raise found
                continue
            self._rule, counting = self._rule.after_placed(found, self._plain.following)
            if counting:
                self._plain.counted(found)
            for offset, entry in counting:
                if entry.sequence and (self._tables is None or entry.table in self._tables):
                    yield RegionEntry(entry.table, entry.sequence, entry.payload, offset)
