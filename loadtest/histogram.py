"""Histogram of durations in microseconds, with the bucket layout of HdrHistogram: relative error below 1/1024.

A value below 0 counts as 0. Our own, because the package hdrhistogram takes four times as long to record a value, and
generators in other languages send these sparse counts (docs/decisions/0034-reports-and-load-test-use-libraries.md).

Invariants:
- a percentile is the greatest value of its bucket, so that it is never reported too low.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_FINE_BITS = 11  # values below 2^11 us are exact; above, a bucket is at most 1/1024 of its value wide
_FINE = 1 << _FINE_BITS


class Histogram:
    """Counts by bucket."""

    __slots__ = ("_counts", "count")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}  # greatest value of a bucket -> count
        self.count = 0

    def record(self, value_us: float, count: int = 1) -> None:
        value = int(value_us) if value_us > 0 else 0
        if value >= _FINE:
            shift = value.bit_length() - _FINE_BITS
            value |= (1 << shift) - 1
        counts = self._counts
        counts[value] = counts.get(value, 0) + count
        self.count += count

    def add(self, other: Histogram) -> None:
        """Add the counts of another one."""
        for value, count in other._counts.items():
            self.record(value, count)

    def percentile(self, percent: float) -> float:
        """The value, in us, at or below which `percent` of the values lie; 0 if empty."""
        if not self.count:
            return 0.0
        wanted = max(1, -(-self.count * percent // 100))
        seen = 0
        for value in sorted(self._counts):
            seen += self._counts[value]
            if seen >= wanted:
                return float(value)
        return float(max(self._counts))

    def percentiles(self, percents: Iterable[float]) -> list[float]:
        return [self.percentile(percent) for percent in percents]

    @property
    def mean(self) -> float:
        return sum(v * n for v, n in self._counts.items()) / self.count if self.count else 0.0

    def as_json(self) -> dict[str, Any]:
        return {"unit": "us", "counts": sorted(map(list, self._counts.items()))}


def from_json(data: Any) -> Histogram:
    """Decode `as_json`, also of a generator in another language. Raises ValueError."""
    histogram = Histogram()
    if not isinstance(data, Mapping) or data.get("unit") != "us" or not isinstance(data.get("counts"), list):
        raise ValueError('a histogram must be {"unit": "us", "counts": [[value, count], ...]}')
    for pair in data["counts"]:
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(n, int | float) for n in pair)):
            raise ValueError(f"a histogram's counts must be pairs [value, count]: {pair!r:.60}")
        value, count = pair
        if not (0 <= value < 1e15 and 0 <= count < 1e15 and count == int(count)):
            raise ValueError(f"a histogram's [value, count] must both be 0 or more: {pair!r:.60}")
        if count:
            histogram.record(value, int(count))
    return histogram


def joined(histograms: Iterable[Any]) -> Histogram:
    """Sum of histograms. Raises ValueError."""
    whole = Histogram()
    for one in histograms:
        whole.add(from_json(one))
    return whole
