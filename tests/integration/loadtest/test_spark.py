"""Runs a small W18: every cell either has a figure of checked records, or says why it is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.spark import jars, regions
from loadtest.spark.command import SMALL_RECORDS, TUNED
from loadtest.spark.filling import RECORD_BYTES
from loadtest.systems.java import KAFKA, PartMissingError
from tests.integration.spark.parts import need_spark
from tests.parts import need

pytestmark = [pytest.mark.peers, pytest.mark.slow]
RECORDS = 450_000  # 0.09 GB: an offload moves whole segments
SCANS = "all columns", "one column"
CELLS = {
    "dlog": {*SCANS, "micro-batch", "audit", "audit of every copy", "offload"},
    "kafka": {*SCANS, TUNED, "micro-batch"},
    "parquet": set(SCANS),
    "region": {"replay, counted", "its topic, counted", "replay to Parquet", "its topic to Parquet"},
}
REGION_RECORDS = RECORDS * RECORD_BYTES // regions.RECORD_BYTES


def test_what_is_read_in_spark_is_checked_and_measured(tmp_path: Path) -> None:
    need_spark()
    missing = missing_of_kafka()
    out = tmp_path / "w18.json"
    quickly = os.environ["SPARK_SUBMIT_OPTS"].replace("-XX:+UseSerialGC", "")  # it sets Java's collector itself
    done = subprocess.run(
        [
            *(sys.executable, "-m", "loadtest", "spark", "--gb", "0.09", "--rounds", "1", "--warm-up", "0"),
            *("--voids", "0", "--only", "dlog,parquet" if missing else ",".join(CELLS), "--out", str(out)),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "TMPDIR": str(tmp_path), "SPARK_SUBMIT_OPTS": quickly},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    told = json.loads(out.read_text())
    assert told["records"] == RECORDS
    there = {source: names for source, names in CELLS.items() if missing is None or source in ("dlog", "parquet")}
    measured: dict[str, set[str]] = {source: set() for source in there}
    for cell in told["cells"]:
        if cell["source"] not in there:
            assert cell["not_run"] == "not in --only", cell
            continue
        assert cell["not_run"] is None and len(cell["values"]) == 1 and cell["values"][0] > 0, cell
        records = SMALL_RECORDS if cell["cell"] == "micro-batch" else RECORDS
        if cell["cell"] != "offload":
            assert cell["records"] == (REGION_RECORDS if cell["source"] == "region" else records), cell
        measured[cell["source"]].add(cell["cell"])
    assert measured == there
    assert ("not run: not in --only" in done.stdout) == (missing is not None)
    assert "goal micro-batch, dlog" in done.stdout
    if missing is not None:
        need(False, *missing)


def missing_of_kafka() -> tuple[str, str] | None:
    """A part that is missing to measure Kafka too, and how to get it."""
    how = "python -m loadtest peers install {} (needs Maven: apt-get install maven)"
    if shutil.which("javac") is None:
        return "a JDK", "apt-get install openjdk-17-jdk-headless"
    if not KAFKA.are_here():
        return "the jars of kafka", how.format("kafka")
    try:
        jars.found()
    except PartMissingError:
        return "the jars of Spark's Kafka source", how.format("spark-kafka")
    return None
