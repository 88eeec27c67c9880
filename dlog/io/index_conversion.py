"""Converts the index of the ledger directories of a stopped bookie to the other kind: sorted runs, or a database.

Memory: about as much as the running bookie needs for a merge of the whole index *sorted*, and the states of ledgers.

Invariants:
- The new index is written and synced beside the old one, then named in a new MANIFEST, then the old one is removed: a
  crash leaves the old or the new index, each whole, and perhaps files that no MANIFEST names. The next conversion or
  start removes them.
- The new index has the locations and ledger states of the old one, without deleted ledgers (GONE). Marks, logs, limbo
  and `unindexed` of the MANIFEST stay as they are, and no other file is touched.
- A directory is converted when those before it are. In between no bookie starts, see LedgerDirs.load.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dlog.bookie.id_set import IdSet
from dlog.bookie.index import (
    CHUNK_OVERHEAD_BYTES,
    LOCATION_BYTES,
    LedgerRow,
    MergeSource,
    merge,
    pack_state,
)
from dlog.bookie.manifest import IndexKind, Manifest, encode
from dlog.errors import DamagedError, DLogError, UnavailableError
from dlog.io.database import DatabaseLimits
from dlog.io.db_index import ROW_BYTES, DatabaseRun, open_named, write_database
from dlog.io.disk import Disk, replace_file
from dlog.io.file_errors import named_errors
from dlog.io.index_runs import IndexRun, open_run, remove_unnamed, write_index
from dlog.io.ledger_dir import GONE, MANIFEST, read_ids, read_manifest
from dlog.options import MiB

_SLACK_BYTES = 4 * MiB  # for small files of RocksDB's, and the MANIFEST


@dataclass(frozen=True, slots=True)
class Conversion:
    """Result for one directory. before: the kind that it had; ledgers, entries: in the new index, 0 if it had the kind
    already."""

    directory: str
    before: IndexKind
    after: IndexKind
    ledgers: int = 0
    entries: int = 0

    @property
    def is_changed(self) -> bool:
        return self.before is not self.after


def convert_dirs(disk: Disk, directories: Sequence[str], kind: IndexKind) -> Iterator[Conversion]:
    """Convert ledger directories, whose locks the caller holds, one by one, each when its result is taken. Blocks.

    May be killed anywhere and repeated; those that have the kind already are passed over.

    Raises DamagedError or UnsupportedVersionError, before anything is written, if a MANIFEST or GONE cannot be read.
    Later, with this directory and those behind it as they were, ConfigError if rocksdict is not installed, DamagedError
    if the index is damaged, UnavailableError if there is not enough space, and OSError; after an OSError at the end of
    a directory that may have the new index, whole.
    """
    for directory in directories:
        _read_lists(disk, directory)
    for directory in directories:
        yield _convert(disk, directory, kind)


def _convert(disk: Disk, directory: str, kind: IndexKind) -> Conversion:
    old, gone = _read_lists(disk, directory)
    with named_errors(directory):
        remove_unnamed(disk, directory, old)
        if old.kind is kind:
            return Conversion(directory, kind, kind)
        try:
            new, conversion = _write(disk, directory, old, gone, kind)
            disk.sync_dir(directory)
            replace_file(disk, directory, MANIFEST, encode(new))
        except Exception as error:
            with contextlib.suppress(OSError, DLogError):
                if read_manifest(disk, directory) == old:
                    remove_unnamed(disk, directory, old)
            if isinstance(error, DamagedError):
                raise DamagedError(
                    f"{error.message}; nothing was changed in this directory: run `dlog bookie fsck DIR --repair` "
                    f"first, then convert again; if it leaves a damaged part, replace the bookie (`dlog bookie "
                    f"replace`): dir={directory}"
                ) from error
            raise
        remove_unnamed(disk, directory, new)
    return conversion


def _write(disk: Disk, directory: str, old: Manifest, gone: IdSet, kind: IndexKind) -> tuple[Manifest, Conversion]:
    """Write the new index. Returns the MANIFEST that names it."""
    number, entries = old.next_file, 0
    with contextlib.ExitStack() as opened:
        runs = list(_open_index(disk, directory, old, opened))
        states: dict[int, LedgerRow] = {}
        for run in runs:
            states.update((row.ledger, row) for row in run.rows if row.ledger not in gone)
            run.rows = ()
        _check_space(disk, directory, runs, states, kind)

        def locations() -> Iterator[tuple[int, bytes]]:
            nonlocal entries
            for ledger, packed in merge([MergeSource(run.table, run.read_chunk) for run in runs], gone):
                entries += len(packed) // LOCATION_BYTES
                yield ledger, packed

        rows = (states[ledger] for ledger in sorted(states))
        new = replace(old, kind=kind, next_file=number + 1, runs=(), database=0, database_writes=0)
        if kind is IndexKind.DB:
            write_database(disk, directory, number, locations(), rows)
            new = replace(new, database=number, database_writes=1)
        else:
            new = replace(new, runs=(write_index(disk, directory, number, locations(), rows),))
    return new, Conversion(directory, old.kind, kind, len(states), entries)


def _read_lists(disk: Disk, directory: str) -> tuple[Manifest, IdSet]:
    manifest = read_manifest(disk, directory)
    if manifest is None:
        raise DamagedError(
            f"MANIFEST is missing: if the bookie never served, start it once; else put the file back, or treat all "
            f"directories of this bookie as lost: dir={directory}"
        )
    return manifest, read_ids(disk, directory, GONE)


def _open_index(
    disk: Disk, directory: str, manifest: Manifest, opened: contextlib.ExitStack
) -> Iterator[IndexRun | DatabaseRun]:
    """The old index as runs, oldest first, which `opened` closes."""
    for named in manifest.runs:
        run = open_run(disk, directory, named)
        opened.callback(run.close)
        yield run
    if manifest.database:
        database = open_named(disk, directory, manifest, DatabaseLimits(), read_only=True)
        opened.callback(database.close)
        yield DatabaseRun(database)


def _check_space(
    disk: Disk,
    directory: str,
    runs: Sequence[IndexRun | DatabaseRun],
    states: dict[int, LedgerRow],
    kind: IndexKind,
) -> None:
    """Raises UnavailableError if the new index may not find enough space beside the old one."""
    entries = sum(sum(run.table.columns[4]) for run in runs)
    chunks = sum(len(run.table) for run in runs)
    if kind is IndexKind.DB:
        need = (entries + len(states)) * ROW_BYTES
    else:
        need = entries * LOCATION_BYTES + chunks * CHUNK_OVERHEAD_BYTES
    need += sum(len(pack_state(row)) for row in states.values()) + _SLACK_BYTES
    free = disk.free_bytes(directory)
    if free < need:
        raise UnavailableError(
            f"not enough space to convert the index, nothing was changed in this directory: free space and run it "
            f"again: need={need} free={free} dir={directory}"
        )
