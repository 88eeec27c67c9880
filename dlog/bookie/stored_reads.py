"""Reads entries that are in the index, through the caches and from disk.

Invariants:
- One entry is read from disk once for all that wait for it, but for those that have to look again.
- "No such entry" is answered only if no checkpoint ended since the disk was asked: entries move from memory to the
  index at that moment, and the reader looks again.
- At most `reads_waiting_max` requests wait for the disk; a further one is refused.
- Entries that were read ahead and not used yet take at most about half of the read cache. So they are used before they
  are evicted, however many readers there are: the more readers, the less each of them reads ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from dlog.bookie.cache import ReadCache, WriteCache
from dlog.bookie.events import EntryDamaged
from dlog.bookie.messages import Fetch, Fetched
from dlog.bookie.options import BookieOptions
from dlog.machine import Emit
from dlog.wire.bookie import Code
from dlog.wire.framing import Buffer

Outcome = Buffer | Code | None  # packet; NO_ENTRY or an error; None: not in the result, look again
Resume = Callable[[Any, Outcome, list[Any]], None]
_Waiter = tuple[int, Resume, Any]  # entry, function to resume with, its argument
_AHEAD_SHARE = 4  # one request reads ahead at most a quarter of what the read cache has room for
_GAP_MAX = 4  # two entries that are waited for are read together if their ids differ by at most this


@dataclass(slots=True, eq=False)
class _Fetching:
    """A read from disk of up to `entries` entries from `entry` on, and the requests that wait for them. ahead: upper
    bound of the bytes of entries that no request waits for."""

    ledger: int
    entry: int
    entries: int
    ahead: int
    checkpoints: int  # number of checkpoints when it was started
    waiters: list[_Waiter]


class StoredReads:
    """The reads of one bookie. limbo: data may have been lost, so no entry is denied. waiting: how many requests wait
    for the disk. checkpoints: how many ended; the bookie counts them here."""

    def __init__(self, options: BookieOptions, cache: WriteCache, *, limbo: bool) -> None:
        self.waiting = 0
        self.checkpoints = 0
        self._options = options
        self._cache = cache
        self._read_cache = ReadCache(options.read_cache_bytes)
        self._limbo = limbo
        self._ahead = 0  # upper bound of the bytes that are being read ahead
        self._tokens = 0
        self._fetches: dict[int, _Fetching] = {}
        self._fetches_of: dict[int, list[_Fetching]] = {}

    def find(
        self,
        ledger: int,
        entry: int,
        resume: Resume,
        waiter: Any,
        out: list[Any],
        *,
        alone: bool,
        wanted: int = 0,
    ) -> Outcome:
        """Return the packet or the error; None if it arrives later: then `resume` is called with `waiter`.

        It is read from disk, or a read in flight that covers it is joined. Sequential reads are read ahead, random
        reads are not. alone: join no other read, and read ahead only for a batch. wanted: bytes that a batch takes, the
        following entries included; 0: it is no batch.
        """
        packet = self.in_memory(ledger, entry)
        if packet is not None:
            return packet
        if self.waiting >= self._options.reads_waiting_max:
            return Code.TOO_MANY_REQUESTS
        self.waiting += 1
        one = (entry, resume, waiter)
        under_way = self._fetches_of.get(ledger, ())
        if not alone:
            for fetching in under_way:
                if fetching.entry <= entry < fetching.entry + fetching.entries:
                    fetching.waiters.append(one)
                    return None
        entries, ahead = 1, 0
        if wanted > 0 or (not alone and self._reads_on(ledger, entry)):
            others = [fetching.entry - entry for fetching in under_way if fetching.entry > entry]
            entries = min([self._options.read_ahead_entries, *others])  # the rest is being read
            ahead = self._ahead_max() if entries > 1 else 0
        self._ask_disk(ledger, entry, entries, [one], out, ahead, max(ahead, wanted))
        return None

    def in_memory(self, ledger: int, entry: int) -> Buffer | None:
        """Return the packet if it is in a cache."""
        packet = self._cache.get(ledger, entry)
        return packet if packet is not None else self._read_cache.get(ledger, entry)

    def is_reading(self, ledger: int) -> bool:
        """Whether an entry of the ledger is being read from disk."""
        return ledger in self._fetches_of

    def forget(self, ledgers: Container[int]) -> None:
        """Drop entries of these ledgers, none of which is being read, from the read cache."""
        self._read_cache.forget(ledgers)

    def fetched(self, fact: Fetched, out: list[Any]) -> None:
        """The disk has answered."""
        fetching = self._fetches.pop(fact.token)
        under_way = self._fetches_of[fetching.ledger]
        under_way.remove(fetching)
        if not under_way:
            del self._fetches_of[fetching.ledger]
        self._ahead -= fetching.ahead
        first, packets = fetching.entry, fact.packets
        asked = {entry for entry, _, _ in fetching.waiters}
        for entry, packet in enumerate(packets, first):
            self._read_cache.put(fetching.ledger, entry, packet, is_ahead=entry not in asked)
        nothing: Outcome = Code.NO_ENTRY
        if fact.damage:
            nothing = Code.IO_ERROR
            out.append(Emit(EntryDamaged(fetching.ledger, first, fact.damage)))
        elif self._limbo:
            nothing = Code.IO_ERROR
        elif fetching.checkpoints != self.checkpoints:
            nothing = None
        left: list[_Waiter] = []
        for entry, resume, waiter in fetching.waiters:
            outcome: Outcome
            if entry - first < len(packets):
                outcome = packets[entry - first]
            elif entry == first:
                outcome = nothing
            else:
                outcome = self.in_memory(fetching.ledger, entry)
                if outcome is None:
                    left.append((entry, resume, waiter))
                    continue
            self.waiting -= 1
            resume(waiter, outcome, out)
        self._fetch_rest(fetching.ledger, left, out)

    # ---- internal ----------------------------------------------------------------------------------------------------

    def _reads_on(self, ledger: int, entry: int) -> bool:
        """Whether the entry before this one is being read or was read recently."""
        before = entry - 1
        return (
            before < 0
            or self.in_memory(ledger, before) is not None
            or any(f.entry <= before < f.entry + f.entries for f in self._fetches_of.get(ledger, ()))
        )

    def _ahead_max(self) -> int:
        """How many bytes a request may read ahead now."""
        used = self._read_cache.unused_bytes + self._ahead
        room = max(0, self._options.read_cache_bytes // 2 - used)
        return min(self._options.read_ahead_bytes, room // _AHEAD_SHARE)

    def _ask_disk(
        self,
        ledger: int,
        entry: int,
        entries: int,
        waiters: list[_Waiter],
        out: list[Any],
        ahead: int,
        bytes_max: int,
    ) -> None:
        self._tokens = token = self._tokens + 1
        self._ahead += ahead
        fetching = _Fetching(ledger, entry, entries, ahead, self.checkpoints, waiters)
        self._fetches[token] = fetching
        self._fetches_of.setdefault(ledger, []).append(fetching)
        out.append(Fetch(token, ledger, entry, entries, bytes_max))

    def _fetch_rest(self, ledger: int, left: list[_Waiter], out: list[Any]) -> None:
        """Read entries that a disk read did not return; each read returns at least its first entry."""
        left.sort(key=lambda one: one[0])
        together: list[_Waiter] = []
        for one in left:
            if together and not self._lies_near(one[0], together):
                self._ask_together(ledger, together, out)
                together = []
            together.append(one)
        if together:
            self._ask_together(ledger, together, out)

    def _lies_near(self, entry: int, before: list[_Waiter]) -> bool:
        """Whether the entry is so close behind those in `before` that one read of the disk is to get them all."""
        return entry - before[-1][0] <= _GAP_MAX and entry - before[0][0] < self._options.read_ahead_entries

    def _ask_together(self, ledger: int, waiters: list[_Waiter], out: list[Any]) -> None:
        first, last = waiters[0][0], waiters[-1][0]
        self._ask_disk(ledger, first, last - first + 1, waiters, out, 0, self._options.read_ahead_bytes)
