"""How many bytes of records lie between two offsets of a data topic, as far as the state of the region shows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate, pairwise

from dlog.region.items import RECORD_OVERHEAD_BYTES
from dlog.region.tables import MAP_EVERY, MAP_EVERY_BYTES, TableMeta

SEEK_TABLES_MAX = 16  # readers of more tables read all records
SEEK_BYTES = 1 << 20  # that a reader passes over at once, at least


class Sizes:
    """Estimates the bytes of records between two offsets, from the mappings of all tables."""

    def __init__(self, tables: Iterable[TableMeta]) -> None:
        weights = sorted(weight for meta in tables for weight in _weights(meta))
        self._offsets = [at for at, _ in weights]
        self._sums = [0, *accumulate(size for _, size in weights)]

    def between(self, begin: int, end: int) -> int:
        low, high = bisect_left(self._offsets, begin), bisect_left(self._offsets, end)
        return max(self._sums[high] - self._sums[low], (end - begin) * RECORD_OVERHEAD_BYTES)


def _weights(meta: TableMeta) -> Iterable[tuple[int, int]]:
    """Each mapped offset, and about how many bytes the table has from there to the next one."""
    each = meta.payload_bytes // max(1, meta.next_seq_num - 1) + RECORD_OVERHEAD_BYTES
    mapped = list(meta.seq_offset_mapping.items())
    for (sequence, at), (following, _) in pairwise(mapped):
        records = following - sequence
        yield at, max(records * each, 0 if records >= MAP_EVERY else MAP_EVERY_BYTES)
    if mapped:
        sequence, at = mapped[-1]
        yield at, (meta.next_seq_num - sequence) * each
