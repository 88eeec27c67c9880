"""Input partitions of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from dlog.spark.planning import Range


class Task(InputPartition):
    """Ranges that one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


class Rows(InputPartition):
    """Rows that the plan contains, by column."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        super().__init__(None)
        self.columns = columns
