"""What an audit may find wrong, as rows.

The law of this file: one row a problem, and the row says where it is: the stream, the segment, the first entry of it
that is concerned, and the bookie where that is the question. What could not be looked at is no finding: it is a
failure of the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

FINDINGS_MAX = 1000  # kept of one range of entries; what exceeds it is counted


class Kind(StrEnum):
    """What is wrong."""

    # a bookie's copy of an entry
    DIGEST = "digest"  # its bytes do not verify
    UNREADABLE = "unreadable"  # the bookie says that it cannot read it
    MISSING = "missing"  # the bookie says that it has none
    LOST = "lost"  # so say all that should have one
    REPLICA_DIFFERS = "replica_differs"  # it verifies, and is not what the others hold

    # what an entry holds
    UNDECODABLE = "undecodable"
    RECORD_SET_CRC = "record_set_crc"  # the producer's checksum
    NOTE = "note"  # the entry's note tells of other batches than there are
    SLOT = "slot"  # the note has a batch at another slot
    POSITION = "position"  # positions within a segment rise by one a record
    TXID = "txid"  # txids never fall along a stream
    TIME = "time"  # nor do the times in notes, along a segment
    LENGTH = "length"  # of the ledger up to the entry, as the entry has it

    # what metadata says of a segment
    FIRST_TXID = "first_txid"
    LAST_TXID = "last_txid"
    LAST_ENTRY = "last_entry"
    LAST_SLOT = "last_slot"
    RECORD_COUNT = "record_count"
    START_SEQUENCE_ID = "start_sequence_id"
    MIN_ENTRY = "min_entry"  # the first place that may be read lies behind the segment's end
    UNSEALED = "unsealed"  # it is in progress though a later one exists
    SEGMENT_GAP = "segment_gap"  # a number is left out

    # what metadata says of a stream
    MAX_SEGMENT = "max_segment"
    MAX_TXID = "max_txid"
    METADATA = "metadata"  # it cannot be read

    # where segments lie
    LEDGER_GONE = "ledger_gone"  # a segment names it
    LEDGER_OPEN = "ledger_open"  # its segment is completed
    LEDGER_LENGTH = "ledger_length"  # its metadata say another one than its last entry
    LEDGER_METADATA = "ledger_metadata"  # they cannot be read
    OBJECT_GONE = "object_gone"  # of a segment in cold storage
    ORPHAN_LEDGER = "orphan_ledger"  # nobody names it

    MORE = "more"  # of the same range, which are not told


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem. entry: the first that is concerned; entries: how many in a row."""

    kind: Kind
    stream: str
    segment: int | None = None
    entry: int | None = None
    expected: str = ""
    found: str = ""
    bookie: str | None = None
    entries: int = 1

    def row(self) -> dict[str, Any]:
        found = self.found
        if self.entries > 1 and self.entry is not None:
            found = f"{found}; so are entries {self.entry}..{self.entry + self.entries - 1}"
        return {
            "stream": self.stream,
            "segment": self.segment,
            "entry": self.entry,
            "kind": self.kind.value,
            "expected": self.expected,
            "found": found,
            "bookie": self.bookie,
        }

    def order(self) -> tuple[Any, ...]:
        """Findings are told in this order, whoever found them first."""
        at = (-1 if self.segment is None else self.segment, -1 if self.entry is None else self.entry)
        return self.stream, *at, self.kind.value, self.bookie or "", self.found


def rows(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [finding.row() for finding in sorted(findings, key=Finding.order)]
