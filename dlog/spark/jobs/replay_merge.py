"""Turns parts of tables into files, or calls of a user's function, in a Spark task.

Invariants:
- a failed part affects only its table;
- a part is done once its note exists, which is written as a whole, after the part; it is not done again by later runs.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from dlog.errors import ConfigError, DamagedError, DLogError
from dlog.spark.jobs.replay_runs import OUTPUT, RunFiles, flush, publish
from dlog.spark.jobs.replay_tables import Part, dlsn_text
from dlog.wire.digest import crc32c

FORMATS = ("parquet", "arrow")

_GROUP_ROWS = 128 * 1024
_GROUP_BYTES = 32 << 20
_CALL_ROWS = 64 * 1024


@dataclass(frozen=True, slots=True)
class TablePart:
    """The part of a table that is passed to a replay function. number: of this part, from 0, of `parts`."""

    region: str
    table: int
    number: int
    parts: int
    first_sequence: int
    last_sequence: int
    records: int


Function = Callable[[TablePart, Iterator[pa.RecordBatch]], Any]


def function_of(name: str) -> Function:
    """Import `module:function`. Raises ConfigError."""
    module, colon, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module) if colon and path else None
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"the replay function cannot be imported: function={name[:80]}: {str(error)[:120]}") from None
    if not callable(found):
        raise ConfigError(f"a replay function must be named module:function: function={name[:80]}")
    return cast(Function, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """How parts are merged. runs, notes, files: directories that all workers can access. function: used instead of
    files. format: of files."""

    runs: Path
    notes: Path
    files: Path | None
    function: str
    format: str

    def note_of(self, part: Part) -> Path:
        return self.notes / f"{part.name}.json"

    def do(self, parts: Sequence[Part], token: str) -> list[dict[str, Any]]:
        """The note of each part, in order. A failed part has `error`, and later parts of its table are skipped."""
        notes: list[dict[str, Any]] = []
        failed: set[tuple[str, int]] = set()
        with RunFiles(self.runs) as run_files:
            for part in parts:
                key = (part.of.region, part.of.table)
                if key in failed:
                    continue
                try:
                    notes.append(self._one(part, run_files, token))
                except Exception as error:  # noqa: BLE001 - of a user's function; reported
                    failed.add(key)
                    text = error.message if isinstance(error, DLogError) else f"{type(error).__name__}: {error}"
                    notes.append({"region": key[0], "table": key[1], "part": part.number, "error": text[:500]})
        return notes

    def _one(self, part: Part, run_files: RunFiles, token: str) -> dict[str, Any]:
        path = self.note_of(part)
        if path.exists():
            return cast("dict[str, Any]", json.loads(path.read_bytes()))
        batches = _Summed(run_files.batches(part.of.files, part.of.runs))
        note = {**part.of.as_map(), "part": part.number}
        if self.function:
            self._call(part, batches)
        else:
            note["file"] = self._write(part, batches, token)
        if batches.records != part.of.records:
            raise DamagedError(f"a part is incomplete: expected={part.of.records} records={batches.records}")
        note["crc32c"] = batches.crc
        publish(path, json.dumps(note, sort_keys=True).encode(), token)
        return note

    def _call(self, part: Part, batches: _Summed) -> None:
        of = part.of
        first, last = int(of.runs[0]["first_sequence"]), int(of.runs[-1]["last_sequence"])
        table_part = TablePart(of.region, of.table, part.number, part.parts, first, last, of.records)
        function_of(self.function)(table_part, batches.cut(_CALL_ROWS))
        if batches.records != of.records:
            raise ConfigError(
                f"the replay function returned before it consumed every record: function={self.function} "
                f"taken={batches.records} of={of.records}"
            )

    def _write(self, part: Part, batches: _Summed, token: str) -> str:
        """Write the part; returns its file name. Each attempt has its own; the note decides."""
        assert self.files is not None
        path = self.files / f"{part.name}-{token}.{self.format}"
        with path.open("xb") as file:
            if self.format == "parquet":
                _write_parquet(file, part, batches)
            else:
                with pa.ipc.new_file(file, OUTPUT) as writer:
                    for table in batches.grouped():
                        writer.write_table(table)
            flush(file)
        return path.name


def empty_table(format_: str) -> bytes:
    """A table file without records."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, OUTPUT) if format_ == "parquet" else pa.ipc.new_file(sink, OUTPUT):
        pass
    return bytes(sink.getvalue())


def _write_parquet(file: Any, part: Part, batches: _Summed) -> None:
    with pq.ParquetWriter(file, OUTPUT, compression="snappy") as writer:
        for table in batches.grouped():
            writer.write_table(table, row_group_size=max(1, table.num_rows))
        runs = part.of.runs
        writer.add_key_value_metadata(
            {
                "dlog.region": part.of.region,
                "dlog.table": str(part.of.table),
                "dlog.part": f"{part.number}/{part.parts}",
                "dlog.first": dlsn_text(runs[0], "first"),
                "dlog.last": dlsn_text(runs[-1], "last"),
                "dlog.first_sequence": str(runs[0]["first_sequence"]),
                "dlog.last_sequence": str(runs[-1]["last_sequence"]),
                "dlog.records": str(batches.records),
                "dlog.crc32c": str(batches.crc),
            }
        )


class _Summed:
    """Counts batches as they pass. records, crc: of what was consumed so far; CRC32C of its payloads, joined."""

    def __init__(self, batches: Iterator[tuple[pa.RecordBatch, bytes]]) -> None:
        self._batches = batches
        self.records = 0
        self.crc = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch, payloads in self._batches:
            self.records += batch.num_rows
            self.crc = crc32c(payloads, self.crc)
            yield batch

    def cut(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Batches of at most this many rows."""
        for batch in self:
            for at in range(0, batch.num_rows, rows):
                yield batch.slice(at, rows)

    def grouped(self) -> Iterator[pa.Table]:
        """Tables, each for one row group."""
        waiting: list[pa.RecordBatch] = []
        for batch in self:
            waiting.append(batch)
            rows, size = sum(b.num_rows for b in waiting), sum(b.nbytes for b in waiting)
            if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting = []
        if waiting:
            yield pa.Table.from_batches(waiting)
