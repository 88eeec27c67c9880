"""How much of an object storage's data a reader requests at once, and before it needs them."""

from __future__ import annotations

from dlog.values import value

AHEAD_PARTS, ALL_AHEAD_PARTS = 8, 2  # of a cache: one is for what is read ahead, of one stream and of all


@value
class ReadLimits:
    """group_bytes: of adjacent data in one request. ahead_bytes: of data behind those that a read needs.
    all_ahead_bytes: of those of all streams."""

    group_bytes: int
    ahead_bytes: int
    all_ahead_bytes: int

    @classmethod
    def of_cache(cls, group_bytes: int, reads_ahead: int, cache_bytes: int) -> ReadLimits:
        """The limits of one stream that has a cache of so many bytes for itself. reads_ahead: in requests."""
        ahead_bytes = min(reads_ahead * group_bytes, cache_bytes // AHEAD_PARTS)
        return cls(group_bytes, ahead_bytes, cache_bytes // ALL_AHEAD_PARTS)

    def shared(self, streams: int) -> ReadLimits:
        """The limits of one stream while so many are read: what is read ahead must not be evicted before it is used."""
        ahead_bytes = min(self.ahead_bytes, self.all_ahead_bytes // streams)
        return ReadLimits(min(self.group_bytes, ahead_bytes), ahead_bytes, self.all_ahead_bytes)
