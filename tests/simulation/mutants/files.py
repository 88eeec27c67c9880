"""Planted defects of the protocol of a segment in files: each step of it left out, or done in another order."""

from __future__ import annotations

from typing import Any

from dlog.stores.file.segment_files import Appender, SegmentFiles
from dlog.stores.file.space import Space
from tests.simulation.mutants import edited
from tests.simulation.worlds import Mutant

Edit = tuple[str, str, str]


def planted(cls: type, *edits: Edit) -> dict[str, Any]:
    return {"planted": ((cls, edited(cls, *edits)),)}


MUTANTS = (
    Mutant(
        name="an append is confirmed without checking whether the segment was fenced",
        invariants=("F1", "F2", "F3"),
        parts=planted(Appender, ("append", "if not self._files.is_writable():", "if False:")),
    ),
    Mutant(
        name="the writer checks for a fence before its entries are synced",
        invariants=("F2",),
        parts=planted(
            Appender,
            (
                "append",
                "entry, offset = self._next",
                "entry, offset = self._next; writable = self._files.is_writable()",
            ),
            ("append", "if not self._files.is_writable():", "if not writable:"),
        ),
    ),
    Mutant(
        name="the watermark advances before the writer checks for a fence",
        invariants=("F4", "F2"),
        parts=planted(
            Appender,
            (
                "append",
                "if not self._files.is_writable():",
                "self._file.pwritev([encode_watermark(self._nonce, entry, offset)], WATERMARK_OFFSET)\n"
                "    if not self._files.is_writable():",
            ),
        ),
    ),
    Mutant(
        name="entries are confirmed before they are synced",
        invariants=("F2",),
        style="power",
        parts=planted(Appender, ("append", "self._file.datasync()", "pass")),
    ),
    Mutant(
        name="a segment is ended without being fenced",
        invariants=("F1", "F2", "F3"),
        parts=planted(SegmentFiles, ("decide_end", "self.fence()", "pass")),
    ),
    Mutant(
        name="a second end replaces the first",
        invariants=("F1", "F2", "F2"),
        seeds=2000,
        parts=planted(SegmentFiles, ("publish", "self._disk.rename_new(", "self._disk.rename(")),
    ),
    Mutant(
        name="the end counts entries that a failed sync has dropped",
        invariants=("F1", "F2", "F5"),
        style="sync",
        seeds=2000,
        parts=planted(SegmentFiles, ("_valid_entries", "file.pwritev([piece], at)", "pass")),
    ),
    Mutant(
        name="the end counts entries that are not synced",
        invariants=("F1", "F2", "F5"),
        style="power",
        seeds=2000,
        parts=planted(SegmentFiles, ("_valid_entries", "file.datasync()", "pass")),
    ),
    Mutant(
        name="an end is returned before its name is durable",
        invariants=("F1", "F2"),
        style="power",
        seeds=2000,
        parts=planted(SegmentFiles, ("read_end", "if end.last_entry != expected:", "if False:")),
    ),
    Mutant(
        name="a tail is returned though the segment was fenced meanwhile",
        invariants=("F5",),
        seeds=2000,
        parts=planted(SegmentFiles, ("find_tail", "if self.is_writable():", "if True:")),
    ),
    Mutant(
        name="readers read what is in the file, confirmed or not",
        invariants=("F2", "F4"),
        parts=planted(
            SegmentFiles,
            ("read_progress", "read_watermark(file, nonce)[0]", "scan(file, nonce, read_watermark(file, nonce))[0]"),
        ),
    ),
    Mutant(
        name="a segment is created before its name is durable",
        invariants=("F2",),
        style="power",
        parts=planted(SegmentFiles, ("create", "self._disk.sync_dir(self.directory)", "pass")),
    ),
    Mutant(
        name="a segment is deleted without being fenced",
        invariants=("F3", "F6"),
        style="delete",
        seeds=2000,
        parts=planted(
            SegmentFiles,
            ("delete", "self.fence()", "pass"),
            (
                "delete",
                "if name.startswith(self.location)",
                "if name.startswith(self.location) and 'writable' not in name",
            ),
        ),
    ),
    Mutant(
        name="an end is left behind by a process that decided it while the segment was deleted",
        invariants=("F6",),
        style="delete",
        seeds=2000,
        parts=planted(SegmentFiles, ("publish", "self.delete()", "pass")),
    ),
    Mutant(
        name="a segment is ended on a full disk without giving up the reserve",
        invariants=("F7",),
        style="full",
        parts=planted(Space, ("for_ending", "self._reserve.give_up()", "pass")),
    ),
    Mutant(
        name="a writer fills the disk without a reserve for ending its segment",
        invariants=("F7",),
        style="full",
        parts=planted(Space, ("for_entries", "self._take_reserve()", "pass")),
    ),
)
