"""Subscribers get the newest LAC of each segment, however slow they are, and few entries before it."""

from __future__ import annotations

from dlog.errors import DLogError, StreamUnavailableError
from dlog.events import LacMoved
from dlog.wire.proxy import Entries, Lac
from proxies.write.lac_subscriptions import ENTRIES_BYTES_MAX, LacSubscription, LacSubscriptions


class Listener:
    def __init__(self) -> None:
        self.keeps_up = True
        self.moved: list[LacSubscription] = []
        self.ended: list[tuple[LacSubscription, DLogError]] = []

    def lac_moved(self, tail: LacSubscription) -> None:
        self.moved.append(tail)

    def tail_ended(self, tail: LacSubscription, error: DLogError) -> None:
        self.ended.append((tail, error))


def told(tail: LacSubscription) -> list[tuple[int, int, bool]]:
    return [(lac.segment, lac.lac, lac.ended) for lac in tail.take() if isinstance(lac, Lac)]


def sent(tail: LacSubscription) -> list[tuple[int, int, list[bytes]]]:
    """The entries among the frames, which must come before the LACs."""
    taken = tail.take()
    entries = [m for m in taken if isinstance(m, Entries)]
    assert entries == taken[: len(entries)] and all(m.skip == 0 and m.request == tail.request for m in entries)
    return [(m.segment, m.first_entry, list(map(bytes, m.payloads()))) for m in entries]


def confirmed(segment: int, lac: int, *payloads: bytes) -> LacMoved:
    """Confirm payloads, each in two parts."""
    return LacMoved("s", segment, lac, entries=tuple((payload[:1], memoryview(payload)[1:]) for payload in payloads))


def listening() -> tuple[LacSubscriptions, Listener, LacSubscription]:
    tails, listener = LacSubscriptions(), Listener()
    tail = LacSubscription(listener, 5, "s")
    tails.add(tail)
    return tails, listener, tail


def test_a_listener_begins_with_where_the_stream_stands() -> None:
    tails, listener = LacSubscriptions(), Listener()
    tails.moved(LacMoved("s", 1, 7, True))
    tails.moved(LacMoved("s", 2, -1))
    tail = LacSubscription(listener, 5, "s")
    tails.add(tail)
    assert listener.moved
    assert told(tail) == [(1, 7, True), (2, -1, False)]


def test_what_was_not_taken_is_replaced_and_not_queued() -> None:
    tails, listener = LacSubscriptions(), Listener()
    tail = LacSubscription(listener, 5, "s")
    tails.add(tail)
    for lac in range(1000):
        tails.moved(LacMoved("s", 1, lac))
    tails.moved(LacMoved("s", 1, 999, True))
    tails.moved(LacMoved("s", 2, 0))
    assert told(tail) == [(1, 999, True), (2, 0, False)]
    assert told(tail) == []


def test_that_a_segment_ended_empty_is_told_before_its_number_is_told_again() -> None:
    tails, listener = LacSubscriptions(), Listener()
    tail = LacSubscription(listener, 5, "s")
    tails.add(tail)
    tails.moved(LacMoved("s", 1, -1))
    tails.moved(LacMoved("s", 1, -1, True))
    tails.moved(LacMoved("s", 1, -1))
    tails.moved(LacMoved("s", 1, 0))
    assert told(tail) == [(1, -1, True), (1, 0, False)]


def test_who_comes_when_a_segment_has_ended_empty_is_told_nothing_of_its_number() -> None:
    tails, listener = LacSubscriptions(), Listener()
    tails.moved(LacMoved("s", 1, 7, True))
    tails.moved(LacMoved("s", 2, -1))
    tails.moved(LacMoved("s", 2, -1, True))
    tail = LacSubscription(listener, 5, "s")
    tails.add(tail)
    assert told(tail) == [(1, 7, True)]
    assert tails.next_position("s") == (1, 8, 0)
    tails.moved(LacMoved("s", 2, -1))
    assert told(tail) == [(2, -1, False)]


