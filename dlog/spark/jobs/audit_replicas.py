"""Reads entries of a ledger from all of its bookies, side by side.

Invariants:
- an entry that a bookie lacks counts only if metadata still names that bookie for it;
- a bookie that cannot be reached is reported as lost, and the others are read nevertheless.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dlog.errors import UnavailableError
from dlog.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId, SegmentNumber, StreamName
from dlog.model.ledger import LedgerMetadata
from dlog.options import MiB
from dlog.spark.cluster_connection import Cluster, with_retries
from dlog.spark.jobs.audit_copies import EXTENT_BYTES, BookieReads, Copy, Fault, Lost, Replica, TaskReading
from dlog.spark.jobs.audit_findings import Kind
from dlog.spark.planning import Range
from dlog.stores.cold.store import ColdStore
from dlog.stores.contract import SegmentCorruptError, SegmentReader, SegmentRef, SegmentStore
from dlog.wire.digest import Digest, Entry

LEDGER = "ledger"  # the store whose copies can be distinguished
SINGLES_AT_ONCE = 8  # entries read one by one
COLD_BYTES_MAX = 16 * MiB  # prefetch for a segment in cold storage
MOVES_MAX = 10  # of one ledger to other bookies during a read


@dataclass(frozen=True, slots=True)
class Extent:
    """Entries of a range from `first` on: as many copies from each bookie."""

    of: Range
    first: int
    bookies: tuple[BookieId, ...]
    copies: tuple[Sequence[Copy], ...]

    @property
    def entries(self) -> int:
        return len(self.copies[0]) if self.copies else 0


class _MovedError(UnavailableError):
    """The copies are on other bookies now."""


async def extents(cluster: Cluster, of: Range, reading: TaskReading) -> AsyncGenerator[Extent, None]:
    """All entries of a range, in order; ends early where no bookie can be reached. Lost bookies: reading.lost.

    Raises LedgerNotFoundError, SegmentNotFoundError, UnavailableError, DamagedError, UnsupportedVersionError,
    MisconfiguredError.
    """
    if of.store != LEDGER:
        async for extent in _kept_elsewhere(cluster, of, reading):
            yield extent
        return
    ledger = LedgerId(int(of.name))
    entry = of.first
    moves = 0
    while entry <= of.last:
        metadata = await cluster.ledgers.metadata_of(ledger)
        try:
            async for extent in _extents(cluster, metadata, of, entry, reading):
                entry = extent.first + extent.entries
                yield extent
            return
        except _MovedError:
            moves += 1
            if moves > MOVES_MAX:
                raise


async def _kept_elsewhere(cluster: Cluster, of: Range, reading: TaskReading) -> AsyncGenerator[Extent, None]:
    """One copy of each entry, from a store that shows only one."""
    ref = SegmentRef(StreamName(of.stream), SegmentNumber(of.segment), of.name)
    async with _fresh(cluster, of.store) as store:
        reader = await with_retries(lambda: store.open_reader(ref), reading.retries)
        try:
            reader.learn_lac(EntryId(of.last))
            entry = of.first
            while entry <= of.last:
                copies = await _shown(reader, entry, of.last, reading.retries)
                yield Extent(of, entry, (BookieId(of.store),), (copies,))
                entry += len(copies)
                await reading.hold_rate(_size(copies))
        finally:
            await reader.close()


@asynccontextmanager
async def _fresh(cluster: Cluster, name: str) -> AsyncIterator[SegmentStore]:
    """The store, without cached data: what was read earlier proves nothing. Raises MisconfiguredError."""
    store = cluster.store(name)
    if isinstance(store, ColdStore):
        async with ColdStore(store.objects, replace(store.options, cache_bytes_max=COLD_BYTES_MAX)) as cold:
            yield cold
    else:
        yield store


async def _shown(reader: SegmentReader, entry: int, last: int, retries: int) -> list[Copy]:
    """Copies from `entry` on, at least one."""
    for end in (last, entry):
        try:
            payloads = await with_retries(
                partial(reader.read_views, EntryId(entry), EntryId(end), EXTENT_BYTES), retries
            )
            return [Entry(EntryId(number), NO_ENTRY, -1, memoryview(p)) for number, p in enumerate(payloads, entry)]
        except SegmentCorruptError as error:
            fault = Fault(Kind.DIGEST, error.message)
    return [fault]


async def entry_length(
    cluster: Cluster, ledger: LedgerId, metadata: LedgerMetadata, entry: int, reading: TaskReading
) -> int | None:
    """The ledger's length up to this entry, from its first good copy; None if there is none."""
    if entry < 0:
        return 0
    digest = Digest(ledger, metadata.digest, metadata.password)
    reads = BookieReads(cluster.ledgers.asker())
    try:
        for bookie in metadata.bookies_of(entry):
            copy = await Replica(reads, bookie, digest, reading).single(entry)
            if isinstance(copy, Entry):
                return copy.length
    finally:
        reads.close()
    return None


