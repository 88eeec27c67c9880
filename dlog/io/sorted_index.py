"""The index *sorted*: immutable, sorted runs, one for each flush, merged as they accumulate.

The format of a run is in dlog/bookie/index.py; the contract is LedgerIndex.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from dlog.bookie.id_set import IdSet
from dlog.bookie.index import (
    LOCATION_BYTES,
    EntryLocation,
    LedgerRow,
    MergeSource,
    RunBuilder,
    locate,
    location_at,
    merge,
    parse_chunk,
    runs_to_merge,
)
from dlog.bookie.manifest import Manifest
from dlog.errors import DamagedError
from dlog.io.disk import Disk
from dlog.io.index_runs import ChunkFinder, IndexRun, follows, open_run, write_run
from dlog.io.ledger_index import Locations


class SortedIndex:
    """A LedgerIndex."""

    changes_in_place = False

    def __init__(self, disk: Disk, directory: str, gone: Callable[[], IdSet]) -> None:
        """gone: the deleted ledgers, which lookups and merges leave out."""
        self._disk = disk
        self._directory = directory
        self._gone = gone
        self.runs: tuple[IndexRun, ...] = ()  # oldest first; replaced as a whole
        self._next: tuple[IndexRun, ...] | None = None  # from the next manifest on

    @property
    def version(self) -> object:
        return self.runs

    def load(self, manifest: Manifest) -> list[LedgerRow]:
        self.runs = tuple(open_run(self._disk, self._directory, run) for run in manifest.runs)
        rows: dict[int, LedgerRow] = {}
        for run in self.runs:
            rows.update((row.ledger, row) for row in run.rows)
            run.rows = ()
        return list(rows.values())

    # ---- lookups -----------------------------------------------------------------------------------------------------

    def find(self, ledger: int, entry: int, entries_max: int, bytes_max: int) -> list[EntryLocation]:
        for run in reversed(self.runs):
            row = run.table.find(ledger, entry)
            if row < 0:
                continue
            locations = parse_chunk(run.read_chunk(row), ledger)
            number = locate(locations, entry)
            if number >= 0:
                return _gather(run, row, locations, number, entries_max, bytes_max)
        return []

    def finder(self, ledger: int) -> Callable[[int], EntryLocation | None]:
        finders = [ChunkFinder(run, ledger) for run in reversed(self.runs)]

        def find(entry: int) -> EntryLocation | None:
            return next((found for finder in finders if (found := finder.find(entry)) is not None), None)

        return find

    def entry_runs(self, ledger: int) -> list[Iterator[tuple[int, int]]]:
        return [self._entries_in(run, ledger) for run in self.runs]

    def _entries_in(self, run: IndexRun, ledger: int) -> Iterator[tuple[int, int]]:
        table = run.table
        for row in table.rows_of(ledger):
            if ledger in self._gone():
                return
            first, last = table.first(row), table.last(row)
            if table.count(row) == last - first + 1:
                yield first, last
            else:
                yield from _runs_in(parse_chunk(run.read_chunk(row), ledger))

    def ledgers(self, first: int) -> Iterator[int]:
        return iter(sorted({ledger for run in self.runs for ledger in run.table.columns[0] if ledger >= first}))

    def locations_in(self, log: int, ledger: int) -> Iterator[EntryLocation]:
        for age, run in enumerate(self.runs):
            newer = [ChunkFinder(later, ledger) for later in self.runs[age + 1 :]]
            for row in run.table.rows_of(ledger):
                locations = parse_chunk(run.read_chunk(row), ledger)
                for number in range(len(locations) // LOCATION_BYTES):
                    location = location_at(locations, number)
                    if location.log == log and not any(finder.has(location.entry) for finder in newer):
                        yield location

    # ---- writing -----------------------------------------------------------------------------------------------------

    def write(self, locations: Locations, rows: Iterable[LedgerRow], manifest: Manifest) -> Manifest:
        builder = RunBuilder()

        def parts() -> Iterator[bytes]:
            for ledger, packed in locations:
                yield from builder.chunks(ledger, packed)
            yield from builder.finish(rows)

        return self._add_run(manifest, builder, parts(), len(self.runs))

    def merged(self, manifest: Manifest) -> Manifest | None:
        count = runs_to_merge([run.size for run in self.runs])
        return self._merge_newest(manifest, count) if count else None

    def without_deleted(self, manifest: Manifest) -> Manifest | None:
        """Rewrites the index if at least a quarter of its chunks belong to deleted ledgers."""
        gone = self._gone()
        chunks = sum(len(run.table) for run in self.runs)
        dead = sum(ledger in gone for run in self.runs for ledger in run.table.columns[0])
        return self._merge_newest(manifest, len(self.runs)) if dead * 4 >= chunks > 0 and dead > 0 else None

    def without_entries(self, rows: Sequence[LedgerRow], manifest: Manifest) -> Manifest:
        """Rewrites the index."""
        builder = RunBuilder()
        return self._add_run(manifest, builder, _merged(self.runs, builder, self._gone(), rows), 0)

    def _merge_newest(self, manifest: Manifest, count: int) -> Manifest:
        builder = RunBuilder()
        parts = _merged(self.runs[-count:], builder, self._gone())
        return self._add_run(manifest, builder, parts, len(self.runs) - count)

    def _add_run(self, manifest: Manifest, builder: RunBuilder, parts: Iterable[bytes], kept: int) -> Manifest:
        """Write a run, which comes after the `kept` oldest ones."""
        number = manifest.next_file
        run = write_run(self._disk, self._directory, number, parts)
        self._next = (*self.runs[:kept], open_run(self._disk, self._directory, run, builder.table))
        return replace(manifest, next_file=number + 1, runs=(*manifest.runs[:kept], run))

    def installed(self) -> None:
        if self._next is not None:
            self.runs, self._next = self._next, None

    def close(self) -> None:
        for run in self.runs:
            run.close()


def _merged(
    runs: Sequence[IndexRun], builder: RunBuilder, gone: IdSet, emptied: Sequence[LedgerRow] = ()
) -> Iterator[bytes]:
    """Contents of the merged run: chunks, then table, ledger states and trailer. emptied: states of ledgers whose
    entries are left out."""
    left_out = gone.union(row.ledger for row in emptied) if emptied else gone
    for ledger, locations in merge([MergeSource(run.table, run.read_chunk) for run in runs], left_out):
        yield builder.chunk(ledger, locations)
    rows: dict[int, LedgerRow] = {}
    for run in runs:
        rows.update((row.ledger, row) for row in IndexRun(run.named, run.file).rows if row.ledger not in gone)
    rows.update((row.ledger, row) for row in emptied)
    yield from builder.finish(rows[ledger] for ledger in sorted(rows))


def _runs_in(locations: bytes) -> list[tuple[int, int]]:
    """Runs of consecutive ids in one chunk."""
    found: list[tuple[int, int]] = []
    for number in range(len(locations) // LOCATION_BYTES):
        entry = location_at(locations, number).entry
        if found and found[-1][1] + 1 == entry:
            found[-1] = (found[-1][0], entry)
        else:
            found.append((entry, entry))
    return found


def _gather(
    run: IndexRun, row: int, locations: bytes, number: int, entries_max: int, bytes_max: int
) -> list[EntryLocation]:
    """Locations from `number` on, consecutive in entry id and on disk, within the limits, across chunks."""
    found = [location_at(locations, number)]
    size = found[0].length
    ledger = run.table.ledger(row)
    while len(found) < entries_max:
        number += 1
        if number * LOCATION_BYTES == len(locations):
            if not run.table.goes_on(row):
                break
            row, number = row + 1, 0
            try:
                locations = parse_chunk(run.read_chunk(row), ledger)
            except DamagedError:
                break  # a lookup of an entry in this chunk reports it
        location = location_at(locations, number)
        size += location.length
        if not follows(found[-1], location) or size > bytes_max:
            break
        found.append(location)
    return found
