"""`dlog explain`: shows where a record is stored, from its DLSN down to the bookies, the file or the topic."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING, Any

import click

from dlog.cli.discovery import Cluster, all_cluster_options, find_cluster
from dlog.cli.ledgers import describe_placement, ledgers_of, placement_text
from dlog.cli.output import CommandError, say, say_json
from dlog.cli.streams import truncation_text
from dlog.client.client import connect as connect_to
from dlog.errors import DLogError
from dlog.log.dedup_trailer import decode_trailer, is_note
from dlog.model import dlsn as dlsns
from dlog.model.dlsn import DLSN
from dlog.model.ids import NO_ENTRY, EntryId, LedgerId, SegmentNumber, stream_name
from dlog.stores.contract import SegmentNotFoundError, SegmentRef
from dlog.stores.file.format import ENTRY_HEAD
from dlog.wire.entry import decode_entry, record_set_count

if TYPE_CHECKING:
    from dlog.model.object_streams import NodeId, ObjectStreamId
    from dlog.objects.image import Image
    from dlog.stores.s3.store import S3Store


@click.command()
@click.argument("stream")
@click.argument("dlsn")
@all_cluster_options
def explain(
    stream: str,
    dlsn: str,
    hosts: str | None,
    namespace: str | None,
    connect: str | None,
    directory: str | None,
    as_json: bool,
) -> None:
    """Show where the record of STREAM at DLSN is stored: segment, ledger and bookies, file, topic of Kafka, object or
    write-ahead log, entry, and its batch."""
    stream_name(stream)
    at = dlsns.parse(dlsn)
    cluster = find_cluster(
        connect=connect,
        hosts=hosts,
        namespace=namespace,
        directory=directory,
        need_proxies=True,
        need_zookeeper=True,
    )
    fields = asyncio.run(_explain(stream, at, cluster))
    if as_json:
        say_json(fields)
        return
    for key, value in fields.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        say(f"{key.replace('_', ' '):<12} {text}")


async def _explain(stream: str, at: DLSN, cluster: Cluster) -> dict[str, Any]:
    async with connect_to(cluster.connect) as client:
        await client.reach()
        stat = await client.stat(stream)
    segment = next((s for s in stat.segments if s.number == at.segment), None)
    if segment is None:
        raise CommandError(
            f"the stream does not have this segment (any more): stream={stream} segment={at.segment}",
            f"`dlog show {stream}` lists its segments",
            misused=False,
        )
    state = "completed" if segment.is_completed else "in progress"
    fields: dict[str, Any] = {
        "stream": stream,
        "dlsn": str(at),
        "segment": f"{at.segment} ({state}, {truncation_text(segment)})",
        "store": segment.store,
        "location": segment.location,
    }
    if segment.store == "file":
        return fields | await _in_file(stream, at, segment.location, cluster)
    if segment.store == "kafka":
        return fields | await _in_topic(stream, at, segment.location, cluster)
    if segment.store == "s3-direct":
        return fields | await _in_objects(stream, at, segment.location, cluster)
    if segment.store == "s3":
        return fields | await _in_shared_objects(stream, at, segment.location, cluster)
    if segment.store != "ledger":
        return fields
    async with ledgers_of(cluster.zookeeper, cluster.namespace, None) as ledgers:
        ledger = LedgerId(int(segment.location))
        metadata = await ledgers.metadata_of(ledger)
        fields["ledger"] = f"{ledger} ({metadata.state.name.lower().replace('_', ' ')})"
        fields["bookies"] = list(metadata.bookies_of(at.entry))
        fields["placement"] = placement_text(describe_placement(ledgers, metadata))
        confirmed = await ledgers.last_confirmed(ledger)
        if not 0 <= at.entry <= confirmed:
            fields["entry"] = f"{at.entry} is not confirmed; the last confirmed entry is {confirmed}"
            return fields
        reader = await ledgers.open(ledger)
        reader.learn_lac(confirmed)
        try:
            [payload] = await reader.read(EntryId(at.entry), EntryId(at.entry), 1)
            fields |= describe_entry(payload, at.slot)
        except DLogError as error:
            fields["entry"] = f"cannot be read: {error.message}"
        await reader.close()
    return fields


async def _in_file(stream: str, at: DLSN, location: str, cluster: Cluster) -> dict[str, Any]:
    """The segment's file, and where the entry is in it."""
    from dlog.io.stores import open_file_store

    options = cluster.stores().file
    if not options.directory:
        return {"entry": "not read: set DLOG_FILE_DIRECTORY to the directory of the segments, on their machine"}
    fields: dict[str, Any] = {}
    async with open_file_store(options, random.Random(os.urandom(8))) as store:
        try:
            file = await store.describe(location)
            reader = await store.open_reader(SegmentRef(stream_name(stream), SegmentNumber(at.segment), location))
            end = reader.end
            confirmed = await reader.wait_lac(NO_ENTRY, 0.0)
            state = "being written" if end is None else f"ended, last entry {end}"
            fields["file"] = f"{file.path} ({file.bytes:,} bytes, {state})"
            if not 0 <= at.entry <= confirmed:
                fields["entry"] = f"{at.entry} is not confirmed; the last confirmed entry is {confirmed}"
                return fields
            offset = await reader.offset_of(EntryId(at.entry))
            if offset is not None:
                fields["offset"] = f"{offset}, its payload from {offset + ENTRY_HEAD.size}"
            [payload] = await reader.read(EntryId(at.entry), EntryId(at.entry), 1)
            fields |= describe_entry(payload, at.slot)
        except DLogError as error:
            fields["entry"] = f"cannot be read: {error.message}"
    return fields


