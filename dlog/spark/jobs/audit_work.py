"""Runs in a task of an audit: reads the entries of its ranges, every copy, and reduces them to numbers and findings.

Invariants:
- a task returns a result for each of its ranges; what cannot be read is reported, and the next range is read;
- no byte of an entry leaves the task.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from dlog.errors import DLogError, LedgerNotFoundError
from dlog.io.stores import StoresOptions
from dlog.model.ids import BookieId
from dlog.spark.cluster_connection import Cluster, reach
from dlog.spark.jobs.audit_copies import Copy, Fault, TaskReading
from dlog.spark.jobs.audit_entries import EntryVerifier, RangeResult, Unread
from dlog.spark.jobs.audit_findings import Kind
from dlog.spark.jobs.audit_replicas import Extent, extents
from dlog.spark.planning import Range
from dlog.spark.workers import prepare_worker
from dlog.stores.contract import SegmentCorruptError, SegmentNotFoundError
from dlog.wire.digest import Entry


@dataclass(frozen=True, slots=True)
class AuditParameters:
    """Parameters of all tasks of an audit. rate_bytes_s: for each task; 0: no limit."""

    zookeeper: str
    namespace: str
    all_replicas: bool
    verify: str
    rate_bytes_s: int
    retries: int
    patience_s: float
    stores: StoresOptions | None = None  # how segments are reached; None: from the task's environment


@dataclass(frozen=True, slots=True)
class _Failed:
    """The rest of a range could not be read."""

    of: Range
    error: DLogError | TimeoutError


def examine(ranges: Sequence[Range], errand: AuditParameters) -> list[RangeResult]:
    """Verify each of these ranges, in order."""
    prepare_worker()
    reading = TaskReading(
        all_replicas=errand.all_replicas,
        retries=errand.retries,
        rate_bytes_s=errand.rate_bytes_s,
        patience_s=errand.patience_s,
    )
    proofs = {of: EntryVerifier(of, verify=errand.verify) for of in ranges}
    of_cluster = reach(errand.zookeeper, errand.namespace, errand.stores)
    try:
        for item in of_cluster.pump(lambda cluster: _read(cluster, ranges, reading)):
            proof = proofs[item.of]
            if isinstance(item, _Failed):
                _note_failed(proof.piece, item.error)
            else:
                _prove(proof, item)
    except (DLogError, TimeoutError) as error:  # the cluster is unreachable, or became so
        for proof in proofs.values():
            if not proof.piece.is_gone:
                _note_failed(proof.piece, error)
    for lost in reading.lost:
        reason = f"the bookie cannot be reached: {lost.reason}; run the audit again when it is back"
        proofs[lost.of].piece.unread.append(Unread(lost.first, lost.of.last, lost.bookie, reason))
    return [proof.piece for proof in proofs.values()]


async def _read(
    cluster: Cluster, ranges: Sequence[Range], reading: TaskReading
) -> AsyncGenerator[Extent | _Failed, None]:
    for of in ranges:
        try:
            async for extent in extents(cluster, of, reading):
                yield extent
        except (DLogError, TimeoutError) as error:
            yield _Failed(of, error)


def _note_failed(piece: RangeResult, error: DLogError | TimeoutError) -> None:
    if isinstance(error, LedgerNotFoundError | SegmentNotFoundError):
        piece.is_gone = True
        return
    if isinstance(error, SegmentCorruptError):  # an object that cannot be opened
        piece.find(Kind.DIGEST, piece.of.first, "a copy that verifies", error.message, piece.of.store)
        return
    message = error.message if isinstance(error, DLogError) else "no answer in time"
    piece.unread.append(Unread(piece.of.first, piece.of.last, None, f"{message}; run the audit again"))


# ---- copies of one entry --------------------------------------------------------------------------------------------


def _prove(proof: EntryVerifier, extent: Extent) -> None:
    for entry, copies in enumerate(zip(*extent.copies, strict=True), extent.first):
        good = [copy for copy in copies if isinstance(copy, Entry)]
        proof.piece.replicas = max(proof.piece.replicas, sum(copy is not None for copy in copies))
        proof.piece.read_bytes += sum(len(copy.payload) for copy in good)
        if len(good) < len(copies):
            _note_faults(proof.piece, entry, extent.bookies, copies)
        if len(good) > 1:
            good = _agreed(proof.piece, entry, extent.bookies, copies)
        if good:
            proof.entry(entry, good[0].payload, good[0].length)
        else:
            proof.hole()


def _note_faults(piece: RangeResult, entry: int, bookies: Sequence[BookieId], copies: Sequence[Copy]) -> None:
    """Report the fault of each copy; a single row if no bookie has the entry."""
    there = [(bookie, copy) for bookie, copy in zip(bookies, copies, strict=True) if copy is not None]
    faults = [(bookie, copy) for bookie, copy in there if isinstance(copy, Fault)]
    if len(faults) > 1 and len(faults) == len(there) and all(fault.kind is Kind.MISSING for _, fault in faults):
        piece.find(Kind.LOST, entry, "an entry", f"none on {', '.join(bookie for bookie, _ in faults)}")
        return
    for bookie, fault in faults:
        expected = "a copy that verifies" if fault.kind is Kind.DIGEST else "a copy"
        piece.find(fault.kind, entry, expected, fault.found, bookie)


def _agreed(piece: RangeResult, entry: int, bookies: Sequence[BookieId], copies: Sequence[Copy]) -> list[Entry]:
    """The copy that most bookies have; the others are reported."""
    there = [(bookie, copy) for bookie, copy in zip(bookies, copies, strict=True) if isinstance(copy, Entry)]
    first = there[0][1]
    reference = bytes(first.payload)
    if all(copy.length == first.length and bytes(copy.payload) == reference for _, copy in there[1:]):
        return [first]
    summaries = [(len(copy.payload), copy.length, zlib.crc32(copy.payload)) for _, copy in there]
    most = Counter(summaries).most_common(1)[0][0]
    right = [bookie for (bookie, _), one in zip(there, summaries, strict=True) if one == most]
    for (bookie, _), one in zip(there, summaries, strict=True):
        if one != most:
            piece.find(Kind.REPLICA_DIFFERS, entry, f"{_text(most)} as on {', '.join(right)}", _text(one), bookie)
    return [there[summaries.index(most)][1]]


def _text(summary: tuple[int, int, int]) -> str:
    size, length, crc = summary
    return f"{size} bytes, ledger length {length}, crc32 {crc:#010x}"
