"""An entry that must have a certain sequence has it, or is refused: what a segment's writer submits stays in order."""

from __future__ import annotations

import pytest

from dlog.errors import InvalidRequestError, RecordTooLargeError
from dlog.region.counting import TableDropped, TableEnd
from dlog.region.items import records_of
from dlog.region.messages import BeginTable, EndTable, OpenRegion, WriteEntries
from dlog.region.options import RegionOptions
from dlog.region.owner import RegionOwner
from dlog.region.waiting import EntryOutOfOrderError, TableEndedError
from tests.unit.region.stories import TopicStory
from tests.unit.region.topic_lists import REGION

T, U = 7, 8


def opened() -> TopicStory:
    """An owner whose table T has begun and has entry 1."""
    story = TopicStory(RegionOwner(REGION, iter([bytes([n] * 16) for n in range(1, 9)]).__next__, RegionOptions()))
    assert story.do(OpenRegion()) is None
    assert isinstance(story.do(BeginTable(T, b"about")), int)
    assert story.do(WriteEntries(((T, b"1"),), 1)) == (1,)
    return story


def test_entries_behind_a_refused_one_are_refused_too() -> None:
    story = opened()
    second = story.ask(WriteEntries(((T, b"2"),), 2))
    third, fourth = story.ask(WriteEntries(((T, b"3"),), 3)), story.ask(WriteEntries(((T, b"4"),), 4))
    other = story.ask(WriteEntries(((U, b"other"),)))
    story.answer(is_made=False, error=RecordTooLargeError("too large for the topic"))
    story.answer_all()
    assert isinstance(story.results[second], RecordTooLargeError)
    for ticket, sequence in ((third, 3), (fourth, 4)):
        error = story.results[ticket]
        assert isinstance(error, EntryOutOfOrderError) and not error.outcome_unknown
        assert f"sequence={sequence} expected=2" in error.message
    assert story.results[other] == (1,)
    assert story.do(EndTable(T)) == 1, "the table ends in front of the refused entry"


def test_an_owner_whose_waiting_entries_are_all_refused_goes_on() -> None:
    story = opened()
    assert isinstance(story.do(WriteEntries(((T, b"3"),), 3)), EntryOutOfOrderError)
    assert story.do(WriteEntries(((T, b"2"),), 2)) == (2,)


def test_entries_in_one_batch_follow_each_other() -> None:
    story = opened()
    first = story.ask(WriteEntries(((T, b"2"),), 2))
    tickets = [story.ask(WriteEntries(((T, b"%d" % n),), n)) for n in (3, 4, 6, 5)]
    story.answer_all()
    assert story.results[first] == (2,)
    assert [story.results[ticket] for ticket in tickets[:2]] == [(3,), (4,)]
    assert isinstance(story.results[tickets[2]], EntryOutOfOrderError)
    assert story.results[tickets[3]] == (5,)


@pytest.mark.parametrize("item", [TableEnd(T), TableDropped(T)])
def test_an_entry_of_a_table_that_another_process_ended_is_told_so(item: TableEnd | TableDropped) -> None:
    story = opened()
    story.data.append(records_of(REGION, 0, bytes(16), item))
    results = [story.do(WriteEntries(((T, b"%d" % n),), n)) for n in (2, 3)]
    assert [type(result) for result in results] == [TableEndedError, TableEndedError]


def test_the_refusal_of_a_begin_leaves_its_first_entries_out() -> None:
    """Also those that were submitted before the refusal was known."""
    story = opened()
    begin = story.ask(BeginTable(U, b"about"))
    entry = story.ask(WriteEntries(((U, b"2"),), 2))
    story.answer(is_made=False, error=InvalidRequestError("refused"))
    story.answer_all()
    assert isinstance(story.results[begin], InvalidRequestError)
    assert isinstance(story.results[entry], EntryOutOfOrderError)
