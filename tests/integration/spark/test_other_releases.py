"""The same tests with the oldest PySpark that is supported: source, streaming source and sink."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.parts import need

ROOT = Path(__file__).parents[3]
OLDER = ROOT / ".cache" / "pyspark-4.2"
FILES = ("test_source.py", "test_streaming.py", "test_sink.py")
CHOSEN = (
    *("what_spark_reads", "bounds", "projection", "tables_of_metadata"),
    *("every_record_once", "available_now", "follows_what_comes", "pinned"),
    *("few_rows", "numbered", "query_writes", "driver_died"),
)


def test_pyspark_4_2(tmp_path: Path) -> None:
    need((OLDER / "pyspark").is_dir(), "PySpark 4.2", "make sparks")
    files = [str(Path(__file__).parent / name) for name in FILES]
    quiet = ("-vv", "-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", str(tmp_path / "inner"))
    asked = subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, *files, "-k", " or ".join(CHOSEN)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(OLDER), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stdout[-3000:] + asked.stderr[-1000:]
    assert all(name in asked.stdout for name in CHOSEN), "each of them was run"
