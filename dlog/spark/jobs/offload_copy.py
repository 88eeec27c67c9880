"""Runs in a task of `offload`: copies segments to objects, reads them back, and writes Parquet on request.

Invariants:
- an object holds what the segment's store delivered and verified, checked again against the producers' checksums;
- an object counts only after it was read back completely;
- a fault is reported for its segment, and the task continues with the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from dlog.errors import DamagedError, DLogError
from dlog.io.stores import StoresOptions
from dlog.log.dedup_trailer import decode_trailer, is_note
from dlog.model.ids import NO_TXID, EntryId, SegmentNumber, StreamName
from dlog.spark.cluster_connection import Cluster, reach, with_retries
from dlog.spark.workers import prepare_worker
from dlog.stores.cold import store as cold
from dlog.stores.cold.format import Builder, Contents, Head
from dlog.stores.cold.locations import ObjectName
from dlog.stores.cold.store import ColdStore, Scanned
from dlog.stores.contract import Buffer, SegmentCorruptError, SegmentNotFoundError, SegmentReader, SegmentRef
from dlog.stores.object_storage.locations import parse_root
from dlog.wire.digest import crc32c
from dlog.wire.entry import decode_entry, record_set_count

if TYPE_CHECKING:
    from dlog.spark.cluster_connection import ClusterConnection

EXTENT_BYTES = 4 << 20
FETCH_S = 60.0
RETRIES = 3
WHOLE_S = 24 * 3600.0  # timeout for a whole segment, however slow its storage; each step has its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A segment to copy. folder: where its object is written; empty: it is in an object already, and only a Parquet
    file is made. bytes: of its entries, according to its store. parquet: location of that file, or empty."""

    head: Head
    folder: str
    bytes: int
    parquet: str = ""
    compression: str = "snappy"
    first_entry: int = 0  # the first readable one; earlier records are not in Parquet
    first_slot: int = 0

    @property
    def ref(self) -> SegmentRef:
        return SegmentRef(StreamName(self.head.stream), SegmentNumber(self.head.number), self.head.source_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTask:
    """The segments that one task copies, one after another."""

    zookeeper: str
    namespace: str
    stores: StoresOptions
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Result for a segment. object: location of its copy, read back and compared; empty: none.

    finding: a fault of the segment in its present location. failure: why it could not be copied. is_gone: it was
    truncated meanwhile.
    """

    stream: str
    number: int
    object: str = ""
    bytes: int = 0
    records: int = 0
    entries_crc: int = 0
    parquet: str = ""
    parquet_bytes: int = 0
    finding: str = ""
    failure: str = ""
    is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Result of checking an object. finding: its fault; failure: why it could not be checked."""

    stream: str
    number: int
    name: str
    finding: str = ""
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTask:
    """Objects to read completely: stream, segment and location of each."""

    zookeeper: str
    namespace: str
    stores: StoresOptions
    objects: tuple[tuple[str, int, str], ...]


def copy_segments(errand: CopyTask) -> list[Copied]:
    """Copy in a Spark worker."""
    prepare_worker()
    of_cluster = reach(errand.zookeeper, errand.namespace, errand.stores)
    return [_copied(of_cluster, source) for source in errand.sources]


def check_objects(errand: CheckTask) -> list[Checked]:
    """Check in a Spark worker: read every byte."""
    prepare_worker()
    of_cluster = reach(errand.zookeeper, errand.namespace, errand.stores)
    return [_checked(of_cluster, *location) for location in errand.objects]


def cold_store(cluster: Cluster) -> ColdStore:
    return cast(ColdStore, cluster.stores[cold.NAME])


# ---- one segment ----------------------------------------------------------------------------------------------------


def _copied(of_cluster: ClusterConnection, source: Source) -> Copied:
    nothing = Copied(stream=source.head.stream, number=source.head.number)
    copied = replace(nothing, object=source.ref.name)
    try:
        if source.folder:
            copied = of_cluster.ask(partial(_copy, source=source), timeout_s=WHOLE_S)
        return _read_back(of_cluster, source, copied) if copied.object else copied
    except DamagedError as error:
        _drop(of_cluster, source, copied)
        return replace(nothing, finding=error.message)
    except SegmentCorruptError as error:
        if copied.object != source.ref.name:  # a fault of the copy, not of the segment's own store
            _drop(of_cluster, source, copied)
            return replace(nothing, failure=f"the copy differs from what was written: {error.message}")
        return replace(nothing, finding=error.message)
    except (DLogError, TimeoutError, OSError) as error:
        return replace(nothing, failure=_words(error))


def _read_back(of_cluster: ClusterConnection, source: Source, copied: Copied) -> Copied:
    """Read every byte of the object, and make Parquet of it on request."""
    ref = replace(source.ref, name=copied.object)
    if source.parquet:
        from dlog.spark.jobs.offload_parquet import write_parquet

        scanned, size = write_parquet(of_cluster, ref, source)
        copied = replace(copied, parquet=source.parquet, parquet_bytes=size)
    else:
        scanned = of_cluster.ask(partial(read_back, ref=ref), timeout_s=WHOLE_S)
    if source.folder:
        _compare(copied, scanned)
    return copied


def _drop(of_cluster: ClusterConnection, source: Source, copied: Copied) -> None:
    """Delete an object that is not recorded."""
    if copied.object != source.ref.name:
        ref = replace(source.ref, name=copied.object)
        with contextlib.suppress(DLogError, TimeoutError):
            of_cluster.ask(lambda cluster: cold_store(cluster).delete(ref))


def _checked(of_cluster: ClusterConnection, stream: str, number: int, name: str) -> Checked:
    ref = SegmentRef(StreamName(stream), SegmentNumber(number), name)
    checked = Checked(stream=stream, number=number, name=name)
    try:
        of_cluster.ask(partial(read_back, ref=ref), retries=RETRIES, timeout_s=WHOLE_S)
    except (SegmentCorruptError, SegmentNotFoundError) as error:
        return replace(checked, finding=error.message)
    except (DLogError, TimeoutError, OSError) as error:
        return replace(checked, failure=_words(error))
    return checked


async def _copy(cluster: Cluster, *, source: Source) -> Copied:
    """Copy to an object with a name of its own. Raises SegmentCorruptError, DamagedError, StoreError, and leaves no
    object then."""
    head = source.head
    name = ObjectName(head.number, os.urandom(8).hex(), source.bytes)
    location = parse_root(source.folder).below(str(name))
    store = cluster.stores[head.source_store]
    try:
        reader = await with_retries(lambda: store.open_reader(source.ref, sealed_at=EntryId(head.last_entry)), RETRIES)
    except SegmentNotFoundError:
        return Copied(stream=head.stream, number=head.number, is_gone=True)
    try:
        if reader.end != head.last_entry:
            raise DamagedError(
                f"the list and the segment's store differ in the last entry: list={head.last_entry} store={reader.end}"
            )
        writer = await cold_store(cluster).objects.create(location)
        try:
            builder = Builder(head)
            await writer.write((builder.begin(),))
            await _pour(reader, builder, writer.write)
            if builder.records != head.records:
                raise DamagedError(
                    f"the list and the segment differ in records: list={head.records} found={builder.records}"
                )
            payload_bytes = builder.payload_bytes
            await writer.write(builder.end())
            await writer.finish()
        except BaseException:
            await writer.abort()
            raise
    finally:
        await reader.close()
    return Copied(
        stream=head.stream,
        number=head.number,
        object=str(location),
        bytes=payload_bytes,
        records=builder.records,
        entries_crc=builder.entries_crc,
    )


async def _pour(reader: SegmentReader, builder: Builder, write: Callable[[Sequence[Buffer]], Awaitable[None]]) -> None:
    """Copy all entries, fetching ahead."""
    head, entry = builder.head, 0
    try:
        async with asyncio.TaskGroup() as group:
            ahead = group.create_task(_fetch(reader, entry, head.last_entry), name="fetch")
            while entry <= head.last_entry:
                payloads = await ahead
                following = entry + len(payloads)
                if following <= head.last_entry:
                    ahead = group.create_task(_fetch(reader, following, head.last_entry), name="fetch")
                for payload in payloads:
                    builder.add(payload, examine(payload, entry, is_enveloped=head.is_enveloped))
                    entry += 1
                await write(payloads)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _fetch(reader: SegmentReader, first: int, last: int) -> Sequence[Buffer]:
    async def once() -> Sequence[Buffer]:
        async with asyncio.timeout(FETCH_S):
            return await reader.read_views(EntryId(first), EntryId(last), EXTENT_BYTES)

    return await with_retries(once, RETRIES)


async def read_back(cluster: Cluster, *, ref: SegmentRef) -> Scanned:
    """Read every byte of an object. Raises SegmentCorruptError, SegmentNotFoundError, StoreError."""
    scanned, extents = await cold_store(cluster).scan(ref)
    async with aclosing(extents) as going:
        async for _ in going:
            pass
    if scanned.damaged:
        entry, why = scanned.damaged[0]
        raise SegmentCorruptError(f"{why}: location={ref.name} entry={entry} damaged={len(scanned.damaged)}")
    return scanned


def _compare(copied: Copied, scanned: Scanned) -> None:
    """Compare what was read back with what was written. Raises SegmentCorruptError."""
    written = (copied.bytes, copied.records, copied.entries_crc)
    found = (scanned.payload_bytes, scanned.records, scanned.entries_crc)
    if written != found:
        raise SegmentCorruptError(f"the object differs: location={copied.object} wrote={written} found={found}")


def examine(payload: Buffer, entry: int, *, is_enveloped: bool) -> Contents:
    """Decode an entry and verify its producers' checksums. Raises DamagedError, naming the entry."""
    try:
        records = decode_entry(payload, expand=False, enveloped=is_enveloped)
        first_txid, last_txid, first_slot, count, unix_ms = int(NO_TXID), int(NO_TXID), -1, 0, 0
        sums: dict[int, int] = {}
        for record in reversed(records):
            if record.is_control and is_note(record.payload):
                note = decode_trailer(record.payload)
                unix_ms, sums = note.unix_ms, {batch.slot: batch.crc for batch in note.batches}
                break
        for record in records:
            if not record.is_user:
                continue
            if first_slot < 0:
                first_slot, first_txid = record.slot, record.txid
            last_txid = record.txid
            if not record.is_set:
                count += 1
                continue
            count += record_set_count(record.payload)
            expected = sums.get(record.slot)
            if expected is not None and crc32c(record.payload) != expected:
                raise DamagedError(f"the producer's checksum does not match: slot={record.slot}")
    except DamagedError as error:
        raise DamagedError(f"{error.message}: entry={entry}") from error
    return Contents(first_txid, last_txid, unix_ms, first_slot, count)


def _words(error: Exception) -> str:
    return error.message if isinstance(error, DLogError) else f"{type(error).__name__}: {error}"
