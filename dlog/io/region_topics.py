"""The two topics of a region as peers of its state machines (dlog/region), and the driver that runs one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlog.errors import DLogError
from dlog.events import Event, RegionFailed
from dlog.io.driver import Driver
from dlog.io.kafka_topics import KafkaTopics
from dlog.machine import Machine, Received
from dlog.options import MiB
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
from dlog.region.topics import RecordBytes, Topics
from dlog.wire.region import RecordKind

READ_BYTES = 1 * MiB  # of a topic, at once
REQUESTS_MAX = 10_000  # pending requests of one machine


class RegionTopics:
    """The two topics of one region. paths: their names. is_owner: for the owner of the region; with the option
    `transactional_ids` Kafka's brokers then refuse what former owners append to the data topic.

    ids: of the topics, from before the region is loaded: only topics with these ids are read and changed, so that an
    owner whose region was deleted and created again acknowledges nothing, and does not touch the next one. Kafka cannot
    check ids: they are asked for before and after a change, and after a read. Batches in version 1 are not checked
    before, since one counts only behind its owner's fence. What a topic got between check and change stays there, not
    acknowledged; an entry in version 0 may count there. Empty: nothing is checked, as names of regions are not reused.
    """

    def __init__(
        self,
        topics: Topics,
        paths: Mapping[Topic, str],
        *,
        is_owner: bool = False,
        ids: Mapping[Topic, str] | None = None,
    ) -> None:
        self.topics = topics
        self.paths = paths
        self._ids = ids or {}
        self._owner = topics.new_owner() if is_owner and isinstance(topics, KafkaTopics) else None

    async def ask(self, topic: Topic, question: Question) -> Reply:
        """Perform a question. Raises what the topics raise."""
        topics, path, number = self.topics, self.paths[topic], question.number
        topic_id = self._ids.get(topic, "")
        match question:
            case AppendRecords(_, records):
                if not isinstance(topics, KafkaTopics):
                    return RecordsAppended(number, await topics.append(path, records, topic_id=topic_id))
                owner = self._owner if topic is Topic.DATA else None
                checks_first = topic is Topic.META or not _is_fenced(records)
                first = await topics.append(path, records, owner, topic_id=topic_id, checks_first=checks_first)
                return RecordsAppended(number, first)
            case ReadRecords(_, offset):
                found = await topics.read(path, offset, READ_BYTES)
                await self._check_id(topic)
                return RecordsRead(number, tuple(found))
            case AskOffsets():
                first, next = await topics.offsets(path)
                await self._check_id(topic)
                return OffsetsFound(number, first, next)
            case DeleteBefore(_, offset):
                await topics.delete_before(path, offset, topic_id=topic_id)
                return BeforeDeleted(number)

    async def _check_id(self, topic: Topic) -> None:
        """Raise TopicNotFoundError if what was just read of a topic in Kafka may be another topic's."""
        topic_id = self._ids.get(topic, "")
        if topic_id and isinstance(self.topics, KafkaTopics):
            await self.topics.check_id(self.paths[topic], topic_id)


def _is_fenced(records: Sequence[RecordBytes]) -> bool:
    """Whether these are entries that count only behind the fence of their owner, which those in version 0 have not."""
    key = records[0][0]
    return key[0] == RecordKind.ENTRY and key[-1] > 0  # its version


def region_driver(
    machine: Machine,
    name: str,
    topics: RegionTopics,
    on_event: Callable[[Event], None],
    *,
    requests_max: int = REQUESTS_MAX,
) -> Driver:
    """A driver for one machine of a region. The caller calls `begin` and `stop`."""

    async def perform(topic: Topic, question: Question) -> None:
        try:
            reply = await topics.ask(topic, question)
        except DLogError as error:
            reply = TopicFailed(question.number, error)
        driver.post(Received(topic, reply))

    def send(peer: Any, message: Any) -> None:
        driver.start(perform(peer, message), name=f"{name} {type(message).__name__}")

    driver = Driver(machine, name=name, send=send, on_event=on_event, requests_max=requests_max)
    return driver


def report_failure(on_event: Callable[[Event], None], region: int, error: Exception | None) -> None:
    """Report that a machine of a region ended with an error."""
    if error is not None:
        on_event(RegionFailed(region, "\n".join([repr(error), *getattr(error, "__notes__", ())])))
