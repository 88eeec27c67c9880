"""Scenarios of reading at the tail."""

from __future__ import annotations

from dlog.ledger.tailing import LearnLac, LearnMetadata, LedgerLac, LedgerTailer, ReadLac, TailingOptions, WaitLac
from dlog.machine import Answer
from dlog.model.ids import EntryId
from dlog.model.ledger import LedgerMetadata, LedgerState
from dlog.wire.bookie import Code
from tests.unit.ledger.story import DIGEST, LEDGER, Story, ledger, only, packet


def tail(metadata: LedgerMetadata | None = None, *, metadata_s: float = 10.0) -> Story:
    options = TailingOptions(poll_min_s=1.0, poll_max_s=4.0, metadata_s=metadata_s)
    return Story(LedgerTailer(LEDGER, metadata or ledger(), DIGEST, options))


def wait(story: Story, above: int) -> list[str]:
    return story.ask(WaitLac(EntryId(above)))


def seen(lines: list[str]) -> list[str]:
    return only(lines, "answer")


def test_a_poll_asks_one_bookie_after_the_other_until_the_lac_moves() -> None:
    story = tail()
    assert wait(story, -1) == ["read -1 of a"]
    assert story.has("a", -1, packet(0, lac=-1), fence=False) == []
    assert story.fires("poll") == ["read -1 of b"]
    assert story.has("b", -1, packet(2, lac=1), fence=False) == ["answer 1 LedgerLac(lac=1, closed=False)"]
    assert "poll" not in story.timers, "nobody waits, nobody is asked"


def test_a_waiter_that_is_behind_is_answered_at_once() -> None:
    story = tail(ledger("0 a b c", "7 a b d"))
    assert wait(story, 3) == ["answer 1 LedgerLac(lac=6, closed=False)"], "the last fragment begins behind the LAC"


def test_the_lac_never_goes_back() -> None:
    story = tail()
    story.ask(LearnLac(EntryId(9)))
    wait(story, 9)
    story.has("a", -1, packet(4, lac=3), fence=False)
    assert wait(story, 8) == ["answer 3 LedgerLac(lac=9, closed=False)"]


def test_a_hint_answers_waiters() -> None:
    story = tail()
    wait(story, 4)
    assert seen(story.ask(LearnLac(EntryId(5)))) == ["answer 2 None", "answer 1 LedgerLac(lac=5, closed=False)"]


def test_damage_is_no_lac() -> None:
    story = tail()
    wait(story, -1)
    damaged = bytearray(packet(9, b"payload", lac=8))
    damaged[20] ^= 1
    assert story.has("a", -1, bytes(damaged), fence=False) == []


def test_while_nothing_moves_metadata_is_read_and_tells_the_end() -> None:
    story = tail(metadata_s=2.0)
    wait(story, -1)
    story.fires("poll")
    assert story.fires("poll") == ["read metadata", "read -1 of c"]
    lines = story.reads(ledger(state=LedgerState.CLOSED, last=5, length=9), 4)
    assert lines == ["answer 1 LedgerLac(lac=5, closed=True)"]
    assert wait(story, 5) == ["answer 2 LedgerLac(lac=5, closed=True)"]


def test_a_certain_lac_needs_metadata_and_every_possible_ack_quorum() -> None:
    story = tail()
    assert story.ask(ReadLac()) == ["read metadata"]
    assert only(story.reads(ledger("0 a b c", "4 a b d"), 3), "read") == [f"read -1 of {b}" for b in "abd"]
    assert story.has("a", -1, packet(6, lac=5), fence=False) == []
    assert story.has_not(-1, "d", fence=False) == ["answer 1 LedgerLac(lac=5, closed=False)"]


def test_a_certain_lac_that_too_few_can_tell_is_an_error() -> None:
    story = tail()
    story.ask(ReadLac())
    story.reads(ledger(), 1)
    story.has("a", -1, packet(6, lac=5), fence=False)
    story.has_not(-1, "b", code=Code.IO_ERROR, fence=False)
    assert story.lost("c") == ["answer 1 UnavailableError"]


def test_who_asks_for_a_certain_lac_during_a_round_waits_for_the_next() -> None:
    story = tail()
    story.ask(ReadLac())
    story.reads(ledger(), 1)
    assert story.ask(ReadLac()) == []
    story.has("a", -1, packet(6, lac=5), fence=False)
    lines = story.has("b", -1, packet(6, lac=5), fence=False)
    assert lines == ["answer 1 LedgerLac(lac=5, closed=False)", "read metadata"]


def test_a_deleted_ledger_is_told_to_everybody() -> None:
    story = tail()
    wait(story, -1)
    story.ask(ReadLac())
    assert seen(story.missing()) == ["answer 1 LedgerNotFoundError", "answer 2 LedgerNotFoundError"]


def test_news_of_metadata_may_come_from_a_watch() -> None:
    story = tail()
    wait(story, -1)
    lines = story.ask(LearnMetadata(ledger(state=LedgerState.CLOSED, last=2, length=3)))
    assert "answer 1 LedgerLac(lac=2, closed=True)" in lines
    assert any(isinstance(e, Answer) and e.result == LedgerLac(EntryId(2), True) for e in story.effects)
