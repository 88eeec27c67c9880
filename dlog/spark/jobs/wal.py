"""Reads a write-ahead log that many tables share: records with a table and a sequence, in any kind of store.

    record = "DLW1" | table u64 | sequence u64 | payload          little-endian; both numbers are below 2**63

Invariants:
- all jobs read through one interface, `Wal`;
- a plan names records that can be read for ever, and a piece of it is read in the order of the region;
- what is not a record of a region is never taken for one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dlog.errors import ConfigError, DamagedError, InvalidRequestError
from dlog.spark.columns import COLUMNS
from dlog.spark.jobs.frame import Selection
from dlog.spark.options import SourceOptions, parse
from dlog.spark.planning import Range, partitions
from dlog.spark.plans import ask, plan_batch
from dlog.spark.pruning import Pruning
from dlog.spark.reading import batches

if TYPE_CHECKING:
    from dlog.spark.jobs.flushed_sequences import Marks

MAGIC = b"DLW1"
NUMBER_MAX = 2**63 - 1

#: columns of a region, in its order. segment, entry, slot: the DLSN; in stores with plain offsets 0, offset, 0
SCHEMA = pa.schema(
    [
        ("segment", pa.int64()),
        ("entry", pa.int64()),
        ("slot", pa.int32()),
        ("txid", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("table", pa.int64()),
        ("sequence", pa.int64()),
        ("payload", pa.binary()),
    ]
)

_HEAD = struct.Struct("<4sQQ")
_MAGIC_NUMBER = int.from_bytes(MAGIC, "little")
_READ = pa.schema([(name, COLUMNS[name]) for name in ("segment", "entry", "slot", "txid", "timestamp", "value")])

Numbers = NDArray[np.int64]
OnSkipped = Callable[[str], None]


def encode(table: int, sequence: int, payload: bytes) -> bytes:
    """Encode a record of a region, to append to its stream. Raises InvalidRequestError for numbers out of bounds."""
    if not (0 <= table <= NUMBER_MAX and 0 <= sequence <= NUMBER_MAX):
        raise InvalidRequestError(f"table and sequence must be from 0 to 2**63 - 1: table={table} sequence={sequence}")
    return _HEAD.pack(MAGIC, table, sequence) + payload


def decode(values: pa.BinaryArray) -> tuple[Numbers, Numbers, NDArray[np.bool_]]:
    """Tables, sequences, and which values are records of a region; the numbers of other values are meaningless."""
    rows = len(values)
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, rows + 1, 4 * values.offset).astype(np.int64)
    starts, is_whole = offsets[:-1], np.diff(offsets) >= _HEAD.size
    if not is_whole.any():
        return np.zeros(rows, np.int64), np.zeros(rows, np.int64), is_whole
    safe = np.where(is_whole, starts, starts[is_whole][0])
    tables = _numbers_at(data_buffer, "<u8", safe + 4)
    sequences = _numbers_at(data_buffer, "<u8", safe + 12)
    is_ours = is_whole & (_numbers_at(data_buffer, "<u4", safe) == _MAGIC_NUMBER)
    is_ours &= (tables <= NUMBER_MAX) & (sequences <= NUMBER_MAX)
    return tables.astype(np.int64), sequences.astype(np.int64), is_ours


def _numbers_at(data: pa.Buffer, kind: str, offsets: Numbers) -> NDArray[Any]:
    """Read numbers at any byte offsets: one pass in C, although they are not aligned."""
    size = np.dtype(kind).itemsize
    everywhere: NDArray[Any] = np.ndarray((data.size - size + 1,), kind, data, 0, (1,))
    return everywhere[offsets]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPiece:
    """A part of a region that one task reads. told: what its `Wal` needs to find it again, as JSON. bytes, records:
    about."""

    region: str
    number: int  # in the order of the region
    bytes: int
    records: int
    told: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """A selected table, as its store knew it when the replay was planned. first: the sequence behind its mark; without
    a mark, the first one that is kept. kept: the store has its records from this sequence on. next: the sequence of its
    next record. end: offset behind its last record."""

    region: str
    table: int
    first: int
    kept: int
    next: int
    end: int


@dataclass(frozen=True, slots=True)
class WalPlan:
    """What is replayed. pieces: region after region, each in its order. tables: what is known of them; empty in stores
    that know nothing of tables, so that a table is whatever the pieces have of it."""

    pieces: tuple[RegionPiece, ...]
    tables: tuple[KnownTable, ...] = ()


class Wal(Protocol):
    """Regions that can be read. Pickled for tasks."""

    def identity(self) -> dict[str, Any]:
        """What is read, as JSON: equal for two that read the same."""
        ...

    def plan(self, piece_bytes: int, marks: Marks, tables: Sequence[int]) -> WalPlan:
        """All there is now, in pieces of about `piece_bytes`. marks, tables: what is wanted (no tables: all); a store
        may leave other records out. Called on the driver.

        Raises DLogError.
        """
        ...

    def read(self, piece: RegionPiece, tables: Sequence[KnownTable], on_skipped: OnSkipped) -> Iterator[pa.RecordBatch]:
        """Batches of `SCHEMA`. tables: those of the plan. on_skipped: called with what was left out, where that is
        allowed. Called in a task.

        Raises DamagedError with the position of a value that is not a record of a region; what the store raises.
        """
        ...


class StreamWal:
    """Regions in streams. source: options of `spark.read.format("dlog")`, e.g. startingOffsets or onCorruption."""

    def __init__(self, selection: Selection, source: Mapping[str, str]) -> None:
        """Raises ConfigError, also if no stream is named."""
        if not (selection.streams or selection.pattern):
            raise ConfigError("name the streams that are regions, with --stream or --pattern")
        for name in source:
            if name.lower() in ("metadata", "pushdown", "path") or name.lower() in map(str.lower, selection.options()):
                raise ConfigError(f"this option of the source cannot be set here, remove it: option={name[:60]}")
        self._identity = {**selection.options(), **{name.lower(): value for name, value in source.items()}}
        self._options: SourceOptions = parse({**selection.options(), **source}, streaming=False)

    def identity(self) -> dict[str, Any]:
        return dict(self._identity)

    def plan(self, piece_bytes: int, marks: Marks, tables: Sequence[int]) -> WalPlan:
        options = self._options
        by_region: dict[str, list[Range]] = {}
        for of in ask(options, partial(plan_batch, options=options, pruning=Pruning())):
            by_region.setdefault(of.stream, []).append(of)
        return WalPlan(
            tuple(
                RegionPiece(
                    region=region,
                    number=number,
                    bytes=sum(of.bytes for of in packed),
                    records=sum(of.records for of in packed),
                    told=tuple(asdict(of) for of in packed),
                )
                for region, ranges in by_region.items()
                for number, packed in enumerate(
                    partitions(
                        ranges, split_bytes=piece_bytes, open_cost_bytes=min(piece_bytes, options.open_cost_bytes)
                    )
                )
            )
        )

    def read(self, piece: RegionPiece, tables: Sequence[KnownTable], on_skipped: OnSkipped) -> Iterator[pa.RecordBatch]:
        ranges = [Range(**fields) for fields in piece.told]
        for batch in batches(ranges, self._options, _READ, on_skipped=on_skipped):
            opened = self._opened(piece.region, batch, on_skipped)
            if opened.num_rows:
                yield opened

    def _opened(self, region: str, batch: pa.RecordBatch, on_skipped: OnSkipped) -> pa.RecordBatch:
        tables, sequences, is_ours = decode(batch.column("value"))
        if not is_ours.all():
            self._foreign(region, batch, is_ours, on_skipped)
            kept = np.flatnonzero(is_ours)
            batch, tables, sequences = batch.take(pa.array(kept)), tables[kept], sequences[kept]
        columns = batch.columns[:-1]
        payload = pc.binary_replace_slice(batch.column("value"), 0, _HEAD.size, b"")  # binary_slice of 26.0 overflows
        return pa.RecordBatch.from_arrays([*columns, pa.array(tables), pa.array(sequences), payload], schema=SCHEMA)

    def _foreign(self, region: str, batch: pa.RecordBatch, is_ours: NDArray[np.bool_], on_skipped: OnSkipped) -> None:
        first = int(np.flatnonzero(~is_ours)[0])
        where = " ".join(f"{name}={batch.column(name)[first].as_py()}" for name in ("segment", "entry", "slot"))
        text = f"not a record of a region, these begin with {MAGIC.decode()}, a table and a sequence: stream={region}"
        if self._options.on_corruption == "fail":
            raise DamagedError(f"{text} {where}; option onCorruption=skip-entry leaves such records out")
        on_skipped(f"{text} {where} records={int((~is_ours).sum())}, left out")
