"""Deletes a stream's metadata at once, for tests of the effect on others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from dlog.io.metadata import StreamMetadataStore
from dlog.machine import Key, Outcome, Versioned
from dlog.model.ids import StreamName
from dlog.model.segment import StreamKey

Read = Callable[[Key], Awaitable[Outcome]]


async def mark_deleted(metadata: StreamMetadataStore, stream: StreamName, read: Read | None = None) -> str:
    """Mark the stream as deleted and keep its remaining metadata; returns its incarnation. read: instead of the
    metadata's own."""
    found = await (read or metadata.read)(StreamKey(stream))
    assert isinstance(found, Versioned), found
    dead = replace(found.value, owner=replace(found.value.owner, deleted=True))
    marked = await metadata.compare_and_set(StreamKey(stream), dead, found.version)
    assert isinstance(marked, Versioned), marked
    return str(marked.value.incarnation)


async def delete_stream(metadata: StreamMetadataStore, stream: StreamName, read: Read | None = None) -> None:
    """Mark the stream as deleted and remove it; nothing happens if there is none."""
    if isinstance(await (read or metadata.read)(StreamKey(stream)), Versioned):
        await metadata.remove(stream, await mark_deleted(metadata, stream, read))
