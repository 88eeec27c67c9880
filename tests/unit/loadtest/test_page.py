"""docs/loadtest.md is correct: its commands are accepted, and its table lists the existing workloads."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import loadtest
from loadtest import spec
from loadtest.command import main as measure
from loadtest.growth import command as growth
from loadtest.report import main as report
from loadtest.runfile import Run
from loadtest.spark import command as in_spark

PAGE = (Path(__file__).parents[3] / "docs" / "loadtest.md").read_text()
COMMANDS = re.findall(r"(?m)^    python -m loadtest (.*)$", PAGE)


def go_where_it_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a directory that looks like the repository to code that only reads the load tests in it."""
    (tmp_path / "loadtest").symlink_to(Path(loadtest.__file__).parent)
    monkeypatch.chdir(tmp_path)


OTHERS = ("report ", "spark ", "peers ", "growth")  # commands that are not of workloads


@pytest.mark.parametrize("command", [command for command in COMMANDS if not command.startswith(OTHERS)])
def test_what_it_runs_can_be_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_where_it_may_write(tmp_path, monkeypatch)
    Run().save(tmp_path / "main.run.json")
    assert measure([*shlex.split(command), "--estimate"]) == 0


def test_what_it_reports_can_be_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_where_it_may_write(tmp_path, monkeypatch)
    Run().save(tmp_path / "main.run.json")
    (command,) = [command for command in COMMANDS if command.startswith("report")]
    assert report(shlex.split(command)[1:]) == 0
    assert (tmp_path / "report.html").exists() and (tmp_path / "report.md").exists()


def test_what_it_reads_in_spark_can_be_asked_for() -> None:
    (command,) = [command for command in COMMANDS if command.startswith("spark ")]
    assert in_spark.parser().parse_args(shlex.split(command)[1:]).gb > 0


def test_what_it_measures_of_growth_can_be_asked_for() -> None:
    commands = [command for command in COMMANDS if command.startswith("growth")]
    assert commands
    for command in commands:
        assert growth.chosen(growth.parser().parse_args(shlex.split(command)[1:]))


def test_its_table_of_curves_is_of_those_that_there_are() -> None:
    (section,) = re.findall(r"(?ms)^## Growth\n(.*?)^## ", PAGE)
    assert re.findall(r"(?m)^\| ([a-z]+) \|", section)[1:] == list(growth.CURVES)


def test_its_table_is_of_the_workloads_that_there_are() -> None:
    rows = re.findall(r"(?m)^\| (W[\dW, ]+) \| ([a-z0-9, -]+) \|", PAGE)
    told = [pair for ids, names in rows for pair in zip(ids.split(", "), names.split(", "), strict=True)]
    told.remove(("W18", "spark"))  # which has no file: loadtest/spark
    assert told == [(name, spec.load(name).name) for name in spec.ids()]