async def _extents(
    cluster: Cluster, metadata: LedgerMetadata, of: Range, entry: int, reading: TaskReading
) -> AsyncGenerator[Extent, None]:
    ledger = LedgerId(int(of.name))
    digest = Digest(ledger, metadata.digest, metadata.password)
    reads = BookieReads(cluster.ledgers.asker())
    try:
        while entry <= of.last:
            later = [f.first_entry for f in metadata.fragments if f.first_entry > entry]
            last = min([of.last, *(first - 1 for first in later[:1])])
            ensemble = metadata.fragment_of(entry).ensemble
            # tasks begin with different bookies
            turn = of.first % len(ensemble) if not reading.all_replicas else 0
            replicas = [Replica(reads, bookie, digest, reading) for bookie in (*ensemble[turn:], *ensemble[:turn])]
            gather = _striped if metadata.quorum.write < metadata.quorum.ensemble else _whole
            async for extent in gather(replicas, metadata, of, entry, last, reading):
                if _lacks(extent):
                    await _check_moved(cluster, ledger, extent)
                read = sum(map(_size, extent.copies))
                entry = extent.first + extent.entries
                yield extent
                await reading.hold_rate(read)
            if entry <= last:
                return
    finally:
        reads.close()


async def _whole(
    replicas: list[Replica], metadata: LedgerMetadata, of: Range, entry: int, last: int, reading: TaskReading
) -> AsyncGenerator[Extent, None]:
    """Read side by side where each bookie has each entry. Ends early if all bookies are lost."""
    while entry <= last:
        here = [replica for replica in replicas if not replica.is_away]
        asked = here if reading.all_replicas else here[:1]
        await _at_once(replica.fill(entry, last) for replica in asked)
        if any(replica.is_away for replica in asked):
            if reading.all_replicas:
                _note_lost(of, entry, replicas, reading)
            continue
        if not asked:
            _note_lost(of, entry, replicas, reading)
            return
        count = min(len(replica.copies) for replica in asked)
        rows = [replica.take(count) for replica in asked]
        if not reading.all_replicas:
            more = await _second(entry, rows[0], here[1:])
            asked, rows = [*asked, *more], [*rows, *more.values()]
            if not all(map(_is_known, zip(*rows, strict=True))):
                _note_lost(of, entry, replicas, reading)
        yield Extent(of, entry, tuple(replica.bookie for replica in asked), tuple(rows))
        entry += count


async def _striped(
    replicas: list[Replica], metadata: LedgerMetadata, of: Range, entry: int, last: int, reading: TaskReading
) -> AsyncGenerator[Extent, None]:
    """Read one by one, a few at a time, where entries are striped over the bookies."""
    by_id = {replica.bookie: replica for replica in replicas}
    while entry <= last:
        count = min(SINGLES_AT_ONCE, last + 1 - entry)
        rows: dict[Replica, list[Copy]] = {replica: [None] * count for replica in replicas}

        async def read(number: int, first: int = entry, rows: dict[Replica, list[Copy]] = rows) -> None:
            for bookie in metadata.bookies_of(first + number):
                replica = by_id[bookie]
                copy = rows[replica][number] = await replica.single(first + number)
                if isinstance(copy, Entry) and not reading.all_replicas:
                    return

        await _at_once(read(number) for number in range(count))
        entries = list(zip(*rows.values(), strict=True))
        if reading.all_replicas or not all(map(_is_known, entries)):
            _note_lost(of, entry, replicas, reading)
        count = next((number for number, copies in enumerate(entries) if not any(copies)), count)
        if not count:
            return
        yield Extent(of, entry, tuple(r.bookie for r in replicas), tuple(row[:count] for row in rows.values()))
        entry += count


async def _second(first: int, copies: Sequence[Copy], others: list[Replica]) -> dict[Replica, list[Copy]]:
    """For entries without a good copy, ask the other bookies one after another."""
    rows: dict[Replica, list[Copy]] = {}
    for number, copy in enumerate(copies):
        for other in others if isinstance(copy, Fault) else ():
            found = await other.single(first + number)
            rows.setdefault(other, [None] * len(copies))[number] = found
            if isinstance(found, Entry):
                break
    return rows


def _is_known(copies: Iterable[Copy]) -> bool:
    """Whether a good copy is known."""
    return any(isinstance(copy, Entry) for copy in copies)


def _note_lost(of: Range, entry: int, replicas: Iterable[Replica], reading: TaskReading) -> None:
    """Report lost bookies. To be called where their copies were to be read, but not where one good copy suffices and
    there is one."""
    for replica in replicas:
        if replica.is_away and not replica.is_reported:
            replica.is_reported = True
            reading.lost.append(Lost(of, entry, replica.bookie, replica.reason))


def _lacks(extent: Extent) -> bool:
    return any(isinstance(copy, Fault) and copy.kind is Kind.MISSING for row in extent.copies for copy in row)


async def _check_moved(cluster: Cluster, ledger: LedgerId, extent: Extent) -> None:
    """Check whether copies that a bookie lacks were moved to another meanwhile. Raises _MovedError,
    LedgerNotFoundError."""
    metadata = await cluster.ledgers.metadata_of(ledger)
    for bookie, row in zip(extent.bookies, extent.copies, strict=True):
        for entry, copy in enumerate(row, extent.first):
            if isinstance(copy, Fault) and copy.kind is Kind.MISSING and bookie not in metadata.bookies_of(entry):
                raise _MovedError(f"the ledger keeps moving between bookies: ledger={ledger} entry={entry}")


async def _at_once(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all concurrently; raises the first failure as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work, name="audit read")
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def _size(copies: Sequence[Copy]) -> int:
    return sum(len(copy.payload) for copy in copies if isinstance(copy, Entry))
