"""The metadata ports of a proxy; reads a stream's metadata and checks which incarnation of the stream it is."""

from __future__ import annotations

from typing import Any, Protocol

from dlog.errors import MetadataUnavailableError, StreamNotFoundError
from dlog.io.metadata import Membership, StreamMetadataStore, VersionedStore
from dlog.machine import Conflict, Missing, OutcomeUnknown, Versioned
from dlog.model.ids import StreamName
from dlog.model.segment import StreamKey, StreamMetadata
from dlog.wire.stream_metadata import settings_to_map

_TRIES = 20  # to set the incarnation of a stream that a Java program changes


class ProxyMetadata(StreamMetadataStore, Membership, Protocol):
    """The metadata that a proxy needs: of streams, and the registered bookies and proxies."""


async def read_stream(metadata: VersionedStore, stream: StreamName) -> Versioned:
    """The stream's current metadata. Raises StreamNotFoundError, MetadataUnavailableError."""
    outcome = await metadata.read(StreamKey(stream))
    match outcome:
        case Versioned():
            return outcome
        case Missing():
            raise StreamNotFoundError(f"no such stream, create it first: stream={stream}")
        case OutcomeUnknown(reason):
            raise MetadataUnavailableError(f"metadata cannot be read now: {reason}")
        case Conflict():
            raise AssertionError("a read has no version to conflict with")


async def read_incarnation(metadata: VersionedStore, stream: StreamName, incarnation: str) -> StreamMetadata:
    """The current metadata of this incarnation of the stream. Raises StreamNotFoundError if it is gone,
    MetadataUnavailableError."""
    value: StreamMetadata = (await read_stream(metadata, stream)).value
    if value.incarnation != incarnation:
        raise StreamNotFoundError(f"the stream was deleted and created again: stream={stream}")
    return value


async def current_incarnation(metadata: StreamMetadataStore, stream: StreamName) -> dict[str, Any]:
    """A stream's current incarnation, as the reply to GetIncarnation. Sets it if Java created the stream.

    Raises MetadataUnavailableError.
    """
    for _ in range(_TRIES):
        deletions = await metadata.deletions()
        match await metadata.read(StreamKey(stream)):
            case Versioned(value, version) if not value.incarnation:
                await metadata.compare_and_set(StreamKey(stream), value, version)  # every change by dlog sets it
            case Versioned(value):
                return _described(value, deleted=False, deletions=deletions)
            case Missing(left=None):
                return {"incarnation": None, "deleted": False, "deletions": deletions}
            case Missing(left=left):
                return _described(left.value, deleted=True, deletions=deletions)
            case OutcomeUnknown(reason):
                raise MetadataUnavailableError(f"metadata cannot be read now: {reason}")
    raise MetadataUnavailableError(f"the stream's metadata changes too often to be updated, try again: stream={stream}")


def _described(value: StreamMetadata, *, deleted: bool, deletions: int) -> dict[str, Any]:
    settings = {"settings": settings_to_map(value.settings), "settings_version": value.settings.version}
    return {"incarnation": value.incarnation, "deleted": deleted, "deletions": deletions, **settings}
