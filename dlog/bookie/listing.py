"""Lists of the ids of a ledger's entries on this bookie: what waits for a checkpoint in memory, and the index on disk.

A list may have many millions of ids, so a disk thread joins them and encodes the answer, one list at a time.

Invariants:
- A list has every entry that was durable when it was requested: the ids in memory are noted before the index is read,
  and entries move only from memory to the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from typing import Any

from dlog.bookie.messages import ListStored, StoredListed
from dlog.machine import Peer, Send
from dlog.wire.bookie import Code
from dlog.wire.bookie_availability import GROUPS_MAX, TooManyGroups, encode_runs
from dlog.wire.bookie_v3_messages import EntriesListed, ListEntries

Run = tuple[int, int]  # first and last of consecutive ids
_SORTED_MAX = 10_000  # ids sorted in one call, which holds the interpreter's lock


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


def list_of(stored: Sequence[Iterable[Run]], in_memory: Sequence[int], groups_max: int = GROUPS_MAX) -> bytes | None:
    """The encoded list, or None if it has more than groups_max groups. Only the answer is held in memory.

    stored: iterables of runs, each in order; they may overlap each other.
    """
    parts = [sorted(in_memory[at : at + _SORTED_MAX]) for at in range(0, len(in_memory), _SORTED_MAX)]
    runs = joined(merge(*stored, *(zip(part, part, strict=True) for part in parts)))
    try:
        return encode_runs(runs, groups_max)
    except TooManyGroups:
        return None


def joined(runs: Iterable[Run]) -> Iterator[Run]:
    """The same ids as runs without overlaps, each as long as possible. runs: by their first ids."""
    done: Run | None = None
    for first, last in runs:
        if done is None:
            done = first, last
        elif first <= done[1] + 1:
            done = done[0], max(done[1], last)
        else:
            yield done
            done = first, last
    if done is not None:
        yield done
