"""The oldest PySpark that is supported: source, streaming source and sink work as with the newest. Delta Lake is tested
with it too, because Delta Lake supports no newer one yet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.systems.java import DELTA
from tests.parts import need

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
OLDER = ROOT / ".cache" / "pyspark-4.2"
FILES = ("test_source.py", "test_streaming.py", "test_sink.py")
CHOSEN = (
    *("what_spark_reads", "bounds", "projection", "tables_of_metadata"),
    *("every_record_once", "available_now", "follows_what_comes", "pinned"),
    *("few_rows", "numbered", "query_writes", "driver_died"),
)


def test_pyspark_4_2(tmp_path: Path) -> None:
    need_older()
    said = run([str(Path(__file__).parent / name) for name in FILES], tmp_path, "-k", " or ".join(CHOSEN))
    assert all(name in said for name in CHOSEN), "each of them was run"


def test_delta_lake(tmp_path: Path) -> None:
    need_older()
    how = "python -m loadtest peers install delta (needs Maven: apt-get install maven)"
    need(DELTA.are_here(), "Delta Lake", how)
    said = run([str(Path(__file__).parent / "delta_tables.py")], tmp_path)
    assert said.count("PASSED") == 2 and "SKIPPED" not in said, said[-3000:]


def need_older() -> None:
    need((OLDER / "pyspark").is_dir(), "PySpark 4.2", "make sparks")


def run(files: list[str], room: Path, *chosen: str) -> str:
    """Pytest's output for them with that PySpark."""
    quiet = ("-vv", "-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", str(room / "inner"))
    asked = subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, *files, *chosen],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(OLDER), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stdout[-3000:] + asked.stderr[-1000:]
    return asked.stdout
