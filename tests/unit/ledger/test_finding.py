"""Scenarios of finding the tail without the writer."""

from __future__ import annotations

from dlog.ledger.finding import FindingOptions, FindTail, TailFinder
from dlog.ledger.placement import Confirms
from dlog.model.ledger import LedgerMetadata, LedgerState
from dlog.wire.bookie import Code
from tests.unit.ledger.story import DIGEST, LEDGER, Story, ledger, only, packet

ASKS_LAST = [f"read -1 of {bookie}" for bookie in "abc"]


def finder(*, ahead: int = 16, confirms: Confirms | None = None) -> Story:
    return Story(TailFinder(LEDGER, DIGEST, FindingOptions(ahead_entries_max=ahead), confirms))


def asked(story: Story, metadata: LedgerMetadata | None = None) -> list[str]:
    """Ask for the tail, and answer the finder's read of metadata."""
    assert story.ask(FindTail()) == ["read metadata"]
    return story.reads(metadata or ledger(), 1)


def last(story: Story, entry: int, *bookies: str, lac: int | None = None) -> list[str]:
    """Let these bookies answer with their last entry."""
    lac = entry - 1 if lac is None else lac
    lines: list[str] = []
    for bookie in bookies:
        lines += story.has(bookie, -1, packet(entry, lac=lac), fence=False)
    return lines


def searching(entry: int = 0, *, lac: int = -1, confirms: Confirms | None = None) -> Story:
    """A finder that has waited in vain for the writer, and now searches the entries up to `entry`."""
    story = finder(confirms=confirms)
    asked(story)
    last(story, entry, "a", "b", lac=lac)
    story.fires("patience")
    story.reads(ledger(), 1)
    lines = last(story, entry, "a", "b", lac=lac)
    assert lines == [f"read {e} of {b}" for e in range(lac + 1, entry + 1) for b in rotated(e)]
    return story


def rotated(entry: int) -> str:
    return ("abc", "bca", "cab")[entry % 3]


def test_a_closed_ledger_has_its_end() -> None:
    assert asked(finder(), ledger(state=LedgerState.CLOSED, last=5)) == ["answer 1 LedgerLac(lac=5, closed=True)"]


def test_an_empty_ledger_has_no_tail_once_every_possible_ack_quorum_says_so() -> None:
    story = finder()
    assert asked(story) == ASKS_LAST
    assert story.has_not(-1, "a", code=Code.NO_LEDGER, fence=False) == []
    assert story.has_not(-1, "c", fence=False) == ["answer 1 LedgerLac(lac=-1, closed=False)"]


def test_a_lac_that_has_caught_up_is_the_tail() -> None:
    story = finder()
    asked(story, ledger("0 a b c", "7 a b d"))
    assert last(story, 6, "a") == []
    assert story.has_not(-1, "d", fence=False) == ["answer 1 LedgerLac(lac=6, closed=False)"], (
        "all before a fragment is"
    )


def test_a_writer_that_lives_is_given_time_to_carry_its_lac() -> None:
    story = finder()
    asked(story)
    assert last(story, 4, "a", "b") == []
    assert story.fires("patience") == ["read metadata"]
    story.reads(ledger(), 1)
    lines = last(story, 6, "c", "b")
    assert lines == ["answer 1 LedgerLac(lac=5, closed=False)"], "what came since is not asked for"


def test_what_is_found_is_made_durable_and_decided_before_it_is_told() -> None:
    story = searching(1)
    lines = story.has("c", 0, packet(0, b"first"), fence=False)
    assert lines == [f"store 0 on {b} lac=-1 length=5 recovery" for b in "abc"]
    assert story.has("b", 0, packet(0, b"first"), fence=False) == [], "once is enough"
    story.has("b", 1, packet(1, b"more", lac=0), fence=False)
    assert story.stored(1, "a", "b") == [], "in order"
    assert story.stored(0, "c") == []
    assert story.stored(0, "c") == [], "one bookie, however often it replies"
    assert story.stored(0, "a") == ["write v1 open: 0 a b c, 2 a b c"]
    assert story.written(2) == ["answer 1 LedgerLac(lac=1, closed=False)"]


def test_an_entry_that_enough_deny_ends_the_search() -> None:
    story = searching(2, lac=0)
    assert story.has_not(1, "b", fence=False) == []
    assert story.has_not(1, "b", fence=False) == [], "one bookie, however often it replies"
    assert story.has_not(1, "c", fence=False) == ["answer 1 LedgerLac(lac=0, closed=False)"]


