"""Verifies consecutive entries: each must decode, and follow from the one before. Pure computation.

Invariants:
- work is done once for each record set, not for each record;
- a fault is reported once: after it, counting continues from what was found;
- an entry that could not be read is a hole; next to a hole only those faults are reported that do not depend on its
  contents;
- nothing is concluded from metadata.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from dlog.errors import DamagedError
from dlog.log.dedup_trailer import DedupTrailer, decode_trailer, is_note
from dlog.spark.jobs.audit_findings import FINDINGS_MAX, Finding, Kind
from dlog.spark.planning import Range
from dlog.wire.digest import crc32c
from dlog.wire.entry import (
    SET_OVERHEAD,
    SET_RECORD_OVERHEAD,
    Buffer,
    Record,
    decode_entry,
    parse_record_set,
    record_set_count,
)

_CODEC_MASK = 0x3


class EntryValue(NamedTuple):
    """A number, and the entry that contains it."""

    entry: int
    value: int


class Unread(NamedTuple):
    """Entries first..last could not be read from this bookie or (None) from any."""

    first: int
    last: int
    bookie: str | None
    error: str


class End(NamedTuple):
    """The last record of an entry."""

    entry: int
    slot: int
    txid: int
    position: int  # number of records in the segment so far


@dataclass(slots=True)
class RangeResult:
    """Contents of one range of entries.

    payload_bytes: of one copy; read_bytes: of all copies read; replicas: maximum for one entry. held_*: what the first
    entry says of the entries before it, None if unknown: number of records (position), length of the ledger. first_*,
    last_*: txids of user records, times; last_position, last_length: as of the last entry. end: of the last entry, None
    if that is a hole. data_end: of the last entry with more than control records, None if a hole follows it; is_blank:
    there is no such entry, and no hole. is_gone: the ledger or object does not exist any more.
    """

    of: Range
    entries: int = 0
    records: int = 0
    payload_bytes: int = 0
    read_bytes: int = 0
    replicas: int = 0
    held_position: EntryValue | None = None
    held_length: EntryValue | None = None
    first_txid: EntryValue | None = None
    first_time: EntryValue | None = None
    last_position: int | None = None
    last_length: int | None = None
    last_txid: int | None = None
    last_time: int | None = None
    end: End | None = None
    data_end: End | None = None
    is_blank: bool = True
    is_gone: bool = False
    findings: list[Finding] = field(default_factory=list)
    findings_left_out: int = 0
    unread: list[Unread] = field(default_factory=list)

    def find(self, kind: Kind, entry: int, expected: str, found: str, bookie: str | None = None) -> None:
        """Add a finding, or extend the last equal one to this entry."""
        for i in range(len(self.findings) - 1, max(-1, len(self.findings) - 9), -1):
            last = self.findings[i]
            previous = (last.kind, last.expected, last.found, last.bookie)
            if previous == (kind, expected, found, bookie) and last.entry == entry - last.entries:
                self.findings[i] = _longer(last, 1)
                return
        if len(self.findings) >= FINDINGS_MAX:
            self.findings_left_out += 1
            return
        self.findings.append(
            Finding(
                kind=kind,
                stream=self.of.stream,
                segment=self.of.segment,
                entry=entry,
                expected=expected,
                found=found,
                bookie=bookie,
            )
        )


def joined(findings: list[Finding]) -> list[Finding]:
    """Join findings that continue from one range to the next; in order of entries."""
    out: list[Finding] = []
    open_at: dict[tuple[object, ...], int] = {}
    for finding in findings:
        key = (finding.stream, finding.segment, finding.kind, finding.expected, finding.found, finding.bookie)
        i = open_at.get(key)
        if i is not None and finding.entry is not None:
            last = out[i]
            if last.entry is not None and last.entry + last.entries == finding.entry:
                out[i] = _longer(last, finding.entries)
                continue
        open_at[key] = len(out)
        out.append(finding)
    return out


def _longer(finding: Finding, entries: int) -> Finding:
    return replace(finding, entries=finding.entries + entries)


class EntryVerifier:
    """Verifies the entries of one range. verify: `full`; `crc` does not open record sets; `none` decodes nothing."""

    def __init__(self, of: Range, *, verify: str = "full") -> None:
        self.piece = RangeResult(of, is_blank=verify != "none")
        self._verify = verify
        self._is_first = True  # neither an entry nor a hole was seen
        self._position: int | None = 0 if of.first == 0 else None  # records so far; None: unknown, or not counted
        self._length: int | None = 0 if of.first == 0 else None  # of the ledger so far
        if of.first == 0:
            self.piece.held_position, self.piece.held_length = EntryValue(0, 0), EntryValue(0, 0)

    # ---- input ------------------------------------------------------------------------------------------------------

    def entry(self, entry: int, payload: Buffer, length: int) -> None:
        """The next entry, with the ledger length that it states; -1 if it states none."""
        piece = self.piece
        piece.entries += 1
        piece.payload_bytes += len(payload)
        if length >= 0:
            self._follow_length(entry, len(payload), length)
        if self._verify != "none":
            try:
                records, note = self._decoded(payload)
            except DamagedError as error:
                piece.find(Kind.UNDECODABLE, entry, "records", error.message)
                self._lose_position()
            else:
                self._prove(entry, records, note)
        self._is_first = False

    def hole(self) -> None:
        """The next entry could not be read."""
        self._lose_position()
        self._length = self.piece.last_length = None
        self._is_first = False

    # ---- order of entries -------------------------------------------------------------------------------------------

    def _follow_length(self, entry: int, size: int, length: int) -> None:
        before, piece = length - size, self.piece
        if self._length is not None:
            if before != self._length:
                piece.find(Kind.LENGTH, entry, f"{self._length} before it", str(before))
        elif self._is_first:
            piece.held_length = EntryValue(entry, before)
        self._length = piece.last_length = length

    def _follow_position(self, entry: int, record: Record, noted: bool) -> None:
        """Control records and the end of stream carry the count so far, a user record carries one more."""
        before = record.position - 1 if record.is_user else record.position
        if record.is_user and not record.position and not noted and not self._position:
            self._position = None  # Java can be configured not to count
            return
        if self._position is None:
            if self._is_first:
                self.piece.held_position = EntryValue(entry, before)
        elif before != self._position:
            self.piece.find(Kind.POSITION, entry, f"{self._position} before it", str(before))
        self._is_first = False
        self._position = before

    def _follow_txid(self, entry: int, record: Record) -> None:
        piece = self.piece
        if piece.last_txid is None:
            piece.first_txid = EntryValue(entry, record.txid)
        elif record.txid < piece.last_txid:
            piece.find(Kind.TXID, entry, f"at least {piece.last_txid}", str(record.txid))
        piece.last_txid = record.txid

    def _follow_time(self, entry: int, unix_ms: int) -> None:
        piece = self.piece
        if piece.last_time is None:
            piece.first_time = EntryValue(entry, unix_ms)
        elif unix_ms < piece.last_time:
            piece.find(Kind.TIME, entry, f"at least {piece.last_time}", str(unix_ms))
        piece.last_time = unix_ms

    def _lose_position(self) -> None:
        piece = self.piece
        self._position = piece.last_position = piece.end = piece.data_end = None
        self._is_first = piece.is_blank = False

    # ---- contents of an entry ---------------------------------------------------------------------------------------

    def _decoded(self, payload: Buffer) -> tuple[list[Record], DedupTrailer | None]:
        records = decode_entry(payload, expand=False, enveloped=self.piece.of.is_enveloped)
        if not records:
            raise DamagedError("an entry holds at least one record")
        for record in reversed(records):
            if record.is_control and is_note(record.payload):
                return records, decode_trailer(record.payload)
        return records, None

    def _prove(self, entry: int, records: list[Record], note: DedupTrailer | None) -> None:
        piece = self.piece
        crcs = self._compare_with_note(entry, records, note)
        if note is not None:
            self._follow_time(entry, note.unix_ms)
        sets = count = 0
        for record in records:
            count = 1
            self._follow_position(entry, record, note is not None)
            if record.is_user:
                self._follow_txid(entry, record)
                if record.is_set:
                    count = record_set_count(record.payload)
                    self._prove_set(entry, record, count, crcs[sets] if sets < len(crcs) else None)
                    sets += 1
                piece.records += count
                if self._position is not None:
                    self._position += count
        last = records[-1]
        piece.last_position = self._position
        piece.end = End(entry, last.slot + count - 1, last.txid, self._position or 0)
        if not all(record.is_control for record in records):
            piece.data_end, piece.is_blank = piece.end, False

    def _compare_with_note(self, entry: int, records: list[Record], note: DedupTrailer | None) -> list[int]:
        """The producers' checksums of its record sets, in order; empty if its dedup trailer lists other batches."""
        if note is None:
            return []
        sets = [record for record in records if record.is_user and record.is_set]
        counts = [record_set_count(record.payload) for record in sets]
        noted = [batch.records for batch in note.batches]
        if counts != noted:
            self.piece.find(Kind.NOTE, entry, f"batches of {_few(noted)} records", f"batches of {_few(counts)}")
            return []
        for record, batch in zip(sets, note.batches, strict=True):
            if record.slot != batch.slot:
                self.piece.find(Kind.SLOT, entry, str(batch.slot), str(record.slot))
                break
        return [batch.crc for batch in note.batches]

    def _prove_set(self, entry: int, record: Record, count: int, crc: int | None) -> None:
        if crc is not None:
            found = crc32c(record.payload)
            if found != crc:
                self.piece.find(Kind.RECORD_SET_CRC, entry, f"{crc:#010x}", f"{found:#010x} at slot {record.slot}")
                return  # nothing inside can be trusted
        if self._verify != "full" or _are_alike(record.payload, count):
            return
        try:
            parse_record_set(record.payload)
        except DamagedError as error:
            self.piece.find(Kind.UNDECODABLE, entry, f"{count} records at slot {record.slot}", error.message)


def _are_alike(payload: Buffer, count: int) -> bool:
    """Whether a set is uncompressed and consists of `count` records of one length, which is quick to check."""
    size = len(payload) - SET_OVERHEAD
    if not count or size % count or payload[3] & _CODEC_MASK:
        return False
    stride = size // count
    lengths: np.ndarray[tuple[int], np.dtype[np.int32]] = np.ndarray(
        (count,), np.dtype(">i4"), payload, SET_OVERHEAD, (stride,)
    )
    return bool((lengths == stride - SET_RECORD_OVERHEAD).all())


def _few(numbers: list[int]) -> str:
    text = ", ".join(map(str, numbers[:8]))
    return f"{text}, ..." if len(numbers) > 8 else text or "no"
