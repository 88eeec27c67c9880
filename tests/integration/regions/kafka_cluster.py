"""Three Kafka brokers of a test module, which tests may kill and start again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient

from dlog.io.kafka_settings import KafkaTopicsOptions
from dlog.io.kafka_topics import KafkaTopics
from dlog.region.topics import Stored, Topics
from loadtest.systems.java import KAFKA, jvm, run
from loadtest.systems.kafka import KafkaSystem
from loadtest.systems.nodes import Server

TOOL_S = 120.0


class _System(KafkaSystem):
    """Brokers that create a topic when a client asks for it by name, as is Kafka's default, start soon, and look every
    second for what a topic's retention deletes."""

    def _plan_broker(self, home: Path, number: int, port: int, controller: int, voters: str) -> Server:
        server = super()._plan_broker(home, number, port, controller, voters)
        with (home / "server.properties").open("a") as config:
            config.write("auto.create.topics.enable=true\n")
            config.write("log.initial.task.delay.ms=1000\nlog.retention.check.interval.ms=1000\n")
        java, *arguments = server.command
        server.command = (java, "-XX:TieredStopAtLevel=1", *arguments)  # starts sooner, runs slower
        return server


class KafkaCluster:
    """Brokers 1 to 3, of Kafka's own jars. They create topics that clients ask for."""

    def __init__(self) -> None:
        self._system = _System("kafka")

    def start(self, room: Path) -> None:
        """Start it on empty directories."""
        asyncio.run(self._system.start(room, {"heap_mib": "256"}))

    def stop(self) -> None:
        """Kill all brokers. Idempotent."""

        async def stop() -> None:
            await self._system.kill_all()
            await self._system.stop()

        asyncio.run(stop())

    @property
    def address(self) -> str:
        """As KafkaTopics takes it."""
        return f"kafka://{self.bootstrap}"

    @property
    def bootstrap(self) -> str:
        return str(self._system.address()["bootstrap"])

    def topics(self, **options: object) -> KafkaTopics:
        """A client, to be closed."""
        return KafkaTopics(self.address, KafkaTopicsOptions(**options))  # type: ignore[arg-type]

    async def kill(self, broker: int) -> None:
        await self._system.kill(f"broker-{broker}")

    async def kill_all(self) -> None:
        await self._system.kill_all()

    async def revive(self) -> None:
        """Start the brokers that do not run; return when all serve."""
        await self._system.start_all()
        await self._system.whole()

    def tool(self, main: str, *arguments: str) -> str:
        """Run one of Kafka's tools; its output."""
        told = ("--bootstrap-server", self.bootstrap, *arguments)
        command = jvm(KAFKA, main, *told, heap_mib=128, flags=("-XX:TieredStopAtLevel=1",))
        return run(command, TOOL_S)


@asynccontextmanager
async def admin(brokers: KafkaCluster) -> AsyncIterator[AIOKafkaAdminClient]:
    """aiokafka's admin client, for what KafkaTopics does not do."""
    client = AIOKafkaAdminClient(bootstrap_servers=brokers.bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def read_all(topics: Topics, topic: str, bytes_max: int = 1 << 20) -> list[Stored]:
    """All records of a topic, read in steps."""
    offset, _ = await topics.offsets(topic)
    found: list[Stored] = []
    while some := await topics.read(topic, offset, bytes_max):
        found += some
        offset = some[-1].offset + 1
    return found


async def leader(topics: KafkaTopics, topic: str) -> int:
    """The broker that leads a topic."""
    while True:
        layout = await topics._brokers.describe(topic)
        if layout is not None and layout.leader > 0:
            return layout.leader
        await asyncio.sleep(0.1)
