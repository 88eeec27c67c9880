"""Scenarios of a repair."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from dlog.errors import DLogError
from dlog.ledger.placement import Placement
from dlog.ledger.placement_policy import RACK, RANDOM, PlacementPolicy, PolicyKind, policy_metadata
from dlog.ledger.repair import OPEN_LEDGER, LedgerRepairer, Repair, Repaired, RepairOptions
from dlog.ledger.repair_copying import PACE, STEP, STEP_ENTRIES, BytePacer, EntryRanges
from dlog.machine import Answer, CompareAndSet, Effect, MetadataSeen, Missing, Send, SetTimer
from dlog.model.ids import BookieId, EntryId
from dlog.model.ledger import LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
from dlog.model.verification import BadRange
from dlog.wire.bookie import Code, ReadEntry
from tests.unit.ledger.story import LEDGER, Story, ledger, only, packet, racked, spare

E322 = Quorum(ensemble=3, write=2, ack=2)


def gone(*bookies: str) -> Repair:
    return Repair(frozenset(BookieId(b) for b in bookies))


def closed(*fragments: str, last: int, quorum: Quorum = E322) -> LedgerMetadata:
    return ledger(*fragments, quorum=quorum, state=LedgerState.CLOSED, last=last, length=100)


def repair(
    value: LedgerMetadata, request: Repair, placement: Placement | None = None, **options: Any
) -> tuple[Story, list[str]]:
    """A repair that has read metadata, and what it did then."""
    story = Story(LedgerRepairer(LEDGER, placement or spare("d"), RepairOptions(**options)))
    assert story.ask(request) == ["read metadata"]
    return story, story.reads(value, 1)


def has(story: Story, bookie: str, entry: int, payload: bytes = b"x") -> list[str]:
    return story.has(bookie, entry, packet(entry, payload, length=entry + 1), fence=False)


def reply(story: Story) -> Repaired:
    (result,) = [effect.result for effect in story.effects if isinstance(effect, Answer)]
    assert isinstance(result, Repaired)
    return result


def test_the_entries_that_a_bookie_should_hold_are_copied_and_then_metadata_names_another() -> None:
    story, lines = repair(closed("0 a b c", last=3), gone("b"))
    assert lines == ["read 0 of a", "read 1 of c", "read 3 of a"]
    assert has(story, "a", 0) == ["store 0 on d lac=3 length=1 recovery"]
    assert has(story, "c", 1) == ["store 1 on d lac=3 length=2 recovery"]
    assert story.stored(0, "d") == story.stored(1, "d") == []
    assert has(story, "a", 3) == ["store 3 on d lac=3 length=4 recovery"]
    assert story.stored(3, "d") == ["write v1 closed at 3 length=100: 0 a d c"]
    lines = story.written(2)
    assert only(lines, "tell") == ["tell ensemble.changed", "tell ledger.repaired"]
    result = reply(story)
    assert (result.copied_entries, result.copied_bytes, result.replaced) == (3, 3, ((0, "b", "d"),))
    assert (result.unreadable, result.waits) == ((), "")


def test_every_ensemble_is_repaired_one_after_the_other() -> None:
    story, lines = repair(closed("0 a b c", "1 b c a", last=1), gone("b"), spare("d"))
    assert lines == ["read 0 of a"]
    has(story, "a", 0)
    assert story.stored(0, "d") == ["write v1 closed at 1 length=100: 0 a d c, 1 b c a"]
    assert only(story.written(2), "read") == [], "b has no entry of the second ensemble"
    assert story.written(3) and reply(story).replaced == ((0, "b", "d"), (1, "b", "d"))


def test_a_copy_that_does_not_verify_is_read_from_another_bookie() -> None:
    story, lines = repair(closed("0 a b c", last=0, quorum=Quorum(ensemble=3, write=3, ack=2)), gone("b"))
    assert lines == ["read 0 of a"]
    assert story.has("a", 0, packet(0, b"x")[:-1] + b"?", fence=False) == ["read 0 of c"]
    assert has(story, "c", 0) == ["store 0 on d lac=0 length=1 recovery"]


def failure(story: Story) -> str:
    (result,) = [effect.result for effect in story.effects if isinstance(effect, Answer)]
    assert isinstance(result, DLogError)
    return result.message


def test_a_bookie_that_is_gone_and_answers_is_read_from_if_no_other_can_serve_an_entry() -> None:
    story, lines = repair(closed("0 a b c", last=0), gone("b"))
    assert lines == ["read 0 of a"]
    assert story.has_not(0, "a", fence=False) == ["read 0 of b"]
    assert has(story, "b", 0) == ["store 0 on d lac=0 length=1 recovery"]


def test_metadata_keeps_the_old_bookie_for_entries_that_no_bookie_can_serve() -> None:
    story, _ = repair(closed("0 a b c", last=6), gone("b"), attempts_max=1)
    for entry, bookie in ((0, "a"), (1, "c"), (6, "a")):
        has(story, bookie, entry)
        story.stored(entry, "d")
    story.has_not(3, "a", fence=False)
    story.has_not(4, "c", fence=False)
    story.has_not(3, "b", fence=False)
    assert story.has_not(4, "b", fence=False) == ["write v1 closed at 6 length=100: 0 a d c, 3 a b c, 5 a d c"]
    story.written(2)
    (unreadable,) = reply(story).unreadable
    assert unreadable[:3] == (3, 4, "b") and "a: does not hold it" in unreadable.reason
    assert reply(story).replaced == ((0, "b", "d"),)


def test_metadata_is_not_changed_where_nothing_can_be_copied() -> None:
    story, _ = repair(closed("0 a b c", last=0), gone("b"))
    story.has_not(0, "a", fence=False)
    assert only(story.has_not(0, "b", fence=False), "write") == []
    assert reply(story).replaced == () and [u[:3] for u in reply(story).unreadable] == [(0, 0, "b")]


def test_bookies_out_of_reach_are_asked_again_before_an_entry_counts_as_unreadable() -> None:
    story, _ = repair(closed("0 a b c", last=0), gone("b"), attempts_max=2)
    assert story.lost("a") == ["read 0 of b"]
    assert story.lost("b") == []
    assert story.fires("retry") == ["read 0 of a"]
    assert has(story, "a", 0) == ["store 0 on d lac=0 length=1 recovery"]


def test_if_no_other_bookie_can_be_reached_the_rest_is_not_asked_for() -> None:
    story, lines = repair(closed("0 a b c", last=10**12), gone("a", "b", "c"), attempts_max=1, entries_max=2)
    assert lines == ["read 0 of a", "read 2 of c"]
    assert only(story.lost("a", "b", "c"), "write") == []
    assert [u[:3] for u in reply(story).unreadable] == [(0, 10**12, "a"), (0, 10**12, "b"), (1, 10**12, "c")]


def test_entries_that_only_bookies_out_of_reach_may_have_are_not_unreadable() -> None:
    story, lines = repair(closed("0 a b c", last=10**12), gone("b"), attempts_max=1, entries_max=2)
    assert lines == ["read 0 of a", "read 1 of c"]
    story.lost("a", "c")
    assert story.lost("b") == ["answer 1 UnavailableError"]
    assert "bookies=a (gone)" in failure(story)
    assert story.ask(gone("b")) == ["read metadata"], "it can be asked again"


def test_a_bookie_out_of_reach_does_not_stop_the_repair_of_other_ensembles() -> None:
    value = closed("0 a b c", "3 d b e", last=3)
    story, lines = repair(value, gone("b"), spare("f"), attempts_max=1)
    assert lines == ["read 0 of a", "read 1 of c"]
    story.has_not(0, "a", "b", fence=False)
    story.has_not(1, "c", code=Code.TOO_MANY_REQUESTS, fence=False)
    assert story.has_not(1, "b", fence=False) == []
    assert story.fires("retry") == ["read 3 of d"], "nor is the first one split around entry 0"
    assert has(story, "d", 3) == ["store 3 on f lac=3 length=4 recovery"]
    assert story.stored(3, "f") == ["write v1 closed at 3 length=100: 0 a b c, 3 d f e"]
    assert story.written(2) == ["tell ensemble.changed", "answer 1 UnavailableError"]
    assert "bookies=c (too_many_requests)" in failure(story)


def test_what_a_bookie_said_in_an_earlier_round_does_not_count_once_it_is_out_of_reach() -> None:
    story, _ = repair(closed("0 a b c", last=0), gone("b"), attempts_max=2)
    assert story.has_not(0, "a", code=Code.IO_ERROR, fence=False) == ["read 0 of b"]
    assert story.has_not(0, "b", fence=False) == []
    assert story.fires("retry") == ["read 0 of a"]
    story.lost("a")
    assert story.fires("retry") == ["answer 1 UnavailableError"]


def test_an_entry_is_unreadable_once_every_bookie_that_is_not_gone_said_that_its_copy_is_damaged() -> None:
    value = closed("0 a b c d", last=0, quorum=Quorum(ensemble=4, write=4, ack=2))
    story, _ = repair(value, gone("b"), spare("e"), attempts_max=1)
    assert story.has_not(0, "a", code=Code.IO_ERROR, fence=False) == ["read 0 of c"]
    assert story.has("c", 0, packet(0, b"x")[:-1] + b"?", fence=False) == ["read 0 of d"]
    assert story.has_not(0, "d", fence=False) == ["read 0 of b"]
    story.lost("b")
    story.fires("retry")
    assert [u[:3] for u in reply(story).unreadable] == [(0, 0, "b")]


E222 = Quorum(ensemble=2, write=2, ack=2)


def scattered(story: Story, lines: list[str], value: LedgerMetadata, unreadable: Collection[int]) -> LedgerMetadata:
    """Metadata after a repair in which no bookie holds the entries `unreadable`, and each holds all others."""
    version = 1
    while not only(lines, "answer"):
        writes = isinstance(story.effects[-1], CompareAndSet)
        if writes:
            assert isinstance(story.question, CompareAndSet)
            value, version = story.question.value, version + 1
            lines = story.written(version)
            continue
        upcoming: list[str] = []
        for line in lines:
            match line.split():
                case ["read", entry, "of", bookie] if int(entry) in unreadable:
                    upcoming += story.has_not(int(entry), bookie, fence=False)
                case ["read", entry, "of", bookie]:
                    upcoming += has(story, bookie, int(entry))
                case ["store", entry, "on", bookie, *_]:
                    upcoming += story.stored(int(entry), bookie)
        lines = upcoming
    return value


def test_entries_that_nobody_can_serve_are_passed_over_at_once() -> None:
    value = closed("0 a b c d", last=2**63 - 1, quorum=Quorum(ensemble=4, write=2, ack=2))
    bad = BadRange(EntryId(0), value.last_entry, BookieId("b"), "thin", "no_entry")
    story, lines = repair(value, Repair(frozenset(), (bad,)), attempts_max=1, entries_max=2)
    assert lines == ["read 0 of a", "read 1 of c"], "d is in reach, and holds nothing that b should hold"
    assert only(story.lost("a", "c"), "answer")
    assert "bookies=a (gone), c (gone)" in failure(story)


def test_one_step_begins_a_bounded_number_of_entries() -> None:
    pacer, out = BytePacer(0), list[Effect]()
    for _ in range(STEP_ENTRIES):
        assert pacer.is_open
        pacer.note_begun()
    assert not pacer.is_open
    pacer.wait(out)
    assert [effect.key for effect in out if isinstance(effect, SetTimer)] == [STEP]
    pacer.begin_step()
    assert pacer.is_open


def serve(
    story: Story,
    lines: list[str],
    held: dict[str, set[int]],
    unreadable: Collection[str] = (),
    endless: Collection[str] = (),
) -> list[str]:
    """Have the bookies answer until the repair ends, those not in `held` by a lost connection; returns all lines.
    unreadable: bookies that answer with an I/O error in place of NO_ENTRY. endless: those that cannot read the last
    entry that they hold."""
    seen, version = list(lines), 1
    while not only(seen, "answer"):
        assert len(seen) < 2000, "it goes on for ever"
        upcoming = []
        for words in map(str.split, lines):
            match words:
                case ["read", number, "of", bookie] if bookie not in held:
                    upcoming += story.lost(bookie)
                case ["read", number, "of", bookie]:
                    entry = max(held[bookie], default=-1) if number == "-1" else int(number)
                    if bookie in endless and entry == max(held[bookie]):
                        upcoming += story.has_not(int(number), bookie, code=Code.IO_ERROR, fence=False)
                    elif entry in held[bookie]:
                        upcoming += story.has(bookie, int(number), packet(entry, b"x", length=entry + 1), fence=False)
                    else:
                        code = Code.IO_ERROR if bookie in unreadable else Code.NO_ENTRY
                        upcoming += story.has_not(int(number), bookie, code=code, fence=False)
                case ["store", number, "on", bookie, *_]:
                    upcoming += story.stored(int(number), bookie)
                case ["write", *_]:
                    version += 1
                    upcoming += story.written(version)
        if not upcoming and "retry" in story.timers:
            upcoming = story.fires("retry")
        lines = upcoming
        seen += lines
    return seen


class TestMetadataThatNamesALastEntryFarAboveWhatBookiesHold:
    """The work is bounded by what bookies hold; the rest is reported as one range."""

    LAST = 2**63 - 1

    @pytest.mark.parametrize("lost", [True, False])
    def test_a_bookie_that_is_gone(self, lost: bool) -> None:
        """Entries that a bookie holds are copied, and metadata names the new bookie for these."""
        held = {"a": {0, 2, 3, 5, 6}, "c": {1, 2, 4, 5, 7}, "d": set[int]()} | ({} if lost else {"b": {0, 1, 3}})
        story, lines = repair(closed("0 a b c", last=self.LAST), gone("b"), entries_max=4, attempts_max=2)
        lines = serve(story, lines, held)
        assert only(lines, "write") == [f"write v1 closed at {self.LAST} length=100: 0 a d c, 9 a b c"]
        result = reply(story)
        assert (result.copied_entries, result.replaced) == (6, ((0, "b", "d"),))
        (rest,) = result.unreadable
        assert rest[:3] == (9, self.LAST, "b") and "a: does not hold it" in rest.reason
        assert len(only(lines, "read")) < 60

    @pytest.mark.parametrize("held", [{"a": set(), "b": set(), "c": set()}, {"a": set(), "c": set()}, {}])
    def test_one_of_which_nothing_is_left(self, held: dict[str, set[int]]) -> None:
        story, lines = repair(closed("0 a b c", last=self.LAST), gone("a", "b", "c"), entries_max=4, attempts_max=2)
        lines = serve(story, lines, held)
        assert [u[:3] for u in reply(story).unreadable] == [
            (0, self.LAST, "a"),
            (0, self.LAST, "b"),
            (1, self.LAST, "c"),
        ]
        assert only(lines, "write") == [] and len(only(lines, "read")) < 60

    def test_a_bookie_that_is_back(self) -> None:
        """Its missing copies are written again; metadata stays."""
        value = closed("0 a b c", last=self.LAST, quorum=Quorum(ensemble=3, write=3, ack=2))
        bad = BadRange(EntryId(0), value.last_entry, BookieId("b"), "thin", "no_entry")
        story, lines = repair(value, Repair(frozenset(), (bad,)), entries_max=4)
        lines = serve(story, lines, {"a": set(range(3)), "c": set(range(7))})
        assert [text.split()[1] for text in only(lines, "store")] == [str(entry) for entry in range(7)]
        assert [u[:3] for u in reply(story).unreadable] == [(7, self.LAST, "b")]
        assert only(lines, "write") == [] and len(only(lines, "read")) < 60

    def test_a_bookie_out_of_reach_may_have_the_rest(self) -> None:
        value = closed("0 a b c", last=self.LAST, quorum=Quorum(ensemble=3, write=3, ack=2))
        story, lines = repair(value, gone("b"), entries_max=4, attempts_max=2)
        lines = serve(story, lines, {"a": {0, 1}, "d": set()})
        assert "bookies=c" in failure(story) and only(lines, "write") == [] and len(only(lines, "read")) < 60

    def test_a_bookie_out_of_reach_may_have_what_one_that_is_back_lacks(self) -> None:
        value = closed("0 a b c", last=self.LAST, quorum=Quorum(ensemble=3, write=3, ack=2))
        bad = BadRange(EntryId(0), value.last_entry, BookieId("b"), "thin", "no_entry")
        story, lines = repair(value, Repair(frozenset(), (bad,)), entries_max=4, attempts_max=2)
        lines = serve(story, lines, {"a": set(range(20))})
        assert {int(text.split()[1]) for text in only(lines, "store")} == set(range(20))
        assert "bookies=c" in failure(story) and len(only(lines, "read")) < 60

    def test_a_bookie_that_may_have_lost_entries(self) -> None:
        """It denies nothing, but can serve none above the last that it holds."""
        story, lines = repair(closed("0 a b", last=self.LAST, quorum=E222), gone("b"), entries_max=4, attempts_max=2)
        lines = serve(story, lines, {"a": {0, 1}, "d": set()}, unreadable="a")
        assert [u[:3] for u in reply(story).unreadable] == [(2, self.LAST, "b")]
        assert only(lines, "write") == [f"write v1 closed at {self.LAST} length=100: 0 a d, 2 a b"]

    def test_a_bookie_that_cannot_read_its_last_entry_may_have_the_rest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is asked no more after many entries; metadata stays, as of a bookie that is out of reach."""
        monkeypatch.setattr("dlog.ledger.held_entries.UNSERVED_MAX", 20)
        story, lines = repair(closed("0 a b", last=self.LAST, quorum=E222), gone("b"), entries_max=4, attempts_max=2)
        lines = serve(story, lines, {"a": {0, 1, 2}, "d": set()}, endless="a")
        assert "bookies=a (does not say which entry is its last one)" in failure(story)
        assert only(lines, "write") == [] and len(only(lines, "read")) < 100

    def test_one_that_is_back_gets_what_a_bookie_has_that_cannot_read_its_last_entry(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dlog.ledger.held_entries.UNSERVED_MAX", 20)
        value = closed("0 a b c", last=self.LAST, quorum=Quorum(ensemble=3, write=3, ack=2))
        bad = BadRange(EntryId(0), value.last_entry, BookieId("b"), "thin", "no_entry")
        story, lines = repair(value, Repair(frozenset(), (bad,)), entries_max=4, attempts_max=2)
        lines = serve(story, lines, {"a": {0, 1, *range(12, 40)}, "c": set(range(3))}, endless="a")
        stored = {int(text.split()[1]) for text in only(lines, "store")}
        assert stored == {*range(3), *range(12, 39)} and len(only(lines, "read")) < 200
        assert "bookies=a (does not say which entry is its last one)" in failure(story)

    def test_entries_behind_a_hole_are_copied(self) -> None:
        story, lines = repair(closed("0 a b", last=self.LAST, quorum=E222), gone("b"), entries_max=4, attempts_max=2)
        lines = serve(story, lines, {"a": {0, 1, 20}, "d": set()})
        assert [u[:3] for u in reply(story).unreadable] == [(2, 19, "b"), (21, self.LAST, "b")]
        assert len([text for text in lines if text == "read -1 of a"]) == 1


def test_a_ledger_is_not_split_into_more_fragments_than_the_bound() -> None:
    value = closed("0 a b", last=399, quorum=E222)
    story, lines = repair(value, gone("b"), entries_max=1, fragments_max=20)
    value = scattered(story, lines, value, range(0, 400, 2))
    assert len(value.fragments) == 18, "0 is unreadable, so that no fragment lies before the first range"
    ranges = reply(story).unreadable
    assert len(ranges) == 9 and ranges[0].first == 0 and ranges[-1].last == 398
    story, lines = repair(value, gone("b"), entries_max=1, fragments_max=20)
    assert scattered(story, lines, value, range(0, 400, 2)) == value, "another repair splits nothing"
    assert reply(story).copied_entries == 0, "and copies nothing that it could not name"
    assert sum(u.last - u.first + 1 for u in reply(story).unreadable) == sum(u.last - u.first + 1 for u in ranges)


def test_beyond_the_bound_of_fragments_what_needs_no_split_is_repaired() -> None:
    value = closed("0 a b", "10 a c", "20 b a", last=29, quorum=E222)
    story, lines = repair(value, gone("b"), fragments_max=3)
    value = scattered(story, lines, value, {5})
    assert [f.ensemble for f in value.fragments] == [("a", "b"), ("a", "c"), ("d", "a")]
    (unreadable,) = reply(story).unreadable
    assert unreadable[:3] == (0, 9, "b") and "too many fragments" in unreadable.reason


def test_ranges_with_few_readable_entries_between_them_are_merged_first() -> None:
    value = closed("0 a b", last=99, quorum=E222)
    story, lines = repair(value, gone("b"), fragments_max=5)
    value = scattered(story, lines, value, {10, 12, 60})
    assert [f.first_entry for f in value.fragments] == [0, 10, 13, 60, 61]


def test_a_split_that_another_change_left_no_room_for_is_not_made() -> None:
    story, lines = repair(closed("0 a b", "10 a c", last=19, quorum=E222), gone("b"), fragments_max=6)
    for line in lines:
        entry = int(line.split()[1])
        if entry == 5:
            lines = story.has_not(5, "a", "b", fence=False)
        else:
            has(story, "a", entry)
            lines = story.stored(entry, "d")
    assert only(lines, "write") == ["write v1 closed at 19 length=100: 0 a d, 5 a b, 6 a d, 10 a c"]
    story.conflict()
    changed = closed("0 a b", "10 a c", "13 c a", "16 a c", "18 c a", last=19, quorum=E222)
    assert only(story.reads(changed, 5), "write") == []


def test_what_metadata_keeps_is_not_tried_again_where_another_bookie_splits_the_ensemble() -> None:
    value = closed("0 a b c d", last=11, quorum=Quorum(ensemble=4, write=2, ack=2))
    story, lines = repair(value, gone("b", "d"), spare("e"))
    value = scattered(story, lines, value, {0, 1, 4, 5, 8, 9, 7})
    named = ["".join(f.ensemble) for f in value.fragments]
    assert named == ["abce", "aecd", "abce"], "b should hold nothing of the second one"
    asked = [e.message.entry for e in story.effects if isinstance(e, Send) and isinstance(e.message, ReadEntry)]
    assert asked.count(EntryId(8)) == 2, "of a and of b, once"


def test_entry_ranges_join_and_know_where_they_end() -> None:
    ranges = EntryRanges()
    for first, last in ((5, 6), (10, 12), (1, 2), (7, 8)):
        ranges.add(EntryId(first), EntryId(last))
    assert [ranges.last_from(EntryId(e)) for e in (0, 1, 3, 5, 8, 9, 12, 13)] == [None, 2, None, 8, 8, None, 12, None]
    ranges.add(EntryId(2), EntryId(10))
    assert ranges.last_from(EntryId(1)) == 12


def test_the_last_ensemble_of_an_open_ledger_waits_for_its_recovery() -> None:
    story, lines = repair(ledger("0 a b c", "2 a b d", quorum=E322), gone("b"), spare("e"))
    assert lines == ["read 0 of a", "read 1 of c"]
    assert has(story, "a", 0) == ["store 0 on e lac=1 length=1 recovery"]
    has(story, "c", 1)
    story.stored(0, "e")
    assert story.stored(1, "e") == ["write v1 open: 0 a e c, 2 a b d"]
    story.written(2)
    assert reply(story).waits == OPEN_LEDGER
    assert reply(story).replaced == ((0, "b", "e"),)


def test_a_bookie_that_holds_another_ledger_under_the_id_is_not_used() -> None:
    story, _ = repair(closed("0 a b c", last=1), gone("b"), spare("d", "e"))
    line = only(has(story, "a", 0), "store")[0]
    first = line.split()[3]
    (second,) = {"d", "e"} - {first}
    assert story.refused(0, first, Code.UNAUTHORIZED) == ["read 0 of a", "read 1 of c"]
    assert only(has(story, "a", 0), "store") == [f"store 0 on {second} lac=1 length=1 recovery"]


def test_without_a_replacement_the_repair_tries_again_and_then_says_so() -> None:
    story, lines = repair(closed("0 a b c", last=1), gone("b"), spare(), attempts_max=2)
    assert lines == []
    assert story.fires("retry") == ["read metadata"]
    assert story.reads(closed("0 a b c", last=1), 1) == ["answer 1 NotEnoughBookiesError"]
    assert story.ask(gone("b")) == ["read metadata"], "it can be asked again"


@pytest.mark.parametrize("member", ["c", "e"], ids=["nothing but the version", "another member"])
def test_after_a_change_meanwhile_it_is_copied_again(member: str) -> None:
    story, _ = repair(closed("0 a b c", last=0), gone("b"))
    has(story, "a", 0)
    story.stored(0, "d")
    assert story.conflict() == ["read metadata"]
    assert story.reads(closed(f"0 a b {member}", last=0), 5) == ["read 0 of a"], "d may have freed it since"
    has(story, "a", 0)
    assert story.stored(0, "d") == [f"write v5 closed at 0 length=100: 0 a d {member}"]


def test_a_write_that_was_lost_is_made_again_without_copying() -> None:
    story, _ = repair(closed("0 a b c", last=0), gone("b"))
    has(story, "a", 0)
    story.stored(0, "d")
    assert story.conflict() == ["read metadata"]
    assert story.reads(closed("0 a b c", last=0), 1) == ["write v1 closed at 0 length=100: 0 a d c"]


def test_a_replacement_that_became_a_member_meanwhile_is_not_named_twice() -> None:
    story, _ = repair(closed("0 a b c", last=0), gone("b"), spare("d", "e"))
    new = only(has(story, "a", 0), "store")[0].split()[3]
    story.stored(0, new)
    story.conflict()
    assert story.reads(closed(f"0 a b {new}", last=0), 5) == ["read 0 of a"]


def test_what_another_repair_has_done_is_not_done_again() -> None:
    story, _ = repair(closed("0 a b c", last=0), gone("b"))
    has(story, "a", 0)
    story.stored(0, "d")
    story.conflict()
    story.reads(closed("0 a e c", last=0), 5)
    assert reply(story).replaced == () and reply(story).unreadable == ()


def test_a_lost_reply_is_resolved_by_reading() -> None:
    story, _ = repair(closed("0 a b c", last=0), gone("b"))
    has(story, "a", 0)
    story.stored(0, "d")
    assert story.unknown() == ["read metadata"]
    story.reads(closed("0 a d c", last=0), 2)
    assert reply(story).replaced == ((0, "b", "d"),)


def test_a_deleted_ledger_is_not_found() -> None:
    story, _ = repair(closed("0 a b c", last=0), gone("b"))
    has(story, "a", 0)
    story.stored(0, "d")
    assert story.hear(MetadataSeen(story.question.token, Missing())) == ["answer 1 LedgerNotFoundError"]


def test_entries_in_flight_are_bounded() -> None:
    story, lines = repair(closed("0 a b c", last=30), gone("b"), entries_max=2)
    assert lines == ["read 0 of a", "read 1 of c"]
    assert only(has(story, "a", 0), "read") == [], "it is in flight until it is stored"
    assert story.stored(0, "d") == ["read 3 of a"]


def test_bytes_in_flight_are_bounded() -> None:
    story, lines = repair(closed("0 a b c", last=30), gone("b"), bytes_max=160)
    assert len(lines) == 16, "an entry is expected to have a sixteenth"
    has(story, "a", 0, b"x" * 100)
    assert story.stored(0, "d") == [], "as large as that may be the other 15 that are being read"


def test_the_rate_is_kept() -> None:
    story, lines = repair(closed("0 a b c", last=30), gone("b"), entries_max=1, rate_bytes_per_s=1000)
    assert lines == ["read 0 of a"]
    has(story, "a", 0, b"x" * 250)
    assert story.stored(0, "d") == [] and PACE in story.timers
    assert story.fires(PACE) == [], "100 bytes each tenth of a second"
    assert story.fires(PACE) == ["read 1 of c"]


def test_missing_copies_of_a_bookie_that_stays_are_written_to_it_again() -> None:
    bad = BadRange(EntryId(1), EntryId(4), BookieId("b"), "thin", "no_entry")
    story, lines = repair(closed("0 a b c", "4 b c a", last=9), Repair(frozenset(), (bad,)))
    assert lines == ["read 1 of c", "read 3 of a"]
    assert has(story, "c", 1) == ["store 1 on b lac=9 length=2 recovery"]
    assert story.refused(1, "b", Code.UNAUTHORIZED) == []
    has(story, "a", 3)
    assert only(story.stored(3, "b"), "answer") != [], "b has no entry 4 in the second ensemble"
    result = reply(story)
    assert (result.copied_entries, result.replaced) == (1, ())
    assert [u[:3] for u in result.unreadable] == [(1, 1, "b")]


def test_missing_copies_are_written_again_but_those_that_only_a_bookie_out_of_reach_has() -> None:
    bad = BadRange(EntryId(1), EntryId(4), BookieId("b"), "thin", "no_entry")
    story, lines = repair(closed("0 a b c", last=9), Repair(frozenset(), (bad,)), attempts_max=1)
    assert lines == ["read 1 of c", "read 3 of a", "read 4 of c"]
    assert story.lost("c") == []
    assert has(story, "a", 3) == ["store 3 on b lac=9 length=4 recovery"]
    assert story.stored(3, "b") == ["answer 1 UnavailableError"]
    assert "bookies=c (gone)" in failure(story)


def test_if_every_bookie_that_may_have_missing_copies_is_out_of_reach_the_rest_is_not_asked_for() -> None:
    bad = BadRange(EntryId(0), EntryId(10**12), BookieId("b"), "thin", "no_entry")
    story, lines = repair(closed("0 a b c", last=10**12), Repair(frozenset(), (bad,)), attempts_max=1, entries_max=2)
    assert lines == ["read 0 of a", "read 1 of c"]
    assert story.lost("a") == ["read 4 of c"]
    assert story.lost("c") == ["answer 1 UnavailableError"]
    assert "bookies=a (gone), c (gone)" in failure(story)


def test_a_bookie_that_stays_and_does_not_take_its_missing_copies_is_out_of_reach() -> None:
    bad = BadRange(EntryId(1), EntryId(1), BookieId("b"), "thin", "no_entry")
    story, _ = repair(closed("0 a b c", last=9), Repair(frozenset(), (bad,)), attempts_max=1)
    has(story, "c", 1)
    assert story.lost("b") == ["answer 1 UnavailableError"]
    assert "bookies=b (gone)" in failure(story)


# ---- placement ------------------------------------------------------------------------------------------------------


def in_racks(*fragments: str, last: int, policy: PlacementPolicy) -> LedgerMetadata:
    return replace(closed(*fragments, last=last), custom=policy_metadata(policy))


def test_a_replacement_keeps_the_policy_that_the_ledgers_metadata_names() -> None:
    strict = PlacementPolicy(PolicyKind.RACK, strict=True)
    value = in_racks("0 a1 b1 c1", last=0, policy=strict)
    story, lines = repair(value, gone("b1"), racked(RANDOM, "a2", "b2", "c2"))
    assert lines == ["read 0 of a1"]
    assert only(has(story, "a1", 0), "store") == ["store 0 on b2 lac=0 length=1 recovery"]
    assert story.stored(0, "b2") == ["write v1 closed at 0 length=100: 0 a1 b2 c1"]
    assert only(story.written(2), "tell") == ["tell ensemble.changed", "tell ledger.repaired"]


def test_an_ensemble_that_does_not_keep_the_policy_is_told_before_it_is_written() -> None:
    value = in_racks("0 a1 b1 c1", last=0, policy=RACK)
    story, _ = repair(value, gone("b1"), racked(RANDOM, "a2"))
    has(story, "a1", 0)
    told, written = story.stored(0, "a2")
    assert (told, written) == ("tell placement.not_kept", "write v1 closed at 0 length=100: 0 a1 a2 c1")


def test_a_strict_policy_that_no_bookie_keeps_is_refused_and_the_ledger_stays_as_it_is() -> None:
    strict = PlacementPolicy(PolicyKind.RACK, strict=True)
    value = in_racks("0 a1 b1 c1", last=0, policy=strict)
    story, lines = repair(value, gone("b1"), racked(RANDOM, "a2"), attempts_max=1)
    assert lines == ["answer 1 NotEnoughBookiesError"]
    assert "placement policy" in str(next(effect.result for effect in story.effects if isinstance(effect, Answer)))


def test_a_replacement_that_a_change_meanwhile_forbids_is_not_named() -> None:
    strict = PlacementPolicy(PolicyKind.RACK, strict=True)
    story, _ = repair(in_racks("0 a1 b1 c1", last=0, policy=strict), gone("b1"), racked(RANDOM, "d1", "e1"))
    (target,) = [line.split()[3] for line in only(has(story, "a1", 0), "store")]
    story.stored(0, target)
    story.conflict()
    rack = target[0]
    lines = story.reads(in_racks(f"0 {rack}2 b1 c1", last=0, policy=strict), 5)
    assert lines == [f"read 0 of {rack}2"], "it copies to another one"
    (other,) = {"d1", "e1"} - {target}
    assert only(has(story, f"{rack}2", 0), "store") == [f"store 0 on {other} lac=0 length=1 recovery"]


# ---- a target in trouble --------------------------------------------------------------------------------------------


def test_what_the_target_did_not_confirm_is_sent_to_it_again_after_a_pause() -> None:
    story, _ = repair(closed("0 a b c", last=3), gone("b"), spare("d", "e"))
    target = only(has(story, "a", 0), "store")[0].split()[3]
    has(story, "c", 1)
    has(story, "a", 3)
    story.stored(0, target)
    assert story.refused(1, target, Code.TOO_MANY_REQUESTS) == [] and story.lost(target) == []
    assert story.fires("retry") == ["read 1 of c", "read 3 of a"], "not entry 0"
    assert has(story, "c", 1) == [f"store 1 on {target} lac=3 length=2 recovery"]
    has(story, "a", 3)
    story.stored(1, target)
    assert story.stored(3, target) == [f"write v1 closed at 3 length=100: 0 a {target} c"]


def test_a_target_that_confirms_nothing_in_several_attempts_is_replaced() -> None:
    story, _ = repair(closed("0 a b c", last=0), gone("b"), spare("d", "e"), attempts_max=2)
    target = only(has(story, "a", 0), "store")[0].split()[3]
    assert story.lost(target) == []
    assert story.fires("retry") == ["read 0 of a"]
    assert only(has(story, "a", 0), "store")[0].split()[3] == target
    assert story.lost(target) == ["read 0 of a"]
    assert only(has(story, "a", 0), "store")[0].split()[3] != target
