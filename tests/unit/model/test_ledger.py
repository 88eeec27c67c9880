"""Tests ledger metadata: which bookies have an entry, and the changes the protocol makes."""

from __future__ import annotations

import pytest

from dlog.model.ids import BookieId, EntryId
from dlog.model.ledger import Fragment, LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum

A, B, C, D, E = map(BookieId, "abcde")


def ledger(*fragments: tuple[int, tuple[BookieId, ...]]) -> LedgerMetadata:
    return LedgerMetadata(
        quorum=Quorum(ensemble=3, write=2, ack=2),
        fragments=tuple(Fragment(EntryId(first), ensemble) for first, ensemble in fragments),
    )


def test_an_entry_lies_in_the_last_fragment_that_begins_at_or_before_it() -> None:
    metadata = ledger((0, (A, B, C)), (5, (A, D, C)), (9, (E, D, C)))
    firsts = [metadata.fragment_of(entry).first_entry for entry in range(12)]
    assert firsts == [0] * 5 + [5] * 4 + [9] * 3
    assert metadata.fragment_of(10**12).first_entry == 9


def test_striping_goes_on_by_entry_id_across_fragments() -> None:
    metadata = ledger((0, (A, B, C)), (5, (A, D, C)))
    assert [metadata.bookies_of(entry) for entry in (0, 1, 2, 4)] == [(A, B), (B, C), (C, A), (B, C)]
    assert [metadata.bookies_of(entry) for entry in (5, 6, 7)] == [(C, A), (A, D), (D, C)]


def test_a_new_ensemble_is_appended_or_replaces_one_that_begins_at_the_same_entry() -> None:
    appended = ledger((0, (A, B, C))).with_ensemble(EntryId(4), (A, B, D))
    assert appended == ledger((0, (A, B, C)), (4, (A, B, D)))
    assert appended.with_ensemble(EntryId(4), (A, B, E)) == ledger((0, (A, B, C)), (4, (A, B, E)))
    assert ledger((0, (A, B, C))).with_ensemble(EntryId(0), (D, B, C)) == ledger((0, (D, B, C)))


def test_an_ensemble_never_begins_before_the_last() -> None:
    with pytest.raises(AssertionError):
        ledger((0, (A, B, C)), (5, (A, D, C))).with_ensemble(EntryId(4), (A, B, D))


def test_states_follow_each_other() -> None:
    metadata = ledger((0, (A, B, C)))
    assert metadata.in_recovery().state is LedgerState.IN_RECOVERY
    closed = metadata.in_recovery().closed_at(EntryId(7), 100)
    assert (closed.is_closed, closed.last_entry, closed.length) == (True, 7, 100)
    assert closed.fragments == metadata.fragments and not metadata.is_closed


def test_the_creation_token_is_no_part_of_what_a_ledger_is() -> None:
    one = LedgerMetadata(quorum=Quorum(), fragments=(Fragment(EntryId(0), (A, B, C)),), ctoken=1)
    two = LedgerMetadata(quorum=Quorum(), fragments=(Fragment(EntryId(0), (A, B, C)),), ctoken=2)
    assert one == two
