"""A segment on its way to cold storage: who announced first decides whether the hot copy goes or comes back."""

from __future__ import annotations

from dataclasses import replace

from dlog.model.ids import EntryId, SegmentNumber, StreamName, Txid
from dlog.model.offloading import (
    COLD,
    Record,
    Step,
    add_object,
    announce_deletion,
    announce_return,
    decide,
)
from dlog.model.segment import Segment, StreamMetadata
from dlog.stores.cold import store

FRESH = Record(stream="s", number=1, store="ledger", place="101", objects=())


def step(record: Record, place: str) -> Step:
    """What a run does next while metadata says that the segment lies there."""
    segment = Segment(
        number=SegmentNumber(1),
        place=place,
        store="ledger" if place == "101" else COLD,
        first_txid=Txid(0),
        completed=True,
        last_entry=EntryId(3),
    )
    value = StreamMetadata(name=StreamName("s"), segments=(segment,))
    return decide(record, value, now_unix_ms=10**12, grace_s=1.0).step


def told(record: Record | None) -> Record:
    assert record is not None
    return record


def test_the_store_of_objects_has_the_name_that_records_go_by() -> None:
    assert store.NAME == COLD


def test_the_hot_copy_goes_only_behind_an_announcement_and_then_nothing_is_taken_back() -> None:
    record = replace(told(add_object(None, FRESH, "a")), moved_unix_ms=1)
    assert step(record, "a") is Step.RETIRE
    deleting = told(announce_deletion(record, "a"))
    assert step(deleting, "a") is Step.RETIRE, "a run that was killed there is gone on with"
    assert announce_return(deleting, "a", is_damaged=True) is None
    assert add_object(deleting, FRESH, "b") is None
    assert announce_deletion(record, "b") is None, "it lies in no object that is known"


def test_what_was_to_be_taken_back_is_not_deleted_whatever_became_of_the_request() -> None:
    record = replace(told(add_object(None, FRESH, "a")), moved_unix_ms=1)
    for is_damaged in (False, True):
        leaving = told(announce_return(record, "a", is_damaged=is_damaged))
        assert announce_deletion(leaving, "a") is None
        assert announce_deletion(replace(leaving, moved_unix_ms=1), "a") is None
        assert step(leaving, "a") is Step.TAKE_BACK, "it was not done, or an old request moved it there again"
        assert step(leaving, "101") is Step.TELL and leaving.needs_copy, "of another object, no request leaves that"
        assert announce_return(leaving, "a", is_damaged=False) == replace(leaving, is_damaged=False), "once is enough"


def test_another_object_makes_an_end_of_what_was_asked_for_from_the_one_before() -> None:
    record = replace(told(add_object(None, FRESH, "a")), moved_unix_ms=1)
    leaving = told(announce_return(record, "a", is_damaged=True))
    again = told(add_object(leaving, FRESH, "b"))
    assert (again.objects, again.taken_back_from, again.needs_copy) == (("a", "b"), ("a",), False)
    moved = replace(again, moved_unix_ms=1)
    assert step(moved, "b") is Step.RETIRE and announce_deletion(moved, "b") is not None
    assert step(moved, "a") is Step.TAKE_BACK and announce_deletion(moved, "a") is None
