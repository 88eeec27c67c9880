"""Scenarios of a recovery."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from dlog.events import PlacementNotKept
from dlog.ledger.placement import Placement
from dlog.ledger.placement_policy import RACK, RANDOM, policy_metadata
from dlog.ledger.recovery import LedgerRecoverer, Recover, RecoveryOptions
from dlog.ledger.spread_placement import SpreadPlacement
from dlog.machine import Answer, Emit, Send
from dlog.model.ledger import LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
from dlog.wire.bookie import Code
from tests.unit.ledger.story import LEDGER, Story, ledger, only, packet, racked, spare


def recovery(
    metadata: LedgerMetadata | None = None,
    placement: Placement | None = None,
    *,
    ahead_entries_max: int = 1,
    attempts_max: int = 8,
) -> Story:
    """A recovery that has marked the metadata and sent its fences; the version is 2."""
    options = RecoveryOptions(ahead_entries_max=ahead_entries_max, attempts_max=attempts_max)
    story = Story(LedgerRecoverer(LEDGER, placement or spare("d"), options))
    assert story.ask(Recover()) == ["read metadata"]
    value = metadata or ledger()
    assert only(story.reads(value, 1), "write v1 in_recovery")
    story.written(2)
    return story


def test_a_closed_ledger_is_told_and_nobody_is_asked() -> None:
    story = Story(LedgerRecoverer(LEDGER, spare()))
    story.ask(Recover())
    lines = story.reads(ledger(state=LedgerState.CLOSED, last=4, length=50), 9)
    assert lines == ["tell ledger.recovered", "answer 1 closed at 4 length=50"]
    assert story.ask(Recover()) == ["answer 2 closed at 4 length=50"]


def test_metadata_is_marked_before_any_bookie_is_asked() -> None:
    story = Story(LedgerRecoverer(LEDGER, spare()))
    story.ask(Recover())
    assert story.reads(ledger(), 1) == ["write v1 in_recovery: 0 a b c"]
    assert story.written(2) == [
        "tell ledger.recovery_started",
        "read -1 of a fencing",
        "read -1 of b fencing",
        "read -1 of c fencing",
    ]


def test_a_bookie_that_holds_another_entry_under_the_id_ends_the_recovery() -> None:
    """Two writers used one ledger id: no copy may be preferred, and metadata is not changed."""
    story = recovery()
    story.has_not(-1, "a")
    story.has("b", -1, packet(0, b"one"))
    story.has("b", 0, packet(0, b"one"))
    story.stored(0, "b")
    (answer,) = story.refused(0, "c", Code.UNAUTHORIZED)
    assert answer.startswith("answer 1 DamagedError")
    (error,) = (e.result for e in story.effects if isinstance(e, Answer))
    assert "docs/restore.md" in str(error) and "ledger=7 entry=0 refused_by=c read_from=b" in str(error)
    assert story.stored(0, "a") == [], "it is over"


def replacing() -> Story:
    """A recovery that found entry 0, lost c, and sent the entry to its replacement; a and b have stored it."""
    story = recovery(placement=spare("d", "e"))
    story.has_not(-1, "a", "b")
    story.has("a", 0, packet(0, b"x", length=1))
    story.stored(0, "b")
    assert [line.split(" lac")[0] for line in only(story.lost("c"), "store")] in (["store 0 on d"], ["store 0 on e"])
    return story


def test_the_end_is_not_written_before_a_replacement_has_stored_what_metadata_says_it_has() -> None:
    """The replacement may have another ledger under this id, and has not answered yet."""
    story = replacing()
    (new,) = {"d", "e"} & {str(effect.peer) for effect in story.effects if isinstance(effect, Send)}
    story.stored(0, "a")
    assert story.has_not(1, "a", "b") == []
    assert story.stored(0, new) == [f"write v2 closed at 0 length=1: 0 a b {new}"]


def test_a_replacement_that_holds_another_ledger_is_never_named() -> None:
    story = replacing()
    (new,) = {"d", "e"} & {str(effect.peer) for effect in story.effects if isinstance(effect, Send)}
    story.stored(0, "a")
    story.has_not(1, "a", "b")
    (other,) = {"d", "e"} - {new}
    assert story.refused(0, new, Code.UNAUTHORIZED) == ["read metadata"], "it begins again"
    story.reads(replace(ledger(), state=LedgerState.IN_RECOVERY), 2)
    story.has_not(-1, "a", "b")
    story.has("a", 0, packet(0, b"x", length=1))
    story.stored(0, "a", "b")
    assert only(story.lost("c"), "store") == [], "all that exists is safe without it"
    assert story.has_not(1, "a", "b") == ["write v2 closed at 0 length=1: 0 a b c"]
    assert other not in {str(effect.peer) for effect in story.effects if isinstance(effect, Send)}


def test_entries_keep_the_length_that_they_have() -> None:
    """Java's LedgerHandleAdv counts lengths in the order of the calls, not of the entry ids."""
    story = recovery()
    story.has_not(-1, "a")
    story.has("b", -1, packet(1, b"four", length=4))
    assert only(story.has("b", 0, packet(0, b"sixsix", length=10)), "store") == [
        f"store 0 on {bookie} lac=-1 length=10 recovery" for bookie in "abc"
    ]
    story.stored(0, "a", "b")
    assert only(story.has("b", 1, packet(1, b"four", length=4)), "store") == [
        f"store 1 on {bookie} lac=-1 length=4 recovery" for bookie in "bca"
    ]


