"""Settings of Kafka topics that hold regions: what a topic is created with, and which found settings are refused."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dlog.errors import ConfigError, InvalidRequestError
from dlog.hostport import join_host_port, split_host_port
from dlog.options import MiB, check_positive, option
from dlog.region.topics import UnsafeTopicError
from dlog.stores.kafka.options import KafkaStoreOptions

_SCHEME, _FILE_SCHEME = "kafka://", "file://"
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")

#: bytes of a batch that are not records: its header
BATCH_OVERHEAD_BYTES = 61


class ProducerId(NamedTuple):
    """A producer of Kafka. epoch: which of those that had the id one after the other."""

    id: int
    epoch: int


@dataclass(frozen=True, kw_only=True)
class KafkaTopicsOptions:
    """Settings of the topics, and bounds of the client.

    An acknowledged record is on min_insync_replicas brokers, synced to their disks if `flush`. A call fails
    after timeout_s; a request to one broker after request_timeout_s, then another attempt is made.
    """

    replication_factor: int = option(3, "replicas of a topic; 1 only for development")
    min_insync_replicas: int = option(2, "replicas that have a record before it is acknowledged")
    flush: bool = option(True, "brokers sync every batch before they answer (flush.messages=1)")
    transactional_ids: bool = option(False, "brokers refuse late batches of a region's former owner (Kafka 2.5)")
    batch_bytes_max: int = option(1 * MiB, "bytes of the records of one append")
    timeout_s: float = option(15.0, "time for each call")
    request_timeout_s: float = option(5.0, "time for a request to one broker")
    close_s: float = option(5.0, "time for closing a connection or producer")
    fetch_bytes: int = option(4 * MiB, "bytes asked of a broker at once, at least")
    scans_max: int = option(16, "scans of which fetched and not yet read records are kept")
    producers_max: int = option(64, "topics with a producer; the one unused for longest is closed first")

    def __post_init__(self) -> None:
        check_positive(self, "replication_factor", "min_insync_replicas", "batch_bytes_max", "timeout_s")
        check_positive(self, "request_timeout_s", "close_s", "fetch_bytes", "scans_max", "producers_max")
        if self.min_insync_replicas > self.replication_factor:
            raise ValueError(
                f"min_insync_replicas must not exceed replication_factor: "
                f"{self.min_insync_replicas} > {self.replication_factor}"
            )


@dataclass(frozen=True, kw_only=True)
class KafkaOptions(KafkaTopicsOptions, KafkaStoreOptions):
    """Regions and streams in topics: where those are, their settings, and bounds of what is kept in memory."""

    topics: str = option("", "kafka://host:port,host:port, or file:///path; empty: no streams in topics")

    def __post_init__(self) -> None:
        KafkaTopicsOptions.__post_init__(self)
        KafkaStoreOptions.__post_init__(self)


def parse_kafka_address(text: str) -> tuple[str, ...]:
    """The addresses in `kafka://host:port,host:port`, as `host:port`. Raises ConfigError."""
    if not text.startswith(_SCHEME):
        raise ConfigError(f"not an address of Kafka, use kafka://host:port,host:port: address={text[:80]!r}")
    found = []
    for part in text.removeprefix(_SCHEME).removesuffix("/").split(","):
        try:
            found.append(join_host_port(*split_host_port(part.strip())))
        except ValueError as error:
            raise ConfigError(f"not an address of Kafka, use kafka://host:port,host:port: {error}") from None
    return tuple(dict.fromkeys(found))


def parse_topics_address(text: str) -> str:
    """An address of topics in its full form, `kafka://host:port,host:port` or `file:///path`. `host:port,host:port` is
    Kafka's. Raises ConfigError."""
    text = text.strip()
    if text.startswith(f"{_FILE_SCHEME}/") and text.isprintable():
        return f"{_FILE_SCHEME}{posixpath.normpath(text.removeprefix(_FILE_SCHEME)).replace('//', '/')}"
    if "://" in text and not text.startswith(_SCHEME):
        raise ConfigError(
            f"not an address of topics, use host:port,host:port of Kafka's brokers, or file:///path: "
            f"address={text[:80]!r}"
        )
    return _SCHEME + ",".join(parse_kafka_address(_SCHEME + text.removeprefix(_SCHEME)))


def check_topic_name(topic: str) -> None:
    """Raises InvalidRequestError for a name that Kafka refuses."""
    if not _NAME.match(topic) or topic in (".", ".."):
        raise InvalidRequestError(
            f"not a name of a Kafka topic, use 1 to 249 of a-z A-Z 0-9 . _ -: topic={topic[:300]!r}"
        )


def topic_configs(options: KafkaTopicsOptions) -> dict[str, str]:
    """What a topic is created with. Explicit, as brokers may have other defaults.

    LogAppendTime: a broker refuses records whose timestamp, from the clock of this machine, is an hour ahead of its
    own.
    """
    return {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "unclean.leader.election.enable": "false",
        "min.insync.replicas": str(options.min_insync_replicas),
        "max.message.bytes": str(options.batch_bytes_max + BATCH_OVERHEAD_BYTES),
        "message.timestamp.type": "LogAppendTime",
        **({"flush.messages": "1"} if options.flush else {}),
    }


class UnsafeSetting(NamedTuple):
    """A setting that could lose or reorder records. mend: a command."""

    setting: str
    found: str
    wanted: str
    mend: str


def unsafe_settings(
    topic: str,
    configs: Mapping[str, str],
    partitions: int,
    replication_factor: int,
    options: KafkaTopicsOptions,
    brokers: Sequence[str],
) -> list[UnsafeSetting]:
    """The settings of a topic that are refused. configs: as described, with the defaults of the brokers."""
    server = f"--bootstrap-server {brokers[0]}"
    found: list[UnsafeSetting] = []
    if partitions != 1:
        mend = f"kafka-topics.sh {server} --delete --topic {topic}, after copying it to a topic of one partition"
        found.append(UnsafeSetting("partitions", str(partitions), "1", mend))
    if replication_factor < options.replication_factor:
        mend = f"kafka-reassign-partitions.sh {server} --execute --reassignment-json-file FILE (replicas of {topic})"
        wanted = f"{options.replication_factor} or more"
        found.append(UnsafeSetting("replication factor", str(replication_factor), wanted, mend))
    for setting, wanted in topic_configs(options).items():
        value = configs.get(setting, "none")
        if _is_safe(setting, value, wanted):
            continue
        mend = (
            f"kafka-configs.sh {server} --alter --entity-type topics --entity-name {topic} "
            f"--add-config {setting}={wanted}"
        )
        found.append(UnsafeSetting(setting, value, wanted, mend))
    return found


def refuse_unsafe(topic: str, found: Sequence[UnsafeSetting]) -> None:
    """Raises UnsafeTopicError if there is anything to refuse."""
    if found:
        problems = "; ".join(f"{one.setting} is {one.found}, must be {one.wanted}, run: {one.mend}" for one in found)
        raise UnsafeTopicError(f"the topic's settings could lose or reorder records: topic={topic}: {problems}")


def _is_safe(setting: str, value: str, wanted: str) -> bool:
    match setting:
        case "max.message.bytes" | "message.timestamp.type":
            return True  # a batch may be refused by it, not lost
        case "min.insync.replicas":
            return value.isdecimal() and int(value) >= int(wanted)
        case _:
            return value == wanted
