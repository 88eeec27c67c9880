"""Tests plans: pieces are run once, in order, into one file; an interrupted plan continues unchanged."""

from __future__ import annotations

import itertools
import json
import shlex
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from loadtest import command, plans, runfile, spec, systems
from loadtest.report import compare, figures, goals
from loadtest.runfile import Run, RunFileError
from loadtest.runner import Runner, turn_s, workload_as_json
from tests.unit.loadtest.toy import VARIANTS

FAST = ("--voids", "0", "--wait", "0", "--seconds", "0.3", "--set", "warmup_s=0.1")
MAIN = Path(plans.__file__).parent / "plans" / "main.toml"
NOTES = MAIN.with_name("main.notes.toml")
KAFKA = MAIN.with_name("kafka.toml")
S3 = MAIN.with_name("s3.toml")
BOOKIES = MAIN.with_name("bookies.toml")


def pieces(**runs: str) -> str:
    return "".join(f'[[piece]]\nname = "{name}"\nsays = "why"\nrun = {json.dumps(run)}\n' for name, run in runs.items())


@pytest.fixture
def with_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "everything", lambda: dict(VARIANTS))
    monkeypatch.setattr(systems, "find", VARIANTS.__getitem__)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(
        pieces(first="W1 --system toy --rounds 2", second="W2 --system toy --rounds 1 --set rate=500 --seed 3")
    )
    return path


def carried_out(plan: Path, out: Path, *more: str) -> int:
    return command.main(["--plan", str(plan), "--out", str(out), "--quiet", *FAST, *more])


