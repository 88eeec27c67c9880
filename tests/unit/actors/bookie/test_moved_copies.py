"""Looks of a bookie for moved copies, on metadata in memory: which ledgers are freed at which look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from actors.bookie.moved_copies import MovedCopiesCollection
from dlog.bookie.bookie import Bookie
from dlog.bookie.events import MovedCopiesFreed
from dlog.bookie.garbage_collection import MarkRecord
from dlog.bookie.index import LedgerRow
from dlog.bookie.messages import CopiesToFree, IndexRewritten, IndexWithout
from dlog.bookie.moved_copies import MovedFreed
from dlog.bookie.options import BookieOptions
from dlog.errors import MetadataUnavailableError
from dlog.events import Event
from dlog.ledger.comparing import CHANGED, Compared
from dlog.machine import Versioned
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import Fragment, LedgerKey, LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
from tests.memory_metadata import MemoryMetadata

US, B, C = BookieId("us:1"), BookieId("b:1"), BookieId("c:1")
KEY = b"k" * 20
OPEN = LedgerMetadata(quorum=Quorum(ensemble=2, write=2, ack=2), fragments=(Fragment(EntryId(0), (B, C)),))
AWAY = replace(OPEN, state=LedgerState.CLOSED, last_entry=EntryId(9))
HERE = replace(AWAY, fragments=(Fragment(EntryId(0), (B, US)),))


class Others:
    """The rest of the cluster. doubts: answers to comparisons; others find whole copies. locked: by other processes."""

    def __init__(self) -> None:
        self.doubts: dict[LedgerId, Compared] = {}
        self.locked: set[LedgerId] = set()
        self.is_down = False
        self.held: set[LedgerId] = set()

    async def lock(self, ledger: LedgerId) -> bool:
        if self.is_down:
            raise MetadataUnavailableError("down")
        if ledger in self.locked:
            return False
        self.held.add(ledger)
        return True

    async def unlock(self, ledger: LedgerId) -> None:
        self.held.discard(ledger)

    async def compare(self, ledger: LedgerId) -> Compared:
        assert ledger in self.held
        return self.doubts.get(ledger, Compared(ledger))


class World:
    """One bookie with ledgers 1 to 4, each with entries. seen: the chain of each that metadata had."""

    def __init__(self, seen: Mapping[int, int] = {}, *, instance: str = "memory") -> None:
        self.metadata = MemoryMetadata()
        self.others = Others()
        self.machine = Bookie(BookieOptions(), [LedgerRow(n, KEY, False, 8, 9, seen.get(n, 0)) for n in range(1, 5)])
        self.told: list[Event] = []
        self.record = MarkRecord(2, "mark")
        self.collection = MovedCopiesCollection(
            BookieOptions(),
            self.metadata,
            US,
            instance,
            self.machine,
            lambda: self.record,
            self.others,
            perform=self.perform,
            drop=self.drop,
            on_event=self.told.append,
        )

    async def mark(self, text: str) -> None:
        """Write the bookie's mark to metadata."""
        found = await self.metadata.read_gc_mark(US)
        version = found.version if isinstance(found, Versioned) else None
        assert isinstance(await self.metadata.write_gc_mark(US, text, version), Versioned)

    def perform(self, fact: object) -> None:
        assert self.machine.handle(fact) == []

    async def drop(self, fact: CopiesToFree) -> frozenset[LedgerId]:
        (effect,) = self.machine.handle(fact)
        assert isinstance(effect, IndexWithout)
        done = tuple(row.ledger for row in effect.rows)
        self.machine.handle(IndexRewritten(done))
        return frozenset(map(LedgerId, fact.ledgers - set(done)))

    async def put(self, ledger: int, value: LedgerMetadata) -> None:
        key = LedgerKey(LedgerId(ledger))
        found = await self.metadata.read(key)
        version = found.version if isinstance(found, Versioned) else None
        assert isinstance(await self.metadata.compare_and_set(key, value, version), Versioned)


