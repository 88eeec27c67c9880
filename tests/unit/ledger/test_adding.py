"""Scenarios of a ledger's writer."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from dlog.events import PlacementNotKept
from dlog.ledger.adding import AddingOptions, Close, LedgerAdder
from dlog.ledger.placement import Placement, RandomPlacement
from dlog.ledger.placement_policy import RACK, RANDOM
from dlog.ledger.spread_placement import SpreadPlacement
from dlog.machine import Answer, Emit, Fact, MetadataSeen, Received, SetTimer, TimerFired, Versioned
from dlog.model.ids import NO_ENTRY, BookieId
from dlog.model.ledger import LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
from dlog.wire.bookie import Code, EntryRead
from dlog.wire.bookie_v3_messages import LacWritten
from tests.unit.ledger.story import DIGEST, LEDGER, Story, ledger, only, packet, racked, spare


def writer(
    metadata: LedgerMetadata | None = None,
    placement: Placement | None = None,
    options: AddingOptions = AddingOptions(),  # noqa: B008 (frozen)
) -> Story:
    adder = LedgerAdder(LEDGER, Versioned(metadata or ledger(), 1), DIGEST, placement or spare("d"), options)
    return VettedStory(adder)


class VettedStory(Story):
    """Candidates for a replacement answer at once that they do not know the ledger; these lines are left out."""

    def hear(self, *facts: Fact) -> list[str]:
        lines = super().hear(*facts)
        while asked := [text.split()[3] for text in lines if text.startswith("read -1 of ")]:
            lines = [text for text in lines if not text.startswith("read -1 of ")]
            for bookie in asked:
                answer = EntryRead(LEDGER, NO_ENTRY, Code.NO_LEDGER)
                lines += super().hear(Received(BookieId(bookie), answer))
        return lines


def adder(story: Story) -> LedgerAdder:
    assert isinstance(story.machine, LedgerAdder)
    return story.machine


def test_an_entry_goes_to_its_write_set_and_is_confirmed_by_the_ack_quorum() -> None:
    story = writer()
    assert story.add(b"hello") == [
        "store 0 on a lac=-1 length=5",
        "store 0 on b lac=-1 length=5",
        "store 0 on c lac=-1 length=5",
    ]
    assert story.stored(0, "b") == []
    assert story.stored(0, "a") == ["answer 1 0"]
    assert story.stored(0, "c") == []
    assert story.add(b"you")[0] == "store 1 on b lac=0 length=8"


def test_entries_are_striped_over_a_larger_ensemble() -> None:
    story = writer(ledger("0 a b c d", quorum=Quorum(ensemble=4, write=2, ack=2)))
    sent = [text.split(" lac")[0] for _ in range(4) for text in story.add()]
    assert sent == [
        "store 0 on a", "store 0 on b", "store 1 on b", "store 1 on c",
        "store 2 on c", "store 2 on d", "store 3 on d", "store 3 on a",
    ]  # fmt: skip


def test_answers_come_in_order_whatever_the_order_of_acknowledgements() -> None:
    story = writer()
    for _ in range(3):
        story.add()
    assert story.stored(2, "a", "b") == []
    assert story.stored(1, "a", "b") == []
    assert story.stored(0, "a") == []
    assert story.stored(0, "c") == ["answer 1 0", "answer 2 1", "answer 3 2"]


def test_a_second_acknowledgement_of_one_bookie_counts_once_and_a_stranger_never() -> None:
    story = writer()
    story.add()
    assert story.stored(0, "a", "a", "z") == []


def test_an_entry_outside_its_write_set_is_no_acknowledgement() -> None:
    story = writer(ledger("0 a b c", quorum=Quorum(ensemble=3, write=2, ack=2)))
    story.add()
    assert story.stored(0, "c") == []
    assert story.stored(0, "a") == []
    assert story.stored(0, "b") == ["answer 1 0"]


def test_ensemble_change_nothing_is_confirmed_while_it_is_out_and_the_replaced_bookie_does_not_count() -> None:
    story = writer()
    story.add()
    story.stored(0, "a", "b")
    story.add()
    story.add()
    story.stored(1, "c")
    assert story.refused(2, "c", Code.IO_ERROR) == ["tell bookie.lost", "write v1 open: 0 a b c, 1 a b d"]
    assert story.stored(1, "a") == [], "c and a hold entry 1, but c is being replaced"
    assert story.written(2) == ["store 1 on d lac=0 length=2", "store 2 on d lac=0 length=3", "tell ensemble.changed"]
    assert story.stored(1, "c") == [], "c is no member any more"
    assert story.stored(1, "d") == ["answer 2 1"]


def test_ensemble_change_the_head_that_reached_its_quorum_meanwhile_is_confirmed_at_once() -> None:
    story = writer()
    story.add()
    assert "write v1 open: 0 a b d" in story.lost("c"), "a fragment that would begin where the last does replaces it"
    assert story.stored(0, "a", "b") == []
    assert story.written(2) == ["store 0 on d lac=-1 length=1", "tell ensemble.changed", "answer 1 0"]


class TestVetting:
    """A replacement must not know the ledger: after ZooKeeper was restored from a backup, a bookie may have entries of
    another ledger under this id."""

    def story(self, *spares: str) -> Story:
        machine = LedgerAdder(LEDGER, Versioned(ledger(), 1), DIGEST, spare(*spares), AddingOptions())
        story = Story(machine)
        story.add()
        return story

    def says(self, story: Story, bookie: str, code: Code) -> list[str]:
        data = packet(0, b"of the first ledger of that id") if code is Code.OK else b""
        return story.hear(Received(bookie, EntryRead(LEDGER, NO_ENTRY, code, data)))

    def test_a_replacement_is_asked_before_metadata_names_it(self) -> None:
        story = self.story("d")
        assert story.lost("c") == ["tell bookie.lost", "read -1 of d"]
        assert story.stored(0, "a", "b") == ["answer 1 0"], "meanwhile it goes on as long as a quorum answers"
        assert self.says(story, "d", Code.NO_LEDGER) == ["write v1 open: 0 a b c, 1 a b d"]

    @pytest.mark.parametrize("code", [Code.OK, Code.NO_ENTRY])
    def test_one_that_knows_the_ledger_is_never_taken(self, code: Code) -> None:
        story = self.story("d")
        story.lost("c")
        assert self.says(story, "d", code) == []
        assert story.fires("replace") == [], "nor is it asked again"

    def test_another_one_is_asked_instead(self) -> None:
        story = self.story("d", "e")
        first = story.lost("c")[-1].split()[-1]
        (other,) = {"d", "e"} - {first}
        assert self.says(story, first, Code.OK) == [f"read -1 of {other}"]
        assert self.says(story, other, Code.NO_LEDGER) == [f"write v1 open: 0 a b {other}"]

    @pytest.mark.parametrize("code", [Code.IO_ERROR, Code.TOO_MANY_REQUESTS, None])
    def test_one_that_cannot_say_is_asked_again_later(self, code: Code | None) -> None:
        story = self.story("d")
        story.lost("c")
        assert (story.lost("d") if code is None else self.says(story, "d", code)) == []
        assert story.fires("replace") == ["read -1 of d"]
        assert self.says(story, "d", Code.NO_LEDGER) == ["write v1 open: 0 a b d"]

    def test_a_former_member_may_come_back_with_what_it_holds(self) -> None:
        story = self.story("c", "d")
        story.lost("c")
        self.says(story, "d", Code.NO_LEDGER)
        story.written(2)
        assert "write v2 open: 0 a b c" in story.lost("d") + story.fires("replace")


class TestPlacement:
    """Racks a, b, c, ..., by the first letter of a bookie."""

    E422 = Quorum(ensemble=4, write=2, ack=2)
    STRICT = replace(RACK, strict=True)

    def test_a_replacement_keeps_two_racks_in_each_write_quorum(self) -> None:
        story = writer(ledger("0 a1 b1 a2 b2", quorum=self.E422), racked(self.STRICT, "a3", "b3"))
        story.add()
        assert story.lost("b1") == ["tell bookie.lost", "write v1 open: 0 a1 b3 a2 b2"]

    def test_without_another_rack_a_strict_ledger_is_not_changed_and_its_end_says_why(self) -> None:
        story = writer(ledger("0 a1 b1 a2 b2", quorum=self.E422), racked(self.STRICT, "a1", "a2", "a3", "a4"))
        story.add()
        assert story.lost("b1") == ["tell bookie.lost"]
        story.fires("replace")
        assert only(story.fires("give_up"), "answer") == ["answer 1 NotEnoughBookiesError outcome unknown"]
        (error,) = (e.result for e in story.effects if isinstance(e, Answer))
        assert "policy=rack strict racks=1 needed=2" in str(error) and "--rack" in str(error)

    def test_else_it_goes_on_with_one_rack_and_an_event_names_the_ledger(self) -> None:
        story = writer(ledger("0 a1 b1 a2 b2", quorum=self.E422), racked(RACK, "a3"))
        story.add()
        lines = story.lost("b1")
        assert lines == ["tell bookie.lost", "tell placement.not_kept", "write v1 open: 0 a1 a3 a2 b2"]
        (told,) = (e.event for e in story.effects if isinstance(e, Emit) and isinstance(e.event, PlacementNotKept))
        assert (told.ledger, told.entry, told.ensemble) == (LEDGER, 0, ("a1", "a3", "a2", "b2"))
        assert told.shortage == "policy=rack: 2 of 4 write quorums with 1 racks, needed=2"

    def test_replacements_that_keep_a_strict_policy_only_together_are_written_together(self) -> None:
        placement = racked(self.STRICT, "a2", "b2")
        created = Versioned(ledger("0 x1 b1 c1 a1", quorum=self.E422), 1)
        story = Story(LedgerAdder(LEDGER, created, DIGEST, placement, AddingOptions()))
        story.add()
        assert story.lost("x1") == ["tell bookie.lost"], "a2 would stand beside a1, and b2 beside b1"
        assert story.lost("b1") == ["tell bookie.lost", "read -1 of b2", "read -1 of a2"]
        assert story.has_not(-1, "b2", code=Code.NO_LEDGER) == []
        assert story.has_not(-1, "a2", code=Code.NO_LEDGER) == ["write v1 open: 0 b2 a2 c1 a1"]

    def test_one_of_them_that_is_unfit_leaves_the_other_where_it_may_be_alone(self) -> None:
        placement = racked(self.STRICT, "a2", "b2", "d2")
        created = Versioned(ledger("0 x1 b1 c1 a1", quorum=self.E422), 1)
        story = Story(LedgerAdder(LEDGER, created, DIGEST, placement, AddingOptions()))
        story.add()
        story.lost("x1", "b1")
        for bookie in ("a2", "b2"):
            story.has_not(-1, bookie, code=Code.IO_ERROR)
        while "write" not in (lines := "\n".join(story.has_not(-1, "d2", code=Code.NO_LEDGER))):
            story.fires("replace")
        assert lines in ("write v1 open: 0 d2 b1 c1 a1", "write v1 open: 0 x1 d2 c1 a1")


def test_a_second_failure_during_a_change_starts_the_next_one() -> None:
    story = writer(placement=spare("d", "e"))
    story.add()
    first = only(story.lost("b"), "write")[0]
    new = first.split()[-2]
    assert story.lost("c") == []
    lines = story.written(2)
    other = {"d": "e", "e": "d"}[new]
    assert f"write v2 open: 0 a {new} {other}" in lines
    assert "answer 1 0" in (story.written(3) + story.stored(0, new, other))


def test_no_replacement_goes_on_while_the_ack_quorum_can_be_reached() -> None:
    story = writer(placement=spare())
    story.add()
    assert story.lost("c") == ["tell bookie.lost"]
    assert story.stored(0, "a", "b") == ["answer 1 0"]
    assert [text.split(" lac")[0] for text in story.add()] == ["store 1 on b", "store 1 on a"]


def test_retries_come_less_often_while_there_is_no_replacement() -> None:
    writable = [BookieId("d")]
    story = writer(placement=RandomPlacement(lambda exclude: [b for b in writable if b not in exclude], Random(1)))
    writable.clear()
    story.add()
    story.lost("c")
    for _ in range(5):
        story.fires("replace")

    def delays() -> list[float]:
        return [e.after_s for e in story.effects if isinstance(e, SetTimer) and e.key == "replace"]

    assert delays() == [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]
    writable.append(BookieId("d"))
    assert story.fires("replace") == ["write v1 open: 0 a b d"]
    story.written(2)
    writable.clear()
    story.lost("d")
    assert delays()[6:] == [0.25, 0.25], "while d is asked whether it knows the ledger, and now"


def test_a_member_that_is_writable_again_is_readmitted_when_nobody_can_replace_it() -> None:
    story = writer(placement=spare("a", "b", "c"))
    story.add()
    story.lost("b", "c")
    assert story.stored(0, "a") == []
    assert story.fires("replace") == ["store 0 on b lac=-1 length=1", "store 0 on c lac=-1 length=1"]
    assert story.stored(0, "c") == ["answer 1 0"]


def test_without_an_ack_quorum_in_reach_the_ledger_is_given_up_after_a_while() -> None:
    story = writer(placement=spare())
    story.add()
    story.lost("b", "c")
    assert story.fires("give_up") == ["answer 1 NotEnoughBookiesError outcome unknown"]
    assert story.add() == ["answer 2 NotEnoughBookiesError"], "this one was certainly not added"


def test_members_that_are_tried_again_and_fail_again_do_not_put_off_the_end() -> None:
    """Without replacements, failed members are readmitted again and again; only a confirmed entry counts as
    progress."""
    story = writer(placement=spare("a", "b", "c"))
    story.add()
    story.lost("b", "c")
    for _ in range(3):
        assert "give_up" in story.timers
        story.fires("replace")
        story.lost("b", "c")
    assert story.fires("give_up") == ["answer 1 NotEnoughBookiesError outcome unknown"]


def test_a_timer_cancelled_too_late_does_nothing() -> None:
    story = writer(placement=spare("a", "b", "c"))
    story.add()
    story.lost("b", "c")
    story.fires("replace")
    story.stored(0, "a", "b")
    assert "give_up" not in story.timers
    assert story.hear(TimerFired("give_up", 0.0)) == []
    assert not adder(story).is_dead


def test_fenced_everything_pending_has_an_unknown_outcome() -> None:
    story = writer()
    story.add()
    story.add()
    assert story.refused(1, "b", Code.FENCED) == [
        "tell ledger.fenced",
        "answer 1 LedgerFencedError outcome unknown",
        "answer 2 LedgerFencedError outcome unknown",
    ]
    assert story.stored(0, "a", "b") == []
    assert story.add() == ["answer 3 LedgerFencedError"]
    assert story.ask(Close()) == ["answer 4 LedgerFencedError outcome unknown"]


def test_a_wrong_key_ends_the_handle() -> None:
    story = writer()
    story.add()
    assert story.refused(0, "a", Code.UNAUTHORIZED) == ["answer 1 UnauthorizedError outcome unknown"]


def test_an_error_after_the_entry_was_confirmed_replaces_the_bookie_before_it_misses_more() -> None:
    story = writer()
    story.add()
    story.stored(0, "a", "b")
    assert story.refused(0, "c", Code.READ_ONLY) == ["tell bookie.lost", "write v1 open: 0 a b c, 1 a b d"]
    assert story.written(2) == ["tell ensemble.changed"]


def test_a_lost_connection_on_which_nothing_was_outstanding_is_no_failure() -> None:
    story = writer()
    story.add()
    story.stored(0, "a", "b", "c")
    assert story.lost("c") == []
    assert "store 1 on c lac=0 length=2" in story.add()


def test_an_answer_to_what_was_sent_behind_a_loss_stands_for_nothing_that_was_sent_later() -> None:
    """Entry 1 was sent on the next connection before the loss of the old one was noticed; it was sent again, and
    answered twice."""
    story = writer(placement=spare("a", "b", "c"))
    story.add()
    story.add()
    story.lost("c")
    story.fires("replace")
    story.stored(0, "c")
    story.stored(1, "c")
    story.add()
    story.stored(1, "c")
    assert story.lost("c") == ["tell bookie.lost"], "entry 2 has no answer there"
    assert "store 2 on c lac=-1 length=3" in story.fires("replace")


def test_the_slowest_bookie_may_lag_so_far_and_no_further() -> None:
    story = writer(options=AddingOptions(lag_entries_max=3))
    for entry in range(3):
        story.add()
        story.stored(entry, "a", "b")
    assert "store 3 on c lac=2 length=4" in story.add()
    story.stored(3, "a", "b")
    lines = story.add()
    assert "write v1 open: 0 a b c, 4 a b d" in lines and "store 4 on c lac=3 length=5" not in lines


def test_conflict_in_recovery_is_a_fence() -> None:
    story = writer()
    story.add()
    story.lost("c")
    assert story.conflict() == ["read metadata"]
    lines = story.reads(ledger(state=LedgerState.IN_RECOVERY), 5)
    assert lines == ["tell ledger.fenced", "answer 1 LedgerFencedError outcome unknown"]


def test_conflict_on_an_open_ledger_is_tried_again_from_what_was_read() -> None:
    story = writer()
    story.add()
    story.lost("c")
    story.conflict()
    touched = replace(ledger(), custom=(("note", b"by somebody else"),))
    assert story.reads(touched, 5) == ["write v5 open: 0 a b d"]
    assert "store 0 on d lac=-1 length=1" in story.written(6)
    assert adder(story).metadata.custom == touched.custom


def test_an_unknown_outcome_that_shows_our_value_is_a_success() -> None:
    story = writer()
    story.add()
    story.lost("c")
    assert story.unknown() == ["read metadata"]
    assert "store 0 on d lac=-1 length=1" in story.reads(ledger("0 a b d"), 2)


def test_an_unknown_outcome_that_does_not_show_our_value_may_still_come_and_is_settled_by_a_write() -> None:
    """Nothing is confirmed before it is settled: the first write could still take effect and name another ensemble."""
    story = writer()
    story.add()
    story.add()
    story.stored(0, "c")
    story.lost("c")
    story.unknown()
    assert story.reads(ledger(), 1) == ["write v1 open: 0 a b d"]
    assert story.stored(0, "a") == [], "c and a hold it, d may already have replaced c"
    assert story.conflict() == ["read metadata"]
    lines = story.reads(ledger("0 a b d"), 2)
    assert lines == ["store 0 on d lac=-1 length=1", "store 1 on d lac=-1 length=2", "tell ensemble.changed"]
    assert story.stored(0, "d") == ["answer 1 0"]


def test_a_settling_write_of_the_old_value_is_not_in_place_because_the_old_value_is_read() -> None:
    """The value that settles may equal the earlier value: only another version shows that it was written."""
    writable = [BookieId("d")]
    story = writer(placement=RandomPlacement(lambda exclude: [b for b in writable if b not in exclude], Random(1)))
    story.add()
    story.stored(0, "a")
    story.lost("c")
    story.unknown()
    writable.clear()  # so that the settling write names c again
    assert story.reads(ledger(), 1) == ["write v1 open: 0 a b c"]
    assert story.unknown() == ["read metadata"]
    assert story.reads(ledger(), 1) == ["write v1 open: 0 a b c"], "d may still replace c"
    assert story.stored(0, "b") == []
    assert story.written(2) == ["answer 1 0"]


def test_metadata_out_of_reach_is_read_again_and_given_up_at_last() -> None:
    story = writer()
    story.add()
    story.lost("c")
    story.unknown()
    assert story.unknown() == []
    assert story.fires("metadata") == ["read metadata"]
    story.stored(0, "a", "b")
    assert story.fires("give_up") == ["answer 1 MetadataUnavailableError outcome unknown"]


def test_an_answer_to_an_earlier_metadata_question_is_immaterial() -> None:
    story = writer(placement=spare("d", "e"))
    story.add()
    story.lost("c")
    stale = story.question
    story.written(2)
    assert story.hear(MetadataSeen(stale.token, Versioned(ledger("0 x y z"), 9))) == []


def test_a_deleted_ledger_ends_the_handle() -> None:
    story = writer()
    story.add()
    story.lost("c")
    assert story.missing() == ["answer 1 LedgerNotFoundError outcome unknown"]


def test_too_many_changes_end_the_handle() -> None:
    story = writer(placement=spare("d", "e", "f", "g"), options=AddingOptions(ensemble_changes_max=2))
    story.add()
    for version in (2, 3):
        story.lost(adder(story).metadata.fragments[-1].ensemble[2])
        story.written(version)
    assert "answer 1 UnavailableError outcome unknown" in story.lost(adder(story).metadata.fragments[-1].ensemble[2])


def test_close_drains_then_writes_the_end() -> None:
    story = writer()
    story.add(b"abc")
    assert story.ask(Close()) == []
    assert story.add() == ["answer 3 ClosedError"]
    assert story.stored(0, "a", "c") == ["answer 1 0", "write v1 closed at 0 length=3: 0 a b c"]
    assert story.written(2) == ["tell ledger.closed", "answer 2 closed at 0 length=3"]
    assert story.ask(Close()) == ["answer 4 closed at 0 length=3"]


def test_close_at_once_fails_what_is_pending() -> None:
    story = writer()
    story.add(b"abc")
    story.stored(0, "a", "b")
    story.add(b"de")
    assert story.ask(Close(drain=False)) == [
        "answer 2 ClosedError outcome unknown",
        "write v1 closed at 0 length=3: 0 a b c",
    ]


def test_closed_by_somebody_else_at_the_same_end_is_a_success_and_at_another_a_fence() -> None:
    for last, answer in ((0, "answer 2 closed at 0 length=3"), (1, "answer 2 LedgerFencedError outcome unknown")):
        story = writer()
        story.add(b"abc")
        story.stored(0, "a", "b")
        story.ask(Close())
        story.conflict()
        lines = story.reads(ledger(state=LedgerState.CLOSED, last=last, length=3), 7)
        assert lines[-1] == answer


def test_an_end_whose_outcome_is_unknown_is_read_and_written_again() -> None:
    story = writer()
    story.ask(Close())
    assert story.unknown() == ["read metadata"]
    assert story.reads(ledger(), 1) == ["write v1 closed at -1 length=0: 0 a b c"]
    assert story.conflict() == ["read metadata"]
    lines = story.reads(ledger(state=LedgerState.CLOSED), 2)
    assert lines[-1] == "answer 1 closed at -1 length=0"


class TestMinRegions:
    """Two regions, a and b by the first letter, of which both must hold an entry."""

    POLICY = RANDOM.with_min_regions(2)

    def writing(self, *writable: str) -> Story:
        story = writer(ledger("0 a1 a2 b1"), racked(self.POLICY, *writable))
        story.add()
        return story

    def test_an_ack_quorum_of_one_region_does_not_confirm(self) -> None:
        story = self.writing()
        assert story.stored(0, "a1", "a2") == []
        assert story.stored(0, "b1") == ["answer 1 0"]

    def test_two_regions_and_an_ack_quorum_confirm(self) -> None:
        assert self.writing().stored(0, "b1", "a2") == ["answer 1 0"]

    def test_without_a_second_region_the_writer_gives_up_and_says_why(self) -> None:
        story = self.writing("a1", "a2", "a3")
        story.stored(0, "a1", "a2")
        story.lost("b1")
        assert adder(story).lac == -1 and "give_up" in story.timers
        story.fires("give_up")
        answers = [e.result for e in story.effects if isinstance(e, Answer)]
        assert "start bookies with another --region" in answers[0].message

    def test_a_replacement_of_the_other_region_confirms(self) -> None:
        story = self.writing("a3", "b2")
        story.stored(0, "a1", "a2")
        assert only(story.lost("b1"), "write") == ["write v1 open: 0 a1 a2 b2"]
        story.written(2)
        assert story.stored(0, "b2") == ["answer 1 0"]

    def test_regions_that_are_not_known_count_for_nothing_and_the_writer_ends(self) -> None:
        placement = SpreadPlacement(self.POLICY, lambda _: [], lambda _: None, Random(1))
        story = writer(ledger("0 a1 a2 b1"), placement)
        story.add()
        assert story.stored(0, "a1", "a2", "b1") == []
        assert story.fires("give_up")[0].startswith("answer 1")


class TestExplicitLac:
    """What bookies are told if no entry carries the LAC."""

    def story(self) -> Story:
        return writer(options=AddingOptions(explicit_lac_s=2.0))

    def test_it_is_told_after_the_interval(self) -> None:
        story = self.story()
        story.add()
        assert "lac" not in story.timers, "nothing is confirmed"
        story.stored(0, "a", "b")
        assert "lac" in story.timers
        assert story.fires("lac") == ["tell a lac=0", "tell b lac=0", "tell c lac=0"]
        assert "lac" not in story.timers, "it is told once"

    def test_it_is_not_told_if_an_entry_carried_it(self) -> None:
        story = self.story()
        story.add()
        story.stored(0, "a", "b")
        story.add()
        assert story.fires("lac") == []
        story.stored(1, "b", "c")
        assert story.fires("lac") == ["tell a lac=1", "tell b lac=1", "tell c lac=1"]

    def test_answers_to_it_say_nothing_of_entries(self) -> None:
        story = self.story()
        story.add()
        story.stored(0, "a", "b")
        story.fires("lac")
        for code in (Code.OK, Code.READ_ONLY, Code.UNAUTHORIZED):
            assert story.hear(Received(BookieId("a"), LacWritten(LEDGER, code))) == []
        assert not adder(story).is_dead

    def test_it_is_never_told_by_default(self) -> None:
        story = writer()
        story.add()
        story.stored(0, "a", "b", "c")
        assert "lac" not in story.timers
