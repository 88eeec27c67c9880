"""What must hold of a region: an independent reading of the whole data topic, which never forgets, and what callers
were told.

The invariants, K1 and so on, are in invariants.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from dlog.region.counting import Checkpoint, CountingRule, Entry, Item, TableDropped, TableEnd
from dlog.region.items import ItemReader
from dlog.region.messages import LostEntries
from dlog.region.reading import RegionEntry
from dlog.region.state import RegionState
from dlog.region.topics import RecordBytes, Stored
from dlog.wire.region import RegionSnapshot, decode_record, decode_snapshot
from tests.simulation.kernel import Violation


class Written(NamedTuple):
    """An entry that counts."""

    offset: int
    payload: bytes


class Live(NamedTuple):
    """A table that was not dropped, as of one offset. begin: 0 if no record began it."""

    entries: int = 0
    watermark: int = 0
    begin: int = 0
    payload_bytes: int = 0


@dataclass(slots=True)
class Known:
    """The state as of one offset."""

    rule: CountingRule
    tables: dict[int, Live] = field(default_factory=dict)


class Truth:
    """The whole data topic, read by the counting rule alone. ends, drops: by table, the offset of the first record that
    ends it for good, and of the first one that drops it. retired_at: behind it nothing may count any more."""

    def __init__(self, region: int) -> None:
        self.tables: dict[int, list[Written]] = {}
        self.begins: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.drops: dict[int, int] = {}
        self.retired_at: int | None = None
        self.at: dict[int, Known] = {0: Known(CountingRule())}  # by offset behind an item
        self.checkpoints: list[tuple[int, RegionSnapshot]] = []
        self._live: dict[int, Live] = {}
        self.next = 0
        self._rule = CountingRule()
        self._reader = ItemReader(region, 0)

    def appended(self, offset: int, records: Sequence[RecordBytes]) -> None:
        """Records became durable. Known ones are left out: a topic reads them again after a crash."""
        if offset < self.next:
            return
        assert offset == self.next, "a topic has no gaps"
        for key, value in records:
            found = next(self._reader.feed([Stored(self.next, key, value)]), None)
            self.next += 1
            if found is None:
                continue
            assert isinstance(found, tuple), f"only records of regions are appended: {found}"
            placed = found
            self._rule, counting = self._rule.after_placed(placed, self._following)
            for at, entry in counting:
                self._count(at, entry)
            self._note(*placed)
            self.at[self.next] = Known(self._rule, dict(self._live))

    def _following(self, table: int) -> int:
        return len(self.tables.get(table, ())) + 1

    @property
    def rule(self) -> CountingRule:
        """The rule at the end."""
        return self._rule

    def _count(self, at: int, entry: Entry) -> None:
        """An entry counts."""
        table, sequence, payload = entry.table, entry.sequence, entry.payload
        if self.retired_at is not None and at >= self.retired_at:
            raise Violation("K10", f"table {table} has an entry at {at}, the region is retired at {self.retired_at}")
        if table in self.drops:
            raise Violation("K9", f"table {table} was dropped at {self.drops[table]} and has an entry at {at}")
        if table in self.ends:
            raise Violation("K7", f"table {table} has ended at {self.ends[table]} and has an entry at {at}")
        written = self.tables.setdefault(table, [])
        known = self._live.get(table, Live())
        if sequence == 0:
            if known != Live():
                raise Violation("K3", f"table {table} is begun at {at}, and is there already: {known}")
            self.begins[table] = at
            self._live[table] = Live(begin=at)
            return
        if sequence != len(written) + 1:
            raise Violation("K3", f"table {table} has {len(written)} entries and then sequence {sequence}")
        written.append(Written(at, payload))
        self._live[table] = Live(sequence, at + 1, known.begin, known.payload_bytes + len(payload))

    def _note(self, offset: int, item: Item) -> None:
        """What an item says of whole tables, or of the region."""
        match item:
            case TableEnd(table):
                self.ends.setdefault(table, offset)
            case TableDropped(table):
                self.ends.setdefault(table, offset)
                self.drops.setdefault(table, offset)
                self._live.pop(table, None)
            case Checkpoint(snapshot):
                self.checkpoints.append((offset, decode_snapshot(snapshot)))


class RegionChecks:
    """Judges what owners and readers say."""

    def __init__(self, region: int, map_every: int, *, is_plain: bool = False) -> None:
        self._is_plain = is_plain
        self.truth = Truth(region)
        self.snapshots: list[tuple[int, RegionSnapshot]] = []  # durable in the meta topic, by offset
        self.meta_first = 0
        self.data_first = 0
        self.cut_first = 0  # below it another program deleted records
        self.cut_snapshots = 0  # below it another program deleted snapshots
        self.marks: dict[int, int] = {}  # the highest that a caller asked for
        self.safe_marks: dict[
            int, tuple[int, int]
        ] = {}  # the highest that must outlive every crash, from which offset on
        self.acked: dict[tuple[int, int], bytes] = {}
        self.submitted: dict[int, list[bytes]] = {}  # by table of one writer: payloads in the order of their sequences
        self.refused: set[bytes] = set()  # payloads of writes that were answered as not written
        self.writes: dict[bytes, tuple[tuple[int, bytes], ...]] = {}  # by each payload: the entries of its write
        self.refused_in_part: list[tuple[tuple[int, bytes], ...]] = []  # writes answered with TableEndedError
        self.refused_begins: set[int] = set()  # tables whose begin was answered as not written
        self._map_every = map_every

    # ---- topics ------------------------------------------------------------------------------------------------------

    def snapshot_appended(self, offset: int, records: Sequence[RecordBytes]) -> None:
        if self.snapshots and offset <= self.snapshots[-1][0]:
            return
        for number, (key, value) in enumerate(records):
            snapshot = decode_snapshot(decode_record(key, value).payload)
            back = [
                t.table for t in snapshot.tables if self.truth.drops.get(t.table, snapshot.offset) < snapshot.offset
            ]
            if back:
                raise Violation("K9", f"a snapshot at {snapshot.offset} has tables that were dropped before: {back}")
            self.snapshots.append((offset + number, snapshot))

    def deleted(self, offset: int) -> None:
        """An owner or a follower deleted the front of the data topic below an offset."""
        if offset <= self.data_first:
            return
        self.data_first = offset
        for table, written in self.truth.tables.items():
            mark = self.marks.get(table, 0)
            if table in self.truth.drops:
                continue
            if self.truth.begins.get(table, offset) < offset and mark <= 1:
                raise Violation("K2", f"the record that began table {table} was deleted, its mark is {mark}")
            for sequence, one in enumerate(written, 1):
                if one.offset < offset and sequence >= mark:
                    raise Violation("K2", f"record {sequence} of table {table} was deleted, its mark is {mark}")
        behind = [snapshot for at, snapshot in self.truth.checkpoints if at >= offset <= snapshot.offset]
        kept = [
            snapshot
            for at, snapshot in self.snapshots
            if (at >= self.meta_first or at < self.cut_snapshots) and snapshot.offset >= offset
        ]
        if not behind or not kept:
            raise Violation(
                "K2", f"deleted below {offset} with {len(behind)} check-points behind it and {len(kept)} snapshots"
            )

    # ---- callers -----------------------------------------------------------------------------------------------------

    def acknowledged(self, entries: Sequence[tuple[int, bytes]], sequences: Sequence[int]) -> None:
        for (table, payload), sequence in zip(entries, sequences, strict=True):
            written = self.truth.tables.get(table, [])
            if not 1 <= sequence <= len(written) or written[sequence - 1].payload != payload:
                raise Violation("K5", f"acknowledged and does not count: table {table} sequence {sequence} {payload!r}")
            if self.acked.get((table, sequence), payload) != payload:
                raise Violation("K3", f"sequence {sequence} of table {table} was given out twice")
            self.acked[table, sequence] = payload

    def state_is(self, state: RegionState, *, is_new: bool = False, invariant: str = "K1") -> None:
        """Compare what a machine knows with the truth at the same offset. is_new: it has just opened the region."""
        known = self.truth.at.get(state.offset)
        if known is None:
            raise Violation(invariant, f"offset {state.offset} is inside an item, or beyond the end")
        if state.rule != known.rule:
            raise Violation(invariant, f"the rule at {state.offset} is {known.rule}, not {state.rule}")
        tables = {
            table: Live(meta.next_seq_num - 1, meta.current_high_watermark, meta.begin, meta.payload_bytes)
            for table, meta in state.meta.tables.items()
        }
        if tables != known.tables:
            back = [table for table in tables if self.truth.drops.get(table, state.offset) < state.offset]
            raise Violation("K9" if back else invariant, f"at {state.offset} {tables} instead of {known.tables}")
        for table, meta in state.meta.tables.items():
            mark = meta.latest_marked_deleted
            safe, at = self.safe_marks.get(table, (0, 0))
            if mark > self.marks.get(table, 0) or (is_new and state.offset > at and mark < safe):
                raise Violation(
                    invariant, f"the mark of table {table} is {mark}, of {self.marks} and {self.safe_marks}"
                )
            for sequence, at in meta.seq_offset_mapping.items():
                if self.truth.tables[table][sequence - 1].offset != at:
                    raise Violation(invariant, f"sequence {sequence} of table {table} is not at {at}")
            self._check_floors(invariant, table, max(1, mark), meta.next_seq_num, list(meta.seq_offset_mapping))

    def _check_floors(self, invariant: str, table: int, first: int, next: int, mapped: list[int]) -> None:
        """A mapped sequence is near each live one, so a reader passes few records of its table in vain."""
        if first < next and not (mapped and mapped[0] <= first):
            raise Violation(invariant, f"no floor of sequence {first} of table {table}: {mapped}")
        for one, other in pairwise([*mapped, next]):
            if first < next and other - one > self._map_every:
                raise Violation(invariant, f"no floor between {one} and {other} of table {table}")

    def dropped(self, table: int, next: int) -> None:
        """Dropping a table, whose next sequence was at least `next`, is acknowledged: the mark outlives every crash."""
        marks = [
            (t.latest_marked_deleted, at)
            for at, made in self.truth.checkpoints
            for t in made.tables
            if t.table == table
        ]
        safe = [at for mark, at in marks if mark >= next]
        if not safe:
            raise Violation("K1", f"table {table} is dropped up to {next}, and no check-point has that: {marks}")
        self.safe_marks[table] = max(self.safe_marks.get(table, (0, 0)), (next, safe[0]))

    def read(
        self,
        state: RegionState,
        found: Sequence[RegionEntry | LostEntries],
        first: int,
        only: int | None = None,
    ) -> None:
        """A reader of the whole region, or of one table only, from the marks of this state to its offset. first: of the
        data topic.

        If more is deleted than this state knows of (by another program, or by a later owner), what lies between the
        front and the next mapped record may be told as lost: from a record that counts a reader takes the rule for all
        tables. In version 0 it takes from it only the next sequence of the record's own table.
        """
        firsts = dict.fromkeys(state.meta.tables, first)
        if state.meta.safe_offset < first:
            mapped = {t: meta.seq_offset_mapping.values() for t, meta in state.meta.tables.items()}
            every = [at for offsets in mapped.values() for at in offsets]
            for table, offsets in mapped.items():
                known = offsets if self._is_plain else every
                firsts[table] = min((at for at in known if at >= first), default=state.offset)
        seen: dict[int, list[tuple[int, bytes]]] = {}
        lost: set[int] = set()
        for one in found:
            if isinstance(one, LostEntries):
                lost.add(one.table)
            else:
                seen.setdefault(one.table, []).append((one.sequence, one.payload))
        assert only is None or seen.keys() | lost <= {only}, "no other table was wanted"
        for table, meta in state.meta.tables.items():
            if only not in (None, table):
                continue
            mark = max(1, meta.latest_marked_deleted)
            wanted = [
                (sequence, one.payload)
                for sequence, one in enumerate(self.truth.tables[table], 1)
                if mark <= sequence < meta.next_seq_num
            ]
            got = seen.get(table, [])
            if got != wanted[len(wanted) - len(got) :]:
                raise Violation("K4", f"table {table}: read {got}, of {wanted}")
            missing = wanted[: len(wanted) - len(got)]
            if bool(missing) != (table in lost):
                raise Violation("K4", f"table {table}: {len(missing)} records are missing, told: {table in lost}")
            positions = [self.truth.tables[table][sequence - 1].offset for sequence, _ in missing]
            if missing and positions[0] >= firsts[table]:
                raise Violation("K4", f"table {table}: {missing[0]} is there and was not read")

    def followed(self, begin: int, end: int, seen: Sequence[RegionEntry]) -> None:
        """A follower that began at one offset has read up to another; a batch may be cut in two by the latter."""
        expected = [
            (one.offset, table, sequence, one.payload)
            for table, written in self.truth.tables.items()
            for sequence, one in enumerate(written, 1)
            if begin <= one.offset < end
        ]
        got = [(one.offset, one.table, one.sequence, one.payload) for one in seen]
        if got != sorted(expected)[: len(got)]:
            raise Violation("K4", f"a follower from {begin} on saw {got} of {sorted(expected)}")
        if end in self.truth.at and len(got) < len(expected):
            raise Violation("K4", f"a follower from {begin} to {end} missed {sorted(expected)[len(got) :]}")

    # ---- tables with a begin and an end ------------------------------------------------------------------------------

    def begun(self, table: int, offset: int) -> None:
        """BeginTable is acknowledged."""
        if self.truth.begins.get(table) != offset:
            raise Violation("K5", f"table {table} is begun at {offset}, of {self.truth.begins.get(table)}")

    def ended(self, table: int, entries: int, payload_bytes: int | None = None) -> None:
        """Somebody is told how many entries an ended table has. Entries behind the end never count, see Truth."""
        written = self.truth.tables.get(table, [])
        size = sum(len(one.payload) for one in written)
        if table not in self.truth.ends or entries != len(written) or payload_bytes not in (None, size):
            end = self.truth.ends.get(table)
            raise Violation(
                "K7", f"table {table} ends with {entries} of {len(written)} entries, {payload_bytes} of {size} at {end}"
            )

    def not_found(self, table: int) -> None:
        """Somebody who asked for a table's end is told that there is none: then it is never begun any more."""
        if table not in self.truth.ends or (table in self.truth.tables and table not in self.truth.drops):
            raise Violation("K7", f"table {table} was not found, and is there or may be begun")

    def refused_as_ended(self, table: int) -> None:
        """Somebody is told that a table has ended."""
        if table not in self.truth.ends:
            raise Violation("K7", f"table {table} is said to have ended, and has not")

    def removed(self, table: int) -> None:
        """RemoveTable is acknowledged. What is in the truth survives every crash."""
        if table not in self.truth.drops and (table not in self.truth.ends or table in self.truth.tables):
            raise Violation("K9", f"table {table} is removed, and was not dropped")

    def retired(self) -> None:
        """RetireRegion is answered with True. From now on nothing counts, see Truth."""
        left = [table for table in self.truth.tables if table not in self.truth.drops]
        if left:
            raise Violation("K10", f"the region is retired and has tables: {left}")
        if self.truth.retired_at is None:
            self.truth.retired_at = self.truth.next

    def caught_up(self, state: RegionState, end: int) -> None:
        """A follower has caught up, and was asked when the topic ended at this offset."""
        if state.offset < end:
            raise Violation("K8", f"a follower has caught up with {end}, and its state is that at {state.offset}")

    def recent(self, table: int, first: int, payloads: Sequence[bytes]) -> None:
        """A follower has these among its newest entries, from a sequence on."""
        written = [one.payload for one in self.truth.tables.get(table, [])[first - 1 :][: len(payloads)]]
        if list(payloads) != written:
            raise Violation("K8", f"of table {table} from {first} on {payloads} instead of {written}")

    # ---- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Judge the whole history."""
        for table, submitted in self.submitted.items():
            counting = [one.payload for one in self.truth.tables.get(table, ())]
            if counting != submitted[: len(counting)]:
                raise Violation("K12", f"table {table} has {counting}, of {submitted} in this order")
        count: dict[bytes, int] = {}
        for written in self.truth.tables.values():
            for one in written:
                count[one.payload] = count.get(one.payload, 0) + 1
        for (table, sequence), payload in self.acked.items():
            if self.truth.tables[table][sequence - 1].payload != payload:
                raise Violation("K4", f"sequence {sequence} of table {table} is not what was acknowledged")
        for payload, times in count.items():
            if times > 1:
                raise Violation("K4", f"{payload!r} counts {times} times")
            if payload in self.refused:
                raise Violation("K4", f"{payload!r} counts and was answered as not written")
            if self._is_plain:
                continue  # a late write of a dead owner may count in part
            if any(other not in count and table not in self.truth.ends for table, other in self.writes[payload]):
                raise Violation("K4", f"a part of the write of {payload!r} counts")
        for write in self.refused_in_part:
            if all(payload in count for _, payload in write):
                raise Violation("K4", f"{write} counts and was answered as ended in part")
        if begun := self.refused_begins.intersection(self.truth.begins):
            raise Violation("K4", f"tables {begun} are begun and that was answered as not written")
