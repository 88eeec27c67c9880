"""Tests the hunt itself: it counts what it did, fails when it proves nothing, shrinks and stores what breaks."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.simulation import __main__ as command
from tests.simulation import hunted_code, hunting, judging, record, rooms
from tests.simulation.hunting import Broken, Chunk, Tally
from tests.simulation.mutant_table import hunt
from tests.simulation.mutants.ledger import MUTANTS
from tests.simulation.plan import EVERY_KIND, FaultKind, Plan, draw_faults
from tests.simulation.worlds import Mutant, Outcome, Room

LEDGER = rooms.load("ledger")


def test_every_room_can_be_loaded_and_says_what_it_counts() -> None:
    for name in rooms.NAMES:
        room = rooms.load(name)
        assert room.styles and room.must_reach, name


def test_two_processes_count_what_one_counts() -> None:
    work = [Chunk("ledger", "scope", 0, 5), Chunk("ledger", "swarm", 0, 5), Chunk("ledger", "scope", 5, 5)]
    totals = []
    for jobs in (1, 2):
        total = Tally()
        for _, tally in hunting.run_all(work, jobs=jobs, until=None):
            total.add(tally)
        totals.append(total)
    assert totals[0].seeds == totals[1].seeds == Counter(scope=10, swarm=5)
    assert totals[0].reached == totals[1].reached and totals[0].events == totals[1].events


def test_every_style_has_its_turn_before_any_goes_on() -> None:
    work = list(hunting.chunks([("ledger", "a"), ("ledger", "b")], 100, 60))
    assert [(c.style, c.first, c.seeds) for c in work] == [
        ("a", 100, 25),
        ("b", 100, 25),
        ("a", 125, 25),
        ("b", 125, 25),
        ("a", 150, 10),
        ("b", 150, 10),
    ]


def test_nothing_is_begun_after_the_end() -> None:
    for_ever = hunting.chunks([("ledger", "scope")], 0, None)
    assert list(hunting.run_all(for_ever, jobs=1, until=0.0)) == []


def test_a_batch_that_reached_nothing_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["ledger", "--seeds", "0"]) == 1
    assert "NEVER REACHED" in capsys.readouterr().out
    assert Tally(seeds=Counter(scope=3), reached=Counter(ack=1)).missed(LEDGER) == [], "some styles: only the first"
    everywhere = Tally(seeds=Counter(LEDGER.styles), reached=Counter(ack=1))
    assert "recovered" in everywhere.missed(LEDGER)


@pytest.mark.parametrize("name", ("ledger", "stream", "cache"))
def test_every_mark_that_faults_are_bound_to_is_reached_by_few_seeds(name: str) -> None:
    """A mark that is never reached means a burst that never strikes. `make check` runs as many seeds per style."""
    room = rooms.load(name)
    left = {fault.mark for seed in range(60) for style in room.styles for fault in room.draw(seed, style).faults} - {""}
    assert left
    for seed in range(60):
        for style in room.styles:
            if left:
                left -= set(room.run(room.draw(seed, style)).reached)
    assert not left


def planted(monkeypatch: pytest.MonkeyPatch, *mutants: Mutant) -> None:
    """Give the simulation `ledger` these defects only."""
    monkeypatch.setattr(rooms, "load", lambda _: replace(LEDGER, mutants=mutants))


def test_a_hunt_for_planted_defects_tells_each_and_keeps_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = tmp_path / "record.json"
    monkeypatch.setattr(record, "refuse_changes", lambda _: "0123456789abcdef")
    planted(monkeypatch, *MUTANTS[:2])
    assert command.main(["ledger", "--mutants", "--record", str(kept)]) == 0
    out = capsys.readouterr().out
    assert all(mutant.name in out for mutant in MUTANTS[:2]) and "2 of 2 caught" in out
    table = record.load(kept)["mutants"]
    assert [row["name"] for row in table["rows"]] == [mutant.name for mutant in MUTANTS[:2]]
    assert table["commit"] == "0123456789abcdef" and all(row["invariant"] for row in table["rows"])


def test_a_hunt_for_a_defect_that_nothing_catches_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted(monkeypatch, MUTANTS[0], replace(MUTANTS[1], parts={}, seeds=2))
    assert command.main(["ledger", "--mutants"]) == 1
    out = capsys.readouterr().out
    assert "1 of 2 caught" in out and f"NEVER CAUGHT in 2 seeds: {MUTANTS[1].name}" in out


@pytest.mark.parametrize(("recorded", "seeds_run"), [(2, [2]), (1, [1, 0, 1, 2]), (None, [0, 1, 2])])
def test_the_recorded_seed_of_a_defect_is_tried_before_all_from_the_first(
    monkeypatch: pytest.MonkeyPatch, recorded: int | None, seeds_run: list[int]
) -> None:
    ran: list[int] = []

    def run(plan: Any, parts: Any = None) -> Outcome:
        ran.append(plan)
        return Outcome(plan=plan, violation="I1" if plan == 2 else "another")

    def draw(seed: int, style: str) -> Any:
        return seed

    room = replace(LEDGER, draw=draw, run=run)
    mutant = replace(MUTANTS[0], invariants=("I1",), seeds=3)
    monkeypatch.setattr(judging, "seed_of_catch", lambda *_: recorded)
    judging.check_is_caught(room, mutant)
    assert ran == seeds_run
    with pytest.raises(AssertionError, match="2 seeds did not catch it"):
        judging.check_is_caught(room, replace(mutant, seeds=2, invariants=("I2",)))


def test_what_breaks_is_shrunk_and_stored_where_it_is_run_again(tmp_path: Path) -> None:
    careless = next(m for m in MUTANTS if m.name == "one negative read ends the recovery, by its history")
    row = hunt(LEDGER, careless)
    assert row.is_caught and row.cpu_s < 60

    def run(plan: Plan, parts: Any = None, *, trace: bool = False) -> Any:
        return LEDGER.run(plan, careless.parts, trace=trace)

    room = replace(LEDGER, run=run)
    plan = room.draw(row.seed, row.style)
    smaller = hunting.shrunk(room, plan, row.invariant)
    assert len(smaller.faults) < len(plan.faults)
    path = hunting.store(tmp_path, Broken("ledger", row.style, row.seed, row.invariant, ""), smaller)
    assert room.run(Plan.from_json(path.read_text())).violation == row.invariant
    assert command.main(["--plan", str(path)]) == 0, "the folder names the room, and the true machine is clean"


def test_a_replay_prints_a_trace_that_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["ledger", "--style", "scope", "--seed", "4", "--trace"]) == 0
    out = capsys.readouterr().out
    assert "w/adder Asked " in out and "b1 Received w/adder#" in out and "trace hash" in out


def test_every_kind_of_fault_is_drawn_and_survives_its_text() -> None:
    rng = random.Random(5)
    drawn: Counter[FaultKind] = Counter()
    for seed in range(400):
        faults = draw_faults(rng, servers=["s", "t"], clients=["c"], duration_s=1.0, kinds=EVERY_KIND, marks=["m"])
        drawn.update(fault.kind for fault in faults)
        plan = Plan(seed=seed, faults=faults)
        assert Plan.from_json(plan.to_json()) == plan
    assert set(drawn) == set(EVERY_KIND)


# ---- the record -----------------------------------------------------------------------------------------------------


def tallied(room: Room, seeds: int) -> Tally:
    reached = Counter({"ack": 10 * seeds, "fault.crash": seeds})
    return Tally(seeds=Counter(swarm=seeds), reached=reached, events=5, virtual_s=7200.0, cpu_s=61.0)


def test_a_hunt_is_added_to_the_line_of_its_commit_and_no_seed_twice() -> None:
    kept: dict[str, Any] = record.load(Path("no such file"))
    record.add_to(kept, "c1", LEDGER, tallied(LEDGER, 100), 0)
    record.add_to(kept, "c1", LEDGER, tallied(LEDGER, 50), 100)
    record.add_to(kept, "c2", LEDGER, tallied(LEDGER, 50), 100)
    assert [(h["commit"], h["seeds"], h["faults"], h["progress"]["acks"]) for h in kept["hunts"]] == [
        ("c1", 150, {"crash": 150}, 1500),
        ("c2", 50, {"crash": 50}, 500),
    ]
    with pytest.raises(SystemExit, match="already recorded"):
        record.add_to(kept, "c1", LEDGER, tallied(LEDGER, 10), 145)


def test_the_page_shows_the_record() -> None:
    kept: dict[str, Any] = record.load(Path("no such file"))
    record.add_to(kept, "0123456789abcdef", LEDGER, tallied(LEDGER, 1000), 0)
    kept["mutants"] = {
        "commit": "0123456789abcdef",
        "python": "3.11",
        "rows": [hunt(LEDGER, MUTANTS[0]).as_json()],
    }
    page = "# Title\n" + "".join("\n".join(record.markers(name)) + "\n" for name in record.TABLES) + "end\n"
    once = record.rendered(page, kept)
    assert record.rendered(once, kept) == once and once.startswith("# Title") and once.endswith("end\n")
    assert "| ledger | `0123456789` |" in record.between(once, "hunts")
    assert "| 1,000 |" in once and "| crash | 1,000 |" in once and MUTANTS[0].name in once


def test_a_tree_with_changes_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "git", lambda *_: " M tests/simulation/record.json")
    record.refuse_changes(record.RECORD)
    monkeypatch.setattr(record, "git", lambda *_: " M tests/simulation/record.json\n M dlog/machine.py")
    with pytest.raises(SystemExit, match=r"dlog/machine\.py"):
        record.refuse_changes(record.RECORD)


def test_the_first_changed_name_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "record.json").write_text("{}")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *arguments], check=True)
    (tmp_path / "record.json").write_text("{ }")
    monkeypatch.setattr(record, "ROOT", tmp_path)
    assert record.changed_names() == ["record.json"]
    assert record.refuse_changes(tmp_path / "record.json") == record.git("rev-parse", "HEAD")


def test_the_code_of_a_simulation_is_what_it_imports() -> None:
    files = hunted_code.files_of("files")
    assert {"dlog/stores/file/segment_files.py", "tests/simulation/file_world.py", "dlog/errors.py"} <= set(files)
    assert not any(name.startswith(("dlog/cli/", "dlog/ledger/", ".venv")) for name in files)


def test_a_hunt_counts_as_long_as_its_code_is_unchanged() -> None:
    changed = {"old": ["a.py"], "new": [], "newer": []}
    hunts = [{"commit": name, "seeds": 100} for name in changed]
    assert hunted_code.standing(hunts, changed.__getitem__) == (200, [])
    changed["newer"] = ["b.py"]
    assert hunted_code.standing(hunts, changed.__getitem__) == (100, ["b.py"])
    assert hunted_code.changed_since(["dlog/errors.py"], "0" * 40) == ["dlog/errors.py"], "not in this clone"
