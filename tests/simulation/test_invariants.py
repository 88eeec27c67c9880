"""Every invariant has a check that exists and a planted defect that it must catch."""

from __future__ import annotations

import importlib

import pytest

from tests.simulation import rooms
from tests.simulation.invariants import INVARIANTS

MODULES = [
    importlib.import_module(f"tests.simulation.{name}")
    for name in (
        *(
            "ledger_checks",
            "repair_checks",
            "repair_world",
            "auditor_checks",
            "auditor_world",
            "stream_checks",
            "stream_world",
            "stream_parts",
            "stream_follower",
            "stream_sinks",
        ),
        *("stream_retention", "stream_offload", "stream_imports", "stream_removal"),
        *("cache_checks", "cache_world", "lives_world", "file_world", "region_checks", "region_world"),
        *("region_followers", "objects_world", "object_controller_world", "object_controller_checks"),
        *("compaction_checks", "object_nodes_world", "object_nodes_survivors"),
    )
]


def test_the_table_is_whole() -> None:
    expected = {f"L{n}" for n in range(1, 31) if n != 14} | {f"S{n}" for n in range(1, 19)}
    expected |= {f"T{n}" for n in range(1, 8)} | {f"R{n}" for n in range(1, 6)}
    expected |= {"D1", "D2", "E1", "E2", "P1", "P2", "L31", "L33", "L34"}
    expected |= {f"F{n}" for n in range(1, 8)} | {f"K{n}" for n in range(1, 13) if n != 6}
    expected |= {f"C{n}" for n in range(1, 14)} | {f"O{n}" for n in range(1, 15)} | {"N1", "N2", "N3"}
    assert set(INVARIANTS) == expected


@pytest.mark.parametrize("name", INVARIANTS)
def test_an_invariant_has_a_planted_defect_that_must_be_caught_by_it(name: str) -> None:
    room = rooms.load(INVARIANTS[name].room)
    assert [mutant.name for mutant in room.mutants if mutant.invariants[0] == name], name


@pytest.mark.parametrize("name", INVARIANTS)
def test_a_check_is_where_the_table_says(name: str) -> None:
    owner = ""
    for place in INVARIANTS[name].check.split(", "):
        owner, _, method = place.rpartition(".") if "." in place else (owner, "", place)
        made = [getattr(module, owner) for module in MODULES if hasattr(module, owner)]
        assert any(hasattr(one, method) for one in made), place
