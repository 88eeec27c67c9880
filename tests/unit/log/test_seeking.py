"""Binary search finds the first entry that is not before the goal, whatever entries without a key are in between."""

from __future__ import annotations

import bisect

from hypothesis import given
from hypothesis import strategies as st

from dlog.log.contents import EntryContents
from dlog.log.dedup_trailer import DedupTrailer
from dlog.log.seeking import BinarySearch, SeekTarget
from dlog.model.ids import EntryId


def entry(key: int, *, control: bool = False, noted: bool = True) -> EntryContents:
    """An entry with one batch of txid and time `key`, or a control record after it."""
    note = DedupTrailer(key, EntryId(0), ()) if noted and not control else None
    if control:
        return EntryContents((), (), (), 1, key, 0, False, None)
    return EntryContents((0,), (key,), (1,), 1, key, 1, False, note)


def found(goal: SeekTarget, entries: list[EntryContents]) -> int:
    halving = BinarySearch(goal, 0, len(entries) - 1)
    asked = 0
    while not halving.is_done:
        asked += 1
        halving.handle(entries[halving.middle])
    assert asked <= len(entries).bit_length()
    return halving.low


keys = st.lists(st.integers(0, 30), min_size=1, max_size=40).map(sorted)


@given(keys, st.integers(0, 31), st.booleans())
def test_the_first_entry_that_is_not_before(values: list[int], least: int, by_time: bool) -> None:
    assert found(SeekTarget(by_time, least), [entry(v) for v in values]) == bisect.bisect_left(values, least)


@given(keys, st.integers(0, 31), st.lists(st.booleans(), min_size=40, max_size=40), st.booleans())
def test_entries_that_say_nothing_never_let_a_match_be_passed(
    values: list[int], least: int, controls: list[bool], by_time: bool
) -> None:
    entries = [entry(v, control=c) for v, c in zip(values, controls, strict=False)]
    goal = SeekTarget(by_time, least)
    matches = [i for i, contents in enumerate(entries) if goal.slot_in(contents) is not None]
    assert found(goal, entries) <= min(matches, default=len(entries))


def test_without_a_note_the_txid_is_the_time() -> None:
    goal = SeekTarget(True, 20)
    assert goal.slot_in(entry(20, noted=False)) == 0
    assert goal.slot_in(entry(19, noted=False)) is None