def test_an_ensemble_change_that_came_between_is_taken_in() -> None:
    story = Story(LedgerRecoverer(LEDGER, spare()))
    story.ask(Recover())
    story.reads(ledger(), 1)
    assert story.conflict() == ["read metadata"]
    assert story.reads(ledger("0 a b c", "5 a b d"), 2) == ["write v2 in_recovery: 0 a b c, 5 a b d"]
    assert "read -1 of d fencing" in story.written(3)


def test_an_empty_ledger_is_closed_empty() -> None:
    story = recovery()
    assert story.has_not(-1, "a") == [], "one fence leaves b and c to a writer"
    assert story.has_not(-1, "b") == [
        "tell ledger.recovery_fenced",
        "read 0 of a fencing",
        "read 0 of b fencing",
        "read 0 of c fencing",
    ]
    assert story.has_not(0, "a") == [], "one denial proves nothing: b and c could be an ack quorum"
    assert story.has_not(0, "c", code=Code.NO_LEDGER) == ["write v2 closed at -1 length=0: 0 a b c"]
    assert story.written(3) == ["tell ledger.recovered", "answer 1 closed at -1 length=0"]


def test_a_torn_tail_is_written_again_to_its_whole_write_set_and_kept() -> None:
    """Entry 0 is confirmed, 1 reached b alone, 2 no bookie."""
    story = recovery()
    story.has("a", -1, packet(0, b"zero", lac=-1, length=4))
    lines = story.has("b", -1, packet(1, b"one", lac=0, length=7))
    assert only(lines, "read") == ["read 1 of b fencing", "read 1 of c fencing", "read 1 of a fencing"]
    story.has_not(1, "a")
    assert story.has("b", 1, packet(1, b"one", lac=0, length=7)) == [
        "store 1 on b lac=0 length=7 recovery",
        "store 1 on c lac=0 length=7 recovery",
        "store 1 on a lac=0 length=7 recovery",
    ]
    assert story.stored(1, "b") == []
    assert only(story.stored(1, "c"), "read")[0] == "read 2 of c fencing"
    assert story.has_not(2, "c", "a") == ["write v2 closed at 1 length=7: 0 a b c"]
    assert story.written(3) == ["tell ledger.recovered", "answer 1 closed at 1 length=7"]


def test_what_is_written_again_claims_no_more_than_the_lac_the_search_began_from() -> None:
    story = recovery(ahead_entries_max=4)
    story.has_not(-1, "a", "b")
    story.has("a", 0, packet(0, b"x", length=1))
    story.stored(0, "a", "b", "c")
    assert story.has("a", 1, packet(1, b"y", lac=0, length=2))[0] == "store 1 on b lac=-1 length=2 recovery"


def test_one_hung_bookie_does_not_block_recovery() -> None:
    """BookKeeper #1067: denials of Qw - Qa + 1 are enough, c never answers."""
    story = recovery()
    story.has_not(-1, "a", "b")
    story.has("b", 0, packet(0, b"x", length=1))
    story.stored(0, "a", "b")
    assert story.has_not(1, "a", "b") == ["write v2 closed at 0 length=1: 0 a b c"]


