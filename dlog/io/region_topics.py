"""The two topics of a region as peers of its state machines (dlog/region), and the driver that runs one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from dlog.region.topics import Topics
from dlog.wire.region import RecordKind

READ_BYTES = 1 * MiB  # of a topic, at once
REQUESTS_MAX = 10_000  # pending requests of one machine


class RegionTopics:
    """The two topics of one region. paths: their names. is_owner: for the owner of the region; with the option
    `transactional_ids` Kafka's brokers then refuse what former owners append to the data topic.

    ids: of the topics, from before the region is loaded: only topics with these ids are changed, so that an owner whose
    region was deleted and created again does not touch the next one. Not checked are entries that go to Kafka: a batch
    counts only behind its owner's fence. (Entries of format 0 have no fence, and may count in the next region: of that
    format callers see to it that one process writes.) Empty: nothing is checked, since names of regions are not reused.
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
                if isinstance(topics, KafkaTopics) and topic is Topic.DATA:
                    if records[0][0][0] == RecordKind.ENTRY:
                        topic_id = ""  # it would cost another request, and a batch counts only behind its owner's fence
                    if self._owner is not None:
                        first = await topics.append(path, records, self._owner, topic_id=topic_id)
                        return RecordsAppended(number, first)
                return RecordsAppended(number, await topics.append(path, records, topic_id=topic_id))
            case ReadRecords(_, offset):
                return RecordsRead(number, tuple(await topics.read(path, offset, READ_BYTES)))
            case AskOffsets():
                return OffsetsFound(number, *await topics.offsets(path))
            case DeleteBefore(_, offset):
                await topics.delete_before(path, offset, topic_id=topic_id)
                return BeforeDeleted(number)


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
