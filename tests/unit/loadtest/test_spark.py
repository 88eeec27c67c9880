"""W18 without Spark: the reported figures, and which CPU time counts for which process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.spark import cpu, jars
from loadtest.spark.command import Run, main
from loadtest.spark.measuring import Figure
from loadtest.systems.java import FetchFailedError, PartMissingError


def run_of(**values: list[float]) -> Run:
    run = Run(1000, 3, 0, 0, 0.1, {"dlog", "kafka", "parquet"})
    for told in run._results:
        key = told.cell.name.replace(", ", "_").replace(" ", "_").replace("-", "_")
        if key in values:
            told.figures = [Figure(value, 1000) for value in values[key]]
            told.cpu_s = [{"jvm": 1.0, "python": 0.01}] * len(told.figures)
        else:
            told.why_not = "a part is missing"
    return run


def test_medians_goals_and_what_was_not_run_are_told() -> None:
    run = run_of(all_columns_dlog=[390, 410, 700], all_columns_kafka=[200, 100, 300], micro_batch_dlog=[260, 270, 240])
    lines = run.as_text().splitlines()
    (row,) = [line for line in lines if line.startswith("all columns, dlog")]
    assert row.split()[3:7] == ["410", "390", "700", "MB/s"] and row.endswith("jvm 1.00")
    assert f"{'one column, dlog':33} not run: a part is missing" in lines
    goals = run.as_json()["goals"]
    assert goals["all columns, dlog"] == {"goal": 400, "reached": 410, "met": True}
    assert goals["all columns, dlog / kafka"] == {"goal": 1.5, "reached": 2.05, "met": True}
    assert goals["micro-batch, dlog"] == {"goal": 250, "reached": 260, "met": False}
    assert "goal micro-batch, dlog: 250, reached 260: NOT MET" in lines
    cells = {(cell["cell"], cell["source"]): cell for cell in run.as_json()["cells"]}
    assert cells["one column", "kafka"]["not_run"] == "a part is missing"
    assert cells["all columns", "dlog"]["values"] == [390, 410, 700]


@pytest.mark.parametrize("arguments", [["--gb", "0"], ["--rounds", "0"], ["--only", "oracle"]])
def test_what_means_nothing_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "--gb must be above 0" in capsys.readouterr().err


def test_cpu_is_told_by_role_and_children_that_ended_count() -> None:
    burn = "sum(range(3_000_000))"
    before = cpu.by_role({})
    subprocess.run([sys.executable, "-c", burn], check=True)
    used = cpu.since(cpu.by_role({}), before)
    assert used["python"] > 0
    with subprocess.Popen([sys.executable, "-c", f"{burn}; input()"], stdin=subprocess.PIPE, text=True) as child:
        while cpu.by_role({"mine": [child.pid]}).get("mine", 0.0) == 0.0:
            pass
        assert "mine" not in cpu.by_role({"mine": [os.getppid()]}), "only what is below us counts"
        child.communicate("\n")


def test_jars_of_kafkas_source_are_of_the_version_that_is_here_or_else_of_one_that_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "DIRECTORY", tmp_path)
    monkeypatch.setattr(jars, "spark_version", lambda: "4.9.1")
    with pytest.raises(PartMissingError, match="peers install spark-kafka"):
        jars.found()
    asked: list[str] = []

    def run(arguments: list[str], within_s: float) -> str:
        (version,) = [a.partition("=")[2] for a in arguments if a.startswith("-Dspark.version")]
        asked.append(version)
        if version not in there:
            raise FetchFailedError("no such artifact")
        (out,) = [Path(a.partition("=")[2]) for a in arguments if a.startswith("-DoutputDirectory")]
        out.mkdir(parents=True)
        (out / f"source-{version}.jar").write_bytes(b"")
        return ""

    monkeypatch.setattr(jars, "run", run)
    monkeypatch.setattr("shutil.which", lambda _: "mvn")
    there: set[str] = set()
    with pytest.raises(FetchFailedError, match="Maven has no spark-sql-kafka"):
        jars.install()
    there = {jars.ELSE}
    assert jars.install() and asked[-2:] == ["4.9.1", jars.ELSE]
    assert jars.found() == (jars.ELSE, [tmp_path / jars.ELSE / f"source-{jars.ELSE}.jar"])
    assert not jars.install()
