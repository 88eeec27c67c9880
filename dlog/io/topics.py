"""Opens topics by their address."""

from __future__ import annotations

from dlog.errors import ConfigError
from dlog.io.file_topics import DirectoryTopics, FileTopics
from dlog.io.kafka_settings import KafkaTopicsOptions
from dlog.io.kafka_topics import KafkaTopics
from dlog.region.topics import Topics


def open_topics(address: str, *, kafka: KafkaTopicsOptions | None = None) -> Topics:
    """The topics at `file:///path`, or at `kafka://host:port,host:port`. Raises ConfigError, MisconfiguredError."""
    if address.startswith("kafka://"):
        return KafkaTopics(address, kafka)
    if address.startswith("file:///"):
        return FileTopics(DirectoryTopics(address.removeprefix("file://")))
    raise ConfigError(
        f"not an address of topics, use file:///path or kafka://host:port,host:port: address={address[:80]!r}"
    )