def test_doubt_is_no_denial_and_never_an_end() -> None:
    story = recovery(attempts_max=2)
    story.has_not(-1, "a", "b")
    story.has_not(0, "a")
    assert story.has_not(0, "b", code=Code.IO_ERROR) == []
    assert story.lost("c") == [], "two cannot tell: an error, or another try, but no end"
    assert story.fires("retry") == ["read 0 of b fencing", "read 0 of c fencing"]
    story.has_not(0, "b", code=Code.UNKNOWN_LEDGER_STATE)
    assert story.has("c", 0, b"damaged" * 9) == []
    assert story.fires("retry") == ["answer 1 EntryUnreadableError"]


def test_after_an_error_whoever_asks_again_starts_from_the_beginning() -> None:
    story = recovery(attempts_max=1)
    assert story.lost("a", "b") == []
    assert story.has_not(-1, "c") == []
    assert story.fires("retry") == ["answer 1 UnavailableError"]
    assert story.ask(Recover()) == ["read metadata"]
    assert "read -1 of a fencing" in story.reads(ledger(state=LedgerState.IN_RECOVERY), 2)


def test_bookies_that_come_back_need_not_wait_for_one_that_is_frozen() -> None:
    story = recovery(attempts_max=1)
    assert story.lost("a", "b") == []
    assert story.fires("retry") == ["read -1 of a fencing", "read -1 of b fencing"], "c has not answered: no try yet"
    assert "tell ledger.recovery_fenced" in story.has_not(-1, "a", "b")
    story.lost("a", "b")
    assert story.fires("retry") == ["read 0 of a fencing", "read 0 of b fencing"]
    assert story.has_not(0, "a", "b")[-1].startswith("write v2 closed")


def test_entries_are_written_again_to_who_is_back_while_another_is_frozen() -> None:
    """There is no replacement for b, and c never answers: a and b are an ack quorum."""
    story = recovery(placement=spare("a", "b", "c"), attempts_max=1)
    story.has_not(-1, "a", "b")
    story.has("a", 0, packet(0, b"x", length=1))
    story.stored(0, "a")
    assert story.refused(0, "b", Code.IO_ERROR) == []
    assert story.fires("retry") == ["store 0 on b lac=-1 length=1 recovery"]
    assert only(story.stored(0, "b"), "read") == [f"read 1 of {bookie} fencing" for bookie in "bca"]
    assert story.has_not(1, "a", "b") == ["write v2 closed at 0 length=1: 0 a b c"]


def test_too_few_fences_are_asked_for_again() -> None:
    story = recovery()
    story.lost("a", "b")
    story.has_not(-1, "c")
    assert story.fires("retry") == ["read -1 of a fencing", "read -1 of b fencing"]
    assert "tell ledger.recovery_fenced" in story.has_not(-1, "a")


def test_a_wrong_key_is_told() -> None:
    story = recovery()
    assert story.has_not(-1, "a", code=Code.UNAUTHORIZED) == ["answer 1 UnauthorizedError"]


def test_the_search_never_begins_before_the_last_fragment() -> None:
    """BookKeeper #2615: the last fragment is empty and its bookies know no LAC."""
    story = recovery(ledger("0 a b c", "5 d e f"))
    lines = story.has_not(-1, "d", "e")
    assert only(lines, "read")[0].startswith("read 5 of")
    lines = story.has_not(5, "f", "d")
    assert lines == [f"read 4 of {b}" for b in "bca"], "the length stands in the last entry"
    assert story.has("b", 4, packet(4, b"x", length=50), fence=False) == [
        "write v2 closed at 4 length=50: 0 a b c, 5 d e f"
    ]


def test_a_bookie_that_fails_while_entries_are_written_again_is_replaced_from_there_on() -> None:
    story = recovery(ledger("0 a b c", "5 d e f"), spare("g"))
    story.has_not(-1, "d", "e")
    story.has("f", 5, packet(5, b"x", lac=4, length=60))
    story.stored(5, "e", "d")
    story.has("f", 6, packet(6, b"y", lac=5, length=61))
    assert story.refused(6, "e", Code.IO_ERROR) == ["store 6 on g lac=4 length=61 recovery", "tell ensemble.changed"]
    lines = story.stored(6, "g", "f")
    assert "read 7 of e fencing" in lines, "reads go by the ensemble that was written to"
    assert story.has_not(7, "d", "e") == ["write v2 closed at 6 length=61: 0 a b c, 5 d e f, 6 d g f"]


