"""The index runs of a ledger directory, for tests of what is in them."""

from __future__ import annotations

from dlog.io.index_runs import IndexRun
from dlog.io.ledger_dir import LedgerDir
from dlog.io.sorted_index import SortedIndex


def sorted_index(directory: LedgerDir) -> SortedIndex:
    assert isinstance(directory.index, SortedIndex)
    return directory.index


def runs_of(directory: LedgerDir) -> tuple[IndexRun, ...]:
    """Oldest first."""
    return sorted_index(directory).runs
