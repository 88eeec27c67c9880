"""Runs one round of a plan of the load test in this process."""

from __future__ import annotations

from collections.abc import Mapping

from loadtest import spec, systems
from loadtest.runfile import Run
from loadtest.runner import Plan, Runner
from tests.unit.loadtest.test_runner import CALM, good


async def green_round(
    workloads: str, names: tuple[str, ...], changes: Mapping[str, str], options: Mapping[str, Mapping[str, str]]
) -> Run:
    """Run one round; every result is green. changes: to the workloads. options: by system, instead of its presets."""
    plan = Plan(
        workloads=spec.chosen(workloads, "quick", changes),
        systems={name: systems.find(name) for name in names},
        options={name: options.get(name, systems.find(name).preset) for name in names},
        rounds=1,
        voids=0,
        wait_s=0.0,
        thresholds=CALM,
    )
    run = await Runner(plan, look=good).run()
    assert run.is_green, [one for one in run.results if not one.get("green")]
    return run
