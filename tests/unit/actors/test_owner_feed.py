"""A message of an owner is applied to the location it names, and to no other that has or had its segment number."""

from __future__ import annotations

from collections.abc import Sequence

from actors.owner_feed import OwnerFeed
from dlog.model.ids import SegmentNumber, Txid
from dlog.model.segment import Segment


class Listener:
    def __init__(self) -> None:
        self.asked: list[int] = []
        self.told: list[tuple[str, int, bool]] = []
        self.had: list[tuple[str, int, list[bytes]]] = []
        self.ended: list[OwnerFeed] = []

    def on_first_lac(self, feed: OwnerFeed, number: int) -> None:
        self.asked.append(number)

    def on_lac(self, segment: Segment, lac: int, ended: bool) -> None:
        self.told.append((segment.name, lac, ended))

    def on_entries(self, segment: Segment, first: int, payloads: Sequence[bytes]) -> None:
        self.had.append((segment.name, first, list(payloads)))

    def on_closed(self, feed: OwnerFeed) -> None:
        self.ended.append(feed)


def lying(place: str) -> Segment:
    return Segment(number=SegmentNumber(1), name=place, first_txid=Txid(0))


def test_a_number_is_looked_up_once_and_believed_from_then_on() -> None:
    listener = Listener()
    feed = OwnerFeed(listener, "w:1", "1")
    feed(1, 3, False)
    feed(1, 4, False)
    assert (listener.asked, listener.told) == ([1], [])
    feed.locate(1, lying("a"))
    feed(1, 5, False)
    assert (listener.asked, listener.told) == ([1], [("a", 4, False), ("a", 5, False)])


def test_after_a_segment_ended_empty_its_number_is_looked_up_anew() -> None:
    listener = Listener()
    feed = OwnerFeed(listener, "w:1", "1")
    feed(1, -1, False)
    feed.locate(1, lying("a"))
    feed(1, -1, True)
    feed(1, 0, False)
    assert listener.asked == [1, 1]
    feed.locate(1, lying("b"))
    assert listener.told == [("a", -1, False), ("b", 0, False)]


def test_that_a_segment_ended_empty_is_said_of_no_place_that_its_number_has_later() -> None:
    listener = Listener()
    feed = OwnerFeed(listener, "w:1", "1")
    feed(1, -1, True)
    assert (listener.asked, listener.told) == ([], [])


def test_that_a_segment_ended_empty_is_said_of_no_place_that_its_number_had_when_it_was_looked_up() -> None:
    """The owner does not know that a Java writer has dropped its segment and uses the number for its own."""
    listener = Listener()
    feed = OwnerFeed(listener, "w:1", "1")
    feed(1, -1, False)
    feed.locate(1, lying("java's"))
    feed(1, -1, True)
    assert listener.told == [("java's", -1, False)]


def test_a_look_that_was_under_way_when_the_segment_ended_empty_is_not_believed() -> None:
    listener = Listener()
    feed = OwnerFeed(listener, "w:1", "1")
    feed(1, -1, False)
    feed(1, -1, True)
    feed(1, 7, False)
    feed.locate(1, lying("a"))
    assert listener.told == []
    feed.locate(1, lying("b"))
    assert listener.told == [("b", 7, False)]


def test_entries_that_are_sent_along_are_had_once_their_place_is_certain() -> None:
    listener = Listener()
    feed = OwnerFeed(listener, "w:1", "1")
    feed.entries(1, 0, [b"a"])
    feed(1, 0, False)
    feed.entries(1, 1, [b"b"])
    assert (listener.asked, listener.had) == ([1], [])
    feed.locate(1, lying("a"))
    feed.entries(1, 2, [b"c", b"d"])
    assert listener.had == [("a", 2, [b"c", b"d"])]
    feed.moved({1: lying("b")}.get)
    feed.entries(1, 4, [b"e"])
    assert len(listener.had) == 1, "what lies elsewhere than we believed is looked up anew"


def test_the_end_of_a_connection_is_told_once() -> None:
    listener = Listener()
    feed = OwnerFeed(listener, "w:1", "1")
    feed.end()
    feed.end()
    assert feed.is_over and listener.ended == [feed]
