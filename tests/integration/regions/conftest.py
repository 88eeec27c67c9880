"""The brokers of a module, and the service's own loop."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest
import uvloop

from dlog.io.kafka_topics import KafkaTopics
from loadtest.systems.java import KAFKA
from tests.integration.regions.kafka_cluster import KafkaCluster
from tests.parts import need


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers. A test that kills some starts them again."""
    need(shutil.which("java") is not None, "a JRE", "apt-get install openjdk-17-jre-headless")
    how = "python -m loadtest peers install kafka (needs Maven: apt-get install maven)"
    need(KAFKA.are_here(), "the jars of kafka", how)
    cluster = KafkaCluster()
    try:
        cluster.start(tmp_path_factory.mktemp("kafka"))
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
async def topics(brokers: KafkaCluster) -> AsyncIterator[KafkaTopics]:
    """A client of the brokers."""
    made = brokers.topics()
    yield made
    await made.close()
