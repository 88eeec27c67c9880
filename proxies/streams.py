"""A stream's metadata, read now or refused by name or by life."""

from __future__ import annotations

from typing import Any

from dlog.errors import MetadataUnavailableError, StreamNotFoundError
from dlog.io.metadata import Metadata
from dlog.machine import Conflict, Missing, OutcomeUnknown, Versioned
from dlog.model.ids import StreamName
from dlog.model.segment import StreamKey

_TRIES = 20  # to give a life to a stream that Java made and changes


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


async def check_life(metadata: Metadata, stream: StreamName, life: str) -> None:
    """Raises StreamNotFoundError if this life of the stream is gone, MetadataUnavailableError."""
    seen = await read_stream(metadata, stream)
    if seen.value.life != life:
        raise StreamNotFoundError(f"the stream was deleted, another has its name: stream={stream}")


async def which_life(metadata: Metadata, stream: StreamName) -> dict[str, Any]:
    """Which stream has this name now, as an answer to Life. One that has no life yet (Java made it) is given one.

    Raises MetadataUnavailableError.
    """
    for _ in range(_TRIES):
        deletions = await metadata.deletions()
        match await metadata.read(StreamKey(stream)):
            case Versioned(value, version) if not value.life:
                await metadata.compare_and_set(StreamKey(stream), value, version)  # each change of ours gives it one
            case Versioned(value):
                return {"life": value.life, "deleted": False, "deletions": deletions}
            case Missing(left=None):
                return {"life": None, "deleted": False, "deletions": deletions}
            case Missing(left=left):
                return {"life": left.value.life, "deleted": True, "deletions": deletions}
            case OutcomeUnknown(reason):
                raise MetadataUnavailableError(f"metadata cannot be read now: {reason}")
    raise MetadataUnavailableError(f"the stream changes as fast as it can be read: stream={stream}")
