"""Tests growth curves: the exponent, the bounds, the table and the command, with invented measurements."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlog.errors import UnavailableError
from loadtest.growth import command, table
from loadtest.growth.curve import COST_RATIO, Bound, Curve, Point, Request, exponent, judge
from loadtest.judge import Verdict

Measure = Callable[[Request], Awaitable[Point]]


def costs(cost: Callable[[int], float]) -> Measure:
    """A measurement whose cost is this function of the size, and whose figure `twice` is the double of the size."""

    async def measure(request: Request) -> Point:
        assert request.room.is_dir() and not list(request.room.iterdir()), "an empty directory"
        return Point(cost=cost(request.size), figures={"twice": 2.0 * request.size}, verdict=Verdict(sent=1, read=1))

    return measure


def curve(name: str = "linear", measure: Measure | None = None) -> Curve:
    return Curve(
        name=name,
        says="made up",
        grows="things",
        cost="CPU s",
        sizes=(10, 100, 1000),
        measure=measure or costs(lambda size: 0.5 * size),
        exponent_max=1.1,
        bounds=(
            Bound(figure="twice", says="the double", at_most=2000.0, size=1000),
            Bound(figure=COST_RATIO, says="cost over that at 10", at_most=100.0, size=1000),
            Bound(figure="twice", says="the double, told", size=10),
        ),
    )


def points(*pairs: tuple[int, float]) -> list[Point]:
    return [Point(size=size, cost=cost, figures={"twice": 2.0 * size}) for size, cost in pairs]


@pytest.mark.parametrize("power", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_the_exponent_is_the_power_of_the_size_that_costs_follow(power: float) -> None:
    sizes = [100, 700, 9000]
    assert exponent(sizes, [3.0 * size**power for size in sizes]) == pytest.approx(power)


def test_the_exponent_is_by_least_squares_over_all_sizes() -> None:
    assert exponent([1, 10, 100], [1.0, 100.0, 1.0]) == pytest.approx(0.0)
    assert exponent([1, 10, 100], [1.0, 1.0, 10.0]) == pytest.approx(0.5)


def test_there_is_no_exponent_of_one_size() -> None:
    assert exponent([10], [1.0]) is None
    assert exponent([10, 10], [1.0, 2.0]) is None


def test_a_cost_too_small_to_be_measured_has_an_exponent() -> None:
    assert exponent([10, 1000], [0.0, 0.0]) == pytest.approx(0.0)
    found = exponent([10, 1000], [0.0, 1.0])
    assert found is not None and found > 1.0


def test_bounds_are_judged_at_their_size() -> None:
    judged = judge(curve(), points((10, 5.0), (100, 50.0), (1000, 500.0)))
    assert judged.exponent == pytest.approx(1.0) and judged.is_exponent_met
    assert [(one.measured, one.is_met) for one in judged.bounds] == [(2000.0, True), (100.0, True), (20.0, None)]
    assert judged.is_met and judged.is_green


def test_what_is_beyond_its_bound_is_missed() -> None:
    steep = judge(curve(), points((10, 1.0), (1000, 1e6)))
    assert steep.is_exponent_met is False and not steep.is_met
    assert [one.is_met for one in steep.bounds] == [True, False, None]
    narrow = replace(curve(), bounds=(Bound(figure="twice", says="the double", at_most=1999.0, size=1000),))
    judged = judge(narrow, points((10, 5.0), (1000, 500.0)))
    assert judged.is_exponent_met and not judged.is_met


def test_a_bound_whose_size_was_not_measured_is_neither_met_nor_missed() -> None:
    judged = judge(curve(), points((100, 50.0), (200, 100.0)))
    assert [(one.measured, one.is_met) for one in judged.bounds] == [(None, None)] * 3
    assert judged.is_met
    alone = judge(curve(), points((1000, 500.0)))
    assert alone.exponent is None and alone.is_exponent_met is None
    assert [one.measured for one in alone.bounds] == [2000.0, None, None], "a ratio is of two sizes"


@pytest.mark.parametrize("wrong", ["verdict", "failed", "error"])
def test_a_curve_that_is_not_green_has_no_figures(wrong: str) -> None:
    found = points((10, 5.0), (1000, 500.0))
    if wrong == "verdict":
        found[1].verdict = Verdict(sent=7, lost=1, examples=["never got 0:3"])
    if wrong == "failed":
        found[0].failed = ["record 4: timed out"]
    judged = judge(curve(), found, "no cluster came up" if wrong == "error" else "")
    assert not judged.is_green
    told = judged.as_json()
    assert not told["green"] and not {"costs", "exponent", "figures", "bounds"} & set(told)
    text = table.as_text([judged])
    assert ("FAILED" if wrong == "error" else "NOT GREEN") in text
    assert "500" not in text and "the double" not in text
    assert {"verdict": "never got 0:3", "failed": "timed out", "error": "no cluster came up"}[wrong] in text


def test_the_table_tells_each_curve_and_each_figure_with_its_bound() -> None:
    good = judge(curve(), points((10, 5.0), (100, 50.0), (1000, 500.0)))
    steep = judge(curve("steep"), points((10, 0.01), (100, 1.234)))
    lines = [" ".join(line.split()) for line in table.as_text([good, steep]).splitlines()]
    assert lines[:3] == [
        "curve sizes cost at each size exponent bound",
        "linear 10 100 1,000 things CPU s 5 50 500 1.00 <= 1.10 met",
        "steep 10 100 things CPU s 0.01 1.23 2.09 <= 1.10 MISSED",
    ]
    assert "linear: the double 1,000 2,000 <= 2,000 met" in lines
    assert "linear: the double, told 10 20 -" in lines
    assert "steep: the double 1,000 not measured <= 2,000" in lines
    assert sum(line.endswith("diverged=0") and ": green: sent=0" in line for line in lines) == 2


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> dict[str, Curve]:
    async def fails(request: Request) -> Point:
        if request.size > 10:
            raise ExceptionGroup("some", [UnavailableError("no bookie answers")])
        return Point(cost=1.0, figures={"twice": 2.0 * request.size})

    async def soak(request: Request) -> Point:
        return Point(cost=request.minutes)

    curves = {
        "linear": curve(),
        "steep": curve("steep", costs(lambda size: float(size**3))),
        "fails": curve("fails", fails),
        "soak": replace(curve("soak", soak), sizes=(2,), exponent_max=None, bounds=(), minutes=30.0),
    }
    monkeypatch.setattr(command, "CURVES", curves)
    return curves


@pytest.mark.usefixtures("made_up")
def test_exit_0_where_all_is_met_and_the_run_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "growth.json"
    assert command.main(["linear", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "linear  10 100 1,000 things" in said.out and "linear 100 things" in said.err
    kept = json.loads(out.read_text())
    assert kept["green"] and kept["met"] and kept["command"].startswith("python -m loadtest growth linear")
    (told,) = kept["curves"]
    assert told["sizes"] == [10, 100, 1000] and told["exponent"] == pytest.approx(1.0)
    assert told["bounds"][0] == {"figure": "twice", "size": 1000, "measured": 2000.0, "at_most": 2000.0, "met": True}


@pytest.mark.usefixtures("made_up")
def test_exit_1_where_a_bound_is_missed_or_a_curve_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["steep", "--quiet"]) == 1
    assert "MISSED" in capsys.readouterr().out
    assert command.main(["fails", "linear", "--json", "--quiet"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [(one["curve"], one["green"]) for one in told["curves"]] == [("fails", False), ("linear", True)]
    assert told["curves"][0]["sizes"] == [10] and "no bookie answers" in told["curves"][0]["error"]


@pytest.mark.usefixtures("made_up")
def test_sizes_and_minutes_are_changed_and_soaks_run_only_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--json", "--quiet", "--sizes", "4,2,1_0"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [one["curve"] for one in told["curves"]] == ["linear", "steep", "fails"]
    assert told["curves"][0]["sizes"] == [2, 4, 10]
    assert command.main(["soak", "--json", "--quiet", "--minutes", "0.5"]) == 0
    (soak,) = json.loads(capsys.readouterr().out)["curves"]
    assert soak["costs"] == [0.5] and soak["exponent"] is None


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(
    "wrong",
    [
        ["none-such"],
        ["--sizes", "1,x"],
        ["--sizes", "0,5"],
        ["soak", "--sizes", "1,2"],
        ["linear", "--minutes", "3"],
        ["soak", "--minutes", "0"],
        ["linear", "--out", "no/such/directory/growth.json"],
    ],
)
def test_exit_2_where_it_is_misused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(wrong) == 2
    assert "loadtest: growth: " in capsys.readouterr().err


def test_every_curve_of_the_command_is_whole() -> None:
    for name, one in command.CURVES.items():
        assert one.name == name
        assert one.is_soak or len(one.sizes) == 3
        assert all(bound.size in one.sizes for bound in one.bounds), f"the figures of {name} are never judged"
