"""The history of one segment, and the check of the store contract on it.

Writers, recoverers and readers note their calls and results; `check` finds every breach of the contract in
dlog/stores/contract.py. The checker uses no store, no clock and no loop, so that it can be tested with corrupted
histories.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class History:
    """Notes on one segment, in the order they became known."""

    submitted: list[bytes] = field(default_factory=list)  # by entry id, as the one writer gave them
    acked: list[int] = field(default_factory=list)  # entry ids, in the order their appends resolved
    acked_after_fence: list[int] = field(default_factory=list)  # appended after a recovery returned, and resolved
    sealed: list[int] = field(default_factory=list)  # ends that `seal` returned
    recovered: list[int] = field(default_factory=list)  # ends that recoveries returned
    seen: list[tuple[str, int, bytes]] = field(default_factory=list)  # (reader, entry id, payload)
    lacs: list[tuple[str, int]] = field(default_factory=list)  # (reader, LAC) in the order learnt
    ends: list[tuple[str, int]] = field(default_factory=list)  # (reader, end)
    final: list[bytes] | None = None  # everything a reader found once all was over

    def read(self, reader: str, first: int, payloads: list[bytes]) -> None:
        """Note that a reader got these payloads for the entries from `first` on."""
        self.seen.extend((reader, first + i, payload) for i, payload in enumerate(payloads))


def check(history: History) -> list[str]:
    """Describe every breach; empty if the contract was kept."""
    return [breach for _, find in BREACHES for breach in find(history)]


def _order_of_acks(history: History) -> list[str]:
    expected = list(range(len(history.acked)))
    return [] if history.acked == expected else [f"acks out of order or with gaps: {history.acked[:20]}"]


def _agreement(history: History) -> list[str]:
    ends = {*history.sealed, *history.recovered, *(end for _, end in history.ends)}
    return [f"more than one end was told: {sorted(ends)}"] if len(ends) > 1 else []


def _acked_survive(history: History) -> list[str]:
    last_acked = max(history.acked, default=-1)
    breaches = [f"recovered up to {end}, but {last_acked} was acked" for end in history.recovered if end < last_acked]
    breaches += [f"sealed at {end}, but {last_acked} was acked" for end in history.sealed if end < last_acked]
    if history.final is not None and len(history.final) <= last_acked:
        breaches.append(f"{len(history.final)} entries left, but {last_acked} was acked")
    return breaches


def _prefix(history: History) -> list[str]:
    breaches = []
    for end in {*history.recovered, *history.sealed}:
        if end >= len(history.submitted):
            breaches.append(f"ends at {end}, but only {len(history.submitted)} entries were submitted")
        if history.final is not None and end != len(history.final) - 1:
            breaches.append(f"ends at {end}, but {len(history.final)} entries are there")
    if history.final is not None and history.final != history.submitted[: len(history.final)]:
        breaches.append("what is left is not a prefix of what was submitted")
    return breaches


def _nothing_after_the_fence(history: History) -> list[str]:
    return [f"a fenced writer got entry {entry} acked" for entry in history.acked_after_fence]


def _readers(history: History) -> list[str]:
    breaches = []
    next_of: dict[str, int] = {}
    for reader, entry, payload in history.seen:
        if entry != next_of.get(reader, entry):
            breaches.append(f"{reader} went from entry {next_of[reader] - 1} to {entry}")
        next_of[reader] = entry + 1
        if entry >= len(history.submitted) or history.submitted[entry] != payload:
            breaches.append(f"{reader} saw an entry {entry} that was never submitted")
        if history.final is not None and entry >= len(history.final):
            breaches.append(f"{reader} saw entry {entry}, which recovery dropped")
    known: dict[str, int] = {}
    for reader, lac in history.lacs:
        if lac < known.get(reader, -1):
            breaches.append(f"{reader} saw the LAC go back from {known[reader]} to {lac}")
        known[reader] = lac
        if history.final is not None and lac >= len(history.final):
            breaches.append(f"{reader} was told a LAC of {lac}, which recovery dropped")
    return breaches


#: id in the simulation of the file store (tests/simulation/invariants.py) -> the breaches of it
BREACHES = (
    ("F2", _order_of_acks),
    ("F1", _agreement),
    ("F2", _acked_survive),
    ("F2", _prefix),
    ("F3", _nothing_after_the_fence),
    ("F4", _readers),
)
