"""A history as a file: a client process writes its operations as they happen, and the checker plays all files back.

A row is 64 bytes; a torn last row is ignored.

Invariants:
- A row is written before its content can be known elsewhere: an invocation before the batch is given to the client.
- A row reaches the kernel with `flush` at the latest, so that a process that is killed loses only its last moments, and
  those appear as operations without an answer.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from dlog.model.dlsn import DLSN
from tests.history.notes import End, History, Position, Run, Start, dlsn_of, position_of, runs_of

_ROW = struct.Struct("<BBHI7q")  # kind, small, stream, number, seven numbers
_INVOKE, _OK, _FAILED, _UNKNOWN, _OPEN, _RUN, _STRANGE, _END, _TRUNCATE = range(1, 10)
_STRANGE_BYTES = 32
_BUFFER = 1024  # rows


class Tape:
    """Writes a tape. Operations and readers are numbers of this tape; `stream` says which history a row belongs to."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab", buffering=0)
        self._rows = bytearray()
        self._operations = 0
        self._readers = 0

    def invoke(self, stream: int, producer: int, first: int, count: int, at: int, txid: int | None = None) -> int:
        self._operations += 1
        self._row(_INVOKE, 0, stream, self._operations, producer, first, count, at, -1 if txid is None else txid)
        return self._operations

    def ok(self, op: int, at: int, dlsn: DLSN, txid: int, *, duplicate: bool = False) -> None:
        self._row(_OK, duplicate, 0, op, position_of(dlsn), txid, at)

    def failed(self, op: int, at: int) -> None:
        self._row(_FAILED, 0, 0, op, at)

    def unknown(self, op: int, at: int) -> None:
        self._row(_UNKNOWN, 0, 0, op, at)

    def open(self, stream: int, start: Position, at: int) -> int:
        self._readers += 1
        self._row(_OPEN, start.kind, stream, self._readers, start.value, at)
        return self._readers

    def delivered(self, reader: int, at: int, dlsn: DLSN, txid: int, payloads: Sequence[bytes]) -> None:
        begin = position_of(dlsn)
        for slot, count, producer, first in runs_of(payloads):
            if producer < 0:
                head = bytes(payloads[slot][:_STRANGE_BYTES]).ljust(_STRANGE_BYTES, b"\0")
                self._row(
                    _STRANGE, min(len(payloads[slot]), _STRANGE_BYTES), 0, reader, begin + slot, at, *_FOUR.unpack(head)
                )
            else:
                self._row(_RUN, 0, 0, reader, begin + slot, count, producer, first, txid, at)

    def end(self, reader: int, at: int, end: End) -> None:
        self._row(_END, end, 0, reader, at)

    def truncate(self, stream: int, dlsn: DLSN, invoked: int, answered: int, kept: DLSN | None) -> None:
        self._row(
            _TRUNCATE,
            kept is not None,
            stream,
            0,
            position_of(dlsn),
            invoked,
            answered,
            position_of(kept) if kept else -1,
        )

    def flush(self) -> None:
        """Hand all rows to the kernel."""
        if self._rows:
            self._file.write(self._rows)
            self._rows.clear()

    def close(self) -> None:
        self.flush()
        self._file.close()

    def _row(self, kind: int, small: int, stream: int, number: int, *numbers: int) -> None:
        self._rows += _ROW.pack(kind, small, stream, number, *numbers, *(0,) * (7 - len(numbers)))
        if len(self._rows) >= _BUFFER * _ROW.size:
            self.flush()


_FOUR = struct.Struct("<4q")


def play(path: Path, histories: Mapping[int, History]) -> None:
    """Add the rows of a tape to the histories of its streams."""
    operations: dict[int, tuple[History, int]] = {}
    readers: dict[int, tuple[History, int]] = {}
    with path.open("rb") as file:
        while rows := file.read(_ROW.size * 16384):
            for row in _ROW.iter_unpack(rows[: len(rows) - len(rows) % _ROW.size]):
                _play(row, path.stem, histories, operations, readers)


def _play(
    row: tuple[int, ...],
    name: str,
    histories: Mapping[int, History],
    operations: dict[int, tuple[History, int]],
    readers: dict[int, tuple[History, int]],
) -> None:
    kind, small, stream, number, a, b, c, d, e, f, _ = row
    match kind:
        case 1:  # _INVOKE
            history = histories[stream]
            operations[number] = history, history.invoke(a, b, c, d, None if e < 0 else e)
        case 2:  # _OK
            history, op = operations.pop(number)
            history.ok_at(op, c, a, b, duplicate=bool(small))
        case 3:  # _FAILED
            history, op = operations.pop(number)
            history.failed(op, a)
        case 4:  # _UNKNOWN
            history, op = operations.pop(number)
            history.unknown(op, a)
        case 5:  # _OPEN
            history = histories[stream]
            readers[number] = history, history.open(f"{name}.{number}", Position(Start(small), a), b)
        case 6:  # _RUN
            history, reader = readers[number]
            history.run(reader, f, Run(a, b, c, d, e))
        case 7:  # _STRANGE
            history, reader = readers[number]
            history.strange(reader, b, a, _FOUR.pack(*row[6:10])[:small])
        case 8:  # _END
            history, reader = readers[number]
            history.end(reader, a, End(small))
        case 9:  # _TRUNCATE
            kept = dlsn_of(d) if small else None
            histories[stream].truncate(dlsn_of(a), b, c, kept)
        case _:
            raise ValueError(f"no row of a tape: {row}")
