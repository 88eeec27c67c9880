"""The database port: an ordered map from bytes to bytes on disk, as RocksDB is one.

Invariants:
- What was written before a `flush` that returned is there after a crash, and so is what was deleted.
- Of what was written since, a first part is there after a crash, in the order in which it was written.
- Bytes that do not verify are never returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from dlog.options import MiB

Row = tuple[bytes, bytes]  # key, value
Range = tuple[bytes, bytes]  # first key, the key behind the last one


@dataclass(frozen=True, slots=True)
class DatabaseLimits:
    """Memory of one database, in bytes: cache of blocks, and each of at most two write buffers."""

    cache_bytes: int = 32 * MiB
    write_buffer_bytes: int = 16 * MiB


class Database(Protocol):
    """An open database. All calls block. One thread writes, any thread reads.

    All raise DamagedError for what does not verify, OSError for what the disk refuses. After an OSError of `write` or
    `flush` what was written since the last `flush` may be lost, also for readers: write it again.
    """

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, first: bytes, end: bytes) -> Iterator[Row]:
        """(key, value) with first <= key < end, in order. Rows written meanwhile may be among them."""
        ...

    def write(self, rows: Iterable[Row], deleted: Iterable[Range] = ()) -> None:
        """Delete the ranges, then put the rows. Visible at once, durable after `flush`, or a first part before."""
        ...

    def flush(self) -> None:
        """Make everything written durable."""
        ...

    def close(self) -> None:
        """Idempotent; what was not flushed may be lost."""
        ...
