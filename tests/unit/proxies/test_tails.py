"""Listeners hear the newest LAC of each segment, however slow they are."""

from __future__ import annotations

from dlog.errors import DLogError, StreamUnavailableError
from dlog.events import LacMoved
from proxies.write.tails import Tail, Tails


class Listener:
    def __init__(self) -> None:
        self.moved: list[Tail] = []
        self.ended: list[tuple[Tail, DLogError]] = []

    def lac_moved(self, tail: Tail) -> None:
        self.moved.append(tail)

    def tail_ended(self, tail: Tail, error: DLogError) -> None:
        self.ended.append((tail, error))


def told(tail: Tail) -> list[tuple[int, int, bool]]:
    return [(lac.segment, lac.lac, lac.ended) for lac in tail.take()]


def test_a_listener_begins_with_where_the_stream_stands() -> None:
    tails, listener = Tails(), Listener()
    tails.moved(LacMoved("s", 1, 7, True))
    tails.moved(LacMoved("s", 2, -1))
    tail = Tail(listener, 5, "s")
    tails.add(tail)
    assert listener.moved
    assert told(tail) == [(1, 7, True), (2, -1, False)]


def test_what_was_not_taken_is_replaced_and_not_queued() -> None:
    tails, listener = Tails(), Listener()
    tail = Tail(listener, 5, "s")
    tails.add(tail)
    for lac in range(1000):
        tails.moved(LacMoved("s", 1, lac))
    tails.moved(LacMoved("s", 1, 999, True))
    tails.moved(LacMoved("s", 2, 0))
    assert told(tail) == [(1, 999, True), (2, 0, False)]
    assert told(tail) == []


def test_that_a_segment_ended_empty_is_told_before_its_number_is_told_again() -> None:
    tails, listener = Tails(), Listener()
    tail = Tail(listener, 5, "s")
    tails.add(tail)
    tails.moved(LacMoved("s", 1, -1))
    tails.moved(LacMoved("s", 1, -1, True))
    tails.moved(LacMoved("s", 1, -1))
    tails.moved(LacMoved("s", 1, 0))
    assert told(tail) == [(1, -1, True), (1, 0, False)]


def test_who_comes_when_a_segment_has_ended_empty_is_told_nothing_of_its_number() -> None:
    tails, listener = Tails(), Listener()
    tails.moved(LacMoved("s", 1, 7, True))
    tails.moved(LacMoved("s", 2, -1))
    tails.moved(LacMoved("s", 2, -1, True))
    tail = Tail(listener, 5, "s")
    tails.add(tail)
    assert told(tail) == [(1, 7, True)]
    assert tails.place("s") == (1, 8, 0)
    tails.moved(LacMoved("s", 2, -1))
    assert told(tail) == [(2, -1, False)]


def test_who_comes_late_is_told_of_the_last_segments_whatever_order_they_moved_in() -> None:
    tails, listener = Tails(), Listener()
    for segment, lac in ((2, 9), (1, 5), (4, 8), (3, 7)):
        tails.moved(LacMoved("s", segment, lac))
    assert tails.place("s") == (4, 9, 0)
    tail = Tail(listener, 5, "s")
    tails.add(tail)
    assert told(tail) == [(2, 9, False), (3, 7, False), (4, 8, False)]


def test_other_streams_and_those_who_left_hear_nothing() -> None:
    tails, listener = Tails(), Listener()
    left, other = Tail(listener, 1, "s"), Tail(listener, 2, "t")
    tails.add(left)
    tails.add(other)
    tails.remove(left)
    tails.moved(LacMoved("s", 1, 3))
    assert told(left) == [] == told(other)
    assert len(tails) == 1


def test_the_end_of_ownership_is_told_and_what_was_known_is_forgotten() -> None:
    tails, listener = Tails(), Listener()
    tail = Tail(listener, 1, "s")
    tails.add(tail)
    tails.moved(LacMoved("s", 1, 3))
    tails.end("s", lambda: StreamUnavailableError("gone"))
    assert [(t, type(e)) for t, e in listener.ended] == [(tail, StreamUnavailableError)]
    late = Tail(listener, 2, "s")
    tails.add(late)
    assert told(late) == []
