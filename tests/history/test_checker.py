"""Tests the checker: for each promise, a history that breaks it must fail by name, and a correct one must pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from dlog.model.dlsn import DLSN, DLSN_INVALID, of
from dlog.wire.entry import CONTROL_PAYLOAD
from tests.history import End, History, check, start_at
from tests.history.notes import Position, Run, position_of
from tests.history.records import RecordMaker
from tests.history.verdict import KINDS, Verdict

MAKE = [RecordMaker(producer, 24).make for producer in range(4)]
BATCH = 5


@dataclass
class Append:
    producer: int
    first: int
    count: int
    invoked: int
    answered: int
    outcome: str  # ok, failed, unknown
    dlsn: DLSN
    txid: int
    asked: int | None = None
    epoch: int = 0


@dataclass
class Read:
    start: Position
    opened: int
    seen: list[tuple[int, DLSN, int, bytes]] = field(default_factory=list)  # time, position, txid, payload
    end: End = End.TAIL
    ended: int = 10_000


@dataclass
class Story:
    """Twenty batches of three producers over three segments, read by every reader; corrupted by a test, then noted."""

    appends: list[Append] = field(default_factory=list)
    reads: dict[str, Read] = field(default_factory=dict)
    truncations: list[tuple[DLSN, int, int, DLSN | None]] = field(default_factory=list)
    lacs: list[tuple[int, int, int]] = field(default_factory=list)
    owners: list[tuple[int, int]] = field(default_factory=list)
    blind: list[tuple[int, int]] = field(default_factory=list)

    def records(self) -> list[tuple[int, DLSN, int, bytes]]:
        """The content of the log, with the times of a reader that gets each record when it is acknowledged."""
        lying = [a for a in self.appends if a.outcome == "ok"]
        return [
            (a.answered, a.dlsn.next_slot(i), a.txid, MAKE[a.producer](a.first + i))
            for a in lying
            for i in range(a.count)
        ]

    def verdict(self) -> Verdict:
        history = History()
        for a in self.appends:
            op = history.invoke(a.producer, a.first, a.count, a.invoked, a.asked)
            if a.outcome == "ok":
                history.ok(op, a.answered, a.dlsn, a.txid, epoch=a.epoch)
            elif a.outcome == "failed":
                history.failed(op, a.answered)
            elif a.outcome == "given up":
                history.unknown(op, a.answered)
        for name, read in self.reads.items():
            reader = history.open(name, read.start, read.opened)
            for at, dlsn, txid, payload in read.seen:
                history.delivered(reader, at, dlsn, txid, [payload])
            history.end(reader, read.ended, read.end)
        for truncation in self.truncations:
            history.truncate(*truncation)
        for segment, entry, at in self.lacs:
            history.confirmed(segment, entry, at)
        for segment, epoch in self.owners:
            history.owner(segment, epoch)
        for begin, end in self.blind:
            history.cut_off(begin, end)
        return check(history)


def story() -> Story:
    """Times: batch n is sent at 100 n and answered at 100 n + 50. Batch 7 has no answer and is not in the log."""
    told = Story()
    for n in range(20):
        segment, entry = 1 + n // 8, n % 8
        dlsn = of(segment, entry, 2)
        append = Append(n % 3, n // 3 * BATCH, BATCH, 100 * n, 100 * n + 50, "ok", dlsn, 1000 + n // 2, None, segment)
        if n == 7:
            append.outcome = "unknown"
        told.appends.append(append)
        if n != 7:
            told.lacs.append((segment, entry, 100 * n + 49))
    told.owners = [(1, 1), (2, 2), (3, 3)]
    records = told.records()
    told.reads = {
        "tail": Read(start_at("start"), 1, list(records)),
        "again": Read(start_at("start"), 5000, [(5001, *r[1:]) for r in records]),
        "seek": Read(start_at("dlsn", of(1, 4, 4)), 5000, [(5001, *r[1:]) for r in records if r[1] >= of(1, 4, 4)]),
        "seek past": Read(
            start_at("dlsn", of(2, 3, 99)), 5000, [(5001, *r[1:]) for r in records if r[1] > of(2, 4, 0)]
        ),
        "txid": Read(start_at("txid", 1006), 5000, [(5001, *r[1:]) for r in records if r[2] >= 1006]),
        "news": Read(start_at("tail"), 1820, [r for r in records if r[0] > 1900]),
        "late": Read(start_at("txid", 9999), 5000, []),
    }
    return told


def test_a_clean_history_is_green() -> None:
    verdict = story().verdict()
    assert verdict.is_green, verdict.text()
    assert (verdict.invoked, verdict.acknowledged, verdict.unknown, verdict.failed) == (100, 95, 5, 0)
    assert verdict.readers == 7
    assert verdict.unread == 0
    assert "green" in verdict.text()


def test_what_nobody_answered_may_be_there_for_all_or_for_nobody() -> None:
    told = story()
    lying = told.appends[7]
    found = [(5001, lying.dlsn.next_slot(i), lying.txid, MAKE[1](lying.first + i)) for i in range(BATCH)]
    told.lacs.append((1, 7, 800))
    for name in ("tail", "again", "seek"):
        told.reads[name].seen = sorted([*told.reads[name].seen, *found], key=lambda r: r[1])
        if name != "seek":
            assert story_with(told, name).found["skipped"], "some have it, others do not"
    verdict = told.verdict()
    assert verdict.is_green, verdict.text()
    assert verdict.unknown_found == BATCH


def story_with(told: Story, name: str) -> Verdict:
    reads = dict(told.reads)
    told.reads = {name: reads[name], "seek past": reads["seek past"], "clean": story().reads["again"]}
    try:
        return told.verdict()
    finally:
        told.reads = reads


# ---- corruptions of the history, and the kind that must be reported -------------------------------------------------


def lose(s: Story) -> None:
    for read in s.reads.values():
        read.seen = [r for r in read.seen if r[1] != of(1, 3, 4)]


def lose_the_end(s: Story) -> None:
    for read in s.reads.values():
        read.seen = [r for r in read.seen if r[1] < of(3, 3, 0)]


def lose_for_one(s: Story) -> None:
    del s.reads["again"].seen[30]


def lose_the_beginning(s: Story) -> None:
    s.reads["again"].seen = s.reads["again"].seen[3:]


def lose_what_was_forgotten(s: Story) -> None:
    s.appends[19].dlsn = DLSN_INVALID
    for read in s.reads.values():
        read.seen = [r for r in read.seen if r[1] < of(3, 3, 0)]


def repeat(s: Story) -> None:
    for read in s.reads.values():
        read.seen.append((9000, of(3, 9, 0), 2000, MAKE[0](3)))


def repeat_to_one(s: Story) -> None:
    s.reads["again"].seen.insert(21, s.reads["again"].seen[20])


def move(s: Story) -> None:
    for read in s.reads.values():
        read.seen = [(t, of(3, 3, 7) if d == of(3, 3, 6) else d, x, p) for t, d, x, p in read.seen]


def raise_the_dead(s: Story) -> None:
    dead = s.appends[7]
    dead.outcome = "failed"
    s.lacs.append((1, 7, 700))
    for name in ("tail", "again"):
        seen = s.reads[name].seen
        seen += [(5001, dead.dlsn.next_slot(i), dead.txid, MAKE[1](dead.first + i)) for i in range(BATCH)]
        seen.sort(key=lambda r: r[1])


def tear(s: Story) -> None:
    lying = s.appends[7]
    for name in ("tail", "again", "seek"):
        seen = s.reads[name].seen
        seen += [(5001, lying.dlsn.next_slot(i), lying.txid, MAKE[1](lying.first + i)) for i in range(3)]
        seen.sort(key=lambda r: r[1])


def invent(s: Story) -> None:
    for read in s.reads.values():
        read.seen.append((9000, of(3, 9, 0), 2000, MAKE[3](0)))


def damage(s: Story) -> None:
    at, dlsn, txid, payload = s.reads["again"].seen[9]
    s.reads["again"].seen[9] = (at, dlsn, txid, payload[:-1] + b"?")


def skip_unanswered(s: Story) -> None:
    lying = s.appends[7]
    s.lacs.append((1, 7, 700))
    seen = s.reads["tail"].seen
    seen += [(5001, lying.dlsn.next_slot(i), lying.txid, MAKE[1](lying.first + i)) for i in range(BATCH)]
    seen.sort(key=lambda r: r[1])


def swap(s: Story) -> None:
    seen = s.reads["again"].seen
    seen[40], seen[41] = seen[41], seen[40]


def given_up_and_late(s: Story) -> None:
    """Batch 3 fails, outcome unknown; batch 6, of the same producer, is acknowledged; then batch 3 lies behind it."""
    lost = s.appends[3]
    old, lost.outcome, lost.dlsn = lost.dlsn, "given up", s.appends[7].dlsn
    found = [(9000, lost.dlsn.next_slot(i), 1003, MAKE[0](lost.first + i)) for i in range(BATCH)]
    s.lacs.append((1, 7, 900))
    for name in ("tail", "again", "seek"):
        kept = [(9000, *r[1:]) for r in s.reads[name].seen if not old <= r[1] < old.next_slot(BATCH)]
        s.reads[name].seen = sorted([*kept, *found], key=lambda r: r[1])


def diverge(s: Story) -> None:
    seen = s.reads["again"].seen
    seen[40] = (*seen[40][:3], seen[45][3])


def overtake(s: Story) -> None:
    s.appends[10].invoked = 1160  # after batch 11 was answered
    for read in s.reads.values():
        read.seen = [(9000, *r[1:]) for r in read.seen]


def change_positions(s: Story) -> None:
    one, two = s.appends[3], s.appends[6]  # of one producer
    for a in s.appends:
        a.invoked = 0
    one.dlsn, two.dlsn = two.dlsn, one.dlsn
    records = sorted(s.records(), key=lambda r: r[1])
    s.reads = {"again": Read(start_at("start"), 5000, [(5001, r[1], 1, r[3]) for r in records])}
    for a in s.appends:
        a.txid = 1


def two_owners_of_a_segment(s: Story) -> None:
    s.owners.append((2, 3))


def two_owners_by_acknowledgement(s: Story) -> None:
    s.appends[12].epoch = 1


def an_older_owner_later(s: Story) -> None:
    s.owners = [(1, 5), (2, 7), (3, 6)]
    for a in s.appends:
        a.epoch = 0


def txid_falls(s: Story) -> None:
    for a in s.appends[14:]:
        a.txid -= 20
    records = s.records()
    s.reads = {"again": Read(start_at("start"), 5000, [(5001, *r[1:]) for r in records])}


def txid_is_another(s: Story) -> None:
    s.appends[4].asked = 77


def txid_is_told_differently(s: Story) -> None:
    s.appends[4].txid = 1001


def control(s: Story) -> None:
    s.reads["again"].seen.append((5002, of(3, 3, 7), 2000, CONTROL_PAYLOAD))


def note(s: Story) -> None:
    s.reads["tail"].seen.append((9000, of(3, 3, 7), 2000, b"dlog1" + b"\x95\x00\x00\x00\x00\x00"))


def before_it_was_asked(s: Story) -> None:
    at = s.reads["tail"].seen.index(next(r for r in s.reads["tail"].seen if r[1] == of(2, 2, 2)))
    s.lacs = []
    s.reads["tail"].seen[at] = (990, *s.reads["tail"].seen[at][1:])


def beyond_the_lac(s: Story) -> None:
    at = s.reads["tail"].seen.index(next(r for r in s.reads["tail"].seen if r[1] == of(2, 2, 2)))
    s.reads["tail"].seen[at] = (1040, *s.reads["tail"].seen[at][1:])


def read_and_then_preceded(s: Story) -> None:
    s.lacs = []
    s.appends[10].invoked, s.appends[10].answered = 1145, 1150  # batch 11 was sent at 1100, answered at 1150
    s.reads["tail"].seen = [(1140 if r[1][:2] == (2, 3) else r[0], *r[1:]) for r in s.reads["tail"].seen]
    s.reads["tail"].seen = [r for r in s.reads["tail"].seen if r[1] >= of(2, 3, 0)]
    s.reads["tail"].start = start_at("dlsn", of(2, 3, 0))


def the_point_goes_back(s: Story) -> None:
    s.truncations = [(of(2, 0, 0), 5100, 5101, of(2, 0, 0)), (of(2, 1, 0), 5200, 5201, of(1, 0, 0))]


def a_truncated_record_comes_back(s: Story) -> None:
    s.truncations = [(of(2, 0, 0), 3000, 3001, of(2, 0, 0))]
    s.reads["again"].seen = [r for r in s.reads["again"].seen if r[1] >= of(1, 6, 0)]


def an_older_beginning(s: Story) -> None:
    s.truncations = [(of(2, 0, 0), 3000, -1, None)]
    s.reads["one"] = Read(start_at("start"), 4000, [r for r in s.records() if r[1] >= of(2, 0, 0)])
    s.reads["one"].seen = [(4001, *r[1:]) for r in s.reads["one"].seen]


def more_is_kept_away(s: Story) -> None:
    s.truncations = [(of(2, 0, 0), 3000, 3001, of(2, 1, 0))]


def truncated_without_cause(s: Story) -> None:
    s.reads["seek"].seen, s.reads["seek"].end = [], End.TRUNCATED


def gone_beyond_the_point(s: Story) -> None:
    s.truncations = [(of(1, 2, 0), 3000, 3001, of(1, 2, 0))]
    for read in s.reads.values():
        read.seen = [r for r in read.seen if r[1] >= of(1, 3, 0)]


def cannot_be_read(s: Story) -> None:
    s.reads["seek"].seen, s.reads["seek"].end = s.reads["seek"].seen[:9], End.DAMAGED


def seek_too_far(s: Story) -> None:
    del s.reads["seek"].seen[0]


def seek_too_near(s: Story) -> None:
    first = next(r for r in s.records() if r[1] == of(1, 4, 3))
    s.reads["seek"].seen.insert(0, (5001, *first[1:]))


def txid_too_far(s: Story) -> None:
    del s.reads["txid"].seen[:2]


def txid_too_near(s: Story) -> None:
    before = [r for r in s.records() if r[2] < 1006][-1]
    s.reads["txid"].seen.insert(0, (5001, *before[1:]))


def a_tail_that_lags(told: Story) -> None:
    told.reads["again"].seen = told.reads["again"].seen[:-7]
    told.reads["news"].seen = [(max(1821, r[0]), *r[1:]) for r in told.records() if r[1] >= of(3, 0, 0)]


CORRUPTIONS: list[tuple[Callable[[Story], None], str]] = [
    (diverge, "diverged"),
    (a_tail_that_lags, "stale"),
    (lose, "lost"),
    (lose_the_end, "lost"),
    (lose_for_one, "lost"),
    (lose_the_beginning, "lost"),
    (lose_what_was_forgotten, "lost"),
    (gone_beyond_the_point, "lost"),
    (repeat, "duplicated"),
    (repeat_to_one, "duplicated"),
    (move, "misplaced"),
    (raise_the_dead, "resurrected"),
    (tear, "torn"),
    (invent, "invented"),
    (damage, "invented"),
    (skip_unanswered, "skipped"),
    (swap, "reordered"),
    (given_up_and_late, "late"),
    (change_positions, "reordered"),
    (overtake, "overtaken"),
    (two_owners_of_a_segment, "rivalled"),
    (two_owners_by_acknowledgement, "rivalled"),
    (an_older_owner_later, "rivalled"),
    (txid_falls, "txid"),
    (txid_is_another, "txid"),
    (txid_is_told_differently, "txid"),
    (control, "control"),
    (note, "control"),
    (before_it_was_asked, "early"),
    (beyond_the_lac, "early"),
    (read_and_then_preceded, "early"),
    (the_point_goes_back, "revived"),
    (more_is_kept_away, "truncated"),
    (truncated_without_cause, "truncated"),
    (cannot_be_read, "damaged"),
    (seek_too_far, "misled"),
    (seek_too_near, "misled"),
    (txid_too_far, "misled"),
    (txid_too_near, "misled"),
]


@pytest.mark.parametrize(("corrupt", "named"), CORRUPTIONS, ids=[c.__name__ for c, _ in CORRUPTIONS])
def test_a_corrupted_history_is_named(corrupt: Callable[[Story], None], named: str) -> None:
    told = story()
    corrupt(told)
    verdict = told.verdict()
    assert not verdict.is_green
    assert verdict.found[named] >= 1, verdict.text()
    assert KINDS[named] in verdict.invariants
    assert any(example.kind == named for example in verdict.examples)


def test_every_kind_of_breach_has_a_corruption() -> None:
    assert {named for _, named in CORRUPTIONS} == KINDS.keys()


def test_what_is_acknowledged_and_read_by_nobody_is_not_proved() -> None:
    told = story()
    told.reads = {}
    assert told.verdict().unread == 95
    assert not told.verdict().is_green


def test_a_tail_that_lags_is_excused_by_who_was_cut_off() -> None:
    told = story()
    a_tail_that_lags(told)
    assert told.verdict().found["stale"] == 8, told.verdict().text()
    told.blind = [(0, 10**6)]
    verdict = told.verdict()
    assert verdict.stale == 8, verdict.text()
    assert verdict.is_green
    assert "was shown a tail before" in verdict.text()
    told.blind = [(10**6, 2 * 10**6)]
    assert not told.verdict().is_green, "at another time"


@pytest.mark.parametrize("corrupt", [a_truncated_record_comes_back, an_older_beginning])
def test_a_beginning_that_lags_is_told_beside_what_is_lost(corrupt: Callable[[Story], None]) -> None:
    told = story()
    corrupt(told)
    verdict = told.verdict()
    assert verdict.is_green, verdict.text()
    assert verdict.stale >= 1


def test_a_reader_that_was_not_shown_the_tail_answers_only_for_what_it_came_past() -> None:
    told = story()
    told.reads["slow"] = Read(start_at("start"), 5000, told.reads["again"].seen[:17], End.OPEN)
    assert told.verdict().is_green, told.verdict().text()


def test_truncated_records_may_be_gone_and_nothing_else() -> None:
    told = story()
    told.truncations = [(of(2, 0, 0), 3000, 3001, of(2, 0, 0))]
    for name in ("again", "seek"):
        told.reads[name].seen = [r for r in told.reads[name].seen if r[1] >= of(2, 0, 0)]
    told.reads["seek"] = Read(start_at("dlsn", of(1, 4, 4)), 5000, [], End.TRUNCATED)
    assert told.verdict().is_green, told.verdict().text()


def test_what_was_acknowledged_twice_is_one_record() -> None:
    history = History()
    op = history.invoke(0, 0, 2, 1)
    history.ok(op, 9, of(1, 0, 0), 5, epoch=2, duplicate=True)
    history.owner(1, 1)
    reader = history.open("all", start_at("start"), 10)
    history.delivered(reader, 11, of(1, 0, 0), 5, [MAKE[0](0), MAKE[0](1)])
    history.end(reader, 12, End.TAIL)
    assert check(history).is_green


def test_one_batch_may_come_in_pieces_and_many_appends_in_one() -> None:
    history = History()
    history.ok(history.invoke(0, 0, 4, 1), 2, of(1, 0, 0), 5)
    for n in range(4):
        history.ok(history.invoke(1, n, 1, 3), 4, of(1, 1, n), 5)
    reader = history.open("all", start_at("start"), 10)
    history.delivered(reader, 11, of(1, 0, 0), 5, [MAKE[0](0)])
    history.delivered(reader, 11, of(1, 0, 1), 5, [MAKE[0](n) for n in range(1, 4)])
    history.delivered(reader, 11, of(1, 1, 0), 5, [MAKE[1](n) for n in range(4)])
    history.end(reader, 12, End.TAIL)
    assert check(history).is_green, check(history).text()


def test_a_million_records_by_four_readers() -> None:
    history, records, batch = History(), 1_000_000, 100
    readers = [history.open(f"r{n}", start_at("start"), 0) for n in range(4)]
    batches = [(n * batch, of(1 + n // 5000, n % 5000, 0)) for n in range(records // batch)]
    for at, (first, dlsn) in enumerate(batches):
        op = history.invoke(0, first, batch, 3 * at)
        history.ok(op, 3 * at + 1, dlsn, at)
    for reader in readers:
        for at, (first, dlsn) in enumerate(batches):
            history.run(reader, 3 * at + 2, Run(position_of(dlsn), batch, 0, first, at))
        history.end(reader, 3 * records, End.OPEN)
    verdict = check(history)
    assert verdict.is_green, verdict.text()
    assert verdict.acknowledged == records
    assert verdict.delivered == 4 * records
