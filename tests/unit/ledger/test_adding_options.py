"""What a ledger's writer may be asked for: delayed ensemble changes, an ack-quorum timeout, entry ids of its caller."""

from __future__ import annotations

from dlog.ledger.adding import Add, AddingOptions, Close
from dlog.machine import Answer, Asked
from dlog.model.ids import EntryId
from dlog.model.quorum import Quorum
from dlog.wire.bookie import Code
from tests.unit.ledger.story import Story, ledger, spare
from tests.unit.ledger.test_adding import adder, writer

# ---- delayed ensemble change -----------------------------------------------------------------------------------------

DELAYED = AddingOptions(delayed_change=True)


def test_a_delayed_change_waits_until_too_few_are_left_for_an_ack_quorum() -> None:
    story = writer(placement=spare("d", "e"), options=DELAYED)
    story.add()
    assert story.lost("c") == ["tell bookie.lost"]
    assert story.stored(0, "a", "b") == ["answer 1 0"]
    assert [text.split(" lac")[0] for text in story.add()] == ["store 1 on b", "store 1 on a"]
    (told, written) = story.lost("a")
    assert told == "tell bookie.lost" and written.startswith("write v1 open: 0 a b c, 1 ")
    assert len({"d", "e"}.intersection(written.split(", 1 ")[1].split())) == 1, "one more suffices, and is vetted first"


def test_a_member_that_was_left_in_place_is_tried_again() -> None:
    story = writer(placement=spare("c", "d"), options=DELAYED)
    story.add()
    story.lost("c")
    story.stored(0, "a")
    assert story.fires("replace") == ["store 0 on c lac=-1 length=1"]
    assert story.stored(0, "c") == ["answer 1 0"]
    assert adder(story).ensemble_changes == 0


def test_a_change_that_was_put_off_is_made_when_the_next_entry_needs_it() -> None:
    """The write set of entry 0 can do without the failed members, that of entry 1 cannot."""
    quorum = Quorum(ensemble=4, write=2, ack=1)
    story = writer(ledger("0 a b c d", quorum=quorum), spare("e", "f"), DELAYED)
    story.add()
    story.add()
    assert story.lost("b", "c") == ["tell bookie.lost", "tell bookie.lost"]
    lines = story.stored(0, "a")
    assert lines[0] == "answer 1 0" and lines[1].startswith("write v1 open: 0 a b c d, 1 a ")


def test_a_member_that_stays_lost_is_replaced_before_recovery_would_fence_the_ledger() -> None:
    story = writer(placement=spare("d"), options=DELAYED)
    story.add()
    story.lost("c")
    story.stored(0, "a", "b")
    assert story.fires("delay") == [] and story.fires("delay") == []
    assert story.fires("delay") == ["write v1 open: 0 a b c, 1 a b d"]
    story.written(2)
    assert not story.timers


def test_a_member_that_is_sent_to_in_vain_stays_lost_until_it_acknowledges() -> None:
    story = writer(placement=spare("c", "d"), options=DELAYED)
    for entry in range(3):
        story.add()
        story.stored(entry, "a", "b")
        story.lost("c")
        assert story.fires("replace") == [] and story.fires("delay") == []
    story.add()
    assert story.lost("c") == ["tell bookie.lost", "write v1 open: 0 a b c, 3 a b d"]


def test_a_member_that_acknowledges_again_was_not_lost_all_along() -> None:
    story = writer(placement=spare("c", "d"), options=DELAYED)
    story.add()
    story.lost("c")
    story.fires("delay")
    story.fires("replace")
    story.stored(0, "c")
    story.fires("delay")
    assert not story.timers
    story.add()
    story.lost("c")
    assert story.fires("delay") == [] and story.fires("delay") == []


def test_a_delayed_change_does_not_count_on_a_member_that_was_readmitted_and_is_silent() -> None:
    story = writer(placement=spare("c", "d"), options=DELAYED)
    story.add()
    story.lost("c")
    assert story.fires("replace") == ["store 0 on c lac=-1 length=1"]
    assert story.lost("a") == ["tell bookie.lost", "write v1 open: 0 d b c"]
    alive = writer(placement=spare("c", "d"), options=DELAYED)
    alive.add()
    alive.add()
    alive.lost("c")
    alive.fires("replace")
    alive.stored(1, "c")
    assert alive.lost("a") == ["tell bookie.lost"]


# ---- ack-quorum timeout ----------------------------------------------------------------------------------------------

