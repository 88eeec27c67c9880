"""A trace names what happened and holds no payload."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from dlog.errors import UnavailableError
from dlog.io import event_trace as story_module
from dlog.io.event_trace import EventTrace, outline
from dlog.log.messages import BatchWritten
from dlog.machine import Answer, Asked, MetadataSeen, Received, Send, Versioned
from dlog.model.dlsn import of
from dlog.model.ids import EntryId, LedgerId, Txid
from dlog.wire.bookie import AddEntry, Code, EntryAdded, EntryRead


@dataclass(frozen=True, slots=True)
class Add:
    parts: tuple[bytes, ...]


class Loose(NamedTuple):
    anything: Any


class Payload(bytearray):
    """Buffers whose lifetime can be observed."""


def test_facts_and_effects_are_told_in_order() -> None:
    story = EventTrace()
    story.note(Asked(1, Add((b"secret",)), 2.0), [Send("b", EntryAdded(LedgerId(7), EntryId(3), Code.OK))])
    story.note(Received("b", b"raw bytes"), [])
    text = story.text("a machine")
    assert text.splitlines() == [
        "event trace of a machine, last 2 facts:",
        "  Asked(ticket=1, now_s=2.0, request=Add())",
        "      Send(peer='b', message=EntryAdded(ledger=7, entry=3, code=<Code.OK: 0>))",
        "  Received(peer='b', now_s=0.0, message=<9 B>)",
    ]


def test_what_can_hold_no_payload_is_kept_as_it_is() -> None:
    fact = Received("b", EntryAdded(LedgerId(7), EntryId(3), Code.OK))
    assert outline(fact) is fact


def test_a_place_in_the_log_is_kept_as_it_is_and_a_tuple_of_anything_is_not() -> None:
    written = Answer(1, BatchWritten(of(1, 2, 3), 4, Txid(5)))
    assert outline(written) is written
    told = outline(Answer(1, Loose(b"payload"))).values[1]
    assert str(told) == "[<7 B>]"


def test_no_payload_is_kept_alive_whatever_carries_it() -> None:
    story = EventTrace()
    for carry in (
        lambda p: Send("b", AddEntry(LedgerId(1), EntryId(2), b"k" * 20, (p,))),
        lambda p: Received("b", EntryRead(LedgerId(1), EntryId(2), Code.OK, p)),
        lambda p: Received("b", p),
        lambda p: Asked(1, Add((p,))),
        lambda p: Answer(1, [p, p]),
        lambda p: Answer(1, (p,)),
        lambda p: MetadataSeen("t", Versioned({"key": p}, 1)),
    ):
        story.note(carry(Payload(1000)), [carry(Payload(1000))])
    gc.collect()
    assert not [found for found in gc.get_objects() if issubclass(type(found), Payload)]
    assert len(story) == 7


def test_the_ring_is_bounded_and_errors_are_words() -> None:
    story = EventTrace(pairs_max=3)
    for number in range(10):
        story.note(Answer(number, UnavailableError("away")), [])
    assert len(story) == 3
    assert "result=UnavailableError(away)" in story.text("x")
    assert "ticket=9" in story.text("x") and "ticket=6" not in story.text("x")


def test_many_stories_together_remember_no_more_than_the_process_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story_module, "PAIRS_OF_ALL", 400)
    monkeypatch.setattr(story_module, "DETAILED_MIN", 1)
    before = story_module._share.living
    crowd = [EventTrace() for _ in range(40)]
    for number in range(20):
        crowd[0].note(Answer(number, None), [])
    assert 2 <= len(crowd[0]) <= 10
    assert "ticket=19" in crowd[0].text("x")
    del crowd[1:]
    assert story_module._share.living <= before + 1  # a trace that has ended takes no share


def test_a_story_with_nothing_new_makes_room_for_those_that_come_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story_module, "PAIRS_OF_ALL", 400)
    monkeypatch.setattr(story_module, "DETAILED_MIN", 1)
    monkeypatch.setattr(story_module._share, "_asked", 400)
    old = EventTrace()
    for number in range(100):
        old.note(Answer(number, None), [])
    held = len(old)
    crowd = [EventTrace() for _ in range(100)]
    assert len(old) <= 8 < held, "it was told nothing since, and holds its share only"
    assert "ticket=99" in old.text("x"), "what is left is what came last"
    del crowd


def test_where_thousands_live_only_kinds_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story_module, "DETAILED_MIN", 1 << 30)
    story = EventTrace()
    for number in range(100):
        add = AddEntry(LedgerId(1), EntryId(number), b"k" * 20, (Payload(1000),))
        story.note(Asked(number, [Payload(1000)], 2.0), [Send("b", add)] * number)
    del add
    story.note(Received("b", EntryAdded(LedgerId(7), EntryId(3), Code.OK)), [])
    assert len(story) <= story_module.KINDS_MAX + story_module.KINDS_MAX // 8
    assert not [found for found in gc.get_objects() if issubclass(type(found), Payload)]
    lines = story.text("a machine").splitlines()
    assert lines[-2:] == ["  Asked of list: Send, Send, Send, Send", "  Received of EntryAdded: nothing"]
    assert len({id(pair) for pair in story._pairs}) == 2, "equal kinds are one object"


def test_a_story_that_began_in_detail_can_be_told_after_the_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    story = EventTrace()
    story.note(Answer(7, None), [])
    monkeypatch.setattr(story_module, "DETAILED_MIN", 1 << 30)
    story.note(Answer(8, None), [])
    assert "Answer(ticket=7" in story.text("x") and "  Answer: nothing" in story.text("x")
