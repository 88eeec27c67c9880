"""Lists of the ids of a ledger's entries on this bookie: what waits for a checkpoint in memory, and the index on disk.

A list may have a million ids, so a disk thread joins them and encodes the answer.

Invariants:
- A list has every entry that was durable when it was requested: the ids in memory are noted before the index is read,
  and entries move only from memory to the index.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dlog.bookie.messages import ListStored, StoredListed
from dlog.machine import Peer, Send
from dlog.wire.bookie import Code
from dlog.wire.bookie_availability import encode_runs
from dlog.wire.bookie_v3_messages import EntriesListed, ListEntries

Run = tuple[int, int]  # first and last of consecutive ids


class Listings:
    """Part of the bookie's state machine."""

    def __init__(self) -> None:
        self._tokens = 0
        self._under_way: dict[int, tuple[Peer, ListEntries]] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, peer: Peer, m: ListEntries, in_memory: list[int], out: list[Any]) -> None:
        self._tokens = token = self._tokens + 1
        self._under_way[token] = (peer, m)
        out.append(ListStored(token, m.ledger, in_memory))

    def done(self, fact: StoredListed, out: list[Any]) -> None:
        peer, m = self._under_way.pop(fact.token)
        if fact.listed is None:
            out.append(Send(peer, EntriesListed(m.ledger, Code.IO_ERROR)))
        else:
            out.append(Send(peer, EntriesListed(m.ledger, Code.OK, fact.listed)))


def list_of(stored: Iterable[Run], in_memory: Iterable[int]) -> bytes:
    """The encoded list. stored: runs in any order, also overlapping."""
    return encode_runs(joined([*stored, *((entry, entry) for entry in in_memory)]))


def joined(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The same ids as runs without overlaps, in order, each as long as possible."""
    done: list[Run] = []
    for first, last in sorted(runs):
        if done and first <= done[-1][1] + 1:
            done[-1] = (done[-1][0], max(done[-1][1], last))
        else:
            done.append((first, last))
    return tuple(done)
