"""Tests verification: every replica is asked, silence proves nothing, and faults are named."""

from __future__ import annotations

from collections.abc import Callable

from dlog.ledger.verifying import ENTRIES_AT_ONCE, LedgerVerifier, Verified, Verify
from dlog.machine import Answer, Asked, Effect, Fact, PeerLost, Received, Send
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import DigestType, Fragment, LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
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
    assert machine.handle(says(C, 0)) == [Answer(1, Verified(1, (), ()))]


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
    assert [entry for entry, _ in answer.result.damaged] == [0, 1, 2]
    assert [entry for entry, _ in answer.result.thin] == [3]
    why = dict(answer.result.damaged)
    assert "digest" in why[EntryId(0)] and "copies=1" in why[EntryId(1)] and "another entry" in why[EntryId(2)]
    assert "c: reset" in dict(answer.result.thin)[EntryId(3)]


def test_what_is_asked_at_once_is_bounded() -> None:
    machine = verifier(Quorum())
    effects = machine.handle(Asked(1, Verify(EntryId(999))))
    assert len(asked(effects)) == 3 * ENTRIES_AT_ONCE
    machine.handle(says(A, 5))
    machine.handle(says(B, 5))
    assert asked(machine.handle(says(C, 5))) == [(b, ENTRIES_AT_ONCE) for b in (C, A, B)]


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
        assert len(found.thin) == (1049 if quorum.write == 3 else 699)


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
