"""What a restart makes of the journal: the entries and ledger states behind the last checkpoint.

The law of this file: replaying a record twice, or one that was flushed already, changes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from dlog.bookie.cache import Half, Stored
from dlog.bookie.index import LedgerRow
from dlog.bookie.journal import Kind, Record, parse_ledger_record
from dlog.errors import DamagedError

_HEAD = struct.Struct(">qqq")


class Restored:
    """Ledgers by id, and the entries not flushed yet."""

    def __init__(self, rows: Iterable[LedgerRow]) -> None:
        self.rows: dict[int, LedgerRow] = {row.ledger: row for row in rows}
        self.entries: Half = {}
        self.bytes = 0
        self.adds = 0
        self._changed: set[int] = set()

    def apply(self, record: Record, *, salvage: bool) -> None:
        """Take one record. Raises DamagedError for one of a kind we do not know.

        salvage: an add may come for a ledger whose key was lost; its first key shown is then taken.
        """
        if record.kind == Kind.ADD:
            self._add(record, salvage)
        elif record.kind == Kind.LEDGER:
            ledger, key, fenced = parse_ledger_record(record.payload)
            row = self.rows.get(ledger, LedgerRow(ledger, key, False, -1, -1))
            self.rows[ledger] = row._replace(master_key=key, fenced=row.fenced or fenced)
            self._changed.add(ledger)
        else:
            raise DamagedError(f"a journal record of unknown kind, written by a later version? kind={record.kind}")

    def _add(self, record: Record, salvage: bool) -> None:
        ledger, entry, lac = _HEAD.unpack_from(record.payload)
        row = self.rows.get(ledger)
        if row is None:
            if not salvage:
                raise DamagedError(f"the journal holds an add of a ledger it never named: ledger={ledger}")
            row = LedgerRow(ledger, b"", False, -1, -1)
        self.rows[ledger] = row._replace(lac=max(row.lac, lac), last=max(row.last, entry))
        self._changed.add(ledger)
        self.entries.setdefault(ledger, {})[entry] = Stored(record.payload, record.crc)
        self.bytes += len(record.payload)
        self.adds += 1

    def take(self) -> tuple[Half, list[LedgerRow]]:
        """Entries and changed states since the last take, to be flushed."""
        entries, self.entries, self.bytes = self.entries, {}, 0
        rows = [self.rows[ledger] for ledger in sorted(self._changed)]
        self._changed.clear()
        return entries, rows
