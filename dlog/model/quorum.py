"""Quorums: which bookies store an entry, when it is durable, when enough bookies answered to miss no entry.

Source: BookKeeper protocol; specs in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dlog.errors import InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """Ensemble size E, write quorum Qw, ack quorum Qa; E >= Qw >= Qa >= 1."""

    ensemble: int = 3
    write: int = 3
    ack: int = 2

    def __post_init__(self) -> None:
        if not self.ensemble >= self.write >= self.ack >= 1:
            raise InvalidRequestError(
                "quorum sizes must satisfy ensemble >= write quorum >= ack quorum >= 1: "
                f"ensemble={self.ensemble} write={self.write} ack={self.ack}"
            )

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Bookie indexes (in the ensemble) that store this entry, in striping order."""
        return tuple((entry_id + i) % self.ensemble for i in range(self.write))

    @property
    def negatives_needed(self) -> int:
        """How many of a write set must reply "no such entry" until it is certain that it was never confirmed."""
        return self.write - self.ack + 1

    def covered(self, answered: Collection[int]) -> bool:
        """Whether every possible ack quorum includes a bookie that answered (by bookie index).

        False while some write set has Qa or more members without an answer: they may have confirmed an unseen entry.
        """
        for start in range(self.ensemble):
            silent = sum(1 for i in range(self.write) if (start + i) % self.ensemble not in answered)
            if silent >= self.ack:
                return False
        return True