def test_a_recovery_replaces_under_the_policy_in_the_ledgers_metadata() -> None:
    """Racks a, b, c by the first letter; the placement that it is given has another policy."""
    for policy, new in ((RACK, "b2"), (replace(RACK, strict=True), "b2")):
        metadata = replace(ledger("0 a1 b1 a2"), custom=policy_metadata(policy))
        story = recovery(metadata, racked(RANDOM, "a3", "a4", "a5", "a6", "b2"))
        story.has_not(-1, "a1", "b1")
        story.has("b1", 0, packet(0, b"x", length=1))
        assert f"store 0 on {new} lac=-1 length=1 recovery" in story.refused(0, "b1", Code.IO_ERROR)


def test_a_recovery_tells_if_the_policy_cannot_be_kept() -> None:
    story = recovery(replace(ledger("0 a1 b1 a2"), custom=policy_metadata(RACK)), racked(RACK, "a3"))
    story.has_not(-1, "a1", "b1")
    story.has("b1", 0, packet(0, b"x", length=1))
    lines = story.refused(0, "b1", Code.IO_ERROR)
    assert only(lines, "tell") == ["tell ensemble.changed", "tell placement.not_kept"]


class TestStrictPolicy:
    """Racks a and b by the first letter, and entry 0 of a1 and b1 to be written again."""

    METADATA = replace(
        ledger("0 a1 b1 a2 b2", quorum=Quorum(ensemble=4, write=2, ack=2)),
        custom=policy_metadata(replace(RACK, strict=True)),
    )

    def after_b1_is_lost(self, *writable: str, attempts_max: int = 8) -> tuple[Story, list[str]]:
        story = recovery(self.METADATA, racked(RANDOM, *writable), attempts_max=attempts_max)
        story.has_not(-1, "a1", "a2")
        story.has("a1", 0, packet(0, b"x", length=1))
        story.stored(0, "a1")
        return story, story.lost("b1", "b2")

    def ends(self, story: Story, new: str) -> None:
        story.stored(0, new)
        assert "write v2 closed at 0 length=1" in story.has_not(1, "b1", "a2")[-1]

    def test_it_is_kept_while_a_rack_has_bookies_for_it(self) -> None:
        story, lines = self.after_b1_is_lost("a3", "b3")
        assert "store 0 on b3 lac=-1 length=1 recovery" in lines
        assert "tell placement.not_kept" not in lines
        self.ends(story, "b3")

    def test_a_rack_that_is_lost_for_good_does_not_keep_the_ledger_from_ending(self) -> None:
        story, lines = self.after_b1_is_lost("a1", "a2", "a3")
        assert lines == [], "b1 may be back in a moment"
        assert story.fires("retry") == [
            "store 0 on a3 lac=-1 length=1 recovery",
            "tell ensemble.changed",
            "tell placement.not_kept",
        ]
        told = next(e.event for e in story.effects if isinstance(e, Emit) and isinstance(e.event, PlacementNotKept))
        assert (told.ledger, told.entry) == (LEDGER, 0) and "policy=rack strict" in told.shortage
        self.ends(story, "a3")

    def test_members_that_are_back_come_first(self) -> None:
        story, lines = self.after_b1_is_lost("a1", "a2", "a3", "b1")
        assert lines == []
        assert story.fires("retry") == ["store 0 on b1 lac=-1 length=1 recovery"]
        self.ends(story, "b1")

    def test_members_that_fail_again_and_again_are_replaced_before_the_recovery_gives_up(self) -> None:
        story, _ = self.after_b1_is_lost("a1", "a2", "a3", "b1", attempts_max=3)
        assert story.fires("retry") == ["store 0 on b1 lac=-1 length=1 recovery"]
        assert story.refused(0, "b1", Code.IO_ERROR) == []
        assert story.fires("retry") == ["store 0 on b1 lac=-1 length=1 recovery"]
        assert "store 0 on a3 lac=-1 length=1 recovery" in story.refused(0, "b1", Code.IO_ERROR)
        self.ends(story, "a3")

    def test_without_any_bookie_to_spare_it_ends_with_an_error(self) -> None:
        story, _ = self.after_b1_is_lost("a1", "a2", attempts_max=2)
        (answer,) = only(story.fires("retry"), "answer")
        assert answer == "answer 1 NotEnoughBookiesError"


def test_the_first_entry_written_again_may_change_the_ensemble_without_a_second_fragment_there() -> None:
    story = recovery(ledger("0 a b c"), spare("d"))
    story.has_not(-1, "a", "b")
    story.has("a", 0, packet(0, b"x", length=1))
    story.refused(0, "c", Code.READ_ONLY)
    story.stored(0, "a", "d")
    assert story.has_not(1, "a", "b") == ["write v2 closed at 0 length=1: 0 a b d"]


