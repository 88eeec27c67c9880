"""Scenarios of freeing moved copies, as effects: what is done after which fact, and when copies stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlog.bookie.moved_copies import (
    CompareCopies,
    CopiesCompared,
    CopiesFreed,
    FreeCopies,
    FreeMoved,
    Locked,
    LockLedger,
    MovedCopies,
    MovedFreed,
    Sealed,
    SealLedger,
    UnlockLedger,
    UnsealLedger,
)
from dlog.machine import (
    Answer,
    Asked,
    CompareAndSet,
    Conflict,
    MetadataSeen,
    Missing,
    OutcomeUnknown,
    ReadMetadata,
    Versioned,
)
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import Fragment, LedgerKey, LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum

US, B, C = BookieId("us:1"), BookieId("b:1"), BookieId("c:1")
ONE, TWO = LedgerId(1), LedgerId(2)
CLOSED = LedgerMetadata(
    quorum=Quorum(ensemble=2, write=2, ack=2),
    fragments=(Fragment(EntryId(0), (B, C)),),
    state=LedgerState.CLOSED,
    last_entry=EntryId(9),
)
RAISED = Versioned(CLOSED, 4)
KEPT = [UnlockLedger(ONE), Answer(7, MovedFreed(0, {"why": 1}))]


class Story:
    """One request, as far as it went. The reason in the answer is replaced by "why"."""

    def __init__(self, *ledgers: LedgerId) -> None:
        self.machine = MovedCopies(US)
        self.first = self.machine.handle(Asked(7, FreeMoved(ledgers or (ONE,))))

    def then(self, *facts: Any) -> list[Any]:
        """The effects of the last fact."""
        effects: list[Any] = self.first
        for fact in facts:
            effects = self.machine.handle(fact)
        return [self._without_reasons(effect) for effect in effects]

    def _without_reasons(self, effect: Any) -> Any:
        if not isinstance(effect, Answer):
            return effect
        assert isinstance(effect.result, MovedFreed)
        return Answer(effect.ticket, replace(effect.result, kept={"why": 1} if effect.result.kept else {}))


def read(ledger: LedgerId, value: Any = CLOSED, version: int = 3) -> MetadataSeen:
    return MetadataSeen(("read", ledger), Versioned(value, version) if isinstance(value, LedgerMetadata) else value)


def up_to_seal(ledger: LedgerId) -> tuple[Any, ...]:
    return Locked(ledger, True), read(ledger), CopiesCompared(ledger)


def raised(ledger: LedgerId, outcome: Any = RAISED) -> MetadataSeen:
    return MetadataSeen(("raise", ledger), outcome)


def test_a_copy_is_freed_after_lock_comparison_seal_and_a_raised_version() -> None:
    story = Story()
    assert story.then() == [LockLedger(ONE)]
    assert story.then(Locked(ONE, True)) == [ReadMetadata(("read", ONE), LedgerKey(ONE))]
    assert story.then(read(ONE)) == [CompareCopies(ONE)]
    assert story.then(CopiesCompared(ONE)) == [SealLedger(ONE)]
    assert story.then(Sealed(ONE, True)) == [CompareAndSet(("raise", ONE), LedgerKey(ONE), CLOSED, 3)]
    assert story.then(raised(ONE)) == [UnlockLedger(ONE), FreeCopies((ONE,))]
    assert story.then(CopiesFreed((ONE,))) == [Answer(7, MovedFreed(1))]
    assert story.machine.is_idle


def test_several_ledgers_are_freed_together() -> None:
    story = Story(ONE, TWO)
    effects = story.then(*up_to_seal(ONE), Sealed(ONE, True), raised(ONE))
    assert effects == [UnlockLedger(ONE), LockLedger(TWO)]
    effects = story.then(*up_to_seal(TWO), Sealed(TWO, True), raised(TWO))
    assert effects == [UnlockLedger(TWO), FreeCopies((ONE, TWO))]
    assert story.then(CopiesFreed((ONE, TWO), frozenset({TWO}))) == [Answer(7, MovedFreed(1, {"why": 1}))]


def test_a_full_batch_is_freed_before_the_next_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlog.bookie.moved_copies.BATCH_LEDGERS", 1)
    story = Story(ONE, TWO)
    effects = story.then(*up_to_seal(ONE), Sealed(ONE, True), raised(ONE))
    assert effects == [UnlockLedger(ONE), FreeCopies((ONE,))]
    assert story.then(CopiesFreed((ONE,))) == [LockLedger(TWO)]


def test_a_ledger_that_another_process_works_on_is_left() -> None:
    assert Story().then(Locked(ONE, False)) == [Answer(7, MovedFreed(0, {"why": 1}))]


@pytest.mark.parametrize(
    "value",
    [
        replace(CLOSED, state=LedgerState.OPEN, last_entry=EntryId(-1)),
        replace(CLOSED, state=LedgerState.IN_RECOVERY, last_entry=EntryId(-1)),
        replace(CLOSED, fragments=(Fragment(EntryId(0), (B, C)), Fragment(EntryId(5), (B, US)))),
        Missing(),
        OutcomeUnknown("connection lost"),
    ],
    ids=["open", "in recovery", "names us", "deleted", "unknown"],
)
def test_copies_stay_where_metadata_does_not_say_that_they_were_moved(value: Any) -> None:
    assert Story().then(Locked(ONE, True), read(ONE, value)) == KEPT


def test_copies_stay_if_others_are_not_whole() -> None:
    assert Story().then(Locked(ONE, True), read(ONE), CopiesCompared(ONE, "out of reach")) == KEPT


def test_copies_stay_if_records_are_under_way() -> None:
    assert Story().then(*up_to_seal(ONE), Sealed(ONE, False)) == KEPT


@pytest.mark.parametrize("outcome", [Conflict(), Missing(), OutcomeUnknown("connection lost")])
def test_copies_stay_and_the_seal_ends_unless_the_version_was_surely_raised(outcome: Any) -> None:
    assert Story().then(*up_to_seal(ONE), Sealed(ONE, True), raised(ONE, outcome)) == [UnsealLedger(ONE), *KEPT]