async def _in_objects(stream: str, at: DLSN, location: str, cluster: Cluster) -> dict[str, Any]:
    """The segment's folder, and the object that has the entry."""
    from dlog.io.s3_direct_store import open_s3_direct_store
    from dlog.io.zookeeper_metadata import ZooKeeperMetadata

    options = cluster.stores().objects
    if not options.root:
        return {"entry": "not read: set DLOG_OBJECTS_ROOT to the root of the objects"}
    fields: dict[str, Any] = {}
    ref, rng = SegmentRef(stream_name(stream), SegmentNumber(at.segment), location), random.Random(os.urandom(8))
    async with (
        await ZooKeeperMetadata.connect(cluster.zookeeper, cluster.namespace, rng=rng) as metadata,
        open_s3_direct_store(
            options,
            lambda: metadata.read_store_identity("s3-direct"),
            lambda identity: metadata.record_store_identity("s3-direct", identity),
            rng,
        ) as store,
    ):
        try:
            tail = await store.tail(location)
            state = "ended" if tail.is_ended else "being written"
            folder = await store.folder_of(location)
            fields["objects"] = f"{folder} ({state}, {tail.end} entries, {tail.payload_bytes:,} bytes)"
            if not 0 <= at.entry < tail.end:
                fields["entry"] = f"{at.entry} is not confirmed; the last confirmed entry is {tail.end - 1}"
                return fields
            reader = await store.open_reader(ref)
            fields["object"] = await reader.object_of(EntryId(at.entry))
            [payload] = await reader.read(EntryId(at.entry), EntryId(at.entry), 1)
            fields |= describe_entry(payload, at.slot)
        except DLogError as error:
            fields["entry"] = f"cannot be read: {error.message}"
    return fields


async def _in_shared_objects(stream: str, at: DLSN, location: str, cluster: Cluster) -> dict[str, Any]:
    """The segment's object stream, and the object, or the entry of the node's write-ahead log, that has the entry."""
    from dlog.cli.object_access import open_objects
    from dlog.objects.search import find_objects
    from dlog.stores.s3.places import object_location, parse_place, range_of

    if not cluster.stores().objects.root:
        return {"entry": "not read: set DLOG_OBJECTS_ROOT to the root of the objects"}
    fields: dict[str, Any] = {}
    ref = SegmentRef(stream_name(stream), SegmentNumber(at.segment), location)
    async with open_objects(cluster) as access:
        store = access.store
        try:
            place = parse_place(location)
            end = await store.find_tail(ref)
            image = await access.fresh()
            found = range_of(image, place)
            if found is None:
                raise SegmentNotFoundError(f"no such segment, it was deleted: location={location}")
            state = "being written" if found.end is None else "ended"
            fields["node"] = found.node
            fields["entries"] = f"{end + 1} ({state}, {found.committed - found.start} of them uploaded)"
            if not 0 <= at.entry <= end:
                fields["entry"] = f"{at.entry} is not confirmed; the last confirmed entry is {end}"
                return fields
            offset = found.start + at.entry
            objects = find_objects(image, place.stream, offset, offset + 1, 1).objects
            if objects:
                node, node_epoch = image.objects.owner(objects[0].object)
                folder = (await access.root()).below(await access.folder())
                fields["object"] = str(object_location(folder, objects[0].object, node, node_epoch))
                shared = "an object for many segments" if objects[0].is_set_object else "an object of this segment only"
                first, last = objects[0].start - found.start, objects[0].end - found.start - 1
                fields["holds"] = f"entries {first} to {last} of the segment, {shared}"
            else:
                fields["log"] = await _in_log(store, image, found.node, place.stream, offset)
            reader = await store.open_reader(ref)
            reader.learn_lac(end)
            [payload] = await reader.read(EntryId(at.entry), EntryId(at.entry), 1)
            fields |= describe_entry(payload, at.slot)
        except DLogError as error:
            fields["entry"] = f"cannot be read: {error.message}"
    return fields


