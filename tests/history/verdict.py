"""What a history was found to be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

EXAMPLES = 20


class Breach(NamedTuple):
    """One promise that was not kept. invariant: S1..S11. kind: the word it is counted under."""

    invariant: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.kind}: {self.text}"


#: every kind of breach and the invariant it speaks of
KINDS = {
    "diverged": "S1",  # one place holds two records
    "lost": "S2",  # acknowledged, and a reader that came past its place or to the tail was not given it
    "duplicated": "S2",  # one record at two places
    "misplaced": "S2",  # not where the acknowledgement said
    "resurrected": "S2",  # refused for certain, and there
    "torn": "S2",  # a part of a batch
    "invented": "S3",  # nobody wrote it, or it does not verify
    "skipped": "S4",  # a reader passed over what another was given
    "reordered": "S4",  # a reader went back, or a producer's acknowledged records lie out of its order
    "overtaken": "S5",  # asked for after another was answered, and lies before it
    "rivalled": "S6",  # two owners appended to one segment, or an older one to a later segment
    "txid": "S7",  # a txid fell, or is not the one asked for or told
    "control": "S8",  # a reader was given a control record
    "early": "S8",  # a reader was given what was not final: not yet written, beyond the LAC, or later preceded by news
    "revived": "S9",  # the truncation point moved back
    "truncated": "S9",  # nobody asked to let it go, and a reader was told it is gone
    "damaged": "S9",  # a reader was told that it cannot be read
    "misled": "S11",  # a reader did not begin at the first record at or after its start
    "late": "S15",  # of unknown outcome, and behind what its producer asked for later and got acknowledged
    "stale": "R2",  # a reader was shown, or began at, a tail before what had been acknowledged
}


_COUNTS = (
    *("invoked", "acknowledged", "failed", "unknown", "unknown_found"),
    *("delivered", "readers", "unread", "stale"),
)


@dataclass(slots=True)
class Verdict:
    """Counts of records and of breaches. `found` counts every breach by kind, `examples` tells the first of each."""

    invoked: int = 0
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0  # without an answer, or with the answer that nobody knows
    unknown_found: int = 0  # of them, those that are in the log
    delivered: int = 0  # to all readers together
    readers: int = 0
    unread: int = 0  # acknowledged, not truncated, and beyond where any reader came: nothing is proved about them
    stale: int = 0  # R2, R4: a reader was shown a tail while it was cut off, or a beginning, that had moved on
    found: Counter[str] = field(default_factory=Counter)
    examples: list[Breach] = field(default_factory=list)
    stale_examples: list[str] = field(default_factory=list)

    @property
    def is_green(self) -> bool:
        """Every promise was kept, and all that was acknowledged was read."""
        return not self.found and not self.unread

    def breach(self, kind: str, text: str, count: int = 1) -> None:
        """Count it; remember the first ones of each kind."""
        self.found[kind] += count
        if sum(b.kind == kind for b in self.examples) < EXAMPLES:
            self.examples.append(Breach(KINDS[kind], kind, text))

    def is_stale(self, text: str, count: int) -> None:
        """What a reader was shown is behind what was known: nothing is lost by it, it stands beside the breaches."""
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
        """For a person: one line of counts, then what is wrong."""
        counts = " ".join(f"{name}={getattr(self, name)}" for name in _COUNTS)
        wrong = " ".join(f"{kind}={count}" for kind, count in self.found.items())
        head = f"{'green' if self.is_green else 'NOT GREEN'}: {counts} {wrong}"
        return "\n".join([head, *map(str, self.examples), *(f"stale: {text}" for text in self.stale_examples)])
