"""Comparisons of random copies: each seed against brute force, and a planted defect for each invariant."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dlog.ledger import comparing
from dlog.ledger.comparing import LedgerComparer
from dlog.wire.bookie_availability import EntryList
from tests.simulation.comparing_world import BOOKIES, ComparingWorld, Violation, is_bounded
from tests.simulation.mutants import edited

SEEDS = 150


def test_comparisons_find_exactly_what_differs() -> None:
    reached: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = ComparingWorld(seed)
        try:
            assert is_bounded(world.run())
        except Violation as violation:
            violation.add_note(f"seed {seed}")
            raise
        reached += world.reached
    assert reached.keys() == {
        *("changed", "missing", "inexact", "out", "differing", "wrong", "undecided", "unreadable"),
    }, reached


DEFECTS: dict[str, tuple[str, tuple[tuple[str, str, str], ...]]] = {
    "halving drops the upper half": ("2", (("_judge", "(upper, lower)", "(lower,)"),)),
    "a bookie out of reach counts as one without entries": (
        "1",
        (
            (
                "_give_up",
                "question.waiting.discard(bookie)",
                "if bookie in question.waiting: question.summaries[bookie] = (0, 0)\n"
                "        question.waiting.discard(bookie)",
            ),
        ),
    ),
    "an error counts as no entry": (
        "1",
        (("_note_summary", "elif answer.code in ABSENT:", "elif answer.code is not Code.OK:"),),
    ),
    "a bookie that does not know the ledger is out of reach": (
        "1",
        (("_note_summary", "elif answer.code in ABSENT:", "elif answer.code is Code.NO_ENTRY:"),),
    ),
    "members are only compared with each other": (
        "2",
        (
            (
                "_judge",
                "len(set(some.values())) <= 1 and all(count == entries for count, _ in some.values())",
                "len(set(some.values())) <= 1",
            ),
        ),
    ),
    "only counts are compared": (
        "2",
        (("_judge", "len(set(some.values())) <= 1 and all", "all"),),
    ),
    "each member is asked for the first stripe": (
        "1",
        (("_ask", "part.modulus, part.remainder, self._digest", "part.modulus, 0, self._digest"),),
    ),
    "a part has all entries of the ensemble": (
        "6",
        (("_ask", "part.modulus, part.remainder, self._digest", "1, 0, self._digest"),),
    ),
    "a list is not looked up": ("2", (("_ask", "if listed is not None", "if False"),)),
    "what changed meanwhile is not seen": (
        "4",
        (("_note_metadata", "value == self._value", "True"),),
    ),
    "the bookie that differs from the first one is wrong": (
        "3",
        (
            (
                "_note_read",
                "reading.verified.add(bookie)",
                "(reading.wrong if reading.verified else reading.verified)"
                ".__class__ is dict and reading.wrong.update({bookie: ''}) or reading.verified.add(bookie)",
            ),
        ),
    ),
    "a copy that cannot be read does not count": (
        "2",
        (("_judge", "if is_equal and not unreadable:", "if is_equal:"),),
    ),
    "a bookie that cannot read the only copy is not reported": (
        "2",
        (("_record_distinguished", "self._out_of_reach.setdefault(bookie, _UNREADABLE)", "pass"),),
    ),
    "all copies that cannot be read are looked for": (
        "6",
        (("_judge", " - self._unreadable", ""),),
    ),
    "a ledger is asked in one part": (
        "6",
        (("_settle", "while len(self._questions) < PARTS_AT_ONCE and", "while"),),
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_of_the_machine_is_caught(name: str) -> None:
    invariant, edits = DEFECTS[name]
    assert caught(edited(LedgerComparer, *edits)) == invariant


def test_a_stripe_of_a_neighbour_is_caught() -> None:
    assert caught(edited(LedgerComparer, ("_parts_of", "write_set(remainder)", "write_set(remainder + 1)"))) in "12"


def test_ends_of_what_bookies_hold_that_are_too_low_are_caught() -> None:
    assert caught(edited(LedgerComparer, ("_may_hold", "if not ends and", "if ends is None and"))) in ("1", "2")


class CountedList(EntryList):
    """Counts the entries that are looked up."""

    looked_up = 0

    def __contains__(self, entry: int) -> bool:
        CountedList.looked_up += 1
        return super().__contains__(entry)


@pytest.mark.parametrize("defect", ["", "if entries >= STEP_ENTRIES:"])
def test_lists_are_looked_up_in_steps(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    monkeypatch.setattr(comparing, "STEP_ENTRIES", 100)
    monkeypatch.setattr(comparing, "SUMMARY_IDS_MAX", 32)
    monkeypatch.setattr(comparing, "EntryList", CountedList)
    comparer = edited(LedgerComparer, ("_settle", defect, "if False:")) if defect else LedgerComparer
    steps = most = 0
    for seed in range(30):
        world = ComparingWorld(seed, comparer)
        world.lists = frozenset(BOOKIES)
        handle = world.machine.handle

        def counted(fact: Any, handle: Any = handle) -> Any:
            nonlocal most
            CountedList.looked_up = 0
            effects = handle(fact)
            most = max(most, CountedList.looked_up)
            return effects

        monkeypatch.setattr(world.machine, "handle", counted)
        world.run()
        steps += world.reached["step"]
    assert bool(steps) is not bool(defect)
    assert (most > 100 + 5 * 32) is bool(defect), "one step has 100 entries, and those of a part on 5 bookies"


def caught(comparer: type) -> str:
    """The invariant that the first seed finds broken; empty: none."""
    for seed in range(SEEDS):
        try:
            ComparingWorld(seed, comparer).run()
        except Violation as violation:
            return violation.invariant
    return ""
