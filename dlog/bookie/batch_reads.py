"""Batch reads: consecutive entries of a ledger in one response, as many as fit, from memory and disk.

Source: BookKeeper, BatchedReadEntryProcessor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dlog.bookie.stored_reads import Outcome, Resume
from dlog.machine import Peer, Send
from dlog.options import MiB
from dlog.wire.bookie import BatchRead, BatchReadDone, Code
from dlog.wire.framing import Buffer

BATCH_BYTES_MAX = 5 * MiB
_BATCH_HEAD = 24 + 8 + 4


@dataclass(slots=True, eq=False)
class Batch:
    """A batch read that is being assembled."""

    peer: Peer
    request: BatchRead
    bytes_max: int
    entry: int
    size: int = _BATCH_HEAD
    packets: list[Buffer] = field(default_factory=list)


#: find(ledger, entry, peer, parked, resume, waiter, out, alone, wanted): as Bookie._find
Find = Callable[[int, int, Peer, Any, Resume, Any, list[Any], bool, int], Outcome]
#: fence(peer, request, out): as Bookie._fence
Fence = Callable[[Peer, BatchRead, list[Any]], Code | None]


class BatchReads:
    """Part of the bookie's state machine. find: reads an entry; fence: fences the ledger of a request."""

    def __init__(self, find: Find, fence: Fence) -> None:
        self._find = find
        self._fence = fence

    def read(self, peer: Peer, m: BatchRead, out: list[Any]) -> None:
        code: Code | None = Code.OK
        if m.ledger < 0 or m.start < -1:
            code = Code.BAD_REQUEST
        elif m.fence:
            code = self._fence(peer, m, out)
        if code is Code.OK:
            self.start(peer, m, out)
        elif code is not None:
            out.append(Send(peer, BatchReadDone(m.ledger, m.start, m.request, code)))

    def start(self, peer: Peer, m: BatchRead, out: list[Any]) -> None:
        """Read the entries; a fence that was requested is durable."""
        self.gather(Batch(peer, m, min(m.max_bytes, BATCH_BYTES_MAX), m.start), out)

    def gather(self, batch: Batch, out: list[Any], alone: bool = False) -> None:
        """Add entries that are in memory; the first that must be read from disk continues in `_resume`."""
        ledger = batch.request.ledger
        while True:
            wanted = batch.bytes_max - batch.size
            outcome = self._find(ledger, batch.entry, batch.peer, batch, self._resume, batch, out, alone, wanted)
            if outcome is None or not self._take(batch, outcome, out):
                return

    def _resume(self, batch: Batch, outcome: Outcome, out: list[Any]) -> None:
        if outcome is None:
            self.gather(batch, out, alone=True)
        elif self._take(batch, outcome, out):
            self.gather(batch, out)

    def _take(self, batch: Batch, outcome: Buffer | Code, out: list[Any]) -> bool:
        """Add an entry and return whether the batch goes on; if not, reply. A missing entry ends it; as the first, it
        fails it.
        """
        m = batch.request
        code = Code.OK
        more = False
        if isinstance(outcome, Code):
            if not batch.packets:
                code = outcome
        elif not batch.packets or batch.size + len(outcome) + 4 <= batch.bytes_max:
            batch.packets.append(outcome)
            batch.size += len(outcome) + 4
            batch.entry += 1
            more = batch.size < batch.bytes_max and (m.max_count <= 0 or len(batch.packets) < m.max_count)
        if not more:
            out.append(Send(batch.peer, BatchReadDone(m.ledger, m.start, m.request, code, tuple(batch.packets))))
        return more
