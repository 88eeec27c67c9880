"""The quarantine of bookies that fail repeatedly."""

from __future__ import annotations

from dlog.events import BookieQuarantined
from dlog.ledger import quarantine
from dlog.ledger.quarantine import SPELL_S, Quarantine
from dlog.model.ids import BookieId

A, B = BookieId("a"), BookieId("b")


def test_the_third_failure_puts_a_bookie_in_quarantine_for_a_while() -> None:
    one = Quarantine(3, 600.0)
    assert one.note_failure(A, 0.0) is None and one.note_failure(A, 10.0) is None
    assert not one.holds(A, 19.0)
    assert one.note_failure(A, 20.0) == BookieQuarantined(A, 3, 600.0)
    assert one.holds(A, 20.0) and one.holds(A, 619.0) and not one.holds(B, 20.0)
    assert one.note_failure(A, 300.0) is None, "it is told once"
    assert not one.holds(A, 620.0)
    assert one.note_failure(A, 621.0) is None and not one.holds(A, 621.0), "it starts afresh"


def test_a_bookie_that_fails_for_a_thousand_ledgers_at_once_has_failed_once() -> None:
    one = Quarantine(3, 600.0)
    for number in range(1000):
        assert one.note_failure(A, 7.0 + number * SPELL_S / 1001) is None
    assert not one.holds(A, 20.0)


def test_failures_that_lie_far_apart_are_forgotten() -> None:
    one = Quarantine(3, 100.0)
    for at_s in range(0, 1000, 60):
        assert one.note_failure(A, float(at_s)) is None


def test_it_can_be_switched_off() -> None:
    one = Quarantine(0, 600.0)
    for at_s in range(0, 100, 10):
        assert one.note_failure(A, float(at_s)) is None
    assert not one.holds(A, 100.0)


def test_it_remembers_a_bounded_number_of_bookies() -> None:
    one = Quarantine(1, 600.0)
    names = [BookieId(f"b{number}") for number in range(quarantine.BOOKIES_MAX + 5)]
    for name in names:
        one.note_failure(name, 1.0)
    assert [one.holds(name, 2.0) for name in names[:6]] == [False] * 5 + [True]
    assert one.holds(names[-1], 2.0)
