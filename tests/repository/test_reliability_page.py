"""docs/reliability.md shows what the record of hunts contains."""

from __future__ import annotations

from collections import Counter

import pytest

from loadtest import attached, outages
from tests.simulation import record, rooms
from tests.simulation.mutant_table import CPU_S_MAX

MUTANTS_MIN = 40
SEEDS_MIN = 100_000
SERVICE = "service"
SERVICE_S = 3600.0  # of CPU time


@pytest.mark.parametrize("name", record.TABLES)
def test_a_table_of_the_page_is_what_the_record_renders_to(name: str) -> None:
    page = record.PAGE.read_text()
    again = "run python -m tests.simulation.record"
    assert record.between(page, name) == record.render(record.load(record.RECORD))[name], again


def test_what_was_recorded_broke_nothing_and_every_planted_defect_was_caught() -> None:
    kept = record.load(record.RECORD)
    assert all(line["violations"] == 0 for line in kept["hunts"])
    assert all(run["exit"] == 0 and run["breaches"] == 0 for run in kept["chaos"])
    assert max(run["acknowledged"] for run in kept["chaos"]) >= 1_000_000
    rows = kept["mutants"]["rows"]
    assert all(row["invariant"] and row["cpu_s"] <= CPU_S_MAX for row in rows)
    assert len(rows) >= MUTANTS_MIN and {row["room"] for row in rows} == set(rooms.NAMES)


def test_enough_was_hunted_on_one_commit() -> None:
    """Machines are counted by seeds, the whole service by CPU time; a line of the record is of one commit and
    simulation."""
    machines: Counter[str] = Counter()
    for line in record.load(record.RECORD)["hunts"]:
        if line["room"] != SERVICE:
            machines[line["commit"]] += line["seeds"]
    assert max(machines.values()) >= SEEDS_MIN
    assert max(line["cpu_s"] for line in record.load(record.RECORD)["hunts"] if line["room"] == SERVICE) >= SERVICE_S


def test_every_planted_defect_of_today_was_hunted_and_no_other() -> None:
    rows = record.load(record.RECORD)["mutants"]["rows"]
    planted = {(name, mutant.name) for name in rooms.NAMES for mutant in rooms.load(name).mutants}
    assert {(row["room"], row["name"]) for row in rows} == planted, "run python -m tests.simulation --mutants --record"


@pytest.mark.parametrize("name", attached.FAULTS)
def test_what_a_change_of_owner_costs_is_recorded_and_within_its_goals(name: str) -> None:
    told, goals = record.load(record.RECORD)["owners"][name], attached.goals_of(name)
    assert told["green"] and told["rounds"] >= int(attached.WORKLOADS[name][1]["faults"])
    assert goals and {figure: goal["at_most"] for figure, goal in told["goals"].items()} == goals, "the page shows them"
    assert all(told[figure] <= most for figure, most in goals.items())


@pytest.mark.parametrize("name", outages.GOALS)
def test_what_an_outage_costs_is_recorded_and_within_its_goals(name: str) -> None:
    told = record.load(record.RECORD)["owners"].get(name)
    assert told is not None and told["green"]
    assert all(told["goals"][figure]["at_most"] == most for figure, most in outages.GOALS[name].items())
    assert all(told[figure] <= most for figure, most in outages.GOALS[name].items())