TIMED = AddingOptions(ack_quorum_timeout_s=10.0)


def test_an_entry_that_no_ack_quorum_confirms_in_time_ends_the_handle() -> None:
    story = writer(options=TIMED)
    story.add()
    story.stored(0, "a")
    assert story.fires("quorum") == []
    assert story.fires("quorum") == ["answer 1 UnavailableError outcome unknown"]
    assert not story.timers and adder(story).is_dead


def test_replacing_bookies_does_not_stop_the_clock() -> None:
    story = writer(placement=spare("d", "e", "f"), options=TIMED)
    story.add()
    story.fires("quorum")
    story.lost("c")
    story.written(2)
    story.lost("b")
    story.written(3)
    assert story.fires("quorum")[0] == "answer 1 UnavailableError outcome unknown"


def test_an_entry_that_is_confirmed_starts_the_time_anew_and_an_idle_ledger_has_no_timer() -> None:
    story = writer(options=TIMED)
    story.add()
    story.fires("quorum")
    story.add()
    story.stored(0, "a", "b")
    assert story.fires("quorum") == [] and story.fires("quorum") == [], "entry 1 has waited half of the time"
    story.stored(1, "a", "b")
    story.fires("quorum")
    assert not story.timers
    story.add()
    assert story.timers == {"quorum"}
    story.stored(2, "a", "b", "c")
    story.ask(Close())
    assert story.written(2)[0] == "tell ledger.closed" and not story.timers


# ---- entry ids given by the caller -----------------------------------------------------------------------------------


def given(story: Story, entry: int) -> list[str]:
    return [text.split(" on ")[0] for text in story.ask(Add((b"%d" % entry,), EntryId(entry)))][::3]


def test_entries_with_given_ids_are_sent_in_order_and_wait_for_those_before() -> None:
    story = writer()
    assert given(story, 2) == [] and given(story, 1) == []
    assert given(story, 0) == ["store 0", "store 1", "store 2"]
    assert story.stored(2, "a", "b") == []
    story.stored(1, "a", "b")
    assert story.stored(0, "a", "b") == ["answer 3 0", "answer 2 1", "answer 1 2"]


def test_an_id_that_is_taken_is_refused_and_so_is_a_mix_of_both_ways() -> None:
    story = writer()
    given(story, 0)
    given(story, 2)
    assert given(story, 2) == ["answer 3 InvalidRequestError"]
    assert given(story, 0) == ["answer 4 InvalidRequestError"]
    assert story.add() == ["answer 5 InvalidRequestError"]
    plain = writer()
    plain.add()
    assert given(plain, 1) == ["answer 2 InvalidRequestError"]


def test_a_close_fails_entries_whose_forerunner_never_came_and_they_are_not_in_the_ledger() -> None:
    story = writer()
    given(story, 0)
    given(story, 5)
    assert story.ask(Close()) == ["answer 2 ClosedError"]
    assert story.stored(0, "a", "b") == ["answer 1 0", "write v1 closed at 0 length=1: 0 a b c"]


def test_what_waits_for_others_when_the_handle_dies_is_certainly_not_in_the_ledger() -> None:
    story = writer()
    given(story, 0)
    given(story, 5)
    assert story.refused(0, "a", Code.FENCED)[1:] == [
        "answer 1 LedgerFencedError outcome unknown",
        "answer 2 LedgerFencedError",
    ]


def test_an_entry_too_far_ahead_is_refused_with_the_missing_id_and_those_before_it_go_on() -> None:
    story = writer(options=AddingOptions(early_entries_max=4))
    assert given(story, 4) == ["answer 1 OverCapacityError"], "4 is five above what was sent"
    given(story, 0)
    given(story, 1)
    given(story, 3)
    given(story, 5)
    (refused,) = story.machine.handle(Asked(99, Add((b"x",), EntryId(6))))
    assert isinstance(refused, Answer) and "entry=6 missing=2" in refused.result.message
    assert given(story, 2) == ["store 2", "store 3"]
    assert given(story, 6) == [] and given(story, 7) == []
    assert given(story, 8) == ["answer 9 OverCapacityError"]


def test_an_invalid_first_id_does_not_decide_who_gives_the_ids() -> None:
    story = writer()
    assert given(story, -1) == ["answer 1 InvalidRequestError"]
    assert story.add() == [
        "store 0 on a lac=-1 length=1",
        "store 0 on b lac=-1 length=1",
        "store 0 on c lac=-1 length=1",
    ]
