"""Apache Kafka as a peer: three KRaft nodes (broker and controller), replication factor 3, min.insync.replicas 2.

With `flush`, every broker syncs each batch before it answers (class F, as dlog); without, as is Kafka's default,
records are acknowledged from page caches (class P). Broker sessions are short, for Kafka's fastest failover. A log is a
topic of one partition.

With `shared`, the brokers of the first turn serve every later turn of the run (`end_run` kills them), so that systems
with the same options are compared on the same brokers. With `aiokafka`, every load uses the Python client, on topics
with the settings of dlog's regions.
Source: the dependencies notes, section 3, and Kafka's configuration reference.
"""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
import tempfile
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, NoError, TopicAlreadyExistsError, for_code
from aiokafka.producer.message_accumulator import BatchBuilder

from dlog.io.kafka_settings import BATCH_OVERHEAD_BYTES, KafkaTopicsOptions, topic_configs
from loadtest.systems.base import (
    Acked,
    CannotRunError,
    Client,
    Durability,
    Flavour,
    OnAnswer,
    Position,
    Refused,
    System,
    Variant,
    Writer,
)
from loadtest.systems.java import KAFKA, FetchFailedError, classes_of, java_version, jvm, run
from loadtest.systems.nodes import (
    HOST,
    READY_S,
    Ports,
    Server,
    ServerFailedError,
    ServerSystem,
    known_options,
    listens,
    option_bool,
    option_int,
    start_together,
)

GENERATOR = ("Generator", "Job", "Tally", "History", "Histogram", "Records", "Verifier", "Peer", "KafkaPeer")
FORMAT_S = 120.0
STEP_S = 0.1
ASK_MS = 5000
ASK_MANY_MS = 60_000  # timeout of a request that creates many topics
CREATE_TOPICS = 500  # topics per request
READ_RECORDS = 10_000
OPTIONS = {
    "brokers": "3",
    "replicas": "3",
    "in_sync": "2",
    "flush": "true",
    "heap_mib": "384",
    "client_heap_mib": "1024",
    "request_timeout_ms": "5000",
    "linger_ms": "",
    "batch_size": "",
    "shared": "false",
    "aiokafka": "false",
}
_BOOLEANS = ("flush", "shared", "aiokafka")
APPEND_BYTES = 1_000_000
RECORD_MAX_BYTES = 21  # what Kafka adds to a record, at most


class _SharedBrokers:
    """Running brokers that no turn uses now, and the directory that their data is in. A run has one such set."""

    def __init__(self, options: Mapping[str, str], room: Path, servers: list[Server], ports: Ports) -> None:
        self.options = options
        self.room = room
        self.servers = servers
        self.ports = ports

    def end(self) -> None:
        for server in self.servers:
            server.kill()
        self.ports.close()
        shutil.rmtree(self.room, ignore_errors=True)


_shared: list[_SharedBrokers] = []  # at most one


