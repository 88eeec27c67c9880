"""Caches of entry packets: a write cache for entries not flushed yet, and a read cache.

Invariants:
- `WriteCache` holds every durable entry that is in no index on disk; only flushed entries are dropped;
- `ReadCache` may drop anything at any time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from typing import NamedTuple

from dlog.wire.framing import Buffer

_ENTRY_OVERHEAD = 200  # memory of an entry beside its packet, in bytes


class Stored(NamedTuple):
    """An entry packet and its CRC32C, computed on receipt and stored with it."""

    packet: Buffer
    crc: int


Half = dict[int, dict[int, Stored]]  # ledger -> entry -> stored


class WriteCache:
    """Entries that are not in an entry log yet. Two halves: one takes new entries while the other is being flushed."""

    __slots__ = ("_active", "_flushing", "bytes_active", "entries_active")

    def __init__(self) -> None:
        self._active: Half = {}
        self._flushing: Half = {}
        self.bytes_active = 0
        self.entries_active = 0

    def put(self, ledger: int, entry: int, stored: Stored) -> None:
        entries = self._active.get(ledger)
        if entries is None:
            entries = self._active[ledger] = {}
        entries[entry] = stored
        self.bytes_active += len(stored.packet) + _ENTRY_OVERHEAD
        self.entries_active += 1

    def get(self, ledger: int, entry: int) -> Buffer | None:
        for half in (self._active, self._flushing):
            entries = half.get(ledger)
            if entries is not None:
                stored = entries.get(entry)
                if stored is not None:
                    return stored.packet
        return None

    def entries_of(self, ledger: int) -> list[int]:
        """Ids of the ledger's entries, in no order."""
        return [*self._active.get(ledger, ()), *self._flushing.get(ledger, ())]

    def swap(self) -> Half:
        """Make the active half the one to flush and return it. The previous one must have been forgotten."""
        assert not self._flushing, "a half is forgotten before the next is flushed"
        self._flushing, self._active = self._active, {}
        self.bytes_active = self.entries_active = 0
        return self._flushing

    def forget_flushed(self) -> None:
        """Drop the half returned by `swap`: it is on disk and in the index."""
        self._flushing = {}


class ReadCache:
    """An LRU cache of entries, bounded by bytes. unused_bytes: of entries that were put as read ahead and were not got
    since."""

    __slots__ = ("_bytes_max", "_entries", "_unused", "bytes", "unused_bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._unused: set[tuple[int, int]] = set()
        self.bytes = 0
        self.unused_bytes = 0

    def put(self, ledger: int, entry: int, packet: bytes, *, is_ahead: bool = False) -> None:
        """Keep a packet. is_ahead: nobody has asked for it yet."""
        key = (ledger, entry)
        if key in self._entries:
            self._drop(key)
        self._entries[key] = packet
        self.bytes += len(packet) + _ENTRY_OVERHEAD
        if is_ahead:
            self._unused.add(key)
            self.unused_bytes += len(packet) + _ENTRY_OVERHEAD
        while self.bytes > self._bytes_max and self._entries:
            self._drop(next(iter(self._entries)))

    def forget(self, ledgers: Container[int]) -> None:
        """Drop the entries of these ledgers."""
        for key in [key for key in self._entries if key[0] in ledgers]:
            self._drop(key)

    def get(self, ledger: int, entry: int) -> bytes | None:
        key = (ledger, entry)
        packet = self._entries.get(key)
        if packet is not None:
            self._entries.move_to_end(key)
            self._note_used(key, packet)
        return packet

    def _drop(self, key: tuple[int, int]) -> None:
        packet = self._entries.pop(key)
        self.bytes -= len(packet) + _ENTRY_OVERHEAD
        self._note_used(key, packet)

    def _note_used(self, key: tuple[int, int], packet: bytes) -> None:
        if key in self._unused:
            self._unused.discard(key)
            self.unused_bytes -= len(packet) + _ENTRY_OVERHEAD
