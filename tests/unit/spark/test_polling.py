"""Tests how often a streaming reader looks for new records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dlog.spark import streaming
from dlog.spark.options import SourceOptions
from dlog.spark.streaming import StreamsStreamReader


def test_an_idle_query_looks_as_often_as_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 22: without new records Spark asks every few milliseconds."""
    now, looks = [100.0], []

    def look(*_: Any) -> dict[str, Any]:
        looks.append(now[0])
        return {}

    monkeypatch.setattr(streaming, "ask", look)
    monkeypatch.setattr(streaming, "time", SimpleNamespace(monotonic=lambda: now[0]))
    reader = StreamsStreamReader(SourceOptions(zookeeper="h:1", streams=("a",), poll_interval_min_s=0.2), pa.schema([]))
    for _ in range(100):
        assert reader.latestOffset({}, ReadAllAvailable()) == {}
        now[0] += 0.012
    assert 1.2 / 0.2 - 1 <= len(looks) <= 1.2 / 0.2 + 1
