"""Entries that the scan of one segment comes by and that readers of other segments want next.

A region has the entries of many segments in one topic, so a scan of one of them reads them all. Readers that go through
the same part of a region share one pass: who needs more fetches, one at a time, and keeps what the others want.

Invariants:
- An entry is kept only if it counts by the region's rule and lies below its table's watermark, so it is final.
- A place is the offset of an entry that counts: a scan may begin there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from dlog.region.follower import RecentEntries
from dlog.region.reading import RegionEntry
from dlog.region.tables import TableMeta


class PassedEntries:
    """Of one region. pass_lock: held by the reader that fetches; the others wait, and look here again. bytes_max: of
    entries that are kept; the oldest are dropped."""

    def __init__(self, bytes_max: int) -> None:
        self.pass_lock = asyncio.Lock()
        self._entries = RecentEntries(bytes_max)
        self._wanted: dict[int, int] = {}  # by table: the sequence that its reader wants next
        self._places: dict[int, tuple[int, int]] = {}  # by wanted table: sequence and offset of the last entry kept

    def want(self, table: int, sequence: int) -> None:
        """A reader of old entries wants this one next. Of two readers of a table the last one counts."""
        self._wanted[table] = sequence

    def leave(self, table: int) -> None:
        """No old entry of the table is wanted."""
        if self._wanted.pop(table, None) is not None:
            self._places.pop(table, None)
            if not self._wanted:
                self._entries.clear()

    def beside(self, table: int, known: Callable[[int], TableMeta | None]) -> Mapping[int, int]:
        """The other tables of which entries are wanted, each with its watermark."""
        found = ((other, known(other)) for other in self._wanted if other != table)
        return {other: meta.current_high_watermark for other, meta in found if meta is not None}

    def keep(self, entry: RegionEntry) -> None:
        """Keep an entry that a scan of another table came by, if it is wanted."""
        wanted = self._wanted.get(entry.table)
        if wanted is not None and entry.sequence >= wanted:
            self._entries.add(entry.table, entry.sequence, entry.payload)
            self._places[entry.table] = entry.sequence, entry.offset

    def find(self, table: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        """See RecentEntries.find."""
        return self._entries.find(table, first, last, bytes_max)

    def place(self, table: int, sequence: int) -> int:
        """An offset at or before the entry of this sequence, from which a scan may begin; 0: none is known."""
        known, offset = self._places.get(table, (0, 0))
        return offset if known <= sequence else 0
