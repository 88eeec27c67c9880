"""How many entries have too few copies, by metadata: examples, and a count of each single entry."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dlog.ledger.missing_copies import MissingCopies, missing_copies
from dlog.model.ids import BookieId, EntryId
from dlog.model.ledger import Fragment, LedgerMetadata
from dlog.model.quorum import Quorum

A, B, C, D = (BookieId(f"{name}:1") for name in "abcd")
OPEN = LedgerMetadata(
    quorum=Quorum(ensemble=3, write=3, ack=2),
    fragments=(Fragment(EntryId(0), (A, B, C)), Fragment(EntryId(10), (A, B, D))),
)
CLOSED = OPEN.closed_at(EntryId(19), 2_000)


@pytest.mark.parametrize(
    ("value", "lacking", "expected"),
    [
        (CLOSED, set(), MissingCopies()),
        (CLOSED, {C}, MissingCopies(10, 0, 1_000)),
        (CLOSED, {A}, MissingCopies(20, 0, 2_000)),
        (CLOSED, {A, C}, MissingCopies(20, 10, 2_000)),
        (CLOSED, {A, B, C, D}, MissingCopies(20, 20, 2_000)),
        (OPEN, {A, C}, MissingCopies(10, 10, 0)),
        (OPEN, {D}, MissingCopies()),
        (replace(OPEN.closed_at(EntryId(-1), 0), fragments=OPEN.fragments[:1]), {A, B, C}, MissingCopies()),
        (OPEN.closed_at(EntryId(9), 90), {D}, MissingCopies()),
    ],
)
def test_entries_are_counted_up_to_the_decided_end(
    value: LedgerMetadata, lacking: set[BookieId], expected: MissingCopies
) -> None:
    assert missing_copies(value, lacking) == expected


@pytest.mark.parametrize("seed", range(50))
def test_striped_ledgers_are_counted_as_entry_by_entry(seed: int) -> None:
    rng = random.Random(seed)
    ack, write, ensemble = sorted(rng.randint(1, 5) for _ in range(3))
    quorum = Quorum(ensemble=ensemble, write=write, ack=ack)
    bookies = [BookieId(f"b{number}:1") for number in range(8)]
    last = EntryId(rng.randint(0, 40))
    firsts = sorted({0, *(rng.randint(0, last) for _ in range(rng.randint(0, 3)))})
    fragments = tuple(Fragment(EntryId(first), tuple(rng.sample(bookies, ensemble))) for first in firsts)
    value = LedgerMetadata(quorum=quorum, fragments=fragments).closed_at(last, 7 * (last + 1))
    lacking = set(rng.sample(bookies, rng.randint(0, 6)))
    copies = [
        sum(value.fragment_of(EntryId(entry)).ensemble[index] not in lacking for index in quorum.write_set(entry))
        for entry in range(last + 1)
    ]
    below_write, below_ack = sum(n < write for n in copies), sum(n < ack for n in copies)
    assert missing_copies(value, lacking) == MissingCopies(below_write, below_ack, 7 * below_write)
