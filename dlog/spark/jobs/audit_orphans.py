"""Finds orphans: ledgers, and segments in files, in topics and in objects, that nothing names.

One is named by the segment list of a stream, as allocated to it, as a part of a node's write-ahead log (store `s3`), as
a sink's stage (dlog/spark/stages.py) and, for a while, as the old copy of a segment that was moved to cold storage
(dlog/spark/jobs/offload_records.py).

Invariants:
- names are read after ledgers, files, tables and chains of objects were listed, in every namespace of the cluster, and
  an orphan must be old enough for its name to have been written;
- a table in a topic has no time of its own: it is older than the end of a segment whose table was begun later in the
  same region, and is not reported without one;
- names move from stages to lists, and from lists to old copies, and are read in that order;
- ledgers of other applications are ignored; nothing is deleted.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import unquote

from dlog.errors import DamagedError, DLogError, LedgerNotFoundError, UnsupportedVersionError
from dlog.io.clock import SYSTEM_CLOCK
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_protocol import NoNodeError
from dlog.log.changes import allocated_location
from dlog.machine import Missing, Versioned
from dlog.model.ids import METADATA_STREAM, WAL_STREAM, LedgerId
from dlog.model.ledger import LedgerMetadata
from dlog.model.segment import StreamKey, StreamMetadata
from dlog.spark.cluster_connection import Cluster
from dlog.spark.jobs.audit_findings import Finding, Kind
from dlog.stores.contract import SegmentCorruptError, SegmentNotFoundError, SegmentStore, StoreError
from dlog.stores.file.store import FileStore
from dlog.stores.kafka.locations import parse_location
from dlog.stores.kafka.store import KafkaStore
from dlog.stores.s3.options import NAME as S3
from dlog.stores.s3.store import S3Store
from dlog.stores.s3_direct.store import S3DirectStore
from dlog.wire.stream_metadata import decode_binding

DEPTH_MAX = 3  # of a namespace's znode
ZNODES_MAX = 10_000  # examined in search of namespaces

_STREAM, _SEGMENT, _APPLICATION = "dlog.stream", "dlog.segment", "application"  # custom metadata of a ledger


@dataclass(slots=True)
class Orphans:
    """Result. ledgers, files, tables, chains: number of all of them. foreign: ledgers of other applications."""

    ledgers: int = 0
    foreign: int = 0
    files: int = 0
    tables: int = 0
    chains: int = 0
    findings: list[Finding] = field(default_factory=list)
    failures: list[dict[str, object]] = field(default_factory=list)


@dataclass(slots=True)
class NamedSegments:
    """Locations that are named, which no two stores share; streams with unreadable metadata, whose segments are
    unknown. with_logs: namespaces with nodes that have write-ahead logs. completed_unix_ms: of completed segments in
    topics, by location."""

    names: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    with_logs: set[str] = field(default_factory=set)
    completed_unix_ms: dict[str, int] = field(default_factory=dict)


async def find_orphans(cluster: Cluster, zookeeper: str, namespace: str, *, age_s: float) -> Orphans:
    """Orphans older than `age_s`; files only if their store is configured. Raises MetadataUnavailableError,
    StoreUnavailableError."""
    orphans = Orphans()
    store = cluster.stores.get(FileStore.name)
    files = [name async for name in store.list()] if isinstance(store, FileStore) else []
    orphans.files = len(files)
    topics = cluster.stores.get(KafkaStore.name)
    tables = await _listed(topics, "topics", orphans) if isinstance(topics, KafkaStore) else []
    orphans.tables = len(tables)
    objects = cluster.stores.get(S3DirectStore.name)
    chains = await _listed(objects, "objects", orphans) if isinstance(objects, S3DirectStore) else []
    orphans.chains = len(chains)
    there = [int(ledger) async for ledger in cluster.ledgers.list()]
    orphans.ledgers = len(there)
    named = await read_named_segments(cluster.metadata, zookeeper, namespace)
    await _name_logs(cluster, namespace, named, orphans)
    for ledger in there:
        if str(ledger) not in named.names:
            await _judge(cluster, LedgerId(ledger), named, age_s, orphans)
    for name in files:
        if name not in named.names:
            assert isinstance(store, FileStore)
            await _judge_file(store, name, named, age_s, orphans)
    for name in tables:
        if name not in named.names:
            assert isinstance(topics, KafkaStore)
            await _judge_table(topics, name, named, age_s, orphans)
    for name in chains:
        if name not in named.names:
            assert isinstance(objects, S3DirectStore)
            await _judge_chain(objects, name, named, age_s, orphans)
    return orphans


async def read_named_segments(metadata: ZooKeeperMetadata, zookeeper: str, namespace: str) -> NamedSegments:
    """What is named in every namespace of the cluster now, this one last. Raises MetadataUnavailableError."""
    named = NamedSegments()
    for other in await _namespaces(metadata):
        if other != namespace:
            async with _opened(zookeeper, other) as its_metadata:
                await _collect(its_metadata, other, named)
    await _collect(metadata, namespace, named)
    return named


async def _name_logs(cluster: Cluster, namespace: str, named: NamedSegments, orphans: Orphans) -> None:
    """Add the segments of write-ahead logs. Where they are not known, no segment of a log is judged."""
    store = cluster.stores.get(S3)
    if named.with_logs == {namespace} and isinstance(store, S3Store):
        try:
            named.names |= await store.log_segments()
            return
        except StoreError as error:
            failure = f"write-ahead logs are not known, and not audited: {error.message}; run the audit again"
            orphans.failures.append(_failure(failure))
    if named.with_logs:
        named.unknown.add(WAL_STREAM)


async def _listed(store: SegmentStore, where: str, orphans: Orphans) -> list[str]:
    """All segments of a store; none, and a failure, if it does not answer. where: they are, for the message."""
    try:
        return [name async for name in store.list()]
    except StoreError as error:
        orphans.failures.append(_failure(f"segments in {where} cannot be listed: {error.message}; run the audit again"))
        return []


def _failure(error: str) -> dict[str, object]:
    return {"stream": None, "segment": None, "entries": None, "bookie": None, "error": error}


async def _judge(cluster: Cluster, ledger: LedgerId, named: NamedSegments, age_s: float, orphans: Orphans) -> None:
    try:
        metadata = await cluster.ledgers.metadata_of(ledger)
    except LedgerNotFoundError:
        return  # deleted meanwhile
    except (DamagedError, UnsupportedVersionError) as error:
        expected = f"metadata of ledger {ledger}"
        orphans.findings.append(Finding(kind=Kind.LEDGER_METADATA, stream="", expected=expected, found=error.message))
        return
    custom = dict(metadata.custom)
    if _APPLICATION in custom and _STREAM not in custom:
        orphans.foreign += 1
        return
    stream = custom.get(_STREAM, b"").decode(errors="replace")
    if named.unknown and (not stream or stream in named.unknown):
        return
    since_s = None if metadata.ctime_ms is None else (SYSTEM_CLOCK.unix_ms() - metadata.ctime_ms) / 1000
    if since_s is not None and since_s < age_s:
        return
    number = custom.get(_SEGMENT, b"")
    orphans.findings.append(
        Finding(
            kind=Kind.ORPHAN_LEDGER,
            stream=stream,
            segment=int(number) if number.isdigit() else None,
            expected="a stream that names it",
            found=f"ledger {ledger}, {_text(metadata)}, made {_age(since_s)}",
        )
    )


async def _judge_file(store: FileStore, name: str, named: NamedSegments, age_s: float, orphans: Orphans) -> None:
    try:
        file = await store.describe(name)
        changed = await asyncio.to_thread(os.stat, file.path)
    except (SegmentNotFoundError, FileNotFoundError):
        return  # deleted meanwhile
    except SegmentCorruptError as error:
        found = Finding(kind=Kind.ORPHAN_FILE, stream="", expected="a stream that names it", found=error.message)
        orphans.findings.append(found)
        return
    since_s = SYSTEM_CLOCK.unix_ms() / 1000 - changed.st_mtime
    if file.stream in named.unknown or since_s < age_s:
        return
    orphans.findings.append(
        Finding(
            kind=Kind.ORPHAN_FILE,
            stream=file.stream,
            segment=int(file.number),
            expected="a stream that names it",
            found=f"file {file.path}, {file.bytes} bytes, written {_age(since_s)}",
        )
    )


async def _judge_table(store: KafkaStore, name: str, named: NamedSegments, age_s: float, orphans: Orphans) -> None:
    location = parse_location(name)
    later = [
        completed_unix_ms
        for other, completed_unix_ms in named.completed_unix_ms.items()
        if (at := parse_location(other)).region == location.region and at.table > location.table
    ]
    since_s = (SYSTEM_CLOCK.unix_ms() - min(later)) / 1000 if later else 0.0
    if since_s < age_s:
        return
    try:
        table = await store.describe(name)
    except SegmentNotFoundError:
        return  # deleted meanwhile
    if named.unknown and (not table.stream or table.stream in named.unknown):
        return
    orphans.findings.append(
        Finding(
            kind=Kind.ORPHAN_TABLE,
            stream=table.stream,
            segment=table.number or None,
            expected="a stream that names it",
            found=f"table {name} of topic {table.topic}, {table.entries} entries",
        )
    )


async def _judge_chain(store: S3DirectStore, name: str, named: NamedSegments, age_s: float, orphans: Orphans) -> None:
    stream, number, what = "", 0, "what an interrupted deletion left"
    try:
        since_s = await store.age_s(name)
        with suppress(SegmentNotFoundError):  # the rest of a segment, without its first object
            described = await store.describe(name)
            stream, number, what = described.stream, int(described.number), "a segment"
    except SegmentNotFoundError:
        return  # deleted meanwhile
    except SegmentCorruptError as error:
        what = error.message
    if since_s < age_s or (named.unknown and (not stream or stream in named.unknown)):
        return
    orphans.findings.append(
        Finding(
            kind=Kind.ORPHAN_CHAIN,
            stream=stream,
            segment=number if stream else None,
            expected="a stream that names it",
            found=f"objects in {await store.folder_of(name)}, written {_age(since_s)}: {what}",
        )
    )


async def _collect(metadata: ZooKeeperMetadata, namespace: str, named: NamedSegments) -> None:
    await _collect_beside(metadata, f"{namespace}/.sinks", "stage-", named)
    for name in await metadata.streams():
        if name == METADATA_STREAM:
            named.with_logs.add(namespace)
        try:
            outcome = await metadata.read(StreamKey(name))
        except DLogError:
            named.unknown.add(name)
            continue
        if isinstance(outcome, Versioned):
            value: StreamMetadata = outcome.value
            names = [segment.location for segment in value.listed]
            names += [allocated_location(value.allocated)] if value.allocated else []
            named.names |= {name for _, name in names}
            named.completed_unix_ms |= {
                segment.name: segment.completed_unix_ms
                for segment in value.listed
                if segment.store == KafkaStore.name and segment.completed and segment.completed_unix_ms
            }
        elif not isinstance(outcome, Missing):
            named.unknown.add(name)
    await _collect_beside(metadata, f"{namespace}/.offloaded", "", named)


async def _collect_beside(metadata: ZooKeeperMetadata, path: str, prefix: str, named: NamedSegments) -> None:
    """Collect locations: what follows the last `-` of names two levels below this znode that begin with the prefix, as
    `escape_name` encodes it."""
    for one in await _children(metadata, path):
        for name in await _children(metadata, f"{path}/{one}"):
            if name.startswith(prefix):
                named.names.add(unquote(name.rpartition("-")[2]))


async def _children(metadata: ZooKeeperMetadata, path: str) -> list[str]:
    try:
        return list((await metadata.zookeeper.children(path, fresh=True))[0])
    except NoNodeError:
        return []


async def _namespaces(metadata: ZooKeeperMetadata) -> list[str]:
    """Every namespace of this cluster."""
    zookeeper = metadata.zookeeper
    found: list[str] = []
    waiting = [("", 0)]
    looked = 0
    while waiting and looked < ZNODES_MAX:
        path, depth = waiting.pop(0)
        try:
            data, _ = await zookeeper.get(path or "/", fresh=not path)
            children = [] if depth == DEPTH_MAX else (await zookeeper.children(path or "/"))[0]
        except NoNodeError:
            continue
        looked += 1
        try:
            decode_binding(data)
        except (DamagedError, UnsupportedVersionError):
            waiting += [(f"{path}/{child}", depth + 1) for child in sorted(children) if path or child != "zookeeper"]
        else:
            found.append(path)
    return found


@asynccontextmanager
async def _opened(zookeeper: str, namespace: str) -> AsyncIterator[ZooKeeperMetadata]:
    async with await ZooKeeperMetadata.connect(zookeeper, namespace, rng=random.Random(os.urandom(8))) as metadata:
        yield metadata


def _text(metadata: LedgerMetadata) -> str:
    if not metadata.is_closed:
        return metadata.state.name.lower().replace("_", " ")
    return f"{metadata.last_entry + 1} entries, {metadata.length} bytes"


def _age(since_s: float | None) -> str:
    return "at an unknown time" if since_s is None else f"{since_s / 3600:.1f} h ago"
