"""Scenarios of reading at the tail."""

from __future__ import annotations

from dlog.ledger.tailing import LearnLac, LearnMetadata, LedgerLac, LedgerTailer, ReadLac, TailingOptions, WaitLac
from dlog.machine import Answer, Received
from dlog.model.ids import EntryId
from dlog.model.ledger import LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
from dlog.wire.bookie import Code
from dlog.wire.bookie_v3_messages import LacRead
from tests.unit.ledger.story import DIGEST, LEDGER, Story, ledger, only, packet


def tail(metadata: LedgerMetadata | None = None, *, metadata_s: float = 10.0) -> Story:
    options = TailingOptions(poll_min_s=1.0, poll_max_s=4.0, metadata_s=metadata_s)
    return Story(LedgerTailer(LEDGER, metadata or ledger(), DIGEST, options))


def long_tail(metadata: LedgerMetadata | None = None) -> Story:
    """With long polls of 10 s, which are overdue 4 s later."""
    options = TailingOptions(poll_min_s=1.0, poll_max_s=4.0, metadata_s=1000.0, long_poll_s=10.0)
    return Story(LedgerTailer(LEDGER, metadata or ledger(), DIGEST, options))


def waits(bookie: str, above: int) -> str:
    return f"wait at {bookie} for a LAC above {above} wait_ms=10000"


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


class TestLongPolls:
    def test_the_bookie_that_told_the_lac_is_asked_for_the_next_one(self) -> None:
        story = long_tail()
        assert wait(story, -1) == [waits("b", -1)], "entry 1 is the first that carries a LAC"
        assert story.fires("poll") == [], "one long poll is enough"
        assert story.polled("b", packet(6, lac=5)) == ["answer 1 LedgerLac(lac=5, closed=False)"]
        assert "poll" not in story.timers
        assert wait(story, 5) == [waits("b", 5)], "a bookie that does not know this LAC might forget the poll"

    def test_what_is_told_beside_the_packet_is_no_lac(self) -> None:
        story = long_tail()
        wait(story, -1)
        assert story.polled("b", packet(0, lac=-1)) == []
        damaged = bytearray(packet(9, b"payload", lac=8))
        damaged[20] ^= 1
        assert story.fires("poll") == [waits("c", -1)]
        assert seen(story.polled("c", bytes(damaged))) == []

    def test_a_long_poll_that_ends_without_news_is_followed_by_the_next_member_at_once(self) -> None:
        story = long_tail(ledger("0 a b c d e", quorum=Quorum(ensemble=5, write=3, ack=2)))
        story.ask(LearnLac(EntryId(5)))
        assert wait(story, 5) == [waits("c", 5)], "entry 7 is on c, d and e"
        for told, following in (("c", "d"), ("d", "e"), ("e", "a"), ("a", "b")):
            story.fires("poll")
            assert story.polled(told, packet(6, lac=5)) == [waits(following, 5)]

    def test_of_those_that_will_hold_the_news_it_is_the_one_that_told_the_lac(self) -> None:
        story = long_tail(ledger("0 a b c d e", quorum=Quorum(ensemble=5, write=3, ack=2)))
        wait(story, -1)
        story.polled("b", packet(6, lac=5))
        assert wait(story, 5) == [waits("c", 5)], "b will not hold entry 7"
        story.polled("c", packet(7, lac=6))
        assert wait(story, 6) == [waits("d", 6)], "c will not hold entry 8"
        story.polled("d", packet(8, lac=7))
        assert wait(story, 7) == [waits("e", 7)]
        story.lost("e")
        story.polled("a", packet(9, lac=8))
        assert wait(story, 8) == [waits("a", 8)], "a holds entry 10, too"

    def test_bookies_that_do_not_wait_are_asked_no_faster_than_by_plain_polls(self) -> None:
        story = long_tail()
        wait(story, -1)
        assert story.polled("b", packet(1, lac=-1)) == []
        assert story.fires("poll") == [waits("c", -1)]
        assert story.polled("c", code=Code.NO_LEDGER) == []
        assert story.fires("poll") == [waits("a", -1)]

    def test_a_bookie_that_refuses_long_polls_gets_a_plain_read(self) -> None:
        story = long_tail(ledger("0 a", quorum=Quorum(ensemble=1, write=1, ack=1)))
        wait(story, -1)
        for code in (Code.BAD_REQUEST, Code.TOO_MANY_REQUESTS):
            assert story.polled("a", code=code) == []
            assert story.fires("poll") == ["read -1 of a"]
            assert story.fires("poll") == [waits("a", -1)]
        story.polled("a", code=Code.BAD_REQUEST)
        story.fires("poll")
        assert story.has("a", -1, packet(2, lac=1), fence=False) == ["answer 1 LedgerLac(lac=1, closed=False)"]

    def test_bookies_that_fail_are_passed_over_at_once_each_once_between_two_ticks(self) -> None:
        story = long_tail()
        assert wait(story, -1) == [waits("b", -1)]
        assert story.lost("b") == [waits("c", -1)]
        assert story.polled("c", code=Code.IO_ERROR) == [waits("a", -1)]
        assert story.polled("a", code=Code.TOO_MANY_REQUESTS) == []
        assert story.fires("poll") == [waits("b", -1)]

    def test_a_bookie_that_does_not_answer_has_one_long_poll_and_another_is_asked_beside_it(self) -> None:
        story = long_tail()
        assert wait(story, -1) == [waits("b", -1)]
        ticks = [story.fires("poll") for _ in range(5)]
        assert ticks == [[], [], [], [], [waits("c", -1)]], (
            "after 1, 2, 4, 4 and 4 s, of which it counts all but the first"
        )
        assert [story.lost("c"), story.lost("a")] == [[waits("a", -1)], []]
        assert [story.fires("poll"), story.lost("a"), story.fires("poll")] == [[waits("c", -1)], [], []]
        assert story.polled("b", packet(2, lac=1)) == ["answer 1 LedgerLac(lac=1, closed=False)"], "late and true"

    def test_a_replaced_bookie_is_not_waited_for(self) -> None:
        story = long_tail()
        wait(story, -1)
        assert story.ask(LearnMetadata(ledger("0 a b c", "1 a d c")))[-1] == "answer 1 LedgerLac(lac=0, closed=False)"
        assert wait(story, 0) == [waits("c", 0)]
        assert waits("a", 0) in story.ask(LearnMetadata(ledger("0 a b c", "1 a d c", "1 a d e")))

    def test_the_end_of_a_long_poll_does_not_count_for_a_certain_lac(self) -> None:
        story = long_tail()
        wait(story, -1)
        story.ask(ReadLac())
        story.reads(ledger(), 1)
        story.polled("b", packet(6, lac=5))
        assert story.has("a", -1, packet(6, lac=5), fence=False) == []
        assert story.has("c", -1, packet(6, lac=5), fence=False) == ["answer 2 LedgerLac(lac=5, closed=False)"]


