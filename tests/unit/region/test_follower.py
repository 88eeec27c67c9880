"""Transcripts of a region's follower: each of its requests, failures, and loading again."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dlog.errors import DamagedError, UnavailableError
from dlog.machine import Received
from dlog.region.counting import Batch, Entry, TableEnd
from dlog.region.follower import RegionFollower, TableNotFoundError
from dlog.region.messages import (
    CatchUp,
    ReadOn,
    RecordsAppended,
    RecoverTable,
    RemoveTable,
    RetireRegion,
    TableFound,
    Topic,
)
from dlog.region.options import FollowerOptions
from tests.unit.region.stories import TopicStory
from tests.unit.region.topic_lists import NONCE, OTHER, REGION, TopicList, fence

T, U = 7, 8
NONCES = itertools.count()


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
