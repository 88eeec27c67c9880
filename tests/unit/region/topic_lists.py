"""Topics as lists, for tests of a region's machines."""

from __future__ import annotations

from dlog.region.counting import Batch, Checkpoint, Entry, Item, RegionFence
from dlog.region.items import records_of
from dlog.region.loading import UNUSABLE, RegionLoader
from dlog.region.messages import (
    AppendRecords,
    AskOffsets,
    BeforeDeleted,
    DeleteBefore,
    OffsetsFound,
    Question,
    ReadRecords,
    RecordsAppended,
    RecordsRead,
    Reply,
    Topic,
    TopicFailed,
)
from dlog.region.state import RegionState
from dlog.region.topics import OffsetOutOfRangeError, RecordBytes, Stored
from dlog.wire.region import encode_snapshot

REGION = 9
NONCE, OTHER = b"n" * 16, b"o" * 16


def fence(epoch: int = 1, nonce: bytes = NONCE) -> RegionFence:
    return RegionFence(nonce, epoch)


def batch(number: int, *entries: tuple[int, int], nonce: bytes = NONCE) -> Batch:
    """A batch of entries, each a table and a sequence; the payload tells both."""
    return Batch(
        nonce, number, tuple(Entry(table, sequence, b"%d/%d" % (table, sequence)) for table, sequence in entries)
    )


def checkpoint(state: RegionState) -> Checkpoint:
    return Checkpoint(encode_snapshot(state.snapshot()))


def encoded(item: Item, region: int = REGION) -> list[RecordBytes]:
    epoch = item.epoch if isinstance(item, RegionFence) else 1
    nonce = item.nonce if isinstance(item, RegionFence | Batch) else NONCE
    return records_of(region, epoch, nonce, item)


class TopicList:
    """A topic. first: offset of the first record that is not deleted."""

    def __init__(self, *items: Item) -> None:
        self.log: list[RecordBytes] = []
        self.first = 0
        for item in items:
            self.add(item)

    def add(self, item: Item) -> int:
        return self.append(encoded(item))

    def append(self, records: list[RecordBytes]) -> int:
        self.log += records
        return len(self.log) - len(records)

    def stored(self, offset: int, upto: int | None = None) -> list[Stored]:
        return [Stored(at, *self.log[at]) for at in range(offset, len(self.log) if upto is None else upto)]

    def answer(self, question: Question, records_max: int = 2) -> Reply:
        """Answer a question; a read with at most records_max records."""
        number = question.number
        match question:
            case AppendRecords(_, records):
                return RecordsAppended(number, self.append(list(records)))
            case ReadRecords(_, offset):
                if not self.first <= offset <= len(self.log):
                    error = OffsetOutOfRangeError(f"not there: offset={offset}", self.first, len(self.log))
                    return TopicFailed(number, error)
                return RecordsRead(number, tuple(self.stored(offset)[:records_max]))
            case AskOffsets():
                return OffsetsFound(number, self.first, len(self.log))
            case DeleteBefore(_, offset):
                self.first = max(self.first, offset)
                return BeforeDeleted(number)


def loaded(data: TopicList, meta: TopicList | None = None, *, skips: bool = False) -> RegionLoader:
    """A loader that is done. Raises DamagedError, UnsupportedVersionError."""
    topics = {Topic.DATA: data, Topic.META: meta or TopicList()}
    numbers = iter(range(1, 1000))
    loader = RegionLoader(REGION, lambda: next(numbers), map_every=1, skipped=UNUSABLE if skips else ())
    asking = loader.begin()
    while True:
        topic, question = asking
        following = loader.handle(topics[topic].answer(question))
        if following is None:
            return loader
        asking = following
