"""The state of a region as of some offset of its data topic: the counting rule, and what is known of the tables.

Invariants:
- The state is a function of the topic's contents below `offset`, but for the marks, which snapshots and check-points
  carry. So every snapshot that verifies, and none, lead to the same state.
"""

from __future__ import annotations

from dlog.region.counting import Checkpoint, CountingRule, Item, Placed, PlacedEntry, TableDropped, record_count
from dlog.region.tables import MAP_EVERY, RegionMeta
from dlog.wire.region import RegionSnapshot, decode_snapshot


class RegionState:
    """offset: everything below is applied. rule: behind it. meta: the tables."""

    def __init__(
        self, offset: int = 0, rule: CountingRule | None = None, meta: RegionMeta | None = None, *, map_every: int
    ) -> None:
        self.offset = offset
        self.rule = rule or CountingRule()
        self.meta = meta or RegionMeta(map_every=map_every)

    @classmethod
    def restored(cls, snapshot: RegionSnapshot, *, map_every: int = MAP_EVERY) -> RegionState:
        """The state that a snapshot has."""
        rule = CountingRule(snapshot.epoch, snapshot.nonce, snapshot.number, frozenset(snapshot.ended))
        return cls(snapshot.offset, rule, RegionMeta.restored(snapshot, map_every=map_every), map_every=map_every)

    @property
    def is_plain(self) -> bool:
        """Whether the region has entries in version 0 and no fence, so that more of them count."""
        return not self.rule.nonce and bool(self.meta.tables)

    def snapshot(self) -> RegionSnapshot:
        """The state as a snapshot."""
        rule = self.rule
        return RegionSnapshot(
            self.offset, rule.epoch, rule.nonce, rule.number, tuple(sorted(rule.ended)), self.meta.table_snapshots()
        )

    def apply(self, placed: Placed) -> tuple[PlacedEntry, ...]:
        """Apply the next item of the topic; returns the entries that count. Raises DamagedError if they do not follow
        those before."""
        rule, counting = self.rule.after_placed(placed, self.meta.next_seq_num)
        self.add(counting)
        offset, item = placed
        self.note(item)
        self.rule = rule
        self.offset = offset + record_count(item)
        return counting

    def add(self, counting: tuple[PlacedEntry, ...]) -> None:
        """Note entries that count."""
        for offset, entry in counting:
            self.meta.add(entry.table, entry.sequence, offset, len(entry.payload))

    def note(self, item: Item) -> None:
        """Note what an item says of whole tables. The entries that count up to it are added before."""
        match item:
            case Checkpoint(snapshot):
                self._take_marks(decode_snapshot(snapshot))
            case TableDropped(table):
                self.meta.drop(table)

    def _take_marks(self, snapshot: RegionSnapshot) -> None:
        """Take over the marks of a check-point: a snapshot that is older than it, or none, does not have them."""
        for table in snapshot.tables:
            known = self.meta.tables.get(table.table)
            if known is not None and known.latest_marked_deleted < table.latest_marked_deleted <= known.next_seq_num:
                known.mark_deleted(table.latest_marked_deleted)
