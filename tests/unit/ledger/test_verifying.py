"""Verifying: every replica is asked, silence proves nothing, and what is wrong is named."""

from __future__ import annotations

from dlog.ledger.verifying import ENTRIES_AT_ONCE, LedgerVerifier, Verified, Verify
from dlog.machine import Answer, Asked, Effect, PeerLost, Received, Send
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
    assert machine.handle(says(B, 0)) == []  # twice from one is once
    assert machine.handle(says(C, 0)) == [Answer(1, Verified(1, (), ()))]


def test_damage_lack_and_loss_are_told_apart() -> None:
    machine = verifier(Quorum())
    machine.handle(Asked(1, Verify(EntryId(3))))
    for entry in range(4):
        machine.handle(says(A, entry))
    machine.handle(says(B, 0, body=packet(0)[:-1] + b"?"))
    machine.handle(says(B, 1, Code.NO_ENTRY))
    machine.handle(says(B, 2, body=packet(1)))  # a sound packet of another entry
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
