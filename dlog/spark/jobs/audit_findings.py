"""Defines the findings of an audit, as rows.

Invariants:
- one row for each problem, with its position: stream, segment, first affected entry, and the bookie if one is at fault;
- what could not be examined is not a finding but a failure of the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

FINDINGS_MAX = 1000  # stored for one range of entries; more are only counted


class Kind(StrEnum):
    """Kinds of findings."""

    # a bookie's copy of an entry
    DIGEST = "digest"  # its digest does not match
    UNREADABLE = "unreadable"  # the bookie replies that it cannot read it
    MISSING = "missing"  # the bookie replies that it does not have it
    LOST = "lost"  # all bookies that should have it reply so
    REPLICA_DIFFERS = "replica_differs"  # its digest matches, but it differs from the others

    # contents of an entry
    UNDECODABLE = "undecodable"
    RECORD_SET_CRC = "record_set_crc"  # the producer's checksum
    NOTE = "note"  # the entry's dedup trailer lists other batches than there are
    SLOT = "slot"  # the dedup trailer has another slot for a batch
    POSITION = "position"  # positions within a segment must rise by one a record
    TXID = "txid"  # txids must not decrease along a stream
    TIME = "time"  # times in dedup trailers must not decrease along a segment
    LENGTH = "length"  # of the ledger up to the entry, according to the entry

    # metadata of a segment
    FIRST_TXID = "first_txid"
    LAST_TXID = "last_txid"
    LAST_ENTRY = "last_entry"
    LAST_SLOT = "last_slot"
    RECORD_COUNT = "record_count"
    START_SEQUENCE_ID = "start_sequence_id"
    MIN_ENTRY = "min_entry"  # the truncation point is after the segment's end
    UNSEALED = "unsealed"  # it is in progress although a later one exists
    SEGMENT_GAP = "segment_gap"  # a segment number is missing

    # metadata of a stream
    MAX_SEGMENT = "max_segment"
    MAX_TXID = "max_txid"
    METADATA = "metadata"  # it cannot be read

    # stores of segments
    LEDGER_GONE = "ledger_gone"  # a segment names it
    LEDGER_OPEN = "ledger_open"  # its segment is completed
    LEDGER_LENGTH = "ledger_length"  # its metadata and its last entry differ
    LEDGER_METADATA = "ledger_metadata"  # it cannot be read
    FILE_GONE = "file_gone"  # a segment names it
    FILE_OPEN = "file_open"  # its segment is completed, and it has no end
    TABLE_GONE = "table_gone"  # in a topic: a segment names it
    TABLE_OPEN = "table_open"  # its segment is completed, and it has no end
    CHAIN_GONE = "chain_gone"  # of objects of the store s3-direct: a segment names it
    CHAIN_OPEN = "chain_open"  # its segment is completed, and it has no end
    OBJECT_GONE = "object_gone"  # of a segment in cold storage
    ORPHAN_LEDGER = "orphan_ledger"  # nothing names it
    ORPHAN_FILE = "orphan_file"  # nothing names it
    ORPHAN_TABLE = "orphan_table"  # nothing names it
    ORPHAN_CHAIN = "orphan_chain"  # of objects: nothing names it

    MORE = "more"  # number of further findings in the same range


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem. entry: the first affected entry; entries: number of consecutive affected entries."""

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
        """Sort key of findings, independent of the order in which tasks found them."""
        at = (-1 if self.segment is None else self.segment, -1 if self.entry is None else self.entry)
        return self.stream, *at, self.kind.value, self.bookie or "", self.found


def rows(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [finding.row() for finding in sorted(findings, key=Finding.order)]
