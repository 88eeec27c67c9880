"""The port to topics of one partition: Kafka, a directory (dlog/io/file_topics.py), or a model in tests.

Invariants:
- records of one `append` are added together, all or none, and durable before it returns;
- offsets are given out in order and never twice; after an error of `append`, its records may be added or not, now or
  later;
- what `read` returned once stays what it was, until it is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dlog.errors import FencedError, InvalidRequestError

RecordBytes = tuple[bytes, bytes]  # key and value


class TopicNotFoundError(InvalidRequestError):
    """There is no such topic."""

    code = 557


class TopicExistsError(InvalidRequestError):
    """There is a topic of this name already."""

    code = 558


class OffsetOutOfRangeError(InvalidRequestError):
    """The offset was deleted, or is beyond the end. first, next: offsets that the topic has: first <= offset < next."""

    code = 559

    def __init__(self, message: str, first: int = 0, next: int = 0) -> None:
        super().__init__(message)
        self.first = first
        self.next = next


class UnsafeTopicError(InvalidRequestError):
    """The topic's settings could lose or reorder records; the message names them and how to change them."""

    code = 562


class OwnerRefusedError(FencedError):
    """The topic refuses this owner's appends from now on: another owner has begun. The append may be in the topic, if
    it was sent more than once."""

    code = 567


def topic_recreated(topic: str) -> TopicNotFoundError:
    """The error for a topic that has another id than the caller's."""
    return TopicNotFoundError(f"the topic was deleted and created again, close and open the region: topic={topic}")


class Stored(NamedTuple):
    """A record in a topic."""

    offset: int
    key: bytes
    value: bytes


class Topics(Protocol):
    """Topics by name. Every call may raise UnavailableError, and DamagedError for what does not verify. The docstring
    of dlog/region/topics.py lists what every implementation must guarantee."""

    async def create(self, topic: str) -> None:
        """Create a topic. Raises TopicExistsError."""
        ...

    async def exists(self, topic: str) -> bool: ...

    async def topic_id(self, topic: str) -> str | None:
        """The id of the topic, which no earlier and no later topic of the name has. "": the topic has no id; None:
        there is no such topic."""
        ...

    async def names(self, prefix: str) -> list[str]:
        """The topics whose names begin so, sorted."""
        ...

    async def check(self, topic: str) -> None:
        """Read the topic's settings, at every open. Raises TopicNotFoundError, and UnsafeTopicError if what was
        appended could be lost."""
        ...

    async def append(self, topic: str, records: Sequence[RecordBytes], *, topic_id: str = "") -> int:
        """Append records together; returns the offset of the first. Raises TopicNotFoundError, and ValueError for no
        records. A cancelled or failed call may have appended them, or still append them later.

        topic_id: only to the topic with this id, else TopicNotFoundError; "": to any."""
        ...

    async def read(self, topic: str, offset: int, bytes_max: int) -> Sequence[Stored]:
        """Read records from `offset` on: those of about bytes_max bytes, but at least one; none at the end.

        Raises TopicNotFoundError, OffsetOutOfRangeError.
        """
        ...

    async def offsets(self, topic: str) -> tuple[int, int]:
        """The first offset that is not deleted, and the next that is given out. Raises TopicNotFoundError."""
        ...

    async def delete_before(self, topic: str, offset: int, *, topic_id: str = "") -> None:
        """Delete the records below an offset, durably; those deleted before stay deleted. Raises TopicNotFoundError,
        OffsetOutOfRangeError beyond the end. topic_id: as in `append`."""
        ...

    async def delete(self, topic: str, topic_id: str = "") -> None:
        """Delete a topic. Idempotent. topic_id: only the topic with this id, and no later one of the name; "": any."""
        ...
