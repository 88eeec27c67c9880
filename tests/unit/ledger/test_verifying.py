"""Tests verification: every replica is asked, silence proves nothing, and faults are named."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from dlog.ledger.verifying import ENTRIES_AT_ONCE, PAUSES_MAX, LedgerVerifier, Verify
from dlog.machine import Answer, Asked, Effect, Fact, PeerLost, Received, Send, SetTimer, TimerFired
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import DigestType, Fragment, LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
from dlog.model.verification import BadRange, Verified
from dlog.wire.bookie import Code, EntryRead, ReadEntry
from dlog.wire.digest import Digest

LEDGER = LedgerId(7)
A, B, C = BookieId("a"), BookieId("b"), BookieId("c")
DIGEST = Digest(LEDGER, DigestType.CRC32C)


def verifier(quorum: Quorum) -> LedgerVerifier:
    metadata = LedgerMetadata(quorum=quorum, fragments=(Fragment(EntryId(0), (A, B, C)),), state=LedgerState.CLOSED)
    return LedgerVerifier(LEDGER, metadata, DIGEST)


def packet(entry: int) -> bytes:
    return b"".join(DIGEST.pack(entry, entry - 1, 4 * (entry + 1), (b"body",)))


def says(bookie: BookieId, entry: int, code: Code = Code.OK, body: bytes | None = None) -> Received:
    return Received(bookie, EntryRead(LEDGER, EntryId(entry), code, packet(entry) if body is None else body))


def asked(effects: list[Effect]) -> list[tuple[object, int]]:
    return [(e.peer, e.message.entry) for e in effects if isinstance(e, Send) and isinstance(e.message, ReadEntry)]


def test_each_entry_is_asked_of_its_whole_write_set() -> None:
    machine = verifier(Quorum(ensemble=3, write=2, ack=2))
    effects = machine.handle(Asked(1, Verify(EntryId(2))))
    assert asked(effects) == [(A, 0), (B, 0), (B, 1), (C, 1), (C, 2), (A, 2)]


def test_a_sound_ledger_is_said_so_once_all_have_answered() -> None:
    machine = verifier(Quorum())
    machine.handle(Asked(1, Verify(EntryId(0))))
    assert machine.handle(says(A, 0)) == machine.handle(says(B, 0)) == []
    assert machine.handle(says(B, 0)) == []  # twice from one bookie counts once
    assert machine.handle(says(C, 0)) == [Answer(1, Verified(1))]


def test_damage_lack_and_loss_are_told_apart() -> None:
    machine = verifier(Quorum())
    machine.handle(Asked(1, Verify(EntryId(3))))
    for entry in range(4):
        machine.handle(says(A, entry))
    machine.handle(says(B, 0, body=packet(0)[:-1] + b"?"))
    machine.handle(says(B, 1, Code.NO_ENTRY))
    machine.handle(says(B, 2, body=packet(1)))  # a valid packet of another entry
    machine.handle(says(B, 3))
    machine.handle(says(C, 0))
    machine.handle(says(C, 2))
    [answer] = machine.handle(PeerLost(C, "reset"))
    assert isinstance(answer, Answer) and isinstance(answer.result, Verified)
    found = answer.result
    assert [(bad.first, bad.last, bad.bookie, bad.kind) for bad in found.ranges] == [
        (0, 2, B, "damaged"),
        (1, 1, C, "damaged"),
        (3, 3, C, "thin"),
    ]
    assert "digest" in found.ranges[0].why and found.ranges[1].why == found.ranges[2].why == "reset"
    assert (found.below_write_quorum, found.below_ack_quorum, found.without_copy) == (4, 1, 0)


def test_a_packet_of_another_entry_is_damage() -> None:
    def answer(bookie: BookieId, entry: int) -> Fact:
        return says(bookie, entry, body=packet(entry + 1) if bookie == B and entry == 2 else None)

    (bad,) = verified(Quorum(), 9, answer).ranges
    assert (bad.first, bad.last, bad.kind) == (2, 2, "damaged") and "another entry" in bad.why


def test_entries_are_counted_by_the_copies_that_are_left() -> None:
    def answer(bookie: BookieId, entry: int) -> Fact:
        lacks = {A: range(7, 9), B: range(5, 9), C: range(9)}[bookie]
        return says(bookie, entry, Code.NO_ENTRY if entry in lacks else Code.OK)

    found = verified(Quorum(ensemble=3, write=3, ack=2), 19, answer)
    assert (found.below_write_quorum, found.below_ack_quorum, found.without_copy) == (9, 4, 2)
    assert [(bad.first, bad.last, bad.bookie, bad.kind) for bad in found.ranges] == [
        (0, 4, C, "thin"),
        (5, 8, B, "damaged"),
        (5, 8, C, "damaged"),
        (7, 8, A, "damaged"),
    ]


def test_an_empty_bookie_costs_one_range_whatever_the_order_of_replies() -> None:
    """Replies of one entry may come long after those of later ones, in the order of their requests or not."""
    machine, rng = verifier(Quorum()), random.Random(3)
    waiting, result = list(machine.handle(Asked(1, Verify(EntryId(4_999))))), None
    while waiting:
        effect = waiting.pop(rng.randrange(len(waiting)))
        if isinstance(effect, Answer):
            result = effect.result
            continue
        assert isinstance(effect, Send)
        bookie, entry = BookieId(str(effect.peer)), effect.message.entry
        waiting += machine.handle(says(bookie, entry, Code.NO_LEDGER if bookie == B else Code.OK))
        assert len(machine._findings._open) + sum(map(len, machine._findings._ended.values())) <= 1
    assert result == Verified(5_000, (BadRange(EntryId(0), EntryId(4_999), B, "thin", "no_ledger"),), 5_000)


def test_ranges_of_a_bookie_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlog.ledger.verifying.RANGES_MAX", 10)

    def answer(bookie: BookieId, entry: int) -> Fact:
        lacks = (bookie == B and entry % 2) or (bookie == C and entry >= 90)
        return says(bookie, entry, Code.NO_ENTRY if lacks else Code.OK)

    found = verified(Quorum(ensemble=3, write=3, ack=1), 99, answer)
    assert [bad.first for bad in found.ranges if bad.bookie == B] == list(range(1, 20, 2))
    assert [(bad.first, bad.last) for bad in found.ranges if bad.bookie == C] == [(90, 99)]
    assert (found.omitted, found.below_write_quorum) == (((B, 40),), 55)


def test_what_is_asked_at_once_is_bounded() -> None:
    machine = verifier(Quorum())
    effects = machine.handle(Asked(1, Verify(EntryId(999))))
    assert len(asked(effects)) == 3 * ENTRIES_AT_ONCE
    machine.handle(says(A, 5))
    machine.handle(says(B, 5))
    assert asked(machine.handle(says(C, 5))) == []  # judged after those before it
    for entry in range(5):
        for bookie in (A, B):
            machine.handle(says(bookie, entry))
        assert len(asked(machine.handle(says(C, entry)))) == (3 if entry < 4 else 6)


def verified(quorum: Quorum, last: int, answer: Callable[[BookieId, int], Fact]) -> Verified:
    """A verification in which each request is answered by this function."""
    machine = verifier(quorum)
    effects = machine.handle(Asked(1, Verify(EntryId(last))))
    for effect in effects:
        if isinstance(effect, Answer):
            assert isinstance(effect.result, Verified)
            return effect.result
        assert isinstance(effect, Send)
        effects += machine.handle(answer(BookieId(str(effect.peer)), effect.message.entry))
    raise AssertionError("no answer")


def test_a_dead_bookie_is_one_line() -> None:
    """The errors of a dead bookie may differ each time: the first loss has another reason than later ones."""

    def answer(bookie: BookieId, entry: int) -> Fact:
        return PeerLost(C, f"loss {entry}") if bookie == C else says(bookie, entry)

    for quorum in (Quorum(ensemble=3, write=3, ack=2), Quorum(ensemble=3, write=2, ack=1)):
        found = verified(quorum, 1048, answer)
        (bad,) = found.ranges
        assert (bad.bookie, bad.kind, bad.last) == (C, "thin", 1048 if quorum.write == 3 else 1048 - 1048 % 3 + 1)
        assert found.below_write_quorum == (1049 if quorum.write == 3 else 699)


def test_each_run_of_entries_of_a_bookie_is_a_line() -> None:
    def answer(bookie: BookieId, entry: int) -> Fact:
        if bookie == B and 10 <= entry < 20:
            return says(bookie, entry, Code.NO_ENTRY)
        if bookie == A and entry in (5, 15):
            return says(bookie, entry, body=b"damaged" * 9)
        return says(bookie, entry)

    found = verified(Quorum(), 99, answer)
    assert [(bad.first, bad.last, bad.bookie, bad.kind) for bad in found.ranges] == [
        (5, 5, A, "damaged"),
        (10, 14, B, "thin"),
        (15, 15, A, "damaged"),
        (15, 15, B, "damaged"),
        (16, 19, B, "thin"),
    ]
    assert [(bad.first, bad.bookie) for bad in found.ranges if bad.is_wrong] == [(5, A), (15, A)]


def test_without_a_copy_that_verifies_none_is_wrong() -> None:
    """They may all be what the writer wrote, with another password."""
    found = verified(Quorum(), 3, lambda bookie, entry: says(bookie, entry, body=b"damaged" * 9))
    assert len(found.ranges) == 3 and not any(bad.is_wrong for bad in found.ranges)


LAST = 2**63 - 1
E332, E322 = Quorum(ensemble=3, write=3, ack=2), Quorum(ensemble=3, write=2, ack=2)


def verified_far(
    held: dict[BookieId, set[int]],
    quorum: Quorum,
    last: int = LAST,
    returns: int | None = None,
    lost: BookieId = C,
    unreadable: frozenset[BookieId] = frozenset(),
) -> tuple[Verified, int]:
    """A verification, and its number of reads. Bookies not in `held` are lost; `lost` is back after some pauses.
    unreadable: bookies that cannot read the last entry that they hold."""
    machine, pauses, reads = verifier(quorum), 0, 0
    effects = machine.handle(Asked(1, Verify(EntryId(last))))
    for effect in effects:
        assert reads < 5_000, "it goes on for ever"
        match effect:
            case Answer(_, result):
                assert isinstance(result, Verified)
                return result, reads
            case SetTimer(key):
                pauses += 1
                effects += machine.handle(TimerFired(key, 0.0))
            case Send(peer, ReadEntry(_, entry)):
                bookie, reads = BookieId(str(peer)), reads + 1
                is_back = bookie == lost and returns is not None and pauses >= returns
                if bookie not in held or (bookie == lost and returns is not None and not is_back):
                    effects += machine.handle(PeerLost(bookie, "refused"))
                    continue
                found = max(held[bookie], default=-1) if entry == -1 else entry
                code = Code.OK if found in held[bookie] else Code.NO_ENTRY
                if bookie in unreadable and found == max(held[bookie]):
                    code = Code.IO_ERROR
                effects += machine.handle(says(bookie, entry, code, packet(found) if code is Code.OK else b""))
    raise AssertionError("no answer")


class TestMetadataThatNamesALastEntryFarAboveWhatBookiesHold:
    @pytest.mark.parametrize("last", [199, 10**6, LAST])
    def test_the_rest_is_one_range(self, last: int) -> None:
        held = {A: set(range(100)), B: set(range(80)), C: set(range(90))}
        found, reads = verified_far(held, E332, last)
        assert reads <= 3 * (100 + 2 * ENTRIES_AT_ONCE + 1)
        assert [(bad.first, bad.last, bad.bookie, bad.kind) for bad in found.ranges] == [
            (80, 89, B, "thin"),
            (90, last, B, "damaged"),
            (90, last, C, "damaged"),
            (100, last, A, "damaged"),
        ]
        assert found.entries == last + 1
        assert found.below_write_quorum == last - 79 and found.below_ack_quorum == last - 89
        assert found.without_copy == last - 99

    def test_with_striping_each_range_ends_at_an_entry_of_the_bookie(self) -> None:
        found, reads = verified_far({A: {0, 2, 3}, B: {0, 1, 3}, C: {1, 2}}, E322)
        ends = {LAST - entry: (LAST - entry) % 3 for entry in range(3)}
        lasts = {b: max(e for e, r in ends.items() if r in (n, (n - 1) % 3)) for n, b in enumerate((A, B, C))}
        assert [(bad.first, bad.last, bad.bookie) for bad in found.ranges] == [
            (4, lasts[B], B),
            (4, lasts[C], C),
            (5, lasts[A], A),
        ]
        assert found.without_copy == LAST + 1 - 4 and reads < 300

    def test_without_any_copy(self) -> None:
        found, reads = verified_far({A: set(), B: set(), C: set()}, E332)
        assert [(bad.first, bad.last) for bad in found.ranges] == [(0, LAST)] * 3
        assert found.without_copy == LAST + 1 and reads < 300

    def test_with_a_bookie_that_is_lost(self) -> None:
        for quorum in (E332, E322):
            found, reads = verified_far({A: {0}, B: {0}}, quorum)
            assert {bad.bookie: bad.why for bad in found.ranges}[C] == "refused"
            assert max(bad.last for bad in found.ranges if bad.bookie == C) > 2**62 and reads < 300

    def test_with_none_in_reach(self) -> None:
        found, reads = verified_far({}, E332)
        assert found.without_copy == LAST + 1 and reads < 300
        assert {bad.why for bad in found.ranges} == {"refused"}

    @pytest.mark.parametrize("quorum", [E332, E322])
    def test_a_lost_bookie_that_has_more_is_waited_for(self, quorum: Quorum) -> None:
        found, _ = verified_far({A: {0}, B: {0}, C: set(range(1000))}, quorum, returns=PAUSES_MAX - 2)
        assert not [bad for bad in found.ranges if bad.bookie == C and 200 <= bad.first < 1000]

    def test_entries_behind_a_hole_are_checked(self) -> None:
        found, _ = verified_far({A: {0, 500}, B: {0, 500}, C: {0, 500}}, E332)
        assert [(bad.first, bad.last) for bad in found.ranges if bad.bookie == A] == [(1, 499), (501, LAST)]

    @pytest.mark.parametrize("quorum", [E332, E322])
    @pytest.mark.parametrize("lost", [(), (C,)])
    def test_a_bookie_that_cannot_read_its_last_entry_is_given_up(
        self, monkeypatch: pytest.MonkeyPatch, quorum: Quorum, lost: tuple[BookieId, ...]
    ) -> None:
        monkeypatch.setattr("dlog.ledger.held_entries.UNSERVED_MAX", 100)
        held = {bookie: set(range(10)) for bookie in (A, B, C) if bookie not in lost}
        found, reads = verified_far(held, quorum, unreadable=frozenset({A}))
        assert found.without_copy >= LAST + 1 - 10 and reads < 1500
        assert {bad.bookie for bad in found.ranges if bad.last > 2**62} == {A, B, C}

    def test_a_bookie_that_cannot_read_its_last_entry_is_asked_on_while_any_bookie_serves(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dlog.ledger.held_entries.UNSERVED_MAX", 100)
        held = {A: {*range(10), *range(60, 300)}, B: set(range(10)), C: set(range(10))}
        found, _ = verified_far(held, E332, unreadable=frozenset({A}))
        assert [(bad.first, bad.last) for bad in found.ranges if bad.bookie == A] == [(10, 59), (299, LAST)]

    def test_what_a_bookie_said_that_it_holds_is_checked_whatever_the_hole(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dlog.ledger.held_entries.UNSERVED_MAX", 100)
        held = {A: {0, 1}, B: {0, 1, 500}, C: {0, 1}}
        found, _ = verified_far(held, E332, unreadable=frozenset({A}))
        assert [(bad.first, bad.last) for bad in found.ranges if bad.bookie == B] == [(2, 499), (501, LAST)]

    def test_each_ensemble_is_asked_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A bookie that was given up in an ensemble may serve entries of the next one."""
        monkeypatch.setattr("dlog.ledger.held_entries.UNSERVED_MAX", 100)
        fragments = (Fragment(EntryId(0), (A, B, C)), Fragment(EntryId(1000), (A, B, C)))
        monkeypatch.setattr(
            "tests.unit.ledger.test_verifying.verifier",
            lambda quorum: LedgerVerifier(LEDGER, LedgerMetadata(quorum=quorum, fragments=fragments), DIGEST),
        )
        held = {A: set(range(1000, 1010)), B: set[int](), C: set[int]()}
        found, _ = verified_far(held, E332, unreadable=frozenset({A}))
        assert [(bad.first, bad.last) for bad in found.ranges if bad.bookie == A] == [(0, 999), (1009, LAST)]
