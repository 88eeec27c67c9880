"""Tests the checker with histories that are wrong in one way each: the suite finds only what it finds."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest

from tests.integration.stores.checker import History, check


def sound() -> History:
    """Five submitted, three acked, a recovery that kept four, two readers."""
    history = History(submitted=[b"a", b"b", b"c", b"d", b"e"], acked=[0, 1, 2], recovered=[3, 3])
    history.read("tail", 0, [b"a", b"b"])
    history.read("tail", 2, [b"c"])
    history.read("late", 2, [b"c", b"d"])
    history.lacs = [("tail", 1), ("late", 3), ("tail", 2), ("tail", 3)]
    history.ends = [("late", 3)]
    history.final = [b"a", b"b", b"c", b"d"]
    return history


def test_a_sound_history_has_no_breach() -> None:
    assert check(sound()) == []
    assert check(History()) == []


def _leave(history: History, *payloads: bytes) -> None:
    history.final = list(payloads)


CORRUPTIONS: dict[str, tuple[Callable[[History], object], str]] = {
    "an acked entry was dropped": (lambda h: h.acked.extend([3, 4]), "but 4 was acked"),
    "acked entries are gone from the store": (lambda h: _leave(h, b"a", b"b"), "2 entries"),
    "acks out of order": (lambda h: h.acked.reverse(), "out of order"),
    "an ack was skipped": (lambda h: h.acked.remove(1), "out of order"),
    "two recoveries disagree": (lambda h: h.recovered.append(2), "more than one end"),
    "a reader was told another end": (lambda h: h.ends.append(("tail", 2)), "more than one end"),
    "seal and recovery disagree": (lambda h: h.sealed.append(4), "more than one end"),
    "an invented entry was recovered": (lambda h: h.recovered.__setitem__(slice(None), [5]), "only 5 entries"),
    "entries were swapped": (lambda h: _leave(h, b"b", b"a", b"c", b"d"), "not a prefix"),
    "an entry was altered": (lambda h: _leave(h, b"a", b"B", b"c", b"d"), "not a prefix"),
    "a fenced writer was acked": (lambda h: h.acked_after_fence.append(4), "fenced writer"),
    "a reader skipped": (lambda h: h.seen.append(("tail", 4, b"e")), "went from"),
    "a reader went back": (lambda h: h.seen.append(("tail", 0, b"a")), "went from"),
    "a reader saw what was dropped": (lambda h: h.seen.append(("new", 4, b"e")), "which recovery dropped"),
    "a reader saw other bytes": (lambda h: h.seen.append(("new", 1, b"x")), "never submitted"),
    "a LAC went back": (lambda h: h.lacs.append(("late", 1)), "go back"),
    "a LAC was beyond the end": (lambda h: h.lacs.append(("late", 4)), "LAC of 4"),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_each_corruption_is_found(name: str) -> None:
    corrupt, words = CORRUPTIONS[name]
    history = deepcopy(sound())
    corrupt(history)
    assert any(words in breach for breach in check(history)), check(history)
