"""Planted defects of search, compaction and the deletion of objects."""

from __future__ import annotations

import inspect
import types
from typing import Any

from dlog.objects import compaction_run
from dlog.objects.compaction import taken_over_nodes
from dlog.objects.compaction_run import CompactionRun
from dlog.objects.controller import Controller
from dlog.objects.image import SliceTable
from dlog.objects.object_table import ObjectTable
from dlog.objects.search import _Search
from dlog.wire.stream_object import ObjectEncoder, decode_block
from tests.simulation import compaction_processes as processes
from tests.simulation.mutants import edited
from tests.simulation.worlds import Mutant

Edit = tuple[str, str, str]


def planted(cls: type, *edits: Edit) -> dict[str, Any]:
    return {"planted": ((cls, edited(cls, *edits)),)}


def planted_in(function: Any, old: str, new: str, *modules: types.ModuleType) -> tuple[Any, ...]:
    """Pairs that replace a function in the modules that have it by name; the text must occur exactly once."""
    source = inspect.getsource(function)
    assert source.count(old) == 1, f"not exactly once in {function.__name__}: {old!r}"
    scope = dict(vars(inspect.getmodule(function)))
    exec(compile(source.replace(old, new), f"<mutant {function.__name__}>", "exec"), scope)
    return tuple((module, types.SimpleNamespace(**{function.__name__: scope[function.__name__]})) for module in modules)


_UNCHECKED = planted_in(
    decode_block,
    "if crc != row.crc or crc32c(view[BLOCK_HEAD_BYTES:], crc32c(view[: _BLOCK.size])) != crc:",
    "if 0:",
    compaction_run,
)

MUTANTS = (
    Mutant(
        name="a compaction commits before its objects are written",
        invariants=("O1",),
        parts=planted(
            CompactionRun,
            (
                "_copy",
                "if self._written_whole == len(self._outputs):",
                "if not self._steps and self.phase is Phase.COPYING:",
            ),
        ),
    ),
    Mutant(
        name="objects are deleted before the record that marks them is confirmed",
        invariants=("O1", "O2"),
        style="lagging",
        parts=planted(
            Controller,
            (
                "_delete_marked",
                "self._after_confirmation([DeleteObjects(keys)])",
                "self._effects.append(DeleteObjects(keys))",
            ),
        ),
    ),
    Mutant(
        name="uploads never expire",
        invariants=("O2",),
        parts=planted(Controller, ("_mark_expired", "if expired:", "if 0:")),
    ),
    Mutant(
        name="a marked object is forgotten and not deleted",
        invariants=("O2",),
        parts=planted(ObjectTable, ("marked_until", "return self._due(_MARKED, time_ms, limit)", "return []")),
    ),
    Mutant(
        name="objects of a node that was taken over are not compacted",
        invariants=("O2",),
        parts={"planted": planted_in(taken_over_nodes, "if its.is_failover and not its.wal", "if False", processes)},
    ),
    Mutant(
        name="a compaction copies blocks without verifying their checksums",
        invariants=("O7",),
        style="damaged",
        parts={"planted": _UNCHECKED},
    ),
    Mutant(
        name="a compaction copies the first entry of a block in place of each",
        invariants=("O8",),
        parts=planted(CompactionRun, ("_copy_block", "entries[offset - block.start]", "entries[0]")),
    ),
    Mutant(
        name="a compaction drops the txids and times of entries",
        invariants=("O8",),
        parts=planted(
            CompactionRun,
            ("_copy_block", "entries[offset - block.start]", "type(entries[0])(entries[offset - block.start].payload)"),
        ),
    ),
    Mutant(
        name="offsets are kept in 32 bits",
        invariants=("O8", "O9", "assert"),
        parts=planted(ObjectEncoder, ("add", "self._next = offset + 1", "self._next = offset + 1 & 0xFFFFFFFF")),
    ),
    Mutant(
        name="a search looks for stream-set objects at the node of the first range",
        invariants=("O9",),
        parts=planted(
            _Search,
            (
                "_set_slices",
                "while at < len(ranges) and (end := ranges[at].end) is not None and end <= self.next:",
                "while 0:",
            ),
        ),
    ),
    Mutant(
        name="a search does not go back to the stream objects",
        invariants=("O9",),
        parts=planted(
            _Search,
            (
                "run",
                "own = self._take(self.its.objects, own, False)",
                "own = own or self._take(self.its.objects, own, False)",
            ),
        ),
    ),
    Mutant(
        name="a search takes an object beyond a gap",
        invariants=("O9", "assert"),
        parts=planted(_Search, ("_take", "or at == len(starts) or starts[at] > self.next:", "or at == len(starts):")),
    ),
    Mutant(
        name="a search covers a range that was dropped",
        invariants=("O9",),
        parts=planted(_Search, ("_result", "covered = its.start\n", "pass\n")),
    ),
    Mutant(
        name="the slices before a source leave the index with it",
        invariants=("O9",),
        parts=planted(
            SliceTable,
            (
                "remove_objects",
                "del self.starts[at], self.ends[at], self.objects[at]",
                "del self.starts[: at + 1], self.ends[: at + 1], self.objects[: at + 1]",
            ),
        ),
    ),
)