async def test_only_closed_ledgers_that_are_elsewhere_are_freed_at_the_second_look() -> None:
    world = World()
    await world.mark("mark")
    for ledger, value in ((1, AWAY), (2, HERE), (3, OPEN)):  # 4 is deleted
        await world.put(ledger, value)
    before = await world.metadata.read(LedgerKey(LedgerId(1)))
    assert await world.collection.look() == MovedFreed() and world.told == []
    assert await world.collection.look() == MovedFreed(1)
    assert world.told == [MovedCopiesFreed(1, 0, "")]
    assert sorted(world.machine.with_entries()) == [2, 3, 4] and not world.others.held
    after = await world.metadata.read(LedgerKey(LedgerId(1)))
    assert isinstance(before, Versioned) and isinstance(after, Versioned)
    assert after.value == AWAY and after.version != before.version
    assert await world.collection.look() == MovedFreed(), "it has nothing of it any more"


async def test_a_ledger_that_came_back_between_two_looks_is_looked_at_anew() -> None:
    world = World()
    await world.mark("mark")
    for value in (AWAY, HERE, AWAY):
        await world.put(1, value)
        assert await world.collection.look() == MovedFreed()
    assert await world.collection.look() == MovedFreed(1)


async def test_copies_in_doubt_are_kept_and_counted_by_reason() -> None:
    world = World()
    await world.mark("mark")
    for ledger in (1, 2, 3):
        await world.put(ledger, AWAY)
    world.others.doubts[LedgerId(1)] = Compared(LedgerId(1), out_of_reach=((B, "lost"),))
    world.others.doubts[LedgerId(2)] = Compared(LedgerId(2), skipped=CHANGED)
    world.others.locked.add(LedgerId(3))
    await world.collection.look()
    assert await world.collection.look() == MovedFreed(
        0,
        {
            "bookies that metadata names are out of reach": 1,
            "the ledger is changed": 1,
            "another process is copying them, or metadata is out of reach": 1,
        },
    )
    assert len(world.machine.with_entries()) == 4 and not any(world.machine.is_sealed(n) for n in range(1, 5))


async def test_nothing_is_freed_while_metadata_is_out_of_reach_or_another_clusters() -> None:
    world = World(instance="of another cluster")
    await world.put(1, AWAY)
    assert await world.collection.look() is None and await world.collection.look() is None
    world = World()
    await world.mark("mark")
    await world.put(1, AWAY)
    world.others.is_down = True
    await world.collection.look()
    freed = await world.collection.look()
    assert freed is not None and freed.ledgers == 0


async def test_a_lost_reply_to_the_raised_version_keeps_the_copies_for_now() -> None:
    world = World()
    await world.mark("mark")
    await world.put(1, AWAY)
    await world.collection.look()
    world.metadata.drop_replies = 1
    freed = await world.collection.look()
    assert freed is not None and freed.ledgers == 0 and not world.machine.is_sealed(1)
    await world.collection.look()
    assert await world.collection.look() == MovedFreed(1)


async def test_nothing_is_freed_by_metadata_without_the_bookies_mark() -> None:
    world = World()
    await world.put(1, AWAY)
    await world.mark("older")
    assert await world.collection.look() is None and await world.collection.look() is None
    await world.mark("next")
    world.record = MarkRecord(2, "mark", "next")
    assert await world.collection.look() == MovedFreed()
    assert await world.collection.look() == MovedFreed(1)


async def test_what_was_held_when_metadata_went_back_is_not_freed_for_a_new_ledger_of_its_id() -> None:
    world = World({1: 1, 2: 1, 3: 2})  # 1 and 2 were seen under an earlier chain
    await world.mark("mark")
    for ledger in (1, 3):
        await world.put(ledger, AWAY)
    assert await world.collection.look() == MovedFreed()
    assert await world.collection.look() == MovedFreed(1)
    assert sorted(world.machine.with_entries()) == [1, 2, 4]