def test_the_loser_of_the_last_write_takes_the_winners_end() -> None:
    story = recovery()
    story.has_not(-1, "a", "b")
    story.has_not(0, "a", "b")
    assert story.conflict() == ["read metadata"]
    lines = story.reads(ledger(state=LedgerState.CLOSED, last=3, length=9), 8)
    assert lines == ["tell ledger.recovered", "answer 1 closed at 3 length=9"]


def test_an_unknown_outcome_of_the_last_write_is_read_and_written_again() -> None:
    story = recovery()
    story.has_not(-1, "a", "b")
    story.has_not(0, "a", "b")
    assert story.unknown() == ["read metadata"]
    again = story.reads(ledger(state=LedgerState.IN_RECOVERY), 5)
    assert again == ["write v5 closed at -1 length=0: 0 a b c"]


def test_other_fragments_than_those_that_were_searched_begin_it_anew() -> None:
    story = recovery()
    story.has_not(-1, "a", "b")
    story.has_not(0, "a", "b")
    story.conflict()
    lines = story.reads(ledger("0 a b d", state=LedgerState.IN_RECOVERY), 5)
    assert "read -1 of d fencing" in lines


def test_an_entry_denied_by_one_and_held_by_another_exists() -> None:
    story = recovery(ledger("0 a b c", quorum=Quorum(ensemble=3, write=3, ack=1)))
    assert story.has_not(-1, "a", "b") == [], "with Qa = 1 every bookie must be fenced"
    story.has_not(-1, "c")
    assert story.has_not(0, "a", "b") == []
    assert "store 0 on c lac=-1 length=1 recovery" in story.has("c", 0, packet(0, b"x", length=1))


def test_no_such_ledger() -> None:
    story = Story(LedgerRecoverer(LEDGER, spare()))
    story.ask(Recover())
    assert story.missing() == ["answer 1 LedgerNotFoundError"]


class TestMinRegions:
    """Two regions, a and b by the first letter, of which both must hold entry 0 that is to be written again."""

    METADATA = replace(ledger("0 a1 a2 b1"), custom=policy_metadata(RANDOM.with_min_regions(2)))

    def found(self, *writable: str) -> Story:
        story = recovery(self.METADATA, racked(RANDOM, *writable), attempts_max=1)
        story.has_not(-1, "a1", "a2")
        story.has("a1", 0, packet(0, b"x", length=1))
        return story

    def test_the_ledger_is_not_closed_before_both_hold_it(self) -> None:
        story = self.found()
        assert story.stored(0, "a1", "a2") == []
        assert only(story.stored(0, "b1"), "read") == [f"read 1 of {b} fencing" for b in ("a2", "b1", "a1")]
        assert "write v2 closed at 0 length=1" in story.has_not(1, "a1", "a2")[-1]

    def test_a_lost_region_is_replaced_by_none_of_the_other(self) -> None:
        story = self.found("a1", "a2", "a3")
        story.stored(0, "a1", "a2")
        assert story.lost("b1")[-1].startswith("answer 1 NotEnoughBookiesError")
        answer = next(effect.result for effect in story.effects if isinstance(effect, Answer))
        assert "a region is away" in answer.message

    def test_a_bookie_of_another_region_takes_the_place_if_one_was_moved(self) -> None:
        """The ensemble has one region now, and every member acknowledges."""
        moved = replace(ledger("0 a1 a2 a3"), custom=policy_metadata(RANDOM.with_min_regions(2)))
        story = recovery(moved, racked(RANDOM, "a1", "a2", "a3", "a4", "b2"), attempts_max=3)
        story.has_not(-1, "a1", "a2")
        assert "store 0 on b2 lac=-1 length=1 recovery" in story.has("a1", 0, packet(0, b"x", length=1))
        assert only(story.stored(0, "a2", "a3"), "write") == []
        story.stored(0, "b2")
        assert "write v2 closed at 0 length=1: 0 b2 a2 a3" in story.has_not(1, "a2", "a3")[-1]

    def test_members_of_unknown_regions_do_not_keep_it_waiting_for_ever(self) -> None:
        placement = SpreadPlacement(RANDOM, lambda _: [], lambda _: None, Random(1))
        story = recovery(self.METADATA, placement, attempts_max=1)
        story.has_not(-1, "a1", "a2")
        assert story.has("a1", 0, packet(0, b"x", length=1))[-1].startswith("answer 1 NotEnoughBookiesError")
