"""The index *db*: a database with one row for each entry and each ledger.

    "e" | ledger u64 | entry u64    -> log u32 | length u32 | offset u64
    "l" | ledger u64                -> state, as in an index run

    "w"                             -> number of the last `write`, u64; written behind its other rows

The contract is LedgerIndex. The database has no log of its own: what a crash takes is replayed from the journal. The
first write creates it. The MANIFEST names it and the number of the last write; a database with a lower one has lost
rows, and is damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice

from dlog.bookie.id_set import IdSet
from dlog.bookie.index import (
    CHUNK_ENTRIES,
    LOCATION_BYTES,
    EntryLocation,
    LedgerRow,
    RunTable,
    location_at,
    pack_chunk,
    pack_location,
    pack_state,
    parse_state,
)
from dlog.bookie.manifest import Manifest
from dlog.errors import DamagedError
from dlog.io.database import Database, DatabaseLimits, Range, Row
from dlog.io.disk import Disk
from dlog.io.index_runs import database_name, follows
from dlog.io.ledger_index import Locations

_ENTRY_KEY = struct.Struct(">cQQ")
_LEDGER_KEY = struct.Struct(">cQ")
_LOCATION = struct.Struct(">IIQ")
ROW_BYTES = 64  # of a row on disk, keys and overhead included, at most
_WRITES_KEY = b"w"
_WRITES = struct.Struct(">Q")
_ROWS_AT_ONCE = 1000
_REBUILD = "see `dlog bookie fsck --help`"
_STATES = (b"l", b"m")  # range of keys
_ENTRIES = (b"e", b"f")
_KEY_BYTES = 17  # of the longest key


def entry_key(ledger: int, entry: int) -> bytes:
    return _ENTRY_KEY.pack(b"e", ledger, entry)


def entry_rows(ledger: int, locations: bytes) -> Iterator[Row]:
    """Rows of packed locations."""
    for number in range(len(locations) // LOCATION_BYTES):
        entry, log, length, offset = location_at(locations, number)
        yield entry_key(ledger, entry), _LOCATION.pack(log, length, offset)


def state_row(row: LedgerRow) -> Row:
    return _LEDGER_KEY.pack(b"l", row.ledger), pack_state(row)


def _state_range(ledger: int) -> Range:
    return _LEDGER_KEY.pack(b"l", ledger), _LEDGER_KEY.pack(b"l", ledger + 1)


def last_write(database: Database) -> int:
    """Number of the last `write` of which every row is there. Raises as Database."""
    value = database.get(_WRITES_KEY)
    return 0 if value is None else int(_WRITES.unpack(value)[0])


def _write_all(
    database: Database, locations: Iterable[tuple[int, bytes]], states: Iterable[LedgerRow], number: int
) -> None:
    """Write rows, then the number of this write. Durable on return. Raises as Database."""
    database.write(map(state_row, states))
    database.write(chain.from_iterable(entry_rows(ledger, packed) for ledger, packed in locations))
    database.write([(_WRITES_KEY, _WRITES.pack(number))])
    database.flush()


def states_in(database: Database) -> Iterator[LedgerRow]:
    """States of all ledgers. Raises as Database."""
    for _, value in database.scan(*_STATES):
        yield parse_state(value)


@dataclass(frozen=True, slots=True)
class DamagedKeys:
    """Rows with first <= key < end are lost, or some of them. why: what the database reported."""

    first: bytes
    end: bytes
    why: str

    def has(self, ledger: int, entry: int) -> bool:
        """Whether the row of this entry is among them."""
        return self.first <= entry_key(ledger, entry) < self.end

    @property
    def are_states(self) -> bool:
        return self.first[:1] == b"l"

    def __str__(self) -> str:
        what = "states of ledgers" if self.are_states else "entries"
        return f"{what} from {_described(self.first)} up to, but not including, {_described(self.end)}"


def _described(key: bytes) -> str:
    """The ledger and entry of a key, which may be cut off or too long."""
    if len(key) == 1:
        return "the first one" if key in (b"e", b"l") else "the end"
    ledger, entry = struct.unpack(">QQ", key[1:17].ljust(16, b"\0"))
    return f"ledger {ledger}" if key[:1] == b"l" else f"ledger {ledger} entry {entry}"


def readable_rows(database: Database, first: bytes, end: bytes, damaged: list[DamagedKeys]) -> Iterator[Row]:
    """All rows with first <= key < end that can be read; what cannot is added to `damaged`, as narrow as a search by
    bisection finds it. Raises OSError."""
    while first < end:
        try:
            for row in database.scan(first, end):
                yield row
                first = row[0] + b"\0"
            return
        except DamagedError as error:
            behind = _behind_damage(database, first, end)
            damaged.append(DamagedKeys(first, behind, error.message))
            first = behind


def _behind_damage(database: Database, first: bytes, end: bytes) -> bytes:
    """A key from which on rows can be read again, while they cannot from the key before it; `end` if there is none."""
    bad, last, step = _number(first), _number(end), 1
    good = bad + step
    while good < last and not _is_readable(database, _key(good), end):
        bad, step = good, 2 * step
        good = bad + step
    if good >= last:
        good = last
    while good - bad > 1:
        middle = (good + bad) // 2
        if _is_readable(database, _key(middle), end):
            good = middle
        else:
            bad = middle
    return _key(good) if good < last else end


def _number(key: bytes) -> int:
    return int.from_bytes(key[:_KEY_BYTES].ljust(_KEY_BYTES, b"\0"))


def _key(number: int) -> bytes:
    return number.to_bytes(_KEY_BYTES)


def _is_readable(database: Database, first: bytes, end: bytes) -> bool:
    try:
        next(iter(database.scan(first, end)), None)
    except DamagedError:
        return False
    return True


class DbIndex:
    """A LedgerIndex."""

    changes_in_place = True

    def __init__(self, disk: Disk, directory: str, limits: DatabaseLimits, gone: Callable[[], IdSet]) -> None:
        """gone: the deleted ledgers, whose rows are removed by and by."""
        self._disk = disk
        self._directory = directory
        self._limits = limits
        self._gone = gone
        self._database: Database | None = None  # None: there is none yet
        self._number = 0  # of the database
        self._writes = 0

    @property
    def version(self) -> object:
        return self._writes

    def load(self, manifest: Manifest) -> list[LedgerRow]:
        if not manifest.database:
            return []
        self._database = open_named(self._disk, self._directory, manifest, self._limits)
        self._number, self._writes = manifest.database, last_write(self._database)
        return list(states_in(self._database))

    # ---- lookups -----------------------------------------------------------------------------------------------------

    def find(self, ledger: int, entry: int, entries_max: int, bytes_max: int) -> list[EntryLocation]:
        first = self._get(ledger, entry)
        if first is None:
            return []
        found, size = [first], first.length
        if entries_max > 1:
            with suppress(DamagedError):  # a lookup of the entry there reports it
                for location in self._scan(ledger, entry + 1):
                    size += location.length
                    if len(found) == entries_max or not follows(found[-1], location) or size > bytes_max:
                        break
                    found.append(location)
        return found

    def finder(self, ledger: int) -> Callable[[int], EntryLocation | None]:
        return lambda entry: self._get(ledger, entry)

    def entry_runs(self, ledger: int) -> list[Iterator[tuple[int, int]]]:
        return [self._runs_of(ledger)]

    def _runs_of(self, ledger: int) -> Iterator[tuple[int, int]]:
        first = last = -1
        for location in self._scan(ledger, 0):
            if location.entry != last + 1 or first < 0:
                if first >= 0:
                    yield first, last
                if ledger in self._gone():
                    return
                first = location.entry
            last = location.entry
        if first >= 0:
            yield first, last

    def ledgers(self, first: int) -> Iterator[int]:
        if self._database is None:
            return
        while (row := next(iter(self._database.scan(entry_key(first, 0), _ENTRIES[1])), None)) is not None:
            ledger = int(_ENTRY_KEY.unpack(row[0])[1])
            yield ledger
            first = ledger + 1

    def locations_in(self, log: int, ledger: int) -> Iterator[EntryLocation]:
        return (location for location in self._scan(ledger, 0) if location.log == log)

    def _get(self, ledger: int, entry: int) -> EntryLocation | None:
        if self._database is None or ledger < 0 or entry < 0:
            return None
        value = self._database.get(entry_key(ledger, entry))
        return None if value is None else EntryLocation(entry, *_LOCATION.unpack(value))

    def _scan(self, ledger: int, first: int) -> Iterator[EntryLocation]:
        if self._database is None or ledger < 0:
            return
        for key, value in self._database.scan(entry_key(ledger, first), entry_key(ledger + 1, 0)):
            yield EntryLocation(_ENTRY_KEY.unpack(key)[2], *_LOCATION.unpack(value))

    # ---- writing -----------------------------------------------------------------------------------------------------

    def write(self, locations: Locations, rows: Iterable[LedgerRow], manifest: Manifest) -> Manifest:
        number = manifest.next_file
        if self._database is None:
            remove_parts(self._disk, self._directory, number)
            path = f"{self._directory}/{database_name(number)}"
            self._database, self._number = self._disk.open_database(path, self._limits, create=True), number
        self._writes += 1
        _write_all(self._database, locations, rows, self._writes)
        if manifest.database:
            return replace(manifest, database_writes=self._writes)
        next_file = max(number, self._number) + 1
        return replace(manifest, database=self._number, database_writes=self._writes, next_file=next_file)

    def merged(self, manifest: Manifest) -> Manifest | None:
        """The database merges by itself."""
        return None

    def without_deleted(self, manifest: Manifest) -> Manifest | None:
        """Removes the rows of deleted ledgers, the state last: one that comes back after a crash is removed again."""
        if self._database is None:
            return None
        gone = self._gone()
        dead = (row.ledger for row in states_in(self._database) if row.ledger in gone)
        while ledgers := list(islice(dead, _ROWS_AT_ONCE)):
            self._database.write((), ((entry_key(ledger, 0), entry_key(ledger + 1, 0)) for ledger in ledgers))
            self._database.write((), (_state_range(ledger) for ledger in ledgers))
        return None

    def without_entries(self, rows: Sequence[LedgerRow], manifest: Manifest) -> Manifest:
        if self._database is not None:
            self._database.write((), ((entry_key(row.ledger, 0), entry_key(row.ledger + 1, 0)) for row in rows))
        return self.write((), rows, manifest)

    def installed(self) -> None:
        """The rows are used since they were written."""

    def close(self) -> None:
        if self._database is not None:
            self._database.close()


# ---- whole databases, of a stopped bookie ----------------------------------------------------------------------------


def open_named(
    disk: Disk, directory: str, manifest: Manifest, limits: DatabaseLimits, *, read_only: bool = False
) -> Database:
    """Open the database that the manifest names. Raises DamagedError if it is missing, or older than the manifest, and
    as Database."""
    name = database_name(manifest.database)
    if not any(other.partition(".")[0] == name for other in disk.names(directory)):
        raise DamagedError(f"the index database is missing, {_REBUILD}: dir={directory}/{name}")
    database = disk.open_database(f"{directory}/{name}", limits, read_only=read_only)
    try:
        if (writes := last_write(database)) < manifest.database_writes:
            raise DamagedError(
                f"the index database has lost writes ({writes} of {manifest.database_writes} are there), {_REBUILD}: "
                f"dir={directory}/{name}"
            )
    except BaseException:
        database.close()
        raise
    return database


def remove_parts(disk: Disk, directory: str, number: int) -> None:
    """Remove a database and what an interrupted write left of it."""
    for name in disk.names(directory):
        if name.partition(".")[0] == database_name(number):
            disk.remove_database(f"{directory}/{name}")


def write_database(
    disk: Disk, directory: str, number: int, locations: Iterable[tuple[int, bytes]], states: Iterable[LedgerRow]
) -> None:
    """Write a new database with this content, as its first write. Durable on return, its name not. Raises OSError."""
    remove_parts(disk, directory, number)
    database = disk.open_database(f"{directory}/{database_name(number)}", DatabaseLimits(), create=True)
    try:
        _write_all(database, locations, states, 1)
    finally:
        database.close()


class DatabaseRun:
    """A database read as one index run: its table is in memory, about 36 bytes for up to 170 entries."""

    def __init__(self, database: Database, damaged: list[DamagedKeys] | None = None) -> None:
        """Reads everything. damaged: gets what cannot be read, which is left out; None: raises DamagedError. Raises
        OSError."""
        lost: list[DamagedKeys] = [] if damaged is None else damaged
        self.rows: Iterable[LedgerRow] = [parse_state(value) for _, value in readable_rows(database, *_STATES, lost)]
        self.table = RunTable()
        self._database = database
        ledger, first, last, count, gaps = -1, -1, -1, 0, len(lost)
        for key, _ in readable_rows(database, *_ENTRIES, lost):
            _, owner, entry = _ENTRY_KEY.unpack(key)
            if count and (owner != ledger or count == CHUNK_ENTRIES or len(lost) > gaps):
                self.table.append(ledger, first, last, 0, count)
                count = 0
            gaps = len(lost)
            if not count:
                ledger, first = owner, entry
            last, count = entry, count + 1
        if count:
            self.table.append(ledger, first, last, 0, count)
        if damaged is None and lost:
            raise DamagedError(lost[0].why)

    def read_chunk(self, row: int) -> bytes:
        table = self.table
        ledger = table.ledger(row)
        rows = self._database.scan(entry_key(ledger, table.first(row)), entry_key(ledger, table.last(row) + 1))
        found = islice(rows, table.count(row))  # what follows may be damaged
        locations = [pack_location(_ENTRY_KEY.unpack(key)[2], *_LOCATION.unpack(value)) for key, value in found]
        return pack_chunk(ledger, b"".join(locations))

    def close(self) -> None:
        self._database.close()
