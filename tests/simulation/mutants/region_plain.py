"""Planted defects of entries in version 0: of the rule, of an owner that writes them, and of readers."""

from __future__ import annotations

from dlog.region.counting import CountingRule
from dlog.region.owner import RegionOwner
from dlog.region.reading import PlainSequences, TailScan
from tests.simulation.mutants.region import planted
from tests.simulation.worlds import Mutant

PLAIN_MUTANTS = (
    Mutant(
        name="an entry in version 0 counts whatever its sequence",
        invariants=("K1", "K3", "K4"),
        style="version0",
        parts=planted(CountingRule, ("after", "if entry.sequence == following(entry.table) else ()", "")),
    ),
    Mutant(
        name="an owner with format 0 acknowledges what does not count",
        invariants=("K5",),
        style="version0",
        parts=planted(
            RegionOwner,
            ("_take_plain", "if len(self._found) < expected:", "if False:"),
            (
                "_take_plain",
                "self._finish(append, self._found)",
                "self._finish(append, tuple((0, i.entry) for i in append.items if isinstance(i, PlainEntry)))",
            ),
        ),
    ),
    Mutant(
        name="an append in version 0 of unknown outcome stays in the queue",
        invariants=("K4",),
        style="version0",
        parts=planted(RegionOwner, ("_serve", "if self._is_plain and append.writes:", "if False:")),
    ),
    Mutant(
        name="a reader takes entries in version 0 in front of the record where it knows the sequence",
        invariants=("K4",),
        style="version0",
        parts=planted(
            PlainSequences, ("at", "floor is not None and offset >= floor[0]", "floor is not None and offset < 0")
        ),
    ),
    Mutant(
        name="a follower does not know the sequences at its begin",
        invariants=("K4",),
        style="version0",
        parts=planted(TailScan, ("__init__", "known=start.following, ", "")),
    ),
)
