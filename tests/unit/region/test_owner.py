"""Transcripts of a region's owner: opening, writing, cleaning, appends of unknown outcome, and losing the region."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dlog.errors import (
    DamagedError,
    InvalidRequestError,
    OverCapacityError,
    RecordTooLargeError,
    UnavailableError,
    UnsupportedVersionError,
)
from dlog.events import (
    RegionAppendInDoubt,
    RegionCleaned,
    RegionFenced,
    RegionOpened,
    RegionRecordIgnored,
    RegionSnapshotFailed,
    TablePinsRegion,
)
from dlog.machine import PeerLost, Received
from dlog.region.counting import FINAL_EPOCH, Checkpoint, RegionFence, TableDropped, TableEnd
from dlog.region.items import RECORD_OVERHEAD_BYTES
from dlog.region.messages import (
    AwaitWrites,
    BeginTable,
    CleanRegion,
    DropTable,
    EndTable,
    FindStart,
    MarkDeleted,
    OpenRegion,
    ReadingStart,
    RecordsAppended,
    SaveSnapshot,
    Topic,
    WriteEntries,
)
from dlog.region.options import RegionOptions
from dlog.region.owner import Phase, RegionFencedError, RegionOwner
from dlog.region.reading import EntryScan, RegionEntry, find_start
from dlog.region.topics import OwnerRefusedError
from dlog.region.waiting import TableEndedError
from tests.unit.region.stories import TopicStory
from tests.unit.region.topic_lists import OTHER, REGION, TopicList, batch, checkpoint, encoded, fence, loaded

T, U = 7, 8
NONCES = itertools.count()
TIMED_OUT = UnavailableError("no answer")


class Story(TopicStory):
    """An owner and its two topics."""

    def __init__(self, data: TopicList | None = None, meta: TopicList | None = None, **options: Any) -> None:
        self.owner = RegionOwner(REGION, lambda: b"%016d" % next(NONCES), RegionOptions(**options))
        super().__init__(self.owner, data, meta)

    def write(self, *entries: tuple[int, bytes]) -> int:
        return self.ask(WriteEntries(entries))

    def entries(self) -> list[tuple[int, int, bytes]]:
        """What a reader of the data topic finds: each entry that counts."""
        return [(entry.table, entry.sequence, entry.payload) for entry in _counting(self.data)]


def _counting(data: TopicList) -> Iterator[RegionEntry]:
    state = loaded(data).state
    assert state is not None
    scan = EntryScan(REGION, find_start(state, data.first, FindStart()))
    for one in scan.feed(data.stored(scan.offset)):
        assert isinstance(one, RegionEntry)
        yield one


def opened(data: TopicList | None = None, meta: TopicList | None = None, **options: Any) -> Story:
    story = Story(data, meta, **options)
    assert story.do(OpenRegion()) is None
    story.lines.clear()
    return story


# ---- opening --------------------------------------------------------------------------------------------------------


def test_opening_an_empty_region() -> None:
    story = Story()
    assert story.do(OpenRegion()) is None
    assert story.lines == ["meta: offsets", "data: offsets", "data: append fence", "data: read 0"]
    assert story.owner.phase is Phase.SERVING
    assert story.events == [RegionOpened(REGION, 1, 1)]


def test_an_opening_reads_the_topic_and_then_what_came_before_its_fence() -> None:
    story = Story(TopicList(fence(4), batch(0, (T, 1))))
    ticket = story.ask(OpenRegion())
    while story.lines[-1] != "data: append fence":
        story.answer()
    story.data.add(batch(1, (T, 2)))  # of the owner before, in front of the new fence
    story.answer_all()
    assert story.results[ticket] is None
    assert story.events == [RegionOpened(REGION, 5, 4)]
    assert story.do(WriteEntries(((T, b"x"),))) == (3,)


def test_openings_at_the_same_time_are_one() -> None:
    story = Story()
    tickets = [story.ask(OpenRegion()), story.ask(OpenRegion())]
    story.answer_all()
    assert [story.results[ticket] for ticket in tickets] == [None, None]
    assert len(story.told(RegionOpened)) == 1
    assert story.do(OpenRegion()) is None
    assert len(story.data.log) == 1


def test_requests_before_the_opening_are_refused() -> None:
    story = Story()
    for request in (WriteEntries(((T, b"x"),)), SaveSnapshot(), CleanRegion(), MarkDeleted(T, 1), DropTable(T)):
        assert isinstance(story.do(request), UnavailableError)
    story.ask(OpenRegion())
    assert isinstance(story.results[story.write((T, b"x"))], UnavailableError)


def test_an_opening_that_fails_is_tried_again_and_then_answered_with_the_error() -> None:
    story = Story(open_attempts=3)
    ticket = story.ask(OpenRegion())
    story.answer(error=TIMED_OUT)
    story.retry()
    story.fact(PeerLost(Topic.META, "reset"))
    story.retry()
    story.asked.clear()
    story.fact(PeerLost(Topic.META, "reset"))
    assert isinstance(story.results[ticket], UnavailableError)
    assert story.owner.phase is Phase.CLOSED
    assert story.do(OpenRegion()) is None


def test_a_damaged_region_is_not_opened_and_not_tried_again() -> None:
    data = TopicList(fence(), batch(0, (T, 1)))
    data.first = 1
    story = Story(data)
    assert isinstance(story.do(OpenRegion()), DamagedError)
    assert (story.timers, story.owner.phase) == ([], Phase.CLOSED)
    assert len(data.log) == 2, "no fence"


def test_the_front_is_deleted_while_an_opening_reads() -> None:
    story = Story(TopicList(fence(), batch(0, (T, 1))))
    ticket = story.ask(OpenRegion())
    while story.lines[-1] != "data: read 0":
        story.answer()
    state = loaded(story.data).state
    assert state is not None
    story.data.add(checkpoint(state))
    story.data.first = 2
    story.answer()
    story.retry()
    story.answer_all()
    assert story.results[ticket] is None
    assert story.do(WriteEntries(((T, b"x"),))) == (2,)


def test_a_fence_of_unknown_outcome_is_sent_again_and_each_may_come_late() -> None:
    story = Story()
    ticket = story.ask(OpenRegion())
    while story.lines[-1] != "data: append fence":
        story.answer()
    topic, late = story.asked[0]
    story.answer(is_made=False, error=TIMED_OUT)
    story.retry()
    story.answer_all()
    assert story.results[ticket] is None
    story.topics[topic].answer(late)  # the first fence lands now: its epoch is not higher
    assert story.do(WriteEntries(((T, b"x"),))) == (1,)
    assert story.entries() == [(T, 1, b"x")]


# ---- writing --------------------------------------------------------------------------------------------------------


def test_writes_get_dense_sequences_and_those_that_wait_go_into_one_batch() -> None:
    story = opened()
    first = story.write((T, b"a"))
    others = [story.write((T, b"b"), (U, b"c")), story.write((T, b"d")), story.write((U, b"e"))]
    assert story.lines == ["data: append entry"]
    story.answer()
    assert story.results == {1: None, first: (1,)}
    assert story.lines[1:] == ["data: append entry entry entry entry"]
    story.answer()
    assert [story.results[ticket] for ticket in others] == [(2, 1), (3,), (2,)]
    assert story.entries() == [(T, 1, b"a"), (T, 2, b"b"), (U, 1, b"c"), (T, 3, b"d"), (U, 2, b"e")]
    assert "read" not in " ".join(story.lines), "nothing came between, so nothing is read"


def test_a_batch_may_begin_tables_between_writes() -> None:
    story = opened()
    under_way = story.write((T, b"a"))
    asked = [
        story.write((T, b"b")),
        story.ask(BeginTable(U, b"described")),
        story.write((U, b"c"), (T, b"d"), (U, b"e")),
        story.ask(BeginTable(9, b"another")),
    ]
    story.answer()
    assert story.lines[1:] == ["data: append entry table_begin entry entry entry table_begin"]
    story.answer()
    assert story.results[under_way] == (1,)
    at = story.owner.state.meta.tables[U].begin
    assert [story.results[ticket] for ticket in asked] == [(2,), at, (1, 3, 2), at + 4]
    assert story.entries() == [(T, 1, b"a"), (T, 2, b"b"), (U, 1, b"c"), (T, 3, b"d"), (U, 2, b"e")]


def test_a_batch_takes_no_more_than_its_limit() -> None:
    story = opened(batch_bytes_max=2 * (RECORD_OVERHEAD_BYTES + 10))
    tickets = [story.write((T, bytes(10))) for _ in range(4)]
    story.answer_all()
    assert story.lines == ["data: append entry", "data: append entry entry", "data: append entry"]
    assert [story.results[ticket] for ticket in tickets] == [(1,), (2,), (3,), (4,)]


def test_a_write_that_fits_into_no_batch_is_refused() -> None:
    story = opened(batch_bytes_max=RECORD_OVERHEAD_BYTES + 10)
    error = story.do(WriteEntries(((T, bytes(11)),)))
    assert isinstance(error, RecordTooLargeError)
    assert not error.outcome_unknown
    assert isinstance(story.do(WriteEntries(())), RecordTooLargeError)
    assert story.do(WriteEntries(((T, bytes(10)),))) == (1,)


def test_too_many_waiting_writes_are_refused() -> None:
    story = opened(queue_bytes_max=2 * (RECORD_OVERHEAD_BYTES + 10))
    tickets = [story.write((T, bytes(10))) for _ in range(3)]  # one is under way, two wait
    error = story.results[story.write((T, b""))]
    assert isinstance(error, OverCapacityError)
    assert not error.outcome_unknown
    story.answer_all()
    assert [story.results[ticket] for ticket in tickets] == [(1,), (2,), (3,)]
    assert story.do(WriteEntries(((T, b"x"),))) == (4,)


def test_a_number_that_does_not_fit_fails_its_batch_and_nothing_else() -> None:
    story = opened()
    assert isinstance(story.do(WriteEntries(((1 << 64, b""),))), InvalidRequestError)
    assert story.do(WriteEntries(((T, b""),))) == (1,)


def test_a_foreign_record_between_costs_one_read() -> None:
    story = opened()
    ticket = story.write((T, b"a"))
    story.data.add(batch(3, (T, 9), nonce=OTHER))  # of an owner long ago
    story.data.append([(b"foreign", b"?")])
    story.answer()
    assert story.lines == ["data: append entry", "data: read 1"]
    assert ticket not in story.results
    story.answer_all()
    assert story.results[ticket] == (1,)
    (event,) = story.told(RegionRecordIgnored)
    assert isinstance(event, RegionRecordIgnored)
    assert event.reason.endswith("offset=2")
    story.lines.clear()
    assert story.do(WriteEntries(((T, b"b"),))) == (2,)
    assert story.lines == ["data: append entry"]


def test_a_table_that_has_ended_refuses_its_entries_only() -> None:
    story = opened()
    assert story.do(WriteEntries(((T, b"a"),))) == (1,)
    story.data.add(TableEnd(T))
    both, other = story.write((T, b"b"), (U, b"c")), story.write((U, b"d"))
    story.answer_all()
    assert isinstance(story.results[both], TableEndedError)
    assert "table=7" in story.results[both].message
    assert story.results[other] == (2,)
    assert story.entries() == [(T, 1, b"a"), (U, 1, b"c"), (U, 2, b"d")]


# ---- tables with a begin and an end ----------------------------------------------------------------------------------


def test_a_table_is_begun_written_and_ended_in_the_order_of_the_requests() -> None:
    story = opened()
    first = story.write((U, b"x"))
    begin = story.ask(BeginTable(T, b"about it"))
    writes = [story.write((T, b"a"), (T, b"bc")), story.write((U, b"y"))]
    end, behind, other = story.ask(EndTable(T)), story.write((T, b"d")), story.write((U, b"z"))
    story.answer_all()
    assert story.lines == [
        "data: append entry",
        "data: append table_begin entry entry entry",
        "data: append table_end",
        "data: append entry entry",
    ]
    assert [story.results[ticket] for ticket in (first, begin, *writes, end, other)] == [(1,), 2, (1, 2), (2,), 2, (3,)]
    assert isinstance(story.results[behind], TableEndedError)
    table = story.owner.state.meta.tables[T]
    assert (table.begin, table.next_seq_num, table.payload_bytes) == (2, 3, 3)


def test_a_table_without_entries_ends_with_none() -> None:
    story = opened()
    assert story.do(BeginTable(T, b"")) == 1
    assert story.do(EndTable(T)) == 0
    assert isinstance(story.do(EndTable(T)), TableEndedError)
    assert isinstance(story.do(EndTable(99)), TableEndedError)


def test_a_begin_is_answered_with_its_offset_behind_records_of_others() -> None:
    story = opened()
    ticket = story.ask(BeginTable(T, b""))
    story.data.add(TableEnd(U))
    story.data.add(TableDropped(99))
    story.answer_all()
    assert story.results[ticket] == 3
    assert story.owner.state.meta.tables[T].begin == 3


def test_a_number_that_was_ended_before_its_table_was_begun_is_refused() -> None:
    """Another process looked for the table, or dropped it, before the begin was there."""
    story = opened()
    tickets = [story.ask(BeginTable(T, b"")), story.ask(BeginTable(U, b""))]
    story.data.add(TableEnd(T))
    story.data.add(TableDropped(U))
    story.answer_all()
    for ticket in tickets:
        assert isinstance(story.results[ticket], TableEndedError)
    assert story.owner.state.meta.tables == {}
    assert story.do(BeginTable(9, b"")) == len(story.data.log) - 1


@pytest.mark.parametrize("is_made", [False, True])
def test_a_begin_of_unknown_outcome_is_found_or_sent_again(is_made: bool) -> None:
    story = opened()
    begin, write = story.ask(BeginTable(T, b"")), story.write((T, b"a"))
    topic, late = story.asked[0]
    story.answer(is_made=is_made, error=TIMED_OUT)
    story.answer_all()
    offset = 1 if is_made else 2
    assert (story.results[begin], story.results[write]) == (offset, (1,))
    story.topics[topic].answer(late)  # a copy behind the fence does not count
    assert story.do(WriteEntries(((T, b"b"),))) == (2,)
    state = loaded(story.data).state
    assert state is not None
    assert state.meta.tables[T].begin == offset


@pytest.mark.parametrize("is_made", [False, True])
def test_an_end_of_unknown_outcome_is_found_or_sent_again(is_made: bool) -> None:
    story = opened()
    story.do(WriteEntries(((T, b"a"),)))
    end, write = story.ask(EndTable(T)), story.write((T, b"b"))
    story.answer(is_made=is_made, error=TIMED_OUT)
    story.answer_all()
    assert story.results[end] == 1
    assert isinstance(story.results[write], TableEndedError)
    assert story.lines.count("data: append table_end") == (1 if is_made else 2)


def test_an_end_whose_first_copy_comes_late_is_no_end_by_another_process() -> None:
    story = opened()
    story.do(WriteEntries(((T, b"a"),)))
    ticket = story.ask(EndTable(T))
    topic, late = story.asked[0]
    story.answer(is_made=False, error=TIMED_OUT)
    while story.lines.count("data: append table_end") < 2:
        story.answer()
    story.topics[topic].answer(late)
    story.answer_all()
    assert story.results[ticket] == 1


@pytest.mark.parametrize("item", [TableEnd(T), TableDropped(T)])
def test_a_table_that_another_process_ended_first(item: TableEnd | TableDropped) -> None:
    story = opened()
    story.do(WriteEntries(((T, b"a"),)))
    ticket, write = story.ask(EndTable(T)), story.write((U, b"b"))
    story.data.add(item)
    story.answer_all()
    assert isinstance(story.results[ticket], TableEndedError)
    assert story.results[write] == (1,)
    assert (T in story.owner.state.meta.tables) is isinstance(item, TableEnd)


def test_an_end_counts_behind_the_fence_of_another_owner() -> None:
    story = opened()
    story.do(WriteEntries(((T, b"a"),)))
    ticket = story.ask(EndTable(T))
    story.data.add(fence(5, OTHER))
    story.data.add(batch(0, (T, 2), nonce=OTHER))
    story.answer_all()
    assert story.owner.is_deposed
    assert story.results[ticket] == 2


def test_a_waiting_end_fails_when_the_region_is_lost() -> None:
    story = opened()
    write, end = story.write((T, b"a")), story.ask(EndTable(T))
    story.data.add(fence(5, OTHER))
    story.answer_all()
    for ticket in (write, end):
        assert isinstance(story.results[ticket], RegionFencedError)


def test_a_table_that_another_process_dropped_is_forgotten() -> None:
    story = opened(map_every=1)
    story.do(BeginTable(T, b""))
    story.do(WriteEntries(((T, b"a"),)))
    story.data.add(TableDropped(T))
    assert isinstance(story.do(WriteEntries(((T, b"b"),))), TableEndedError)
    assert story.do(BeginTable(U, b"")) == 5
    assert story.owner.state.meta.tables.keys() == {U}
    assert story.do(CleanRegion()) == 5
    assert opened(story.data).owner.state.meta.tables.keys() == {U}


# ---- unknown outcomes -----------------------------------------------------------------------------------------------


def test_an_append_of_unknown_outcome_that_was_made_is_found_and_answered_once() -> None:
    story = opened()
    tickets = [story.write((T, b"a"))]
    story.answer(error=TIMED_OUT)
    tickets += [story.write((T, b"b"))]
    assert story.results.keys() == {1}
    story.answer_all()
    assert story.lines == ["data: append entry", "data: append fence", "data: read 1", "data: append entry"]
    assert [story.results[ticket] for ticket in tickets] == [(1,), (2,)]
    assert story.entries() == [(T, 1, b"a"), (T, 2, b"b")]
    assert story.events[1:] == [RegionAppendInDoubt(REGION, "no answer")]


def test_an_append_of_unknown_outcome_that_was_not_made_is_sent_again_with_its_sequences() -> None:
    story = opened()
    tickets = [story.write((T, b"a")), story.write((T, b"b"))]
    topic, late = story.asked[0]
    story.answer(is_made=False, error=TIMED_OUT)
    story.answer_all()
    assert [story.results[ticket] for ticket in tickets] == [(1,), (2,)]
    story.topics[topic].answer(late)  # it lands behind the fence, so it does not count
    assert story.entries() == [(T, 1, b"a"), (T, 2, b"b")]
    assert story.do(WriteEntries(((T, b"c"),))) == (3,)
    assert story.entries() == [(T, 1, b"a"), (T, 2, b"b"), (T, 3, b"c")]


def test_an_answer_that_comes_after_the_question_was_given_up_is_ignored() -> None:
    story = opened()
    ticket = story.write((T, b"a"))
    topic, question = story.asked.pop(0)
    reply = story.topics[topic].answer(question)
    story.fact(PeerLost(topic, "reset"))
    story.fact(Received(topic, reply))
    assert ticket not in story.results
    story.answer_all()
    assert story.results[ticket] == (1,)


def test_an_offset_in_the_past_is_an_unknown_outcome() -> None:
    """A broker that lost its end answers so."""
    story = opened()
    assert story.do(WriteEntries(((T, b"a"),))) == (1,)
    ticket = story.write((T, b"b"))
    topic, question = story.asked.pop(0)
    story.fact(Received(topic, RecordsAppended(question.number, 0)))
    story.answer_all()
    assert story.results[ticket] == (2,)
    assert story.told(RegionAppendInDoubt)


def test_fences_that_fail_are_sent_until_one_is_in_force() -> None:
    story = opened()
    ticket = story.write((T, b"a"))
    story.answer(is_made=False, error=TIMED_OUT)
    for is_made in (True, False):
        story.answer(is_made=is_made, error=TIMED_OUT)
        story.retry()
    story.answer_all()
    assert story.results[ticket] == (1,)
    assert story.entries() == [(T, 1, b"a")]
    assert story.do(WriteEntries(((T, b"b"),))) == (2,)


def test_a_refused_append_is_answered_with_the_refusal() -> None:
    story = opened()
    tickets = [story.write((T, b"a")), story.write((T, b"b"))]
    story.answer(is_made=False, error=InvalidRequestError("too large for the broker"))
    story.answer_all()
    assert isinstance(story.results[tickets[0]], InvalidRequestError)
    assert story.results[tickets[1]] == (1,)
    assert not story.told(RegionAppendInDoubt)


def test_a_refusal_of_unknown_outcome_is_not_taken_for_not_written() -> None:
    story = opened()
    ticket = story.write((T, b"a"))
    story.answer(error=InvalidRequestError("refused after it was made", outcome_unknown=True))
    story.answer_all()
    assert story.results[ticket] == (1,)
    assert story.entries() == [(T, 1, b"a")]


@pytest.mark.parametrize("is_lost", [False, True])
def test_waiting_for_writes_ends_with_the_last_of_them(is_lost: bool) -> None:
    story = opened()
    assert story.do(AwaitWrites()) is None
    writes = [story.write((T, b"a")), story.write((T, b"b"))]
    ticket = story.ask(AwaitWrites())
    story.answer(is_made=False, error=TIMED_OUT)  # in doubt
    story.answer()
    if is_lost:
        story.data.add(fence(9, OTHER))
    story.answer()
    assert ticket not in story.results
    story.answer_all()
    assert isinstance(story.results[ticket], RegionFencedError if is_lost else type(None))
    assert all(write in story.results for write in writes)


# ---- another owner --------------------------------------------------------------------------------------------------


def test_a_deposed_owner_acknowledges_nothing_more() -> None:
    story = opened()
    assert story.do(WriteEntries(((T, b"a"),))) == (1,)
    waiting = [story.write((T, b"b")), story.write((T, b"c"))]
    story.data.add(fence(2, OTHER))
    story.data.add(batch(0, (T, 2), nonce=OTHER))
    story.answer_all()
    waiting += [story.ask(SaveSnapshot()), story.ask(OpenRegion()), story.write((T, b"d")), story.ask(FindStart())]
    for ticket in waiting:
        error = story.results[ticket]
        assert isinstance(error, RegionFencedError)
        assert not error.outcome_unknown
    assert story.owner.is_deposed
    assert story.told(RegionFenced) == [RegionFenced(REGION, 2)]
    assert story.entries() == [(T, 1, b"a"), (T, 2, b"7/2")]
    assert story.asked == []


def test_a_deposed_owner_acknowledges_what_lies_before_the_fence_of_the_other() -> None:
    """The answer was lost, then the other owner came."""
    story = opened()
    ticket = story.write((T, b"a"))
    story.answer(is_answered=False)
    story.data.add(fence(2, OTHER))
    queued = story.write((T, b"b"))
    story.fact(PeerLost(Topic.DATA, "reset"))
    story.answer_all()
    assert story.owner.is_deposed
    assert story.results[ticket] == (1,)
    assert isinstance(story.results[queued], RegionFencedError)


@pytest.mark.parametrize("is_made", [True, False])
def test_an_owner_that_the_topic_refuses_looks_for_its_append_and_ends(is_made: bool) -> None:
    story = opened()
    assert story.do(WriteEntries(((T, b"a"),))) == (1,)
    ticket, waiting = story.write((T, b"b")), story.write((T, b"c"))
    story.answer(is_made=is_made, error=OwnerRefusedError("another owner has appended"))
    story.answer_all()
    assert story.timers == ["retry"] or is_made, "the other owner's fence is not visible yet"
    story.data.add(fence(2, OTHER))
    if not is_made:
        story.retry()
        story.answer_all()
    assert story.owner.is_deposed
    assert story.told(RegionFenced)
    assert "append fence" not in " ".join(story.lines)
    if is_made:
        assert story.results[ticket] == (2,)
    else:
        assert isinstance(story.results[ticket], RegionFencedError)
        assert not story.results[ticket].outcome_unknown
    assert isinstance(story.results[waiting], RegionFencedError)
    assert not story.results[waiting].outcome_unknown


def test_an_owner_is_refused_by_another_one_that_then_appends_nothing() -> None:
    story = opened(open_attempts=3)
    tickets = [story.write((T, b"a")), story.write((T, b"b"))]
    story.answer(is_made=False, error=TIMED_OUT)
    story.answer(is_made=False, error=OwnerRefusedError("another owner has the transactional id"))
    for _ in range(3):
        story.answer_all()
        story.retry()
    story.answer_all()
    errors = [story.results[ticket] for ticket in tickets]
    assert all(isinstance(error, RegionFencedError) for error in errors)
    assert [error.outcome_unknown for error in errors] == [True, False], "the next opening decides on the first"


def test_an_owner_in_version_0_that_is_refused_does_not_send_again() -> None:
    story = opened(format=0, open_attempts=1)
    ticket = story.write((T, b"a"))
    story.answer(is_made=False, error=OwnerRefusedError("another owner has appended"))
    story.answer_all()
    story.retry()
    story.answer_all()
    assert story.results[ticket].outcome_unknown
    assert story.lines.count("data: append entry") == 1


def test_an_opening_that_is_refused_fails() -> None:
    story = Story()
    ticket = story.ask(OpenRegion())
    while story.lines[-1] != "data: append fence":
        story.answer()
    story.answer(is_made=False, error=OwnerRefusedError("another owner has appended"))
    assert isinstance(story.results[ticket], RegionFencedError)
    assert story.owner.phase is Phase.CLOSED


def test_a_deposed_owner_whose_part_of_the_topic_is_deleted_does_not_know_the_outcome() -> None:
    story = opened()
    ticket = story.write((T, b"a"))
    story.answer(error=TIMED_OUT)
    story.data.add(fence(5, OTHER))
    story.data.first = len(story.data.log)
    story.answer_all()
    error = story.results[ticket]
    assert isinstance(error, RegionFencedError)
    assert error.outcome_unknown
    assert story.owner.is_deposed


def test_a_deposed_owner_finds_a_check_point_of_a_newer_release() -> None:
    story = opened()
    ticket = story.write((T, b"a"))
    story.answer(error=TIMED_OUT)
    story.data.add(fence(5, OTHER))
    story.data.add(Checkpoint(b"\2" + bytes(20)))
    queued = story.write((T, b"b"))
    story.answer_all()
    assert story.owner.is_deposed
    assert story.results[ticket] == (1,), "it lies before the other's fence"
    assert isinstance(story.results[queued], RegionFencedError)


def test_an_opening_that_meets_a_check_point_of_a_newer_release_is_refused() -> None:
    story = Story()
    ticket = story.ask(OpenRegion())
    while story.lines[-1] != "data: append fence":
        story.answer()
    story.data.add(Checkpoint(b"\2" + bytes(20)))
    story.answer_all()
    assert isinstance(story.results[ticket], UnsupportedVersionError)
    assert story.owner.phase is Phase.CLOSED


def test_another_owner_opens_while_this_one_does() -> None:
    story = Story(open_attempts=2)
    ticket = story.ask(OpenRegion())
    epoch = 0
    while story.asked:
        if story.lines[-1] == "data: append fence":
            epoch += 10
            story.data.add(fence(epoch, b"%016d" % (1000 + epoch)))
        story.answer()
    assert isinstance(story.results[ticket], RegionFencedError)
    assert story.owner.phase is Phase.CLOSED
    assert story.do(OpenRegion()) is None, "it may try again"


@pytest.mark.parametrize("is_read_at_once", [False, True])
def test_a_retired_region_is_not_opened(is_read_at_once: bool) -> None:
    story = Story()
    if is_read_at_once:
        story.data.add(fence(FINAL_EPOCH, OTHER))
    ticket = story.ask(OpenRegion())
    while story.asked:
        if story.lines[-1] == "data: append fence" and not is_read_at_once:
            story.data.add(fence(FINAL_EPOCH, OTHER))
        story.answer()
    error = story.results[ticket]
    assert isinstance(error, RegionFencedError)
    assert "retired" in error.message
    assert story.lines.count("data: append fence") == (not is_read_at_once)
    assert story.owner.phase is Phase.CLOSED


def test_an_owner_ends_when_its_region_is_retired() -> None:
    story = opened()
    story.data.add(fence(FINAL_EPOCH, OTHER))
    waiting = [story.write((T, b"a")), story.ask(AwaitWrites())]
    story.answer_all()
    for ticket in waiting:
        error = story.results[ticket]
        assert isinstance(error, RegionFencedError)
        assert "retired" in error.message
        assert not error.outcome_unknown


def test_an_owner_in_doubt_that_has_read_a_final_fence_ends_without_another_one() -> None:
    story = opened()
    made, queued = story.write((T, b"a")), story.write((T, b"b"))
    story.answer(error=TIMED_OUT)
    story.data.add(fence(FINAL_EPOCH, OTHER))
    story.answer()  # its own fence lands behind, and is void
    story.data.add(fence(7, OTHER))
    story.answer()  # both records of others in front are read
    story.answer(is_made=False, error=TIMED_OUT)
    story.retry()
    story.answer_all()
    assert story.owner.is_deposed
    assert story.results[made] == (1,)
    assert isinstance(story.results[queued], RegionFencedError)
    assert story.lines.count("data: append fence") == 1


# ---- marks, snapshots, cleaning -------------------------------------------------------------------------------------


def _flushed(**options: Any) -> Story:
    """Offsets: 0 the fence, 1 to 3 of T, 4 and 5 of U; everything of T is marked."""
    story = opened(map_every=1, **options)
    story.do(WriteEntries(((T, b"a"), (T, b"b"), (T, b"c"))))
    story.do(WriteEntries(((U, b"d"), (U, b"e"))))
    assert story.do(MarkDeleted(T, 4)) is None
    story.lines.clear()
    return story


def test_a_cleaning_saves_a_snapshot_then_a_check_point_and_then_deletes() -> None:
    story = _flushed()
    ticket = story.ask(CleanRegion())
    assert story.lines == ["meta: append checkpoint"]
    story.answer()
    assert story.lines[1:] == ["data: append checkpoint"]
    story.answer()
    assert story.lines[2:] == ["data: delete below 4"]
    assert ticket not in story.results
    story.answer()
    assert story.results[ticket] == 4
    assert story.told(RegionCleaned) == [RegionCleaned(REGION, 4)]
    assert story.do(CleanRegion()) is None, "nothing to gain"
    without_snapshots = Story(story.data, map_every=1)
    assert without_snapshots.do(OpenRegion()) is None
    assert without_snapshots.owner.state.meta.tables[T].latest_marked_deleted == 4
    assert without_snapshots.do(WriteEntries(((T, b"f"), (U, b"g")))) == (4, 3)


def test_a_cleaning_at_the_time_of_a_write() -> None:
    """What is written behind its snapshot is not deleted, whatever is marked meanwhile."""
    story = _flushed()
    cleaning = story.ask(CleanRegion())
    write = story.write((T, b"f"))
    story.do(MarkDeleted(U, 3))
    story.answer_all()
    assert (story.results[cleaning], story.results[write]) == (4, (4,))
    assert story.do(CleanRegion()) == 6
    assert story.entries() == [(T, 4, b"f")]


def test_two_cleanings_at_the_same_time_are_one() -> None:
    story = _flushed()
    tickets = [story.ask(CleanRegion()), story.ask(CleanRegion())]
    story.answer_all()
    assert [story.results[ticket] for ticket in tickets] == [4, 4]
    assert story.lines.count("data: delete below 4") == 1


@pytest.mark.parametrize("step", [0, 2])
def test_a_cleaning_that_fails_deletes_nothing_and_can_be_asked_for_again(step: int) -> None:
    story = _flushed()
    ticket = story.ask(CleanRegion())
    for _ in range(step):
        story.answer()
    story.answer(is_made=False, error=TIMED_OUT)
    assert story.results[ticket] is TIMED_OUT
    assert story.data.first == 0
    assert bool(story.told(RegionSnapshotFailed)) is (step == 0)
    assert story.do(CleanRegion()) == 4


@pytest.mark.parametrize("is_made", [False, True])
def test_a_check_point_of_unknown_outcome_is_appended_again_before_the_deletion(is_made: bool) -> None:
    story = _flushed()
    ticket = story.ask(CleanRegion())
    story.answer()
    story.answer(is_made=is_made, error=TIMED_OUT)
    story.answer_all()
    assert story.results[ticket] == 4
    assert story.lines[-2:] == ["data: append checkpoint", "data: delete below 4"]


def test_a_cleaning_ends_when_the_region_is_lost() -> None:
    story = _flushed()
    ticket = story.ask(CleanRegion())
    story.answer()
    story.data.add(fence(2, OTHER))
    story.answer_all()
    assert isinstance(story.results[ticket], RegionFencedError)
    assert story.data.first == 0


def test_a_snapshot_is_saved_once_without_news() -> None:
    story = _flushed()
    assert story.do(SaveSnapshot()) == 6
    assert story.do(SaveSnapshot()) == 6
    assert story.lines == ["meta: append checkpoint"]
    story.do(MarkDeleted(U, 2))
    assert story.do(SaveSnapshot()) == 6
    assert story.lines == ["meta: append checkpoint"] * 2


def test_a_snapshot_follows_so_many_bytes_of_log() -> None:
    story = opened(snapshot_bytes=400)
    while "meta: append checkpoint" not in story.lines:
        story.do(WriteEntries(((T, bytes(50)),)))
    assert 2 <= len(story.data.log) <= 6


def test_only_the_last_snapshots_are_kept() -> None:
    story = opened(snapshots_kept=2)
    for _ in range(4):
        story.do(WriteEntries(((T, b"x"),)))
        story.do(SaveSnapshot())
    meta = story.topics[Topic.META]
    assert (meta.first, len(meta.log)) == (2, 4)
    again = opened(story.data, meta, snapshots_kept=2)
    again.do(SaveSnapshot())
    assert meta.first == 3


def test_a_dropped_table_is_answered_once_its_check_point_is_durable() -> None:
    story = _flushed()
    ticket = story.ask(DropTable(U))
    assert story.lines == ["meta: append checkpoint", "data: append checkpoint"]
    story.answer()
    assert ticket not in story.results
    story.answer()
    assert story.results[ticket] is None
    without_snapshots = opened(story.data)
    assert without_snapshots.owner.state.meta.tables[U].is_all_deleted
    assert isinstance(story.do(DropTable(99)), InvalidRequestError)


@pytest.mark.parametrize("is_made", [False, True])
def test_a_drop_of_unknown_outcome_is_answered_behind_another_check_point(is_made: bool) -> None:
    story = _flushed()
    ticket = story.ask(DropTable(U))
    story.answer()
    story.answer(is_made=is_made, error=TIMED_OUT)
    story.answer_all()
    assert story.results[ticket] is None
    assert opened(story.data).owner.state.meta.tables[U].is_all_deleted


@pytest.mark.parametrize(("table", "below"), [(T, 3), (T, 5), (U, 4), (99, 1)])
def test_a_mark_backwards_beyond_the_next_record_or_of_an_unknown_table_is_refused(table: int, below: int) -> None:
    assert isinstance(_flushed().do(MarkDeleted(table, below)), InvalidRequestError)


def test_a_table_that_keeps_many_records_is_reported_at_each_cleaning() -> None:
    story = _flushed(pinned_records=3)
    story.do(CleanRegion())
    assert story.told(TablePinsRegion) == []
    story.do(WriteEntries(((T, b"x"), (T, b"y"))))
    story.do(CleanRegion())
    story.do(CleanRegion())
    kept = len(story.data.log) - 4
    assert story.told(TablePinsRegion) == [TablePinsRegion(REGION, U, kept)] * 2


def test_a_reader_is_told_where_to_begin() -> None:
    story = _flushed()
    start = story.do(FindStart())
    assert replace(start, floors=()) == ReadingStart(4, 6, {T: (4, 4, 4), U: (1, 3, 6)}, (), start.rule)
    assert isinstance(story.do(FindStart(((99, 0),))), InvalidRequestError)


def test_a_snapshot_of_the_meta_topic_that_is_left_out_is_told() -> None:
    meta = TopicList()
    meta.append(encoded(RegionFence(OTHER, 1)))
    story = opened(meta=meta)
    assert story.told(RegionRecordIgnored) == [RegionRecordIgnored(REGION, "meta topic: not a snapshot: offset=0")]


def test_every_item_of_a_story_is_kept_by_the_next_owner() -> None:
    """Each owner finds the same entries, with the snapshots of all before it, with none, and with the last one only."""
    data, meta = TopicList(), TopicList()
    written: list[tuple[int, int, bytes]] = []
    for round in range(5):
        story = opened(data, meta, map_every=2)
        for number in range(3):
            payload = b"%d.%d" % (round, number)
            (sequence,) = story.do(WriteEntries(((T + number % 2, payload),)))
            written.append((T + number % 2, sequence, payload))
        if round % 2:
            story.do(SaveSnapshot())
        assert story.entries() == written
    for snapshots in (meta, TopicList()):
        copy = TopicList()
        copy.append(data.log)
        tables = opened(copy, snapshots, map_every=2).owner.state.meta.tables
        assert {table: known.next_seq_num for table, known in tables.items()} == {T: 11, U: 6}