async def _in_log(store: S3Store, image: Image, node: NodeId, stream: ObjectStreamId, offset: int) -> str:
    """Where in the write-ahead log of a node an entry is that is not uploaded."""
    async with store.followers.use(node) as follower:
        await follower.catch_up()
        position = follower.place_of(stream, offset)
    segments = image.nodes[node].wal if node in image.nodes else []
    segment = next((one for one in segments if position is not None and one.number == position.segment), None)
    if position is None or segment is None:
        return f"of {node}; the entry is being uploaded just now, ask again"
    return f"entry {position.entry} of {segment.store} {segment.name}, segment {segment.number} of the log of {node}"


async def _in_topic(stream: str, at: DLSN, location: str, cluster: Cluster) -> dict[str, Any]:
    """The segment's region, table and topic, and where the entry is in it."""
    from dlog.io.kafka_store import open_kafka_store
    from dlog.io.zookeeper_metadata import ZooKeeperMetadata
    from dlog.stores.kafka.locations import parse_location

    options = cluster.stores().kafka
    if not options.topics:
        return {"entry": "not read: set DLOG_KAFKA_TOPICS to the address of the topics"}
    table = parse_location(location)
    fields: dict[str, Any] = {"region": table.region, "table": str(table.table)}
    name, rng = SegmentRef(stream_name(stream), SegmentNumber(at.segment), location), random.Random(os.urandom(8))
    async with (
        await ZooKeeperMetadata.connect(cluster.zookeeper, cluster.namespace, rng=rng) as metadata,
        open_kafka_store(
            options,
            lambda: metadata.read_store_identity("kafka"),
            lambda identity: metadata.record_store_identity("kafka", identity),
            rng,
        ) as store,
    ):
        try:
            found = await store.describe(location)
            state = "ended" if found.has_ended else "being written"
            fields["table"] = f"{table.table} ({state}, {found.entries} entries, {found.payload_bytes:,} bytes)"
            fields["topic"] = f"{found.topic} at {options.topics}"
            if not 0 <= at.entry < found.entries:
                fields["entry"] = f"{at.entry} is not confirmed; the last confirmed entry is {found.entries - 1}"
                return fields
            fields["sequence"] = at.entry + 1
            offset = await store.find_offset(location, EntryId(at.entry))
            if offset is not None:
                fields["offset"] = offset
            reader = await store.open_reader(name)
            reader.learn_lac(EntryId(found.entries - 1))
            [payload] = await reader.read(EntryId(at.entry), EntryId(at.entry), 1)
            fields |= describe_entry(payload, at.slot)
        except DLogError as error:
            fields["entry"] = f"cannot be read: {error.message}"
    return fields


def describe_entry(payload: bytes, slot: int) -> dict[str, Any]:
    """Describe the contents of an entry, and the record at a slot of it."""
    fields: dict[str, Any] = {}
    slots, found = 0, "nothing: the entry has fewer slots"
    records = decode_entry(payload, expand=False)
    for record in records:
        count = record_set_count(record.payload) if record.is_set else 1
        if record.slot <= slot < record.slot + count:
            if record.is_set:
                found = f"record {slot - record.slot} of a batch of {count}, txid {record.txid}"
            elif record.is_user:
                found = f"a record of {len(record.payload)} bytes, txid {record.txid}"
            else:
                found = "the end of the stream" if record.is_end_of_stream else "a control record, which readers skip"
        slots += count
    fields["entry"] = f"{len(payload)} bytes, {len(records)} stored records, {slots} slots"
    fields["slot"] = f"{slot}: {found}"
    note = next((decode_trailer(r.payload) for r in records if r.is_control and is_note(r.payload)), None)
    if note is not None:
        fields["taken"] = f"unix ms {note.unix_ms}"
        for batch in note.batches:
            if batch.slot <= slot < batch.slot + batch.records:
                fields["producer"] = f"{batch.producer.hex()}, sequence {batch.sequence + slot - batch.slot}"
                fields["crc32c"] = f"{batch.crc:08x}"
    return fields
