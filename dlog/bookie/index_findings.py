"""What `dlog bookie fsck` finds in a ledger directory, and how much of each ledger is there."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class FindingKind(enum.StrEnum):
    """Kinds of findings. `NOTES` need no action; `REBUILT` are repaired from the entry logs."""

    LIST = "list"  # MANIFEST, GONE or MOVED is missing or damaged
    RUN = "run"  # an index run is missing or damaged as a whole: ledger states are lost
    CHUNK = "chunk"  # a part of an index run does not verify
    NOWHERE = "nowhere"  # index rows that point to no place in an entry log
    ELSEWHERE = "elsewhere"  # index rows that point to bytes that are not their entry
    MISSING = "missing"  # entries in a log that the index lacks
    STATELESS = "stateless"  # entries of a ledger whose key and fence the index does not have
    LOG = "log"  # an entry log is missing or cut off
    ENTRY = "entry"  # indexed entries that do not verify
    CONTENTS = "contents"  # a table of contents is damaged: the log is never collected
    TAIL = "tail"  # bytes behind the valid end of a log, of an interrupted flush
    FILE = "file"  # a file that the MANIFEST does not name
    UNUSED = "unused"  # damaged bytes that no index row points to
    HEADER = "header"  # the header of a log or run does not verify; nothing else reads it


NOTES = frozenset({FindingKind.TAIL, FindingKind.FILE, FindingKind.UNUSED, FindingKind.HEADER})


@dataclass(slots=True)
class Finding:
    """One finding. ledger, first, last: -1 if it is not about entries; count: how many entries, 0 if unknown."""

    kind: FindingKind
    file: str
    why: str
    ledger: int = -1
    first: int = -1
    last: int = -1
    count: int = 0

    @property
    def is_note(self) -> bool:
        return self.kind in NOTES


@dataclass(slots=True)
class LedgerSummary:
    """One ledger in one directory, in numbers of entries.

    indexed: rows of the index; good: rows whose entry verifies; missing: copies in entry logs that no row leads to;
    damaged: rows whose entry is damaged, lost with its log, or elsewhere. bytes: of good packets. last, lac: the
    highest of entries that verify, -1 if none.
    """

    ledger: int
    indexed: int = 0
    good: int = 0
    missing: int = 0
    damaged: int = 0
    bytes: int = 0
    last: int = -1
    lac: int = -1


class Findings:
    """Gathers findings; those about entries of one kind, file and ledger become one."""

    def __init__(self) -> None:
        self.all: list[Finding] = []
        self._of_entries: dict[tuple[FindingKind, str, int], Finding] = {}

    def add(self, kind: FindingKind, file: str, why: str) -> None:
        self.all.append(Finding(kind, file, why))

    def add_entry(self, kind: FindingKind, file: str, why: str, ledger: int, entry: int) -> None:
        known = self._of_entries.get((kind, file, ledger))
        if known is None:
            known = self._of_entries[kind, file, ledger] = Finding(kind, file, why, ledger, entry, entry)
            self.all.append(known)
        known.first, known.last = min(known.first, entry), max(known.last, entry)
        known.count += 1

    def add_range(self, file: str, why: str, ledger: int, first: int, last: int, count: int) -> None:
        """A damaged chunk."""
        self.all.append(Finding(FindingKind.CHUNK, file, why, ledger, first, last, count))


def is_clean(findings: Iterable[Finding]) -> bool:
    """Whether nothing needs to be done: there are notes at most."""
    return all(one.is_note for one in findings)