class KafkaSystem(ServerSystem):
    """Brokers. The owner of a log is the leader of its partition."""

    name: ClassVar[str] = "kafka"
    owner_role: ClassVar[str] = "broker"
    storage_role: ClassVar[str] = "broker"
    start_s: ClassVar[float] = 11.0

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._options: dict[str, str] = dict(OPTIONS)
        self._numbers: dict[str, int] = {}
        self._flush = True
        self._topics: list[str] = []
        self._admin: AIOKafkaAdminClient | None = None
        self._asking = asyncio.Lock()
        self._own_room: Path | None = None  # of shared brokers

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _choose(self, options: Mapping[str, str]) -> None:
        known_options(self.name, options, OPTIONS)
        self._options = {**OPTIONS, **options}
        self._numbers = {
            k: option_int(self._options, k, 0, 0) for k, v in self._options.items() if v and k not in _BOOLEANS
        }
        self._is_shared, self._is_aiokafka = (option_bool(self._options, key, False) for key in _BOOLEANS[1:])
        self._flush = option_bool(self._options, "flush", True)
        numbers = self._numbers
        if not 1 <= numbers["in_sync"] <= numbers["replicas"] <= numbers["brokers"]:
            raise ValueError("must hold: 1 <= in_sync <= replicas <= brokers")
        replicas = f"all in-sync replicas (at least {numbers['in_sync']} of {numbers['replicas']})"
        self.durability = (
            Durability("F", f"fdatasync of every appended batch on {replicas} before the acknowledgement")
            if self._flush
            else Durability("P", f"in the page cache of {replicas} before the acknowledgement")
        )

    async def start(self, room: Path, options: Mapping[str, str]) -> None:
        self._choose(options)
        if not self._is_shared:
            await super().start(room, options)
            return
        if _shared:
            found = _shared.pop()
            if found.options == self._broker_options:
                self._own_room, self._servers, self._ports = found.room, found.servers, found.ports
                await super().whole()
                return
            found.end()
        self._own_room = Path(tempfile.mkdtemp(prefix="loadtest-brokers-"))
        await super().start(self._own_room, options)

    async def stop(self) -> None:
        if self._own_room is None or self._ports is None or not self._servers:
            await super().stop()
            if self._own_room is not None:
                shutil.rmtree(self._own_room, ignore_errors=True)
            return
        await self._delete_topics()
        await self._close_admin()
        _shared.append(_SharedBrokers(self._broker_options, self._own_room, self._servers, self._ports))
        self._servers, self._ports, self._own_room = [], None, None

    async def end_run(self) -> None:
        while _shared:
            _shared.pop().end()

    @property
    def _broker_options(self) -> dict[str, str]:
        """The options that brokers depend on: those of topics and clients may differ between turns."""
        return {key: self._options[key] for key in ("brokers", "replicas", "in_sync", "heap_mib")}

    async def topics(self) -> list[str]:
        """The names of all topics but Kafka's own, as a broker lists them."""
        admin = await self._ask()
        return [name for name in await admin.list_topics() if not name.startswith("__")]

    async def _delete_topics(self) -> None:
        """Delete all topics but Kafka's own, as far as brokers answer."""
        try:
            names = await self.topics()
            if names:
                await (await self._ask()).delete_topics(names, timeout_ms=ASK_MANY_MS)
        except (KafkaError, OSError):
            await self._close_admin()

    async def _plan(self, room: Path, ports: Ports) -> list[Server]:
        KAFKA.need()
        self._topics.clear()
        count = self._numbers["brokers"]
        taken = ports.take(2 * count)
        voters = ",".join(f"{i + 1}@{HOST}:{port}" for i, port in enumerate(taken[count:]))
        return [
            self._plan_broker(room / f"broker-{i + 1}", i + 1, taken[i], taken[count + i], voters) for i in range(count)
        ]

    def _plan_broker(self, home: Path, number: int, port: int, controller: int, voters: str) -> Server:
        home.mkdir(parents=True)
        config = home / "server.properties"
        config.write_text(
            broker_config(
                home / "data",
                number,
                port,
                controller,
                voters,
                replicas=self._numbers["replicas"],
                in_sync=self._numbers["in_sync"],
            )
        )
        command = jvm(
            *(KAFKA, "kafka.Kafka", str(config)),
            heap_mib=self._numbers["heap_mib"],
            flags=("-Xms128m", "-XX:MaxDirectMemorySize=256m"),
        )
        name = f"broker-{number}"

        async def serves() -> bool:  # does not use this system: with `shared`, others have the server later
            return server.has_logged("Kafka Server started", server.log_begin) and await listens(port)

        server = Server(name, "broker", f"{HOST}:{port}", command, home, serves)
        return server

    async def _first_start(self) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "a")
        try:
            async with asyncio.TaskGroup() as group:
                for server in self._servers:
                    config = server.directory / "server.properties"
                    command = jvm(
                        *(KAFKA, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)),
                        heap_mib=128,
                        flags=("-XX:TieredStopAtLevel=1",),
                    )
                    group.create_task(asyncio.to_thread(run, command, FORMAT_S), name=f"format {server.name}")
        except* FetchFailedError as errors:
            raise ServerFailedError(f"the cluster could not be formatted: {errors.exceptions[0]}") from errors
        await start_together(self._servers)

    async def _prepare_stop(self) -> None:
        await self._close_admin()
        for server in self._servers:
            server.kill()  # an orderly stop hangs: the last node has no quorum. Its data is deleted anyway

    # ---- description -------------------------------------------------------------------------------------------------

    def versions(self) -> Mapping[str, str]:
        for jar in KAFKA.directory.glob(KAFKA.must):
            found = re.fullmatch(r"kafka_2\.13-([\d.]+)\.jar", jar.name)
            if found:
                return {"Apache Kafka": found[1], "java": java_version()}
        raise CannotRunError(f"no jar of Kafka in {KAFKA.directory}: run python -m loadtest peers install kafka")

    def configuration(self) -> Mapping[str, Any]:
        return {
            **self._numbers,
            **({"client": "aiokafka", "topics": "with the settings of regions"} if self._is_aiokafka else {}),
            "flush.messages": 1 if self._flush else "default (never)",
            "acks": "all",
            "enable.idempotence": True,
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            "linger.ms": self._options["linger_ms"] or "5 for maximum throughput, else 0",
            "batch.size": self._options["batch_size"]
            or ("1000000" if self._is_aiokafka else "131072, or the size of the application's batch"),
        }

    def lacks(self, feature: str) -> str | None:
        if feature == "handover":
            return "leaders move when a broker shuts down, which the rolling restart (W14) measures"
        return None

    def address(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "bootstrap": ",".join(server.address for server in self._servers),
            "request_timeout_ms": self._numbers["request_timeout_ms"],
        }
        if self._is_aiokafka:
            fields["batch_size"] = APPEND_BYTES  # as large as a region's, where the producer makes the batches
        return fields | {key: self._options[key] for key in ("linger_ms", "batch_size") if self._options[key]}

    def generator(self, job: Mapping[str, Any], flavour: Flavour) -> tuple[Sequence[str], Mapping[str, Any]]:
        if flavour == "user" or self._is_aiokafka:
            return super().generator(job, flavour)
        classes = classes_of(KAFKA, [f"{name}.java" for name in GENERATOR])
        return jvm(*(KAFKA, "Generator", "KafkaPeer"), heap_mib=self._numbers["client_heap_mib"], first=(classes,)), {}

    def client(self, flavour: Flavour) -> str:
        return "loadtest.systems.kafka:KafkaClient"

    # ---- its logs ----------------------------------------------------------------------------------------------------

    async def create(self, log: str) -> None:
        await self.create_all([log])

    async def create_all(self, logs: Sequence[str]) -> None:
        for begin in range(0, len(logs), CREATE_TOPICS):
            some = logs[begin : begin + CREATE_TOPICS]
            await self._create_some(some)
            self._topics += some
        await self._replicated(logs, READY_S)

    async def _create_some(self, logs: Sequence[str]) -> None:
        """Create them in one request; retry those that are refused."""
        refused, todo = "", list(logs)
        try:
            async with asyncio.timeout(READY_S):
                while todo:
                    try:
                        admin = await self._ask()
                        response = await admin.create_topics([self._topic(log) for log in todo], timeout_ms=ASK_MANY_MS)
                    except (KafkaError, OSError) as error:
                        refused = repr(error)
                        await self._close_admin()
                    else:
                        todo, refused = refused_of(response.topic_errors)
                    if todo:
                        await asyncio.sleep(STEP_S)
        except TimeoutError:
            raise CannotRunError(f"topics were not created within {READY_S:g} s: {todo[:3]} {refused}") from None

    def _topic(self, log: str) -> NewTopic:
        return NewTopic(
            name=log,
            num_partitions=1,
            replication_factor=self._numbers["replicas"],
            topic_configs=self._topic_configs(),
        )

    def _topic_configs(self) -> dict[str, str]:
        if self._is_aiokafka:
            return topic_configs(
                KafkaTopicsOptions(
                    replication_factor=self._numbers["replicas"],
                    min_insync_replicas=self._numbers["in_sync"],
                    flush=self._flush,
                )
            )
        return {"flush.messages": "1"} if self._flush else {}

    async def owner(self, log: str) -> str:
        async with asyncio.timeout(READY_S):
            while True:
                for description in await self._describe([log]):
                    leader = int(description["partitions"][0]["leader"])
                    if leader > 0:
                        return f"broker-{leader}"
                await asyncio.sleep(STEP_S)

    async def leader(self, log: str) -> str:
        return await self.owner(log)

    async def whole(self) -> None:
        await super().whole()
        await self._replicated(self._topics, READY_S)

    async def kill(self, node: str) -> None:
        await self._close_admin()
        await super().kill(node)

    async def pause(self, node: str) -> None:
        await self._close_admin()
        await super().pause(node)

    async def kill_all(self) -> None:
        await self._close_admin()
        await super().kill_all()

    async def replicated(self, topics: Sequence[str]) -> None:
        """Wait until every replica of these topics is in sync. Raises CannotRunError."""
        await self._replicated(topics, READY_S)

    async def _replicated(self, topics: Sequence[str], within_s: float) -> None:
        """Wait until every replica of these topics is in sync."""
        todo = list(topics)
        try:
            async with asyncio.timeout(within_s):
                while todo:
                    whole = {
                        description["topic"]
                        for description in await self._describe(todo)
                        if not description["error_code"]
                        and description["partitions"]
                        and description["partitions"][0]["leader"] > 0
                        and len(description["partitions"][0]["isr"]) == self._numbers["replicas"]
                    }
                    todo = [topic for topic in todo if topic not in whole]
                    if todo:
                        await asyncio.sleep(STEP_S)
        except TimeoutError:
            raise CannotRunError(f"topics were not replicated within {within_s:g} s: {todo[:3]}") from None

    async def _describe(self, topics: Sequence[str]) -> list[dict[str, Any]]:
        """A broker's description of topics; empty if no broker answers."""
        try:
            admin = await self._ask()
            described: list[dict[str, Any]] = await admin.describe_topics(list(topics))
        except (KafkaError, OSError):
            await self._close_admin()
            return []
        return described

    async def _ask(self) -> AIOKafkaAdminClient:
        async with self._asking:
            if self._admin is None:
                live = [server.address for server in self._servers if server.is_running and not server.is_paused]
                admin = AIOKafkaAdminClient(bootstrap_servers=live, request_timeout_ms=ASK_MS)
                try:
                    await admin.start()
                except BaseException:
                    await admin.close()
                    raise
                self._admin = admin
            return self._admin

    async def _close_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()


