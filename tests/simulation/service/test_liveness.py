"""How long a stream that is written to may have nothing acknowledged, by what befalls its owner (V4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from tests.simulation.plan import Fault, FaultKind
from tests.simulation.service import drawing, world
from tests.simulation.worlds import Outcome

AT_S, FOR_S = 5.0, 20.0


def run(seed: int, silence_max_s: float, faults: Sequence[Fault]) -> Outcome:
    """A quiet small cluster, one stream written some times a second, and these faults."""
    drawn = drawing.draw(seed, "starved")
    config = {**drawn.config, "silence_max_s": silence_max_s, "duration_s": AT_S + FOR_S + 5.0, "pace_s": 0.1}
    return world.run(dataclasses.replace(drawn, config=config, faults=tuple(faults)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("writer", ["writer-1", "writer-2"])
def test_a_frozen_owner_is_replaced_within_three_seconds(seed: int, writer: str) -> None:
    outcome = run(seed, 3.0, [Fault(kind=FaultKind.PAUSE, a=writer, at_s=AT_S, for_s=FOR_S)])
    assert not outcome.violation, outcome.text


@pytest.mark.parametrize("seed", range(6))
def test_too_little_cpu_for_everybody_costs_seconds_and_no_change_of_owner(seed: int) -> None:
    outcome = world.run(drawing.draw(seed, "starved"))
    assert not outcome.violation, outcome.text
    assert outcome.reached["fault.starve"] == 1
    assert not outcome.reached["take-over"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("writer", ["writer-1", "writer-2"])
def test_an_owner_that_dies_where_everybody_has_too_little_cpu_is_replaced_once(seed: int, writer: str) -> None:
    starved = drawing.draw(seed, "starved").faults
    dies = Fault(kind=FaultKind.CRASH, a=writer, at_s=12.0, for_s=60.0)
    outcome = run(seed, 30.0, [*starved, dies])
    assert not outcome.violation, outcome.text
    assert outcome.reached["take-over"] <= 1, "a take-over that is under way is not begun again"
