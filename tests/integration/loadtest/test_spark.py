"""W18, small: every cell that is there has a figure of records that were checked, and the rest is named with why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.integration.spark.parts import need_spark


def test_what_is_read_in_spark_is_checked_and_measured(tmp_path: Path) -> None:
    need_spark()
    out = tmp_path / "w18.json"
    quickly = os.environ["SPARK_SUBMIT_OPTS"].replace("-XX:+UseSerialGC", "")  # it says itself how Java collects
    done = subprocess.run(
        [
            *(sys.executable, "-m", "loadtest", "spark", "--gb", "0.09", "--rounds", "1", "--voids", "0"),
            *("--only", "dlog,parquet", "--out", str(out)),
        ],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "TMPDIR": str(tmp_path), "SPARK_SUBMIT_OPTS": quickly},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    told = json.loads(out.read_text())
    for cell in told["cells"]:
        if cell["source"] == "kafka":
            assert cell["not_run"] == "not asked for"
            continue
        assert cell["not_run"] is None and len(cell["values"]) == 1 and cell["values"][0] > 0, cell
        if cell["cell"] in ("all columns", "one column", "audit"):
            assert cell["records"] == told["records"] == 450_000
    assert "not run: not asked for" in done.stdout and "goal micro-batch, dlog" in done.stdout
