"""J1-J4, J6, J7, J9, J10, J12-J15: each crash point, failing sync and write without space; planted defects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from dlog.errors import DLogError
from tests.crashpoints.history import Script
from tests.crashpoints.mutants import DATABASE_MUTANTS, MUTANTS, Mutant
from tests.crashpoints.stories import LOG_ROLLS, STORIES, Story
from tests.crashpoints.sweeps import SEEDS, audit, reached, sweep_power, sweep_room, sweep_second_life, sweep_syncs

MUST_REACH = {
    *("acknowledged", "fenced", "refused", "rolled_logs", "runs", "merged", "recycled", "dropped"),
    *("buried", "collected"),
}
each_story = pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)


@each_story
def test_every_crash_point_keeps_what_was_acknowledged(story: Story) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        counts += sweep_power(story, seed)
    assert counts["power cuts"] > 50 and counts["acknowledged"], "a sweep that reaches nothing proves nothing"
    print(story.name, dict(counts))


def test_the_stories_reach_what_could_hurt() -> None:
    counts: Counter[str] = Counter()
    for story in STORIES:
        counts += reached(story.live(0))
    assert {name for name, count in counts.items() if count} >= MUST_REACH, counts


@each_story
def test_a_crash_during_the_restart_after_a_crash(story: Story) -> None:
    for seed in range(SEEDS):
        assert sweep_second_life(story, seed)["power cuts in a second life"] > 20


@each_story
def test_a_failed_sync_is_the_last_thing_a_bookie_does(story: Story) -> None:
    for seed in range(SEEDS):
        assert sweep_syncs(story, seed)["failed syncs"] > 30


@pytest.mark.parametrize("story", [s for s in STORIES if not s.may_refuse], ids=lambda story: story.name)
def test_no_room_at_any_write_costs_nothing_that_was_acknowledged(story: Story) -> None:
    for seed in range(SEEDS):
        assert sweep_room(story, seed)["writes without room"] > 20


def _moving(script: Script) -> None:
    """Entries move to another log, among those of a deleted ledger."""
    station = script.station
    for step in range(2):
        script.add(300, step, script.rng.randbytes(200))
        script.add(200, step, script.rng.randbytes(3000))
        script.commit()
        station.checkpoint()
    script.bury(200)
    while station.compact_some(0.9, 300):
        script.add(301, len(script.history.sent), b"meanwhile")
        script.commit()
    station.checkpoint()
    script.bury()


ON_DB = Story("on db", _moving, replace(LOG_ROLLS, index="db"))


def test_crash_points_of_a_bookie_with_the_index_db() -> None:
    counts = sweep_power(ON_DB, 0, samples=1, share=0.2)
    assert counts["power cuts"] > 50 and counts["acknowledged"] and counts["buried"] and counts["collected"]


@pytest.mark.parametrize("mutant", DATABASE_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_of_the_index_db_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    with pytest.raises((AssertionError, DLogError)) as caught:
        sweep_power(ON_DB, 0, samples=1, share=0.2)
    print(mutant.name, str(caught.value).splitlines()[0][:150])


def _brief(script: Script) -> None:
    for step in range(2):
        script.add(1, step, b"step %d" % step)
        script.commit()
        script.station.checkpoint()


def test_failures_of_a_bookie_with_the_index_db() -> None:
    story = Story("brief on db", _brief, replace(LOG_ROLLS, index="db"))
    assert sweep_syncs(story, 0)["failed syncs"] > 30
    assert sweep_room(story, 0)["writes without room"] > 20


def test_marks_never_move_back_and_no_file_is_given_free_before_its_mark() -> None:
    counts: Counter[str] = Counter()
    for story in STORIES:
        for seed in range(3):
            counts += audit(story.live(seed).station.disk)
    assert counts["marks"] > 100 and counts["journal files given free"] > 30


def _power(story: Story, seed: int) -> None:
    sweep_power(story, seed, samples=3, share=1.0 if story.samples else 0.4)


def _audit(story: Story, seed: int) -> None:
    audit(story.live(seed).station.disk)


def _syncs(story: Story, seed: int) -> None:
    sweep_syncs(story, seed)


def _room(story: Story, seed: int) -> None:
    if not story.may_refuse:
        sweep_room(story, seed)


LOOKS: dict[str, Callable[[Story, int], None]] = {"power": _power, "audit": _audit, "syncs": _syncs, "room": _room}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    for seed in range(2):
        for story in STORIES:
            if mutant.story in ("", story.name):
                try:
                    LOOKS[mutant.sweep](story, seed)
                except (AssertionError, DLogError) as error:
                    print(mutant.name, story.name, seed, str(error).splitlines()[0][:100])
                    return
    pytest.fail(f"no story caught it, {mutant.invariant} should have")


def test_every_invariant_of_the_journal_has_a_mutant() -> None:
    caught = {mutant.invariant for mutant in MUTANTS}
    assert caught >= {"J1", "J2", "J3", "J4", "J6", "J7", "J9", "J10", "J12", "J13", "J14", "J15"}
