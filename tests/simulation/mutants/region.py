"""Planted defects of regions: each step of opening, fencing, appending and cleaning left out or done otherwise."""

from __future__ import annotations

from typing import Any

from dlog.region.counting import CountingRule, RegionWriter
from dlog.region.items import ItemReader
from dlog.region.loading import RegionLoader
from dlog.region.maintenance import Maintenance
from dlog.region.owner import RegionOwner
from dlog.region.reading import EntryScan, TailScan
from dlog.region.state import RegionState
from dlog.region.tables import TableMeta
from tests.simulation.mutants import edited
from tests.simulation.worlds import Mutant

Edit = tuple[str, str, str]


def planted(cls: type, *edits: Edit) -> dict[str, Any]:
    return {"planted": ((cls, edited(cls, *edits)),)}


MUTANTS = (
    Mutant(
        name="a region is cleaned before its snapshot is durable",
        invariants=("K2",),
        style="clean",
        parts=planted(
            Maintenance,
            (
                "clean",
                "self._cleaning = _Cleaning([ticket])",
                "self._cleaning = _Cleaning([ticket], state.meta.safe_offset, True)",
            ),
        ),
    ),
    Mutant(
        name="a region is cleaned without a check-point",
        invariants=("K2",),
        style="clean",
        parts=planted(
            Maintenance,
            (
                "_save",
                "            saving.cleaning.has_snapshot = True\n",
                "            saving.cleaning.has_snapshot = saving.cleaning.has_checkpoint = True\n"
                "            self._delete(saving.cleaning)\n",
            ),
        ),
    ),
    Mutant(
        name="everything up to the end may be deleted, not only what no table needs",
        invariants=("K2",),
        style="clean",
        parts=planted(Maintenance, ("_save", "cleaning.safe = state.meta.safe_offset", "cleaning.safe = state.offset")),
    ),
    Mutant(
        name="the floor of a mark is the mapped record behind it",
        invariants=("K2", "K1"),
        style="clean",
        parts=planted(
            TableMeta,
            ("mark_deleted", "bisect_right(sequences, below) - 1", "bisect_right(sequences, below)"),
        ),
    ),
    Mutant(
        name="a mark is one more than was asked for",
        invariants=("K1", "K2"),
        style="clean",
        parts=planted(
            TableMeta,
            (
                "mark_deleted",
                "self.latest_marked_deleted = below",
                "self.latest_marked_deleted = below = min(below + 1, self.next_seq_num)",
            ),
        ),
    ),
    Mutant(
        name="batches count under any nonce",
        invariants=("K5", "K3", "K1", "K4"),
        style="takeover",
        parts=planted(CountingRule, ("after", "nonce == self.nonce and ", "")),
    ),
    Mutant(
        name="a second copy of a batch counts",
        invariants=("K3",),
        style="late",
        parts=planted(CountingRule, ("after", " and number == self.number", "")),
    ),
    Mutant(
        name="an owner that was deposed acknowledges what it appended",
        invariants=("K5",),
        style="takeover",
        parts=planted(
            RegionWriter, ("appended", "tuple(own)", "tuple(enumerate(getattr(item, 'entries', ()), offset))")
        ),
    ),
    Mutant(
        name="an owner does not read what lies in front of its append",
        invariants=("K5", "K1"),
        style="takeover",
        parts=planted(
            RegionOwner,
            ("_appended", "elif reply.offset == self.state.offset:", "elif reply.offset >= self.state.offset:"),
        ),
    ),
    Mutant(
        name="after an unknown outcome an owner writes on under its old nonce",
        invariants=("K3", "K4", "K5", "K1"),
        style="late",
        parts=planted(
            RegionOwner,
            ("_doubt", "    self._fence()\n", "    self._serve()\n"),
        ),
    ),
    Mutant(
        name="an append that is found behind a new fence is sent again",
        invariants=("K4",),
        style="late",
        parts=planted(RegionOwner, ("_serve", "if self._is_found:", "if False:")),
    ),
    Mutant(
        name="an append of unknown outcome is given up as not written",
        invariants=("K4",),
        style="late",
        parts=planted(
            RegionOwner,
            ("_append_failed", "if error.remedy is Remedy.FIX and not error.outcome_unknown:", "if True:"),
        ),
    ),
    Mutant(
        name="a deposed owner calls an append that was found not written",
        invariants=("K4",),
        style="late",
        seeds=1000,
        parts=planted(
            RegionOwner, ("_depose", "if append is not None and self._is_found:", "if False and append is not None:")
        ),
    ),
    Mutant(
        name="the topic is not read up to the own fence",
        invariants=("K1", "K3", "K5"),
        style="takeover",
        parts=planted(RegionOwner, ("_fence", "reply.offset + 1", "self.state.offset")),
    ),
    Mutant(
        name="the scan begins one record behind the snapshot",
        invariants=("K1",),
        style="swarm",
        parts=planted(
            RegionLoader,
            (
                "_begin_scan",
                "self.state.offset if self.state is not None",
                "self.state.offset + 1 if self.state is not None",
            ),
        ),
    ),
    Mutant(
        name="the scan begins at the end of the topic",
        invariants=("K1",),
        style="swarm",
        parts=planted(
            RegionLoader, ("_begin_scan", "self.state.offset if self.state is not None", "self.next if self.state")
        ),
    ),
    Mutant(
        name="a topic without its front and without a check-point is opened as new",
        invariants=("K1", "K3"),
        style="outside",
        parts=planted(RegionLoader, ("_begin_scan", "elif self.first == 0:", "else:")),
    ),
    Mutant(
        name="the marks of a check-point are left out",
        invariants=("K1",),
        style="takeover",
        seeds=1000,
        parts=planted(RegionState, ("_take_marks", "known is not None and ", "False and ")),
    ),
    Mutant(
        name="dropping a table is answered before a check-point has it",
        invariants=("K1", "assert"),
        style="swarm",
        seeds=1000,
        parts=planted(Maintenance, ("drop", "self._drops.append(ticket)", "self._out.answer([ticket], None)")),
    ),
    Mutant(
        name="a reader delivers entries below the start that it was given",
        invariants=("K4",),
        style="clean",
        parts=planted(EntryScan, ("_take", "not expected <= entry.sequence < end", "not entry.sequence < end")),
    ),
    Mutant(
        name="a reader passes over lost entries in silence",
        invariants=("K4",),
        style="outside",
        parts=planted(EntryScan, ("_take", "if entry.sequence > expected:", "if False:")),
    ),
    Mutant(
        name="a follower begins with the rule of an empty topic",
        invariants=("K4",),
        style="takeover",
        parts=planted(TailScan, ("__init__", "self._rule = start.rule", "self._rule = CountingRule()")),
    ),
    Mutant(
        name="a batch is taken apart",
        invariants=("K4", "K1", "K3", "K5"),
        style="swarm",
        parts=planted(ItemReader, ("feed", "if record.position + 1 < record.count:", "if False:")),
    ),
)
