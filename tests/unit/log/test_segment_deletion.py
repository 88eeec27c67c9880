"""Each location is deleted once, oldest first, and adding one costs the same however many wait."""

from __future__ import annotations

from dlog.errors import LedgerNotFoundError, UnavailableError
from dlog.log.messages import DeleteSegment
from dlog.log.options import OwnerOptions
from dlog.log.segment_deletion import TIMER, PendingDeletion, SegmentDeleter
from dlog.machine import Effect, Send, SetTimer
from dlog.model.segment import Location


class CountedPlace(str):
    """A location that counts how often it is hashed or compared."""

    __slots__ = ()
    operations = 0

    def __hash__(self) -> int:
        CountedPlace.operations += 1
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        CountedPlace.operations += 1
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        CountedPlace.operations += 1
        return str.__ne__(self, other)


def deletion_of(place: str, store: str = "ledger") -> PendingDeletion:
    return PendingDeletion(Location(store, place), 1, None)


def questions(effects: list[Effect]) -> list[DeleteSegment]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def test_adding_a_place_costs_the_same_however_many_wait() -> None:
    disposal = SegmentDeleter(OwnerOptions(deletes_max=2))
    CountedPlace.operations = 0
    for n in range(2000):
        disposal.add(deletion_of(CountedPlace(n)))
    for n in range(2000):  # the next change of the list passes all of them again
        disposal.add(deletion_of(CountedPlace(n)))
    assert CountedPlace.operations <= 6 * 4000


def test_each_place_is_deleted_once_and_oldest_first() -> None:
    disposal = SegmentDeleter(OwnerOptions(deletes_max=2))
    for place in ("1", "2", "1", "3"):
        disposal.add(deletion_of(place))
    assert [q.location.name for q in questions(disposal.effects())] == ["1", "2"]
    disposal.add(deletion_of("2"))
    assert disposal.effects() == []
    first = deletion_of("1")
    assert disposal.deleted(first.location) == first
    assert disposal.deleted(first.location) is None
    assert [q.location.name for q in questions(disposal.effects())] == ["3"]


def test_the_same_place_in_another_store_is_another() -> None:
    disposal = SegmentDeleter(OwnerOptions(deletes_max=1))
    disposal.add(deletion_of("1"))
    disposal.add(deletion_of("1", "cold"))
    assert [q.location.store for q in questions(disposal.effects())] == ["ledger"]
    disposal.deleted(deletion_of("1").location)
    assert [q.location.store for q in questions(disposal.effects())] == ["cold"]


def test_what_failed_is_asked_again_after_the_timer_and_not_before() -> None:
    disposal = SegmentDeleter(OwnerOptions(deletes_max=1))
    disposal.add(deletion_of("1"))
    [question] = questions(disposal.effects())
    assert disposal.failed(question, UnavailableError("away")) is None
    assert [effect.key for effect in disposal.later() if isinstance(effect, SetTimer)] == [TIMER]
    disposal.add(deletion_of("1"))
    assert disposal.effects() == []
    disposal.retry()
    assert questions(disposal.effects()) == [question]
    disposal.lost()
    disposal.retry()
    assert questions(disposal.effects()) == [question]


def test_a_place_that_is_gone_or_deleted_may_be_handed_in_again() -> None:
    disposal = SegmentDeleter(OwnerOptions(deletes_max=1))
    for _ in range(2):
        disposal.add(deletion_of("1"))
        [question] = questions(disposal.effects())
        assert disposal.failed(question, LedgerNotFoundError("gone")) == deletion_of("1")
