"""The plan of a rebalance: which ledger moves from which bookie to which, until the shares are even."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dlog.ledger.balance import Balance, DiskSize, Move, placed_bytes
from dlog.model.ids import BookieId, EntryId
from dlog.model.ledger import Fragment, LedgerMetadata
from dlog.model.quorum import Quorum

A, B, C, D, E = (BookieId(name) for name in "abcde")
Q332 = Quorum(ensemble=3, write=3, ack=2)
MOVES_MAX = 1000


def closed(
    *ensembles: tuple[BookieId, ...], length: int = 300, entries_each: int = 10, write: int | None = None
) -> LedgerMetadata:
    size = len(ensembles[0])
    fragments = tuple(Fragment(EntryId(entries_each * n), members) for n, members in enumerate(ensembles))
    quorum = Quorum(ensemble=size, write=write or size, ack=1)
    value = LedgerMetadata(quorum=quorum, fragments=fragments)
    return value.closed_at(EntryId(entries_each * len(ensembles) - 1), length)


def balance(*ledgers: LedgerMetadata, free: int = 10_000, **totals: int) -> Balance:
    made = Balance(
        {BookieId(name): DiskSize(total, free) for name, total in totals.items()},
        frozenset(BookieId(name) for name in totals),
    )
    for value in ledgers:
        made.count(value)
    return made


def anywhere(value: LedgerMetadata, source: BookieId, target: BookieId) -> bool:
    return True


def test_bytes_follow_stripes_and_ensembles() -> None:
    assert placed_bytes(closed((A, B, C))) == {A: 300, B: 300, C: 300}
    assert placed_bytes(closed((A, B, C, D), length=400, write=2)) == dict.fromkeys((A, B, C, D), 200)
    assert placed_bytes(closed((A, B), (A, C), length=200)) == {A: 200, B: 100, C: 100}
    empty = LedgerMetadata(quorum=Q332, fragments=(Fragment(EntryId(0), (A, B, C)),)).closed_at(EntryId(-1), 0)
    assert placed_bytes(empty) == {A: 0, B: 0, C: 0}


def test_a_ledger_moves_to_the_emptiest_bookie_that_may_have_it() -> None:
    value = closed((A, B, C))
    made = balance(*[value] * 4, a=10_000, b=20_000, c=20_000, d=10_000, e=20_000)
    assert made.choose(value, anywhere) == Move(A, D, 300), "from the fullest, to the first of the empty ones"
    assert made.choose(value, lambda _, source, target: target == E) == Move(A, E, 300)
    assert made.choose(value, lambda _, source, target: False) is None
    assert made.choose(closed((A, B, D)), anywhere) == Move(A, E, 300), "not to a member"
    assert made.choose(closed((A, D), (B, C)), anywhere) == Move(A, E, 150)


def test_what_cannot_move() -> None:
    value = closed((A, B, C))
    opened = LedgerMetadata(quorum=Q332, fragments=value.fragments)
    assert balance(value, value, a=9000, b=9000, c=9000, d=9000).choose(opened, anywhere) is None
    assert balance(value, value, a=9000, b=9000, c=9000).choose(value, anywhere) is None, "nobody is emptier"
    assert balance(value, a=9000, b=9000, c=9000, d=100).choose(value, anywhere) is None, "it would be the fullest"
    assert balance(value, value, a=9000, b=9000, c=9000, d=9000, free=300).choose(value, anywhere) is None, "no room"
    readonly = Balance(dict.fromkeys((A, B, C, D), DiskSize(9000, 9000)), frozenset((A, B, C)))
    readonly.count(value)
    assert readonly.choose(value, anywhere) is None
    readonly = Balance(dict.fromkeys((A, B, C, D), DiskSize(9000, 9000)), frozenset((D,)))
    readonly.count(value)
    readonly.count(value)
    assert readonly.choose(value, anywhere) == Move(A, D, 300), "a read-only bookie gives"


def test_a_bookie_that_does_not_tell_takes_no_part() -> None:
    value = closed((A, B, C))
    made = balance(value, value, b=9000, d=9000, e=0)
    assert made.shares() == {B: 600 / 9000, D: 0.0}
    assert made.choose(value, anywhere) == Move(B, D, 300)


@given(st.randoms(use_true_random=False), st.integers(4, 8), st.integers(1, 30))
def test_moves_end_and_make_the_shares_more_even(rng: Random, bookies: int, count: int) -> None:
    names = [BookieId(f"b{n}") for n in range(bookies)]
    totals = {name: rng.choice((10_000, 20_000)) for name in names}
    made = Balance({name: DiskSize(total, total) for name, total in totals.items()}, frozenset(names))
    ledgers = [closed(tuple(rng.sample(names[:-1], 3)), length=rng.randint(1, 500)) for _ in range(count)]
    for value in ledgers:
        made.count(value)
    moves = 0
    while True:
        squares, spread = _squares(made, totals), made.spread
        found = next(((n, m) for n, v in enumerate(ledgers) if (m := made.choose(v, anywhere)) is not None), None)
        if found is None:
            break
        number, move = found
        made.note(move)
        (fragment,) = ledgers[number].fragments
        assert move.source in fragment.ensemble and move.target not in fragment.ensemble
        ensemble = tuple(move.target if b == move.source else b for b in fragment.ensemble)
        ledgers[number] = closed(ensemble, length=ledgers[number].length)
        assert _squares(made, totals) < squares and made.spread <= spread
        moves += 1
        assert moves < MOVES_MAX
    fresh = Balance({name: DiskSize(total, total) for name, total in totals.items()}, frozenset(names))
    for value in ledgers:
        fresh.count(value)
    assert fresh.shares() == made.shares(), "counted anew, as a second run does"


def _squares(made: Balance, totals: dict[BookieId, int]) -> float:
    """How far the shares are from even; each move lowers it."""
    return sum(totals[bookie] * share**2 for bookie, share in made.shares().items())
