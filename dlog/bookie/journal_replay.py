"""Rebuilds a bookie's state from the journal at start: entries and ledger states after the last checkpoint.

Invariants:
- replaying a record twice, or one that was already flushed, changes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from dlog.bookie.cache import Half, Stored
from dlog.bookie.index import LedgerRow
from dlog.bookie.journal import Kind, Record, parse_ledger_record
from dlog.errors import DamagedError

_HEAD = struct.Struct(">qqq")
_LAC = struct.Struct(">qq")


class Restored:
    """Ledger states by id, and the entries not flushed yet."""

    def __init__(self, rows: Iterable[LedgerRow]) -> None:
        self.rows: dict[int, LedgerRow] = {row.ledger: row for row in rows}
        self.entries: Half = {}
        self.bytes = 0
        self.adds = 0
        self._changed: set[int] = set()

    def apply(self, record: Record, *, salvage: bool) -> None:
        """Apply one record. Raises DamagedError for an unknown kind.

        salvage: accept adds of a ledger whose key was lost; the first key shown later is taken.
        """
        if record.kind == Kind.ADD:
            self._add(record, salvage)
        elif record.kind == Kind.LEDGER:
            ledger, key, fenced = parse_ledger_record(record.payload)
            row = self.rows.get(ledger, LedgerRow(ledger, key, False, -1, -1))
            self.rows[ledger] = row._replace(master_key=key, fenced=row.fenced or fenced)
            self._changed.add(ledger)
        elif record.kind == Kind.LAC:
            ledger, lac = _LAC.unpack_from(record.payload)
            row = self._row(ledger, salvage)
            self.rows[ledger] = row._replace(lac=max(row.lac, lac), explicit_lac=bytes(record.payload))
            self._changed.add(ledger)
        else:
            raise DamagedError(
                "a journal record of unknown kind, perhaps of a later version of dlog; start that one: "
                f"kind={record.kind}"
            )

    def _add(self, record: Record, salvage: bool) -> None:
        ledger, entry, lac = _HEAD.unpack_from(record.payload)
        row = self._row(ledger, salvage)
        self.rows[ledger] = row._replace(lac=max(row.lac, lac), last=max(row.last, entry))
        self._changed.add(ledger)
        self.entries.setdefault(ledger, {})[entry] = Stored(record.payload, record.crc)
        self.bytes += len(record.payload)
        self.adds += 1

    def _row(self, ledger: int, salvage: bool) -> LedgerRow:
        row = self.rows.get(ledger)
        if row is None:
            if not salvage:
                raise DamagedError(
                    f"the journal holds a record of a ledger without its key, see --salvage: ledger={ledger}"
                )
            row = LedgerRow(ledger, b"", False, -1, -1)
        return row

    def take(self) -> tuple[Half, list[LedgerRow]]:
        """Return entries and changed states since the last call, to be flushed."""
        entries, self.entries, self.bytes = self.entries, {}, 0
        rows = [self.rows[ledger] for ledger in sorted(self._changed)]
        self._changed.clear()
        return entries, rows
