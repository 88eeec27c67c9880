"""The result of checking a history."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

EXAMPLES = 20


class Breach(NamedTuple):
    """One promise that was not kept. invariant: S1..S11. kind: the name under which it is counted."""

    invariant: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.kind}: {self.text}"


#: every kind of breach and its invariant
KINDS = {
    "diverged": "S1",  # one position holds two records
    "lost": "S2",  # acknowledged, and a reader that passed its position or came to the tail was not sent it
    "duplicated": "S2",  # one record at two positions
    "misplaced": "S2",  # not at its acknowledged position
    "resurrected": "S2",  # refused as certainly not written, and in the log
    "torn": "S2",  # only a part of a batch is in the log
    "invented": "S3",  # no producer wrote it, or it does not verify
    "skipped": "S4",  # a reader passed over a record that another was sent
    "reordered": "S4",  # a reader went back, or a producer's acknowledged records lie out of its order
    "overtaken": "S5",  # sent after another was answered, and lies before it
    "rivalled": "S6",  # two owners appended to one segment, or an older one to a later segment
    "txid": "S7",  # a txid decreased, or is not the requested or acknowledged one
    "control": "S8",  # a reader was sent a control record
    # a reader was sent an entry that was not written yet, was beyond the LAC, or was later preceded by a new one
    "early": "S8",
    "revived": "S9",  # the truncation point moved back
    "truncated": "S9",  # no truncation was requested, and a reader was told that the record is gone
    "damaged": "S9",  # a reader was told that an entry cannot be read
    "misled": "S11",  # a reader did not begin at the first record at or after its start
    "late": "S15",  # of unknown outcome, and behind a later acknowledged append of its producer
    "stale": "R2",  # a reader was shown, or began at, a tail before acknowledged records
}


_COUNTS = (
    *("invoked", "acknowledged", "failed", "unknown", "unknown_found"),
    *("delivered", "readers", "unread", "stale"),
)


@dataclass(slots=True)
class Verdict:
    """Counts of records and of breaches. `found` counts every breach by kind, `examples` holds the first of each."""

    invoked: int = 0
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0  # without an answer, or with an unknown outcome
    unknown_found: int = 0  # how many of the unknown are in the log
    delivered: int = 0  # to all readers together
    readers: int = 0
    unread: int = 0  # acknowledged, not truncated, and beyond every reader: nothing is proved about them
    stale: int = 0  # R2, R4: while it was cut off, a reader was shown an old tail, or an old beginning
    found: Counter[str] = field(default_factory=Counter)
    examples: list[Breach] = field(default_factory=list)
    stale_examples: list[str] = field(default_factory=list)

    @property
    def is_green(self) -> bool:
        """Whether every promise was kept, and all acknowledged records were read."""
        return not self.found and not self.unread

    def breach(self, kind: str, text: str, count: int = 1) -> None:
        """Count a breach; keep the first ones of each kind."""
        self.found[kind] += count
        if sum(b.kind == kind for b in self.examples) < EXAMPLES:
            self.examples.append(Breach(KINDS[kind], kind, text))

    def is_stale(self, text: str, count: int) -> None:
        """Count an outdated state that a reader was shown: nothing is lost by it, so it is counted beside the
        breaches."""
        self.stale += count
        if len(self.stale_examples) < EXAMPLES:
            self.stale_examples.append(text)

    @property
    def invariants(self) -> list[str]:
        """The invariants that do not hold."""
        return sorted({KINDS[kind] for kind in self.found}, key=lambda name: int(name[1:]))

    def add(self, other: Verdict) -> None:
        """Join the verdict on another stream to this one."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.found.update(other.found)
        self.examples += other.examples
        self.stale_examples += other.stale_examples

    def as_json(self) -> dict[str, object]:
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "green": self.is_green,
            "breaches": {kind: self.found[kind] for kind in KINDS},
            "examples": [str(example) for example in self.examples],
            "stale_examples": self.stale_examples,
        }

    def text(self) -> str:
        """The verdict as text: one line of counts, then what is wrong."""
        counts = " ".join(f"{name}={getattr(self, name)}" for name in _COUNTS)
        wrong = " ".join(f"{kind}={count}" for kind, count in self.found.items())
        head = f"{'green' if self.is_green else 'NOT GREEN'}: {counts} {wrong}"
        return "\n".join([head, *map(str, self.examples), *(f"stale: {text}" for text in self.stale_examples)])
