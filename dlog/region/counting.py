"""Decides which entries of a region's topic count. Readers, recoveries and the writer itself use this one rule.

A topic refuses nothing: batches of a deposed writer, and second copies of batches whose answer was lost, are appended
like all others. So the order of the topic decides. An owner begins with a fence. Behind it only batches with the
fence's nonce count, each once and in the order in which they were made. Ending a table (by its writer, or by a
recovery) makes everything of that table behind it void.

Entries in version 0 (HoraeDB's format) have no nonce, so they count only in front of the first fence. There an entry
counts if its sequence is the next one of its table; another copy of it, or a sequence beyond, is passed over.

Invariants:
- The rule depends on the topic's contents alone: all who read to the same offset agree.
- A writer acknowledges an entry only after it has applied the rule to every offset up to its batch. It knows the offset
  that its batch gets if no other writer appends anything; only at another offset it must read what lies between.
- A fence with an epoch that is not higher than the epoch of the fence in force is void. Otherwise a second copy of an
  old fence would revive its writer.
- After an unknown outcome a writer begins again with a new fence and a new nonce. What it appended before and does not
  lie in front of that fence never counts, so its sequence numbers can be given out again.
- A table that has ended or was dropped is never used again, nor is a region behind a fence with FINAL_EPOCH.
- No entry in version 0 counts behind a fence, so nothing that is said here of fences depends on them. Of several
  writers in version 0 the rule recognises none: their callers must see to it that there is one at a time.

tests/simulation/region_fencing.py explores every order of events of a small region: two owners, two recoveries, lost
answers, and batches that land late or twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dlog.values import value

FINAL_EPOCH = (1 << 64) - 1  # of a fence that retires the region: none is higher, so no owner begins behind it


class Entry(NamedTuple):
    """One entry of a table. sequence: its number in the table; the first is 1. 0: it begins the table, which has no
    entries yet, and its payload describes the table."""

    table: int
    sequence: int
    payload: bytes = b""


@value
class Batch:
    """Entries that are appended together, all or none. nonce: of the writer's fence. number: of the batch among those
    made under this nonce; the first is 0."""

    nonce: bytes
    number: int
    entries: Sequence[Entry]


@value
class PlainEntry:
    """An entry in version 0, without a nonce. Those of one write are appended together, each is an item."""

    entry: Entry


@value
class RegionFence:
    """Begins the work of one owner. nonce: never used before. epoch: above those of all fences that its owner knows."""

    nonce: bytes
    epoch: int


@value
class TableEnd:
    """Ends a table for good, appended by its writer or by a recovery. nonce: of its writer's fence; zeros: a recovery.
    The rule is the same for both."""

    table: int
    nonce: bytes = bytes(16)


@value
class TableDropped:
    """Ends a table, and says that nobody needs its entries; appended by any process."""

    table: int


@value
class Checkpoint:
    """The state of the region, written into the topic before its front is deleted. Has no part in the rule."""

    snapshot: bytes


Item = Batch | PlainEntry | RegionFence | TableEnd | TableDropped | Checkpoint
Placed = tuple[int, Item]  # the offset of its first record, and the item
PlacedEntry = tuple[int, Entry]


def record_count(item: Item) -> int:
    """How many offsets an item takes."""
    return len(item.entries) if isinstance(item, Batch) else 1


@value
class CountingRule:
    """The rule, as of some offset. epoch, nonce: of the fence in force; 0 and b"" before the first. number: of the
    batch that counts next. ended: tables that have ended."""

    epoch: int = 0
    nonce: bytes = b""
    number: int = 0
    ended: frozenset[int] = frozenset()

    def after(self, item: Item, following: Callable[[int], int] | None = None) -> tuple[CountingRule, Sequence[Entry]]:
        """Apply the rule to the next item of the topic; returns the rule behind it, and which of its entries count.
        following: the next sequence of a table; without it no entry in version 0 counts."""
        match item:
            case RegionFence(nonce, epoch) if epoch > self.epoch:
                return replace(self, epoch=epoch, nonce=nonce, number=0), ()
            case TableEnd(table) | TableDropped(table):
                return replace(self, ended=self.ended | {table}), ()
            case Batch(nonce, number, entries) if nonce == self.nonce and number == self.number:
                counting = entries
                if self.ended:
                    counting = tuple(entry for entry in entries if entry.table not in self.ended)
                return replace(self, number=number + 1), counting
            case PlainEntry(entry) if not self.nonce and entry.table not in self.ended and following is not None:
                return self, (entry,) if entry.sequence == following(entry.table) else ()
        return self, ()

    def after_placed(
        self, placed: Placed, following: Callable[[int], int] | None = None
    ) -> tuple[CountingRule, tuple[PlacedEntry, ...]]:
        """`after`, with the offset of each entry."""
        offset, item = placed
        rule, counting = self.after(item, following)
        if not counting:
            return rule, ()
        if isinstance(item, PlainEntry):
            return rule, ((offset, item.entry),)
        assert isinstance(item, Batch), "only batches have entries"
        if len(counting) == len(item.entries):
            return rule, tuple(enumerate(counting, offset))
        ended = self.ended
        return rule, tuple((offset + i, entry) for i, entry in enumerate(item.entries) if entry.table not in ended)


@value
class RegionWriter:
    """The writer of a region behind its own fence. rule: applied to all offsets below `expected`. expected: offset of
    its next append, if no other writer appends before. Has one append under way at a time."""

    nonce: bytes
    rule: CountingRule
    expected: int

    @property
    def is_deposed(self) -> bool:
        """Whether another owner's fence is in force: nothing this writer appends will count."""
        return self.rule.nonce != self.nonce

    def batch(self, entries: tuple[Entry, ...]) -> Batch:
        """Make the next batch."""
        return Batch(self.nonce, self.rule.number, entries)

    def appended(self, item: Item, offset: int, others: Iterable[Placed] = ()) -> Appended:
        """The topic answered that `item` lies at `offset`. others: everything from `expected` to `offset`, without
        `offset`; it must be read if `offset` is not `expected`.

        Raises ValueError if the offset is below `expected`: it is not that of this item, so the outcome is unknown.
        """
        if offset < self.expected:
            raise ValueError(f"an append cannot lie below the offset that is expected: {offset} < {self.expected}")
        rule = self.rule
        own: list[PlacedEntry] = []
        counting: list[PlacedEntry] = []
        for placed in (*others, (offset, item)):
            rule, entries = rule.after_placed(placed)
            counting += entries
            if placed[1] == item:  # a first copy may lie before the one that was answered
                own += entries
        return Appended(replace(self, rule=rule, expected=offset + record_count(item)), tuple(own), tuple(counting))


class Appended(NamedTuple):
    """writer: behind the append. own: the entries of the append that count: they are acknowledged, and no others.
    counting: all entries that count up to there; another owner's too, if this one is deposed."""

    writer: RegionWriter
    own: tuple[PlacedEntry, ...]
    counting: tuple[PlacedEntry, ...]
