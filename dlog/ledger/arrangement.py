"""Assigns racks or regions (domains) to the open indices of an ensemble, so that every write quorum has enough of them.

A search by depth first over domains, not bookies: those of one domain are interchangeable. At each index the domain
comes first that is rarest among the members that share a write quorum with it, then the one whose next bookie was drawn
first. So the first attempt nearly always succeeds, and the copies lie in more domains than the policy asks for.

Invariants:
- an arrangement that exists is found, unless the search takes more than STEPS_MAX steps;
- no domain is assigned more often than it has bookies to spare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlog.ledger.placement_policy import write_quorums
from dlog.model.quorum import Quorum

STEPS_MAX = 2000  # some 20 ms; far more than ensembles of up to six bookies take


class Arrangement:
    """One search.

    fixed: domain by index, of the members there are; None: not known, or none yet. open: the indices to assign. needs:
    by write quorum (`write_quorums`), how many domains it must have. ranks: by domain, the rank of each bookie to
    spare, lowest first. keep_max: how many open indices may keep the member that they have.
    """

    def __init__(
        self,
        quorum: Quorum,
        fixed: Sequence[str | None],
        open: Sequence[int],
        needs: Sequence[int],
        ranks: Mapping[str, Sequence[int]],
        keep_max: int = 0,
    ) -> None:
        self._open = list(open)
        self._ranks = ranks
        self._needs = needs
        self._old = list(fixed)
        self._now = list(fixed)
        self._pending = set(open)
        self._used = dict.fromkeys(ranks, 0)
        self._keeps = keep_max
        self._kept: set[int] = set()
        self.steps = 0
        self._quorums = write_quorums(quorum)
        self._of_index = [[q for q, indices in enumerate(self._quorums) if i in indices] for i in range(len(fixed))]
        for index in open:
            self._now[index] = None

    def find(self) -> dict[int, str] | None:
        """Domain by index, without those that keep their member. None: there is no such arrangement."""
        if not all(self._can_keep(q) for q in range(len(self._quorums))):
            return None
        if not self._assign(0):
            return None
        return {i: domain for i in self._open if i not in self._kept and (domain := self._now[i]) is not None}

    def _assign(self, at: int) -> bool:
        if at == len(self._open):
            return True
        index = self._open[at]
        self._pending.discard(index)
        for domain in self._by_preference(index):
            self._used[domain] += 1
            if self._fits(index, domain) and self._assign(at + 1):
                return True
            self._used[domain] -= 1
            if self.steps > STEPS_MAX:
                return False
        if self._keeps:
            self._keeps -= 1
            self._kept.add(index)
            if self._fits(index, self._old[index]) and self._assign(at + 1):
                return True
            self._kept.discard(index)
            self._keeps += 1
        self._now[index] = None
        self._pending.add(index)
        return False

    def _fits(self, index: int, domain: str | None) -> bool:
        self.steps += 1
        self._now[index] = domain
        return all(self._can_keep(q) for q in self._of_index[index])

    def _can_keep(self, quorum: int) -> bool:
        """Whether the write quorum has enough domains, or can still get them."""
        indices = self._quorums[quorum]
        known = {domain for i in indices if (domain := self._now[i]) is not None}
        return len(known) + sum(i in self._pending for i in indices) >= self._needs[quorum]

    def _by_preference(self, index: int) -> list[str]:
        near = [self._now[i] for q in self._of_index[index] for i in self._quorums[q] if i != index]
        free = [domain for domain, ranks in self._ranks.items() if self._used[domain] < len(ranks)]
        return sorted(free, key=lambda domain: (near.count(domain), self._ranks[domain][self._used[domain]]))
