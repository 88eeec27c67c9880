"""Tests the checker: each kind of corruption of a history is named, and a correct history passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dlog.model.dlsn import DLSN, of
from loadtest.checker import Checker, Verdict
from loadtest.payload import PayloadMaker, read

MAKERS = [PayloadMaker(producer, 40) for producer in range(2)]
History = list[tuple[DLSN, bytes]]


def history() -> History:
    """Twenty records of two producers, alternating."""
    return [(of(1, i // 4, i % 4), MAKERS[i % 2].make(i // 2, 1, 0)[0]) for i in range(20)]


def judge(readers: dict[str, History]) -> Verdict:
    checker = Checker()
    for producer in range(2):
        checker.sent(producer, 0, 10)
    for dlsn, payload in history():
        said = read(payload)
        assert said is not None
        checker.acknowledged(said.producer, said.sequence, 1, dlsn)
    for reader, given in readers.items():
        for dlsn, payload in given:
            checker.given(reader, dlsn, [payload])
    return checker.finish()


def test_a_clean_history_is_green() -> None:
    verdict = judge({"a": history(), "b": history()})
    assert verdict.is_green and verdict.acknowledged == 20 and verdict.read == 40 and verdict.unanswered == 0


def lose(h: History) -> None:
    del h[7]


def lose_the_end(h: History) -> None:
    del h[15:]


def repeat(h: History) -> None:
    h.append((of(2, 0, 0), h[3][1]))


def swap(h: History) -> None:
    h[4], h[5] = h[5], h[4]


def move(h: History) -> None:
    h[-1] = (of(9, 9, 9), h[-1][1])


def damage(h: History) -> None:
    h[2] = (h[2][0], h[2][1][:-1] + b"?")


def invent(h: History) -> None:
    h.append((of(2, 0, 0), MAKERS[0].make(10, 1, 0)[0]))


@pytest.mark.parametrize(
    ("corrupt", "named"),
    [
        (lose, "lost"),
        (lose_the_end, "lost"),
        (repeat, "duplicated"),
        (swap, "reordered"),
        (move, "misplaced"),
        (damage, "invented"),
        (invent, "invented"),
    ],
)
def test_a_corrupted_history_is_named(corrupt: Callable[[History], None], named: str) -> None:
    given = history()
    corrupt(given)
    verdict = judge({"a": given})
    assert not verdict.is_green
    assert getattr(verdict, named) >= 1
    assert verdict.examples


def test_two_readers_that_differ_are_named() -> None:
    other = history()
    other[1] = (other[1][0], other[3][1])
    assert judge({"a": history(), "b": other}).diverged


def test_a_record_without_an_answer_may_be_there_or_not_but_for_all_alike() -> None:
    unanswered = (of(1, 5, 0), MAKERS[0].make(10, 1, 0)[0])
    for readers, green in (({"a", "b"}, True), (set[str](), True), ({"a"}, False)):
        checker = Checker()
        for producer in range(2):
            checker.sent(producer, 0, 10)
        checker.sent(0, 10, 1)
        for reader in ("a", "b"):
            given = [*history(), unanswered] if reader in readers else history()
            for dlsn, payload in given:
                checker.given(reader, dlsn, [payload])
        assert checker.finish().is_green == green


def test_a_reader_that_began_later_answers_for_what_follows_only() -> None:
    assert judge({"tail": history()[10:], "all": history()}).is_green


def test_nobody_read_anything() -> None:
    assert judge({}).lost == 20
