"""Scenarios of vetting a ledger id."""

from __future__ import annotations

import pytest

from dlog.ledger.vetting import LedgerVetter, Vet, Vetted
from dlog.machine import Answer, Received
from dlog.model.ids import NO_ENTRY, BookieId
from dlog.wire.bookie import Code, EntryRead
from tests.unit.ledger.story import LEDGER, Story, packet

A, B, C = (BookieId(name) for name in "abc")


def vetting(*bookies: BookieId) -> Story:
    story = Story(LedgerVetter(LEDGER))
    assert story.ask(Vet(bookies, 1.0)) == [f"read -1 of {bookie}" for bookie in bookies]
    return story


def says(story: Story, bookie: BookieId, code: Code) -> None:
    data = packet(0, b"older") if code is Code.OK else b""
    story.hear(Received(bookie, EntryRead(LEDGER, NO_ENTRY, code, data)))


def answer(story: Story) -> Vetted | None:
    found = [effect.result for effect in story.effects if isinstance(effect, Answer)]
    assert len(found) <= 1
    if not found:
        return None
    assert isinstance(found[0], Vetted)
    return found[0]


def test_only_no_such_ledger_counts_as_not_knowing_it() -> None:
    story = vetting(A, B, C)
    says(story, A, Code.NO_LEDGER)
    says(story, B, Code.OK)
    assert answer(story) is None
    says(story, C, Code.NO_ENTRY)
    assert answer(story) == Vetted(frozenset({A}), frozenset({B, C})), "a ledger that was fenced only is known as well"


@pytest.mark.parametrize("code", [Code.IO_ERROR, Code.TOO_MANY_REQUESTS, Code.BAD_REQUEST, None])
def test_who_cannot_say_is_in_neither(code: Code | None) -> None:
    story = vetting(A, B)
    says(story, A, Code.NO_LEDGER)
    if code is None:
        story.lost("b")
    else:
        says(story, B, code)
    assert answer(story) == Vetted(frozenset({A}), frozenset())


def test_silence_is_waited_out_for_a_while_and_asked_only_once() -> None:
    story = vetting(A, B)
    says(story, A, Code.NO_LEDGER)
    story.fires("patience")
    assert answer(story) == Vetted(frozenset({A}), frozenset())
    story.effects.clear()
    assert story.ask(Vet((A, B, C), 1.0)) == ["read -1 of c"], "a has answered, and b is still asked"
    says(story, C, Code.NO_LEDGER)
    says(story, B, Code.NO_LEDGER)
    assert answer(story) == Vetted(frozenset({A, B, C}), frozenset())
