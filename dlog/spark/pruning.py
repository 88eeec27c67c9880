"""Decides from metadata what filters exclude. Spark applies every filter again: nothing that matches may be excluded,
and including too much only costs time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from dlog.spark.planning import Range, SegmentView

_NUMBERS = ("segment", "txid", "timestamp")


@dataclass(slots=True)
class Pruning:
    """Bounds by column, both inclusive; streams: those that may match; None: any."""

    least: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    streams: frozenset[str] | None = None

    def admits_stream(self, name: str) -> bool:
        return self.streams is None or name in self.streams

    def admits(self, part: Range, segment: SegmentView | None) -> bool:
        """Whether a record of this range may match."""
        if not self._overlaps("segment", part.segment, part.segment):
            return False
        if segment is None:
            return True
        if segment.first_txid >= 0 and segment.first_txid > self.most.get("txid", segment.first_txid):
            return False
        if not segment.is_completed:
            return True
        if segment.last_txid >= 0 and segment.last_txid < self.least.get("txid", segment.last_txid):
            return False
        ended_us = segment.completed_unix_ms * 1000 + 999
        return not segment.completed_unix_ms or ended_us >= self.least.get("timestamp", ended_us)

    def _overlaps(self, column: str, low: int, high: int) -> bool:
        return self.least.get(column, low) <= high and low <= self.most.get(column, high)


def pruning_of(filters: Sequence[Filter]) -> Pruning:
    """What all these filters together exclude. An unknown filter excludes nothing."""
    found = Pruning()
    for one in filters:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        column = attribute[0] if len(attribute) == 1 else ""
        if column == "stream" and isinstance(one, EqualTo | In):
            names = one.value if isinstance(one, In) else (one.value,)
            allowed = frozenset(str(name) for name in names)
            found.streams = allowed if found.streams is None else found.streams & allowed
        elif column in _NUMBERS:
            _bound(found, column, one)
    return found


def _bound(found: Pruning, column: str, one: Filter) -> None:
    if isinstance(one, In):
        values = [number for value in one.value if (number := _number(value)) is not None]
        if values and len(values) == len(one.value):
            _least(found, column, min(values))
            _most(found, column, max(values))
        return
    number = _number(getattr(one, "value", None))
    if number is None:
        return
    if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
        _least(found, column, number)
    if isinstance(one, EqualTo | LessThan | LessThanOrEqual):
        _most(found, column, number)


def _least(found: Pruning, column: str, value: int) -> None:
    found.least[column] = max(value, found.least.get(column, value))


def _most(found: Pruning, column: str, value: int) -> None:
    found.most[column] = min(value, found.most.get(column, value))


def _number(value: Any) -> int | None:
    """A number, or a time in microseconds."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, datetime) and value.tzinfo is not None:  # without a time zone it cannot be compared
        return int(value.timestamp() * 1_000_000)
    return None
