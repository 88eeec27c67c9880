"""What a ledger directory needs of its index: locations of entries, and the states of ledgers.

There are two: `dlog/io/sorted_index.py` (immutable runs) and `dlog/io/db_index.py` (a database). The MANIFEST of the
directory binds both: the journal mark moves only after the index is durable up to there.

Invariants:
- What `write` was given is durable when it returns, though perhaps not used before the MANIFEST is installed.
- A lookup finds the newest location, or raises DamagedError; damage is never reported as absence.
- One thread writes and merges; any thread looks up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from dlog.bookie.index import EntryLocation, LedgerRow
from dlog.bookie.manifest import Manifest

Locations = Sequence[tuple[int, bytes]]  # (ledger, packed locations in order of entries), in order of ledgers


class LedgerIndex(Protocol):
    """The index of one ledger directory. All calls block. They raise OSError, and DamagedError for what does not
    verify."""

    @property
    def changes_in_place(self) -> bool:
        """Whether a crash may leave locations of a `write` whose MANIFEST was not installed. Then a MANIFEST names the
        bytes of the entries before, so that nothing else is written there."""
        ...

    @property
    def version(self) -> object:
        """Compares equal as long as every location that was found is still the newest one."""
        ...

    def load(self, manifest: Manifest) -> list[LedgerRow]:
        """Open what the manifest names; returns the states of all ledgers, deleted ones included."""
        ...

    def find(self, ledger: int, entry: int, entries_max: int, bytes_max: int) -> list[EntryLocation]:
        """Locations of `entry` and of the next entries that follow it on disk without a gap; empty: no such entry."""
        ...

    def finder(self, ledger: int) -> Callable[[int], EntryLocation | None]:
        """A function that finds the location of one entry in the present index; fast for increasing ids."""
        ...

    def entry_runs(self, ledger: int) -> list[Iterator[tuple[int, int]]]:
        """See LedgerDir.entry_runs."""
        ...

    def ledgers(self, first: int) -> Iterator[int]:
        """The ledgers from `first` on of which the index has entries, in order; deleted ones may be among them."""
        ...

    def locations_in(self, log: int, ledger: int) -> Iterator[EntryLocation]:
        """Locations of the ledger's entries whose newest location is in this log."""
        ...

    def write(self, locations: Locations, rows: Iterable[LedgerRow], manifest: Manifest) -> Manifest:
        """Make locations and states durable. Returns the manifest that names them. After NO_SPACE repeat it."""
        ...

    def installed(self) -> None:
        """The manifest that `write` or another method returned last is durable: use what it names."""
        ...

    def merged(self, manifest: Manifest) -> Manifest | None:
        """Merge parts of the index if there are enough. None: nothing to do."""
        ...

    def without_deleted(self, manifest: Manifest) -> Manifest | None:
        """Remove what belongs to deleted ledgers if that is worth it. None: the manifest stays."""
        ...

    def without_entries(self, rows: Sequence[LedgerRow], manifest: Manifest) -> Manifest:
        """Remove all entries of these ledgers, and store these states. As `write`."""
        ...

    def close(self) -> None: ...
