"""Records that wait for a bookie's journals, in one queue for each journal.

Invariants:
- All records of a ledger (adds, fences, explicit LACs) go to one journal, which its id alone decides. So they become
  durable in the order in which they were accepted; records of two ledgers may not.
- A token names its journal: it is the token modulo the number of journals. Tokens of one journal grow.

Source: BookKeeper, `journalDirectories`: ledger id modulo the number of journals.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from dlog.bookie.cache import Stored
from dlog.bookie.ledgers import NEVER, Ledger
from dlog.machine import Peer
from dlog.model.ids import NO_ENTRY, EntryId


def journal_of(ledger: int, journals: int) -> int:
    """The number of the ledger's journal, of as many."""
    return ledger % journals


@dataclass(slots=True, eq=False)
class Waiting:
    """Records of one token that are not durable yet, and what to do once they are. size: in bytes of memory."""

    size: int
    ledger: Ledger
    carries_key: bool
    peer: Peer = None
    entry: EntryId = NO_ENTRY
    stored: Stored | None = None  # of an add
    parked: list[tuple[Peer, Any]] | None = None  # requests to serve then
    token: int = NEVER


@dataclass(slots=True, eq=False)
class LacWaiting(Waiting):
    """An explicit LAC that is not durable yet."""

    lac: int = -1
    packet: bytes = b""


class JournalQueues:
    """What waits for each of `journals` journals. waiting_bytes: of all of them."""

    __slots__ = ("_last", "_queues", "journals", "waiting_bytes")

    def __init__(self, journals: int) -> None:
        self.journals = journals
        self.waiting_bytes = 0
        self._queues: tuple[deque[Waiting], ...] = tuple(deque() for _ in range(journals))
        self._last = list(range(journals))  # token of each journal

    def append(self, w: Waiting) -> int:
        """Queue a record for its ledger's journal. Returns its token, for the Persist."""
        journal = journal_of(w.ledger.ledger, self.journals)
        self._last[journal] = w.token = token = self._last[journal] + self.journals
        self._queues[journal].append(w)
        self.waiting_bytes += w.size
        return token

    def queue_of(self, token: int) -> deque[Waiting]:
        """The queue of the token's journal, oldest first."""
        return self._queues[token % self.journals]

    def find(self, token: int) -> Waiting:
        """What waits under this token."""
        queue = self.queue_of(token)
        w = queue[(token - queue[0].token) // self.journals]  # there are no gaps
        assert w.token == token
        return w

    def last_of(self, ledger: int) -> Waiting | None:
        """The newest that waits in the journal of this ledger; None: nothing waits there."""
        queue = self._queues[journal_of(ledger, self.journals)]
        return queue[-1] if queue else None

    def take_all(self, journal: int) -> list[Waiting]:
        """Empty the queue of a journal."""
        queue = self._queues[journal]
        taken = list(queue)
        queue.clear()
        self.waiting_bytes -= sum(w.size for w in taken)
        return taken
