"""Runs docs/spark.md block by block, as a reader copies it: beside a `dlog up --dir ./data`, with nothing else
defined."""

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
    for name in ("DLOG_CONNECT", "DLOG_ZOOKEEPER", "DLOG_DIR", "DLOG_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "data").symlink_to(cluster.directory)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) >= 6
    here: dict[str, Any] = {}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"docs/spark.md, block {number}", "exec"), here)