def refused_of(topic_errors: Sequence[Sequence[Any]]) -> tuple[list[str], str]:
    """Topics that a request did not create, and why. One that already exists counts as created: a response was lost."""
    found = [(str(name), for_code(code)) for name, code, *_ in topic_errors]
    refused = [(name, error) for name, error in found if error not in (NoError, TopicAlreadyExistsError)]
    return [name for name, _ in refused], ", ".join(sorted({error.__name__ for _, error in refused}))


def broker_config(
    data: Path, number: int, port: int, controller: int, voters: str, *, replicas: int, in_sync: int
) -> str:
    """The properties of one node."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": data,
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "unclean.leader.election.enable": "false",
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        "offsets.topic.num.partitions": 6,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": 6,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": 6,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "auto.create.topics.enable": "false",
        "message.max.bytes": 16 << 20,
        "replica.fetch.max.bytes": 16 << 20,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "log.cleaner.dedupe.buffer.size": 16777216,
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


# ---- the client of a Python program ---------------------------------------------------------------------------------


class KafkaClient(Client):
    """aiokafka: an idempotent producer with acks=all, a consumer per reader."""

    def __init__(self, address: Mapping[str, Any], producer: AIOKafkaProducer) -> None:
        self._address = address
        self._producer = producer

    @classmethod
    async def connect(cls, address: Mapping[str, Any], options: Mapping[str, str]) -> KafkaClient:
        producer = AIOKafkaProducer(
            bootstrap_servers=address["bootstrap"],
            acks="all",
            enable_idempotence=True,
            linger_ms=int(address.get("linger_ms", 0)),
            max_batch_size=int(address.get("batch_size", 128 * 1024)),
            max_request_size=16 << 20,
            request_timeout_ms=int(address["request_timeout_ms"]),
        )
        await producer.start()
        return cls(address, producer)

    async def close(self) -> None:
        await self._producer.stop()

    async def writer(self, log: str, on_answer: OnAnswer) -> KafkaWriter:
        await self._producer.partitions_for(log)
        return KafkaWriter(self._producer, log, on_answer)

    async def read(
        self, log: str, *, tail: bool, follow: bool
    ) -> AsyncGenerator[tuple[Position, Sequence[bytes]], None]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._address["bootstrap"],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=4 << 20,
            request_timeout_ms=int(self._address["request_timeout_ms"]),
        )
        partition = TopicPartition(log, 0)
        await consumer.start()
        try:
            consumer.assign([partition])
            end = (await consumer.end_offsets([partition]))[partition]
            position = end if tail else (await consumer.beginning_offsets([partition]))[partition]
            consumer.seek(partition, position)
            yield (0, position), ()
            while follow or position < end:
                found = await consumer.getmany(partition, timeout_ms=100, max_records=READ_RECORDS)
                for first, values in _dense(found.get(partition, ())):
                    yield (0, first), values
                    position = first + len(values)
        finally:
            await consumer.stop()


def _dense(records: Sequence[Any]) -> list[tuple[int, list[bytes]]]:
    """Split records into runs of consecutive offsets."""
    runs: list[tuple[int, list[bytes]]] = []
    for record in records:
        if runs and record.offset == runs[-1][0] + len(runs[-1][1]):
            runs[-1][1].append(record.value)
        else:
            runs.append((record.offset, [record.value]))
    return runs


class KafkaWriter(Writer):
    """One topic; all topics share a producer."""

    def __init__(self, producer: AIOKafkaProducer, log: str, on_answer: OnAnswer) -> None:
        self._producer = producer
        self._log = log
        self._on_answer = on_answer
        self._next = 0
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def hand_over(self, records: Sequence[bytes]) -> None:
        for record in records:
            index, self._next = self._next, self._next + 1
            self._under_way += 1
            self._idle.clear()
            try:
                answer = await self._producer.send(self._log, record, partition=0)
            except Exception as error:  # noqa: BLE001 - any error fails the record
                self._report(Refused(index, 1, repr(error), True))
                continue
            answer.add_done_callback(partial(self._answered, index, 1))

    async def hand_over_batch(self, records: Sequence[bytes]) -> None:
        """Send them as one batch that this client makes, as a region does."""
        index, self._next = self._next, self._next + len(records)
        self._under_way += len(records)
        self._idle.clear()
        batch = BatchBuilder(sum(map(len, records)) + len(records) * RECORD_MAX_BYTES + BATCH_OVERHEAD_BYTES, 0)
        for record in records:
            assert batch.append(timestamp=None, key=None, value=record) is not None, "it was made large enough"
        batch.close()
        try:
            answer = await self._producer.send_batch(batch, self._log, partition=0)
        except Exception as error:  # noqa: BLE001 - any error fails the batch
            self._report(Refused(index, len(records), repr(error), True))
            return
        answer.add_done_callback(partial(self._answered, index, len(records)))

    async def append(self, record: bytes) -> Position | None:
        result = await self._producer.send_and_wait(self._log, record, partition=0)
        self._next += 1
        return (0, result.offset)

    async def flush(self) -> None:
        await self._producer.flush()
        await self._idle.wait()

    async def close(self) -> None:
        """Does nothing: the client closes the producer."""

    def _answered(self, index: int, count: int, answer: asyncio.Future[Any]) -> None:
        error = answer.exception() if not answer.cancelled() else asyncio.CancelledError()
        if error is None:
            self._report(Acked(index, count, (0, answer.result().offset)))
        else:
            self._report(Refused(index, count, repr(error), True))

    def _report(self, answer: Acked | Refused) -> None:
        self._under_way -= answer.count
        self._on_answer(answer)
        if not self._under_way:
            self._idle.set()


def _make(variant: str) -> System:
    system = KafkaSystem(variant)
    system._choose(VARIANTS[variant].preset)  # sets `durability` before the start
    return system


VARIANTS: Mapping[str, Variant] = {
    "kafka": Variant(
        _make, {}, "three KRaft brokers, RF 3, min ISR 2, acks=all, every batch synced (flush.messages=1)"
    ),
    "kafka-aiokafka": Variant(
        _make,
        {"shared": "true", "aiokafka": "true"},
        "aiokafka's producer and consumer alone, on topics with the settings of dlog's regions",
    ),
    "kafka-default": Variant(_make, {"flush": "false"}, "kafka with its default, acknowledging from page caches"),
}
