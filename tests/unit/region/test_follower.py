"""Transcripts of a region's follower: each of its requests, failures, and loading again."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dlog.errors import DamagedError, InvalidRequestError, UnavailableError, UnsupportedVersionError
from dlog.events import RegionCleaned, RegionRecordIgnored
from dlog.machine import PeerLost, Received
from dlog.region.counting import Batch, Entry, TableDropped, TableEnd
from dlog.region.follower import ENTRY_OVERHEAD_BYTES, Phase, RegionFollower, TableNotFoundError
from dlog.region.messages import (
    CatchUp,
    ReadOn,
    ReadRecords,
    RecordsAppended,
    RecoverTable,
    RemoveTable,
    RetireRegion,
    TableFound,
    Topic,
    TrimRegion,
)
from dlog.region.options import FollowerOptions
from dlog.region.topics import OffsetOutOfRangeError
from tests.unit.region.stories import TopicStory
from tests.unit.region.topic_lists import NONCE, OTHER, REGION, TopicList, encoded, fence

T, U = 7, 8
NONCES = itertools.count()
TIMED_OUT = UnavailableError("no answer")


class Story(TopicStory):
    """A follower and its two topics."""

    def __init__(self, data: TopicList | None = None, meta: TopicList | None = None, **options: Any) -> None:
        self.follower = RegionFollower(REGION, lambda: b"f%015d" % next(NONCES), FollowerOptions(**options))
        super().__init__(self.follower, data, meta)


def begun(number: int, table: int, *payloads: bytes) -> Batch:
    """A batch that begins a table and writes its first entries."""
    entries = [Entry(table, sequence, payload) for sequence, payload in enumerate((b"about it", *payloads))]
    return Batch(NONCE, number, tuple(entries))


def following(*items: Any, **options: Any) -> Story:
    """A follower that knows a topic of a fence and these items."""
    story = Story(TopicList(fence(), *items), **options)
    assert story.do(CatchUp()) is None
    story.lines.clear()
    return story


# ---- the end of a table ----------------------------------------------------------------------------------------------


def test_an_end_is_answered_once_the_own_record_is_read() -> None:
    story = following(begun(0, T, b"a"))
    ticket = story.ask(RecoverTable(T))
    story.data.add(Batch(NONCE, 1, (Entry(T, 2, b"bc"),)))  # of the owner, in front of the end
    story.answer()
    story.data.add(Batch(NONCE, 2, (Entry(T, 3, b"d"),)))  # behind it
    assert ticket not in story.results
    story.answer_all()
    assert story.results[ticket] == TableFound(2, 3)
    assert story.lines == ["data: append table_end", "data: read 3"]


def test_an_empty_read_says_nothing_of_what_was_appended_after_it_was_asked() -> None:
    story = following(begun(0, T, b"a"))
    tail = story.ask(ReadOn())
    topic, question = story.asked.pop(0)
    empty = story.topics[topic].answer(question)
    ticket = story.ask(RecoverTable(T))
    story.data.add(Batch(NONCE, 1, (Entry(T, 2, b"b"),)))
    story.answer()
    story.fact(Received(topic, empty))
    assert story.results[tail] is False
    assert ticket not in story.results
    story.answer_all()
    assert story.results[ticket] == TableFound(2, 2)


@pytest.mark.parametrize(("request_", "result"), [(RecoverTable(T), TableFound(1, 1)), (RemoveTable(T), None)])
def test_a_topic_may_be_read_faster_than_the_answer_of_an_append_comes(request_: Any, result: Any) -> None:
    story = following(begun(0, T, b"a"))
    ticket = story.ask(request_)
    topic, question = story.asked.pop(0)
    reply = story.topics[topic].answer(question)
    assert story.do(ReadOn()) is True
    story.fact(Received(topic, reply))
    assert story.results[ticket] == result


def test_an_append_that_is_not_in_the_topic_is_an_error() -> None:
    """A broker that lost its end answers an offset that was read with other contents."""
    story = following(begun(0, T, b"a"))
    for request in (RecoverTable(T), RemoveTable(T)):
        ticket = story.ask(request)
        topic, question = story.asked.pop(0)
        story.fact(Received(topic, RecordsAppended(question.number, 1)))
        assert isinstance(story.results[ticket], UnavailableError)
    story.data.add(TableEnd(T))
    assert story.do(RecoverTable(T)) == TableFound(1, 1)


def test_a_table_that_is_not_found_or_removed_is_never_begun() -> None:
    """Its owner may have sent the record that begins it, and that may land at any later moment."""
    story = following()
    assert isinstance(story.do(RecoverTable(T)), TableNotFoundError)
    assert story.do(RemoveTable(U)) is None
    assert "data: append table_end" in story.lines
    assert "data: append table_dropped" in story.lines
    story.data.add(begun(0, T, b"late"))
    story.data.add(begun(1, U, b"late"))
    story.lines.clear()
    assert isinstance(story.do(RecoverTable(T)), TableNotFoundError)
    assert story.do(RemoveTable(U)) is None
    assert story.lines == [], "both are known"
    assert story.do(CatchUp()) is None
    assert story.follower.state is not None
    assert story.follower.state.meta.tables == {}


# ---- retiring --------------------------------------------------------------------------------------------------------


def test_a_region_is_retired_once_no_table_is_left_and_no_owner_opens_it_any_more() -> None:
    story = following(begun(0, T, b"a"))
    assert story.do(RetireRegion()) is False
    assert "data: append fence" not in story.lines
    assert story.do(RemoveTable(T)) is None
    assert story.do(RetireRegion()) is True
    assert story.lines.count("data: append fence") == 1
    assert story.do(RetireRegion()) is True
    assert Story(story.data).do(RetireRegion()) is True
    assert story.lines.count("data: append fence") == 1, "the fence is final"
    story.data.add(fence(5, OTHER))
    story.data.add(Batch(OTHER, 0, (Entry(U, 0, b"about it"),)))
    assert story.do(CatchUp()) is None
    assert story.follower.state is not None
    assert story.follower.state.meta.tables == {}


def test_a_region_is_not_retired_if_a_table_is_begun_in_front_of_the_fence() -> None:
    story = following()
    ticket = story.ask(RetireRegion())
    while story.lines[-1] != "data: append fence":
        story.answer()
    story.data.add(begun(0, T))
    story.answer_all()
    assert story.results[ticket] is False
    assert story.do(RecoverTable(T)) == TableFound(0, 0)
    assert story.do(RemoveTable(T)) is None
    assert story.do(RetireRegion()) is True


def test_a_fence_that_is_not_in_the_topic_retires_nothing() -> None:
    story = following()
    ticket = story.ask(RetireRegion())
    story.answer()
    topic, question = story.asked.pop(0)
    story.fact(Received(topic, RecordsAppended(question.number, 0)))
    assert isinstance(story.results[ticket], UnavailableError)


# ---- following -------------------------------------------------------------------------------------------------------


def test_the_first_request_loads_the_region_and_then_the_topic_is_read_on() -> None:
    story = Story(TopicList(fence(), begun(0, T, b"a")))
    ticket = story.ask(CatchUp())
    assert story.follower.phase is Phase.LOADING
    story.answer_all()
    assert story.results[ticket] is None
    assert story.lines == ["meta: offsets", "data: offsets", "data: read 0", "data: read 2", "data: offsets"]
    story.lines.clear()
    assert story.do(ReadOn()) is False
    story.data.add(Batch(NONCE, 1, (Entry(T, 2, b"b"),)))
    assert story.do(ReadOn()) is True
    assert story.lines == ["data: read 3", "data: read 3"]
    assert story.follower.state is not None
    assert story.follower.state.meta.tables[T].next_seq_num == 3


def test_requests_at_the_same_time_share_a_load_a_read_and_an_append() -> None:
    story = Story(TopicList(fence(), begun(0, T, b"a"), begun(1, U)))
    tickets = [story.ask(request) for request in (RecoverTable(T), ReadOn(), RecoverTable(U), RemoveTable(9), ReadOn())]
    story.answer_all()
    assert [story.results[ticket] for ticket in tickets] == [TableFound(1, 1), True, TableFound(0, 0), None, True]
    assert story.lines.count("data: append table_end table_end table_dropped") == 1
    assert story.lines.count("data: read 4") == 1


def test_what_is_wanted_while_an_append_is_under_way_goes_into_the_next_one() -> None:
    story = following(begun(0, T), begun(1, U))
    first, second = story.ask(RecoverTable(T)), story.ask(RemoveTable(U))
    assert story.lines == ["data: append table_end"]
    story.answer_all()
    assert (story.results[first], story.results[second]) == (TableFound(0, 0), None)


def test_a_table_that_has_ended_is_answered_at_once() -> None:
    story = following(begun(0, T, b"ab"), TableEnd(T, NONCE))
    assert story.do(RecoverTable(T)) == TableFound(1, 2)
    assert story.lines == []


def test_a_dropped_table_is_gone_and_dropping_it_again_needs_no_record() -> None:
    story = following(begun(0, T, b"a"))
    assert story.do(RemoveTable(T)) is None
    assert story.lines[0] == "data: append table_dropped"
    story.lines.clear()
    assert story.do(RemoveTable(T)) is None
    assert isinstance(story.do(RecoverTable(T)), TableNotFoundError)
    assert story.lines == []


def test_the_newest_entries_are_kept_within_a_limit() -> None:
    payloads = [bytes([number]) * 50 for number in range(6)]
    story = following(recent_bytes=4 * (50 + ENTRY_OVERHEAD_BYTES))
    assert story.follower.recent.find(T, 1, 9, 1000) == []
    story.data.add(begun(0, T, *payloads))
    story.do(CatchUp())
    find = story.follower.recent.find
    assert find(T, 1, 9, 1000) == []
    assert find(T, 3, 9, 1000) == payloads[2:]
    assert find(T, 3, 4, 1000) == payloads[2:4]
    assert find(T, 4, 9, 101) == payloads[3:5]
    assert find(T, 4, 9, 1) == payloads[3:4], "at least one"
    assert find(U, 1, 9, 1000) == []
    story.data.add(Batch(NONCE, 1, (Entry(T, 7, bytes(2000)),)))
    story.do(CatchUp())
    assert find(T, 6, 9, 1000) == [], "one that is too large pushes out all"


def test_entries_that_do_not_count_are_not_kept() -> None:
    story = following(begun(0, T, b"a"))
    story.data.add(Batch(NONCE, 0, (Entry(T, 2, b"second copy"),)))
    story.data.add(TableEnd(T))
    story.data.add(Batch(NONCE, 1, (Entry(T, 2, b"behind the end"), Entry(U, 1, b"b"))))
    story.do(CatchUp())
    assert story.follower.recent.find(T, 2, 9, 1000) == []
    assert story.follower.recent.find(U, 1, 9, 1000) == [b"b"]


# ---- trimming --------------------------------------------------------------------------------------------------------


def _dropped(**options: Any) -> Story:
    """Offsets: 0 the fence, 1 and 2 of T, 3 and 4 of U, 5 the drop of T."""
    return following(begun(0, T, b"a"), begun(1, U, b"b"), TableDropped(T), **options)


def test_a_trim_saves_a_snapshot_then_a_check_point_and_then_deletes() -> None:
    story = _dropped()
    ticket = story.ask(TrimRegion())
    for line in ("meta: append checkpoint", "data: append checkpoint", "data: read 6", "data: delete below 3"):
        assert story.lines[-1] == line
        assert ticket not in story.results
        story.answer()
    assert story.results[ticket] == 3
    assert story.told(RegionCleaned) == [RegionCleaned(REGION, 3)]
    assert story.do(TrimRegion()) is None, "nothing to gain"
    for meta in (story.topics[Topic.META], TopicList()):
        again = Story(story.data, meta)
        assert again.do(RecoverTable(U)) == TableFound(1, 1)
        assert again.follower.state is not None
        assert again.follower.state.meta.tables.keys() == {U}


def test_all_is_trimmed_once_all_tables_are_dropped() -> None:
    story = _dropped()
    assert story.do(RemoveTable(U)) is None
    assert story.do(TrimRegion()) == 5
    assert story.do(TrimRegion()) is None


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_a_trim_that_fails_can_be_asked_for_again(step: int) -> None:
    story = _dropped()
    ticket = story.ask(TrimRegion())
    for _ in range(step):
        story.answer()
    story.answer(is_made=False, error=TIMED_OUT)
    assert story.results[ticket] is TIMED_OUT
    assert story.data.first == 0
    assert story.do(TrimRegion()) == 3


def test_a_snapshot_that_cannot_be_encoded_fails_the_trim() -> None:
    story = _dropped()
    assert story.follower.state is not None
    story.follower.state.meta.tables[U].payload_bytes = 1 << 64
    assert isinstance(story.do(TrimRegion()), InvalidRequestError)
    assert story.do(CatchUp()) is None


# ---- failures --------------------------------------------------------------------------------------------------------


def test_a_failed_load_is_answered_and_the_next_request_loads_again() -> None:
    story = Story(TopicList(fence()))
    tickets = [story.ask(CatchUp()), story.ask(RecoverTable(T))]
    story.answer(error=TIMED_OUT)
    assert [story.results[ticket] for ticket in tickets] == [TIMED_OUT, TIMED_OUT]
    assert story.follower.phase is Phase.CLOSED
    assert story.do(CatchUp()) is None


def test_a_lost_connection_fails_what_waits_for_it_and_nothing_is_forgotten() -> None:
    story = following(begun(0, T, b"a"))
    tickets = [story.ask(request) for request in (RecoverTable(T), ReadOn(), CatchUp(), RemoveTable(U))]
    story.asked.clear()
    story.fact(PeerLost(Topic.DATA, "reset"))
    for ticket in tickets:
        assert isinstance(story.results[ticket], UnavailableError)
    story.lines.clear()
    assert story.do(RecoverTable(T)) == TableFound(1, 1)
    assert story.lines[0] == "data: append table_end", "it is not loaded again"


def test_an_append_of_unknown_outcome_may_have_ended_the_table() -> None:
    story = following(begun(0, T, b"a"))
    ticket = story.ask(RecoverTable(T))
    story.answer(error=TIMED_OUT)
    assert story.results[ticket] is TIMED_OUT
    story.data.add(Batch(NONCE, 1, (Entry(T, 2, b"behind"),)))
    assert story.do(RecoverTable(T)) == TableFound(1, 1)


def test_a_region_whose_front_was_deleted_is_loaded_again() -> None:
    story = following(begun(0, T, b"a"), begun(1, U, b"b"))
    other = Story(story.data, story.topics[Topic.META])
    assert other.do(RemoveTable(T)) is None
    other.data.add(Batch(NONCE, 2, (Entry(U, 2, b"c"),)))
    assert other.do(RemoveTable(U)) is None
    assert other.do(TrimRegion()) == 7
    assert story.do(RecoverTable(9)) is not None
    assert "meta: offsets" in story.lines
    assert story.do(CatchUp()) is None
    assert story.follower.state is not None
    assert story.follower.state.meta.tables == {}
    assert story.follower.first == 7
    assert story.follower.recent.find(U, 1, 9, 100) == []


def test_a_front_that_is_deleted_at_each_load_is_an_error_in_the_end() -> None:
    story = Story(TopicList(fence(), begun(0, T)), load_attempts=3)
    ticket = story.ask(CatchUp())
    while story.asked:
        is_read = isinstance(story.asked[0][1], ReadRecords)
        story.answer(error=OffsetOutOfRangeError("deleted", 1, 2) if is_read else None)
    assert isinstance(story.results[ticket], OffsetOutOfRangeError)
    assert story.lines.count("meta: offsets") == 3
    assert story.do(CatchUp()) is None


def test_a_record_of_another_program_is_passed_over() -> None:
    foreign = [(b"key", b"value")]
    data = TopicList(fence())
    data.append(foreign)
    story = Story(data)
    assert story.do(CatchUp()) is None
    data.append(foreign)
    data.add(begun(0, T, b"a"))
    assert story.do(RecoverTable(T)) == TableFound(1, 1)
    reasons = [event.reason for event in story.events if isinstance(event, RegionRecordIgnored)]
    assert [reason.rpartition(" ")[2] for reason in reasons] == ["offset=1", "offset=2"]


def _newer() -> tuple[bytes, bytes]:
    key, value = encoded(fence())[0]
    return key[:-1] + b"\2", b"\2" + value[1:]


UNREADABLE = {
    "newer version": (_newer(), UnsupportedVersionError),
    "damaged": ((encoded(fence())[0][0], encoded(fence())[0][1] + b"x"), DamagedError),
    "another region": (encoded(fence(), region=8)[0], DamagedError),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_record_of_a_region_that_cannot_be_read_ends_all_reading(name: str) -> None:
    record, kind = UNREADABLE[name]
    story = following(begun(0, T, b"a"))
    story.data.append([record])
    for request in (CatchUp(), ReadOn(), RecoverTable(T), RemoveTable(T), RetireRegion()):
        error = story.do(request)
        assert type(error) is kind
        assert error.message.endswith("offset=3")
    assert isinstance(Story(story.data).do(CatchUp()), kind)


# ---- topics that are not what they were ------------------------------------------------------------------------------


def test_a_topic_that_was_deleted_and_created_again_is_an_error() -> None:
    story = following(begun(0, T, b"a"))
    story.topics[Topic.DATA] = TopicList(fence())
    for request in (CatchUp(), RetireRegion(), ReadOn()):
        error = story.do(request)
        assert isinstance(error, DamagedError)
        assert error.message.endswith("region=9 end=1 read=3")
    assert story.do(CatchUp()) is None, "it is loaded again, and there is no snapshot of what was"
    assert story.follower.state is not None
    assert story.follower.state.meta.tables == {}