def explicit_tail(*, long_poll_s: float = 0.0) -> Story:
    options = TailingOptions(
        poll_min_s=1.0, poll_max_s=4.0, metadata_s=1000.0, long_poll_s=long_poll_s, explicit_lac=True
    )
    return Story(LedgerTailer(LEDGER, ledger(), DIGEST, options))


def test_an_explicit_lac_that_no_entry_carries_is_learned() -> None:
    story = explicit_tail()
    assert wait(story, 1) == ["read lac of a"]
    assert story.tells("a", None, packet(2, lac=1)) == []
    assert story.fires("poll") == ["read lac of b"]
    assert story.tells("b", 2, packet(2, lac=1)) == ["answer 1 LedgerLac(lac=2, closed=False)"]


def test_an_explicit_lac_is_believed_only_if_its_digest_is_right() -> None:
    story = explicit_tail()
    wait(story, 1)
    forged = bytearray(DIGEST.pack_lac(9))
    forged[15] ^= 1
    assert story.hear(Received("a", LacRead(LEDGER, Code.OK, bytes(forged), packet(2, lac=1)))) == []
    story.fires("poll")
    assert story.tells("b", None) == []
    story.fires("poll")
    assert story.tells("c", 2) == ["answer 1 LedgerLac(lac=2, closed=False)"], "without an entry, too"


def test_a_certain_lac_counts_the_explicit_ones_of_every_possible_ack_quorum() -> None:
    story = explicit_tail()
    story.ask(ReadLac())
    assert story.reads(ledger(), 1) == ["read lac of a", "read lac of b", "read lac of c"]
    assert story.tells("a", None, packet(4, lac=3)) == []
    assert seen(story.tells("b", 4, packet(4, lac=3))) == ["answer 1 LedgerLac(lac=4, closed=False)"]


def test_a_bookie_that_does_not_know_the_ledger_answers_and_a_failing_one_does_not() -> None:
    story = explicit_tail()
    story.ask(ReadLac())
    story.reads(ledger(), 1)
    assert story.tells("a", None, code=Code.IO_ERROR) == []
    assert story.tells("b", None, code=Code.NO_LEDGER) == []
    assert seen(story.tells("c", None, code=Code.NO_ENTRY)) == ["answer 1 LedgerLac(lac=-1, closed=False)"]


def test_a_long_poll_that_ended_by_an_explicit_lac_has_it_proved() -> None:
    story = explicit_tail(long_poll_s=10.0)
    (asked,) = wait(story, 1)
    bookie = asked.split()[2]
    assert f"read lac of {bookie}" in story.polled(bookie, packet(2, lac=1)), "it says 999, and proves 1"
    assert "answer 1 LedgerLac(lac=2, closed=False)" in story.tells(bookie, 2, packet(2, lac=1))