@pytest.mark.usefixtures("with_toys")
def test_every_piece_is_run_into_one_file_and_only_once(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.json"
    assert carried_out(plan, out) == 0
    run = runfile.read(out)
    assert [part["piece"] for part in run.parts] == ["first", "second"]
    assert [part["seed"] for part in run.parts] == [1, 3]
    assert run.parts[0]["command"] == f"python -m loadtest W1 --system toy --rounds 2 {shlex.join(FAST)}"
    assert {(r["part"], r["workload"], r["round"]) for r in run.results} == {(0, "W1", 0), (0, "W1", 1), (1, "W2", 0)}
    before = out.read_bytes()
    assert carried_out(plan, out) == 0
    assert out.read_bytes() == before
    assert "second: already done" in capsys.readouterr().err


@pytest.mark.usefixtures("with_toys")
def test_what_was_interrupted_goes_on_where_it_was(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, real = tmp_path / "run.json", Runner._round
    rounds = 0

    async def interrupted(self: Runner, *arguments: Any) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            raise KeyboardInterrupt
        return await real(self, *arguments)

    monkeypatch.setattr(Runner, "_round", interrupted)
    assert carried_out(plan, out) == 1
    assert [(r["workload"], r["round"]) for r in runfile.read(out).results] == [("W1", 0)]
    assert carried_out(plan, out) == 0
    run = runfile.read(out)
    assert [(part["piece"], part["asked"]) for part in run.parts][:2] == [("first", run.parts[0]["asked"])] * 2
    assert [(r["part"], r["workload"], r["round"]) for r in run.results] == [(0, "W1", 0), (1, "W1", 1), (2, "W2", 0)]
    found = figures.collect(run).results
    assert {key[0]: result.rounds for key, result in found.items()} == {"W1": 2, "W2": 1}


@pytest.mark.usefixtures("with_toys")
def test_a_run_that_was_asked_for_otherwise_is_not_gone_on_with(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.json"
    assert carried_out(plan, out) == 0
    capsys.readouterr()
    assert carried_out(plan, out, "--seed", "9") == 2
    assert "piece=first" in capsys.readouterr().err


@pytest.mark.usefixtures("with_toys")
def test_a_piece_that_is_not_green_ends_nothing_but_is_told(tmp_path: Path) -> None:
    path, out = tmp_path / "plan.toml", tmp_path / "run.json"
    path.write_text(pieces(broken="W1 --system toy-broken --rounds 1", good="W1 --system toy --rounds 1"))
    assert carried_out(path, out) == 1
    assert [("error" in r, r.get("green")) for r in runfile.read(out).results] == [(True, None), (False, True)]
    assert carried_out(path, out) == 1, "what is in the file is told again"


@pytest.mark.usefixtures("with_toys")
def test_the_estimate_is_of_what_is_left(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.json"
    assert carried_out(plan, out, "--estimate") == 0
    assert not out.exists()
    whole = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in whole] == ["first", "second", "about"] and whole[-1] != "about 0.0 min"
    assert carried_out(plan, out) == 0
    capsys.readouterr()
    assert carried_out(plan, out, "--estimate") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("about 0.0 min")


@pytest.mark.usefixtures("with_toys")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("=", "cannot be read"),
        ("x = 1", "[[piece]] tables and nothing else"),
        ("piece = 3", "[[piece]] tables and nothing else"),
        ("[[piece]]\nname = 'a'", "name, says and run"),
        ("[[piece]]\nname = 'a'\nsays = ''\nrun = 3", "name, says and run"),
        (pieces(a="W1 'unfinished"), "not a command line"),
        (pieces(a="W1 --out x.json"), "not allowed in a piece"),
        (pieces(a="W1 --append=x.json"), "not allowed in a piece"),
        (pieces(a="W99 --system toy"), "no such workload"),
        (pieces(a="W1 --system toy") + pieces(a="W2 --system toy"), "the same name"),
        (pieces(a="W1 --system toy", b="W1 --system toy --set tasks=2"), "tasks 1 and 2"),
        (pieces(a="W1 --system toy", b="W2 --system toy --option toy.breach=lose"), "other options"),
    ],
)
def test_a_plan_that_cannot_be_is_named_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path, out = tmp_path / "plan.toml", tmp_path / "run.json"
    path.write_text(text)
    assert command.main(["--plan", str(path), "--out", str(out)]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()
    assert command.main(["--plan", str(tmp_path / "none.toml"), "--out", str(out)]) == 2


# ---- runs in one file -----------------------------------------------------------------------------------------------


def run_of(system: str, *, versions: dict[str, str], **changes: str) -> Run:
    workload = spec.load("W3", "quick", changes)
    about = {"options": {}, "versions": versions}
    return Run(parts=[{}], systems={system: about}, workloads={workload.id: workload_as_json(workload)})


def test_cells_of_runs_in_one_file_are_all_kept() -> None:
    run = run_of("a", versions={"a": "1"}, record_bytes="100")
    run.append(run_of("a", versions={}, record_bytes="1024"))
    run.append(run_of("b", versions={}, record_bytes="100"))
    assert [cell["label"] for cell in run.workloads["W3"]["cells"]] == ["100 B", "1 KiB"]
    assert run.systems["a"]["versions"] == {"a": "1"}, "what never started hides nothing"


def test_two_shapes_do_not_stand_in_one_row() -> None:
    run = run_of("a", versions={}, record_bytes="100")
    with pytest.raises(RunFileError, match="window 4096 and 64"):
        run.append(run_of("b", versions={}, record_bytes="100", window="64"))


def test_the_estimate_counts_only_what_a_system_can_do() -> None:
    workload = spec.load("W21", "quick")
    assert turn_s(systems.find("dlog").make("dlog"), workload) > 0
    assert turn_s(systems.find("bookkeeper").make("bookkeeper"), workload) == 0.0


# ---- the plan of the page on performance ----------------------------------------------------------------------------


def test_the_main_plan_measures_every_goal() -> None:
    plan = [command._planned(piece, Run()) for piece in plans.read(MAIN)]
    command._check_together(plan)
    measured: dict[tuple[str, str], list[spec.Shape]] = defaultdict(list)
    for one in plan:
        for workload, system in itertools.product(one.workloads, one.systems):
            measured[workload.id, system] += [cell.shape for cell in workload.cells]
    cells = {
        "W5": [{"logs": 1}, {"logs": 10_000}],  # of goals that are computed
        "W19": [{"logs": 1}],
        "W3": [{"record_bytes": 100}],
    }
    for goal in goals.GOALS:
        if not goal.workload:
            continue
        for system in ("dlog", *([goal.peer] if goal.peer else [])):
            shapes = measured[goal.workload, system]
            for wanted in cells[goal.workload] if goal.compute else [goal.cell]:
                assert any(all(getattr(s, k) == v for k, v in wanted.items()) for s in shapes), (goal, system, wanted)


def test_the_plan_on_kafka_measures_every_goal_of_regions_and_streams_on_kafka() -> None:
    plan = [command._planned(piece, Run()) for piece in plans.read(KAFKA)]
    command._check_together(plan)
    measured: dict[tuple[str, str], list[spec.Shape]] = defaultdict(list)
    for one in plan:
        for workload, system in itertools.product(one.workloads, one.systems):
            measured[workload.id, system] += [cell.shape for cell in workload.cells]
    for goal in goals.KAFKA_GOALS:
        systems_of = {goal.system, goal.peer, *((goals.BARE,) if goal.compute else ())} - {""}
        for system in systems_of:
            shapes = measured[goal.workload, system]
            assert any(all(getattr(s, k) == v for k, v in goal.cell.items()) for s in shapes), (goal, system)
    kills = next(one for one in plan if one.piece == "kill-owner")
    assert sum(cell.shape.faults for cell in kills.workloads[0].cells) * kills.rounds == 20
    assert sum(one.estimate_s() for one in plan) < 3600
    assert compare.read_notes(KAFKA.with_name("kafka.notes.toml"))


def test_the_plan_on_s3_measures_every_goal_of_streams_on_s3_in_a_quarter_of_an_hour() -> None:
    plan = [command._planned(piece, Run()) for piece in plans.read(S3)]
    command._check_together(plan)
    measured: dict[tuple[str, str], list[spec.Shape]] = defaultdict(list)
    for one in plan:
        for workload, system in itertools.product(one.workloads, one.systems):
            measured[workload.id, system] += [cell.shape for cell in workload.cells]
    growth = [{"objects": 1000}, {"objects": 1_000_000}]  # of the goal that is computed
    for goal in goals.S3_GOALS:
        for system in {goal.system, goal.peer} - {""}:
            for wanted in growth if goal.compute else [goal.cell]:
                shapes = measured[goal.workload, system]
                assert any(all(getattr(s, k) == v for k, v in wanted.items()) for s in shapes), (goal, system, wanted)
    assert sum(one.estimate_s() for one in plan) <= 1000
    assert compare.read_notes(S3.with_name("s3.notes.toml"))


def test_the_plan_on_bookies_measures_every_goal_of_bookies_in_25_minutes() -> None:
    plan = [command._planned(piece, Run()) for piece in plans.read(BOOKIES)]
    command._check_together(plan)
    measured: dict[tuple[str, str], list[spec.Shape]] = defaultdict(list)
    for one in plan:
        for workload, system in itertools.product(one.workloads, one.systems):
            measured[workload.id, system] += [cell.shape for cell in workload.cells]
    for goal in (*goals.REPAIR_GOALS, *goals.LEDGER_GOALS, *goals.BOOKIE_GOALS):
        for system in {goal.system, goal.peer} - {""}:
            shapes = measured[goal.workload, system]
            assert any(all(getattr(s, k) == v for k, v in goal.cell.items()) for s in shapes), (goal, system)
    sizes = {shape.script: (shape.backlog_mb, shape.ledgers) for shapes in measured.values() for shape in shapes}
    assert sizes["lost-bookie"][0] == 2000 and sizes["restart-bookie"] == (10_000, 100_000)
    assert sum(one.estimate_s() for one in plan) <= 1500
    assert compare.read_notes(BOOKIES.with_name("bookies.notes.toml"))


def test_the_main_plan_keeps_to_an_hour_and_a_quarter() -> None:
    plan = [command._planned(piece, Run()) for piece in plans.read(MAIN)]
    assert sum(one.estimate_s() for one in plan) < 4500
    heads = {workload.id for one in plan for workload in one.workloads if one.rounds == 5}
    assert heads == {"W1", "W3", "W4"}
    assert NOTES.exists() and compare.read_notes(NOTES)
