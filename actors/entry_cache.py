"""LRU cache of segment entries, shared by all readers of a process.

Invariants:
- every cached entry is immutable and confirmed;
- the size in bytes is bounded; the least recently used entries are evicted first;
- a missing entry means nothing: the cache never says that an entry does not exist.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

ENTRY_OVERHEAD_BYTES = 200  # memory per entry beside its payload, about


class EntryCache:
    """Payloads by (segment key, entry). A segment key is store and location, which are never reused."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._by_segment: dict[str, set[int]] = {}  # ids of the cached entries; no set is empty

    def __len__(self) -> int:
        return len(self._entries)

    def holds(self, segment: str, entry: int) -> bool:
        """Whether an entry is cached; does not count as use."""
        return (segment, entry) in self._entries

    def run(self, segment: str, first: int, last: int, bytes_max: int) -> list[bytes]:
        """The cached entries from `first` on without a gap, up to `last` or until they reach bytes_max."""
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
        """Add entries read from a store. A payload larger than the whole cache is not kept."""
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
        """Remove a segment, or its entries below `before` (truncated or deleted data).

        Takes time proportional to this segment's cached entries only.
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
