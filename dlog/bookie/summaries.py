"""Summaries of ranges of a ledger's entries, by which copies on several bookies are compared without their payload.

What is in memory is noted by the state machine, and a disk thread adds what the index has, one summary or list at a
time. It reads the first bytes of each packet alone.

Invariants:
- A summary counts every entry of its range that was durable when it was requested: the entries in memory are noted
  before the index is read, and entries move only from memory to the index. No entry counts twice.
- The work of a request is bounded by SUMMARY_IDS_MAX entries, and the memory of all by SUMMARIES_MAX requests.

Our own: BookKeeper's auditor reads entries, or lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlog.bookie.messages import StoredSummarized, SummarizeStored
from dlog.machine import Peer, Send
from dlog.model.ledger import DigestType
from dlog.wire.bookie import SUMMARY_IDS_MAX, Code, EntriesSummarized, SummarizeEntries
from dlog.wire.entry_summary import HEAD_BYTES_MAX, EntryOutline, Summary, summarize
from dlog.wire.framing import Buffer

SUMMARIES_MAX = 64  # under way at once
_DIGESTS = {digest.value: digest for digest in DigestType}


class Summaries:
    """Part of the bookie's state machine."""

    def __init__(self, in_memory: Callable[[int, int], Buffer | None]) -> None:
        """in_memory(ledger, entry): the packet of an entry that is durable and in the write cache."""
        self._in_memory = in_memory
        self._tokens = 0
        self._under_way: dict[int, tuple[Peer, SummarizeEntries]] = {}

    def refusal(self, m: SummarizeEntries) -> Code | None:
        """Why the request cannot be served, whatever the bookie holds."""
        if m.ledger < 0 or not 0 <= m.first <= m.last or not 0 <= m.remainder < m.modulus or m.digest not in _DIGESTS:
            return Code.BAD_REQUEST
        if (m.last - m.first) // m.modulus >= SUMMARY_IDS_MAX:
            return Code.BAD_REQUEST
        return Code.TOO_MANY_REQUESTS if len(self._under_way) >= SUMMARIES_MAX else None

    def begin(self, peer: Peer, m: SummarizeEntries, out: list[Any]) -> None:
        in_memory: dict[int, EntryOutline] = {}
        for entry in ids_of(m):
            packet = self._in_memory(m.ledger, entry)
            if packet is not None:
                in_memory[entry] = EntryOutline(entry, bytes(packet[:HEAD_BYTES_MAX]), len(packet))
        self._tokens = token = self._tokens + 1
        self._under_way[token] = (peer, m)
        out.append(SummarizeStored(token, m, in_memory))

    def done(self, fact: StoredSummarized, out: list[Any]) -> None:
        peer, m = self._under_way.pop(fact.token)
        if fact.summary is None:
            out.append(Send(peer, EntriesSummarized(m.ledger, m.first, m.request, Code.IO_ERROR)))
        else:
            out.append(Send(peer, EntriesSummarized(m.ledger, m.first, m.request, Code.OK, *fact.summary)))


def ids_of(m: SummarizeEntries) -> range:
    """The ids that a request asks for."""
    return range(m.first + (m.remainder - m.first) % m.modulus, m.last + 1, m.modulus)


def summary_of(wanted: SummarizeStored, stored: Callable[[int], EntryOutline | None]) -> Summary:
    """The summary of what is in memory and stored. stored(entry): from the index; None: it has none. May raise."""
    m, in_memory = wanted.wanted, wanted.in_memory
    found = (in_memory.get(entry) or stored(entry) for entry in ids_of(m))
    return summarize((outline for outline in found if outline is not None), _DIGESTS[m.digest])
