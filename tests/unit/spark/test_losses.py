"""Which records of a stream are gone: proved, bounded, or reported as unknown; never called kept without proof."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import TruncatedError
from dlog.spark.losses import NOTHING, Loss, check_kept, lost, offset_at
from dlog.spark.offsets import BEGINNING, StreamOffset, StreamPosition
from dlog.spark.planning import SegmentView, StreamView, Tally


def segment(number: int, last: int, **given: Any) -> SegmentView:
    return SegmentView(number=number, name=str(number), store="ledger", last=last, **given)


OPEN = segment(4, 0, is_completed=False, is_final=False)


def view(*segments: SegmentView, **given: Any) -> StreamView:
    return StreamView("s", segments, incarnation="a", **given)


# ---- what is stored with a position ---------------------------------------------------------------------------------


def test_a_mark_at_the_end_knows_what_was_read_and_whether_more_may_come() -> None:
    ended = segment(3, 9, counted=70, start_sequence_id=30)
    assert offset_at(view(ended), StreamPosition(3, 10)) == StreamOffset(StreamPosition(3, 10), "a", 70, 30, True)
    grows = replace(ended, is_final=False, is_completed=False)
    assert offset_at(view(grows), StreamPosition(3, 10)) == StreamOffset(StreamPosition(3, 10), "a", 70, -1, False), (
        "the list may count anew"
    )
    first = replace(grows, start_sequence_id=0)
    assert offset_at(view(first), StreamPosition(3, 10)) == StreamOffset(StreamPosition(3, 10), "a", 70, 0, False)
    idle = replace(ended, idle=2)
    assert offset_at(view(idle), StreamPosition(3, 8)) == StreamOffset(StreamPosition(3, 8), "a", 70, 30, True)
    assert offset_at(view(idle), StreamPosition(3, 7)) == StreamOffset(StreamPosition(3, 7), "a", -1, 30, False)
    assert offset_at(view(ended), BEGINNING) == StreamOffset(BEGINNING), "nothing was read of whichever stream it was"


def test_a_mark_stays_letter_by_letter_where_it_is() -> None:
    """Trap 20: what becomes known later of the same position is a batch without records."""
    grows = segment(3, 9, is_final=False, is_completed=False)
    mark = StreamOffset(StreamPosition(3, 10), "a", 70)
    assert offset_at(view(replace(grows, counted=71, start_sequence_id=0)), mark.position, mark) is mark
    for now in (view(replace(grows, is_final=True, counted=70)), view(OPEN, past=((3, 9),))):
        over = offset_at(now, mark.position, mark)
        assert over == mark._replace(ended=True), "this is known once and for all, and not for long"
        assert offset_at(now, mark.position, over) is over
    bare = StreamOffset(StreamPosition(3, 10))
    assert offset_at(view(grows), bare.position, bare).incarnation == "a", "offsets of before did not say"
    of_another = StreamOffset(StreamPosition(3, 10), "b", 70)
    assert offset_at(view(grows), of_another.position, of_another) == StreamOffset(StreamPosition(3, 10), "a")


# ---- nothing is gone ------------------------------------------------------------------------------------------------


def test_who_stood_at_the_end_of_what_is_gone_has_lost_nothing() -> None:
    check_kept(view(OPEN), StreamOffset(StreamPosition(3, 10), "a", 70, 30, True))
    counted = view(OPEN, tallies=(Tally(3, 30, 70),))
    check_kept(counted, StreamOffset(StreamPosition(3, 10), "a", 70))
    check_kept(counted, StreamOffset(StreamPosition(3, 8), "a", 70))
    by_sequence = view(segment(4, 5, start_sequence_id=100))
    check_kept(by_sequence, StreamOffset(StreamPosition(3, 10), "a", 70, 30))
    empty_between = view(segment(6, 0), past=((4, -1),), tallies=(Tally(5, 100, 0),))
    check_kept(empty_between, StreamOffset(StreamPosition(3, 10), "a", 70, 30, True))


@pytest.mark.parametrize(
    ("now", "mark", "loss"),
    [
        (view(OPEN), StreamOffset(StreamPosition(3, 10)), Loss()),
        (view(OPEN), StreamOffset(StreamPosition(3, 10), "a", 70, 30), Loss()),
        (view(segment(4, 5, start_sequence_id=0)), StreamOffset(StreamPosition(3, 10), "a", 70, 0), Loss()),
        (view(segment(5, 5, start_sequence_id=70)), StreamOffset(StreamPosition(3, 10), "a", 70, 0, True), Loss()),
        (view(segment(4, 5, start_sequence_id=100)), StreamOffset(StreamPosition(3, 10), "a", 70), Loss(0, 30)),
        (view(segment(4, 5, first=1, counted=9)), StreamOffset(StreamPosition(3, 10), "a", 70, 30, True), Loss(0, 9)),
    ],
    ids=["nothing is known", "the next is open", "counted anew", "one is missing", "start unknown", "cut"],
)
def test_what_cannot_be_proved_is_a_loss(now: StreamView, mark: StreamOffset, loss: Loss) -> None:
    assert lost(now, mark) == loss
    with pytest.raises(TruncatedError, match=r"stream=s wanted=\[3,10\]"):
        check_kept(now, mark)


# ---- how much is gone -----------------------------------------------------------------------------------------------


def test_losses_are_exact_where_they_are_counted() -> None:
    mark = StreamOffset(StreamPosition(3, 10), "a", 70, 30)
    assert lost(view(segment(4, 5, start_sequence_id=130)), mark) == Loss(30, 30)
    assert lost(view(OPEN, tallies=(Tally(3, 30, 75),)), mark) == Loss(5, 5)
    several = view(segment(6, 5), tallies=(Tally(3, 30, 75), Tally(4, 105, 10), Tally(5, 0, 20)))
    assert lost(several, mark) == Loss(35, 35)
    cut = view(segment(3, 50, first=20, counted=200))
    assert lost(cut, mark) == Loss(0, 130)
    assert lost(cut, mark, head=90) == Loss(20, 20)
    assert lost(cut, StreamOffset(StreamPosition(3, 10)), head=90, read=60) == Loss(30, 30)
    assert lost(cut, StreamOffset(StreamPosition(3, 10)), head=90) == Loss(0, 90)


def test_losses_have_bounds_where_they_are_not() -> None:
    gap = view(segment(6, 5, start_sequence_id=150))
    assert lost(gap, StreamOffset(StreamPosition(3, 10), "a", 70, 30)) == Loss(50, None)
    again = view(segment(6, 5, start_sequence_id=90))
    assert lost(again, StreamOffset(StreamPosition(3, 10), "a", 70, 30)) == Loss(90, None), "counted anew on the way"
    assert lost(view(OPEN, tallies=(Tally(3, 30, 75),)), StreamOffset(StreamPosition(3, 4), "a")) == Loss(0, 75)


def test_a_loss_ends_where_the_batch_does() -> None:
    """The next batch counts what follows; together they count all of it once."""
    now = view(segment(6, 5), tallies=(Tally(3, 0, 75), Tally(4, 75, 10), Tally(5, 85, 20)))
    begun, stop = StreamOffset(StreamPosition(3, 10), "a", 70, 0), StreamOffset(StreamPosition(5, 3), "a", 8, 85)
    first = lost(now, begun, stop.position, head=8)
    assert (first, lost(now, stop)) == (Loss(23, 23), Loss(12, 12))
    assert lost(now, begun) == Loss(35, 35)


def test_what_is_said_of_it() -> None:
    said = [str(Loss(*given)) for given in ((5, 5), (3, 9), (4, None), (0, None))]
    assert said == ["exactly 5", "between 3 and 9", "at least 4", "unknown, perhaps none"]


# ---- against a stream that is known whole ---------------------------------------------------------------------------


@st.composite
def lives(draw: st.DrawFn) -> tuple[StreamView, StreamOffset, int]:
    """A stream in a later state, an earlier mark, and how many records between are truly gone.

    Segments are listed until they are truncated, and the list counts them as production code does: it starts anew
    behind removed ones.
    """
    sizes = draw(st.lists(st.integers(0, 3), min_size=2, max_size=5))  # records, one an entry
    left_before_end = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    starts: list[int] = []
    for number, size in enumerate(sizes):
        anew = number == 0 or left_before_end[number]
        starts.append(0 if anew else starts[-1] + sizes[number - 1])
        assert size >= 0
    at = draw(st.integers(0, len(sizes) - 2))
    then = draw(st.integers(0, sizes[at]))  # the size of the segment when the mark was made
    was_over = draw(st.booleans()) and then == sizes[at]
    predicted = 0 if at == 0 else starts[at - 1] + sizes[at - 1]
    old = segment(
        at + 1,
        then - 1,
        counted=then,
        is_final=was_over,
        is_completed=was_over,
        start_sequence_id=starts[at] if was_over else predicted,
    )
    mark = offset_at(view(old), StreamPosition(at + 1, then))
    begin = draw(st.integers(at + 1, len(sizes) - 1))
    is_open = draw(st.booleans())
    shown = [
        segment(n + 1, sizes[n] - 1, counted=sizes[n], start_sequence_id=starts[n]) for n in range(begin, len(sizes))
    ]
    if is_open:
        shown[-1] = replace(shown[-1], is_completed=False, is_final=False)
    tallies = [Tally(n + 1, starts[n], sizes[n]) for n in range(begin) if draw(st.booleans())]
    past = [(n + 1, sizes[n] - 1) for n in range(begin) if draw(st.booleans())]
    now = view(*shown, tallies=tuple(tallies), past=tuple(past), floor=StreamPosition(begin + 1, 0))
    return now, mark, sum(sizes[at:begin]) - then


@settings(max_examples=1500)
@given(lives())
def test_bounds_hold_whatever_the_list_has_forgotten(incarnation: tuple[StreamView, StreamOffset, int]) -> None:
    now, mark, gone = incarnation
    loss = lost(now, mark)
    assert loss.least <= gone and (loss.most is None or gone <= loss.most)
    if loss == NOTHING:
        check_kept(now, mark)
