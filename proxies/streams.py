"""A stream's metadata, read now or refused by name."""

from __future__ import annotations

from dlog.errors import MetadataUnavailableError, StreamNotFoundError
from dlog.io.metadata import Metadata
from dlog.machine import Conflict, Missing, OutcomeUnknown, Versioned
from dlog.model.ids import StreamName
from dlog.model.segment import StreamKey


async def read_stream(metadata: Metadata, stream: StreamName) -> Versioned:
    """The stream's metadata, read now. Raises StreamNotFoundError, MetadataUnavailableError."""
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
