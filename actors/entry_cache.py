"""Entries of sealed and unsealed segments as read from stores, for all readers of a process.

The law of this room: what is here is immutable and confirmed; it is bounded by bytes, the least recently used goes
first; that something is not here means nothing. Nobody is ever told from here that an entry does not exist.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

ENTRY_OVERHEAD_BYTES = 200  # of keeping one entry beside its payload, about


class EntryCache:
    """Payloads by (segment key, entry). A segment key names store and place, which are never used twice."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._by_segment: dict[str, set[int]] = {}  # ids of the entries that are here; none is empty

    def __len__(self) -> int:
        return len(self._entries)

    def holds(self, segment: str, entry: int) -> bool:
        """Whether an entry is here now; does not count as use."""
        return (segment, entry) in self._entries

    def run(self, segment: str, first: int, last: int, bytes_max: int) -> list[bytes]:
        """The entries from `first` on that are here without a gap, up to `last` or until they sum up to bytes_max."""
        entries = self._entries
        found: list[bytes] = []
        size = 0
        for entry in range(first, last + 1):
            payload = entries.get((segment, entry))
            if payload is None:
                break
            entries.move_to_end((segment, entry))
            found.append(payload)
            size += len(payload)
            if size >= bytes_max:
                break
        if found:
            self.hits += len(found)
        else:
            self.misses += 1
        return found

    def put(self, segment: str, first: int, payloads: Sequence[bytes]) -> None:
        """Keep what a store answered. A payload larger than the whole cache is not kept."""
        for entry, payload in enumerate(payloads, first):
            key = (segment, entry)
            if key in self._entries:
                self._entries.move_to_end(key)
                continue
            self._entries[key] = payload
            self._by_segment.setdefault(segment, set()).add(entry)
            self.bytes += len(payload) + ENTRY_OVERHEAD_BYTES
        while self.bytes > self.bytes_max:
            (oldest, entry), payload = self._entries.popitem(last=False)
            self._left(oldest, entry, payload)

    def drop(self, segment: str, before: int | None = None) -> None:
        """Forget a segment, or its entries below `before`: truncated or deleted data leaves at once.

        Costs what is here of this segment, however much there is of others.
        """
        held = self._by_segment.get(segment, ())
        for entry in [entry for entry in held if before is None or entry < before]:
            self._left(segment, entry, self._entries.pop((segment, entry)))

    def _left(self, segment: str, entry: int, payload: bytes) -> None:
        self.bytes -= len(payload) + ENTRY_OVERHEAD_BYTES
        held = self._by_segment[segment]
        held.remove(entry)
        if not held:
            del self._by_segment[segment]
