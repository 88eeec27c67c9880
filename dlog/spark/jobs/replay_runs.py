"""Run files: a piece of a region, sorted by table in blocks that fit in memory, and an index of the runs.

    run file = block ...      block = run ...      run = n rows of `ROW` | their payloads, joined
    index    = a line of JSON | an array of `RUN`, as numpy saves it

Invariants:
- a run is the records of one table in one block, in the order of the region;
- only what an index names is a run; an index appears as a whole, once its run file is on disk;
- memory holds one block.
"""

from __future__ import annotations

import io
import json
import os
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlog.errors import DamagedError
from dlog.spark.jobs.flushed_sequences import Marks
from dlog.spark.jobs.wal import SCHEMA, Numbers
from dlog.wire.digest import crc32c

#: a record in a run file, without its payload
ROW = np.dtype(
    [
        *(("segment", "<i8"), ("entry", "<i8"), ("slot", "<i4"), ("bytes", "<u4")),
        *(("txid", "<i8"), ("unix_us", "<i8"), ("sequence", "<i8")),
    ]
)

#: a run. break_*: its first record that does not follow the previous one, if break_segment is not -1
RUN = np.dtype(
    [
        (name, "<i8")
        for name in (
            *("table", "rows_at", "rows", "data_at", "data_bytes", "rows_crc", "data_crc"),
            *("first_sequence", "first_segment", "first_entry", "first_slot"),
            *("last_sequence", "last_segment", "last_entry", "last_slot"),
            *("break_expected", "break_found", "break_segment", "break_entry", "break_slot"),
        )
    ]
)

#: columns of the output
OUTPUT = pa.schema([SCHEMA.field(name) for name in SCHEMA.names if name != "table"])

_NO_TIME = np.iinfo(np.int64).min
_BATCH_ROWS = 64 * 1024
_BATCH_BYTES = 8 << 20
_OPEN_MAX = 32

Structured = NDArray[Any]


@dataclass(slots=True)
class Split:
    """Result of splitting a piece. file: its run file; "" if none was written. left_out: reports of damage."""

    region: str
    number: int
    file: str = ""
    records: int = 0
    flushed: int = 0  # records that were omitted, since their tables have them
    others: int = 0  # records of tables that were not selected
    left_out: list[str] = field(default_factory=list)
    runs: Structured = field(default_factory=lambda: np.zeros(0, RUN))

    def save(self) -> bytes:
        head = {name: getattr(self, name) for name in ("region", "number", "file", *_COUNTS, "left_out")}
        body = io.BytesIO()
        np.save(body, self.runs, allow_pickle=False)
        return json.dumps(head, sort_keys=True).encode() + b"\n" + body.getvalue()

    @classmethod
    def load(cls, path: Path) -> Split:
        """Raises DamagedError."""
        try:
            head, _, body = path.read_bytes().partition(b"\n")
            return cls(**json.loads(head), runs=np.load(io.BytesIO(body), allow_pickle=False))
        except (ValueError, TypeError, EOFError) as error:
            raise DamagedError(
                f"an index of runs cannot be read; remove the work directory and start over: file={path}: "
                f"{str(error)[:80]}"
            ) from None


_COUNTS = ("records", "flushed", "others")


