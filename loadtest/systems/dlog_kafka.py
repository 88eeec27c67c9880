"""dlog with its streams in topics of three Kafka brokers: `dlog-kafka`.

A `dlog up` with one idle bookie (without any, it would offer the store `file` only), whose proxies find the brokers by
DLOG_KAFKA_TOPICS. The brokers are those of
`kafka-aiokafka` with the same options, and stay for later turns of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlog.region.messages import Topic
from loadtest.systems.base import CannotRunError, Durability, Node
from loadtest.systems.dlog import Dlog
from loadtest.systems.kafka import KafkaSystem

BROKERS = "brokers."  # before the options that the brokers get
STORE = "kafka"


class DlogKafka(Dlog):
    """A cluster of proxies, and brokers. The storage node of a log is the leader of the topic that it is written to."""

    name = "dlog-kafka"
    owner_role = "write"
    storage_role = "broker"
    start_s = 15.0

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._brokers = KafkaSystem("kafka-aiokafka")
        self._flush = variant != "dlog-kafka-default"
        replicas = "all in-sync replicas of a topic (at least 2 of 3)"
        self.durability = (
            Durability("F", f"fdatasync of every appended batch on {replicas} before the acknowledgement")
            if self._flush
            else Durability("P", f"in the page cache of {replicas} before the acknowledgement")
        )

    def lacks(self, feature: str) -> str | None:
        return "the leader is killed in W27" if feature == "storage" else super().lacks(feature)

    async def start(self, room: Path, options: Mapping[str, str]) -> None:
        theirs = {key.removeprefix(BROKERS): value for key, value in options.items() if key.startswith(BROKERS)}
        await self._brokers.start(room / "brokers", {"shared": "true", "aiokafka": "true", **theirs})
        address = f"kafka://{self._brokers.address()['bootstrap']}"
        self.environment = {"DLOG_KAFKA_TOPICS": address, "DLOG_KAFKA_FLUSH": str(self._flush).lower()}
        await super().start(room, {k: v for k, v in options.items() if not k.startswith(BROKERS)} | {"bookies": "1"})

    async def stop(self) -> None:
        try:
            await super().stop()
        finally:
            await self._brokers.stop()

    async def end_run(self) -> None:
        await self._brokers.end_run()

    def processes(self) -> Mapping[str, Sequence[int]]:
        return {**super().processes(), **self._brokers.processes()}

    def versions(self) -> Mapping[str, str]:
        return {**super().versions(), **self._brokers.versions()}

    def configuration(self) -> Mapping[str, Any]:
        return {"store": STORE, "flush.messages": 1 if self._flush else "default (never)", **self._options}

    async def create(self, log: str) -> None:
        assert self._client is not None, "started"
        await self._client.create(log, store=STORE)

    # ---- faults -----------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        return [*super().nodes(), *self._brokers.nodes()]

    async def leader(self, log: str) -> str:
        """The leader of the data topic of the region that the log's last segment is in."""
        assert self._client is not None, "started"
        region = (await self._client.stat(log)).segments[-1].location.partition("/")[0]
        for topic in await self._brokers.topics():
            if topic.endswith(f".{Topic.DATA}.{region}"):
                return await self._brokers.owner(topic)
        raise CannotRunError(f"no topic has the log's region: log={log} region={region}")

    async def kill(self, node: str) -> None:
        await (self._brokers.kill(node) if self._is_broker(node) else super().kill(node))

    async def revive(self, node: str) -> None:
        await (self._brokers.revive(node) if self._is_broker(node) else super().revive(node))

    async def pause(self, node: str) -> None:
        await (self._brokers.pause(node) if self._is_broker(node) else super().pause(node))

    async def resume(self, node: str) -> None:
        await (self._brokers.resume(node) if self._is_broker(node) else super().resume(node))

    async def restart(self, node: str) -> None:
        await (self._brokers.restart(node) if self._is_broker(node) else super().restart(node))

    async def whole(self) -> None:
        await self._brokers.whole()
        await self._brokers.replicated(await self._brokers.topics())
        await super().whole()

    async def kill_all(self) -> None:
        await super().kill_all()
        await self._brokers.kill_all()

    async def start_all(self) -> None:
        await self._brokers.start_all()
        await super().start_all()

    def _is_broker(self, node: str) -> bool:
        return any(one.name == node for one in self._brokers.nodes())