def test_silence_damage_and_errors_are_no_answer() -> None:
    story = searching(0)
    damaged = bytearray(packet(0, b"payload"))
    damaged[-1] ^= 1
    assert story.has_not(0, "a", fence=False) == []
    assert story.has("b", 0, bytes(damaged), fence=False) == []
    assert story.lost("c") == []
    assert story.fires("retry") == ["read 0 of b", "read 0 of c"]
    assert story.has_not(0, "b", code=Code.IO_ERROR, fence=False) == []
    assert story.fires("deadline") == ["answer 1 UnavailableError"]
    assert not story.timers


def test_those_who_did_not_store_are_asked_to_again() -> None:
    story = searching(0)
    story.has("a", 0, packet(0, b"x"), fence=False)
    story.stored(0, "a")
    story.refused(0, "b", Code.IO_ERROR)
    story.lost("c")
    assert story.fires("retry") == [f"store 0 on {b} lac=-1 length=1 recovery" for b in "bc"]
    assert story.stored(0, "c") == ["write v1 open: 0 a b c, 1 a b c"]


def test_who_loses_the_decision_begins_again() -> None:
    story = searching(0)
    story.has("a", 0, packet(0, b"x"), fence=False)
    story.stored(0, "a", "b")
    assert story.conflict() == ["read metadata"]
    assert story.reads(ledger(state=LedgerState.CLOSED, last=0, length=1), 2) == [
        "answer 1 LedgerLac(lac=0, closed=True)"
    ]


def test_a_decision_of_which_nobody_knows_is_looked_for() -> None:
    story = searching(0)
    story.has("a", 0, packet(0, b"x"), fence=False)
    story.stored(0, "a", "b")
    assert story.unknown() == []
    assert story.fires("retry") == ["read metadata"]
    story.reads(ledger("0 a b c", "1 a b c"), 2)
    assert last(story, 0, "a", "c") == ["answer 1 LedgerLac(lac=0, closed=False)"]


def test_a_ledger_in_recovery_stays_so() -> None:
    story = finder()
    asked(story, ledger(state=LedgerState.IN_RECOVERY))
    last(story, 0, "a", "b")
    story.fires("patience")
    story.reads(ledger(state=LedgerState.IN_RECOVERY), 3)
    last(story, 0, "a", "b")
    story.has("b", 0, packet(0, b"x"), fence=False)
    assert story.stored(0, "b", "c") == ["write v3 in_recovery: 0 a b c, 1 a b c"]


def test_too_few_that_tell_their_last_entry_are_an_error() -> None:
    story = finder()
    asked(story)
    last(story, 3, "a")
    story.lost("b")
    assert story.fires("retry") == ["read -1 of b"]
    assert story.fires("deadline") == ["answer 1 UnavailableError"]
    assert last(story, 3, "b", "c") == [], "it is over"


def test_metadata_out_of_reach_is_told() -> None:
    story = finder()
    story.ask(FindTail())
    story.unknown()
    assert story.fires("retry") == ["read metadata"]
    assert story.fires("deadline") == ["answer 1 MetadataUnavailableError"]


def test_a_deleted_ledger_is_told() -> None:
    story = finder()
    story.ask(FindTail())
    assert story.missing() == ["answer 1 LedgerNotFoundError"]


def test_a_key_that_a_bookie_refuses_is_told() -> None:
    story = searching(0)
    story.has("a", 0, packet(0, b"x"), fence=False)
    assert story.refused(0, "b", Code.UNAUTHORIZED) == ["answer 1 UnauthorizedError"]


def test_a_search_reads_a_few_entries_ahead() -> None:
    story = finder(ahead=2)
    asked(story)
    last(story, 9, "a", "b", lac=-1)
    story.fires("patience")
    story.reads(ledger(), 1)
    assert len(only(last(story, 9, "a", "b", lac=-1), "read")) == 6
    story.has("a", 0, packet(0), fence=False)
    assert story.stored(0, "a", "b") == [f"read 2 of {b}" for b in "cab"]


def test_an_entry_is_safe_once_the_bookies_that_hold_it_would_confirm_it_to_a_writer() -> None:
    story = searching(confirms=lambda bookies: "c" in bookies)
    story.has("a", 0, packet(0), fence=False)
    assert only(story.stored(0, "a", "b"), "write") == []
    assert only(story.stored(0, "c"), "write") == ["write v1 open: 0 a b c, 1 a b c"]
