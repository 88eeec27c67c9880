"""Planted defects of the controller of streams in objects, of its decisions, of the image and of its followers."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from dlog.objects import commits, decisions, image_snapshot, went_back
from dlog.objects.controller import Controller
from dlog.objects.follower import Follower
from dlog.objects.image import Image
from tests.simulation.mutants import edited
from tests.simulation.worlds import Mutant

Edit = tuple[str, str, str]
FunctionEdit = tuple[ModuleType, str, str, str]  # module, function, text to replace, new text


def planted(cls: type, *edits: Edit) -> dict[str, Any]:
    return {"planted": ((cls, edited(cls, *edits)),)}


def in_function(module: ModuleType, function: str, old: str, new: str) -> dict[str, Any]:
    return {"functions": ((module, function, old, new),)}


@contextlib.contextmanager
def planting_functions(edits: Iterable[FunctionEdit]) -> Iterator[None]:
    """Replace functions by edited ones, in their modules and in the table of decisions, while this is entered."""
    undo: list[tuple[dict[Any, Any], Any, Any]] = []
    for module, name, old, new in edits:
        function = getattr(module, name)
        source = inspect.getsource(function)
        assert source.count(old) == 1, f"not exactly once in {name}: {old!r}"
        scope = dict(vars(module))
        exec(compile(source.replace(old, new), f"<mutant {name}>", "exec"), scope)
        tables: list[dict[Any, Any]] = [vars(module), vars(decisions), decisions._DECIDERS]
        for table in tables:
            for key in [key for key, its in table.items() if its is function]:
                undo.append((table, key, function))
                table[key] = scope[name]
    try:
        yield
    finally:
        for table, key, function in undo:
            table[key] = function


MUTANTS = (
    Mutant(
        name="an object is deleted before its mark is confirmed",
        invariants=("O3",),
        style="old",
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
        name="the sources of a compaction are not marked",
        invariants=("O3",),
        parts=planted(Image, ("_compaction_committed", "self.objects.mark(source, record.time_ms)", "pass")),
    ),
    Mutant(
        name="an object without live entries is forgotten",
        invariants=("O3",),
        parts=planted(
            Image,
            ("_commit", "self.objects.mark(new.object, time_ms)", "pass"),
        ),
    ),
    Mutant(
        name="objects of a deleted stream are forgotten",
        invariants=("O3",),
        parts=planted(Image, ("_stream_deleted", "self.objects.mark(ObjectId(object), record.time_ms)", "pass")),
    ),
    Mutant(
        name="an upload may leave a gap",
        invariants=("O4",),
        parts=in_function(
            commits,
            "_check_continues",
            "expected <= part.start <= max(expected, stream.start)",
            "expected <= part.start",
        ),
    ),
    Mutant(
        name="an upload may repeat what is committed",
        invariants=("O4",),
        parts=in_function(
            commits,
            "_check_continues",
            "expected <= part.start <= max(expected, stream.start)",
            "part.start <= max(expected, stream.start)",
        ),
    ),
    Mutant(
        name="a compaction may leave out entries",
        invariants=("O4",),
        parts=in_function(commits, "decide_compaction", "if not _covers(kept, first, last):", "if False:"),
    ),
    Mutant(
        name="a compaction may leave out the beginning of a source",
        invariants=("O4",),
        parts=in_function(commits, "_covers", "return at >= 0 and joined", "return at < 0 or joined"),
    ),
    Mutant(
        name="a compaction covers by any of its ends",
        invariants=("O4",),
        parts=in_function(commits, "_covers", "joined[at][1] >= end", "joined[at][1] >= start"),
    ),
    Mutant(
        name="a range begins at the uploaded end of the one before",
        invariants=("O4", "O10"),
        parts=planted(
            Image,
            (
                "_stream_opened",
                "Range(record.epoch, record.node, record.node_epoch, end)",
                "Range(record.epoch, record.node, record.node_epoch, "
                "stream.ranges[-1].committed if stream.ranges else end)",
            ),
        ),
    ),
    Mutant(
        name="ranges are dropped whatever lies below them",
        invariants=("O4",),
        parts=planted(Image, ("_drop_ranges", "if its.end > stream.start:", "if False:")),
    ),
    Mutant(
        name="a former epoch of a node commits",
        invariants=("O5",),
        parts=in_function(decisions, "check_node", "node_epoch != current", "node_epoch > current"),
    ),
    Mutant(
        name="objects of another epoch are committed",
        invariants=("O5",),
        parts=in_function(commits, "_check_new", "image.objects.owner(object) != (node, node_epoch)", "False"),
    ),
    Mutant(
        name="a node opens streams while another takes it over",
        invariants=("O5",),
        parts=in_function(decisions, "_check_runs", "if node.is_failover:", "if False:"),
    ),
    Mutant(
        name="two callers open a node with one epoch",
        invariants=("O5",),
        parts=planted(
            Controller,
            ("_decide", "self._openers.get(operation.node) == operation", "operation.node in self._openers"),
        ),
    ),
    Mutant(
        name="a snapshot forgets that a range is dropped",
        invariants=("O10",),
        style="old",
        parts=in_function(image_snapshot, "_read_streams", "bool(is_dropped)", "False"),
    ),
    Mutant(
        name="a snapshot forgets the last epoch of a stream",
        invariants=("O10",),
        style="old",
        parts=in_function(image_snapshot, "_read_streams", "stream.epoch = Epoch(epoch)", "pass"),
    ),
    Mutant(
        name="the record of the last snapshot is truncated",
        invariants=("O10",),
        style="old",
        parts=planted(Controller, ("_clean_up", "TruncateMetadata(applied)", "TruncateMetadata(self.image.version)")),
    ),
    Mutant(
        name="snapshots are deleted before their stream is truncated to the last one",
        invariants=("O10",),
        style="old",
        parts=planted(Controller, ("_clean_up", "DeleteSnapshots(applied)", "DeleteSnapshots(self.image.version)")),
    ),
    Mutant(
        name="an entry that is read again is applied again",
        invariants=("O10",),
        parts=planted(Follower, ("_entry", "if before + len(records) <= image.version:", "if False:")),
    ),
    Mutant(
        name="a range of another node is not refused",
        invariants=("O10",),
        parts=in_function(commits, "_check_continues", "if its.node != node:", "if False:"),
    ),
    Mutant(
        name="a record that does not fit into an entry is applied",
        invariants=("O11",),
        parts=planted(
            Controller,
            (
                "_record",
                "    except EntryTooLargeError as error:\n",
                "    except EntryTooLargeError as error:\n        self.image.apply_all(records)\n",
            ),
        ),
    ),
    Mutant(
        name="an operation is refused after it was recorded",
        invariants=("O11",),
        parts=planted(
            Controller,
            (
                "_request",
                "    self._tickets.add(ticket)\n",
                "    if len(self._on_way) > 1:\n"
                "        self._effects.append(Answer(ticket, OverCapacityError('busy')))\n        return\n"
                "    self._tickets.add(ticket)\n",
            ),
        ),
    ),
    Mutant(
        name="an operation is answered before it is confirmed",
        invariants=("O12",),
        parts=planted(
            Controller,
            (
                "_request",
                "self._after_confirmation([Answer(ticket, result)])",
                "self._perform([Answer(ticket, result)])",
            ),
        ),
    ),
    Mutant(
        name="a controller answers from its image without an append",
        invariants=("O12",),
        style="rivals",
        parts=planted(Controller, ("_decide", "self._record(records)", "records and self._record(records)")),
    ),
    Mutant(
        name="a deposed controller answers with what it had decided",
        invariants=("O12",),
        style="rivals",
        parts=planted(
            Controller,
            (
                "_end",
                "    self._on_way.clear()\n",
                "    for entry in self._on_way:\n        self._perform(entry.then)\n",
            ),
        ),
    ),
    Mutant(
        name="an answer waits only for the first entry in flight",
        invariants=("O12",),
        parts=planted(Controller, ("_after_confirmation", "self._on_way[-1].then", "self._on_way[0].then")),
    ),
    Mutant(
        name="an answer waits for the entry before its own",
        invariants=("O12",),
        parts=planted(
            Controller, ("_after_confirmation", "self._on_way[-1].then", "self._on_way[self._appended - 1].then")
        ),
    ),
    Mutant(
        name="an upload whose objects expired is answered as committed",
        invariants=("O12",),
        style="old",
        parts=in_function(
            commits,
            "decide_upload",
            "        _place(op.flush_point) <= _place(node.flush_point)\n"
            "        and _is_behind(image, objects)\n"
            "        and all(_is_committed(image.streams.get(part.stream), part) for part in parts)",
            "        objects and _is_behind(image, objects)",
        ),
    ),
    Mutant(
        name="a snapshot is written before its records are confirmed",
        invariants=("O13",),
        style="old",
        parts=planted(
            Controller,
            (
                "_write_snapshot",
                "self._after_confirmation([WriteSnapshot(self._snapshot[0], contents_of(image))])",
                "self._effects.append(WriteSnapshot(self._snapshot[0], contents_of(image)))",
            ),
        ),
    ),
    Mutant(
        name="a snapshot ends within an entry that is still being filled",
        invariants=("O10",),
        style="old",
        parts=planted(Controller, ("_write_snapshot", "self._on_way[-1].is_full = True", "pass")),
    ),
    Mutant(
        name="a stream counts as never opened after it was",
        invariants=("O14",),
        parts=planted(Image, ("_stream_opened", "self.unopened.pop(record.stream, None)", "pass")),
    ),
    Mutant(
        name="a snapshot forgets which streams were never opened",
        invariants=("O10",),
        style="old",
        parts=in_function(image_snapshot, "_name_streams", "image.name_stream(key, value)", "pass"),
    ),
    Mutant(
        name="a controller trusts what it finds in the storage without an append",
        invariants=("O13",),
        style="rivals",
        parts=planted(
            Controller, ("begin", "self._after_confirmation([Emit(event)])", "self._effects.append(Emit(event))")
        ),
    ),
    Mutant(
        name="an object whose id the metadata have lost is ignored",
        invariants=("O13",),
        parts=in_function(went_back, "is_later", "parsed.object >= image.objects.next_id", "parsed.object < 0"),
    ),
    Mutant(
        name="a snapshot whose records the metadata have lost is ignored",
        invariants=("O13",),
        style="old",
        parts=in_function(went_back, "is_later", "return applied > image.version", "return False"),
    ),
)