def test_who_comes_late_is_told_of_the_last_segments_whatever_order_they_moved_in() -> None:
    tails, listener = LacSubscriptions(), Listener()
    for segment, lac in ((2, 9), (1, 5), (4, 8), (3, 7)):
        tails.moved(LacMoved("s", segment, lac))
    assert tails.next_position("s") == (4, 9, 0)
    tail = LacSubscription(listener, 5, "s")
    tails.add(tail)
    assert told(tail) == [(2, 9, False), (3, 7, False), (4, 8, False)]


def test_other_streams_and_those_who_left_hear_nothing() -> None:
    tails, listener = LacSubscriptions(), Listener()
    left, other = LacSubscription(listener, 1, "s"), LacSubscription(listener, 2, "t")
    tails.add(left)
    tails.add(other)
    tails.remove(left)
    tails.moved(LacMoved("s", 1, 3))
    assert told(left) == [] == told(other)
    assert len(tails) == 1


def test_the_end_of_ownership_is_told_and_what_was_known_is_forgotten() -> None:
    tails, listener = LacSubscriptions(), Listener()
    tail = LacSubscription(listener, 1, "s")
    tails.add(tail)
    tails.moved(LacMoved("s", 1, 3))
    tails.end("s", lambda: StreamUnavailableError("gone"))
    assert [(t, type(e)) for t, e in listener.ended] == [(tail, StreamUnavailableError)]
    late = LacSubscription(listener, 2, "s")
    tails.add(late)
    assert told(late) == []


def test_entries_come_before_the_lac_that_confirms_them_those_of_one_turn_together() -> None:
    tails, _, tail = listening()
    tails.moved(confirmed(1, 1, b"first", b"second"))
    tails.moved(confirmed(1, 2, b"third"))
    entries, lac = tail.take()
    assert isinstance(entries, Entries) and entries.lengths == (5, 6, 5) and entries.body == b"firstsecondthird"
    assert (entries.segment, entries.first_entry, lac) == (1, 0, Lac(5, 1, 2, False))
    tails.moved(confirmed(1, 3, b"fourth"))
    assert sent(tail) == [(1, 3, [b"fourth"])]
    assert tail.take() == []


def test_more_entries_than_are_sent_in_a_turn_are_left_out_all_of_them() -> None:
    tails, _, tail = listening()
    half = bytes(ENTRIES_BYTES_MAX // 2)
    tails.moved(confirmed(1, 0, half))
    tails.moved(confirmed(1, 1, half))
    assert sent(tail) == [(1, 0, [half, half])]
    for lac in (2, 3, 4, 5):
        tails.moved(confirmed(1, lac, half))
    tails.moved(confirmed(1, 6, b"small"))
    assert sent(tail) == []
    tails.moved(confirmed(1, 7, bytes(ENTRIES_BYTES_MAX + 1)))
    assert sent(tail) == []
    tails.moved(confirmed(1, 8, b"small"))
    assert sent(tail) == [(1, 8, [b"small"])]


def test_where_entries_are_missing_only_those_behind_the_gap_are_sent() -> None:
    tails, listener, tail = listening()
    tails.moved(confirmed(1, 0, b"a"))
    listener.keeps_up = False
    tails.moved(confirmed(1, 1, b"b"))
    listener.keeps_up = True
    tails.moved(confirmed(1, 2, b"c"))
    assert sent(tail) == [(1, 2, [b"c"])]
    tails.moved(confirmed(1, 3, b"d"))
    tails.moved(LacMoved("s", 1, 3, True))
    tails.moved(confirmed(2, 0, b"e"))
    assert sent(tail) == [(2, 0, [b"e"])]


def test_entries_of_a_number_that_comes_again_are_sent_behind_the_end_of_its_empty_segment() -> None:
    tails, _, tail = listening()
    tails.moved(LacMoved("s", 1, -1, True))
    tails.moved(confirmed(1, 0, b"a"))
    assert [type(m) for m in tail.take()] == [Lac, Entries, Lac]


def test_who_comes_later_is_not_sent_what_was_confirmed_before_and_nobody_keeps_it() -> None:
    tails, _, _ = listening()
    tails.moved(confirmed(1, 0, b"a"))
    late = LacSubscription(Listener(), 6, "s")
    tails.add(late)
    assert late.take() == [Lac(6, 1, 0, False)]
    assert all(not event.entries for kept in tails._newest.values() for event in kept)
