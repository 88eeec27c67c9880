"""Runs the whole load test on a system that is a file, with real generator processes: rounds, void rounds, verdicts,
reports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest import command, runfile, spec, systems
from loadtest.host_conditions import HostConditions, Thresholds
from loadtest.report import figures
from loadtest.runfile import Run
from loadtest.runner import Plan, PlanError, Runner
from loadtest.systems.base import Variant
from tests.unit.loadtest.test_host_conditions import GOOD
from tests.unit.loadtest.toy import BREACHES, VARIANTS

CHANGES = {"seconds": "0.4", "warmup_s": "0.1", "patience_s": "60"}
CALM = Thresholds(idle_min=0.0, steal_max=1.0, foreign_max=2.0, fdatasync_p99_max_ms=1e9, wake_p99_max_ms=1e9)


async def good(_: Path) -> HostConditions:
    return GOOD


def plan(names: str, changes: Mapping[str, str] | None = None, **more: Any) -> Plan:
    values: dict[str, Any] = {"rounds": 1, "voids": 0, "wait_s": 0.0, "thresholds": CALM, "systems": only("toy")} | more
    return Plan(workloads=spec.chosen(names, "quick", {**CHANGES, **(changes or {})}), **values)


def only(*names: str) -> dict[str, Variant]:
    return {name: VARIANTS[name] for name in names}


async def ran(wanted: Plan, **more: Any) -> Run:
    run = await Runner(wanted, look=more.pop("look", good), **more).run()
    return runfile.from_json(json.loads(json.dumps(run.as_json())))


@pytest.mark.parametrize(
    ("name", "changes", "wanted"),
    [
        ("W1", {}, "response_ms.p99"),
        ("W2", {"rate": "2000"}, "response_ms.p99.9"),
        ("W3", {"record_bytes": "100", "window": "64"}, "records_per_s"),
        ("W4", {"batch_bytes": "10240"}, "mb_per_s"),
        ("W5", {"logs": "20", "rate": "2000"}, "response_ms.p50"),
        ("W6", {"rate": "1000"}, "delivery_ms.p99"),
        ("W7", {"readers": "3", "rate": "500", "reader_processes": "2"}, "delivered_mb_per_s"),
        ("W8", {"backlog_mb": "1", "rate": "500"}, "catch_up_mb_per_s"),
        ("W10", {"faults": "2", "calm_s": "0.1", "rate": "500"}, "gap_max_ms"),
        ("W11", {"faults": "1", "calm_s": "0.1", "rate": "500", "frozen_s": "0.2"}, "gap_p50_ms"),
        ("W13", {"backlog_mb": "1", "calm_s": "0.1", "rate": "500"}, "first_append_s"),
        ("W14", {"calm_s": "0.1", "rate": "500"}, "gap_max_ms"),
        ("W19", {"logs": "100", "idle_s": "0.5"}, "bytes_per_log"),
    ],
)
async def test_every_workload_comes_to_a_figure_and_is_checked(name: str, changes: dict[str, str], wanted: str) -> None:
    run = await ran(plan(name, changes))
    (told,) = run.results
    assert told.get("green") is True, told
    assert run.is_green
    assert told["verdict"]["sent"] == told["verdict"]["acknowledged"] > 0
    assert told["verdict"]["read"] >= told["verdict"]["sent"], "somebody read everything"
    (found,) = figures.collect(run).results.values()
    assert found.value(wanted) is not None, sorted(found.values)


async def test_a_writer_is_weighed_beside_a_catch_up_only_while_somebody_reads() -> None:
    """A read that ends before the measured time is over measures the writer alone, and the result says so."""
    ratio = "p99_disturbed_over_undisturbed"
    (short,) = (await ran(plan("W8", {"backlog_mb": "1", "rate": "500"}))).results
    assert short["figures"][ratio] is None and short["figures"]["catch_up_mb_per_s"] > 0
    assert any("raise backlog_mb" in text for text in short["errors"]), short["errors"]
    (long,) = (await ran(plan("W8", {"backlog_mb": "300", "rate": "500", "seconds": "0.1"}))).results
    assert long["figures"][ratio] > 0 and not long["errors"], long["errors"]
    assert long["usage"]["generator"]["processes"] == 2, "what the reader takes is no stranger's"


@pytest.mark.parametrize("breach", [breach for breach in BREACHES if breach])
async def test_a_run_that_is_not_green_has_no_figure(breach: str) -> None:
    run = await ran(plan("W2", {"rate": "500"}, options={"toy": {"breach": breach}}))
    (told,) = run.results
    assert told["green"] is False and not run.is_green
    assert not {"figures", "histograms", "usage", "timeline"} & set(told)
    (found,) = figures.collect(run).results.values()
    assert found.why.startswith("NOT GREEN") and found.value("records_per_s") is None


async def test_systems_take_turns_and_none_is_always_first() -> None:
    both = {"toy": VARIANTS["toy"], "toy-two": VARIANTS["toy"]}
    run = await ran(plan("W1", systems=both, rounds=3))
    assert [(t["round"], t["system"]) for t in run.turns] == [
        (0, "toy"),
        (0, "toy-two"),
        (1, "toy-two"),
        (1, "toy"),
        (2, "toy"),
        (2, "toy-two"),
    ]
    assert {r.rounds for r in figures.collect(run).results.values()} == {3}


async def test_bad_host_conditions_void_a_round_which_is_done_again_a_bounded_number_of_times() -> None:
    cloudy = replace(GOOD, idle=0.1)
    looks: Iterator[HostConditions] = iter([cloudy, GOOD, replace(GOOD, steal=0.9), cloudy])

    async def look(_: Path) -> HostConditions:
        return next(looks)

    bounds = replace(CALM, idle_min=0.85, steal_max=0.5)
    told: list[str] = []
    run = await ran(plan("W1", rounds=2, voids=2, thresholds=bounds), look=look, on_progress=told.append)
    assert [turn["void"] for turn in run.turns] == [True, False, True, False]
    assert [bool(turn["faults"]) for turn in run.turns] == [True, False, True, True]
    assert [result["void"] for result in run.results] == [True, False, True, False]
    (found,) = figures.collect(run).results.values()
    assert found.rounds == 2 and "bad host conditions" in found.marks
    assert any("repeated; host conditions: idle 10% < 85%" in text for text in told)


async def test_wait_for_conditions_is_waited_for() -> None:
    looks: Iterator[HostConditions] = iter([replace(GOOD, idle=0.1), replace(GOOD, idle=0.1), GOOD])

    async def look(_: Path) -> HostConditions:
        return next(looks)

    run = await ran(plan("W1", thresholds=replace(CALM, idle_min=0.85), wait_s=60.0), look=look)
    assert run.turns[0]["before"]["idle"] == GOOD.idle


async def test_what_a_system_cannot_do_is_said_and_is_no_failure() -> None:
    run = await ran(plan("W12,W21,W20", {"calm_s": "0.1"}))
    assert [told["not_applicable"] for told in run.results] == [
        "toys are not hurt",
        "toys are not hurt",
        "nobody uses toys",
    ]
    assert run.is_green


async def test_a_system_that_does_not_start_fails_alone() -> None:
    run = await ran(plan("W1", systems=only("toy-broken", "toy")))
    found = {told["system"]: told for told in run.results}
    assert "it does not start" in found["toy-broken"]["error"]
    assert found["toy"]["green"]
    assert not run.is_green


async def test_an_option_that_a_system_does_not_have_ends_the_run() -> None:
    with pytest.raises(PlanError, match="no such option of toy"):
        await ran(plan("W1", options={"toy": {"colour": "red"}}))


async def test_runs_are_saved_after_each_round_and_can_be_added_to(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    saved: list[int] = []

    def save(run: Run) -> None:
        saved.append(len(run.results))
        run.save(path)

    await ran(plan("W1", rounds=2), saved=save)
    assert saved == [1, 2]
    first = runfile.read(path)
    first.append(runfile.read(path))
    first.save(path)
    both = runfile.read(path)
    assert len(both.parts) == 2 and {told["part"] for told in both.results} == {0, 1}
    (found,) = figures.collect(both).results.values()
    assert found.rounds == 4


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def with_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "everything", lambda: dict(VARIANTS))
    monkeypatch.setattr(systems, "find", VARIANTS.__getitem__)


QUICK = ["--rounds", "1", "--voids", "0", "--wait", "0", "--seconds", "0.3", "--set", "warmup_s=0.1", "--quiet"]


@pytest.mark.usefixtures("with_toys")
def test_the_command_prints_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.json"
    assert command.main(["W2", "--set", "rate=500", "--system", "toy", *QUICK, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "W2 append-open" in said and "p99 ms=" in said
    assert command.main(["W1", "--system", "toy", *QUICK, "--append", str(out)]) == 0
    assert sorted(runfile.read(out).workloads) == ["W1", "W2"]


@pytest.mark.usefixtures("with_toys")
def test_the_command_fails_when_it_is_not_green(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--system", "toy", "--option", "toy.breach=lose", *QUICK, "--out", str(tmp_path / "run.json")]
    assert command.main(["W2", "--set", "rate=500", *more]) == 1
    said = capsys.readouterr().out
    assert "NOT GREEN" in said and "lost" in said and "p99 ms=" not in said


@pytest.mark.usefixtures("with_toys")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["W99"], "no such workload"),
        (["W1", "--set", "rate"], "expected KEY=VALUE"),
        (["W1", "--set", "colour=red"], "unknown option"),
        (["W1", "--set", "rate=-1"], "range"),
        (["W1", "--seconds", "0"], "seconds must be in"),
        (["W1", "--option", "dlog.x=1"], "NAME being a system of this run"),
        (["W1", "--option", "nonsense"], "expected KEY=VALUE"),
        (["W1", "--option", "toy.colour=red", "--wait", "0"], "no such option of toy"),
        (["W1", "--threshold", "mood=1"], "no such threshold"),
        (["W1", "--threshold", "idle_min=much"], "not a number"),
        (["W1", "--append", "{}/none.json"], "cannot read the run file"),
        (["W1", "--out", "{}/no/such/run.json"], "no such directory"),
    ],
)
def test_the_command_names_what_was_misused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    given = [word.replace("{}", str(tmp_path)) for word in arguments]
    out = [] if {"--append", "--out"} & set(given) else ["--out", str(tmp_path / "run.json")]
    assert command.main([*given, "--system", "toy", *out]) == 2
    assert said in capsys.readouterr().err


def test_systems_that_there_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("redpanda", "dlog-purple", "", "base", "nodes"):
        assert command.main(["W1", "--system", name]) == 2
        assert "no such system" in capsys.readouterr().err


def test_an_estimate_does_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.json"
    assert command.main(["all", "--full", "--estimate", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "W13" in said and "5 rounds of dlog" in said
    assert not out.exists()