class Splitter:
    """Splits a piece, batch by batch, into runs. file: None only counts."""

    def __init__(self, into: Split, file: IO[bytes] | None, *, marks: Marks, tables: Sequence[int], run_bytes: int):
        self._into = into
        self._file = file
        self._marks = marks
        self._tables = np.array(sorted(tables), np.int64)
        self._run_bytes = run_bytes
        self._at = 0
        self._waiting: list[tuple[Numbers, Structured]] = []  # tables and rows of batches
        self._payloads: defaultdict[int, list[memoryview]] = defaultdict(list)  # of the same batches, by table
        self._bytes = 0
        self._blocks: list[Structured] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch of the region, in its order."""
        tables, sequences = _numbers(batch, "table"), _numbers(batch, "sequence")
        self._into.records += batch.num_rows
        is_kept = np.isin(tables, self._tables) if len(self._tables) else np.ones(len(tables), bool)
        self._into.others += int((~is_kept).sum())
        is_flushed = is_kept & (sequences <= self._marks.of_tables(tables))
        self._into.flushed += int(is_flushed.sum())
        is_kept &= ~is_flushed
        if not is_kept.all():
            batch = batch.take(pa.array(np.flatnonzero(is_kept)))
        if batch.num_rows:
            self._waiting.append((tables[is_kept], _rows(batch)))
            self._bytes += batch.nbytes
            if self._file is not None:
                self._keep_payloads(tables[is_kept], batch.column("payload"))
        if self._bytes >= self._run_bytes:
            self._end_block()

    def end(self) -> Split:
        self._end_block()
        self._into.runs = np.concatenate(self._blocks) if self._blocks else np.zeros(0, RUN)
        return self._into

    def _keep_payloads(self, tables: Numbers, payloads: pa.BinaryArray) -> None:
        """Sort the payloads of a batch by table, while they are in the processor's cache."""
        order = _order(tables)
        ordered = payloads.take(pa.array(order))
        offsets = np.frombuffer(ordered.buffers()[1], np.int32, len(order) + 1, 4 * ordered.offset)
        data = memoryview(ordered.buffers()[2] or b"")
        tables = tables[order]
        begins, ends = _bounds(tables)
        for table, begin, end in zip(tables[begins].tolist(), offsets[begins], offsets[ends], strict=True):
            self._payloads[table].append(data[begin:end])

    def _end_block(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if not waiting:
            return
        tables = np.concatenate([of for of, _ in waiting])
        order = _order(tables)
        tables, rows = tables[order], _taken(np.concatenate([of for _, of in waiting]), order)
        begins, ends = _bounds(tables)
        runs = _index(tables, rows, begins, ends)
        if self._file is not None:
            for run, begin, end in zip(runs, begins, ends, strict=True):
                self._write_run(run, rows[begin:end].tobytes(), self._payloads.pop(int(run["table"])))
        self._blocks.append(runs)

    def _write_run(self, run: Any, rows: bytes, payloads: Sequence[memoryview]) -> None:
        assert self._file is not None
        run["rows_at"], run["rows_crc"] = self._at, crc32c(rows)
        self._at += len(rows)
        self._file.write(rows)
        run["data_at"], crc = self._at, 0
        for data in payloads:
            crc = crc32c(data, crc)
            self._at += len(data)
            self._file.write(data)
        run["data_crc"] = crc


def _order(tables: Numbers) -> Numbers:
    """The order by table, in which records of one table keep theirs. 16 bits: radix sort."""
    return np.argsort(tables.astype(np.uint16) if tables.max() < 1 << 16 else tables, kind="stable")


def _bounds(tables: Numbers) -> tuple[Numbers, Numbers]:
    """Where each table begins and ends in sorted ones."""
    begins = np.flatnonzero(np.concatenate(([True], tables[1:] != tables[:-1])))
    return begins, np.append(begins[1:], len(tables))


def _index(tables: Numbers, rows: Structured, begins: Numbers, ends: Numbers) -> Structured:
    """The runs of a sorted block, without the places in the file."""
    runs = np.zeros(len(begins), RUN)
    runs["table"], runs["rows"] = tables[begins], ends - begins
    runs["data_bytes"] = np.add.reduceat(rows["bytes"], begins, dtype=np.int64)
    for side, at in (("first", begins), ("last", ends - 1)):
        for name in ("sequence", "segment", "entry", "slot"):
            runs[f"{side}_{name}"] = rows[name][at]
    _note_breaks(runs, begins, tables, rows)
    return runs


def _note_breaks(runs: Structured, begins: Numbers, tables: Numbers, rows: Structured) -> None:
    """Record the first break in each run."""
    runs["break_segment"] = -1
    sequences = rows["sequence"]
    is_break = (tables[1:] == tables[:-1]) & (np.diff(sequences) != 1)
    at = np.flatnonzero(is_break) + 1
    in_run = np.searchsorted(begins, at, side="right") - 1
    which, first = np.unique(in_run, return_index=True)
    at = at[first]
    runs["break_expected"][which] = sequences[at - 1] + 1
    runs["break_found"][which] = sequences[at]
    for name in ("segment", "entry", "slot"):
        runs[f"break_{name}"][which] = rows[name][at]


def _numbers(batch: pa.RecordBatch, name: str) -> Numbers:
    found: Numbers = batch.column(name).to_numpy(zero_copy_only=False)
    return found


def _taken(rows: Structured, order: Numbers) -> Structured:
    """rows[order], several times faster."""
    plain = rows.view(np.int64).reshape(len(rows), ROW.itemsize // 8)
    taken: Structured = plain[order].view(ROW).reshape(len(order))
    return taken


def _rows(batch: pa.RecordBatch) -> Structured:
    rows = np.zeros(batch.num_rows, ROW)
    for name in ("segment", "entry", "slot", "txid", "sequence"):
        rows[name] = _numbers(batch, name)
    rows["unix_us"] = batch.column("timestamp").cast(pa.int64()).fill_null(_NO_TIME).to_numpy(zero_copy_only=False)
    payload = batch.column("payload")
    rows["bytes"] = np.diff(np.frombuffer(payload.buffers()[1], np.int32, len(payload) + 1, 4 * payload.offset))
    return rows


def write_split(
    into: Split,
    directory: Path,
    token: str,
    batches: Iterator[pa.RecordBatch],
    splitter: Callable[[Split, IO[bytes]], Splitter],
) -> Split:
    """Write the run file of a piece, then publish its index; returns that of another attempt if it was faster. token:
    unique to this attempt. Raises OSError."""
    stem = f"{into.region}-{into.number:06d}"
    into.file = f"{stem}-{token}.run"
    path = directory / into.file
    with path.open("xb") as file:
        work = splitter(into, file)
        for batch in batches:
            work.add(batch)
        done = work.end()
        flush(file)
    if not publish(directory / f"{stem}.index", done.save(), token):
        path.unlink()
        return Split.load(directory / f"{stem}.index")
    return done


def flush(file: IO[bytes]) -> None:
    """Write a file through to the disk."""
    file.flush()
    os.fsync(file.fileno())


def publish(path: Path, data: bytes, token: str, *, through: Path | None = None) -> bool:
    """Create a complete file atomically. False: it exists, and stays as it is. through: a directory on the same file
    system for the temporary file, which stays there after a kill. Raises OSError."""
    part = (through or path.parent) / f".{path.name}-{token}"
    with part.open("xb") as file:
        file.write(data)
        flush(file)
    try:
        os.link(part, path)
    except FileExistsError:
        return False
    finally:
        part.unlink()
    return True


# ---- reading --------------------------------------------------------------------------------------------------------


class RunFiles:
    """The run files of a directory; at most 32 are open at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: OrderedDict[str, IO[bytes]] = OrderedDict()

    def __enter__(self) -> RunFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def batches(self, files: Sequence[str], runs: Structured) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """Batches of `OUTPUT`, each with its payloads, joined. files: the run file of each run.

        Raises DamagedError for bytes that differ from those written, OSError.
        """
        rows: list[Structured] = []
        data: list[bytes] = []
        count = size = 0
        for name, run in zip(files, runs, strict=True):
            rows.append(np.frombuffer(self._read(name, run, "rows", int(run["rows"]) * ROW.itemsize), ROW))
            data.append(self._read(name, run, "data", int(run["data_bytes"])))
            count, size = count + int(run["rows"]), size + int(run["data_bytes"])
            if count >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield _batch(rows, data)
                rows, data, count, size = [], [], 0, 0
        if rows:
            yield _batch(rows, data)

    def _read(self, name: str, run: Any, what: str, size: int) -> bytes:
        file = self._open.pop(name, None) or (self._directory / name).open("rb", buffering=0)
        self._open[name] = file  # now the most recently used
        while len(self._open) > _OPEN_MAX:
            self._open.popitem(last=False)[1].close()
        at = int(run[f"{what}_at"])
        data = _read_all(file.fileno(), size, at)
        if len(data) != size or crc32c(data) != run[f"{what}_crc"]:
            raise DamagedError(
                f"a run file is damaged; remove the work directory and start over: "
                f"file={self._directory / name} at={at} bytes={size}"
            )
        return data


def _read_all(fd: int, size: int, at: int) -> bytes:
    parts: list[bytes] = []
    while size and (part := os.pread(fd, size, at)):
        parts.append(part)
        size, at = size - len(part), at + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _batch(many: list[Structured], data: list[bytes]) -> tuple[pa.RecordBatch, bytes]:
    rows = many[0] if len(many) == 1 else np.concatenate(many)
    joined = data[0] if len(data) == 1 else b"".join(data)
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(rows["bytes"], out=offsets[1:])
    unix_us = np.ascontiguousarray(rows["unix_us"])
    columns = [
        *(pa.array(np.ascontiguousarray(rows[name])) for name in ("segment", "entry", "slot", "txid")),
        pa.array(unix_us, mask=unix_us == _NO_TIME).cast(OUTPUT.field("timestamp").type),
        pa.array(np.ascontiguousarray(rows["sequence"])),
        pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(joined)]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=OUTPUT), joined
