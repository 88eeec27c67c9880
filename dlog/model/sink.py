"""Batches of a sink: who writes them, which they are, and what is remembered of the last one.

A sink (a Spark query that writes to the stream, a copy job) numbers its batches and may repeat one whose outcome it
does not know, also after a restart. The stream remembers for each sink the last batch that was begun; which of two
programs may go on under one name is decided by `epoch`, given by a person: a higher one shuts out the lower.
"""

from __future__ import annotations

import enum
import hashlib
import re
from dataclasses import dataclass

from dlog.errors import InvalidRequestError

SINKS_MAX = 1000  # remembered of one stream

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}\Z", re.ASCII)


def sink_name(text: str) -> str:
    """The name of a sink, or of a query. Raises InvalidRequestError."""
    if not _NAME.match(text):
        raise InvalidRequestError(
            f"a sink's name is letters, digits and . _ : -, at most 200, a letter or digit first: name={text[:60]!r}"
        )
    return text


@dataclass(frozen=True, slots=True, order=True)
class SinkBatch:
    """One batch. sink: its name. query: which program counts, another one for each beginning from batch 0."""

    sink: str
    epoch: int
    query: str
    batch: int

    @property
    def producer(self) -> bytes:
        """Under which producer id the batch is appended, where it is: its own, so that it is appended once."""
        text = "\0".join((self.sink, str(self.epoch), self.query, str(self.batch)))
        return hashlib.blake2b(text.encode(), digest_size=16, person=b"dlog sink").digest()


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """The last batch of a sink. since: it is appended, and nothing of it lies below this segment and entry; None: it
    was taken in as segments, and is done."""

    last: SinkBatch
    since: tuple[int, int] | None = None


class Standing(enum.Enum):
    """What a batch is to what is remembered of its sink."""

    NEW = 0
    REPEATED = 1  # the last one, which is appended, or was to be
    DONE = 2
    SHUT_OUT = 3  # a program of a higher epoch writes
    ANOTHER = 4  # another program writes under the same epoch


def standing(record: SinkRecord | None, batch: SinkBatch) -> Standing:
    """Judge a batch."""
    if record is None or batch.epoch > record.last.epoch:
        return Standing.NEW
    if batch.epoch < record.last.epoch:
        return Standing.SHUT_OUT
    if batch.query != record.last.query:
        return Standing.ANOTHER
    if batch.batch > record.last.batch:
        return Standing.NEW
    return Standing.REPEATED if batch == record.last and record.since is not None else Standing.DONE
