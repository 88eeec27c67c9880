"""Known defects of BookKeeper as named scenarios, each with an explicit plan.

Numbers are issues of apache/bookkeeper. A mutant proves that the scenario shows the defect, except for #4651, #1886 and
the paused writer, which cannot have the defect here: their tests say what must come out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlog.ledger.adding import LedgerAdder
from dlog.ledger.recovery_search import EntryProbe
from tests.simulation.ledger_world import KEY, LedgerWorld, run_plan
from tests.simulation.mutants import edited, planting
from tests.simulation.mutants.ledger import (
    FENCE_NOT_DURABLE,
    NO_FLOOR,
    READS_DO_NOT_FENCE,
    WRITER,
    bookie,
    planted,
    recoverer,
)
from tests.simulation.plan import Fault, FaultKind, Plan


def plan(*faults: Fault, entries: int = 1, bookies: int = 3, recover_at: float = 0.02, **config: Any) -> Plan:
    """E = Qw = 3, Qa = 2; one recovery; no message is lost or late except by the faults."""
    settings: dict[str, Any] = {
        "style": "scenario",
        "quorum": [3, 3, 2],
        "bookies": bookies,
        "entries": entries,
        "gap_s": 0.0,
        "payload_max": 4,
        "calm": False,
        "recover_at": [recover_at],
        "close": False,
        "duration_s": 8.0,
        "fifo": False,
        "timeout_s": 5.0,
        "sync_s": 0.0002,
        "digest": "CRC32C",
    }
    return Plan(seed=1, config={**settings, **config}, faults=faults)


def hold(a: str, b: str, message: str, count: int, for_s: float) -> Fault:
    return Fault(kind=FaultKind.HOLD_KTH, a=a, b=b, message=message, count=count, for_s=for_s)


def played(scenario: Plan, parts: Mapping[str, Any] | None = None) -> LedgerWorld:
    """Run the scenario and return its world. Raises the first violation."""
    world = LedgerWorld(scenario, parts or {})
    world.run()
    return world


def mutant(name: str) -> Mapping[str, Any]:
    return next(m.parts for m in WRITER if m.name == name)


def test_bookkeeper_2614_a_late_add_cannot_reach_a_bookie_that_recovery_only_read_from() -> None:
    """b2 alone has entry 0. Recovery fences b1 and b2, its read at b2 hangs, b1 and b3 deny; then b3 gets the add."""
    scenario = plan(
        hold("w", "b1", "AddEntry", 1, 3.0),
        hold("w", "b3", "AddEntry", 1, 0.5),
        hold("r1", "b3", "ReadEntry", 1, 2.0),
        hold("r1", "b2", "ReadEntry", 2, 2.0),
    )
    world = played(scenario)
    assert world.recovered["r1"].last_entry == -1
    assert world.checks.lac == -1, "the writer was refused at b3 and confirmed nothing"
    outcome = run_plan(scenario, planted(*READS_DO_NOT_FENCE, mute=("L8",)))
    assert outcome.violation == "L7", "without fencing reads the entry is confirmed after the end"


def test_bookkeeper_2615_an_empty_last_fragment_does_not_draw_the_search_back_before_it() -> None:
    """Members are replaced after 5 confirmed entries, the others cut off from the writer: the newest know no LAC."""
    scenario = plan(
        Fault(kind=FaultKind.RESET, a="b1", b="w", mark="ack", count=5),
        Fault(kind=FaultKind.ENVIRONMENT, a="b1", message="read_only", for_s=7.0, mark="ack", count=5),
        Fault(kind=FaultKind.CUT, a="w", b="b4", for_s=7.0, mark="ensemble_change"),
        Fault(kind=FaultKind.CUT, a="w", b="b2", for_s=7.0, mark="ensemble_change"),
        Fault(kind=FaultKind.CUT, a="w", b="b3", for_s=7.0, mark="ensemble_change"),
        entries=8,
        bookies=4,
        gap_s=0.01,
        recover_at=0.5,
    )
    world = played(scenario)
    fragments = world.sim.metadata.values[KEY].value.fragments
    assert len(fragments) > 1 and world.checks.lac >= 4
    careless = recoverer(("_fence", "EntryId(last.first_entry - 1)", "NO_ENTRY"), NO_FLOOR)
    hunted = [run_plan(with_seed(scenario, seed), careless).violation for seed in range(20)]
    assert "L9" in hunted


def test_bookkeeper_1591_no_confirmation_on_an_ensemble_that_metadata_does_not_know() -> None:
    """b1 fails while metadata answers nothing for a second: entries wait, though new bookies would take them."""
    scenario = plan(
        Fault(kind=FaultKind.META_CUT, a="w", at_s=0.0, for_s=1.0),
        Fault(kind=FaultKind.ENVIRONMENT, a="b1", message="read_only", for_s=7.0),
        Fault(kind=FaultKind.ENVIRONMENT, a="b2", message="read_only", at_s=0.05, for_s=7.0),
        entries=30,
        bookies=6,
        gap_s=0.01,
        recover_at=5.0,
    )
    world = LedgerWorld(scenario, {})
    sim = world.sim
    world.run()
    assert sim.reached["ensemble_change"] >= 1 and world.checks.lac >= 0
    local = mutant("ensemble change in local metadata only (#1591)")
    assert run_plan(scenario, local).violation in ("L10", "L4")


def test_bookkeeper_4651_what_was_sent_to_a_replaced_bookie_is_held_by_those_that_metadata_names() -> None:
    """b3 gets nothing and is replaced with entries under way; the bookies that hold them are compared with metadata."""
    scenario = plan(
        Fault(kind=FaultKind.CUT, a="w", b="b3", for_s=7.0, both=False),
        Fault(kind=FaultKind.RESET, a="b3", b="w", at_s=0.004),
        entries=20,
        bookies=4,
        gap_s=0.0005,
        recover_at=6.0,
    )
    world = played(scenario)
    assert world.sim.reached["ensemble_change"] == 1 and world.checks.lac == 19
    metadata = world.checks.metadata
    first = metadata.fragments[-1].first_entry
    assert 0 < first < 20 and metadata.fragments[-1].ensemble[2] == "b4"
    assert all(world.checks.held_in_ensemble(e, metadata) >= 2 for e in range(first))
    assert all(world.checks.held_in_ensemble(e, metadata) == 3 for e in range(first, 20))


def test_bookkeeper_1886_a_change_that_fails_late_is_tried_again_from_metadata_as_it_then_is() -> None:
    """Every metadata write of the writer has an unknown outcome, half of them take place late; members keep failing."""
    hits = 0
    for seed in range(60):
        scenario = plan(
            Fault(kind=FaultKind.META_LATE, at_s=0.0, for_s=1.0, rate=0.7),
            Fault(kind=FaultKind.RESET, a="b1", b="w", at_s=0.003),
            Fault(kind=FaultKind.RESET, a="b2", b="w", mark="bookie_lost"),
            Fault(kind=FaultKind.RESET, a="b3", b="w", mark="ensemble_change"),
            Fault(kind=FaultKind.RESET, a="b4", b="w", mark="ensemble_change", count=2),
            entries=20,
            bookies=5,
            gap_s=0.001,
            recover_at=3.0,
        )
        hits += played(with_seed(scenario, seed)).sim.reached["ensemble_change"]
    assert hits > 60


def test_bookkeeper_1067_one_hung_bookie_does_not_block_a_recovery() -> None:
    """b3 is paused for a minute; two denials out of three are enough."""
    scenario = plan(Fault(kind=FaultKind.PAUSE, a="b3", at_s=0.015, for_s=60.0), entries=3)
    world = LedgerWorld(scenario, {})
    done: list[float] = []
    recovered = world.after_recovery

    def note(name: str, result: Any) -> None:
        done.append(world.sim.now_s)
        recovered(name, result)

    world.after_recovery = note  # type: ignore[method-assign]
    world.run()
    assert done[0] < 1.0
    patient = edited(EntryProbe, ("is_absent", "quorum.negatives_needed", "quorum.write"))
    done.clear()
    world = LedgerWorld(scenario, {})
    recovered = world.after_recovery
    world.after_recovery = note  # type: ignore[method-assign]
    with planting([(EntryProbe, patient)]):
        world.run()
    assert done[0] > 4.0, "who waits for all waits for the hung one"


def test_bp46_a_writer_that_slept_and_bookies_that_restarted_since_the_fence() -> None:
    """The fence must survive the restart of every bookie."""
    scenario = plan(
        Fault(kind=FaultKind.PAUSE, a="w", at_s=0.0, for_s=3.0),
        *(Fault(kind=FaultKind.POWER, a=f"b{i}", at_s=0.01, for_s=0.1, mark="recovered") for i in (1, 2, 3)),
    )
    world = played(scenario)
    assert world.checks.lac == -1 and world.sim.reached["fenced_writer"] == 1
    assert run_plan(scenario, bookie(FENCE_NOT_DURABLE, mute=("L8",))).violation == "L7"


def test_redpanda_6018_what_one_bookie_alone_has_is_not_confirmed() -> None:
    """b1 has the entry and loses its power; the others get it long after a recovery has decided without it."""
    scenario = plan(
        hold("w", "b2", "AddEntry", 1, 3.0),
        hold("w", "b3", "AddEntry", 1, 3.0),
        Fault(kind=FaultKind.POWER, a="b1", at_s=0.015, for_s=6.0),
    )
    world = played(scenario)
    assert world.recovered["r1"].last_entry == world.checks.lac == -1
    assert run_plan(scenario, mutant("confirms before the ack quorum")).violation == "L10"


def test_a_writer_that_sleeps_through_its_recovery_confirms_nothing() -> None:
    """A paused owner wakes up with a full window: not one of its entries is confirmed."""
    scenario = plan(Fault(kind=FaultKind.PAUSE, a="w", at_s=0.0005, for_s=3.0), entries=20, gap_s=0.0001)
    world = played(scenario)
    assert isinstance(world.adder, LedgerAdder) and world.adder.is_dead
    assert world.recovered["r1"].last_entry >= world.checks.lac


def with_seed(scenario: Plan, seed: int) -> Plan:
    return Plan(seed=seed, config=scenario.config, faults=scenario.faults)
