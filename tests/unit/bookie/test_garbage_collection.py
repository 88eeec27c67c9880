"""Which ledgers count as deleted: transcripts of rounds, and a world in which metadata is lost, replaced, restored and
changed at every step of a round. Planted defects show that the world would notice."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from dlog.bookie.events import CollectionRefused, MetadataChainBroken
from dlog.bookie.garbage_collection import (
    HELD_BEFORE,
    ChainEnded,
    ContactLost,
    DeleteLedgers,
    Effects,
    GarbageCollector,
    LedgersListed,
    LedgersRead,
    LedgersSeen,
    ListLedgers,
    MarkRead,
    MarkRecord,
    MarkStored,
    MarkWritten,
    NewLedgersRead,
    NewLedgersSeen,
    ReadLedgers,
    ReadMark,
    ReadNewLedgers,
    RoundDue,
    RoundEnded,
    StoreMark,
    WriteMark,
)
from dlog.machine import Conflict, Emit, Missing, OutcomeUnknown, Versioned

OURS, THEIRS = "ours", "theirs"


def collector(record: MarkRecord) -> GarbageCollector:
    numbers = count(1)
    return GarbageCollector(OURS, record, lambda: f"new{next(numbers)}")


def mark(text: str, version: int = 5) -> MarkRead:
    return MarkRead(OURS, Versioned(text, version))


def ids(*ledgers: int) -> frozenset[int]:
    return frozenset(ledgers)


def test_a_ledger_is_buried_when_seen_and_absent_under_the_same_chain() -> None:
    made = collector(MarkRecord(1, "m"))
    assert made.handle(RoundDue({1: 1, 2: 1, 3: 0}, collects=True)) == [ReadMark()]
    assert made.handle(mark("m")) == [ListLedgers(ids(1, 2, 3))]
    assert made.handle(LedgersListed(ids(1))) == [ReadLedgers(ids(2))], "3 was never seen"
    assert made.handle(LedgersRead(ids(), ids(2))) == [ReadMark()]
    assert made.handle(mark("m")) == [DeleteLedgers(ids(2)), RoundEnded(True)]
    assert made.is_idle


def test_a_ledger_is_seen_once_a_mark_written_after_it_is_in_the_store_and_on_disk() -> None:
    made = collector(MarkRecord(1, "m"))
    made.handle(RoundDue({3: 0, 4: 0}, collects=False))
    assert made.handle(mark("m")) == [ReadLedgers(ids(3, 4))]
    made.handle(LedgersRead(ids(3), ids(4)))
    assert made.handle(mark("m")) == [StoreMark(MarkRecord(1, "m", "new1"))]
    assert made.handle(MarkStored()) == [WriteMark("new1", 5)]
    assert made.handle(MarkWritten(Versioned("new1", 6))) == [StoreMark(MarkRecord(1, "new1"))]
    assert made.handle(MarkStored()) == [LedgersSeen(ids(3), 1), RoundEnded(True)]


def test_the_first_round_of_all_begins_a_chain_and_buries_nothing() -> None:
    made = collector(MarkRecord())
    made.handle(RoundDue({1: 0}, collects=True))
    assert made.handle(MarkRead(OURS, Missing())) == [ListLedgers(ids(1))]
    assert made.handle(LedgersListed(ids(1))) == [ReadMark()]
    assert made.handle(MarkRead(OURS, Missing())) == [StoreMark(MarkRecord(1, "", "new1"))]
    assert made.handle(MarkStored()) == [WriteMark("new1", None)]


@pytest.mark.parametrize("found", [Missing(), Versioned("older", 2)], ids=["empty", "restored"])
def test_metadata_without_the_last_mark_begins_a_chain_that_knows_nothing(found: Any) -> None:
    made = collector(MarkRecord(3, "m"))
    made.handle(RoundDue({1: 3, 2: 3}, collects=True))
    ended_and_listed = [ChainEnded(), Emit(MetadataChainBroken(3)), ListLedgers(ids(1, 2))]
    assert made.handle(MarkRead(OURS, found)) == ended_and_listed
    assert made.handle(LedgersListed(ids())) == [ReadMark()], "absent, and not suspected"
    (ended,) = made.handle(MarkRead(OURS, found))
    assert ended.is_complete and "lacks this bookie's last mark" in ended.reason


def test_what_was_held_when_a_chain_ended_is_seen_again_once_metadata_names_the_bookie_for_it() -> None:
    made = collector(MarkRecord(3, "m"))
    made.handle(RoundDue({1: 2, 2: HELD_BEFORE, 3: 3, 4: 0}, collects=True))
    made.handle(mark("m"))
    assert made.handle(LedgersListed(ids(1, 2, 3, 4))) == [ReadLedgers(ids(1, 2))], "their ids may be another's now"
    made.handle(LedgersRead(ids(1, 2), ids(), elsewhere=ids(2)))
    made.handle(mark("m"))
    made.handle(MarkStored())
    made.handle(MarkWritten(Versioned("new1", 6)))
    assert made.handle(MarkStored()) == [LedgersSeen(ids(1, 4), 3), RoundEnded(True)]


def test_a_lost_record_never_uses_a_chain_again_that_a_ledger_was_seen_under() -> None:
    made = collector(MarkRecord())
    made.handle(RoundDue({1: 4, 2: 0}, collects=True))
    made.handle(mark("m"))
    made.handle(LedgersListed(ids(1, 2)))
    assert made.handle(mark("m")) == [StoreMark(MarkRecord(5, "", "new1"))]


@pytest.mark.parametrize(
    ("fact", "reason"),
    [
        (MarkRead(OURS, OutcomeUnknown("no contact")), "metadata is unreachable: no contact"),
        (mark("other"), "changed during the round"),
        (mark("m", version=6), "changed during the round"),
        (MarkRead(OURS, Missing()), "changed during the round"),
    ],
    ids=["unreachable", "another text", "another version", "gone"],
)
def test_a_mark_that_is_another_at_the_end_of_the_round_costs_nothing(fact: MarkRead, reason: str) -> None:
    made = collector(MarkRecord(1, "m"))
    made.handle(RoundDue({1: 1}, collects=True))
    made.handle(mark("m"))
    made.handle(LedgersListed(ids()))
    made.handle(LedgersRead(ids(), ids(1)))
    (ended,) = made.handle(fact)
    assert not ended.is_complete and reason in ended.reason


def test_another_clusters_metadata_is_refused_before_and_after() -> None:
    for at_end in (False, True):
        made = collector(MarkRecord(1, "m"))
        made.handle(RoundDue({1: 1}, collects=True))
        if at_end:
            made.handle(mark("m"))
            made.handle(LedgersListed(ids()))
            made.handle(LedgersRead(ids(), ids(1)))
        refused, ended = made.handle(MarkRead(THEIRS, Versioned("m", 5)))
        assert isinstance(refused.event, CollectionRefused) and not ended.is_complete
        assert THEIRS in ended.reason


@pytest.mark.parametrize(
    ("fact", "reason"),
    [
        (LedgersListed(None), "listing of its ledgers failed"),
        (ContactLost(), "contact with metadata was lost"),
    ],
)
def test_a_round_that_ends_early_says_why(fact: Any, reason: str) -> None:
    made = collector(MarkRecord(1, "m"))
    made.handle(RoundDue({1: 1}, collects=True))
    made.handle(mark("m"))
    (ended,) = made.handle(fact)
    assert not ended.is_complete and reason in ended.reason
    assert made.is_idle


def test_a_mark_without_room_on_disk_says_so() -> None:
    made = collector(MarkRecord(1, "m"))
    made.handle(RoundDue({3: 0}, collects=False))
    made.handle(mark("m"))
    made.handle(LedgersRead(ids(3), ids()))
    made.handle(mark("m"))
    assert made.handle(MarkStored("no space")) == [
        RoundEnded(False, "the mark cannot be written to this bookie's disk: no space")
    ]


@pytest.mark.parametrize("outcome", [OutcomeUnknown(), Conflict(), Missing()])
def test_a_mark_that_may_not_be_written_makes_nothing_seen(outcome: Any) -> None:
    made = collector(MarkRecord(1, "m"))
    made.handle(RoundDue({3: 0}, collects=False))
    made.handle(mark("m"))
    made.handle(LedgersRead(ids(3), ids()))
    made.handle(mark("m"))
    made.handle(MarkStored())
    assert made.handle(MarkWritten(outcome)) == [RoundEnded(False, "the mark could not be written to metadata")]
    made.handle(RoundDue({3: 0}, collects=False))
    assert made.handle(mark("new1", 6)) == [ReadLedgers(ids(3))], "it was written after all: the chain goes on"


def test_a_ledger_that_was_found_at_once_is_seen_though_it_was_deleted_since() -> None:
    made = collector(MarkRecord(1, "m"))
    assert made.handle(NewLedgersSeen(ids())) == []
    assert made.handle(NewLedgersSeen(ids(3, 4))) == [ReadNewLedgers(ids(3, 4), 0)]
    assert made.handle(NewLedgersRead(ids(3), 0)) == []
    made.handle(RoundDue({3: 0, 4: 0}, collects=False))
    assert made.handle(mark("m")) == [ReadLedgers(ids(4))], "3 need not be read again"
    made.handle(LedgersRead(ids(), ids(4)))
    made.handle(mark("m"))
    made.handle(MarkStored())
    made.handle(MarkWritten(Versioned("new1", 6)))
    assert made.handle(MarkStored()) == [LedgersSeen(ids(3), 1), RoundEnded(True)]
    made.handle(RoundDue({3: 1, 4: 0}, collects=True))
    made.handle(mark("new1", 6))
    assert made.handle(LedgersListed(ids())) == [ReadLedgers(ids(3))]
    made.handle(LedgersRead(ids(), ids(3)))
    assert made.handle(mark("new1", 6)) == [DeleteLedgers(ids(3)), RoundEnded(True)]


def test_a_round_with_nothing_left_to_read_asks_for_the_mark_alone() -> None:
    made = collector(MarkRecord(1, "m"))
    made.handle(NewLedgersRead(ids(3), 0))
    made.handle(RoundDue({3: 0}, collects=False))
    assert made.handle(mark("m")) == [ReadMark()]
    assert made.handle(mark("m")) == [StoreMark(MarkRecord(1, "m", "new1"))]


def test_a_collection_makes_seen_what_was_found_at_once() -> None:
    made = collector(MarkRecord(1, "m"))
    made.handle(NewLedgersRead(ids(3), 0))
    made.handle(RoundDue({3: 0}, collects=True))
    made.handle(mark("m"))
    assert made.handle(LedgersListed(ids())) == [ReadMark()], "it is not gone before it was seen"
    assert made.handle(mark("m")) == [StoreMark(MarkRecord(1, "m", "new1"))]


@pytest.mark.parametrize("when", ["before the answer", "after the answer", "during the round"])
def test_what_was_found_counts_for_nothing_once_contact_was_lost(when: str) -> None:
    made = collector(MarkRecord(1, "m"))
    made.handle(NewLedgersSeen(ids(3)))
    if when == "before the answer":
        assert made.handle(ContactLost()) == []
    made.handle(NewLedgersRead(ids(3), 0))
    if when == "after the answer":
        assert made.handle(ContactLost()) == []
    if when == "during the round":
        made.handle(RoundDue({3: 0}, collects=False))
        (ended,) = made.handle(ContactLost())
        assert not ended.is_complete
    made.handle(RoundDue({3: 0}, collects=False))
    assert made.handle(mark("m")) == [ReadLedgers(ids(3))]
    assert made.handle(NewLedgersSeen(ids(5))) == [ReadNewLedgers(ids(5), 1)]


@pytest.mark.parametrize(
    "found", [MarkRead(THEIRS, Versioned("m", 5)), mark("older", 2), MarkRead(OURS, Missing())], ids=str
)
def test_what_was_found_counts_for_nothing_once_metadata_was_another(found: MarkRead) -> None:
    made = collector(MarkRecord(1, "m"))
    made.handle(NewLedgersRead(ids(3), 0))
    made.handle(RoundDue({3: 0}, collects=False))
    made.handle(found)
    made.handle(LedgersRead(ids(), ids(3)))
    made.handle(found)
    assert made.is_idle
    made.handle(RoundDue({3: 0}, collects=False))
    assert made.handle(mark("m")) == [ReadLedgers(ids(3))]


# ---- a world ---------------------------------------------------------------------------------------------------------


class World:
    """One bookie and the metadata stores of two clusters, with backups of ours. A store remembers what was deleted in
    its own history; a ledger that is absent and was not deleted there was lost by a restore."""

    def __init__(self, seed: int, make: Callable[[MarkRecord, Callable[[], str]], GarbageCollector]) -> None:
        self.rng = random.Random(seed)
        self.make = make
        self.stores: dict[str, dict[Any, Versioned]] = {OURS: {}, THEIRS: {}}
        self.backups: list[dict[Any, Versioned]] = []
        self.versions = 0
        self.marks = 0
        self.ids = 0
        self.known: dict[int, int] = {}  # ledgers of the bookie
        self.unheard: list[int] = []  # created, and the bookie has no entry of them yet
        self.reading: list[NewLedgersRead] = []  # read at once, and not passed to the machine yet
        self.disk = MarkRecord()
        self.buried: set[int] = set()
        self.strays: set[int] = set()  # missing from metadata that was replaced: their ids may be given out again
        self.instance = OURS
        self.is_away = False
        self.is_contact_lost = False
        self.machine = make(self.disk, self.new_mark)

    @property
    def store(self) -> dict[Any, Versioned]:
        return self.stores[self.instance]

    def recorded(self, what: str) -> frozenset[int]:
        """In the present history of our cluster: ledgers "deleted", or ids "reused" for ledgers on other bookies."""
        found = self.stores[OURS].get(what)
        return frozenset() if found is None else found.value

    def new_mark(self) -> str:
        self.marks += 1
        return f"mark{self.marks}"

    def put(self, store: dict[Any, Versioned], key: Any, value: Any) -> Versioned:
        self.versions += 1
        store[key] = made = Versioned(value, self.versions)
        return made

    def happen(self) -> None:
        """Let something happen between two steps of a round."""
        rng, store = self.rng, self.store
        living = [key for key in store if isinstance(key, int)]
        match rng.choice("cccchhhhffffdddddbrxwaie"):
            case "c":
                self.ids += 1
                self.put(self.stores[OURS], self.ids, "ledger")
                self.unheard.append(self.ids)
            case "h" if self.unheard:  # its writer may not know of the restore
                ledger = self.unheard.pop(rng.randrange(len(self.unheard)))
                self.known[ledger] = 0
                self.hear(ledger)
            case "f" if self.reading and not self.is_contact_lost:
                self.machine.handle(self.reading.pop(rng.randrange(len(self.reading))))
            case "d" if living:
                ledger = rng.choice(living)
                del store[ledger]
                before = store.get("deleted")
                self.put(store, "deleted", (frozenset() if before is None else before.value) | {ledger})
            case "b":
                self.backups = [*self.backups[-4:], dict(self.stores[OURS])]
            case "r" if self.backups and rng.random() < 0.3:
                self.replace_metadata(dict(rng.choice(self.backups)))
            case "x" if rng.random() < 0.2:
                self.machine = self.make(self.disk, self.new_mark)  # the bookie crashed
                self.reading.clear()
                self.hear(*(ledger for ledger, chain in self.known.items() if not chain))
            case "w" if rng.random() < 0.1:
                self.replace_metadata({})
            case "e" if self.strays:  # ZooKeeper gives the id out again, and this bookie gets nothing of the ledger
                ledger = rng.choice(sorted(self.strays))
                self.strays.discard(ledger)
                if ledger not in self.stores[OURS]:
                    self.put(self.stores[OURS], ledger, "elsewhere")
                    self.put(self.stores[OURS], "reused", self.recorded("reused") | {ledger})
            case "a":
                self.is_away = not self.is_away and rng.random() < 0.3
            case "i":
                was, self.instance = self.instance, OURS if rng.random() < 0.8 else THEIRS
                if self.instance == THEIRS != was:  # it has ledgers of the same ids
                    theirs = {key: value for key, value in self.stores[OURS].items() if isinstance(key, int)}
                    self.stores[THEIRS] = {**self.stores[THEIRS], **theirs}
                self.is_contact_lost = self.is_contact_lost or self.instance != was

    def replace_metadata(self, store: dict[Any, Versioned]) -> None:
        self.stores[OURS] = store
        self.is_contact_lost = True
        lost = self.known.keys() - store.keys() - self.recorded("deleted")
        if "mark" in store and store["mark"].value in (self.disk.mark, self.disk.next):
            lost = {ledger for ledger in lost if self.known[ledger]}  # no mark is lost: the others look new
        self.strays = lost if self.disk.mark else set()  # before its first mark a bookie knows nothing

    def hear(self, *ledgers: int) -> None:
        for effect in self.machine.handle(NewLedgersSeen(frozenset(ledgers))):
            held = frozenset() if self.is_away else effect.ledgers & self.store.keys()
            self.reading.append(NewLedgersRead(held, effect.contact))

    def round(self) -> None:
        machine = self.machine
        collects = self.rng.random() < 0.6
        facts: list[Any] = [RoundDue(dict(self.known), collects)]
        if self.is_contact_lost:
            self.is_contact_lost = False
            assert machine.handle(ContactLost()) == []
        while facts and machine is self.machine:
            if self.is_contact_lost:
                self.is_contact_lost = False
                facts.insert(0, ContactLost())
            for effect in machine.handle(facts.pop(0)):
                answer = self.perform(effect)
                if answer is not None:
                    facts.append(answer)
            if self.rng.random() < 0.4:
                self.happen()

    def perform(self, effect: Any) -> Any:
        match effect:
            case ReadMark():
                outcome: Any = OutcomeUnknown() if self.is_away else self.store.get("mark", Missing())
                return MarkRead(self.instance, outcome)
            case ListLedgers(known):
                return LedgersListed(None if self.is_away else frozenset(known & self.store.keys()))
            case ReadLedgers(ledgers):
                if self.is_away:
                    return LedgersRead(frozenset(), frozenset())
                present = frozenset(ledgers & self.store.keys())
                elsewhere = frozenset(ledger for ledger in present if self.store[ledger].value == "elsewhere")
                return LedgersRead(present, frozenset(ledgers - present), elsewhere)
            case StoreMark(record):
                self.disk = record
                return MarkStored()
            case WriteMark(text, version):
                now = self.store.get("mark")
                if self.is_away or (now.version if now is not None else None) != version:
                    return MarkWritten(Conflict())
                made = self.put(self.store, "mark", text)
                return MarkWritten(made if self.rng.random() < 0.8 else OutcomeUnknown())
            case ChainEnded():
                self.known.update({ledger: HELD_BEFORE for ledger, seen in self.known.items() if not seen})
            case LedgersSeen(ledgers, chain):
                self.known.update(dict.fromkeys(ledgers & self.known.keys(), chain))
            case DeleteLedgers(ledgers):
                assert ledgers <= self.recorded("deleted"), (
                    f"a ledger that nobody deleted was buried: {sorted(ledgers)}"
                )
                assert not ledgers & self.recorded("reused"), (
                    f"buried because another ledger had its id: {sorted(ledgers)}"
                )
                for ledger in ledgers:
                    self.known.pop(ledger, None)
                self.buried |= ledgers
        return None


def honest(record: MarkRecord, new_mark: Callable[[], str]) -> GarbageCollector:
    return GarbageCollector(OURS, record, new_mark)


def live(seed: int, make: Callable[[MarkRecord, Callable[[], str]], GarbageCollector] = honest) -> World:
    world = World(seed, make)
    for _ in range(60):
        world.happen()
        world.round()
    return world


def test_only_what_was_deleted_is_buried_whatever_metadata_does() -> None:
    buried = sum(len(live(seed).buried) for seed in range(300))
    assert buried > 1000, "a world in which nothing is buried proves nothing"


class _Calm(random.Random):
    """Each round collects, nothing happens during it, and every request is carried out."""

    def random(self) -> float:
        return 0.5


def test_ledgers_that_are_deleted_between_two_rounds_are_buried_unless_contact_was_lost() -> None:
    """Each ledger is created, learned, read and deleted; a round follows, and the round after that buries the
    ledger."""
    rng = random.Random(1)
    world = World(1, honest)
    world.rng = _Calm()
    kept = set()
    for ledger in range(1, 200):
        world.put(world.store, ledger, "ledger")
        world.known[ledger] = 0
        world.hear(ledger)
        world.machine.handle(world.reading.pop())
        del world.store[ledger]
        world.put(world.store, "deleted", world.recorded("deleted") | {ledger})
        if rng.random() < 0.1:
            world.is_contact_lost = True
            kept.add(ledger)
        world.round()
    world.round()
    assert world.buried == set(range(1, 200)) - kept and 5 < len(kept) < 50


class IgnoresTheMark(GarbageCollector):
    """Defect: any mark continues the chain."""

    def _begin(self, due: RoundDue) -> Effects:
        if self._first is not None:
            self._record = replace(self._record, chain=max(1, self._record.chain), mark=str(self._first.value))
        return super()._begin(due)


class SeesBeforeTheMark(GarbageCollector):
    """Defect: what a round found counts as seen before the new mark is written."""

    def _settle(self, due: RoundDue) -> Effects:
        effects = super()._settle(due)
        return [LedgersSeen(self._present, self._chain), *effects]


class SuspectsTheUnseen(GarbageCollector):
    """Defect: a ledger that is absent counts as deleted, whether or not it was seen."""

    def _listed(self, due: RoundDue, present: frozenset[int]) -> Effects:
        return super()._listed(RoundDue(dict.fromkeys(due.known, self._chain), True), present)

    def _read(self, due: RoundDue, *found: frozenset[int]) -> Effects:
        return super()._read(RoundDue(dict.fromkeys(due.known, self._chain), True), *found)


class SeesNewLedgersOfOldIds(GarbageCollector):
    """Defect: a ledger held when a chain ended counts as seen whichever bookies its metadata names."""

    def _held_before(self, due: RoundDue) -> frozenset[int]:
        return frozenset()


class ForgetsTheUnseen(GarbageCollector):
    """Defect: a ledger that was never seen is not told apart from new ones when a chain ends."""

    def _begin(self, due: RoundDue) -> Effects:
        return [effect for effect in super()._begin(due) if not isinstance(effect, ChainEnded)]


class ReusesChains(GarbageCollector):
    """Defect: a broken chain continues under its number."""

    def _begin(self, due: RoundDue) -> Effects:
        effects = super()._begin(due)
        self._chain = max(1, self._record.chain)
        return effects


class AnyCluster(GarbageCollector):
    """Defect: the identity of the store is not checked."""

    def _mark_read(self, fact: MarkRead) -> Effects:
        return super()._mark_read(replace(fact, instance=OURS))


class GoesOnWithoutContact(GarbageCollector):
    """Defect: a round outlives the connection on which it began."""

    def handle(self, fact: Any) -> Effects:
        return [] if isinstance(fact, ContactLost) else super().handle(fact)


class TrustsTheBegin(GarbageCollector):
    """Defect: the mark is not read again at the end of a round."""

    def _mark_read(self, fact: MarkRead) -> Effects:
        if self._has_first and not isinstance(fact.outcome, OutcomeUnknown):
            fact = MarkRead(fact.instance, self._first or Missing())
        return super()._mark_read(fact)

    def handle(self, fact: Any) -> Effects:
        return [] if isinstance(fact, ContactLost) else super().handle(fact)


class KeepsWhatWasFound(GarbageCollector):
    """Defect: what was found in metadata counts although contact was lost since."""

    def handle(self, fact: Any) -> Effects:
        found = set(self._found)
        effects = super().handle(fact)
        if isinstance(fact, ContactLost):
            self._found |= found
        return effects


class TakesAnyAnswer(GarbageCollector):
    """Defect: an answer from before contact was lost counts."""

    def handle(self, fact: Any) -> Effects:
        return super().handle(replace(fact, contact=self._contact) if isinstance(fact, NewLedgersRead) else fact)


class FindsWithoutReading(GarbageCollector):
    """Defect: a ledger learned during contact counts as created in the present history of metadata."""

    def handle(self, fact: Any) -> Effects:
        if isinstance(fact, NewLedgersSeen):
            self._found |= fact.ledgers
        return super().handle(fact)


DEFECTS = [
    *(IgnoresTheMark, SeesBeforeTheMark, SuspectsTheUnseen, ReusesChains, AnyCluster),
    *(SeesNewLedgersOfOldIds, ForgetsTheUnseen),
    *(GoesOnWithoutContact, TrustsTheBegin, KeepsWhatWasFound, TakesAnyAnswer, FindsWithoutReading),
]


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_caught(defect: type[GarbageCollector]) -> None:
    for seed in range(1000):
        try:
            live(seed, lambda record, new_mark: defect(OURS, record, new_mark))
        except AssertionError:
            return
    pytest.fail("no seed caught it")
