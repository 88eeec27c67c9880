"""docs/spark.md, block by block, as a reader would run it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli.up import Up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"


def test_the_tutorial_runs(cluster: Up, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLOG_CONNECT", cluster.running.connect)
    monkeypatch.setenv("DLOG_ZOOKEEPER", cluster.running.zookeeper)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) >= 6
    here: dict[str, Any] = {"checkpoint": str(tmp_path / "checkpoint")}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"docs/spark.md, block {number}", "exec"), here)
