"""Entries in version 0, HoraeDB's format: which count, how they are read, and an owner that writes them."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from typing import Any

import pytest

from dlog.errors import InvalidRequestError, UnavailableError
from dlog.events import RegionAppendInDoubt, RegionFenced
from dlog.region.counting import Entry, PlainEntry, TableEnd
from dlog.region.messages import (
    BeginTable,
    CleanRegion,
    DropTable,
    EndTable,
    FindStart,
    LostEntries,
    MarkDeleted,
    OpenRegion,
    SaveSnapshot,
    Topic,
    WriteEntries,
)
from dlog.region.options import RegionOptions
from dlog.region.owner import RegionFencedError, RegionOwner
from dlog.region.pieces import PieceScan
from dlog.region.reading import EntryScan, RegionEntry, TailScan, find_start
from dlog.region.state import RegionState
from dlog.wire.region import KEY, decode_record
from tests.unit.region.histories import History
from tests.unit.region.stories import TopicStory
from tests.unit.region.test_pieces import Counted, _oracle, _pieces, _read, _wanted
from tests.unit.region.topic_lists import NONCE, OTHER, REGION, TopicList, batch, encoded, fence, loaded

T, U = 7, 8


def plain(table: int, sequence: int) -> PlainEntry:
    return PlainEntry(Entry(table, sequence, b"%d/%d" % (table, sequence)))


def entries(topic: TopicList, state: RegionState, **starts: int) -> list[tuple[int, int, int]]:
    """Table, sequence and offset of what a reader of all finds; it must be told of nothing lost."""
    scan = EntryScan(REGION, find_start(state, topic.first, FindStart()))
    found = []
    while not scan.is_done:
        for one in scan.feed(topic.stored(scan.offset)[:3]):
            assert isinstance(one, RegionEntry)
            found.append((one.table, one.sequence, one.offset))
    return found


def state_of(topic: TopicList) -> RegionState:
    state = loaded(topic).state
    assert state is not None
    return state


def test_records_as_horaedb_writes_them_are_read() -> None:
    topic = TopicList()
    rows = [(T, 1, b"a"), (U, 1, b""), (T, 2, b"\0\1"), (T, 3, b"x" * 300)]
    for table, sequence, payload in rows:  # kv_encoder.rs: kind, region, table, sequence, version; version, payload
        key = struct.pack(">B", 1) + struct.pack(">QQQ", REGION, table, sequence) + struct.pack(">B", 0)
        topic.append([(key, struct.pack(">B", 0) + payload)])
    assert encoded(plain(T, 1))[0] == (
        bytes.fromhex("01 0000000000000009 0000000000000007 0000000000000001 00"),
        b"\x007/1",
    )
    state = state_of(topic)
    assert {number: meta.next_seq_num for number, meta in state.meta.tables.items()} == {T: 4, U: 2}
    assert state.is_plain
    scan = EntryScan(REGION, find_start(state, 0, FindStart()))
    found = [one for one in scan.feed(topic.stored(0)) if isinstance(one, RegionEntry)]
    assert [(one.table, one.sequence, one.payload) for one in found] == rows


def test_an_entry_counts_if_it_is_the_next_one_and_others_are_told() -> None:
    topic = TopicList(*(plain(*one) for one in ((T, 1), (T, 1), (T, 3), (T, 2), (T, 0), (T, 3), (T, 2))))
    loader = loaded(topic)
    assert loader.state is not None
    assert entries(topic, loader.state) == [(T, 1, 0), (T, 2, 3), (T, 3, 5)]
    told = [f"expected={expected}: table=7 sequence={s} offset={at}" for expected, s, at in ((2, 1, 1), (2, 3, 2))]
    assert len(loader.problems) == 4 and all(a in b for a, b in zip(told, loader.problems, strict=False))
    scan = EntryScan(REGION, find_start(loader.state, 0, FindStart()))
    list(scan.feed(topic.stored(0)))
    assert scan.problems == loader.problems


def test_behind_a_fence_none_counts_and_an_owner_goes_on_with_the_numbers() -> None:
    topic = TopicList(
        plain(T, 1), plain(T, 2), fence(), plain(T, 3), batch(0, (T, 3), (U, 1)), plain(T, 4), plain(U, 2)
    )
    topic.add(fence(0, OTHER))  # void
    topic.add(plain(T, 4))
    topic.add(batch(1, (T, 4)))
    loader = loaded(topic)
    assert loader.state is not None and not loader.state.is_plain
    assert entries(topic, loader.state) == [(T, 1, 0), (T, 2, 1), (T, 3, 4), (U, 1, 5), (T, 4, 10)]
    assert ["behind a fence" in problem for problem in loader.problems] == [True] * 4


def test_behind_a_record_that_cannot_be_used_none_counts_as_a_fence_may_lie_before() -> None:
    topic = TopicList(plain(T, 1), fence(), batch(0, (T, 2)), batch(1, (T, 3)))
    start = find_start(state_of(topic), 0, FindStart(((T, 2),)))
    key, value = topic.log[2]
    topic.log[2] = key, value[:-1] + b"?"
    topic.log[3] = encoded(plain(T, 2))[0]
    scan = EntryScan(REGION, start, skips=True)
    assert list(scan.feed(topic.stored(scan.offset))) == [LostEntries(T, 2, 4)]


def test_a_table_that_has_ended_has_no_more() -> None:
    topic = TopicList(plain(T, 1), TableEnd(T), plain(T, 2), plain(U, 1))
    assert entries(topic, state_of(topic)) == [(T, 1, 0), (U, 1, 3)]


def test_a_follower_goes_on_with_what_counts() -> None:
    topic = TopicList(plain(T, 1), plain(U, 1))
    tail = TailScan(REGION, find_start(state_of(topic), 0, FindStart()), None)
    for item in (
        plain(T, 1),
        plain(T, 2),
        plain(9, 2),
        plain(9, 1),
        plain(T, 2),
        fence(),
        plain(T, 3),
        batch(0, (T, 3)),
    ):
        topic.add(item)
    assert [(one.table, one.sequence, one.offset) for one in tail.feed(topic.stored(2))] == [
        (T, 2, 3),
        (9, 1, 5),
        (T, 3, 9),
    ]


def test_a_front_that_is_deleted_is_told() -> None:
    topic = TopicList(*(plain(T, n) for n in range(1, 7)))
    state = state_of(topic)
    topic.first = 3
    scan = EntryScan(REGION, find_start(state, 3, FindStart()))
    found = list(scan.feed(topic.stored(3)))
    assert found[0] == LostEntries(T, 1, 4)
    assert [one.sequence for one in found[1:] if isinstance(one, RegionEntry)] == [4, 5, 6]


class PlainHistory(History):
    """Begins with entries in version 0, some of them twice, late, or beyond the next one; others come later too."""

    def _owns(self) -> None:
        rng = self._rng
        if not self._epochs:
            self.plain: list[PlainEntry] = []
            for _ in range(rng.choice((3, 100))):
                self._add_plain()
            if rng.random() < 0.3:
                return
        super()._owns()

    def _add_plain(self) -> None:
        rng = self._rng
        table = rng.randint(1, 8)
        known = self.state.meta.tables.get(table)
        following = 1 if known is None else known.next_seq_num
        entry = plain(table, max(0, following + rng.choice((0, 0, 0, 0, 0, 0, 1, 2, -1, -3))))
        if self.plain and rng.random() < 0.1:
            entry = rng.choice(self.plain)
        self.plain.append(entry)
        self.append(entry)

    def _step(self) -> None:
        if not self.state.rule.nonce or self._rng.random() < 0.1:
            self._add_plain()
            if not self.state.rule.nonce and self._rng.random() < 0.02:
                super()._owns()
            elif self._rng.random() < 0.05:
                self._mark()
        else:
            super()._step()


@pytest.mark.parametrize("seed", range(150))
def test_readers_pieces_and_snapshots_agree_with_the_order_of_the_topic(seed: int) -> None:
    rng = random.Random(seed)
    history = PlainHistory(rng, rng.choice((5, 40, 300)), map_every=rng.choice((1, 3, 10)))
    data, state = history.data, history.state
    tables = state.meta.tables
    expected = _judged(data, state)
    starts = {
        table: rng.randint(max(1, meta.latest_marked_deleted), meta.next_seq_num)
        for table, meta in tables.items()
        if rng.random() < 0.8
    }
    wanted = [one for one in expected if one[1] >= starts.get(one[0], 1 << 60)]
    assert [(one.table, one.sequence, one.offset) for one in _oracle(data, state, starts)] == wanted
    pieces = _pieces(data, state, starts, rng.choice((1, 500, 5000)), rng.choice((1, 500, 1 << 20)))
    assert all(one.end == other.begin for one, other in pairwise(pieces))
    found = [entry for piece in pieces for entry in _read(Counted(data), state, piece, starts, rng.choice((1, 4, 50)))]
    assert [(one.table, one.sequence, one.offset) for one in found] == wanted


def _judged(data: TopicList, state: RegionState) -> list[tuple[int, int, int]]:
    """Table, sequence and offset of every entry that counts, by a second implementation of the rule."""
    following: dict[int, int] = {}
    found: list[tuple[int, int, int]] = []
    ended: set[int] = set()
    epoch, nonce, number = 0, b"", 0
    pending: list[tuple[int, int, int]] = []
    for offset, (key, value) in enumerate(data.log):
        record = decode_record(key, value)
        if record.kind.name == "FENCE":
            if record.epoch > epoch:
                epoch, nonce, number = record.epoch, record.nonce, 0
        elif record.kind.name in ("TABLE_END", "TABLE_DROPPED"):
            ended.add(record.table)
        elif record.version == 0:
            if not nonce and record.table not in ended and record.sequence == following.get(record.table, 1):
                following[record.table] = record.sequence + 1
                found.append((record.table, record.sequence, offset))
        elif record.kind.name in ("ENTRY", "TABLE_BEGIN") and (record.nonce, record.batch) == (nonce, number):
            pending.append((record.table, record.sequence, offset))
            if record.position + 1 == record.count:
                number += 1
                found += [one for one in pending if one[0] not in ended and one[1]]
                following |= {table: sequence + 1 for table, sequence, _ in pending}
                pending = []
    kept = {number: max(1, meta.latest_marked_deleted) for number, meta in state.meta.tables.items()}
    return [one for one in found if one[1] >= kept.get(one[0], 1 << 60)]


# ---- an owner -----------------------------------------------------------------------------------------------------


class Owner(TopicStory):
    def __init__(self, data: TopicList | None = None, meta: TopicList | None = None, **options: Any) -> None:
        self.owner = RegionOwner(REGION, lambda: NONCE, RegionOptions(map_every=1, **options))
        super().__init__(self.owner, data, meta)

    def open(self) -> Any:
        return self.do(OpenRegion())

    def write(self, *rows: tuple[int, bytes]) -> Any:
        return self.do(WriteEntries(rows))


def test_an_owner_with_format_0_writes_version_0_and_no_fence() -> None:
    story = Owner(format=0)
    assert story.open() is None
    assert story.write((T, b"a"), (U, b"b"), (T, b"c")) == (1, 1, 2)
    assert story.data.log == [
        (KEY.pack(1, REGION, T, 1, 0), b"\0a"),
        (KEY.pack(1, REGION, U, 1, 0), b"\0b"),
        (KEY.pack(1, REGION, T, 2, 0), b"\0c"),
    ]
    assert isinstance(story.do(BeginTable(9, b"")), InvalidRequestError)
    assert isinstance(story.do(EndTable(T)), InvalidRequestError)
    story.do(MarkDeleted(T, 2))
    story.do(SaveSnapshot())
    assert story.do(CleanRegion()) == 1
    again = Owner(story.data, story.topics[Topic.META])
    assert again.open() is None, "the region keeps its format"
    assert again.write((T, b"d")) == (3,)
    assert story.data.log[-1] == (KEY.pack(1, REGION, T, 3, 0), b"\0d")
    assert again.owner.state.meta.tables[T].latest_marked_deleted == 2


def test_a_region_without_records_is_of_version_1_unless_that_is_asked_for() -> None:
    story = Owner()
    story.open()
    assert story.owner.state.rule.nonce == NONCE


def test_with_format_1_it_is_fenced_for_good() -> None:
    story = Owner(TopicList(plain(T, 1)), format=1)
    assert story.open() is None
    assert story.write((T, b"b")) == (2,)
    refused = Owner(story.data, format=0).open()
    assert isinstance(refused, InvalidRequestError) and "open it with format 1" in refused.message


def test_another_formats_number_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or 1: format=2"):
        RegionOptions(format=2)


def test_an_append_in_doubt_is_found_at_the_end_of_the_topic() -> None:
    story = Owner(format=0)
    story.open()
    ticket = story.ask(WriteEntries(((T, b"a"), (U, b"b"))))
    story.answer(error=UnavailableError("no answer", outcome_unknown=True))
    story.answer_all()
    assert story.results[ticket] == (1, 1) and len(story.data.log) == 2
    assert story.told(RegionAppendInDoubt)
    assert story.write((T, b"c")) == (2,)


@pytest.mark.parametrize("lands", ["before", "after", "never"])
def test_an_append_in_doubt_that_is_not_found_is_sent_again_and_counts_once(lands: str) -> None:
    story = Owner(format=0)
    story.open()
    story.write((T, b"a"))
    ticket = story.ask(WriteEntries(((T, b"b"), (U, b"c"))))
    topic, question = story.asked[0]
    late = story.topics[topic]
    story.answer(is_made=False, error=UnavailableError("no answer", outcome_unknown=True))
    story.answer()  # the end of the topic
    if lands == "before":
        late.append(list(question.records))  # type: ignore[union-attr]
    story.answer_all()
    if lands == "after":
        late.append(list(question.records))  # type: ignore[union-attr]
    assert story.results[ticket] == (2, 1)
    assert story.write((T, b"d")) == (3,)
    state = state_of(story.data)
    assert [(table, sequence) for table, sequence, _ in entries(story.data, state)] == [(T, 1), (T, 2), (U, 1), (T, 3)]


def test_nothing_is_appended_before_an_append_in_doubt_is_settled() -> None:
    """A check-point would pass its first copy, which would then count beside the second one."""
    story = Owner(format=0)
    story.open()
    story.write((U, b"a"))
    write = story.ask(WriteEntries(((T, b"b"),)))
    drop = story.ask(DropTable(U))
    _, question = story.asked[0]
    story.answer(is_made=False, error=UnavailableError("no answer", outcome_unknown=True))
    story.answer()  # the end of the topic
    story.data.append(list(question.records))  # type: ignore[union-attr]
    story.answer_all()
    assert story.results[write] == (1,) and story.results[drop] is None
    assert [(table, sequence) for table, sequence, _ in entries(story.data, state_of(story.data))] == [(T, 1)]


def test_another_writer_with_the_same_sequences_ends_it() -> None:
    story = Owner(format=0)
    story.open()
    story.data.add(plain(T, 1))
    error = story.write((T, b"mine"))
    assert isinstance(error, RegionFencedError) and not error.outcome_unknown
    assert "another process writes the region in version 0" in error.message
    assert story.told(RegionFenced)
    assert isinstance(story.write((U, b"x")), RegionFencedError)


def test_if_a_part_of_a_write_counts_its_outcome_is_unknown() -> None:
    story = Owner(format=0)
    story.open()
    story.data.add(plain(T, 1))
    error = story.write((T, b"mine"), (U, b"mine"))
    assert isinstance(error, RegionFencedError) and error.outcome_unknown


def test_the_fence_of_an_owner_with_format_1_ends_it() -> None:
    story = Owner(format=0)
    story.open()
    assert story.write((T, b"a")) == (1,)
    story.data.add(fence())
    error = story.write((T, b"b"))
    assert isinstance(error, RegionFencedError) and not error.outcome_unknown
    assert [sequence for _, sequence, _ in entries(story.data, state_of(story.data))] == [1]


def test_entries_of_another_table_by_another_writer_do_not_hurt() -> None:
    story = Owner(format=0)
    story.open()
    story.data.add(plain(U, 1))
    assert story.write((T, b"a")) == (1,)
    assert story.write((U, b"b")) == (2,)


def test_a_checkpoint_behind_another_owners_fence_deletes_nothing() -> None:
    story = Owner(format=0)
    story.open()
    story.write((T, b"a"), (T, b"b"))
    story.do(MarkDeleted(T, 3))
    story.do(SaveSnapshot())
    story.data.add(fence())
    assert isinstance(story.do(CleanRegion()), RegionFencedError)
    assert story.data.first == 0


def test_pieces_of_version_0_are_one() -> None:
    topic = TopicList(*(plain(T, n) for n in range(1, 30)), fence(), *(batch(n, (T, 30 + n)) for n in range(5)))
    state = state_of(topic)
    pieces = _pieces(topic, state, {T: 3}, 1)
    assert (pieces[0].begin, pieces[0].end, pieces[0].nonce) == (2, 30, b"") and len(pieces) == 6
    scan = PieceScan(REGION, pieces[0], _wanted(state, {T: 3}))
    assert [one.sequence for one in scan.feed(topic.stored(2))] == list(range(3, 30))
