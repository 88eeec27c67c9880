"""Plants every kind of breach, which must be named, and histories without one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loadtest.history import AckedRun, Broken, End, Note, ReadRun, RefusedRun, Sent
from loadtest.judge import BREACHES, Judge, Verdict, judge

# two producers of ten records each, alternating by twos: (producer, first) at (0, slot)
SENT_NS, READ_NS = 1_000, 5_000


def producers() -> list[list[Note]]:
    """What the producers noted."""
    notes: list[list[Note]] = []
    for producer in range(2):
        runs = [AckedRun(0, producer, i, 2, (0, i * 2 + producer * 2), SENT_NS) for i in range(0, 10, 2)]
        notes.append([*runs, Sent(0, producer, 10)])
    return notes


def reads() -> list[Note]:
    """What a reader of everything noted."""
    return [*(ReadRun(0, i % 2, i // 2 * 2, 2, (0, i * 2), READ_NS) for i in range(10)), End(0)]


def verdict(readers: dict[str, list[Note]], wrote: list[list[Note]] | None = None) -> Verdict:
    return judge(["log"], producers() if wrote is None else wrote, list(readers.items()))


def test_a_clean_history_is_green() -> None:
    found = verdict({"back": reads(), "tail": reads()[:-1]})
    assert found.is_green, found
    assert (found.sent, found.acknowledged, found.unanswered, found.read) == (20, 20, 0, 40)


def lost(notes: list[Note]) -> None:
    del notes[3]


def lost_at_the_end(notes: list[Note]) -> None:
    del notes[9]


def duplicated(notes: list[Note]) -> None:
    notes.insert(10, ReadRun(0, 0, 0, 2, (0, 20), READ_NS))


def reordered_in_the_log(notes: list[Note]) -> None:
    notes[4], notes[5] = notes[5], notes[4]


def reordered_by_producer(notes: list[Note]) -> None:
    del notes[0]
    notes.insert(9, ReadRun(0, 0, 0, 2, (0, 20), READ_NS))


def misplaced(notes: list[Note]) -> None:
    notes[9] = ReadRun(0, 1, 8, 2, (0, 30), READ_NS)


def early(notes: list[Note]) -> None:
    notes[2] = ReadRun(0, 0, 2, 2, (0, 4), SENT_NS - 1)


def invented(notes: list[Note]) -> None:
    notes.insert(10, ReadRun(0, 1, 10, 1, (0, 20), READ_NS))


def invented_producer(notes: list[Note]) -> None:
    notes.insert(10, ReadRun(0, 7, 0, 1, (0, 20), READ_NS))


def damaged(notes: list[Note]) -> None:
    notes.insert(10, Broken(0, (0, 20), "dead"))


@pytest.mark.parametrize(
    ("plant", "named"),
    [
        (lost, "lost"),
        (lost_at_the_end, "lost"),
        (duplicated, "duplicated"),
        (reordered_in_the_log, "reordered"),
        (reordered_by_producer, "reordered"),
        (misplaced, "misplaced"),
        (early, "early"),
        (invented, "invented"),
        (invented_producer, "invented"),
        (damaged, "invented"),
    ],
)
def test_each_breach_is_named(plant: Callable[[list[Note]], None], named: str) -> None:
    given = reads()
    plant(given)
    found = verdict({"back": given})
    assert not found.is_green
    assert getattr(found, named) >= 1, found
    assert found.examples


def test_every_kind_of_breach_is_planted_here() -> None:
    planted = {"lost", "duplicated", "reordered", "misplaced", "early", "invented", "diverged"}
    assert planted == set(BREACHES)


def test_a_record_of_the_tail_that_the_log_does_not_have_was_told_too_early() -> None:
    wrote: list[list[Note]] = [[*producers()[0], Sent(0, 0, 12)], producers()[1]]
    tail = [*reads()[:-1], ReadRun(0, 0, 10, 2, (0, 20), READ_NS)]
    found = verdict({"back": reads(), "tail": tail}, wrote)
    assert found.early == 2
    assert not found.is_green


def test_readers_at_different_places_diverge() -> None:
    wrote: list[list[Note]] = [[*producers()[0], Sent(0, 0, 11)], producers()[1]]
    one = [*reads()[:-1], ReadRun(0, 0, 10, 1, (0, 20), READ_NS), End(0)]
    other = [*reads()[:-1], ReadRun(0, 0, 10, 1, (0, 21), READ_NS)]
    assert verdict({"back": one, "tail": other}, wrote).diverged


def test_a_reader_that_misses_an_unanswered_record_diverges() -> None:
    wrote: list[list[Note]] = [[*producers()[0], Sent(0, 0, 11)], producers()[1]]
    one = [*reads()[:-1], ReadRun(0, 0, 10, 1, (0, 20), READ_NS), End(0)]
    found = verdict({"back": one, "tail": reads()[:-1]}, wrote)
    assert (found.diverged, found.lost, found.unanswered) == (1, 0, 1)


def test_an_unanswered_record_may_be_there_or_not() -> None:
    wrote: list[list[Note]] = [[*producers()[0], RefusedRun(0, 0, 10, 1, True), Sent(0, 0, 11)], producers()[1]]
    there = [*reads()[:-1], ReadRun(0, 0, 10, 1, (0, 20), READ_NS), End(0)]
    assert verdict({"back": there}, wrote).is_green
    assert verdict({"back": reads()}, wrote).is_green


def test_a_record_that_was_certainly_refused_must_not_be_there() -> None:
    wrote: list[list[Note]] = [[*producers()[0], RefusedRun(0, 0, 10, 1, False), Sent(0, 0, 11)], producers()[1]]
    there = [*reads()[:-1], ReadRun(0, 0, 10, 1, (0, 20), READ_NS), End(0)]
    assert verdict({"back": there}, wrote).invented == 1
    assert verdict({"back": reads()}, wrote).is_green


def test_an_answer_without_a_place_is_believed_for_the_record_only() -> None:
    wrote: list[list[Note]] = [[AckedRun(0, 0, 0, 10, None, SENT_NS), Sent(0, 0, 10)], producers()[1]]
    assert verdict({"back": reads()}, wrote).is_green
    without = [note for note in reads() if not (isinstance(note, ReadRun) and note.producer == 0)]
    assert verdict({"back": without}, wrote).lost == 10


def test_a_record_that_is_answered_twice_with_different_places_is_misplaced() -> None:
    wrote: list[list[Note]] = [[*producers()[0], AckedRun(0, 0, 0, 1, (7, 7), SENT_NS)], producers()[1]]
    assert verdict({"back": reads()}, wrote).misplaced == 1


def test_nobody_reading_is_everything_lost() -> None:
    assert verdict({}).lost == 20
    assert verdict({"back": []}).lost == 20


def test_a_reader_from_later_on_answers_for_what_follows() -> None:
    assert verdict({"back": reads(), "tail": reads()[4:-1]}).is_green


def test_logs_are_judged_apart() -> None:
    notes: list[Note] = [AckedRun(1, 0, 0, 1, (0,), 1), Sent(1, 0, 1), Sent(0, 0, 1), AckedRun(0, 0, 0, 1, (0,), 1)]
    given: list[Note] = [ReadRun(0, 0, 0, 1, (0,), 2), End(0), ReadRun(1, 0, 0, 1, (0,), 2), End(1)]
    assert judge(["a", "b"], [notes], [("back", given)]).is_green
    found = judge(["a", "b"], [notes], [("back", given[:2])])
    assert (found.lost, found.examples[0][:2]) == (1, "b ")


def test_notes_of_the_wrong_side_are_an_error() -> None:
    with pytest.raises(ValueError, match="producer"):
        judge(["log"], [[End(0)]], [])
    with pytest.raises(ValueError, match="reader"):
        judge(["log"], [], [("back", [Sent(0, 0, 1)])])


def test_a_long_run_costs_as_much_as_a_short_one() -> None:
    one = Judge()
    one.sent(0, 10**12)
    one.acknowledged(0, 0, 10**12, (0, 0))
    one.given("back", 0, 0, 10**12, (0, 0))
    one.ended("back")
    assert one.finish().is_green


def with_a_visitor(visited: list[tuple[int, int]], *, leaves: bool = True) -> Verdict:
    """A producer of ten records at (0, 0) and after, in runs of two; a reader of all of them; and another reader, which
    is sent these records at these positions."""
    judging = Judge()
    judging.sent(0, 10)
    judging.given("back", 0, 0, 10, (0, 0))
    judging.ended("back")
    for first in range(0, 10, 2):
        judging.acknowledged(0, first, 2, (0, first))
    for sequence, place in visited:
        judging.given("visitor", 0, sequence, 1, (0, place))
    if leaves:
        judging.left("visitor")
    return judging.finish()


def test_a_reader_that_left_does_not_answer_for_what_came_later() -> None:
    visited = [(sequence, sequence) for sequence in range(3, 7)]
    assert with_a_visitor(visited).is_green
    assert with_a_visitor([]).is_green, "it left before it was given anything"
    stayed = with_a_visitor(visited, leaves=False)
    assert stayed.lost == 3 and stayed.diverged == 3


@pytest.mark.parametrize("last", [6, 7, 9])
def test_a_reader_that_left_answers_for_what_it_came_past(last: int) -> None:
    visited = [(sequence, sequence) for sequence in range(3, last + 1) if sequence != 5]
    found = with_a_visitor(visited)
    assert found.lost == 1 and found.diverged == 1 and not found.is_green


def test_a_reader_that_left_answers_for_the_places_it_was_given() -> None:
    assert with_a_visitor([(3, 3), (4, 4), (5, 6)]).misplaced == 1
    assert with_a_visitor([(3, 3), (4, 4), (4, 5)]).duplicated == 1
    assert with_a_visitor([(3, 3), (12, 12)]).invented == 1
