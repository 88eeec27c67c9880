"""Opens the segment store on regions.

The names of its topics begin with a namespace that the cluster's metadata records as the identity of the store. So two
clusters can share a Kafka; and a wrong address, where the topic that marks the namespace does not exist, is never taken
for one whose segments were deleted.

Invariants:
- The marker topic exists before the namespace is recorded.
- A recorded namespace is never replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

from dlog.errors import ConfigError, DLogError
from dlog.events import Event
from dlog.io.kafka_settings import KafkaOptions
from dlog.io.kafka_topics import KafkaTopics
from dlog.io.region_topics import RegionTopics, region_driver, report_failure
from dlog.io.topics import open_topics
from dlog.machine import Machine
from dlog.options import KiB
from dlog.region.items import RECORD_OVERHEAD_BYTES
from dlog.region.names import region_number, topic_names
from dlog.region.owner import RegionOwner
from dlog.region.topics import TopicExistsError, Topics
from dlog.stores.kafka.options import NAME
from dlog.stores.kafka.ports import FindNamespace, NoSegmentsYetError, RegionActor, StartActor, WrongTopicsError
from dlog.stores.kafka.store import KafkaStore, marker_topic, wrong_topics
from dlog.wire.entry import ENTRY_BYTES_MAX, ENVELOPE_BYTES

BATCH_SPARE_BYTES = 1 * KiB  # of a batch, for Kafka's own fields
START_TIMEOUT_S = 3.0  # for topics to answer when the store is opened
START_ATTEMPTS, START_RETRY_S = 3, 0.5
REQUESTS_MAX = 1_000_000  # pending appends of a region; their bytes are bounded where they are admitted


@asynccontextmanager
async def open_kafka_store(
    options: KafkaOptions,
    read_namespace: Callable[[], Awaitable[str | None]],
    record_namespace: Callable[[str], Awaitable[None]],
    rng: Random,
    *,
    creates: bool = False,
    on_event: Callable[[Event], None] = lambda _: None,
) -> AsyncIterator[KafkaStore]:
    """The store, open in the scope. creates: record a namespace if there is none, at the first use, and delete regions
    without segments from time to time. Raises ConfigError, with `creates` also if the topics answer and are not those
    with this cluster's segments; those that do not answer now may do later."""
    if not options.topics:
        raise ConfigError("the store needs an address: set `topics` in [kafka], or DLOG_KAFKA_TOPICS")
    batch_bytes_max = options.batch_bytes_max - BATCH_SPARE_BYTES
    needed = ENTRY_BYTES_MAX + ENVELOPE_BYTES + RECORD_OVERHEAD_BYTES
    if batch_bytes_max < needed:
        raise ConfigError(
            f"a batch must have room for the largest entry of a stream: section=[kafka] "
            f"batch_bytes_max={options.batch_bytes_max} at_least={needed + BATCH_SPARE_BYTES}"
        )
    topics = open_topics(options.topics, kafka=options)
    try:
        if creates:
            await _check_at_start(topics, options.topics, read_namespace)
        store = KafkaStore(
            topics,
            _finder(topics, options.topics, read_namespace, record_namespace, rng),
            _starter(topics, on_event),
            options,
            rng,
            batch_bytes_max=batch_bytes_max,
            is_synced=options.flush or not isinstance(topics, KafkaTopics),  # a directory is always synced
            sweeps=creates,
        )
        async with store:
            yield store
    finally:
        if isinstance(topics, KafkaTopics):
            await topics.close()


async def _check_at_start(topics: Topics, address: str, read: Callable[[], Awaitable[str | None]]) -> None:
    """Raise WrongTopicsError for a wrong address. A broker that has just started may not know every topic at once, so
    it is asked again."""
    recorded = await read()
    if recorded is None:
        return
    for _ in range(START_ATTEMPTS):
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                if await topics.exists(marker_topic(recorded)):
                    return
        except (DLogError, TimeoutError):
            return
        await asyncio.sleep(START_RETRY_S)
    raise WrongTopicsError(f"{wrong_topics(recorded)} topics={address}")


def _starter(topics: Topics, on_event: Callable[[Event], None]) -> StartActor:
    def start(namespace: str, region: str, machine: Machine) -> RegionActor:
        region_topics = RegionTopics(topics, topic_names(namespace, region), is_owner=isinstance(machine, RegionOwner))
        driver = region_driver(machine, f"region {region}", region_topics, on_event, requests_max=REQUESTS_MAX)
        driver.begin(lambda _, error: report_failure(on_event, region_number(region), error))
        return driver

    return start


def _finder(
    topics: Topics,
    address: str,
    read: Callable[[], Awaitable[str | None]],
    record: Callable[[str], Awaitable[None]],
    rng: Random,
) -> FindNamespace:
    async def find(*, creates: bool) -> str:
        recorded = await read()
        if recorded is None:
            if not creates:
                raise NoSegmentsYetError(f"this cluster has no segments in topics yet: store={NAME}")
            made = f"dlog-{rng.getrandbits(64):016x}"
            with suppress(TopicExistsError):
                await topics.create(marker_topic(made))
            await record(made)
            recorded = await read()
            if recorded != made:  # another process was faster
                await topics.delete(marker_topic(made))
            assert recorded is not None, "it was recorded"
        if not await topics.exists(marker_topic(recorded)):
            raise WrongTopicsError(f"{wrong_topics(recorded)} topics={address}")
        return recorded

    return find
