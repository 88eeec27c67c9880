"""Writes objects with entries to the object storage, those of uploads whole, those of compactions part by part."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dlog.model.object_streams import NodeId, ObjectId
from dlog.objects.node_messages import ObjectKeyTakenError, ObjectWritten, WriteObject
from dlog.options import KiB
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.port import Buffer, Creation, Objects
from dlog.stores.object_storage.seeking import SpanOf
from dlog.stores.s3.places import marker_of, object_location
from dlog.stores.s3.ports import FindObjects
from dlog.wire.stream_object import BLOCK_HEAD_BYTES, ObjectEncoder, ObjectEntry

THREAD_BYTES = 256 * KiB  # from here on objects are encoded in a thread


class ObjectWrites:
    """Writes objects of one node. span_of: see S3Store."""

    def __init__(self, objects: Objects, find_folder: FindObjects, span_of: SpanOf, node: NodeId) -> None:
        self._objects = objects
        self._find_folder = find_folder
        self._span_of = span_of
        self._node = node

    async def write(self, request: WriteObject) -> ObjectWritten:
        """Create an object; the first block's head, with its checksum, tells it from others under the same key.

        Raises ObjectKeyTakenError, StoreError.
        """
        folder = await self._find_folder()
        size = sum(len(entry.payload) for one in request.slices for entry in one.entries)
        if size >= THREAD_BYTES:
            parts = await asyncio.to_thread(encode_object, request, self._node, self._span_of)
        else:
            parts = encode_object(request, self._node, self._span_of)
        await self.create(
            folder, request.object, object_location(folder, request.object, self._node, request.node_epoch), parts
        )
        return ObjectWritten(sum(map(len, parts)), await self._objects.now_unix_ms(folder))

    async def create(self, folder: Location, object: ObjectId, location: Location, parts: Sequence[Buffer]) -> None:
        """Create an object, unless it is there with these bytes. Raises ObjectKeyTakenError, StoreError."""
        head = min(BLOCK_HEAD_BYTES, sum(map(len, parts)))
        made = await self._objects.create_if_absent(location, parts, head_bytes=head, marker=marker_of(folder))
        if made is not Creation.MADE:
            raise ObjectKeyTakenError(f"another object lies under the key: object={object} location={location}")


def encode_object(request: WriteObject, node: NodeId, span_of: SpanOf) -> list[Buffer]:
    """The parts of an object with these slices, and the spans of their entries."""
    encoder = ObjectEncoder(request.object, node, request.node_epoch)
    parts: list[Buffer] = []
    for data in request.slices:
        for offset, entry in enumerate(data.entries, data.slice.start):
            span = span_of(entry.payload) if entry.span is None else entry.span
            parts += encoder.add(data.slice.stream, offset, ObjectEntry(entry.payload, span))
    return [*parts, *encoder.finish()]
