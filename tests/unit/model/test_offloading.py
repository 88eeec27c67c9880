"""Tests a segment on its way to cold storage: the first announcement decides whether the hot copy is deleted or
kept."""

from __future__ import annotations

from dataclasses import replace

from dlog.model.ids import EntryId, SegmentNumber, StreamName, Txid
from dlog.model.offloading import COLD, Record, Step, decide
from dlog.model.segment import Segment, StreamMetadata
from dlog.stores.cold import store

FRESH = Record(stream="s", number=1, store="ledger", name="101", objects=())


def step(record: Record, place: str) -> Step:
    """The next step of a run while metadata names this location of the segment."""
    segment = Segment(
        number=SegmentNumber(1),
        name=place,
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
    record = replace(told(FRESH.with_object("a")), moved_unix_ms=1)
    assert step(record, "a") is Step.RETIRE
    deleting = record.deleting()
    assert step(deleting, "a") is Step.RETIRE, "a run that was killed there is gone on with"
    assert deleting.returning("a", is_damaged=True) is None
    assert deleting.with_object("b") is None


def test_what_was_to_be_taken_back_is_not_deleted_whatever_became_of_the_request() -> None:
    record = replace(told(FRESH.with_object("a")), moved_unix_ms=1)
    for is_damaged in (False, True):
        leaving = told(record.returning("a", is_damaged=is_damaged))
        for later in (leaving, replace(leaving, moved_unix_ms=1)):
            assert step(later, "a") is Step.TAKE_BACK, "it was not done, or an old request moved it there again"
        assert step(leaving, "101") is Step.REQUEST_MOVE and leaving.needs_copy, (
            "of another object, no request leaves that"
        )
        assert leaving.returning("a", is_damaged=is_damaged) == leaving, "once is enough"


def test_another_object_makes_an_end_of_what_was_asked_for_from_the_one_before() -> None:
    record = replace(told(FRESH.with_object("a")), moved_unix_ms=1)
    leaving = told(record.returning("a", is_damaged=True))
    again = told(leaving.with_object("b"))
    assert (again.objects, again.taken_back_from, again.needs_copy) == (("a", "b"), ("a",), False)
    moved = replace(again, moved_unix_ms=1)
    assert step(moved, "b") is Step.RETIRE
    assert step(moved, "a") is Step.TAKE_BACK
